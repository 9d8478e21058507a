//! One real hour through the compartments, in virtual time: the calls of two LLM services that Azure published in 2023 (conversations as
//! interactive, code as batch), each at its own moment, with its own tokens.
//!
//! `cargo run --release --example azure_hour -- FOLDER` reads `conv.csv` and `code.csv` there (columns `TIMESTAMP`, `ContextTokens`,
//! `GeneratedTokens`; github.com/Azure/AzurePublicDataset, CC BY 4.0); without FOLDER it looks in `$WATERTIGHT_SHARED/data/azure-llm-2023` and says so if
//! nothing is there. The traces hold no latency, so it comes from a model: 60 ms, 0.2 ms a prompt token, 20 ms an output token. The provider
//! has 44 slots, of which 34 are the conversations' and 8 the code's, which never has more; each has a token budget. A refused conversation is
//! lost, refused code comes back when it was told to. Exit code 1 if a rolling minute was over its budget, 2 if the traces cannot be read.

mod hour;

use std::{env, path::PathBuf, process::ExitCode, time::Instant};

use hour::{CODE_TOKENS, CONVERSATION_TOKENS, Seen, play, trace};
use trace::Service;

fn main() -> ExitCode {
    let shared = || env::var("WATERTIGHT_SHARED").unwrap_or_else(|_| "../shared".to_owned());
    let folder = env::args().nth(1).map_or_else(|| PathBuf::from(shared()).join("data/azure-llm-2023"), PathBuf::from);
    if !folder.exists() {
        println!("skipped: {} is not there", folder.display());
        return ExitCode::SUCCESS;
    }
    let began = Instant::now();
    let arrivals = match trace::read(&folder) {
        Ok(arrivals) => arrivals,
        Err(bad) => {
            eprintln!("{bad}");
            return ExitCode::from(2);
        }
    };
    let count = arrivals.len();
    let all = match play(arrivals) {
        Ok(all) => all,
        Err(failed) => {
            eprintln!("{failed}");
            return ExitCode::FAILURE;
        }
    };
    println!("{count} calls of one hour, played in {:.1} s\n", began.elapsed().as_secs_f64());
    let mut within = true;
    for (service, seen) in &all {
        let (name, cap) = match service {
            Service::Conversation => ("conversation (interactive)", CONVERSATION_TOKENS),
            Service::Code => ("code (batch)", CODE_TOKENS),
        };
        within &= seen.minute_max() <= cap;
        print(name, seen, cap);
    }
    ExitCode::from(u8::from(!within))
}

fn print(name: &str, seen: &Seen, cap: u64) {
    let seconds =
        |percent| seen.percentile_ms(percent).map_or_else(|| "-".to_owned(), |ms| format!("{:.2} s", ms / 1_000.0));
    println!("{name}: {} answered, {} lost", seen.took_ms.len(), seen.lost);
    println!("  from the call to its answer: p50 {}, p99 {}", seconds(50), seconds(99));
    for (reason, count) in &seen.refused {
        println!("  refused: {count} x {reason}");
    }
    let sum: u64 = seen.used.iter().map(|(_, tokens)| tokens).sum();
    println!("  tokens: {sum} in all; {} in the fullest of all rolling minutes, of {cap}\n", seen.minute_max());
}
