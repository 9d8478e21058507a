//! Answers: panics, readers that never read, HTTP/2.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::support::{
    SHORT, assert_alive, assert_envelope, patient, patiently, post_to, read_all, read_one, say, start, start_counted,
    strict, until_none_is_open,
};
use crate::serve::listener::settings::ListenerSettings;

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
