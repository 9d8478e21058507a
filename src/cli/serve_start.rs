//! How the service starts: takes hold of the journal, from a predecessor where there is one, starts the runtime and goes on with what was not
//! over. Takes no request in.

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    assemble,
    call_log_file::CallLogFile,
    deferral,
    exit::Stop,
    file_reach::{FileGiver, reachable},
    project::Project,
    say::say,
    storage::{self, file_settings, journal_settings},
};
use crate::{
    journal::{files::store::FileStore, journal::SqliteJournal, settings::JournalSettings},
    model::call_log::CallRecord,
    runtime::{
        journal::{Journal, JournalError},
        ports::{CallLog, TokioClock},
    },
    serve::{
        agents::acts::restore_modes,
        answer::failure::Failure,
        handover::{successor::Hung, take::Farewell},
        metrics,
        operator::dead_letters::restore_letters,
        state::{AppState, Coming, Running},
    },
    settings::load::Settings,
    transport::webhook::Webhook,
};

/// A journal that another process holds is tried again after so long, so that a stop is heard in between.
const LOCK_LOOK: Duration = Duration::from_millis(500);

/// A successor that has lost the service has so long to let the journal go by itself.
const LETTING_GO: Duration = Duration::from_secs(5);

/// What a start needs.
pub(super) struct Starting<'a> {
    pub(super) project: &'a Project,
    pub(super) settings: &'a Settings,
    pub(super) log: Option<&'a Arc<CallLogFile>>,
    pub(super) state: &'a AppState,
    pub(super) address: SocketAddr,
    pub(super) webhook: Option<&'a Arc<Webhook>>,
}

/// Takes hold of the journal, starts the runtime and goes on with what was not over.
/// `hung` is a successor that has lost the service and may hold the journal still.
pub(super) async fn start(
    starting: &Starting<'_>,
    farewell: Option<&mut Farewell>,
    hung: Option<&Hung>,
) -> Result<Running, Stop> {
    let Starting { project, settings, log, state, address, webhook } = *starting;
    let opened = JournalSettings {
        address: Some(format!("http://{}", reachable(address))),
        ..journal_settings(settings, &project.folder)
    };
    let shown = opened.path.display().to_string();
    let wait = settings.serve.handover_wait;
    if let Some(farewell) = farewell {
        state.door.comes_from_predecessor(Coming::Soon);
        say("watertight: a predecessor hands over");
        if !farewell.released(wait, state.door.wanted()).await {
            state.door.comes_from_predecessor(Coming::NotSaid);
            say("watertight: the predecessor still holds the journal");
        }
    }
    let journal = open_journal(opened, wait, hung).await?;
    let journal = journal.map_err(|error| Stop::Usage(storage::unopened(&shown, &error)))?;
    let logs = CallLogs { ledger: journal.usage_log(settings.spending.currency.as_deref()), file: log.map(Arc::clone) };
    let files = Arc::new(FileStore::new(Arc::clone(&journal), file_settings(settings)));
    let giver = FileGiver { settings, files: Arc::clone(&files), signer: state.signer.clone(), address };
    let around = |agent: &_, backend| giver.around(agent, backend);
    let builder = assemble::builder(project, settings, Some(Arc::new(logs)), &around)?;
    let mut builder = builder
        .clock(Arc::new(TokioClock::since_unix_epoch()))
        .journal(Arc::clone(&journal) as Arc<dyn Journal>)
        .run_outputs_bytes_max(settings.serve.runs_outputs_bytes_max);
    if let Some(captures) = storage::captures(settings, &journal)? {
        builder = builder.captures(captures);
    }
    builder = deferral::with_queue(builder, settings, &journal, webhook);
    let with_targets = settings.agents.iter().filter(|agent| !agent.targets.is_empty());
    metrics::begin_with_zero(
        settings.agents.iter().map(|agent| &agent.settings.name),
        with_targets.map(|agent| &agent.settings.name),
    );
    let runtime = Arc::new(builder.start().await.map_err(Stop::usage)?);
    let running = Running { runtime, journal, files };
    let wrong = |failure: Failure| Stop::Usage(failure.envelope.message.clone());
    restore_modes(&running).await.map_err(wrong)?;
    let shut = running.runtime.restore_callers().await.map_err(Stop::usage)?;
    if shut > 0 {
        say(&format!("watertight: the volume guards of {shut} callers are still shut"));
    }
    restore_letters(&running).await.map_err(wrong)?;
    let stored = running.journal.take_over().await.map_err(Stop::usage)?;
    let resumed = running.runtime.resume(stored).len();
    if resumed > 0 {
        let go = if resumed == 1 { "run goes on where it was" } else { "runs go on where they were" };
        say(&format!("watertight: {resumed} {go}"));
    }
    Ok(running)
}

/// Opens the journal once whoever holds it lets it go, within `wait`. A successor that hangs and holds it does not: it is killed.
async fn open_journal(
    settings: JournalSettings,
    wait: Duration,
    hung: Option<&Hung>,
) -> Result<Result<Arc<SqliteJournal>, JournalError>, Stop> {
    let began = Instant::now();
    let until = began + wait;
    let mut is_told = false;
    let mut to_kill = hung;
    loop {
        let opened = settings.clone();
        let opening = tokio::task::spawn_blocking(move || SqliteJournal::open_after(opened, LOCK_LOOK.min(wait)));
        match opening.await.map_err(Stop::usage)? {
            Err(error @ JournalError::Held(_)) if Instant::now() < until => {
                if !is_told {
                    let seconds = wait.as_secs_f64();
                    say(&format!("watertight: {error}; waiting for it for {seconds} s (serve.handover_wait)"));
                }
                is_told = true;
                if began.elapsed() >= LETTING_GO.min(wait / 2)
                    && let Some(hung) = to_kill.take()
                {
                    kill_holder(hung, &settings.path);
                }
            }
            opened => return Ok(opened),
        }
    }
}

/// Kills the successor if it is what holds the journal. Nobody could serve before it goes, and stopped as it is it does not hear that it is
/// to go.
fn kill_holder(hung: &Hung, journal: &Path) {
    let holder = SqliteJournal::holder_process_id(journal);
    if holder.is_none() || holder != hung.process_id() {
        return;
    }
    let who = holder.map(|id| id.to_string()).unwrap_or_default();
    match hung.kill() {
        Ok(()) => say(&format!(
            "watertight: the successor, process {who}, held the journal and did not let it go: it was killed"
        )),
        Err(error) => say(&format!(
            "watertight: the successor, process {who}, holds the journal, does not let it go, and cannot be killed ({error}): kill it"
        )),
    }
}

/// The usage ledger, and a file if one is wanted.
struct CallLogs {
    ledger: Arc<dyn CallLog>,
    file: Option<Arc<CallLogFile>>,
}

impl CallLog for CallLogs {
    fn finished(&self, record: CallRecord) {
        if let Some(file) = &self.file {
            file.finished(record.clone());
        }
        self.ledger.finished(record);
    }
}
