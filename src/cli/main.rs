//! From the command line to an exit code.

use std::{io::IsTerminal, process::ExitCode};

use clap::Parser;
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

/// Runs the program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; clap knows its own exit codes (0 and 2).
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
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
