//! Answers on their way out: the bytes of those that were built whole count until the connection has written them, so that clients who
//! do not read fill a room of a known size and no more. Changes no byte, and refuses nothing that was paid for.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{MatchedPath, Request, State},
    http::{HeaderName, Method},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use hyper::body::{Frame, SizeHint};

use crate::serve::{access::asker::Asker, answer_room::AnswerPlace, state::AppState};

/// An answer of so many bytes is not counted: its connection's own buffers hold as much, and connections have a cap of their own.
pub const UNCOUNTED_BYTES_MAX: usize = 64 * 1024;

/// Says that a run was asked for before.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Lets a request through and counts its answer; one that there is no room for is refused, if it can be asked for again at no cost.
pub async fn count_outgoing(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let is_question = matches!(*request.method(), Method::GET | Method::HEAD) || is_cancel(&request);
    let asker = Asker::default();
    request.extensions_mut().insert(asker.clone());
    let answer = next.run(request).await;
    // What comes in pieces of its own has no length, and is made as it is read.
    let bytes = answer.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
    if bytes <= UNCOUNTED_BYTES_MAX {
        return answer;
    }
    let room = if is_question || answer.headers().contains_key(REPLAYED) {
        match state.caps.answers.question(asker.name(), bytes) {
            Ok(room) => room,
            Err(failure) => return failure.into_response(),
        }
    } else {
        state.caps.answers.act(asker.name(), bytes)
    };
    answer.map(|body| Body::new(Counted { body, place: Arc::new(room) }))
}

/// What it did is done once, however often it is asked for.
fn is_cancel(request: &Request) -> bool {
    request.extensions().get::<MatchedPath>().is_some_and(|path| path.as_str() == "/v1/runs/{id}/cancel")
}

/// A body each piece of which keeps the room of the whole: pieces share one memory.
struct Counted {
    body: Body,
    place: Arc<AnswerPlace>,
}

struct Piece {
    bytes: Bytes,
    #[allow(dead_code, reason = "held for its drop")]
    place: Arc<AnswerPlace>,
}

/// A piece of an answer that holds its place until it is written.
pub fn held(bytes: Bytes, place: Arc<AnswerPlace>) -> Bytes {
    Bytes::from_owner(Piece { bytes, place })
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let hold = |bytes| held(bytes, Arc::clone(&self.place));
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(hold))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
