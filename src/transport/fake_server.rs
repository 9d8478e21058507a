//! Test help: the far end of a connection, in the test's hand. It answers byte by byte what a test says and sees when we leave.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

/// What is done on a connection once its request has been read. After the last one the connection is closed.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Send(Vec<u8>),
    Pause(Duration),
    /// Reads the next request of a kept connection.
    NextRequest,
    /// Closes the connection under a request that has come and is not read: the client sees a reset.
    Reset,
    /// Waits until the client is gone, then reports it.
    UntilClosed,
}

/// A server that answers its connections in order, the last answer for all further ones.
#[derive(Debug)]
pub(crate) struct FakeServer {
    pub(crate) base_url: String,
    requests: Arc<Mutex<Vec<String>>>,
    closed: mpsc::UnboundedReceiver<()>,
}

impl FakeServer {
    pub(crate) async fn start(answers: Vec<Vec<Step>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (gone, closed) = mpsc::unbounded_channel();
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            for count in 0.. {
                let (socket, _) = listener.accept().await.unwrap();
                let steps = answers.get(count).or(answers.last()).cloned().unwrap_or_default();
                tokio::spawn(serve(socket, steps, Arc::clone(&seen), gone.clone()));
            }
        });
        Self { base_url, requests, closed }
    }

    /// The requests so far, as they came.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// The JSON bodies of the requests so far.
    pub(crate) fn bodies(&self) -> Vec<serde_json::Value> {
        let requests = self.requests();
        requests.iter().map(|text| serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()).collect()
    }

    /// Waits until a client is seen to be gone; false if that takes longer than a second.
    pub(crate) async fn sees_client_leave(&mut self) -> bool {
        tokio::time::timeout(Duration::from_secs(1), self.closed.recv()).await.is_ok_and(|seen| seen.is_some())
    }

    /// Waits until this many requests have come.
    pub(crate) async fn has_requests(&self, count: usize) {
        while self.requests.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn serve(
    mut socket: TcpStream,
    steps: Vec<Step>,
    seen: Arc<Mutex<Vec<String>>>,
    gone: mpsc::UnboundedSender<()>,
) {
    let Some(request) = read_request(&mut socket).await else { return };
    seen.lock().unwrap().push(request);
    for step in steps {
        match step {
            Step::Send(bytes) => {
                if socket.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Step::Pause(time) => tokio::time::sleep(time).await,
            Step::NextRequest => {
                let Some(request) = read_request(&mut socket).await else { return };
                seen.lock().unwrap().push(request);
            }
            Step::Reset => {
                let _ = socket.peek(&mut [0]).await;
                return;
            }
            Step::UntilClosed => {
                let mut rest = [0; 64];
                while socket.read(&mut rest).await.is_ok_and(|count| count > 0) {}
                let _ = gone.send(());
                return;
            }
        }
    }
    let _ = socket.shutdown().await;
}

async fn read_request(socket: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
            });
            if body.len() >= length.unwrap_or(0) {
                return Some(text);
            }
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// A whole answer with a JSON (or any other) body.
pub(crate) fn answer(status: u16, headers: &str, body: &str) -> Vec<Step> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n");
    vec![Step::Send([head.as_bytes(), body.as_bytes()].concat())]
}

/// The head of an event stream whose body ends with the connection.
pub(crate) fn stream_head() -> Step {
    Step::Send(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n".to_vec())
}

/// A whole event stream.
pub(crate) fn stream(text: &str) -> Vec<Step> {
    vec![stream_head(), Step::Send(text.as_bytes().to_vec())]
}
