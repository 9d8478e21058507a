//! From the command line to an exit code.

use std::{io::IsTerminal, process::ExitCode};

use clap::{
    CommandFactory, Parser,
    error::{ContextKind, ContextValue},
};
use tracing_subscriber::EnvFilter;

use super::{
    agent_command,
    args::{Cli, Command},
    check_command,
    exit::Stop,
    import, init_command, key_command, rerun, run_command,
    say::say,
    serve_command,
};
use crate::model::nearest::nearest;

/// Runs the program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; clap knows its own exit codes (0 and 2).
            let code = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
            let _ = with_near_command(error, std::env::args().nth(1).as_deref()).print();
            return code;
        }
    };
    match start(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => {
            if let Stop::Usage(message) = &stop {
                // Each line for itself: whoever searches for one finds whose it is.
                message.lines().for_each(|line| say(&format!("watertight: {line}")));
            }
            stop.code()
        }
    }
}

/// The error with the command that was most likely meant, where clap itself finds none: its measure is too coarse for short words.
fn with_near_command(mut error: clap::Error, first: Option<&str>) -> clap::Error {
    let is_told = error.get(ContextKind::SuggestedSubcommand).is_some();
    let word = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) if !is_told && first == Some(word) => word.clone(),
        _ => return error,
    };
    let command = Cli::command();
    let known = command.get_subcommands().filter(|known| !known.is_hide_set()).map(clap::Command::get_name);
    if let Some(near) = nearest(&word, known) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![near.to_owned()]));
    }
    error
}

fn start(cli: Cli) -> Result<(), Stop> {
    let filter = EnvFilter::try_new(&cli.log).map_err(|error| Stop::Usage(format!("--log {}: {error}", cli.log)))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Stop::Usage(format!("cannot start threads: {error}")))?;
    let result = runtime.block_on(async {
        match cli.command {
            Command::Run(args) => run_command::run(args).await,
            Command::Check(args) => check_command::check(args).await,
            Command::Init(args) => init_command::init(args).await,
            Command::Agent(args) => agent_command::serve(args).await,
            Command::Import(args) => import::command::import(args),
            Command::Serve(args) => serve_command::serve(args).await,
            Command::Key(args) => key_command::key(&args),
            Command::Replay(_) => Err(later("replay")),
            Command::Drill(_) => Err(later("drill")),
            Command::Rollout(_) => Err(later("rollout")),
            Command::Export(_) => Err(later("export")),
            Command::Rerun(args) => rerun::command::rerun(args).await,
        }
    });
    // Blocking work that cannot be interrupted (reading a photo) does not hold up the exit.
    runtime.shutdown_background();
    result
}

fn later(command: &str) -> Stop {
    Stop::Usage(format!(
        "`{command}` is not built yet; there are run, serve, rerun, check, init, key, agent and import"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_command_is_told_with_what_was_meant() {
        for (words, meant) in [
            (&["rnu"][..], Some("run")),
            (&["chekc"], Some("check")),
            (&["srve", "x"], Some("serve")),
            (&["frobnicate"], None),
            (&["key", "rnu"], None),
        ] {
            let error = Cli::try_parse_from(["watertight"].iter().chain(words)).unwrap_err();
            let said = with_near_command(error, words.first().copied()).to_string();
            match meant {
                Some(meant) => assert!(said.contains(&format!("'{meant}'")), "{said}"),
                None => assert!(!said.contains("'run'"), "{said}"),
            }
        }
    }
}
