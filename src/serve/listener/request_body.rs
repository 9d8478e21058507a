//! A request's body within its bounds: bytes, pauses, and a least rate. What goes wrong is kept, so that the answer can say it whatever
//! the handler makes of a body that breaks off. Time in which the handler does not read counts for nobody.

use std::{
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    BoxError,
    body::{Bytes, HttpBody},
    http::StatusCode,
};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use super::{refusal, settings::ListenerSettings};
use crate::model::envelope::Envelope;

/// How many bytes this request's body may have, and how fast it must come; in the extensions of every request. A route changes it before
/// it reads.
#[derive(Debug, Clone)]
pub struct BodyBytesMax(Arc<Bounds>);

#[derive(Debug)]
struct Bounds {
    bytes: AtomicU64,
    per_second_min: AtomicU32,
}

impl BodyBytesMax {
    pub(super) fn new(bytes: u64, per_second_min: u32) -> Self {
        Self(Arc::new(Bounds { bytes: AtomicU64::new(bytes), per_second_min: AtomicU32::new(per_second_min) }))
    }

    /// From now on so many bytes are allowed, if that is more.
    pub fn raise(&self, bytes: u64) {
        self.0.bytes.fetch_max(bytes, Ordering::AcqRel);
    }

    /// From now on so many bytes a second must come, if that is more: what takes much takes a place that others wait for.
    pub fn hurry(&self, per_second_min: u32) {
        self.0.per_second_min.fetch_max(per_second_min, Ordering::AcqRel);
    }

    fn get(&self) -> u64 {
        self.0.bytes.load(Ordering::Acquire)
    }

    fn per_second_min(&self) -> u32 {
        self.0.per_second_min.load(Ordering::Acquire)
    }
}

/// What went wrong with a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    TooLarge { bytes_max: u64 },
    Paused { limit: Duration },
    TooSlow { bytes_per_second_min: u32 },
    Broken(String),
}

impl Fault {
    pub(super) fn envelope(&self) -> Envelope {
        match self {
            Self::TooLarge { bytes_max } => refusal::invalid(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body has more than the {bytes_max} bytes that are allowed"),
            ),
            Self::Paused { limit } => {
                refusal::invalid(StatusCode::REQUEST_TIMEOUT, format!("nothing of the body came for {limit:?}"))
            }
            Self::TooSlow { bytes_per_second_min } => refusal::invalid(
                StatusCode::REQUEST_TIMEOUT,
                format!("the body came slower than {bytes_per_second_min} bytes a second"),
            ),
            Self::Broken(error) => {
                refusal::invalid(StatusCode::BAD_REQUEST, format!("the body could not be read: {error}"))
            }
        }
    }
}

/// The body.
pub(super) struct RequestBody {
    body: Incoming,
    bytes_max: BodyBytesMax,
    pause_max: Duration,
    fault: Arc<OnceLock<Fault>>,
    bytes: u64,
    waited: Duration,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl RequestBody {
    pub(super) fn new(
        body: Incoming,
        settings: &ListenerSettings,
        bytes_max: BodyBytesMax,
        fault: Arc<OnceLock<Fault>>,
    ) -> Self {
        Self {
            body,
            bytes_max,
            pause_max: settings.body_pause_max,
            fault,
            bytes: 0,
            waited: Duration::ZERO,
            waiting: None,
        }
    }

    fn fail(&self, fault: Fault) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let fault = self.fault.get_or_init(|| fault);
        Poll::Ready(Some(Err(fault.envelope().message.into())))
    }

    fn take(&mut self, frame: Frame<Bytes>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed();
        }
        self.bytes = self.bytes.saturating_add(frame.data_ref().map_or(0, |data| data.len() as u64));
        let bytes_max = self.bytes_max.get();
        if self.bytes > bytes_max {
            return self.fail(Fault::TooLarge { bytes_max });
        }
        let bytes_per_second_min = self.bytes_max.per_second_min();
        let least = self.waited.as_millis().saturating_mul(bytes_per_second_min.into()) / 1_000;
        if self.waited > self.pause_max && u128::from(self.bytes) < least {
            return self.fail(Fault::TooSlow { bytes_per_second_min });
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(fault) = self.fault.get().cloned() {
            return self.fail(fault);
        }
        // A length that is announced is enough to refuse, before the client is told to go on.
        let bytes_max = self.bytes_max.get();
        if self.bytes.saturating_add(self.body.size_hint().lower()) > bytes_max {
            return self.fail(Fault::TooLarge { bytes_max });
        }
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => self.take(frame),
            Poll::Ready(Some(Err(error))) => self.fail(Fault::Broken(error.to_string())),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let limit = self.pause_max;
                let (_, pause) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(limit))));
                if pause.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                self.fail(Fault::Paused { limit })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
