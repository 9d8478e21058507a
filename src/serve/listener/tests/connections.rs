//! Connections: floods, the reserve, caps of one address, and how a server leaves.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::Router;
use axum::routing::get;
use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::net::TcpStream;

use super::support::{
    PATIENCE, SHORT, assert_alive, assert_envelope, patient, patiently, read_all, read_one, routes, say, start,
    until_none_is_open,
};
use crate::serve::listener::Seat;
use crate::serve::listener::server::Closed;
use crate::serve::listener::server::listen;
use crate::serve::listener::settings::ListenerSettings;

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
