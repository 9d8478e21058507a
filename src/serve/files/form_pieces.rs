//! The pieces of a form as its parser gets them: one at a time, and counted while the header of a part is not whole. What stands before
//! and in a part's header is bounded so; what a part holds is not counted here, its readers do that.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use axum::body::{Body, BodyDataStream, Bytes};
use futures_util::Stream;

/// The longest header of a part of a form, with what stands before it, in bytes.
pub const PART_HEADER_BYTES_MAX: usize = 16 * 1024;

/// What is sent beyond it while a part's header is not whole.
#[derive(Debug, thiserror::Error)]
#[error("the header of a part is longer than {PART_HEADER_BYTES_MAX} bytes")]
struct HeaderTooLong;

/// Says when the header of a part is read, and is told when it is too long.
#[derive(Debug, Clone, Default)]
pub struct HeaderGauge(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    is_open: AtomicBool,
    bytes: AtomicUsize,
    is_beyond: AtomicBool,
}

impl HeaderGauge {
    /// From here on a part's header is read.
    pub fn open(&self) {
        self.0.bytes.store(0, Ordering::Relaxed);
        self.0.is_open.store(true, Ordering::Relaxed);
    }

    /// It is whole: what comes now is the part itself.
    pub fn close(&self) {
        self.0.is_open.store(false, Ordering::Relaxed);
    }

    /// A header was too long, and the form broke off there.
    pub fn is_beyond(&self) -> bool {
        self.0.is_beyond.load(Ordering::Relaxed)
    }

    /// This body, measured.
    pub fn measure(&self, body: Body) -> Body {
        Body::from_stream(Pieces { sent: body.into_data_stream(), gauge: self.clone(), is_parsed: true })
    }

    /// Whether more may be taken. The parser has seen all that was taken before, and asks for more only because the header is not whole.
    fn lets_on(&self) -> bool {
        let is_beyond =
            self.0.is_open.load(Ordering::Relaxed) && self.0.bytes.load(Ordering::Relaxed) > PART_HEADER_BYTES_MAX;
        if is_beyond {
            self.0.is_beyond.store(true, Ordering::Relaxed);
        }
        !is_beyond
    }

    fn taken(&self, bytes: usize) {
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The body. The parser takes whatever is there before it looks at any of it: so never more than one piece is.
struct Pieces {
    sent: BodyDataStream,
    gauge: HeaderGauge,
    /// What was given out last was looked at.
    is_parsed: bool,
}

impl Stream for Pieces {
    type Item = Result<Bytes, axum::BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if !std::mem::replace(&mut self.is_parsed, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if !self.gauge.lets_on() {
            return Poll::Ready(Some(Err(HeaderTooLong.into())));
        }
        let next = Pin::new(&mut self.sent).poll_next(context);
        if let Poll::Ready(Some(Ok(piece))) = &next {
            self.gauge.taken(piece.len());
            self.is_parsed = false;
        }
        next.map_err(Into::into)
    }
}
