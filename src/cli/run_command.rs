//! `watertight run`: one run of a workflow, its progress on standard error, what it made on standard output.

use std::{io::Write as _, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use futures_util::FutureExt as _;

use super::{
    args::RunArgs,
    assemble,
    call_log_file::CallLogFile,
    deferral,
    exit::{Stop, in_json},
    input,
    progress::Progress,
    project::{Project, Purpose},
    report,
    say::say,
};
use crate::{
    model::{
        duration,
        run::{RunRecord, RunStatus},
    },
    runtime::{
        call::CallContext,
        ports::CallLog,
        run_handle::{RunHandle, RunRequest},
    },
};

/// After Ctrl-C calls are aborted and the program ends within this, whatever they do.
const INTERRUPT_GRACE: Duration = Duration::from_millis(700);

/// Runs.
pub(super) async fn run(args: RunArgs) -> Result<(), Stop> {
    in_json(args.json, run_once(args).await)
}

async fn run_once(args: RunArgs) -> Result<(), Stop> {
    let deadline = args.deadline.as_deref().map(read_deadline).transpose()?;
    let project = Project::read(&args.project)?;
    let (workflow, settings) = project.workflow_and_settings(Purpose::Run)?;
    let folder = args.input.clone().or_else(|| default_input(&project.folder));
    let input = input::read(&workflow, folder.as_deref(), &args.with, settings.limits, settings.run.places)?;
    for warning in &settings.warnings {
        say(&format!("watertight: warning: {warning}"));
    }
    deferral::say_what_is_skipped(&settings, &workflow);
    let log = args.call_log.as_deref().map(CallLogFile::open).transpose()?;
    let call_log = log.as_ref().map(|log| Arc::clone(log) as Arc<dyn CallLog>);
    let runtime = assemble::runtime(&project, &settings, call_log).await?;
    let deadline = deadline.into_iter().chain(settings.run.deadline).min();
    let request = RunRequest { workflow: Arc::new(workflow), input, deadline, context: CallContext::own() };
    // Heard from here on: the first request may be out before anybody waits for the run.
    let mut interrupt = pin!(tokio::signal::ctrl_c());
    if let Some(heard) = interrupt.as_mut().now_or_never() {
        return heard.map_err(Stop::usage).and(Err(Stop::Interrupted));
    }
    let run = runtime.start_run(request).map_err(|envelope| Stop::Usage(envelope.message))?;
    let record = follow(&run, args.quiet, interrupt).await;
    let interrupted = record.is_none();
    runtime.stop(Duration::ZERO).await;
    let record = record.map_or_else(|| run.record(), |record| (*record).clone());
    if args.json {
        report::show_json(&record, &settings)?;
    } else {
        report::show(&record, &settings)?;
    }
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

fn read_deadline(text: &str) -> Result<Duration, Stop> {
    match duration::parse(text) {
        Ok(Duration::ZERO) => Err(Stop::Usage(format!("--deadline {text}: must be longer than 0"))),
        Ok(deadline) => Ok(deadline),
        Err(error) => Err(Stop::Usage(format!("--deadline {text}: {error}"))),
    }
}

fn default_input(folder: &std::path::Path) -> Option<PathBuf> {
    Some(folder.join("input")).filter(|input| input.is_dir())
}

/// Shows progress until the run ends. `None` after an interrupt.
pub(super) async fn follow<I>(
    run: &RunHandle,
    quiet: bool,
    interrupt: impl Future<Output = I>,
) -> Option<Arc<RunRecord>> {
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
        _ = interrupt => None,
    };
    progress.end();
    if record.is_none() {
        say("watertight: interrupted, aborting calls under way");
        run.cancel();
        let _ = tokio::time::timeout(INTERRUPT_GRACE, run.finished()).await;
    }
    record
}

/// Prints to standard output; a reader that left (`| head`) is no error worth a message.
pub(super) fn print(text: &str) -> Result<(), Stop> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Stop::Usage(format!("standard output: {error}"))),
    }
}
