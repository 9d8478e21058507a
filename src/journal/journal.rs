//! The journal in `SQLite` as the rest of the program holds it: the port of the runtime, and what operators and the service ask beyond it.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
        mpsc::{Sender, channel},
    },
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    fault::Fault,
    give_up::give_up,
    health::{JournalHealth, Vitals},
    ledger::{Ledger, UsageLog},
    lock::{self, OwnerLock, SignOfLife, true_path},
    number::{find_name, run_key},
    pack::pack,
    query::{self, RunFilter, RunHead, RunPage, TenantScope},
    readers::Readers,
    remove::{self, Deletion},
    restore,
    runs::{Accept, Append, earlier},
    schema::{look_ahead, open_writer},
    settings::JournalSettings,
    shut_callers,
    work::{Asked, Within, Work},
    writer::{Command, Writer},
    written::{WrittenBatch, WrittenRun},
};
use crate::{
    model::{event::Event, run::RunRecord},
    runtime::{
        journal::{
            Acceptance, Batch, DeadLetter, Idempotency, Journal, JournalError, RunAccepted, ShutCaller, StoredRun,
            WhenAccepted, WhenDurable,
        },
        ports::BoxFuture,
    },
};

/// While so many bytes wait for the disk, no new run is accepted.
pub const WAITING_BYTES_MAX: usize = 256 * 1024 * 1024;
/// While so many bytes wait for the disk, captures are left out.
pub const WAITING_BYTES_SPARE: usize = WAITING_BYTES_MAX / 4;
/// Runs of a tenant that are deleted in one transaction.
const DELETED_AT_ONCE: usize = 64;

/// A journal in `SQLite`.
#[derive(Debug)]
pub struct SqliteJournal {
    queue: Mutex<Sender<Command>>,
    readers: Readers,
    vitals: Arc<Vitals>,
    ledger: Arc<Ledger>,
    settings: JournalSettings,
    sign: SignOfLife,
    /// The tenant whose deferred call was made last; the next one's turn comes after it.
    pub(super) deferred_turn: Arc<AtomicI64>,
}

impl SqliteJournal {
    /// Opens the journal, makes it if need be, and takes hold of it: no other process can. Waits at most `lock_wait` for whoever holds
    /// it now. Blocks.
    pub fn open(settings: JournalSettings) -> Result<Arc<Self>, JournalError> {
        if let Some(folder) = settings.path.parent() {
            std::fs::create_dir_all(folder)
                .map_err(|error| JournalError::Failed(format!("{}: {error}", folder.display())))?;
        }
        // The files stay where the configuration says, links or not; agents on this machine are told the path, and work elsewhere.
        let files = std::path::absolute(&settings.files)
            .map_err(|error| JournalError::Failed(format!("{}: {error}", settings.files.display())))?;
        let settings = JournalSettings { path: true_path(&settings.path)?, files, ..settings };
        let lock = OwnerLock::take(&settings.path, settings.lock_wait, settings.address.as_deref())?;
        let sign = lock.sign();
        let connection = open_writer(&settings)?;
        let vitals = Arc::new(Vitals::default());
        let ledger = Arc::new(Ledger::new(Arc::clone(&vitals)));
        let readers = Readers::start(&settings.path, settings.readers)?;
        let (queue, commands) = channel();
        let writer = Writer::new(connection, lock, settings.clone(), Arc::clone(&vitals), Arc::clone(&ledger));
        std::thread::Builder::new()
            .name("journal-write".to_owned())
            .spawn(move || writer.work(&commands))
            .map_err(|error| JournalError::Failed(format!("no thread to write with: {error}")))?;
        let (queue, deferred_turn) = (Mutex::new(queue), Arc::default());
        Ok(Arc::new(Self { queue, readers, vitals, ledger, settings, sign, deferred_turn }))
    }

    /// Whether this program could open the journal once whoever holds it lets it go: asked before that one is told to go. Blocks.
    pub fn look_ahead(settings: &JournalSettings) -> Result<(), JournalError> {
        look_ahead(&true_path(&settings.path)?)
    }

    /// Where whoever holds the journal at `path` is reached, as far as it says. Blocks for a moment.
    pub fn holder_address(path: &Path) -> Option<String> {
        lock::holder_address(path)
    }

    /// The process that holds the journal at `path`, as far as it says. Blocks for a moment.
    pub fn holder_process_id(path: &Path) -> Option<u32> {
        lock::holder_process_id(path)
    }

    /// Opens the journal of a process that is about to let it go: waits at most `wait` for it. Blocks.
    pub fn open_after(settings: JournalSettings, wait: Duration) -> Result<Arc<Self>, JournalError> {
        Self::open(JournalSettings { lock_wait: wait, ..settings })
    }

