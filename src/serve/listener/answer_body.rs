//! An answer's body on its way out: in pieces small enough to see whether the client takes them; a panic in it ends the answer, never the
//! process. Changes no byte.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{
    BoxError,
    body::{Body, Bytes, HttpBody},
};
use hyper::body::{Frame, SizeHint};

use super::talk::Turn;

/// The largest piece that is handed out at once.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// The body.
pub(super) struct AnswerBody {
    body: Body,
    rest: Bytes,
    turn: Turn,
    /// What it ended with, until that is told.
    broken: Option<BoxError>,
}

impl AnswerBody {
    pub(super) fn new(body: Body, turn: Turn) -> Self {
        Self { body, rest: Bytes::new(), turn, broken: None }
    }

    /// An error is told one look later: the head and what was handed out before it then go out first, where they would be thrown away.
    fn break_off(&mut self, error: BoxError, context: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.broken = Some(error);
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn next_piece(&mut self) -> Frame<Bytes> {
        self.turn.has_handed_out();
        Frame::data(self.rest.split_to(self.rest.len().min(PIECE_BYTES_MAX)))
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.turn.is_wanted();
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(self.next_piece())));
        }
        if let Some(error) = self.broken.take() {
            return Poll::Ready(Some(Err(error)));
        }
        // The body is not polled again after a panic: the error ends it.
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut self.body).poll_frame(context)));
        let Ok(polled) = polled else {
            tracing::error!("an answer's body panicked");
            return self.break_off("the answer broke off".into(), context);
        };
        Poll::Ready(match ready!(polled) {
            Some(Ok(frame)) => Some(Ok(match frame.into_data() {
                Ok(data) => {
                    self.rest = data;
                    self.next_piece()
                }
                Err(trailers) => trailers,
            })),
            Some(Err(error)) => return self.break_off(error.into(), context),
            None => {
                self.turn.is_whole();
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, inner) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}
