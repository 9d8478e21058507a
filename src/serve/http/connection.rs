//! One connection, from its first byte to its end: HTTP/1 or 2, its limits, its graceful end. Knows no routes.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, HttpBody},
    http::Request,
};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{
    activity::{Activity, Overdue, UnderWay},
    timed_io::TimedIo,
};
use crate::{model::envelope::ErrorCode, serve::answer::failure::Failure, settings::serve::ServeSettings};

/// Requests at once on one HTTP/2 connection.
const HTTP2_STREAMS_MAX: u32 = 256;
/// An HTTP/2 connection shows this often that it is alive.
const HTTP2_PING: Duration = Duration::from_secs(30);
/// Beyond what is allowed, so much more is read: enough to say what is wrong in an envelope.
const HEAD_SLACK: usize = 2;
/// No buffer of a connection is smaller: hyper's own bound.
const BUFFER_BYTES_MIN: usize = 8 * 1024;

/// Which of a full service's places a connection has; in the extensions of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seat {
    /// One for everybody.
    Usual,
    /// One of the reserve: only for health, queries and operator acts.
    Reserve,
}

/// Serves one connection until its end. `stopping` ends it after the requests under way.
pub async fn serve_connection(
    socket: TcpStream,
    routes: Router,
    settings: Arc<ServeSettings>,
    seat: Seat,
    stopping: CancellationToken,
) {
    let activity = Activity::open();
    let socket = Arc::new(socket);
    let peer = socket.peer_addr().ok();
    let io = TokioIo::new(TimedIo::new(Arc::clone(&socket), Arc::clone(&activity), settings.write_timeout));
    let counted = Arc::clone(&activity);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let under_way = counted.begin();
        request.extensions_mut().insert(seat);
        if let Some(peer) = peer {
            request.extensions_mut().insert(axum::extract::ConnectInfo(peer));
        }
        let routes = routes.clone();
        async move {
            let answer = routes.oneshot(request.map(Body::new)).await?;
            Ok::<_, Infallible>(answer.map(|body| AnswerBody { body, under_way }))
        }
    });
    let builder = builder_of(&settings);
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let mut is_ending = false;
    loop {
        let wait = match activity.look(settings.header_timeout, settings.idle_timeout) {
            Ok(wait) => wait,
            Err(Overdue::Head) => {
                say_too_slow(&socket, &activity);
                return;
            }
            // Told once; then the connection has a moment to end by itself.
            Err(Overdue::Idle) if is_ending => return,
            Err(Overdue::Idle) => {
                connection.as_mut().graceful_shutdown();
                is_ending = true;
                settings.header_timeout
            }
        };
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended badly");
                }
                return;
            }
            () = stopping.cancelled(), if !is_ending => {
                connection.as_mut().graceful_shutdown();
                is_ending = true;
            }
            () = tokio::time::sleep(wait) => {}
        }
    }
}

fn builder_of(settings: &ServeSettings) -> Builder<TokioExecutor> {
    let header_bytes = settings.header_bytes_max as usize;
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // Slow heads are watched by the connection's own clock, which tells idleness from slowness.
        .header_read_timeout(None)
        .max_headers((settings.headers_max as usize).saturating_mul(HEAD_SLACK))
        .max_buf_size(header_bytes.saturating_mul(HEAD_SLACK).max(BUFFER_BYTES_MIN));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .keep_alive_interval(HTTP2_PING)
        .keep_alive_timeout(HTTP2_PING)
        .max_header_list_size(u32::try_from(header_bytes.saturating_mul(HEAD_SLACK)).unwrap_or(u32::MAX));
    builder
}

/// A head that did not come in time is answered where that can be said in HTTP/1.
fn say_too_slow(socket: &TcpStream, activity: &Activity) {
    if activity.is_http1() {
        let status = axum::http::StatusCode::REQUEST_TIMEOUT;
        write_last(socket, &Failure::with_status(ErrorCode::InvalidRequest, status, "the request's head was too slow"));
    }
}

/// Writes a last answer into a socket that nobody serves, if it takes it at once.
pub(super) fn write_last(socket: &TcpStream, failure: &Failure) {
    let status = axum::http::StatusCode::from_u16(failure.envelope.http_status).unwrap_or_default();
    let body = failure.envelope.to_wire().to_string();
    let retry = failure.envelope.retry_after.map(|seconds| format!("retry-after: {:.0}\r\n", seconds.ceil()));
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{}connection: close\r\n\r\n{body}",
        body.len(),
        retry.unwrap_or_default(),
    );
    // The socket is given up whether or not this reached it.
    let _ = socket.try_write(text.as_bytes());
}

/// A body that holds its request's place until it is out.
struct AnswerBody {
    body: Body,
    #[allow(dead_code, reason = "held for its drop")]
    under_way: UnderWay,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
