//! How the program ends: one value that knows its exit code and what a person is told.

use std::process::ExitCode;

use super::run_command::print;
use crate::model::envelope::{Envelope, ErrorCode};

/// Why the program ends other than well.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum Stop {
    /// Usage, configuration or input, found before the first step.
    #[error("{0}")]
    Usage(String),
    /// Failed or timed out; what was to be said is said.
    #[error("failed")]
    Failed,
    /// Done, but something was replaced or left out; what was to be said is said.
    #[error("done, degraded")]
    Degraded,
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl Stop {
    /// A usage error of anything that prints itself.
    pub(super) fn usage(error: impl std::fmt::Display) -> Self {
        Self::Usage(error.to_string())
    }

    /// The exit code of the documentation.
    pub(super) fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Failed => 1,
            Self::Usage(_) => 2,
            Self::Degraded => 3,
            Self::Interrupted => 130,
        })
    }

    /// The envelope that a program reads on exit 2.
    pub(super) fn envelope(&self) -> Envelope {
        Envelope::new(ErrorCode::InvalidRequest, self.to_string())
    }
}

/// The same result; where a program reads along (`json`), a usage error is told to it as an envelope too.
pub(super) fn in_json(json: bool, result: Result<(), Stop>) -> Result<(), Stop> {
    if let (true, Err(stop @ Stop::Usage(_))) = (json, &result) {
        print(&format!("{}\n", stop.envelope().to_wire()))?;
    }
    result
}
