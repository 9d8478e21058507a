//! The ports of the runtime: how it reads time, how it reaches an agent's work. Adapters implement them, tests hold the far end.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    capture::CaptureSlot,
    reader_wait::ReaderWait,
    relay::{Relay, RelayKind},
    tally::Tally,
    token_count::TokenCounter,
};
use crate::model::{
    call_log::CallRecord,
    clock::Timestamp,
    name::Name,
    raw_object::RawObject,
    reply::{AttemptFailure, Reply},
};
use crate::policy::slow::Timing;
pub use crate::policy::warmth::machine::ColdStart;

/// A boxed future, so that ports stay object safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where time comes from.
pub trait Clock: Send + Sync + 'static {
    /// Time since the clock's zero, which is its own choice; never goes back.
    fn now(&self) -> Timestamp;
    /// Unix time in milliseconds of a moment; for logs, events and dates only.
    fn unix_ms(&self, at: Timestamp) -> u64;
}

/// Tokio's clock: stands still and jumps in tests with paused time.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    started: tokio::time::Instant,
    /// What it showed when it was started.
    origin: Timestamp,
    /// The Unix time of [`Timestamp::ZERO`] in milliseconds.
    unix_zero_ms: u64,
}

impl TokioClock {
    /// A clock that shows zero now.
    pub fn start() -> Self {
        let unix_zero_ms = u64::try_from(unix_time().as_millis()).unwrap_or(u64::MAX);
        Self { started: tokio::time::Instant::now(), origin: Timestamp::ZERO, unix_zero_ms }
    }

    /// A clock that shows the Unix time now, and from then on counts by itself: moments stay comparable over restarts of the process,
    /// and a step of the system's clock moves nothing while it runs. For a service that takes up runs of the process before it.
    pub fn since_unix_epoch() -> Self {
        let origin = Timestamp::ZERO.after(unix_time());
        Self { started: tokio::time::Instant::now(), origin, unix_zero_ms: 0 }
    }
}

/// Zero if the system's clock is set before 1970.
fn unix_time() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        self.origin.after(tokio::time::Instant::now().saturating_duration_since(self.started))
    }

    fn unix_ms(&self, at: Timestamp) -> u64 {
        self.unix_zero_ms.saturating_add(at.millis())
    }
}

/// Where finished calls are written down, one record each: what replay reads. Called on a worker thread, so it must not block.
pub trait CallLog: Send + Sync + 'static {
    /// A call ended, or was refused.
    fn finished(&self, record: CallRecord);
}

/// The timeouts that an attempt's backend keeps itself. The timeout of the whole attempt is kept by the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptTimeouts {
    /// From sending a stream's request to its first content; `None` where the backend does not stream.
    pub first_token: Option<Duration>,
    /// Between two pieces of content of a stream; comments and empty frames do not count as content.
    pub stall: Option<Duration>,
}

/// Something that must live as long as an attempt's work does, though the caller may have left: the call's slots.
/// Work that cannot be interrupted (a blocking thread) keeps a clone, and the slots are free only when it has ended.
#[derive(Clone)]
pub struct Hold(#[allow(dead_code, reason = "held for its drop")] Arc<dyn Send + Sync>);

impl Hold {
    /// Holds `what` until the last clone is gone.
    pub fn of(what: Arc<dyn Send + Sync>) -> Self {
        Self(what)
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Hold")
    }
}

/// One exchange that a backend is asked for.
#[derive(Debug, Clone)]
pub struct AttemptRequest {
    /// The agent.
    pub agent: Name,
    /// The agent's input.
    pub input: Arc<Value>,
    /// The call this attempt belongs to.
    pub call_id: String,
    /// The run this call belongs to.
    pub run_id: Option<String>,
    /// The step of the run.
    pub step: Option<String>,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// The same over attempts, re-sends and restarts.
    pub idempotency_key: String,
    /// W3C trace context, handed on as it is.
    pub traceparent: Option<String>,
    /// What is left until the deadline of call and run.
    pub deadline: Duration,
    /// Who it is for.
    pub tenant: Option<String>,
    /// For which feature.
    pub feature: Option<String>,
    /// In which class.
    pub priority: Option<String>,
    /// A prompt that replaces the agent's own; a backend without prompts leaves it alone.
    pub prompt: Option<Arc<str>>,
    /// The backend's own timeouts.
    pub timeouts: AttemptTimeouts,
    /// The call's slots; see [`Hold`].
    pub hold: Hold,
    /// Somebody else's request, to be passed on as it is; the input then says nothing.
    pub relay: Option<Relay>,
    /// Where a backend that talks over a wire leaves what it hears; `None` = nobody keeps it.
    pub capture: Option<CaptureSlot>,
}

/// What an attempt shows of itself while it runs.
#[derive(Debug)]
pub struct Progress {
    started: Timestamp,
    clock: SharedClock,
    first_content: OnceLock<Timestamp>,
    pieces: AtomicU64,
    /// The model had to be loaded for it.
    loads: AtomicBool,
    deltas: Option<mpsc::Sender<String>>,
    tally: Arc<Tally>,
    reader: ReaderWait,
}

#[derive(Clone)]
struct SharedClock(Arc<dyn Clock>);

impl std::fmt::Debug for SharedClock {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Clock")
    }
}

