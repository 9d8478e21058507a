//! One connection, from its first byte to its end: HTTP/1 or 2, its limits, its graceful end. Knows no routes.

use std::{
    convert::Infallible,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, HttpBody as _},
    extract::ConnectInfo,
    http::{HeaderValue, Method, Request, Response, StatusCode, Version, header, uri::Authority},
};
use futures_util::FutureExt as _;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{net::TcpStream, time::Instant};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{
    activity::Overdue,
    answer_body::AnswerBody,
    places::Seat,
    refusal,
    refusing_io::RefusingIo,
    request_body::{BodyBytesMax, RequestBody},
    settings::ListenerSettings,
    talk::Talk,
    timed_io::TimedIo,
};
use crate::{
    model::{
        envelope::{Envelope, ErrorCode},
        language::Language,
    },
    serve::answer::trace::RequestFacts,
};

/// An HTTP/2 connection shows this often that it is alive.
const HTTP2_PING: Duration = Duration::from_secs(30);
/// Bytes of one HTTP/2 answer that wait for a slow reader.
const HTTP2_SEND_BYTES_MAX: usize = 128 * 1024;
/// Beyond what is allowed, so much more is read: enough to say what is wrong in an envelope.
const HEAD_SLACK: usize = 2;
/// Hyper's own bound for the headers of a request.
const HTTP_HEADERS_MAX: u32 = 100;
/// No buffer of a connection is smaller: hyper's own bound.
const BUFFER_BYTES_MIN: usize = 8 * 1024;
/// A client that has left has asked for more than is answered yet, or just sent a line too much: what is nearly done ends in this time.
const LEAVING_GRACE: Duration = Duration::from_millis(250);
/// What a refused client still sends is thrown away for so long, and so much of it: closed at once, it would lose the answer.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 1024 * 1024;

/// Who is at the other end.
pub(super) struct Caller {
    pub(super) socket: Arc<TcpStream>,
    pub(super) peer: SocketAddr,
    pub(super) seat: Seat,
}

/// What bounds a connection.
#[derive(Clone)]
pub(super) struct Bounds {
    pub(super) settings: Arc<ListenerSettings>,
    /// Each answer of HTTP/1 is the last one of its connection.
    pub(super) leaving: Arc<AtomicBool>,
    /// Ends the connection after the requests under way.
    pub(super) stopping: CancellationToken,
}

/// Serves one connection until its end.
pub(super) async fn serve_connection(caller: Caller, talk: Arc<Talk>, routes: Router, bounds: Bounds) {
    run(&caller, &talk, routes, &bounds).await;
    break_off(&caller.socket, &talk);
    if talk.is_refused() {
        linger(&caller.socket).await;
    }
}

/// Has a connection that is closed now end with an error, where its end would make a part of an answer look whole.
pub(super) fn break_off(socket: &TcpStream, talk: &Talk) {
    if talk.is_open_ended() {
        // A socket that does not take it is gone already.
        let _ = socket.set_zero_linger();
    }
}

