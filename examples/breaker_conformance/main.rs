//! Plays conformance vectors on the pure breaker: `cargo run --release --example breaker_conformance -- FILE...`
//!
//! Prints each mismatch and closes with `N passed, M failed` (scenarios). Exit 0 when all passed, 1 on a mismatch, 2 when a file cannot be
//! read or a scenario cannot be played. It only translates between the vectors' words and ours; every decision is `policy::breaker`'s.

mod player;
mod vector;

use std::{env, process::ExitCode};

use vector::{BadVector, Scenario};

fn main() -> ExitCode {
    let files: Vec<String> = env::args().skip(1).collect();
    if files.is_empty() {
        eprintln!("usage: breaker_conformance FILE...   (JSON Lines, one scenario a line)");
        return ExitCode::from(2);
    }
    match play_files(&files) {
        Ok((passed, failed)) => {
            println!("{passed} passed, {failed} failed");
            ExitCode::from(u8::from(failed > 0))
        }
        Err(bad) => {
            eprintln!("{bad}");
            ExitCode::from(2)
        }
    }
}

/// Plays every scenario of every file and counts those that passed and failed. Nothing is played of a file that is bad somewhere.
fn play_files(files: &[String]) -> Result<(usize, usize), BadVector> {
    let (mut passed, mut failed) = (0, 0);
    for file in files {
        for (line, scenario) in vector::read(file)? {
            if play(file, line, &scenario)? { passed += 1 } else { failed += 1 }
        }
    }
    Ok((passed, failed))
}

/// Plays one scenario, prints its mismatches, and says whether there were none.
fn play(file: &str, line: usize, scenario: &Scenario) -> Result<bool, BadVector> {
    let mismatches = player::play(scenario).map_err(|what| BadVector::new(file, line, what))?;
    for mismatch in &mismatches {
        println!("{} [{}], {mismatch}", scenario.name, scenario.profile);
    }
    Ok(mismatches.is_empty())
}
