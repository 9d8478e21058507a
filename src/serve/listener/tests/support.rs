//! A server of a few routes on a real socket, clients that say whatever a test wants, and what an answer must look like.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::body::Bytes;
use axum::body::to_bytes;
use axum::extract::ConnectInfo;
use axum::extract::Request;
use axum::routing::get;
use axum::routing::post;
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::net::TcpStream;

use crate::serve::listener::BodyBytesMax;
use crate::serve::listener::server::Listening;
use crate::serve::listener::server::listen;
use crate::serve::listener::settings::ListenerSettings;

/// Nothing that is waited for here takes longer, or the test has failed.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
pub(super) const SHORT: Duration = Duration::from_millis(200);
pub(super) const BODY_BYTES_MAX: u64 = 1_000;

pub(super) async fn echo(request: Request) -> Result<Bytes, String> {
    to_bytes(request.into_body(), usize::MAX).await.map_err(|error| error.to_string())
}

pub(super) async fn large(request: Request) -> Result<Bytes, String> {
    request.extensions().get::<BodyBytesMax>().unwrap().raise(100 * BODY_BYTES_MAX);
    echo(request).await
}

/// Takes large bodies, which must come faster than others.
pub(super) async fn hurried(request: Request) -> Result<Bytes, String> {
    request.extensions().get::<BodyBytesMax>().unwrap().hurry(1_000_000);
    large(request).await
}

/// Pieces without end; `pieces` counts those that were asked for.
pub(super) fn endless(pieces: &Arc<AtomicUsize>) -> Body {
    let pieces = Arc::clone(pieces);
    Body::from_stream(stream::repeat_with(move || {
        pieces.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 16 * 1024]))
    }))
}

pub(super) fn first_piece() -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::iter([Ok(Bytes::from_static(b"first"))])
}

pub(super) fn routes(pieces: Arc<AtomicUsize>) -> Router {
    Router::new()
        .route("/ok", get(async || "ok"))
        .route("/echo", post(echo))
        .route("/large", post(large))
        .route("/hurried", post(hurried))
        .route("/peer", get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.to_string()))
        .route(
            "/slow",
            get(async || {
                tokio::time::sleep(2 * SHORT).await;
                "slow"
            }),
        )
        .route("/never", get(std::future::pending::<()>))
        .route("/endless", get(async move || endless(&pieces)))
        .route("/panic", get(async || -> String { panic!("on purpose") }))
        .route("/begun", get(async || Body::from_stream(first_piece().chain(stream::pending()))))
        .route("/pieces", get(async || Body::from_stream(first_piece().chain(first_piece()))))
        .route(
            "/panic-later",
            get(async || {
                let pieces = stream::iter(0..2).map(|number| {
                    assert_eq!(number, 0, "on purpose");
                    Ok::<_, Infallible>(Bytes::from_static(b"first"))
                });
                Body::from_stream(pieces)
            }),
        )
}

pub(super) async fn start(settings: ListenerSettings) -> Listening {
    start_counted(settings).await.0
}

pub(super) async fn start_counted(settings: ListenerSettings) -> (Listening, Arc<AtomicUsize>) {
    let pieces = Arc::new(AtomicUsize::new(0));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    (listen(listener, routes(Arc::clone(&pieces)), settings).unwrap(), pieces)
}

pub(super) fn strict() -> ListenerSettings {
    ListenerSettings {
        header_read_timeout: SHORT,
        body_bytes_max: BODY_BYTES_MAX,
        body_pause_max: SHORT,
        body_bytes_per_second_min: 1_000,
        idle_timeout: 2 * SHORT,
        write_timeout: SHORT,
        ..ListenerSettings::default()
    }
}

pub(super) fn patient() -> ListenerSettings {
    ListenerSettings { body_bytes_max: BODY_BYTES_MAX, ..ListenerSettings::default() }
}

pub(super) async fn patiently<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it hangs")
}

/// All that comes until the server closes; a reset counts as a close.
pub(super) async fn read_all(socket: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = patiently(socket.read(&mut buffer)).await {
        answer.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// What the server says to `bytes` until it closes.
pub(super) async fn say(address: SocketAddr, bytes: impl AsRef<[u8]>) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    // A server that has seen enough may close while this is still being written.
    let _ = patiently(socket.write_all(bytes.as_ref())).await;
    read_all(&mut socket).await
}

/// One answer with a content-length on a connection that stays open.
pub(super) async fn read_one(socket: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&answer).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            if body.len() >= length.parse::<usize>().unwrap() {
                return text;
            }
        }
        answer.push(patiently(socket.read_u8()).await.unwrap());
    }
}

pub(super) fn assert_envelope(answer: &str, status: u16, code: &str) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
    let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert_eq!(body["error"]["error_code"], code, "{answer}");
    assert_eq!(body["error"]["http_status"], status, "{answer}");
    assert!(head.contains("content-type: application/json"), "{answer}");
    assert_eq!(body["error"]["trace_id"].as_str().map(str::len), Some(32), "{answer}");
}

pub(super) async fn assert_alive(address: SocketAddr) {
    let answer = say(address, "GET /ok HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nok"), "{answer}");
}

pub(super) fn post_to(path: &str, headers: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n{body}")
}

pub(super) async fn until_none_is_open(server: &Listening) {
    patiently(async {
        while server.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
