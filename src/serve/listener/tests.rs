//! Abuse over raw sockets: whatever comes, a clear answer, bounded memory, and the service goes on.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::{Body, Bytes, to_bytes},
    extract::{ConnectInfo, Request},
    routing::{get, post},
};
use futures_util::{StreamExt as _, stream};
use proptest::prelude::*;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::{
    BodyBytesMax, Seat,
    server::{Closed, Listening, listen},
    settings::ListenerSettings,
};

/// Nothing that is waited for here takes longer, or the test has failed.
const PATIENCE: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(200);
const BODY_BYTES_MAX: u64 = 1_000;

async fn echo(request: Request) -> Result<Bytes, String> {
    to_bytes(request.into_body(), usize::MAX).await.map_err(|error| error.to_string())
}

async fn large(request: Request) -> Result<Bytes, String> {
    request.extensions().get::<BodyBytesMax>().unwrap().raise(100 * BODY_BYTES_MAX);
    echo(request).await
}

/// Takes large bodies, which must come faster than others.
async fn hurried(request: Request) -> Result<Bytes, String> {
    request.extensions().get::<BodyBytesMax>().unwrap().hurry(1_000_000);
    large(request).await
}

/// Pieces without end; `pieces` counts those that were asked for.
fn endless(pieces: &Arc<AtomicUsize>) -> Body {
    let pieces = Arc::clone(pieces);
    Body::from_stream(stream::repeat_with(move || {
        pieces.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 16 * 1024]))
    }))
}

fn first_piece() -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::iter([Ok(Bytes::from_static(b"first"))])
}

