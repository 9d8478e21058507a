//! The thread that owns the writing connection. It takes everything that has queued up, does it in one transaction, and only then says
//! so. What the disk refuses it keeps in order and tries again; it never says that something is durable which is not.

use std::{
    collections::VecDeque,
    os::unix::fs::MetadataExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use rusqlite::Connection;

use super::{
    fault::Fault,
    files::disk::Disk,
    health::Vitals,
    ledger::{self, Ledger, Lines},
    lock::OwnerLock,
    maintenance::Maintenance,
    number::Names,
    settings::JournalSettings,
    slot::Hash,
    work::{OnRefusal, Within, Work},
};
use crate::runtime::journal::JournalError;

/// So many pieces of work become durable together at most.
const GROUP_MAX: usize = 1_024;
/// The first wait after a refusal of the disk; each further one doubles it.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// No wait is longer.
const RETRY_MAX: Duration = Duration::from_secs(2);
/// While the disk refuses and nothing is kept, it is tried this often whether it still does.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// After so long without work the journal tidies up, and brings the ledger up to date.
const IDLE: Duration = Duration::from_millis(250);
/// This part of the file's limit is left to runs that are under way.
const RESERVE_SHARE: i64 = 20;

/// What comes through the queue.
pub(super) enum Command {
    /// Do this.
    Work(Box<dyn Work>),
    /// Finish what is queued and end; told when all is closed.
    Close(tokio::sync::oneshot::Sender<()>),
}

/// The writer's state. Only its thread touches it.
pub(super) struct Writer {
    connection: Connection,
    names: Names,
    settings: JournalSettings,
    vitals: Arc<Vitals>,
    ledger: Arc<Ledger>,
    maintenance: Maintenance,
    disk: Disk,
    identity: Option<(u64, u64)>,
    kept: VecDeque<Box<dyn Work>>,
    retry: Duration,
    retry_at: Option<Instant>,
    probe_at: Instant,
    /// Held until the connection is closed.
    lock: OwnerLock,
}

impl Writer {
    pub(super) fn new(
        connection: Connection,
        lock: OwnerLock,
        settings: JournalSettings,
        vitals: Arc<Vitals>,
        ledger: Arc<Ledger>,
    ) -> Self {
        let identity = identity(&settings.path);
        Self {
            connection,
            names: Names::default(),
            vitals,
            ledger,
            maintenance: Maintenance::new(),
            disk: Disk::at(settings.files.clone()),
            settings,
            identity,
            kept: VecDeque::new(),
            retry: RETRY_FIRST,
            retry_at: None,
            probe_at: Instant::now(),
            lock,
        }
    }

    /// Works until it is closed or nobody can send any more.
    pub(super) fn work(mut self, queue: &Receiver<Command>) {
        self.look_for_room();
        let mut closing = None;
        while closing.is_none() {
            let wait = self.retry_at.map_or(IDLE, |at| at.saturating_duration_since(Instant::now()).min(IDLE));
            let first = match queue.recv_timeout(wait) {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let was_idle = first.is_none();
            let mut group = Vec::new();
            for command in first.into_iter().chain(queue.try_iter().take(GROUP_MAX - 1)) {
                match command {
                    Command::Work(work) => group.push(work),
                    Command::Close(closed) => closing = Some(closed),
                }
            }
            self.turn(group);
            if was_idle || self.maintenance.is_overdue() {
                self.tidy();
            }
        }
        self.finish(closing);
    }

    /// One round: what is kept comes first, then what is new.
    fn turn(&mut self, group: Vec<Box<dyn Work>>) {
        if self.kept.is_empty() {
            self.do_together(group);
            return;
        }
        for work in group {
            match work.on_refusal() {
                OnRefusal::Keep => self.kept.push_back(work),
                OnRefusal::Tell => self.do_together(vec![work]),
                OnRefusal::TellAtOnce => {
                    let error = self.vitals.error().unwrap_or(JournalError::Closed);
                    self.end(work, Err(error));
                }
            }
        }
        if self.retry_at.is_none_or(|at| at <= Instant::now()) {
            self.try_kept();
        }
    }

    fn try_kept(&mut self) {
        while !self.kept.is_empty() {
            let count = self.kept.len().min(GROUP_MAX);
            let group: Vec<_> = self.kept.drain(..count).collect();
            self.do_together(group);
            if self.retry_at.is_some_and(|at| at > Instant::now()) {
                return;
            }
        }
    }

    /// Does a group in one transaction. If a piece of it can never succeed, each is done by itself, so that only that one is lost.
    fn do_together(&mut self, group: Vec<Box<dyn Work>>) {
        match self.attempt(group) {
            Ok(()) => {}
            Err((group, fault)) if fault.is_of_the_entry() && group.len() > 1 => self.do_each(group),
            Err((group, fault)) => self.refused(group, fault),
        }
    }

    fn do_each(&mut self, group: Vec<Box<dyn Work>>) {
        let mut rest = VecDeque::from(group);
        while let Some(work) = rest.pop_front() {
            match self.attempt(vec![work]) {
                Ok(()) => {}
                Err((one, fault)) if fault.is_of_the_entry() => self.refused(one, fault),
                Err((mut these, fault)) => {
                    // The disk's doing after all: the rest waits behind this one, in order.
                    these.extend(rest.drain(..));
                    self.refused(these, fault);
                }
            }
        }
    }

    /// One transaction; says so if it is committed, and hands the group back if it is not.
    fn attempt(&mut self, mut group: Vec<Box<dyn Work>>) -> Result<(), (Vec<Box<dyn Work>>, Fault)> {
        if group.is_empty() {
            return Ok(());
        }
        if let Err(fault) = self.transact(&mut group) {
            return Err((group, fault));
        }
        self.succeeded();
        for work in group {
            self.end(work, Ok(()));
        }
        Ok(())
    }

    fn succeeded(&mut self) {
        self.vitals.succeeded();
        (self.retry, self.retry_at) = (RETRY_FIRST, None);
    }

    fn refused(&mut self, group: Vec<Box<dyn Work>>, fault: Fault) {
        let is_of_the_entry = fault.is_of_the_entry();
        let error = JournalError::from(fault);
        let mut kept = Vec::new();
        for work in group {
            if work.on_refusal() == OnRefusal::Keep && !is_of_the_entry {
                kept.push(work);
            } else {
                if work.on_refusal() == OnRefusal::Keep {
                    self.vitals.dropped.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(%error, "an entry can never be written and is dropped");
                }
                self.end(work, Err(error.clone()));
            }
        }
        if !is_of_the_entry {
            self.vitals.failed((self.settings.now_ms)(), error);
        }
        if !kept.is_empty() {
            self.retry_at = Some(Instant::now() + self.retry);
            self.retry = (self.retry * 2).min(RETRY_MAX);
            for work in kept.into_iter().rev() {
                self.kept.push_front(work);
            }
        }
    }

    fn transact(&mut self, group: &mut [Box<dyn Work>]) -> Result<(), Fault> {
        self.check_identity()?;
        let usage = self.ledger.take();
        let mut unowned = Vec::new();
        let result = self.transact_with(group, &usage, &mut unowned);
        if result.is_ok() {
            self.disk.remove(&unowned);
            self.look_for_room();
        } else {
            self.names.clear();
            self.ledger.give_back(usage);
            if !self.connection.is_autocommit() {
                // A failed rollback leaves the transaction to the next `BEGIN`, which then fails and is tried again.
                let _ = self.connection.execute_batch("ROLLBACK");
            }
        }
        result
    }

    fn transact_with(
        &mut self,
        group: &mut [Box<dyn Work>],
        usage: &Lines,
        unowned: &mut Vec<Hash>,
    ) -> Result<(), Fault> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let is_nearly_full = self.vitals.is_nearly_full.load(Ordering::Relaxed);
        let now_ms = (self.settings.now_ms)();
        let (connection, names) = (&self.connection, &mut self.names);
        let mut within = Within { connection, names, now_ms, is_nearly_full, unowned };
        for work in group {
            work.run(&mut within)?;
        }
        ledger::write(&mut within, usage)?;
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    /// Looks whether the file's own limit is so near that only running runs may still write. After everything that takes room or makes it,
    /// so that whoever asks is not told what was.
    fn look_for_room(&self) {
        if self.settings.size_max.is_none() {
            return;
        }
        // An error is the file's, and shows wherever it is written.
        if let Ok((used, max)) = self.pages() {
            self.vitals.is_nearly_full.store(used > max - max / RESERVE_SHARE, Ordering::Relaxed);
        }
    }

    /// Pages in use, and how many there may be.
    fn pages(&self) -> Result<(i64, i64), Fault> {
        let figure = |name: &str| self.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        Ok((figure("page_count")? - figure("freelist_count")?, figure("max_page_count")?))
    }

    /// While nothing can be written nobody may send anything here that could be: whether it still cannot is found without that.
    fn probe(&mut self) {
        let now = Instant::now();
        if !self.kept.is_empty() || self.vitals.error().is_none() || now < self.probe_at {
            return;
        }
        self.probe_at = now + PROBE_EVERY;
        match self.write_in_vain() {
            Ok(()) => self.succeeded(),
            Err(fault) => self.vitals.failed((self.settings.now_ms)(), fault.into()),
        }
    }

    /// Writes what stands there already, and looks whether there is room for more.
    fn write_in_vain(&self) -> Result<(), Fault> {
        self.check_identity()?;
        let version: i64 = self.connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        self.connection.pragma_update(None, "user_version", version)?;
        let (used, max) = self.pages()?;
        if used < max { Ok(()) } else { Err(Fault::Place(JournalError::Full("size_max is reached".to_owned()))) }
    }

    /// A file that was removed or replaced still takes writes, but nobody would ever find them.
    fn check_identity(&self) -> Result<(), Fault> {
        if identity(&self.settings.path) == self.identity {
            return Ok(());
        }
        let text = format!("{} was removed or replaced", self.settings.path.display());
        Err(Fault::Place(JournalError::Failed(text)))
    }

    fn end(&self, work: Box<dyn Work>, result: Result<(), JournalError>) {
        let bytes = work.bytes();
        // A callback that panics is somebody else's fault; the journal goes on.
        if catch_unwind(AssertUnwindSafe(|| work.end(result))).is_err() {
            tracing::error!("whoever waited for the journal panicked");
        }
        self.vitals.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn tidy(&mut self) {
        if !self.ledger.is_empty() {
            // Fails only where everything fails; the lines are back in the ledger then.
            if let Err(fault) = self.transact(&mut []) {
                self.vitals.failed((self.settings.now_ms)(), fault.into());
                return;
            }
            self.succeeded();
        }
        self.probe();
        if self.kept.is_empty() && self.check_identity().is_ok() {
            self.maintain();
        }
    }

    /// One small piece of tidying, in a transaction of its own. What fails here is tried again at the next round.
    fn maintain(&mut self) {
        let Some(mut chore) = self.maintenance.next(&self.connection, &self.settings) else { return };
        let mut unowned = Vec::new();
        let now_ms = (self.settings.now_ms)();
        let mut act = || -> Result<bool, Fault> {
            self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
            let (connection, names) = (&self.connection, &mut self.names);
            let mut within = Within { connection, names, now_ms, is_nearly_full: false, unowned: &mut unowned };
            let is_done = chore(&mut within)?;
            self.connection.prepare_cached("COMMIT")?.execute([])?;
            Ok(is_done)
        };
        match act() {
            Ok(is_done) => {
                self.disk.remove(&unowned);
                self.look_for_room();
                self.maintenance.did(is_done);
            }
            Err(fault) => {
                self.names.clear();
                // As in `transact`.
                let _ = self.connection.execute_batch("ROLLBACK");
                tracing::warn!(error = %JournalError::from(fault), "the journal could not tidy up");
                self.maintenance.did(true);
            }
        }
    }

    fn finish(mut self, closing: Option<tokio::sync::oneshot::Sender<()>>) {
        self.try_kept();
        self.tidy();
        self.vitals.is_closed.store(true, Ordering::Release);
        for work in std::mem::take(&mut self.kept) {
            self.end(work, Err(JournalError::Closed));
        }
        let Self { connection, lock, .. } = self;
        if let Err((_, error)) = connection.close() {
            tracing::warn!(%error, "the journal was not closed well; nothing is lost");
        }
        drop(lock);
        if let Some(closed) = closing {
            // Whoever closes may have left.
            let _ = closed.send(());
        }
    }
}

fn identity(path: &PathBuf) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}