async fn run(caller: &Caller, talk: &Arc<Talk>, routes: Router, bounds: &Bounds) {
    let Caller { socket, peer, seat } = caller;
    let (peer, seat) = (*peer, *seat);
    let Bounds { settings, stopping, .. } = bounds;
    let timed = TimedIo::new(Arc::clone(socket), Arc::clone(&talk.activity), settings.write_timeout);
    let io = TokioIo::new(RefusingIo::new(timed, Arc::clone(talk)));
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        answer(request, (peer, seat), Arc::clone(talk), routes.clone(), bounds.clone())
    });
    let builder = builder_of(settings);
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    // The reserve is nobody's to sit on.
    let idle_timeout = match seat {
        Seat::Usual => settings.idle_timeout,
        Seat::Reserve => settings.idle_timeout.min(settings.header_read_timeout),
    };
    let mut is_ending = false;
    let mut left_at: Option<Instant> = None;
    loop {
        // hyper hears of it by itself only while it has read nothing that it has not used yet.
        let has_left = left_at.is_some_and(|at| at.elapsed() >= LEAVING_GRACE);
        if has_left && talk.activity.is_http1() && talk.activity.is_busy() {
            tracing::debug!(%peer, "a client left while its request was under way");
            return;
        }
        let wait = match talk.activity.look(settings.header_read_timeout, idle_timeout) {
            Ok(wait) => wait,
            Err(Overdue::Head) => return say_too_slow(socket, talk),
            // Told once; then the connection has a moment to end by itself.
            Err(Overdue::Idle) if is_ending => return,
            Err(Overdue::Idle) => {
                connection.as_mut().graceful_shutdown();
                is_ending = true;
                settings.header_read_timeout
            }
        };
        let wait = wait.min(settings.write_timeout).min(left_at.map_or(Duration::MAX, |_| LEAVING_GRACE));
        // On HTTP/1 the socket itself tells who does not read, whatever the size of the pieces.
        if !talk.activity.is_http1() && talk.is_stalled(settings.write_timeout) {
            tracing::debug!(%peer, "an answer was not read for too long");
            return;
        }
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "a connection ended badly");
                }
                return;
            }
            () = stopping.cancelled(), if !is_ending => {
                connection.as_mut().graceful_shutdown();
                is_ending = true;
            }
            () = reading_closed(socket), if left_at.is_none() => left_at = Some(Instant::now()),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Waits until the other side sends no more, whatever of it is still to be read.
async fn reading_closed(socket: &TcpStream) {
    // What comes with this interest beside urgent bytes, which nobody sends: the end, and not that there is something to read.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    match socket.ready(tokio::io::Interest::PRIORITY).await {
        Ok(ready) if !ready.is_read_closed() => {}
        _ => return,
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = socket;
    std::future::pending::<()>().await;
}