impl Progress {
    /// Progress of an attempt that starts now. Content goes to `deltas` if somebody listens.
    pub fn start(clock: Arc<dyn Clock>, deltas: Option<mpsc::Sender<String>>) -> Self {
        Self {
            started: clock.now(),
            clock: SharedClock(clock),
            first_content: OnceLock::new(),
            pieces: AtomicU64::new(0),
            loads: AtomicBool::new(false),
            deltas,
            tally: Arc::default(),
            reader: ReaderWait::new(),
        }
    }

    /// The same with another way to count its tokens.
    #[must_use]
    pub fn counting(mut self, tally: Tally) -> Self {
        self.tally = Arc::new(tally);
        self
    }

    /// What was heard of the model so far, for whoever must count its tokens. An adapter tells it all text that the model puts out,
    /// beside [`Progress::content`] or [`Progress::output_came`].
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// A piece of content arrived. Waits while the listener is slow (the socket's own flow control then slows the sender);
    /// a listener that left is no error.
    pub async fn content(&self, text: &str) {
        self.first_content.get_or_init(|| self.clock.0.now());
        self.pieces.fetch_add(1, Ordering::Relaxed);
        if let Some(deltas) = &self.deltas {
            let _ = self.by_reader(deltas.send(text.to_owned())).await;
        }
    }

    /// Hands output on that goes its own way, and waits for its reader: in that time the attempt's clock stands still.
    pub async fn by_reader<T>(&self, hand_on: impl Future<Output = T>) -> T {
        self.reader.during(hand_on).await
    }

    /// How long its output has waited for its reader.
    pub(crate) fn reader_wait(&self) -> Duration {
        self.reader.so_far()
    }

    /// Output of the model came that goes its own way (a relayed frame): the attempt is committed as by any content.
    pub fn output_came(&self) {
        self.first_content.get_or_init(|| self.clock.0.now());
        self.pieces.fetch_add(1, Ordering::Relaxed);
    }

    /// The model is, or was, loaded for this very attempt: neither its slowness nor its timeouts say anything about its health. An adapter
    /// that learns beforehand that the model is not loaded sends nothing and ends the attempt with [`Ending::Loading`] instead.
    ///
    /// [`Ending::Loading`]: crate::model::facts::Ending::Loading
    pub fn model_loads(&self) {
        self.loads.store(true, Ordering::Relaxed);
    }

    /// Whether the model had to be loaded for this attempt.
    pub fn had_model_loaded(&self) -> bool {
        self.loads.load(Ordering::Relaxed)
    }

    /// What the question of slowness is asked about, at `now`.
    pub(crate) fn timing(&self, now: Timestamp) -> Timing {
        Timing {
            elapsed: now.since(self.started).saturating_sub(self.reader_wait()),
            first_content: self.first_content().map(|first| first.since(self.started)),
            tokens: self.pieces(),
        }
    }

    /// How long the attempt has run.
    pub fn elapsed(&self) -> Duration {
        self.clock.0.now().since(self.started)
    }

    /// When the attempt began.
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// When the first content came: from then on the attempt is committed and never repeated.
    pub fn first_content(&self) -> Option<Timestamp> {
        self.first_content.get().copied()
    }

    /// How many pieces of content came so far; each is about one token.
    pub fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }

    /// True if somebody wants the pieces as they come.
    pub fn is_watched(&self) -> bool {
        self.deltas.is_some()
    }
}

