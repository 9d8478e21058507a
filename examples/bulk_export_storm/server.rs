//! A model server with a real limit: so many streams decode at once, each further one slows all of them, and whoever finds no slot waits
//! in a queue without bound. It knows no features, tenants or classes and refuses nobody: that is the point of it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

/// The largest part of a token that is not told apart.
const PARTS_OF_A_TOKEN: f64 = 1_000_000.0;
/// Longer than any run.
const FOREVER: Duration = Duration::from_secs(86_400 * 365);

/// How fast a server is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Speed {
    /// Streams that decode at once.
    pub(crate) slots: usize,
    /// Output tokens a second of one stream that is alone.
    pub(crate) alone: f64,
    /// What each further stream adds to the time of a token, as a share of it.
    pub(crate) slowed_by: f64,
    /// Prompt tokens that cost as much as one output token.
    pub(crate) prompt_per_output: f64,
}

/// One request, as far as the server's work goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Work {
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: u64,
    /// Tokens of the answer.
    pub(crate) output_tokens: u64,
}

impl Work {
    /// Both together.
    pub(crate) fn tokens(self) -> u64 {
        self.prompt_tokens + self.output_tokens
    }
}

impl Speed {
    /// Output tokens a second of each of so many streams.
    pub(crate) fn of_each(&self, streams: usize) -> f64 {
        self.alone / (1.0 + self.slowed_by * (streams.max(1) - 1) as f64)
    }

    /// What a request costs, in millionths of an output token.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few million times a million")]
    fn parts(&self, work: Work) -> u64 {
        let tokens = work.prompt_tokens as f64 / self.prompt_per_output + work.output_tokens as f64;
        (tokens * PARTS_OF_A_TOKEN) as u64
    }
}

/// The server. [`ModelServer::run`] must run beside its callers.
pub(crate) struct ModelServer {
    speed: Speed,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    /// What a stream that decodes since the beginning would have made by now, in parts of a token. All of them are equally fast, so one
    /// number does for all.
    made: f64,
    updated: Instant,
    numbers: u64,
    waiting: VecDeque<(u64, u64, oneshot::Sender<()>)>,
    /// By the number that `made` must reach, then by age.
    streams: BTreeMap<(u64, u64), oneshot::Sender<()>>,
    seen: Seen,
}

/// What the server saw.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    /// Requests that were answered.
    pub(crate) answered: u64,
    /// The longest that its queue was.
    pub(crate) queue_max: usize,
    /// Seconds of all its slots together in which they decoded.
    pub(crate) slot_seconds: f64,
}

impl Seen {
    /// Both together.
    #[allow(dead_code, reason = "only over HTTP, where there are several rounds")]
    pub(crate) fn and(&mut self, other: Self) {
        self.answered += other.answered;
        self.queue_max = self.queue_max.max(other.queue_max);
        self.slot_seconds += other.slot_seconds;
    }
}

impl ModelServer {
    /// An idle one.
    pub(crate) fn new(speed: Speed) -> Arc<Self> {
        let state = State {
            made: 0.0,
            updated: Instant::now(),
            numbers: 0,
            waiting: VecDeque::new(),
            streams: BTreeMap::new(),
            seen: Seen::default(),
        };
        Arc::new(Self { speed, state: Mutex::new(state), changed: Notify::new() })
    }

    /// Does one request: waits for a slot, then decodes. Dropping the future ends it, in the queue or in its slot.
    pub(crate) async fn answer(&self, work: Work) {
        let (done, answered) = oneshot::channel();
        {
            let mut state = self.lock();
            state.numbers += 1;
            let number = state.numbers;
            state.waiting.push_back((number, self.speed.parts(work), done));
        }
        self.changed.notify_one();
        let leaving = Leaving(&self.changed);
        let _ = answered.await;
        drop(leaving);
    }

    /// Works until it is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let next = self.turn(Instant::now());
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = tokio::time::sleep(next.unwrap_or(FOREVER)) => {}
            }
        }
    }

    /// What it saw so far.
    pub(crate) fn seen(&self) -> Seen {
        self.lock().seen
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings everything up to `now`; how long until the next stream ends.
    fn turn(&self, now: Instant) -> Option<Duration> {
        let mut state = self.lock();
        let state = &mut *state;
        let elapsed = now.saturating_duration_since(state.updated).as_secs_f64();
        let streams = state.streams.len();
        state.made += elapsed * self.speed.of_each(streams) * PARTS_OF_A_TOKEN;
        state.seen.slot_seconds += elapsed * streams as f64;
        state.updated = now;
        while let Some(first) = state.streams.first_entry() {
            if first.key().0 as f64 > state.made {
                break;
            }
            let _ = first.remove().send(());
            state.seen.answered += 1;
        }
        state.streams.retain(|_, done| !done.is_closed());
        while state.streams.len() < self.speed.slots {
            let Some((number, parts, done)) = state.waiting.pop_front() else { break };
            if !done.is_closed() {
                // proof of no loss: a run is far shorter than 2^63 millionths of a token.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
                let end = state.made as u64 + parts;
                state.streams.insert((end, number), done);
            }
        }
        state.seen.queue_max = state.seen.queue_max.max(state.waiting.len());
        let (end, _) = state.streams.first_key_value()?.0;
        let left = (*end as f64 - state.made).max(0.0) / PARTS_OF_A_TOKEN;
        // A little more than needed: whoever wakes too early only has to sleep again.
        Some(Duration::from_secs_f64(left / self.speed.of_each(state.streams.len())) + Duration::from_micros(1))
    }
}

/// Wakes the server when somebody leaves, answered or not.
struct Leaving<'a>(&'a Notify);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}
