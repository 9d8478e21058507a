//! The `watertight` program. Everything is in the library's `cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    watertight::cli::main()
}
