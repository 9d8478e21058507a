//! The port of the deferred queue: calls that are made later, on disk. A store decides nothing: it keeps entries within bounds, gives due
//! ones to one owner at a time, and keeps what became of them. Nobody is told that a call is kept before it is durable.
//!
//! An entry that is being worked on is leased: to one owner, until a moment. Each lease grows the entry's generation, and the end of an
//! earlier one changes nothing. So of two who work on it one wins, and who dies loses its lease and no entry.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    model::{envelope::Envelope, reply::Usage, run::Cause},
    runtime::{
        journal::{JournalError, RunOwner},
        ports::BoxFuture,
        relay::RelayKind,
    },
};

/// What is asked of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DeferredWork {
    /// A call with an input.
    Input {
        /// The input.
        input: Value,
        /// A prompt that replaces the agent's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt: Option<String>,
    },
    /// Somebody else's request, to be passed on as it is.
    Relay {
        /// What it asks for.
        of: RelayKind,
        /// The request's JSON as it came.
        body: String,
    },
}

/// A call that was put off.
#[derive(Debug, Clone, PartialEq)]
pub struct DeferredCall {
    /// Everything but what is asked.
    pub head: DeferredHead,
    /// What is asked.
    pub work: DeferredWork,
}

/// A call that was put off, without what is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeferredHead {
    /// Its id.
    pub id: String,
    /// Who is asked.
    pub agent: String,
    /// Whose it is. The priority is the one it is made with.
    pub owner: RunOwner,
    /// The same over attempts and restarts.
    pub idempotency_key: String,
    /// SHA-256 of what is asked, in hex, where the caller gave the key: the same key with something else is a conflict.
    pub request_hash: Option<String>,
    /// The run that it belonged to, if it did.
    pub run_id: Option<String>,
    /// The step in that run.
    pub step: Option<String>,
    /// Why it was put off.
    pub cause: Cause,
    /// The error that it was put off for.
    pub error: Envelope,
    /// Unix milliseconds.
    pub created_ms: u64,
    /// When it is made first; Unix milliseconds.
    pub due_ms: u64,
    /// From when on it is not made any more; Unix milliseconds.
    pub expires_ms: u64,
    /// Whether somebody is told of its end.
    pub pushed: bool,
}

/// How many calls may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueBounds {
    /// In all.
    pub entries_max: u64,
    /// Of one tenant.
    pub tenant_entries_max: u64,
}

/// What became of an attempt to put a call off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Put {
    /// It is kept.
    New,
    /// The same call was kept before, as this entry.
    Known(Ticket),
    /// Another request was kept under the same idempotency key.
    Conflict,
    /// As many wait as may.
    Full {
        /// Which bound it is: `deferred` or `deferred of this tenant`.
        bound: &'static str,
    },
}

/// What a caller holds of a call that was put off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Its id.
    pub id: String,
    /// When it is made next; Unix milliseconds.
    pub due_ms: u64,
    /// From when on it is not made any more; Unix milliseconds.
    pub expires_ms: u64,
}

/// Where an entry stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeferredStatus {
    /// For its time, or at work.
    Waiting,
    /// It has its answer.
    Done,
    /// It failed for good.
    Failed,
    /// Its time was over before it had an answer.
    Expired,
    /// Its owner wants it no more.
    Cancelled,
}

impl DeferredStatus {
    /// Every status.
    pub const ALL: [Self; 5] = [Self::Waiting, Self::Done, Self::Failed, Self::Expired, Self::Cancelled];

    /// The word on the wire and on metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The end of an entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeferredResult {
    /// The answer, if there is one: the agent's output, or the whole answer to a request that was passed on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Tokens of all attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The target that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The error, if it ended with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Envelope>,
}

/// Telling somebody of an entry's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Where it stands.
    pub status: DeliveryStatus,
    /// How often it was tried.
    pub attempts: u32,
    /// The last answer's status.
    pub http_status: Option<u16>,
    /// What went wrong last.
    pub error: Option<String>,
    /// When it was tried last, Unix milliseconds.
    pub at_ms: Option<u64>,
}

/// Where telling somebody stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryStatus {
    /// It is tried, or tried again.
    Waiting,
    /// The other side took it.
    Delivered,
    /// It was tried as often as it may be, or the other side refused it for good.
    GivenUp,
}

impl DeliveryStatus {
    /// The word on the wire and on metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Delivered => "delivered",
            Self::GivenUp => "given_up",
        }
    }
}

