//! The `watertight` program: flags, files, terminals and exit codes. Results go to standard output, everything else to standard error.

mod agent_command;
mod args;
mod assemble;
mod call_log_file;
mod check_command;
mod deferral;
mod exit;
mod faults;
mod file_reach;
mod import;
mod init_command;
mod input;
mod key_command;
mod loaded_files;
mod main;
mod progress;
mod project;
mod reloading;
mod report;
mod rerun;
mod run_command;
mod say;
mod secrets;
mod serve_command;
mod serve_end;
mod serve_start;
pub mod storage;
mod table;
mod told_to_stop;

pub use main::main;
