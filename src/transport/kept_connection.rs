//! A server that closes a connection it was keeping, in the moment it is used again, has not taken the request that was on its way: it is
//! sent once more, in the same attempt and with the same idempotency key. What tells that apart from a server that died at work: no
//! connection was made for this request, no answer came, and the end came within a second. A request on a connection of its own is never
//! sent twice. Half the head of an answer looks like none from here: a server that died while it wrote that is asked again.

use std::{
    cell::Cell,
    error::Error,
    io::ErrorKind,
    task::{Context, Poll},
    time::Duration,
};

use reqwest::{Client, Request, Response};
use tokio::{task_local, time::Instant};
use tower_layer::Layer;
use tower_service::Service;

/// The end of a kept connection is on its way already when the request is sent: a round trip, and room for one that was lost.
pub(super) const CLOSE_RACE_MAX: Duration = Duration::from_secs(1);
/// A pool may keep several connections that end in the same moment.
const RESENDS_MAX: u32 = 2;

task_local! {
    /// Whether a connection was asked for while this request was sent.
    static CONNECTS: Cell<bool>;
}

/// Notes that a connection is made for the request under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct NotesConnecting;

impl<S> Layer<S> for NotesConnecting {
    type Service = Noting<S>;

    fn layer(&self, inner: S) -> Noting<S> {
        Noting(inner)
    }
}

/// What makes the connections.
#[derive(Debug, Clone)]
pub(super) struct Noting<S>(S);

impl<R, S: Service<R>> Service<R> for Noting<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        // Outside of any request of ours nobody asks.
        let _ = CONNECTS.try_with(|connects| connects.set(true));
        self.0.call(request)
    }
}

/// Sends `first`, and what `again` makes of it where the kept connection that it went out on was being closed.
pub(super) async fn execute(
    http: &Client,
    first: Request,
    again: impl Fn() -> Option<Request>,
) -> Result<Response, reqwest::Error> {
    let mut request = first;
    let begun = Instant::now();
    let mut resends = 0;
    loop {
        let sent = async {
            let answered = http.execute(request).await;
            (answered, CONNECTS.with(Cell::get))
        };
        let (answered, connects) = CONNECTS.scope(Cell::new(false), sent).await;
        let error = match answered {
            Err(error) if !connects && resends < RESENDS_MAX && is_close(&error) => error,
            other => return other,
        };
        match again().filter(|_| begun.elapsed() <= CLOSE_RACE_MAX) {
            Some(next) => request = next,
            None => return Err(error),
        }
        resends += 1;
        tracing::debug!(resends, "a kept connection was closed as it was used: the request is sent again");
    }
}

/// Whether the connection ended before an answer came.
pub(super) fn is_close(error: &reqwest::Error) -> bool {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if inner.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message) {
            return true;
        }
        if let Some(io) = inner.downcast_ref::<std::io::Error>()
            && matches!(io.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted)
        {
            return true;
        }
        cause = inner.source();
    }
    false
}