    /// Writes what is queued, then lets go of the file. Everything later is refused as closed.
    pub async fn close(&self) {
        let (closed, when_closed) = oneshot::channel();
        if self.sender().send(Command::Close(closed)).is_ok() {
            // An error means that the writer is gone, and so it is closed.
            let _ = when_closed.await;
        }
    }

    /// How it is.
    pub fn health(&self) -> JournalHealth {
        self.vitals.health()
    }

    /// Why it cannot write now, in words; `None` while it can.
    pub fn refuses(&self) -> Option<String> {
        self.vitals.error().map(|error| error.to_string())
    }

    /// What it was opened with.
    pub fn settings(&self) -> &JournalSettings {
        &self.settings
    }

    /// The usage ledger as a call log whose costs are of this money.
    pub fn usage_log(&self, currency: Option<&str>) -> Arc<UsageLog> {
        Arc::new(UsageLog { ledger: Arc::clone(&self.ledger), currency: currency.map(Arc::from) })
    }

    /// A page of runs.
    pub async fn runs(&self, filter: RunFilter) -> Result<RunPage, JournalError> {
        self.ask(move |connection| query::list(connection, filter)).await
    }

    /// What is known of a run without looking into it; `None` if there is none in this scope.
    pub async fn head(&self, scope: TenantScope, run_id: &str) -> Result<Option<RunHead>, JournalError> {
        let run_id = run_id.to_owned();
        self.ask(move |connection| query::head(connection, &scope, &run_id)).await
    }

    /// The id of a run's last event that is kept; 0 where there is none.
    pub async fn last_event(&self, run_id: &str) -> Result<u64, JournalError> {
        let run_id = run_id.to_owned();
        self.ask(move |connection| restore::last_event(connection, &run_id)).await
    }

    /// What an earlier request of this tenant under the same key makes of another one; `None` if there was none. Nothing is written.
    pub async fn earlier(
        &self,
        tenant: Option<String>,
        promise: Idempotency,
    ) -> Result<Option<Acceptance>, JournalError> {
        let now_ms = (self.settings.now_ms)();
        let act = move |connection: &rusqlite::Connection| match find_name(connection, tenant.as_deref())? {
            Some(tenant) => earlier(connection, tenant, &promise, now_ms),
            None => Ok(None),
        };
        self.ask(act).await
    }

    /// A run as it was accepted, with its inputs and its version of the workflow: what a repair or a rerun begins with.
    pub async fn accepted(&self, run_id: &str) -> Result<Option<RunAccepted>, JournalError> {
        let key = run_key(run_id);
        self.ask(move |connection| restore::accepted(connection, key)).await
    }

    /// Deletes a run that is over, with its events, record, captures, and the files that no other run names. The ledger stays.
    pub async fn delete_run(&self, scope: TenantScope, run_id: &str) -> Result<Deletion, JournalError> {
        let run_id = run_id.to_owned();
        self.write(move |within| remove::delete_run(within, &scope, &run_id)).await
    }

    /// Deletes everything of a tenant but what belongs to runs that are not over, and the ledger. How many runs went.
    pub async fn delete_tenant(&self, tenant: Option<&str>) -> Result<u64, JournalError> {
        let mut deleted = 0;
        loop {
            let tenant = tenant.map(ToOwned::to_owned);
            let act = move |within: &mut Within<'_>| remove::delete_tenant(within, tenant.as_deref(), DELETED_AT_ONCE);
            let runs = self.write(act).await?;
            deleted += runs as u64;
            if runs < DELETED_AT_ONCE {
                return Ok(deleted);
            }
        }
    }

