//! The `watertight` program: flags, files, terminals and exit codes. Results go to standard output, everything else to standard error.

mod agent_command;
mod args;
mod assemble;
mod call_log_file;
mod check_command;
mod exit;
mod import;
mod init_command;
mod input;
mod main;
mod places;
mod progress;
mod project;
mod report;
mod run_command;
mod say;
mod table;

pub use main::main;
