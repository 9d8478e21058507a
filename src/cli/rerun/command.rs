//! `watertight rerun`: starts a run on the outputs of another one, follows it as `run` does, and shows what became different.

use std::{io::IsTerminal as _, path::Path};

use serde_json::json;

use super::{
    difference::{Difference, Paint},
    local, remote,
};
use crate::{
    cli::{args::RerunArgs, exit::Stop, run_command::print},
    model::run::{RunRecord, RunStatus},
    serve::runs::linked::PROMPT_BYTES_MAX,
};

/// The run that was, the one that was made of it, and whether it was waited for to its end.
pub(super) struct Pair {
    pub(super) old: RunRecord,
    pub(super) new: RunRecord,
    pub(super) followed: Followed,
}

/// Whether the new run was followed to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    ToItsEnd,
    Interrupted,
}

/// Reruns.
pub(in crate::cli) async fn rerun(args: RerunArgs) -> Result<(), Stop> {
    let is_json = args.json;
    let result = rerun_once(args).await;
    if let Err(stop @ Stop::Usage(_)) = &result
        && is_json
    {
        print(&format!("{}\n", stop.envelope().to_wire()))?;
    }
    result
}

async fn rerun_once(args: RerunArgs) -> Result<(), Stop> {
    let prompt = args.prompt.as_deref().map(read_prompt).transpose()?;
    let pair = match &args.url {
        Some(url) => remote::rerun(url, &args, prompt).await?,
        None => local::rerun(&args, prompt).await?,
    };
    let difference = Difference::of(&pair.old, &pair.new);
    if args.json {
        let whole = json!({ "old": pair.old, "new": pair.new, "difference": difference });
        print(&format!("{whole}\n"))?;
    } else {
        let paint = if std::io::stdout().is_terminal() { Paint::Colours } else { Paint::Plain };
        print(&difference.as_text(paint))?;
    }
    match (pair.followed, pair.new.status) {
        (Followed::Interrupted, _) => Err(Stop::Interrupted),
        (Followed::ToItsEnd, RunStatus::Completed) => Ok(()),
        (Followed::ToItsEnd, RunStatus::CompletedDegraded) => Err(Stop::Degraded),
        (Followed::ToItsEnd, _) => Err(Stop::Failed),
    }
}

fn read_prompt(path: &Path) -> Result<String, Stop> {
    let wrong = |why: &dyn std::fmt::Display| Stop::Usage(format!("--prompt {}: {why}", path.display()));
    let length = std::fs::metadata(path).map_err(|error| wrong(&error))?.len();
    if length > PROMPT_BYTES_MAX as u64 {
        return Err(wrong(&format_args!("is larger than {PROMPT_BYTES_MAX} bytes")));
    }
    std::fs::read_to_string(path).map_err(|error| wrong(&error))
}
