//! Heads and what stands in their place: whatever comes, a clear answer, and the service goes on.

use std::convert::Infallible;
use std::net::Ipv4Addr;

use axum::Router;
use axum::body::Body;
use axum::body::Bytes;
use axum::routing::post;
use futures_util::StreamExt as _;
use futures_util::stream;
use proptest::prelude::*;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::net::TcpStream;

use super::support::{
    assert_alive, assert_envelope, patient, patiently, post_to, read_all, say, start, strict, until_none_is_open,
};
use crate::serve::listener::server::listen;
use crate::serve::listener::settings::ListenerSettings;

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
