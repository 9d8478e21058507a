//! The service as a process, and single exchanges with it.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use serde_json::Value;

use crate::process::{BOUND, Running, command};

/// One exchange on a connection of its own, whose answer is read to its end.
pub fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> String {
    ask_with(address, method, path, &[], body)
}

/// The same with headers.
pub fn ask_with(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let headers = headers.iter().fold(String::new(), |text, (name, value)| text + "\r\n" + name + ": " + value);
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(BOUND)).unwrap();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json{headers}");
    write!(socket, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// The body of an answer.
#[track_caller]
pub fn json_of(answer: &str) -> Value {
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// The service of a project, once it serves, and where.
#[track_caller]
pub fn serve(project: &str) -> (Running, SocketAddr) {
    let mut service = Running::start(command(&["serve", project, "--listen", "127.0.0.1:0"]));
    let address = bound(&mut service);
    (service, address)
}

/// Where a service listens, once it serves.
#[track_caller]
pub fn bound(service: &mut Running) -> SocketAddr {
    service.wait_for("journal: ");
    let said = service.said();
    said.split("on http://").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}
