//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand};

/// Supervised pipelines of LLM agents: one agent's flood never sinks the ship.
#[derive(Debug, Parser)]
#[command(name = "watertight", version, propagate_version = true, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed or timed out, 2 usage, configuration or input, 3 done but degraded, 130 Ctrl-C.\nStart here: watertight run examples/momently"
)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
    /// What to log on standard error: error, warn, info, debug, trace, or a filter like watertight=debug
    #[arg(long, global = true, env = "WATERTIGHT_LOG", default_value = "error", value_name = "FILTER")]
    pub(super) log: String,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run a workflow once and print what it made
    Run(RunArgs),
    /// Check configuration and workflow without running anything
    Check(CheckArgs),
    /// Write a commented configuration for what is found on this machine
    Init(InitArgs),
    /// Serve one agent over HTTP, well or ill
    Agent(AgentArgs),
    /// Make a configuration of another tool's, and say what became of each of its keys
    Import(ImportArgs),
    /// Serve workflows, agents and models over HTTP until it is told to stop
    Serve(ServeArgs),
    /// Make a key for the service
    Key(KeyArgs),
    /// Do a step of a run again, and all that depends on it, and show what that changed
    Rerun(RerunArgs),
    #[command(hide = true)]
    Replay(LaterArgs),
    #[command(hide = true)]
    Drill(LaterArgs),
    #[command(hide = true)]
    Rollout(LaterArgs),
    #[command(hide = true)]
    Export(LaterArgs),
}

/// Whatever a command that is not built yet is given.
#[derive(Debug, Args)]
pub(super) struct LaterArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) rest: Vec<String>,
}

/// Where the project is and how its settings are changed.
#[derive(Debug, Clone, Args)]
pub(super) struct ProjectArgs {
    /// The project's folder: workflow.toml, watertight.toml, agents/, input/
    #[arg(value_name = "FOLDER", default_value = ".")]
    pub(super) folder: PathBuf,
    /// The configuration, instead of FOLDER/watertight.toml
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The workflow, instead of FOLDER/workflow.toml
    #[arg(long, value_name = "FILE")]
    pub(super) workflow: Option<PathBuf>,
    /// Change one setting, as in --set agents.draft.slots=3 (repeatable; wins over files and WATERTIGHT_* variables)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) project: ProjectArgs,
    /// The folder with the inputs, instead of FOLDER/input
    #[arg(long, value_name = "FOLDER")]
    pub(super) input: Option<PathBuf>,
    /// Give one input by name: --with notes="two lines" or --with notes=@notes.md (repeatable)
    #[arg(long = "with", value_name = "NAME=VALUE")]
    pub(super) with: Vec<String>,
    /// Give up after this long, as in 90s or 10m (the workflow's own deadline holds as well)
    #[arg(long, value_name = "TIME")]
    pub(super) deadline: Option<String>,
    /// Print the whole run as one JSON object instead of what it made
    #[arg(long)]
    pub(super) json: bool,
    /// Append every finished call to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(super) call_log: Option<PathBuf>,
    /// No progress on standard error
    #[arg(long, short)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "What came before the step is taken over from the journal and not paid again.\nThe difference goes to standard output, progress to standard error; exit codes are those of `run`."
)]
pub(super) struct RerunArgs {
    /// The run, by its id
    #[arg(value_name = "RUN")]
    pub(super) run: String,
    /// The first step that is done again
    #[arg(long, value_name = "STEP")]
    pub(super) from: String,
    /// A prompt for that step's agent instead of its own, in the new run only
    #[arg(long, value_name = "FILE")]
    pub(super) prompt: Option<PathBuf>,
    /// The project whose journal holds the run (the present folder if nothing is given)
    #[arg(long, value_name = "PROJECT", conflicts_with = "url")]
    pub(super) folder: Option<PathBuf>,
    /// The configuration, instead of PROJECT/watertight.toml
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    pub(super) config: Option<PathBuf>,
    /// Change one setting, as in --set agents.draft.slots=3 (repeatable)
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "url")]
    pub(super) set: Vec<String>,
    /// Ask the service at this address, which holds the journal
    #[arg(long, value_name = "URL")]
    pub(super) url: Option<String>,
    /// The environment variable with the key for the service
    #[arg(long, value_name = "NAME", requires = "url")]
    pub(super) key_env: Option<String>,
    /// Print both runs and their difference as one JSON object
    #[arg(long)]
    pub(super) json: bool,
    /// No progress on standard error
    #[arg(long, short)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    pub(super) project: ProjectArgs,
    /// Print every effective value and where it comes from
    #[arg(long)]
    pub(super) explain: bool,
    /// Call this agent once and print the request, the raw answer and how it was read
    #[arg(long, value_name = "AGENT", requires = "input")]
    pub(super) call: Option<String>,
    /// Show what a reload would change at the service there
    #[arg(long, value_name = "URL", conflicts_with_all = ["call", "explain"])]
    pub(super) against: Option<String>,
    /// The environment variable that holds an operator's key, for --against
    #[arg(long, value_name = "VARIABLE", requires = "against")]
    pub(super) key_env: Option<String>,
    /// The agent's input, a JSON file, for --call
    #[arg(long, value_name = "FILE", requires = "call")]
    pub(super) input: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Where to write watertight.toml and, if there is none, workflow.toml
    #[arg(value_name = "FOLDER", default_value = ".")]
    pub(super) folder: PathBuf,
    /// An OpenAI-compatible server (its address up to /v1), or an Ollama, to use instead of looking for one on this machine
    #[arg(long, value_name = "URL")]
    pub(super) server: Option<String>,
    /// Look for no server: agents compute inside the program
    #[arg(long, conflicts_with = "server")]
    pub(super) embedded: bool,
    /// Overwrite files that are there
    #[arg(long)]
    pub(super) force: bool,
    /// Print what was found and written as one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct AgentArgs {
    /// The agent
    #[arg(value_name = "NAME")]
    pub(super) name: String,
    /// Where to listen; beyond this machine only if you say so here
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0", value_parser = address)]
    pub(super) listen: SocketAddr,
    /// A script that makes it ill by phases
    #[arg(long, value_name = "FILE")]
    pub(super) script: Option<PathBuf>,
    /// The project's folder, for agents of your own and their settings
    #[arg(long, value_name = "FOLDER")]
    pub(super) folder: Option<PathBuf>,
    /// The configuration, instead of FOLDER/watertight.toml
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    #[command(subcommand)]
    pub(super) from: ImportFrom,
}

