//! `watertight run`: one run of a workflow, its progress on standard error, what it made on standard output.

use std::{io::Write as _, path::PathBuf, sync::Arc, time::Duration};

use serde_json::Value;

use super::{
    args::RunArgs, assemble, call_log_file::CallLogFile, exit::Stop, input, progress::Progress, project::Project,
};
use crate::{
    model::{
        duration,
        run::{RunRecord, RunStatus},
    },
    runtime::{
        call::CallContext,
        engine::Runtime,
        ports::CallLog,
        run_handle::{RunHandle, RunRequest},
    },
};

/// After Ctrl-C calls are aborted and the program ends within this, whatever they do.
const INTERRUPT_GRACE: Duration = Duration::from_millis(700);

/// Runs.
pub(super) async fn run(args: RunArgs) -> Result<(), Stop> {
    let json = args.json;
    let result = run_once(args).await;
    if let Err(stop @ Stop::Usage(_)) = &result
        && json
    {
        print(&format!("{}\n", stop.envelope().to_wire()))?;
    }
    result
}

async fn run_once(args: RunArgs) -> Result<(), Stop> {
    let deadline = args.deadline.as_deref().map(duration::parse).transpose().map_err(|error| {
        Stop::Usage(format!("--deadline {}: {error}", args.deadline.as_deref().unwrap_or_default()))
    })?;
    let project = Project::read(&args.project)?;
    let (workflow, settings) = project.workflow_and_settings()?;
    let folder = args.input.clone().or_else(|| default_input(&project.folder));
    let input = input::read(&workflow, folder.as_deref(), &args.with, settings.limits, settings.run.places)?;
    let log = args.call_log.as_deref().map(CallLogFile::open).transpose()?;
    let call_log = log.as_ref().map(|log| Arc::clone(log) as Arc<dyn CallLog>);
    let runtime = assemble::runtime(&project, &settings, call_log).await?;
    let language = settings.run.language;
    let request = RunRequest { workflow: Arc::new(workflow), input, deadline, context: CallContext::default() };
    let run = runtime.start_run(request).map_err(|envelope| Stop::Usage(envelope.message))?;
    let record = follow(&runtime, &run, args.quiet).await;
    let interrupted = record.is_none();
    runtime.stop(Duration::ZERO).await;
    let record = record.map_or_else(|| run.record(), |record| (*record).clone());
    show(&record, args.json, language)?;
    if let Some(log) = log {
        log.close()?;
    }
    if interrupted {
        return Err(Stop::Interrupted);
    }
    match record.status {
        RunStatus::Completed => Ok(()),
        RunStatus::CompletedDegraded => Err(Stop::Degraded),
        _ => Err(Stop::Failed),
    }
}

fn default_input(folder: &std::path::Path) -> Option<PathBuf> {
    Some(folder.join("input")).filter(|input| input.is_dir())
}

/// Shows progress until the run ends. `None` after Ctrl-C.
async fn follow(_runtime: &Runtime, run: &RunHandle, quiet: bool) -> Option<Arc<RunRecord>> {
    let mut progress = Progress::start(quiet);
    let watch = async {
        let mut last = 0;
        loop {
            let events = run.next_events(last).await;
            let Some(newest) = events.last() else { break };
            last = newest.id;
            for event in &events {
                progress.show(event);
            }
        }
        run.finished().await
    };
    let record = tokio::select! {
        record = watch => Some(record),
        _ = tokio::signal::ctrl_c() => None,
    };
    progress.end();
    if record.is_none() {
        eprintln!("watertight: interrupted, aborting calls under way");
        run.cancel();
        let _ = tokio::time::timeout(INTERRUPT_GRACE, run.finished()).await;
    }
    record
}

/// What the run made, or why it made nothing.
fn show(record: &RunRecord, json: bool, language: crate::model::language::Language) -> Result<(), Stop> {
    if json {
        let text = serde_json::to_string(record).map_err(|error| Stop::Usage(error.to_string()))?;
        return print(&format!("{text}\n"));
    }
    if let Some(output) = &record.output {
        print(&as_text(output))?;
    }
    for line in &record.degraded {
        eprintln!("watertight: degraded: step {}: {} ({})", line.step, line.action, line.cause.as_str());
    }
    if let Some(error) = &record.error {
        let error = error.clone().in_language(language);
        eprintln!("watertight: {}: {}: {}", record.status.as_str(), error.error_code, error.message);
        if let Some(step) = record.steps.iter().find(|step| step.error.is_some()) {
            eprintln!("  step {} (agent {}), {} attempts", step.id, step.agent, step.attempts.len());
        }
        if let Some(wait) = error.retry_after {
            eprintln!("  worth trying again in {wait:.0} s");
        } else if error.retryable {
            eprintln!("  worth trying again");
        }
        eprintln!("  see docs/errors/{}.md; --json prints every attempt", error.error_code);
    }
    Ok(())
}

/// A post as it is, a text as it is, anything else as JSON.
fn as_text(output: &Value) -> String {
    let text = output.get("markdown").unwrap_or(output).as_str();
    let mut text = text.map_or_else(|| format!("{output:#}"), str::to_owned);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Prints to standard output; a reader that left (`| head`) is no error worth a message.
pub(super) fn print(text: &str) -> Result<(), Stop> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Stop::Usage(format!("standard output: {error}"))),
    }
}
