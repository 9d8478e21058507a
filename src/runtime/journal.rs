//! The port of the journal: what a runtime writes down of its runs, and what it is given back after a restart. A journal decides
//! nothing: it keeps entries in order and says when they are durable. Nothing that is not durable is shown or built upon.
//!
//! A run has one owner at a time. Each time a node takes a run over, the run's generation grows; a journal refuses entries of an
//! earlier one, so that of two resumers one wins.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ports::BoxFuture;
pub use crate::model::{
    ended::{Ended, EndedScope},
    run::OriginKind,
};
use crate::{
    model::{
        envelope::{Envelope, ErrorCode},
        event::Event,
        run::{RerunOf, RunRecord},
    },
    workflow::checked::Workflow,
};

/// The generation of a run that nobody has taken over yet: what its first owner holds.
pub const FIRST_GENERATION: u64 = 0;

/// Whose a run is and how it was asked for: kept with the run, handed to every call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunOwner {
    /// The tenant; nobody else sees the run.
    pub tenant: Option<String>,
    /// The feature.
    pub feature: Option<String>,
    /// The class of priority.
    pub priority: Option<String>,
    /// The name of the key that it was asked for with; never the key.
    pub key_id: Option<String>,
    /// The caller's own user, if it named one.
    pub user: Option<String>,
    /// W3C trace context, handed on as it is.
    pub traceparent: Option<String>,
}

/// A caller's promise that a repeated request means the same run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idempotency {
    /// The caller's key; unique within a tenant.
    pub key: String,
    /// SHA-256 of the request, in hex: another request under the same key is a conflict.
    pub request_hash: String,
}

/// The run that another one goes on from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Why.
    pub kind: OriginKind,
    /// That run.
    pub run_id: String,
    /// The step that it is rerun from; none of a repair, nor of a rerun by an older version.
    #[serde(default)]
    pub from: Option<String>,
    /// The steps that are done again, by name.
    pub again: BTreeSet<String>,
    /// Prompts that replace those of agents, by the agent's name.
    #[serde(default)]
    pub prompts: BTreeMap<String, String>,
}

impl Origin {
    /// As the run's record tells it.
    pub fn told(&self) -> RerunOf {
        let Self { kind, run_id, from, again, prompts: _ } = self;
        let again = again.iter().cloned().collect();
        RerunOf { run_id: run_id.clone(), kind: *kind, from: from.clone(), again }
    }
}

/// A run as it was accepted: the first thing that is written of it.
#[derive(Debug, Clone)]
pub struct RunAccepted {
    /// Its id.
    pub run_id: String,
    /// Older runs have smaller numbers, over restarts too.
    pub number: u64,
    /// Whose it is.
    pub owner: RunOwner,
    /// The version that it keeps, whatever becomes of the file.
    pub workflow: Arc<Workflow>,
    /// Its inputs. Files are named by id; their bytes are never here.
    pub input: Map<String, Value>,
    /// Unix milliseconds.
    pub created_ms: u64,
    /// Unix milliseconds; time that passes while nobody runs counts too.
    pub deadline_ms: u64,
    /// The caller's promise, if it made one.
    pub idempotency: Option<Idempotency>,
    /// The run that it goes on from, if it does.
    pub origin: Option<Origin>,
    /// Results that it begins with: those of `origin` that are not done again.
    pub seeds: Vec<Ended>,
}

/// One thing that is written of a run after it was accepted.
#[derive(Debug, Clone)]
pub enum Entry {
    /// A call or step is over.
    Ended(Box<Ended>),
    /// An event, with the next id.
    Event(Event),
    /// The run is over: the last entry of every run.
    Finished(Box<RunRecord>),
}

/// Entries of one run that become durable together or not at all.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The run.
    pub run_id: Arc<str>,
    /// The generation of the run that its owner holds.
    pub generation: u64,
    /// In order.
    pub entries: Vec<Entry>,
}

/// What became of an acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acceptance {
    /// The run is written down.
    New,
    /// The same request was accepted before, as this run; nothing was written.
    Replayed {
        /// That run.
        run_id: String,
    },
    /// Another request was accepted under the same idempotency key; nothing was written.
    Conflict {
        /// That run.
        run_id: String,
    },
}

/// Why a journal cannot take or give something. Nothing of what it concerns was stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The disk or the file's own limit is full.
    #[error("the journal is full: {0}")]
    Full(String),
    /// Another process holds it.
    #[error("the journal is held by another process: {0}")]
    Held(String),
    /// The file is damaged or no journal.
    #[error("the journal cannot be read: {0}")]
    Corrupt(String),
    /// Anything else the disk or the database says.
    #[error("the journal fails: {0}")]
    Failed(String),
    /// It was closed.
    #[error("the journal is closed")]
    Closed,
    /// A file of the run's input is not there, or not any more: nothing was written.
    #[error("there is no file {file_id:?}")]
    NoFile {
        /// Which one.
        file_id: String,
    },
}

/// Seconds after which a disk is worth another try.
const DISK_RETRY_AFTER: f64 = 5.0;

impl JournalError {
    /// As it goes out. Nothing was stored, and another try later may do, except where the file itself is damaged.
    pub fn to_envelope(&self) -> Envelope {
        let own = || Envelope::new(ErrorCode::Internal, self.to_string()).with_detail("reason", "journal");
        match self {
            Self::Closed => Envelope::new(ErrorCode::ShuttingDown, "this node is stopping").with_retry_after(1.0),
            Self::NoFile { .. } => Envelope::new(ErrorCode::NotFound, self.to_string()),
            Self::Corrupt(_) => own(),
            Self::Full(_) | Self::Held(_) | Self::Failed(_) => {
                let mut envelope = own().with_retry_after(DISK_RETRY_AFTER);
                (envelope.http_status, envelope.retryable) = (503, true);
                envelope
            }
        }
    }
}

