//! Bodies: framed in one way, within their bounds in bytes and time, and gone when they break off.

use tokio::io::AsyncReadExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::support::{
    SHORT, assert_alive, assert_envelope, patient, patiently, post_to, read_all, say, start, strict, until_none_is_open,
};

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