    /// Removes now what has been kept long enough; otherwise that happens little by little, by itself.
    pub async fn tidy(&self) -> Result<(), JournalError> {
        let retention = self.settings.retention;
        let act = move |within: &mut Within<'_>| -> Result<bool, Fault> {
            let mut done = remove::expire_runs(within, &retention, DELETED_AT_ONCE)?;
            done &= remove::expire_rest(within, &retention, DELETED_AT_ONCE)?;
            done &= remove::expire_files(within, &retention, DELETED_AT_ONCE)?;
            if let Some(budget) = retention.size_budget {
                done &= remove::keep_budget(within, budget, DELETED_AT_ONCE)?;
            }
            Ok(done)
        };
        while !self.write(act).await? {}
        Ok(())
    }

    /// Reads the whole file and says what is wrong with it; empty if nothing is.
    pub async fn check(&self, depth: CheckDepth) -> Result<Vec<String>, JournalError> {
        let sql = match depth {
            CheckDepth::Quick => "PRAGMA quick_check",
            CheckDepth::Full => "PRAGMA integrity_check",
        };
        let found = self.ask(move |connection| {
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
            Ok(rows)
        });
        Ok(found.await?.into_iter().filter(|line| line != "ok").collect())
    }

    /// Asks the file on a thread that reads.
    pub(super) async fn ask<T, F>(&self, query: F) -> Result<T, JournalError>
    where
        T: Send + 'static,
        F: FnOnce(&rusqlite::Connection) -> Result<T, Fault> + Send + 'static,
    {
        self.readers.ask(query).await
    }

    /// Writes, and waits until that is durable.
    pub(super) async fn write<T, F>(&self, act: F) -> Result<T, JournalError>
    where
        T: Send + 'static,
        F: FnMut(&mut Within<'_>) -> Result<T, Fault> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.queue(Box::new(Asked::new(act, answer)));
        answered.await.unwrap_or(Err(JournalError::Closed))
    }

    /// Whether so much waits for the disk that what can be spared is left out.
    pub(super) fn is_hard_pressed(&self) -> bool {
        let is_pressed = self.vitals.waiting_bytes.load(Ordering::Relaxed) > WAITING_BYTES_SPARE;
        if is_pressed {
            self.vitals.left_out.fetch_add(1, Ordering::Relaxed);
        }
        is_pressed
    }

    pub(super) fn queue(&self, work: Box<dyn Work>) {
        let bytes = work.bytes();
        self.vitals.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Err(refused) = self.sender().send(Command::Work(work)) {
            self.vitals.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            if let Command::Work(work) = refused.0 {
                work.end(Err(JournalError::Closed));
            }
        }
    }

    fn sender(&self) -> Sender<Command> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn accept_now(&self, run: Arc<RunAccepted>, accepted: WhenAccepted) -> Result<(), (WhenAccepted, JournalError)> {
        let waiting = self.vitals.waiting_bytes.load(Ordering::Relaxed);
        if waiting > WAITING_BYTES_MAX {
            let error = self.vitals.error();
            let busy = || JournalError::Failed(format!("{waiting} bytes wait for the disk already"));
            return Err((accepted, error.unwrap_or_else(busy)));
        }
        let written =
            WrittenRun::of(&run).and_then(|(written, contents)| Ok((serde_json::to_vec(&written)?, contents)));
        let (body, contents) = match written {
            Ok((body, contents)) => (pack(&body), contents),
            Err(error) => return Err((accepted, JournalError::Failed(error.to_string()))),
        };
        let idempotency_keep_ms = u64::try_from(self.settings.idempotency_keep.as_millis()).unwrap_or(u64::MAX);
        let outcome = Ok(Acceptance::New);
        self.queue(Box::new(Accept { run, body, contents, idempotency_keep_ms, outcome, accepted }));
        Ok(())
    }
}

/// How closely the file is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckDepth {
    /// Pages and rows.
    Quick,
    /// Indices against rows too.
    Full,
}

impl Journal for SqliteJournal {
    fn accept(&self, run: Arc<RunAccepted>, accepted: WhenAccepted) {
        if let Err((accepted, error)) = self.accept_now(run, accepted) {
            accepted(Err(error));
        }
    }

    fn append(&self, batch: Batch, durable: WhenDurable) {
        let (run_id, generation) = (Arc::clone(&batch.run_id), batch.generation);
        match WrittenBatch::of(batch) {
            Ok(batch) => {
                let durable = Some(durable);
                self.queue(Box::new(Append { run_id, generation, batch, durable, is_stale: false }));
            }
            Err(error) => {
                // Nothing that a run says fails to become JSON; if it did, it was never durable.
                self.vitals.dropped.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%run_id, %error, "entries of a run cannot be written");
            }
        }
    }

    fn put_aside(&self, letter: DeadLetter) {
        self.put_letter(letter);
    }

    fn keep_shut(&self, caller: ShutCaller) {
        self.put_shut(caller);
    }

    fn forget_shut(&self, name: &str) {
        self.remove_shut(name);
    }

    fn shut_callers(&self) -> BoxFuture<'_, Result<Vec<ShutCaller>, JournalError>> {
        Box::pin(self.ask(shut_callers::all))
    }

    fn take_over(&self) -> BoxFuture<'_, Result<Vec<StoredRun>, JournalError>> {
        Box::pin(self.write(|within| {
            let (runs, unreadable) = restore::take_over(within)?;
            for run in &unreadable {
                give_up(within, run)?;
            }
            Ok(runs)
        }))
    }

    fn note_alive(&self) {
        if let Err(error) = self.sign.note() {
            tracing::debug!(%error, "the sign of life cannot be written");
        }
    }

    fn last_alive_ms(&self) -> Option<u64> {
        self.sign.before_ms()
    }

    fn events_after(&self, run_id: &str, after: u64, max: usize) -> BoxFuture<'_, Result<Vec<Event>, JournalError>> {
        let run_id = run_id.to_owned();
        Box::pin(self.ask(move |connection| restore::events_after(connection, &run_id, after, max)))
    }

    fn record(&self, run_id: &str) -> BoxFuture<'_, Result<Option<RunRecord>, JournalError>> {
        let key = run_key(run_id);
        Box::pin(self.ask(move |connection| restore::record(connection, key)))
    }
}