#[derive(Debug, Subcommand)]
pub(super) enum ImportFrom {
    /// Spring Boot's application.yml with resilience4j.* properties
    Resilience4j(Resilience4jArgs),
    /// A LiteLLM proxy's config.yaml
    Litellm(ImportOutput),
}

#[derive(Debug, Args)]
pub(super) struct Resilience4jArgs {
    #[command(flatten)]
    pub(super) output: ImportOutput,
    /// Take over what holds in this Spring profile (repeatable)
    #[arg(long, value_name = "NAME")]
    pub(super) profile: Vec<String>,
    /// Where your services are: the file does not say
    #[arg(long, value_name = "URL")]
    pub(super) base_url: Option<String>,
}

/// What is read, and where the result goes.
#[derive(Debug, Args)]
pub(super) struct ImportOutput {
    /// The file to read
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// Write the configuration to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Overwrite the file if it is there
    #[arg(long, requires = "output")]
    pub(super) force: bool,
    /// Print configuration and findings as one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    pub(super) project: ProjectArgs,
    /// Where to listen, instead of serve.listen (127.0.0.1:7800)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub(super) listen: Option<SocketAddr>,
    /// Append every finished call to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(super) call_log: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    #[command(subcommand)]
    pub(super) act: KeyAct,
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyAct {
    /// Print a new key once, and the lines of the configuration that make it known
    New(KeyNewArgs),
}

#[derive(Debug, Args)]
pub(super) struct KeyNewArgs {
    /// The key's name in the configuration
    #[arg(value_name = "NAME")]
    pub(super) name: String,
    /// Whose it is
    #[arg(long, value_name = "NAME")]
    pub(super) tenant: Option<String>,
    /// The key of an operator: it sees all tenants and may act on agents
    #[arg(long)]
    pub(super) operator: bool,
    /// Print the key and what the configuration gets as one JSON object, and nothing beside it
    #[arg(long)]
    pub(super) json: bool,
}

/// Where to listen, as it is typed.
fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "must be an address with a port, as in 127.0.0.1:7800".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