/// A run as a journal gives it back.
#[derive(Debug, Clone)]
pub struct StoredRun {
    /// As it was accepted.
    pub accepted: RunAccepted,
    /// The generation that its new owner holds.
    pub generation: u64,
    /// Unix milliseconds of its first step, if it began.
    pub started_ms: Option<u64>,
    /// What is over, in the order in which it was written.
    pub ended: Vec<Ended>,
    /// Its events so far, in order; ids are 1, 2, 3, ... without a gap.
    pub events: Vec<Event>,
}

/// Why a call was put aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadCause {
    /// It killed its agent's actor, or the task of its attempt, twice.
    KilledTwice,
    /// Its step may act only once (`effects = "once"`), and whether it did is unknown.
    InDoubt,
    /// The process died with it too often. Its run waits.
    KilledProcess,
    /// The plan of its run panicked.
    PlanPanicked,
}

/// A call that nobody makes again by itself: an operator looks at it, and replays it or lets it be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Its id.
    pub id: String,
    /// Unix milliseconds.
    pub at_ms: u64,
    /// Why.
    pub cause: DeadCause,
    /// The agent that was called.
    pub agent: String,
    /// The run that it belonged to, if it did.
    pub run_id: Option<String>,
    /// The step, item and iteration in that run, as in its idempotency key.
    pub step: Option<String>,
    /// Whose it is.
    pub owner: RunOwner,
    /// The same over attempts and replays.
    pub idempotency_key: Option<String>,
    /// The agent's input.
    pub input: Value,
    /// What was seen, for developers.
    pub message: String,
}

/// A caller whose volume guard is shut, as it is kept over a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutCaller {
    /// `key:NAME`, `tenant:NAME` or `local`.
    pub name: String,
    /// Since when, in Unix milliseconds.
    pub since_ms: u64,
    /// The calls of its hour: Unix milliseconds at which a second of them began, and how many there were in it.
    pub seconds: Vec<(u64, u32)>,
}

/// Called once, when what it stands for is durable. On the journal's own thread, so it must not block.
pub type WhenDurable = Box<dyn FnOnce() + Send>;
/// Called once with what became of an acceptance. On the journal's own thread, so it must not block.
pub type WhenAccepted = Box<dyn FnOnce(Result<Acceptance, JournalError>) + Send>;

/// Where runs are written down.
pub trait Journal: Send + Sync + 'static {
    /// Takes a new run, unless its idempotency key was used before. Never blocks. A refusal means that nothing was stored.
    fn accept(&self, run: Arc<RunAccepted>, accepted: WhenAccepted);

    /// Takes entries of a run, to be written after all earlier ones of that run. Never blocks. While the disk refuses them they are
    /// kept and tried again; `durable` is called when they are on it, and never before. Entries of a generation that is over are
    /// dropped together with `durable`.
    fn append(&self, batch: Batch, durable: WhenDurable);

    /// Puts a call aside. Never blocks.
    fn put_aside(&self, letter: DeadLetter);

    /// Keeps that a caller's volume guard is shut. Never blocks. A journal that keeps no callers lets a restart forget it.
    fn keep_shut(&self, caller: ShutCaller) {
        let _ = caller;
    }

    /// The guard of the caller of this name is open again. Never blocks.
    fn forget_shut(&self, name: &str) {
        let _ = name;
    }

    /// Callers whose guards were shut when this was last told of them, in no order. Whether one still is its settings say.
    fn shut_callers(&self) -> BoxFuture<'_, Result<Vec<ShutCaller>, JournalError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Takes over every run that is not finished: their generations grow, and whoever held them before can write no more.
    fn take_over(&self) -> BoxFuture<'_, Result<Vec<StoredRun>, JournalError>>;

    /// Takes note that the process lives. Blocks for a moment, and may be lost where the machine fails.
    fn note_alive(&self);

    /// When the process that held the journal before is last known to have lived, in Unix milliseconds.
    fn last_alive_ms(&self) -> Option<u64>;

    /// Events of a run after the id `after`, at most `max`, in order; none if there is no such run.
    fn events_after(&self, run_id: &str, after: u64, max: usize) -> BoxFuture<'_, Result<Vec<Event>, JournalError>>;

    /// The final record of a run that is over.
    fn record(&self, run_id: &str) -> BoxFuture<'_, Result<Option<RunRecord>, JournalError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_damaged_or_gone_is_no_reason_to_come_again() {
        let text = || "x".to_owned();
        for (error, code, status, retryable) in [
            (JournalError::Full(text()), ErrorCode::Internal, 503, true),
            (JournalError::Held(text()), ErrorCode::Internal, 503, true),
            (JournalError::Failed(text()), ErrorCode::Internal, 503, true),
            (JournalError::Corrupt(text()), ErrorCode::Internal, 500, false),
            (JournalError::Closed, ErrorCode::ShuttingDown, 503, true),
            (JournalError::NoFile { file_id: text() }, ErrorCode::NotFound, 404, false),
        ] {
            let envelope = error.to_envelope();
            let told = (envelope.error_code, envelope.http_status, envelope.retryable);
            assert_eq!((told, envelope.retry_after.is_some()), ((code, status, retryable), retryable), "{error}");
        }
    }
}