/// An entry as it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct DeferredEntry {
    /// The call.
    pub head: DeferredHead,
    /// Where it stands.
    pub status: DeferredStatus,
    /// How often it was sent.
    pub attempts: u32,
    /// How often a guard of ours refused it when its time had come.
    pub refusals: u32,
    /// When it is made next; Unix milliseconds.
    pub due_ms: u64,
    /// Whether somebody works on it.
    pub leased: bool,
    /// When it ended; Unix milliseconds.
    pub ended_ms: Option<u64>,
    /// How it ended.
    pub result: Option<DeferredResult>,
    /// Telling somebody of it.
    pub delivery: Option<Delivery>,
}

/// Who takes entries, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Who: one life of one process.
    pub owner: String,
    /// Now; Unix milliseconds.
    pub now_ms: u64,
    /// Until when nobody else takes them; Unix milliseconds.
    pub until_ms: u64,
    /// At most so many.
    pub count_max: usize,
    /// What this owner has in hand already. Who has as much as one may have is passed over.
    pub held: Held,
}

/// Calls of entries that are under way.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// Agent and tenant of each.
    pub calls: Vec<(String, Option<String>)>,
    /// One agent, and one tenant, may have so many of them; 0 = any number.
    pub of_one_max: usize,
}

/// An entry that was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    /// The call.
    pub call: DeferredCall,
    /// How often it was sent so far.
    pub attempts: u32,
    /// How often it was refused so far.
    pub refusals: u32,
    /// The generation of this lease.
    pub generation: u64,
}

/// What is due.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Due {
    /// Entries, now leased.
    pub taken: Vec<Taken>,
    /// So many were too old and have ended.
    pub expired: u64,
    /// So many wait, the taken ones included.
    pub waiting: u64,
    /// When the next one is due that nobody has; Unix milliseconds.
    pub next_ms: Option<u64>,
}

/// How a lease of an entry ends.
#[derive(Debug, Clone, PartialEq)]
pub enum Settled {
    /// It is made again.
    Again {
        /// When; Unix milliseconds.
        due_ms: u64,
        /// What happened.
        why: Again,
    },
    /// It is over.
    Ended {
        /// As what.
        status: DeferredStatus,
        /// How often it was sent in this lease.
        sent: u32,
        /// With what.
        result: Box<DeferredResult>,
        /// Unix milliseconds.
        at_ms: u64,
    },
}

/// Why an entry is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Nothing was sent: a guard of ours refused it. That is no attempt.
    Refused,
    /// It was sent and failed.
    Failed,
    /// Its owner stops before anything was sent.
    LetGo,
}

/// Telling somebody of an end, taken to be done now.
#[derive(Debug, Clone, PartialEq)]
pub struct PushDue {
    /// The entry.
    pub entry: DeferredEntry,
    /// How often it was tried so far.
    pub attempts: u32,
    /// The generation of this lease.
    pub generation: u64,
}

/// How telling somebody went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushSettled {
    /// Where it stands now.
    pub status: DeliveryStatus,
    /// When it is tried again, if it is; Unix milliseconds.
    pub due_ms: u64,
    /// The answer's status.
    pub http_status: Option<u16>,
    /// What went wrong.
    pub error: Option<String>,
    /// Unix milliseconds.
    pub at_ms: u64,
}

/// Where calls that were put off are kept.
pub trait DeferredStore: Send + Sync + 'static {
    /// Keeps a call within `bounds`. Answers when it is durable.
    fn put(&self, call: DeferredCall, bounds: QueueBounds) -> BoxFuture<'_, Result<Put, JournalError>>;

    /// Ends the leases of everybody but `owner`, who is now the only one: what they had in hand is due at once.
    fn take_over(&self, owner: &str) -> BoxFuture<'_, Result<u64, JournalError>>;

    /// Ends what is too old, and takes what is due, the longest due first, but for agents and tenants that have as much in hand as one
    /// may have: those come when something of theirs has ended, and are no reason to look before.
    fn take_due(&self, lease: Lease) -> BoxFuture<'_, Result<Due, JournalError>>;

    /// Ends a lease; `false` if it is not the present one, and then nothing is changed.
    fn settle(&self, id: &str, generation: u64, settled: Settled) -> BoxFuture<'_, Result<bool, JournalError>>;

    /// Takes ends that somebody is to be told of.
    #[allow(clippy::type_complexity, reason = "a pair behind a port; a name for it would say less")]
    fn take_pushes(&self, lease: Lease) -> BoxFuture<'_, Result<(Vec<PushDue>, Option<u64>), JournalError>>;

    /// Writes down how telling somebody went; `false` if the lease is not the present one.
    fn settle_push(&self, id: &str, generation: u64, settled: PushSettled)
    -> BoxFuture<'_, Result<bool, JournalError>>;
}