fn builder_of(settings: &ListenerSettings) -> Builder<TokioExecutor> {
    let head_bytes = (settings.header_bytes_max as usize).saturating_add(settings.target_bytes_max as usize);
    let head_bytes = head_bytes.saturating_mul(HEAD_SLACK).max(BUFFER_BYTES_MIN);
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // Slow heads are watched by the connection's own clock, which tells idleness from slowness.
        .header_read_timeout(None)
        .max_buf_size(head_bytes);
    // Up to its own bound, the HTTP layer has room for headers without asking for memory at each request.
    if settings.headers_max > HTTP_HEADERS_MAX {
        builder.http1().max_headers(settings.headers_max as usize);
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(settings.http2_streams_max)
        .max_send_buf_size(HTTP2_SEND_BYTES_MAX)
        .keep_alive_interval(HTTP2_PING)
        .keep_alive_timeout(HTTP2_PING)
        .max_header_list_size(u32::try_from(head_bytes).unwrap_or(u32::MAX));
    builder
}

async fn answer(
    request: Request<Incoming>,
    (peer, seat): (SocketAddr, Seat),
    talk: Arc<Talk>,
    routes: Router,
    Bounds { settings, leaving, .. }: Bounds,
) -> Result<Response<AnswerBody>, Infallible> {
    let turn = talk.begin();
    let facts = RequestFacts::of(request.headers(), settings.language);
    let knows_lengths_only = request.version() == Version::HTTP_10 && request.method() != Method::HEAD;
    let mut answer = if let Err(envelope) = check_head(&request, &settings) {
        refuse(&talk, envelope, &facts)
    } else {
        let bytes_max = BodyBytesMax::new(settings.body_bytes_max, settings.body_bytes_per_second_min);
        let fault = Arc::new(OnceLock::new());
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(ConnectInfo(peer));
        parts.extensions.insert(seat);
        // Whatever answers, it names the same trace.
        parts.extensions.insert(facts.clone());
        parts.extensions.insert(bytes_max.clone());
        let body = RequestBody::new(body, &settings, bytes_max, Arc::clone(&fault));
        let handling = async move { routes.oneshot(Request::from_parts(parts, Body::new(body))).await };
        let handled = AssertUnwindSafe(handling).catch_unwind().await;
        match (fault.get(), handled) {
            (Some(fault), _) => refuse(&talk, fault.envelope(), &facts),
            (None, Ok(Ok(answer))) => answer,
            (None, Ok(Err(never))) => match never {},
            (None, Err(_)) => {
                tracing::error!(%peer, "a handler panicked");
                let fault = Envelope::new(ErrorCode::Internal, "a fault of this service; its log has more");
                refusal::answer(fault, &facts)
            }
        }
    };
    // A place of the reserve is for one request; and who leaves tells each client to go elsewhere.
    if talk.activity.is_http1() && (seat == Seat::Reserve || leaving.load(Ordering::Acquire)) {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let has_length =
        answer.headers().contains_key(header::CONTENT_LENGTH) || answer.body().size_hint().exact().is_some();
    if knows_lengths_only && !has_length {
        turn.ends_with_connection();
    }
    Ok(answer.map(|body| AnswerBody::new(body, turn)))
}

fn refuse(talk: &Talk, envelope: Envelope, facts: &RequestFacts) -> Response<Body> {
    // On HTTP/2 the rest of one request is nobody else's trouble: its stream alone ends.
    if !talk.activity.is_http1() {
        return refusal::answer(envelope, facts);
    }
    talk.refuse();
    refusal::last_answer(envelope, facts)
}

fn check_head(request: &Request<Incoming>, settings: &ListenerSettings) -> Result<(), Envelope> {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if target > settings.target_bytes_max as usize {
        let message = format!("the target has {target} bytes, {} are allowed", settings.target_bytes_max);
        return Err(refusal::invalid(StatusCode::URI_TOO_LONG, message));
    }
    check_host(request)?;
    let headers = request.headers();
    if headers.len() > settings.headers_max as usize {
        let message = format!("{} headers, {} are allowed", headers.len(), settings.headers_max);
        return Err(refusal::invalid(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message));
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes > settings.header_bytes_max as usize {
        let message = format!("{bytes} bytes of headers, {} are allowed", settings.header_bytes_max);
        return Err(refusal::invalid(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message));
    }
    Ok(())
}

/// HTTP/1.1 names the host it means, once (RFC 9112, 3.2): who names none, or two, is understood differently along the way.
fn check_host(request: &Request<Incoming>) -> Result<(), Envelope> {
    let refused = |message: String| Err(refusal::invalid(StatusCode::BAD_REQUEST, message));
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (host, others) = (hosts.next(), hosts.count());
    let Some(host) = host else {
        return if request.version() == Version::HTTP_11 {
            refused("the Host header is missing".to_owned())
        } else {
            Ok(())
        };
    };
    if others > 0 {
        return refused(format!("{} Host headers, one is allowed", others + 1));
    }
    // An empty one is what a request says whose target has no host either.
    let is_host = |host: &[u8]| !host.contains(&b'@') && Authority::try_from(host).is_ok();
    if host.is_empty() || is_host(host.as_bytes()) {
        Ok(())
    } else {
        refused("the Host header names no host".to_owned())
    }
}

/// A head that did not come in time is answered where that can be said in HTTP/1.
fn say_too_slow(socket: &TcpStream, talk: &Talk) {
    if talk.activity.is_http1() {
        let envelope = refusal::invalid(StatusCode::REQUEST_TIMEOUT, "the request's head was too slow");
        write_last(socket, envelope, talk.language);
        talk.refuse();
    }
}

/// Writes a last answer into a socket that nobody serves, if it takes it at once.
pub(super) fn write_last(socket: &TcpStream, envelope: Envelope, language: Language) {
    // The socket is given up whether or not this reached it.
    let _ = socket.try_write(&refusal::text(envelope, language));
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
}

/// Throws away what a refused client still sends, for a moment.
pub(super) async fn linger(socket: &TcpStream) {
    let reading = async {
        let (mut buffer, mut bytes) = ([0; 4 * 1024], 0);
        while bytes < LINGER_BYTES_MAX && socket.readable().await.is_ok() {
            match socket.try_read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => bytes += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    // Over the time is as good as at the end.
    let _ = tokio::time::timeout(LINGER, reading).await;
}
