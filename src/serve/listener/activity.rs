//! What one connection is doing: whether requests are under way, whether a head is half there, since when it is idle. The clock that ends
//! slow heads and idle connections reads from here.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

/// What a connection's first bytes are when it speaks HTTP/2. All of them: a head of HTTP/1 may begin as they do.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first bytes were others.
const NO_PREFACE: usize = usize::MAX;
/// No head is half there.
const NOTHING: u64 = u64::MAX;

/// One connection's doings.
#[derive(Debug)]
pub(super) struct Activity {
    opened: Instant,
    under_way: AtomicU32,
    is_http2: AtomicBool,
    /// So many bytes of the preface have come.
    preface: AtomicUsize,
    /// Microseconds after `opened`.
    head_since: AtomicU64,
    idle_since: AtomicU64,
}

/// Why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overdue {
    /// A request's head did not come in time.
    Head,
    /// Nobody asked anything for long.
    Idle,
}

/// A request that is under way, until its answer is out or given up.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Activity>);

impl Activity {
    /// A connection that was just opened. Its first head has to come as soon as any other.
    pub(super) fn open() -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            under_way: AtomicU32::new(0),
            is_http2: AtomicBool::new(false),
            preface: AtomicUsize::new(0),
            head_since: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(NOTHING - 1)
    }

    /// Bytes came in.
    pub(super) fn has_read(&self, bytes: &[u8]) {
        self.compare_preface(bytes);
        if self.under_way.load(Ordering::Acquire) == 0 && !self.is_http2.load(Ordering::Relaxed) {
            let _ = self.head_since.compare_exchange(NOTHING, self.now(), Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Only whoever reads calls this, so nobody is between its steps.
    fn compare_preface(&self, bytes: &[u8]) {
        let seen = self.preface.load(Ordering::Relaxed);
        let Some(rest) = HTTP2_PREFACE.get(seen..).filter(|rest| !rest.is_empty()) else { return };
        let count = rest.len().min(bytes.len());
        let seen = if rest[..count] == bytes[..count] { seen + count } else { NO_PREFACE };
        self.preface.store(seen, Ordering::Relaxed);
        if seen == HTTP2_PREFACE.len() {
            self.is_http2.store(true, Ordering::Relaxed);
        }
    }

    /// A whole head is here.
    pub(super) fn begin(self: &Arc<Self>) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        self.head_since.store(NOTHING, Ordering::Release);
        UnderWay(Arc::clone(self))
    }

    /// Whether requests are under way.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0
    }

    /// Whether the connection speaks HTTP/1 as far as is known, so that a last answer can be written in its words.
    pub(super) fn is_http1(&self) -> bool {
        !self.is_http2.load(Ordering::Relaxed)
    }

    /// What is overdue now, or how long until something can be.
    pub(super) fn look(&self, head: Duration, idle: Duration) -> Result<Duration, Overdue> {
        if self.under_way.load(Ordering::Acquire) > 0 {
            return Ok(head.min(idle));
        }
        let now = self.now();
        let since = self.head_since.load(Ordering::Acquire);
        let (begun, limit, overdue) = if since == NOTHING || !self.is_http1() {
            (self.idle_since.load(Ordering::Acquire), idle, Overdue::Idle)
        } else {
            (since, head, Overdue::Head)
        };
        let spent = Duration::from_micros(now.saturating_sub(begun));
        if spent >= limit { Err(overdue) } else { Ok(limit.checked_sub(spent).unwrap_or_default()) }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.now(), Ordering::Release);
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Duration = Duration::from_secs(10);
    const IDLE: Duration = Duration::from_secs(75);

    #[tokio::test(start_paused = true)]
    async fn heads_and_idleness_have_their_own_limits() {
        let activity = Activity::open();
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(activity.look(HEAD, IDLE), Ok(Duration::from_secs(1)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(activity.look(HEAD, IDLE), Err(Overdue::Head));
        activity.has_read(b"GET / HTTP/1.1\r\n\r\n");
        let request = activity.begin();
        tokio::time::advance(Duration::from_secs(1_000)).await;
        assert!(activity.look(HEAD, IDLE).is_ok(), "a long answer is no idleness");
        drop(request);
        tokio::time::advance(Duration::from_secs(74)).await;
        assert_eq!(activity.look(HEAD, IDLE), Ok(Duration::from_secs(1)));
        activity.has_read(b"GET");
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(activity.look(HEAD, IDLE).is_ok());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(activity.look(HEAD, IDLE), Err(Overdue::Head));
    }

    #[tokio::test(start_paused = true)]
    async fn pings_of_http2_are_no_heads() {
        let activity = Activity::open();
        activity.has_read(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(activity.look(HEAD, IDLE).is_ok());
        tokio::time::advance(Duration::from_secs(15)).await;
        assert_eq!(activity.look(HEAD, IDLE), Err(Overdue::Idle));
    }

    #[tokio::test(start_paused = true)]
    async fn a_preface_counts_when_all_of_it_is_here() {
        for (pieces, is_http1) in [
            (&[&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0"[..]][..], false),
            (&[&b"P"[..], b"RI * HTTP/2.0\r\n\r\nSM\r\n\r", b"\n"], false),
            (&[&b"PRI /x HTTP/1.1\r\nx: "[..]], true),
            (&[&b"PRI * HTTP/2.0\r\n\r\nSM"[..]], true),
            (&[&b"PRI "[..], b"GET", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], true),
        ] {
            let activity = Activity::open();
            for piece in pieces {
                activity.has_read(piece);
            }
            assert_eq!(activity.is_http1(), is_http1, "{pieces:?}");
            tokio::time::advance(HEAD).await;
            assert_eq!(activity.look(HEAD, IDLE).is_err(), is_http1, "{pieces:?}");
        }
    }
}
