//! The client over real sockets: what is sent, what is never sent twice, and how each end of a connection is told.

use reqwest::Method;
use tokio::{net::TcpSocket, time::timeout};

use super::*;
use crate::{
    model::facts::TimeoutKind,
    transport::{
        fake_server::{FakeServer, Step, answer},
        kept_connection::CLOSE_RACE_MAX,
    },
};

fn get(path: &str) -> Outgoing {
    Outgoing { method: Method::GET, path: path.to_owned(), headers: HeaderMap::new(), body: None }
}

fn client(base_url: &str) -> ProviderClient {
    ProviderClient::try_new(&ProviderOptions::at(base_url)).unwrap()
}

async fn fetch(client: &ProviderClient) -> Result<Vec<u8>, AttemptFailure> {
    client.send(get("/x"), &ErrorPointers::default()).await?.into_body().await
}

#[test]
fn urls_are_joined_and_stay_at_their_host() {
    for (base, path, want) in [
        ("http://h:1/v1", "/chat/completions", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1/", "chat", "http://h:1/v1/chat"),
        ("http://h:1", "/style/analyze", "http://h:1/style/analyze"),
        ("http://h:1/v1?api-version=2", "/chat?x=1", "http://h:1/v1/chat?api-version=2&x=1"),
        ("http://h:1/call", "", "http://h:1/call"),
        ("http://h:1/a", "//evil.example/b", "http://h:1/a//evil.example/b"),
        ("http://h:1/a", "http://evil.example/b", "http://h:1/a/http://evil.example/b"),
    ] {
        assert_eq!(client(base).url(path).as_str(), want, "{base} and {path}");
    }
}

#[test]
fn refused_options() {
    let header = |name: &str, value: &str| vec![(name.to_owned(), Secret::new(value))];
    for (options, fits) in [
        (ProviderOptions::at("http://127.0.0.1:8081/v1"), true),
        (ProviderOptions::at("127.0.0.1:8081"), false),
        (ProviderOptions::at("ftp://h/"), false),
        (ProviderOptions::at(""), false),
        (ProviderOptions { headers: header("x-a", "b"), ..ProviderOptions::at("http://h") }, true),
        (ProviderOptions { headers: header("x a", "b"), ..ProviderOptions::at("http://h") }, false),
        (ProviderOptions { headers: header("x-a", "b\u{7}c"), ..ProviderOptions::at("http://h") }, false),
        (ProviderOptions { query: header("a b&c", "=\u{7}"), ..ProviderOptions::at("http://h") }, true),
        (ProviderOptions { query: header("", "b"), ..ProviderOptions::at("http://h") }, false),
    ] {
        let shown = format!("{options:?}");
        assert_eq!(ProviderClient::try_new(&options).map(drop).map_err(drop), fits.then_some(()).ok_or(()), "{shown}");
    }
}

#[tokio::test]
async fn keys_are_sent_and_never_shown() {
    let body = r#"{"error":{"message":"Incorrect key sk-secret-1 given","code":"sk-secret-1"}}"#;
    let server = FakeServer::start(vec![answer(401, "", body)]).await;
    let options = ProviderOptions {
        key: Some(Secret::new("sk-secret-1")),
        headers: vec![("x-extra".to_owned(), Secret::new("other-secret"))],
        ..ProviderOptions::at(&format!("{}/v1?token=query-secret", server.base_url))
    };
    let client = ProviderClient::try_new(&options).unwrap();
    let failure = client.scrub(fetch(&client).await.unwrap_err());
    let sent = server.requests().concat();
    assert!(
        sent.contains("authorization: Bearer sk-secret-1\r\n") && sent.contains("x-extra: other-secret\r\n"),
        "{sent}"
    );
    assert!(sent.contains(concat!("user-agent: watertight/", env!("CARGO_PKG_VERSION"))), "{sent}");
    assert_eq!(failure.message, "Incorrect key *** given");
    let refused = ProviderClient::try_new(&ProviderOptions {
        base_url: "http://127.0.0.1:1/?token=query-secret".to_owned(),
        ..options.clone()
    });
    let refused = fetch(&refused.unwrap()).await.unwrap_err();
    for shown in [format!("{failure:?}"), format!("{options:?}"), format!("{client:?}"), format!("{refused:?}")] {
        for secret in ["sk-secret-1", "other-secret", "query-secret"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
    let keyed = ProviderOptions { key_place: KeyPlace::Header("x-api-key".to_owned()), ..options };
    let _ = fetch(&ProviderClient::try_new(&keyed).unwrap()).await;
    assert!(server.requests()[1].contains("x-api-key: sk-secret-1\r\n"));
}

#[tokio::test]
async fn query_parameters_are_sent_with_every_request_and_never_shown() {
    let body =
        r#"{"error":{"message":"GET /v1/x?a=1&api-version=2024-10-21-preview&sig=se%2Fcret%26+1 or se/cret& 1"}}"#;
    let server = FakeServer::start(vec![answer(400, "", body), answer(200, "", "")]).await;
    let options = ProviderOptions {
        query: vec![
            ("api-version".to_owned(), Secret::new("2024-10-21-preview")),
            ("sig".to_owned(), Secret::new("se/cret& 1")),
        ],
        ..ProviderOptions::at(&format!("{}/v1?a=1", server.base_url))
    };
    let client = ProviderClient::try_new(&options).unwrap();
    let failure = client.scrub(fetch(&client).await.unwrap_err());
    assert_eq!(failure.message, "GET /v1/x?a=1&api-version=***&sig=*** or ***");
    client.send(get("/x?b=2"), &ErrorPointers::default()).await.unwrap();
    let lines: Vec<String> = server.requests().iter().map(|sent| sent.lines().next().unwrap().to_owned()).collect();
    let query = "a=1&api-version=2024-10-21-preview&sig=se%2Fcret%26+1";
    assert_eq!(lines, [format!("GET /v1/x?{query} HTTP/1.1"), format!("GET /v1/x?{query}&b=2 HTTP/1.1")]);
    for shown in [format!("{options:?}"), format!("{client:?}")] {
        assert!(!shown.contains("preview") && !shown.contains("cret"), "{shown}");
    }
    assert!(format!("{options:?}").contains(r#"("api-version", ***)"#));
}

#[tokio::test]
async fn each_answer_is_told_once() {
    let too_large = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", BODY_BYTES_MAX + 1);
    let cut_body = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec();
    for (steps, want) in [
        (answer(200, "", "fine"), Ok("fine")),
        (answer(302, "location: /elsewhere\r\n", ""), Err(Ending::BadReply)),
        (answer(304, "", ""), Err(Ending::BadReply)),
        (answer(503, "", "down"), Err(Ending::status(503))),
        (vec![], Err(Ending::Network { connected: true })),
        (vec![Step::Send(b"not http at all\r\n\r\n".to_vec())], Err(Ending::Network { connected: true })),
        (vec![Step::Send(cut_body)], Err(Ending::Network { connected: true })),
        (vec![Step::Send(too_large.into_bytes()), Step::Send(vec![b'x'; BODY_BYTES_MAX + 1])], Err(Ending::BadReply)),
    ] {
        let server = FakeServer::start(vec![steps]).await;
        let got = fetch(&client(&server.base_url)).await;
        let got = got.map(|body| String::from_utf8(body).unwrap()).map_err(|failure| failure.ending);
        assert_eq!(got, want.map(str::to_owned));
        assert_eq!(server.requests().len(), 1, "no hidden second request");
    }
}

#[tokio::test]
async fn what_headers_say_of_an_error() {
    let server = FakeServer::start(vec![answer(429, "retry-after: 3\r\nx-should-retry: false\r\n", "slow down")]).await;
    let failure = fetch(&client(&server.base_url)).await.unwrap_err();
    assert_eq!(failure.retry_after, Some(Duration::from_secs(3)));
    assert_eq!((failure.should_retry, failure.status, failure.message.as_str()), (Some(false), Some(429), "slow down"));
}

#[tokio::test]
async fn no_connection() {
    let refused = fetch(&client("http://127.0.0.1:1")).await.unwrap_err();
    assert_eq!(refused.ending, Ending::Network { connected: false });
    let unknown = fetch(&client("http://no-such-host.invalid")).await.unwrap_err();
    // A slow resolver is cut off as a slow connection is; both say that nothing was sent.
    let slow_resolver = Ending::Timeout { timeout: TimeoutKind::Connect };
    assert!(unknown.ending == Ending::Network { connected: false } || unknown.ending == slow_resolver, "{unknown:?}");
}

#[tokio::test]
async fn a_connection_that_takes_too_long() {
    // A listener whose queue of waiting connections is full answers no further one.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    for _ in 0..4 {
        let one = timeout(Duration::from_millis(100), tokio::net::TcpStream::connect(address)).await;
        waiting.push(one);
    }
    let options = ProviderOptions {
        connect_timeout: Duration::from_millis(150),
        ..ProviderOptions::at(&format!("http://{address}"))
    };
    let failure = fetch(&ProviderClient::try_new(&options).unwrap()).await.unwrap_err();
    assert_eq!(failure.ending, Ending::Timeout { timeout: TimeoutKind::Connect }, "{failure:?}");
}

#[tokio::test]
async fn leaving_closes_the_connection() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nha".to_vec();
    for steps in [vec![Step::UntilClosed], vec![Step::Send(head), Step::UntilClosed]] {
        let mut server = FakeServer::start(vec![steps]).await;
        let client = client(&server.base_url);
        let attempt = tokio::spawn(async move { fetch(&client).await });
        server.has_requests(1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        attempt.abort();
        assert!(server.sees_client_leave().await);
    }
}

/// A whole answer after which the connection is kept.
fn kept(body: &str) -> Step {
    Step::Send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes())
}

/// A server that closes a kept connection as it is used again has not done the work; one that was asked on a connection of its own may have.
#[tokio::test]
async fn what_a_kept_connection_lost_as_it_closed_is_sent_again() {
    let late = Step::Pause(CLOSE_RACE_MAX + Duration::from_millis(200));
    let lost = Err(Ending::Network { connected: true });
    for (after_the_first, again, want, requests) in [
        (vec![Step::NextRequest], answer(200, "", "second"), Ok("second"), 3),
        (vec![Step::Reset], answer(200, "", "second"), Ok("second"), 2),
        // It had time to work.
        (vec![Step::NextRequest, late], answer(200, "", "second"), lost.clone(), 2),
        // The next one is a connection of its own.
        (vec![Step::NextRequest], vec![], lost, 3),
    ] {
        let first = [vec![kept("first")], after_the_first].concat();
        let server = FakeServer::start(vec![first, again]).await;
        let client = client(&server.base_url);
        assert_eq!(fetch(&client).await.unwrap(), b"first");
        let got = fetch(&client).await;
        let got = got.map(|body| String::from_utf8(body).unwrap()).map_err(|failure| failure.ending);
        assert_eq!((got, server.requests().len()), (want.map(str::to_owned), requests));
    }
}

#[tokio::test]
async fn a_connection_that_was_closed_is_told_as_such() {
    let server = FakeServer::start(vec![vec![]]).await;
    let failure = fetch(&client(&server.base_url)).await.unwrap_err();
    assert!(failure.message.starts_with("the server closed the connection before it answered"), "{failure:?}");
}

/// Of what passes through only harmless questions are sent again.
#[tokio::test]
async fn what_passes_through_is_sent_again_only_where_that_is_harmless() {
    for (method, want) in [(Method::GET, Ok(200)), (Method::POST, Err(Ending::Network { connected: true }))] {
        let server = FakeServer::start(vec![vec![kept("first"), Step::NextRequest], answer(200, "", "second")]).await;
        let client = client(&server.base_url);
        let pass = async || {
            let mut passed = client.pass_on(method.clone(), "/x", HeaderMap::new(), None).await?;
            while passed.piece().await?.is_some() {}
            Ok(passed.status())
        };
        assert_eq!(pass().await.map_err(|failure: AttemptFailure| failure.ending), Ok(200));
        assert_eq!(pass().await.map_err(|failure: AttemptFailure| failure.ending), want, "{method}");
    }
}

#[tokio::test]
async fn an_error_that_repeats_the_key_hands_it_to_nobody() {
    let body = "Incorrect key sk-secret-1 given";
    let server = FakeServer::start(vec![answer(401, "", body), answer(200, "", body)]).await;
    let options = ProviderOptions { key: Some(Secret::new("sk-secret-1")), ..ProviderOptions::at(&server.base_url) };
    let client = ProviderClient::try_new(&options).unwrap();
    let mut passed = client.pass_on(Method::GET, "/x", HeaderMap::new(), None).await.unwrap();
    let mut got = Vec::new();
    while let Some(piece) = passed.piece().await.unwrap() {
        got.extend_from_slice(&piece);
    }
    assert_eq!(String::from_utf8(got).unwrap(), "Incorrect key *********** given");
}
