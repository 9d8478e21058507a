//! What one connection is in the middle of saying: whether an answer of a handler is under way, and which answers nobody takes. Times
//! of heads and of idleness are the [`Activity`]'s.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::activity::{Activity, UnderWay};
use crate::model::language::Language;

/// One connection's talk.
#[derive(Debug)]
pub(super) struct Talk {
    pub(super) activity: Arc<Activity>,
    /// Of what is said to it without a request that asks for one.
    pub(super) language: Language,
    requests: AtomicU32,
    next_id: AtomicU64,
    is_answering: AtomicBool,
    has_line: AtomicBool,
    is_refused: AtomicBool,
    is_open_ended: AtomicBool,
    /// Since when a piece that was handed out is not followed by a wish for the next one.
    handed_out: Mutex<HashMap<u64, Instant>>,
}

/// One request and its answer, until the answer's body is out or given up.
#[derive(Debug)]
pub(super) struct Turn {
    talk: Arc<Talk>,
    id: u64,
    #[allow(dead_code, reason = "held for its drop")]
    under_way: UnderWay,
}

impl Talk {
    pub(super) fn open(language: Language) -> Arc<Self> {
        Arc::new(Self {
            activity: Activity::open(),
            language,
            requests: AtomicU32::new(0),
            next_id: AtomicU64::new(0),
            is_answering: AtomicBool::new(false),
            has_line: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
            is_open_ended: AtomicBool::new(false),
            handed_out: Mutex::new(HashMap::new()),
        })
    }

    pub(super) fn begin(self: &Arc<Self>) -> Turn {
        self.requests.fetch_add(1, Ordering::AcqRel);
        self.is_answering.store(true, Ordering::Release);
        self.has_line.store(false, Ordering::Release);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Turn { talk: Arc::clone(self), id, under_way: self.activity.begin() }
    }

    /// Whether requests are under way.
    pub(super) fn is_busy(&self) -> bool {
        self.requests.load(Ordering::Acquire) > 0
    }

    /// Bytes came in.
    pub(super) fn has_read(&self, bytes: &[u8]) {
        if bytes.contains(&b'\n') {
            self.has_line.store(true, Ordering::Release);
        }
    }

    /// Whether the head that is being read has had a whole line.
    pub(super) fn has_line(&self) -> bool {
        self.has_line.load(Ordering::Acquire)
    }

    /// All that was written is with the socket.
    pub(super) fn has_flushed(&self) {
        if !self.is_busy() {
            self.is_answering.store(false, Ordering::Release);
        }
    }

    /// Whether bytes that are written now can be those of a handler's answer.
    pub(super) fn is_answering(&self) -> bool {
        self.is_answering.load(Ordering::Acquire)
    }

    /// A refusal is written while the client may still be sending.
    pub(super) fn refuse(&self) {
        self.is_refused.store(true, Ordering::Release);
    }

    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Acquire)
    }

    /// Whether an answer is under way whose end nothing but the connection's tells: closed in the middle of it, as connections are, it
    /// would look whole.
    pub(super) fn is_open_ended(&self) -> bool {
        self.is_open_ended.load(Ordering::Acquire)
    }

    /// Whether some answer's next piece has been waited for longer than `limit`. HTTP/2 clients can hold a single answer back without
    /// holding the socket back.
    pub(super) fn is_stalled(&self, limit: Duration) -> bool {
        let handed_out = self.handed_out.lock().unwrap_or_else(PoisonError::into_inner);
        handed_out.values().any(|since| since.elapsed() >= limit)
    }
}

impl Turn {
    /// Nothing but the end of the connection will tell the end of the answer that begins.
    pub(super) fn ends_with_connection(&self) {
        self.talk.is_open_ended.store(true, Ordering::Release);
    }

    /// The answer has been handed out as a whole.
    pub(super) fn is_whole(&self) {
        self.talk.is_open_ended.store(false, Ordering::Release);
    }

    /// The connection wants the next piece.
    pub(super) fn is_wanted(&self) {
        self.talk.handed_out.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }

    /// The connection was given a piece.
    pub(super) fn has_handed_out(&self) {
        self.talk.handed_out.lock().unwrap_or_else(PoisonError::into_inner).insert(self.id, Instant::now());
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.is_wanted();
        self.talk.requests.fetch_sub(1, Ordering::AcqRel);
    }
}
