//! Everything that is wrong with a project, gathered before anything of it is told: settings, agents' folders, workflows and secrets in
//! one go, one line each. Decides nothing of what is wrong.

use super::exit::Stop;
use crate::settings::problem::{PROBLEMS_SHOWN_MAX, Problem};

/// What was found so far.
#[derive(Default)]
pub(super) struct Faults {
    /// Of settings, in the order of files and lines.
    settings: Vec<Problem>,
    /// Of all else, in the order in which it was found.
    lines: Vec<String>,
}

impl Faults {
    /// Takes what is wrong with settings.
    pub(super) fn of_settings(&mut self, problems: impl IntoIterator<Item = Problem>) {
        self.settings.extend(problems);
    }

    /// Takes a line, or several.
    pub(super) fn tell(&mut self, fault: impl std::fmt::Display) {
        for line in fault.to_string().lines() {
            if !self.lines.iter().any(|known| known == line) {
                self.lines.push(line.to_owned());
            }
        }
    }

    /// An error with all of them, if there are any.
    pub(super) fn told(mut self) -> Result<(), Stop> {
        self.settings.sort();
        self.settings.dedup();
        let mut all: Vec<String> = self.settings.iter().map(ToString::to_string).chain(self.lines).collect();
        if all.is_empty() {
            return Ok(());
        }
        let rest = all.len().saturating_sub(PROBLEMS_SHOWN_MAX);
        if rest > 0 {
            all.truncate(PROBLEMS_SHOWN_MAX);
            all.push(format!("and {rest} more problems"));
        }
        Err(Stop::Usage(all.join("\n")))
    }
}