fn routes(pieces: Arc<AtomicUsize>) -> Router {
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

async fn start(settings: ListenerSettings) -> Listening {
    start_counted(settings).await.0
}

async fn start_counted(settings: ListenerSettings) -> (Listening, Arc<AtomicUsize>) {
    let pieces = Arc::new(AtomicUsize::new(0));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    (listen(listener, routes(Arc::clone(&pieces)), settings).unwrap(), pieces)
}

fn strict() -> ListenerSettings {
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

fn patient() -> ListenerSettings {
    ListenerSettings { body_bytes_max: BODY_BYTES_MAX, ..ListenerSettings::default() }
}

async fn patiently<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it hangs")
}

/// All that comes until the server closes; a reset counts as a close.
async fn read_all(socket: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = patiently(socket.read(&mut buffer)).await {
        answer.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// What the server says to `bytes` until it closes.
async fn say(address: SocketAddr, bytes: impl AsRef<[u8]>) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    // A server that has seen enough may close while this is still being written.
    let _ = patiently(socket.write_all(bytes.as_ref())).await;
    read_all(&mut socket).await
}

/// One answer with a content-length on a connection that stays open.
async fn read_one(socket: &mut TcpStream) -> String {
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

fn assert_envelope(answer: &str, status: u16, code: &str) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
    let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert_eq!(body["error"]["error_code"], code, "{answer}");
    assert_eq!(body["error"]["http_status"], status, "{answer}");
    assert!(head.contains("content-type: application/json"), "{answer}");
    assert_eq!(body["error"]["trace_id"].as_str().map(str::len), Some(32), "{answer}");
}

async fn assert_alive(address: SocketAddr) {
    let answer = say(address, "GET /ok HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nok"), "{answer}");
}

fn post_to(path: &str, headers: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n{body}")
}

#[tokio::test]
async fn what_is_no_request_is_answered_in_an_envelope() {
    let server = start(patient()).await;
    let long = |bytes| "a".repeat(bytes);
    let many = |count| (0..count).fold(String::new(), |text, number| text + &format!("h{number}: x\r\n"));
    let heads = [
        (400, "GARBAGE\r\n\r\n".to_owned()),
        (400, "\u{1}\u{2}\u{3}\u{4}\r\n\r\n".to_owned()),
        (400, "GET / HTTP/9.9\r\n\r\n".to_owned()),
        (400, "GET / FTP/1.1\r\n\r\n".to_owned()),
        (400, "G@T / HTTP/1.1\r\nhost: x\r\n\r\n".to_owned()),
        (400, "GET /\0 HTTP/1.1\r\nhost: x\r\n\r\n".to_owned()),
        (400, "GET / HTTP/1.1\r\nno colon\r\n\r\n".to_owned()),
        (400, "GET / HTTP/1.1\r\nspace : x\r\n\r\n".to_owned()),
        (400, post_to("/echo", "content-length: 5\r\ncontent-length: 6\r\n", "hello!")),
        (400, post_to("/echo", "content-length: -1\r\n", "")),
        (400, post_to("/echo", "content-length: +5\r\n", "hello")),
        (400, post_to("/echo", "content-length: 99999999999999999999999\r\n", "")),
        (400, post_to("/echo", "transfer-encoding: gzip\r\n", "hello")),
        (400, post_to("/echo", "transfer-encoding: chunked, gzip\r\n", "0\r\n\r\n")),
        (400, "POST /echo HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned()),
        (414, format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", long(10_000))),
        (414, format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", long(80_000))),
        (414, format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", long(400_000))),
        (431, format!("GET /ok HTTP/1.1\r\nhost: x\r\n{}\r\n", many(150))),
        (431, format!("GET /ok HTTP/1.1\r\nhost: x\r\n{}\r\n", many(5_000))),
        (431, format!("GET /ok HTTP/1.1\r\nhost: x\r\nlarge: {}\r\n\r\n", long(70_000))),
        (431, format!("GET /ok HTTP/1.1\r\nhost: x\r\nlarge: {}\r\n\r\n", long(400_000))),
    ];
    for (status, head) in heads {
        let answer = say(server.address(), &head).await;
        println!("{}", head.chars().take(80).collect::<String>());
        assert_envelope(&answer, status, "INVALID_REQUEST");
    }
    assert_alive(server.address()).await;
}

/// RFC 9112, 3.2: whoever is between here and the client must not take the request for another host's.
#[tokio::test]
async fn a_host_is_named_once() {
    let server = start(ListenerSettings::default()).await;
    for (version, hosts, status) in [
        ("1.1", &["x"][..], 200),
        ("1.1", &["my_service:8080"], 200),
        ("1.1", &["[::1]:8080"], 200),
        ("1.1", &[""], 200),
        ("1.1", &[], 400),
        ("1.1", &["x", "x"], 400),
        ("1.1", &["x", "y"], 400),
        ("1.1", &["a b"], 400),
        ("1.1", &["root@x"], 400),
        ("1.1", &["x/y"], 400),
        ("1.0", &[], 200),
        ("1.0", &["x"], 200),
        ("1.0", &["x", "y"], 400),
    ] {
        let hosts = hosts.iter().fold(String::new(), |hosts, host| hosts + "host: " + host + "\r\n");
        let answer = say(server.address(), format!("GET /ok HTTP/{version}\r\n{hosts}connection: close\r\n\r\n")).await;
        if status == 400 {
            assert_envelope(&answer.replacen("HTTP/1.0", "HTTP/1.1", 1), 400, "INVALID_REQUEST");
        } else {
            assert!(answer.contains(" 200 OK\r\n"), "{hosts}: {answer}");
        }
    }
    assert_alive(server.address()).await;
}

#[tokio::test]
async fn odd_targets_and_methods_get_an_answer() {
    let server = start(patient()).await;
    let targets =
        ["//", "//ok", "/../..", "/./ok", "/%00", "/%", "/%zz", "/%ff%fe", "/ok?%zz", "http://x/nowhere", "*"];
    for target in targets {
        let answer =
            say(server.address(), format!("GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await;
        let found = answer.starts_with("HTTP/1.1 404 ") || answer.starts_with("HTTP/1.1 400 ");
        assert!(found || (target == "/ok?%zz" && answer.ends_with("ok")), "{target}: {answer}");
    }
    for line in ["OPTIONS * HTTP/1.1", "CONNECT x:1 HTTP/1.1", "BREW /ok HTTP/1.1", "GET http://x/ok HTTP/1.1"] {
        let answer = say(server.address(), format!("{line}\r\nhost: x\r\nconnection: close\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 ") && !answer.starts_with("HTTP/1.1 5"), "{line}: {answer}");
    }
    assert_alive(server.address()).await;
}

/// Says when it is dropped.
struct Dropped(tokio::sync::mpsc::UnboundedSender<&'static str>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send("dropped");
    }
}

/// Whatever else was sent must not hide that nobody is there any more.
#[tokio::test]
async fn a_client_that_leaves_is_noticed_whatever_it_sent_behind_its_request() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let before = {
        let tell = tell.clone();
        async move || -> String {
            let _held = Dropped(tell.clone());
            let _ = tell.send("begun");
            std::future::pending().await
        }
    };
    let within = async move || {
        let held = Dropped(tell.clone());
        let _ = tell.send("begun");
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"first"))]);
        Body::from_stream(first.chain(stream::pending()).inspect(move |_| {
            let _ = &held;
        }))
    };
    let routes = Router::new().route("/before", post(before)).route("/within", post(within));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let server = listen(listener, routes, patient()).unwrap();
    for path in ["/before", "/within"] {
        for behind in ["", "\r\n", "GET /before HTTP/1.1\r\nhost: x\r\n\r\n", "\0"] {
            for resets in [false, true] {
                let mut socket = TcpStream::connect(server.address()).await.unwrap();
                let request = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi{behind}");
                socket.write_all(request.as_bytes()).await.unwrap();
                assert_eq!(patiently(told.recv()).await, Some("begun"));
                if resets {
                    socket.set_zero_linger().unwrap();
                }
                drop(socket);
                assert_eq!(patiently(told.recv()).await, Some("dropped"), "{path} {behind:?} {resets}");
            }
        }
    }
}

#[tokio::test]
async fn a_body_is_framed_in_one_way_only() {
    let server = start(patient()).await;
    // A proxy that believed the length would take what follows for the body: the connection ends instead.
    for headers in
        ["content-length: 50\r\ntransfer-encoding: chunked\r\n", "transfer-encoding: chunked\r\ncontent-length: 50\r\n"]
    {
        let first = format!("POST /echo HTTP/1.1\r\nhost: x\r\n{headers}\r\n2\r\nhi\r\n0\r\n\r\n");
        let both = format!("{first}GET /peer HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let answer = say(server.address(), both).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "what follows may not be a request: {answer}");
        assert!(answer.contains("connection: close\r\n") && answer.ends_with("\r\n\r\nhi"), "{answer}");
    }
    let answer = say(server.address(), post_to("/echo", "content-length: 2\r\ncontent-length: 2\r\n", "hi")).await;
    assert!(answer.ends_with("hi") || answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[tokio::test]
async fn bodies_have_their_bounds() {
    let server = start(patient()).await;
    let (fits, over) = ("a".repeat(1_000), "a".repeat(1_001));
    let sized = |body: &str| format!("content-length: {}\r\n", body.len());
    let chunked = |body: &str| format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    for path in ["/echo", "/large"] {
        let answer = say(server.address(), post_to(path, &sized(&fits), &fits)).await;
        assert!(answer.ends_with(&fits), "{answer}");
        let answer = say(server.address(), post_to(path, &sized(&over), &over)).await;
        if path == "/large" {
            assert!(answer.ends_with(&over), "{answer}");
            continue;
        }
        assert_envelope(&answer, 413, "INVALID_REQUEST");
        let answer = say(server.address(), post_to(path, "transfer-encoding: chunked\r\n", &chunked(&over))).await;
        assert_envelope(&answer, 413, "INVALID_REQUEST");
        // Who says its trace and its language is answered with them.
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let own = format!("accept-language: ko\r\ntraceparent: 00-{trace}-b7ad6b7169203331-01\r\n{}", sized(&over));
        let answer = say(server.address(), post_to(path, &own, &over)).await;
        assert!(answer.contains(trace) && answer.contains("요청이 올바르지 않습니다."), "{answer}");
    }
    let announced = post_to("/echo", "content-length: 1000000000000\r\nexpect: 100-continue\r\n", "");
    let answer = say(server.address(), announced).await;
    assert_envelope(&answer, 413, "INVALID_REQUEST");
    let garbage =
        ["zz\r\nhello\r\n0\r\n\r\n", "-1\r\n", "ffffffffffffffffff\r\n", "2\r\nhello\r\n0\r\n\r\n", "\u{0}\u{1}\r\n"];
    for body in garbage {
        let answer = say(server.address(), post_to("/echo", "transfer-encoding: chunked\r\n", body)).await;
        assert_envelope(&answer, 400, "INVALID_REQUEST");
    }
    assert_alive(server.address()).await;
}

#[tokio::test]
async fn a_client_that_asks_first_is_told_to_go_on() {
    let server = start(patient()).await;
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    let head = post_to("/echo", "content-length: 5\r\nexpect: 100-continue\r\n", "");
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0; 25];
    patiently(socket.read_exact(&mut go_on)).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    socket.write_all(b"hello").await.unwrap();
    let answer = read_all(&mut socket).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hello"), "{answer}");
}

#[tokio::test]
async fn slow_senders_are_told_so() {
    let server = start(strict()).await;
    let with_length = post_to("/echo", "content-length: 500\r\n", "half");
    for bytes in ["", "GET", "GET /ok HTTP/1.1\r\nhost: x\r\n", with_length.as_str()] {
        assert_envelope(&say(server.address(), bytes).await, 408, "INVALID_REQUEST");
    }
    // Never a pause, and still too slow: in the head, in the body.
    // Where it must come faster still, the same.
    let large = post_to("/hurried", "content-length: 90000\r\n", &"a".repeat(20_000));
    let small = post_to("/echo", "content-length: 900\r\n", "");
    for head in ["GET /ok HTTP/1.1\r\nlarge: ".to_owned(), small, large] {
        let mut socket = TcpStream::connect(server.address()).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let (mut reading, mut writing) = socket.split();
        writing.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 16 * 1024];
        let count = loop {
            tokio::select! {
                read = reading.read(&mut answer) => break read.unwrap(),
                () = tokio::time::sleep(SHORT / 8) => drop(writing.write_all(b"a").await),
            }
        };
        let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
        assert_envelope(&answer, 408, "INVALID_REQUEST");
        assert_eq!(answer.contains("slower than 1000000 bytes a second"), head.contains("/hurried"), "{answer}");
    }
    assert_alive(server.address()).await;
}

#[tokio::test]
async fn half_bodies_and_early_ends_leave_nothing_behind() {
    let server = start(patient()).await;
    for bytes in
        ["G", "GET /ok HTTP/1.1\r\n", &post_to("/echo", "content-length: 500\r\n", "half"), "PRI * HTTP/2.0\r\n"]
    {
        let mut socket = TcpStream::connect(server.address()).await.unwrap();
        socket.write_all(bytes.as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        let answer = read_all(&mut socket).await;
        assert!(!answer.starts_with("HTTP/1.1 2"), "{bytes:?}: {answer}");
    }
    until_none_is_open(&server).await;
}

async fn until_none_is_open(server: &Listening) {
    patiently(async {
        while server.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order_and_idle_connections_end() {
    let server = start(strict()).await;
    let request = |path| format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    let answer = say(server.address(), request("/slow") + &request("/ok") + &request("/peer")).await;
    let [slow, ok, peer] = ["\r\n\r\nslow", "\r\n\r\nok", "\r\n\r\n127.0.0.1:"].map(|body| answer.find(body).unwrap());
    assert!(slow < ok && ok < peer, "{answer}");
    let answer = say(server.address(), request("/ok") + "GARBAGE\r\n\r\n").await;
    let (first, second) = answer.split_once("\r\n\r\nok").unwrap();
    assert!(first.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(second.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[tokio::test]
async fn an_answer_that_looks_like_a_refusal_is_left_alone() {
    let server = start(patient()).await;
    let body = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let answer = say(server.address(), post_to("/echo", &format!("content-length: {}\r\n", body.len()), body)).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(body), "{answer}");
}

#[tokio::test]
async fn a_panic_is_one_requests_trouble() {
    let server = start(patient()).await;
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    socket.write_all(b"GET /panic HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert_envelope(&read_one(&mut socket).await, 500, "INTERNAL");
    socket.write_all(b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(read_one(&mut socket).await.ends_with("ok"), "the connection goes on");
    let answer = say(server.address(), "GET /panic-later HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(!answer.ends_with("0\r\n\r\n"), "it must not look whole: {answer}");
    assert_alive(server.address()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_connections_is_told_and_those_inside_are_served() {
    const CAP: usize = 100;
    const FLOOD: usize = 5_000;
    let server = start(ListenerSettings { connections_max: 100, reserve_max: 0, ..patient() }).await;
    let mut inside = Vec::new();
    for _ in 0..CAP {
        let mut socket = TcpStream::connect(server.address()).await.unwrap();
        socket.write_all(b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert!(read_one(&mut socket).await.ends_with("ok"));
        inside.push(socket);
    }
    let address = server.address();
    let flood = stream::iter(0..FLOOD).map(|_| tokio::spawn(say(address, ""))).buffer_unordered(200);
    let mut flood = std::pin::pin!(flood);
    let (mut told, mut seen) = (0, 0);
    while let Some(answer) = flood.next().await {
        let answer = answer.unwrap();
        if !answer.is_empty() {
            assert_envelope(&answer, 503, "LOAD_SHED");
            assert!(answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
            told += 1;
        }
        seen += 1;
        // Of those that are turned away 64 are waited for; one a worker may be over and not counted out yet.
        assert!(server.connections() <= CAP + 64 + 2, "{} connections are held", server.connections());
        if seen % 500 == 0 {
            let socket = &mut inside[seen / 500];
            socket.write_all(b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            assert!(read_one(socket).await.ends_with("ok"));
        }
    }
    assert!(told > FLOOD * 9 / 10, "only {told} of {FLOOD} were told");
    drop(inside);
    until_none_is_open(&server).await;
    assert_alive(address).await;
}

#[tokio::test]
async fn the_reserve_is_for_one_request_and_says_so_to_its_route() {
    let seen = get(async |Extension(seat): Extension<Seat>| format!("{seat:?}"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let settings = ListenerSettings { connections_max: 1, reserve_max: 1, ..patient() };
    let server = listen(listener, Router::new().route("/seat", seen), settings).unwrap();
    let ask = b"GET /seat HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut usual = TcpStream::connect(server.address()).await.unwrap();
    for _ in 0..2 {
        usual.write_all(ask).await.unwrap();
        assert!(read_one(&mut usual).await.ends_with("Usual"), "a usual place keeps its connection");
    }
    let mut reserve = TcpStream::connect(server.address()).await.unwrap();
    reserve.write_all(b"GET").await.unwrap();
    patiently(async {
        while server.connections() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_envelope(&say(server.address(), "").await, 503, "LOAD_SHED");
    reserve.write_all(&ask[3..]).await.unwrap();
    let answer = read_all(&mut reserve).await;
    assert!(answer.contains("connection: close\r\n") && answer.ends_with("Reserve"), "{answer}");
}

#[tokio::test]
async fn who_was_taken_in_is_still_answered_by_one_that_leaves() {
    let mut server = start(patient()).await;
    let mut kept = TcpStream::connect(server.address()).await.unwrap();
    kept.write_all(b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(!read_one(&mut kept).await.contains("connection: close"));
    let mut fresh = TcpStream::connect(server.address()).await.unwrap();
    patiently(async {
        while server.connections() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let listener = server.stop_accepting().await.unwrap();
    for socket in [&mut kept, &mut fresh] {
        socket.write_all(b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let answer = read_all(socket).await;
        assert!(answer.contains("connection: close\r\n") && answer.ends_with("ok"), "{answer}");
    }
    drop(listener);
}

#[tokio::test]
async fn one_address_has_its_own_cap() {
    let server = start(ListenerSettings { connections_per_address_max: Some(1), ..patient() }).await;
    let mut first = TcpStream::connect(server.address()).await.unwrap();
    first.write_all(b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(read_one(&mut first).await.ends_with("ok"));
    assert_envelope(&say(server.address(), "GET /ok HTTP/1.1\r\nhost: x\r\n\r\n").await, 503, "LOAD_SHED");
    drop(first);
    until_none_is_open(&server).await;
    assert_alive(server.address()).await;
}

#[tokio::test]
async fn a_reader_that_never_reads_is_cut() {
    let (server, pieces) = start_counted(strict()).await;
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    socket.write_all(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    patiently(async {
        while pieces.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    until_none_is_open(&server).await;
    // The kernel's own buffers are megabytes at most.
    assert!(pieces.load(Ordering::Relaxed) < 4_000, "{} pieces were made for nobody", pieces.load(Ordering::Relaxed));
}

fn http2_frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

#[tokio::test]
async fn an_http2_answer_that_nobody_takes_is_cut() {
    let (server, pieces) = start_counted(ListenerSettings { write_timeout: SHORT, ..patient() }).await;
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    let head = [&[0x82, 0x86, 0x04, 8], b"/endless".as_slice(), &[0x41, 1, b'x']].concat();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(http2_frame(4, 0, 0, &[]));
    bytes.extend(http2_frame(1, 5, 1, &head));
    socket.write_all(&bytes).await.unwrap();
    // The socket is read, but the window is never opened again.
    let answer = read_all(&mut socket).await;
    assert!(answer.len() > 60_000, "the window was not used: {} bytes", answer.len());
    until_none_is_open(&server).await;
    assert!((1..200).contains(&pieces.load(Ordering::Relaxed)));
}

#[tokio::test]
async fn http2_has_the_same_bounds() {
    let server = start(patient()).await;
    let client = reqwest::Client::builder().http2_prior_knowledge().no_proxy().build().unwrap();
    let url = |path: &str| format!("http://{}{path}", server.address());
    let ok = client.get(url("/ok")).send().await.unwrap();
    assert_eq!(ok.version(), reqwest::Version::HTTP_2);
    assert_eq!(ok.text().await.unwrap(), "ok");
    let refusals = [
        (client.post(url("/echo")).body("a".repeat(1_001)), 413, "INVALID_REQUEST"),
        (client.get(url(&format!("/{}", "a".repeat(10_000)))), 414, "INVALID_REQUEST"),
        (client.get(url("/ok")).header("large", "a".repeat(70_000)), 431, "INVALID_REQUEST"),
        (client.get(url("/panic")), 500, "INTERNAL"),
    ];
    for (request, status, code) in refusals {
        let answer = patiently(request.send()).await.unwrap();
        assert_eq!(answer.status().as_u16(), status);
        let body: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        assert_eq!(body["error"]["error_code"], code);
    }
    assert!(client.get(url("/ok")).send().await.unwrap().status().is_success());
}

#[tokio::test]
async fn http2_garbage_ends_that_connection_only() {
    let server = start(strict()).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    let garbage: [&[u8]; 4] = [b"", &[255; 64], &http2_frame(1, 5, 2, &[255; 20]), &http2_frame(4, 1, 9, &[1, 2, 3])];
    for bytes in garbage {
        say(server.address(), [preface, bytes].concat()).await;
    }
    assert_alive(server.address()).await;
}

#[tokio::test]
async fn closing_waits_for_requests_and_cuts_after_grace() {
    let server = start(patient()).await;
    let address = server.address();
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    read_one(&mut idle).await;
    let slow = tokio::spawn(say(address, "GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"));
    tokio::time::sleep(SHORT / 4).await;
    let closed = patiently(server.close(PATIENCE)).await;
    assert_eq!(closed, Closed { cut: 0 });
    assert!(slow.await.unwrap().ends_with("slow"));
    assert_eq!(read_all(&mut idle).await, "");
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");

    let server = start(patient()).await;
    let never = tokio::spawn(say(server.address(), "GET /never HTTP/1.1\r\nhost: x\r\n\r\n"));
    tokio::time::sleep(SHORT).await;
    assert_eq!(patiently(server.close(SHORT)).await, Closed { cut: 1 });
    assert_eq!(never.await.unwrap(), "");
}

#[tokio::test]
async fn the_listening_socket_can_be_handed_on() {
    let mut server = start(patient()).await;
    let listener = server.stop_accepting().await.unwrap();
    assert!(server.stop_accepting().await.is_none(), "there is one");
    let waiting = tokio::spawn(say(server.address(), "GET /ok HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"));
    tokio::time::sleep(SHORT / 4).await;
    let next = listen(listener, routes(Arc::default()), patient()).unwrap();
    assert!(waiting.await.unwrap().ends_with("ok"));
    assert_eq!(patiently(server.close(SHORT)).await, Closed { cut: 0 });
    assert_alive(next.address()).await;
}

/// Bytes that get past the first line now and then.
fn some_bytes() -> impl Strategy<Value = Vec<u8>> {
    let fragments = prop::sample::select(vec![
        "GET / HTTP/1.1\r\n",
        "POST /echo HTTP/1.1\r\n",
        "HEAD /ok HTTP/1.0\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "host: x\r\n",
        "content-length: 7\r\n",
        "transfer-encoding: chunked\r\n",
        "expect: 100-continue\r\n",
        "connection: upgrade\r\nupgrade: h2c\r\n",
        "\r\n",
        "5\r\nhello\r\n",
        "0\r\n\r\n",
    ]);
    let piece = prop_oneof![
        3 => fragments.prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..64),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

#[test]
fn arbitrary_bytes_neither_hang_nor_end_the_server() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = runtime.block_on(start(strict()));
    proptest!(ProptestConfig::with_cases(200), |(bytes in some_bytes())| {
        runtime.block_on(async {
            let mut socket = TcpStream::connect(server.address()).await.unwrap();
            // Either side may have had enough.
            let _ = patiently(socket.write_all(&bytes)).await;
            let _ = socket.shutdown().await;
            read_all(&mut socket).await;
            assert_alive(server.address()).await;
        });
    });
    runtime.block_on(until_none_is_open(&server));
}