/// How a warm-up ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WarmUp {
    /// The model is loaded now, and was not before.
    Loaded,
    /// It had been loaded already.
    WasLoaded,
    /// There is nothing to load: nothing was sent.
    NotNeeded,
}

/// What is asked of an agent, for whoever must know its size before anything is sent.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The agent's input.
    pub input: Arc<Value>,
    /// Somebody else's request, to be passed on as it is.
    pub relay: Option<(RelayKind, Arc<RawObject>)>,
}

/// How many tokens a request may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenEstimate {
    /// The prompt's.
    pub prompt: u64,
    /// The most that an answer may have, where the request says so.
    pub output_max: Option<u64>,
    /// What the prompt was counted with; the answer is counted so too, if nobody tells its tokens.
    pub counter: TokenCounter,
}

impl TokenEstimate {
    /// Of work that no model does.
    pub const NONE: Self = Self { prompt: 0, output_max: Some(0), counter: TokenCounter::Letters };
}

/// What a provider said with its last answer of what it still allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VendorBudget {
    /// Tokens that are left.
    pub remaining: u64,
    /// From now until all of them are back.
    pub reset_in: Duration,
}

/// Where an agent's work is done. One exchange a call; no retries of its own; ends its work when the future is dropped.
///
/// What is not the attempt itself has an answer that is right for plain work. One that stands in front of another says so in
/// [`Backend::inner`], and then whatever it does not answer itself is the other one's answer.
pub trait Backend: Send + Sync + 'static {
    /// Does one attempt.
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>>;

    /// The one that this one stands in front of, if it does.
    fn inner(&self) -> Option<&dyn Backend> {
        None
    }

    /// Whether it passes somebody else's request on as it is, where an attempt brings one ([`AttemptRequest::relay`]).
    fn relays(&self) -> bool {
        self.inner().is_some_and(Backend::relays)
    }

    /// How many tokens such a request may need, with this prompt in place of the agent's own, if any; `None` if the backend cannot
    /// tell. Asked only where a budget or a price wants to know, in the caller's task: it waits for nothing and takes little time,
    /// however long the request is.
    fn estimate(&self, asked: &Asked, prompt: Option<&str>) -> Option<TokenEstimate> {
        self.inner().and_then(|inner| inner.estimate(asked, prompt))
    }

    /// What its provider said last of its own budget, if it did and it was not asked for yet.
    fn vendor_budget(&self) -> Option<VendorBudget> {
        self.inner().and_then(Backend::vendor_budget)
    }

    /// What tells where its work is done, if that is one place outside this program. It may hold secrets: it is compared, never shown.
    fn stands_at(&self) -> Option<Arc<str>> {
        self.inner().and_then(Backend::stands_at)
    }

    /// What of its settings makes its server load the model anew, in any words; `None` if nothing does.
    fn loads_as(&self) -> Option<Arc<str>> {
        self.inner().and_then(Backend::loads_as)
    }

    /// How its model comes to be loaded. Asked often, so it only says what is known: no exchange.
    fn cold_start(&self) -> ColdStart {
        self.inner().map_or(ColdStart::Never, Backend::cold_start)
    }

    /// Why an attempt of this request would be refused before anything is sent, if it would be: what an adapter checks itself (a prompt
    /// that says nothing or does not fit, a parameter that it does not take). Asked only where the answer saves a warm-up; sends nothing.
    fn refuses<'a>(&'a self, request: &'a AttemptRequest) -> BoxFuture<'a, Option<AttemptFailure>> {
        match self.inner() {
            Some(inner) => inner.refuses(request),
            None => Box::pin(std::future::ready(None)),
        }
    }

    /// Has the model loaded, by as small a request as there is, and waits until it is. The runtime makes one at a time for a model, holds
    /// slots for it, lets it end though its caller has left, and keeps the time. [`Ending::Loading`] is asked again after a while.
    ///
    /// [`Ending::Loading`]: crate::model::facts::Ending::Loading
    fn warm_up(&self) -> BoxFuture<'_, Result<WarmUp, AttemptFailure>> {
        match self.inner() {
            Some(inner) => inner.warm_up(),
            None => Box::pin(std::future::ready(Ok(WarmUp::NotNeeded))),
        }
    }

    /// Asks the server whether it is well, without any work of a model; `None` where nobody can be asked so.
    fn health(&self) -> Option<BoxFuture<'_, Result<(), AttemptFailure>>> {
        self.inner().and_then(Backend::health)
    }
}

#[cfg(test)]
mod tests;
