//! One customer's bulk export meets everybody's chats on one model server: with compartments, and without.
//!
//! `cargo run --release --example bulk_export_storm` plays hours in virtual time within seconds; `-- --http` plays a shorter storm over
//! HTTP on the loopback in less than a minute. `--json` prints an object, `--korean` Korean labels, `--documents N` another export, `--seed N`
//! other chance. No key and no network are needed. Exit code 1 if a promise was not kept, 2 if an argument is not understood.
//!
//! The model server has 24 slots. A stream that is alone makes 50 tokens a second; each further one slows all of them by 1 % of that; 100
//! prompt tokens cost as much as one token of output; whoever finds no slot waits in a queue without bound. 30 people of three customers ask
//! (400 to 1,200 tokens in, 80 to 800 out), read for ten seconds on average, and ask again. One of the customers exports documents of 5,000
//! tokens each, 200 to 800 of them out, 60 at once. A time is counted from the first time of asking to the answer, refusals and waits included. With
//! compartments the provider has 24 slots, of which 20 are the chats' and 3 the export's; without, calls go through as they come. Breakers
//! only measure on both sides.

mod http;
mod report;
mod storm;

use std::{env, process::ExitCode, time::Instant};

use report::{Language, RATIO_MAX, RATIO_OVER_HTTP_MAX};
use storm::{PLAN, SERVER, callers::Plan, sides::Failed};

/// Documents of the export in virtual time.
const DOCUMENTS: u64 = 3_000;

/// What was asked for.
struct Asked {
    plan: Plan,
    documents: Option<u64>,
    over_http: bool,
    json: bool,
    language: Language,
}

fn main() -> ExitCode {
    let asked = match Asked::of(env::args().skip(1)) {
        Ok(asked) => asked,
        Err(problem) => {
            eprintln!("{problem}\nusage: bulk_export_storm [--http] [--json] [--korean] [--documents N] [--seed N]");
            return ExitCode::from(2);
        }
    };
    match play(&asked) {
        Ok(kept) => ExitCode::from(u8::from(!kept)),
        Err(failed) => {
            eprintln!("{failed}");
            ExitCode::FAILURE
        }
    }
}

impl Asked {
    fn of(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut asked =
            Self { plan: PLAN, documents: None, over_http: false, json: false, language: Language::English };
        while let Some(argument) = arguments.next() {
            let mut number = || {
                let value = arguments.next().ok_or_else(|| format!("{argument} needs a number"))?;
                value.parse::<u64>().map_err(|bad| format!("{argument} {value}: {bad}"))
            };
            match argument.as_str() {
                "--http" => asked.over_http = true,
                "--json" => asked.json = true,
                "--korean" => asked.language = Language::Korean,
                "--documents" => asked.documents = Some(number()?),
                "--seed" => asked.plan.seed = number()?,
                _ => return Err(format!("{argument}: not understood")),
            }
        }
        match asked.documents {
            Some(_) if asked.over_http => Err("--documents: over HTTP the time is fixed, not their number".to_owned()),
            Some(documents) if !(200..=100_000).contains(&documents) => {
                Err(format!("--documents {documents}: 200 to 100,000, so that there are samples enough"))
            }
            _ => Ok(asked),
        }
    }
}

/// Plays and prints; whether all promises were kept.
fn play(asked: &Asked) -> Result<bool, Failed> {
    let began = Instant::now();
    let (storm, faster, documents, ratio_max) = if asked.over_http {
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let storm = tokio.map_err(Failed::Tokio)?.block_on(http::over_http(asked.plan))?;
        (storm, http::FASTER, None, RATIO_OVER_HTTP_MAX)
    } else {
        let documents = asked.documents.unwrap_or(DOCUMENTS);
        (storm::in_virtual_time(asked.plan, documents)?, 1.0, Some(documents), RATIO_MAX)
    };
    let verdicts = report::verdicts(&storm, documents, ratio_max);
    if asked.json {
        println!("{:#}", report::json(&storm, faster, &verdicts));
    } else {
        println!("{}", preamble(asked, faster));
        println!("{}", report::table(&storm, faster, asked.language));
        for verdict in &verdicts {
            println!("{}: {}", if verdict.kept { "kept" } else { "BROKEN" }, verdict.text);
        }
        let [_, kept_apart, open] = storm.servers;
        println!(
            "The server's own queue: {} at most with compartments, {} without.",
            kept_apart.queue_max, open.queue_max
        );
        let hours = (storm.quiet.span + storm.kept_apart.span + storm.open.span).as_secs_f64() * faster / 3_600.0;
        println!("{hours:.1} hours, played in {:.1} s.", began.elapsed().as_secs_f64());
    }
    Ok(verdicts.iter().all(|verdict| verdict.kept))
}

/// What stands above the table: the model.
fn preamble(asked: &Asked, faster: f64) -> String {
    let Plan { users, workers, document_tokens, think, .. } = asked.plan;
    format!(
        "{users} people chat, {} s between questions; an export of documents of {} tokens, {workers} at once; one server: {} streams, each\n\
         {:.0} tokens/s alone and {:.0} with all of them; {} prompt tokens cost one of output. {}\n",
        think.as_secs(),
        document_tokens,
        SERVER.slots,
        SERVER.of_each(1),
        SERVER.of_each(SERVER.slots),
        SERVER.prompt_per_output,
        if asked.over_http {
            format!("Over HTTP, {faster} times as fast as life; times are shown as in life.")
        } else {
            "In virtual time.".to_owned()
        },
    )
}
