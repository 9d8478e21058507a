//! What a tap shows of exchanges over real sockets, and above all what it never shows.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::transport::{
    client::{KeyPlace, ProviderClient, ProviderOptions},
    fake_server::{FakeServer, Step, answer, stream, stream_head},
    hiding::HIDDEN,
    http_agent::{backend::HttpAgent, mapping::HttpMapping},
    secret::Secret,
    test_attempt::{request, unwatched, watched},
};

fn client(options: &ProviderOptions) -> (Arc<ProviderClient>, Tap) {
    let (client, tap) = (Arc::new(ProviderClient::try_new(options).unwrap()), Tap::new());
    client.attach(&tap);
    (client, tap)
}

fn agent(client: &Arc<ProviderClient>, mapping: &HttpMapping) -> HttpAgent {
    HttpAgent::try_new(Arc::clone(client), mapping).unwrap()
}

/// The exchange of one attempt with a server that does these steps.
async fn heard(steps: Vec<Step>) -> Exchange {
    let server = FakeServer::start(vec![steps]).await;
    let (client, tap) = client(&ProviderOptions::at(&server.base_url));
    watched(&agent(&client, &HttpMapping::default()), &request(json!({}))).await;
    tap.take().unwrap()
}

#[tokio::test]
async fn a_whole_exchange() {
    let server = FakeServer::start(vec![answer(
        200,
        "content-type: application/json\r\nset-cookie: session=1\r\n",
        r#"{"output":"좋은 글"}"#,
    )])
    .await;
    let (client, tap) = client(&ProviderOptions {
        key: Some(Secret::new("k")),
        headers: vec![("x-organisation".to_owned(), Secret::new("acme"))],
        query: vec![("api-version".to_owned(), Secret::new("2"))],
        ..ProviderOptions::at(&format!("{}/v1?flag", server.base_url))
    });
    let mapping = HttpMapping { path: "/draft?lang=ko".to_owned(), ..HttpMapping::default() };
    unwatched(&agent(&client, &mapping), &request(json!({"notes": "바다"}))).await.reply();
    let exchange = tap.take().unwrap();
    let want = format!(
        "POST {}/v1/draft?(hidden)&api-version=(hidden)&lang=(hidden)\n\
         authorization: (hidden)\n\
         x-organisation: (hidden)\n\
         content-type: application/json\n\
         accept: application/json\n\
         traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n\
         idempotency-key: run-1/draft/0/0\n\
         x-watertight-call-id: call-1\n\
         x-watertight-run-id: run-1\n\
         x-watertight-attempt: 2\n\
         x-watertight-deadline-ms: 12500\n\
         x-watertight-tenant: acme\n\
         x-watertight-feature: chat\n\
         x-watertight-priority: batch\n\
         \n\
         {{\n  \"input\": {{\n    \"notes\": \"바다\"\n  }}\n}}",
        server.base_url
    );
    assert_eq!(exchange.request, want);
    let want = "HTTP/1.1 200 OK\nconnection: close\ncontent-length: 23\ncontent-type: application/json\n\
                set-cookie: (hidden)\n\n{\"output\":\"좋은 글\"}";
    assert_eq!(exchange.answer, want);
    assert_eq!(tap.take(), None, "it was taken");
}

#[tokio::test]
async fn answers_of_every_kind() {
    let frames = "data: {\"delta\": \"a\"}\r\n\r\n: alive\n\ndata: {\"output\": \"a\"}\n\n";
    let head = "HTTP/1.1 200 OK\nconnection: close\ncontent-type: text/event-stream\n\n";
    let cut = Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec());
    let binary = b"HTTP/1.1 500 X\r\nconnection: close\r\n\r\n\xff\x00\x1b[31mred \xec\xa2\x8b\xec".to_vec();
    for (steps, want) in [
        (
            stream(frames),
            format!("{head}data: {{\"delta\": \"a\"}}\\r\n\\r\n: alive\n\ndata: {{\"output\": \"a\"}}\n\n"),
        ),
        (
            answer(529, "", "<html>\tbusy"),
            "HTTP/1.1 529\nconnection: close\ncontent-length: 11\n\n<html>\tbusy".to_owned(),
        ),
        (
            answer(302, "location: /elsewhere\r\n", ""),
            "HTTP/1.1 302 Found\nconnection: close\ncontent-length: 0\nlocation: /elsewhere\n\n".to_owned(),
        ),
        (
            vec![Step::Send(binary)],
            "HTTP/1.1 500 Internal Server Error\nconnection: close\n\n\\xff\\u{0}\\u{1b}[31mred 좋\\xec".to_owned(),
        ),
        (vec![cut], "HTTP/1.1 200 OK\ncontent-length: 10\n\nhalf\n(broke off: ".to_owned()),
        (vec![], "(no answer: ".to_owned()),
    ] {
        let got = heard(steps).await.answer;
        if want.ends_with(": ") {
            assert!(got.starts_with(&want) && got.ends_with(')'), "{got}");
        } else {
            assert_eq!(got, want);
        }
    }
}

#[tokio::test]
async fn an_answer_that_nobody_waited_for() {
    for (steps, want) in [
        (vec![Step::UntilClosed], "(no answer)"),
        (
            vec![stream_head(), Step::Send(b"data: {\"delta\": \"a\"}\n\n".to_vec()), Step::UntilClosed],
            "HTTP/1.1 200 OK\nconnection: close\ncontent-type: text/event-stream\n\ndata: {\"delta\": \"a\"}\n\n",
        ),
    ] {
        let mut server = FakeServer::start(vec![steps]).await;
        let (client, tap) = client(&ProviderOptions::at(&server.base_url));
        let agent = agent(&client, &HttpMapping::default());
        let attempt = tokio::spawn(async move { watched(&agent, &request(json!({}))).await });
        let hears = || lock(&tap.last).as_ref().is_some_and(|recording| recording.heard().body.len() >= 10);
        server.has_requests(1).await;
        while want.contains("delta") && !hears() {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        attempt.abort();
        assert!(server.sees_client_leave().await);
        assert_eq!(tap.take().unwrap().answer, want);
    }
}

#[tokio::test]
async fn who_hears_what() {
    let server = FakeServer::start(vec![answer(200, "", r#"{"output":1}"#)]).await;
    let options = ProviderOptions::at(&server.base_url);
    let silent = Arc::new(ProviderClient::try_new(&options).unwrap());
    let (tapped, first) = client(&options);
    let call = async |client: &Arc<ProviderClient>, path: &str| {
        let mapping = HttpMapping { path: path.to_owned(), ..HttpMapping::default() };
        unwatched(&agent(client, &mapping), &request(json!({}))).await.reply();
    };
    call(&silent, "/a").await;
    assert_eq!(first.take(), None);
    call(&tapped, "/a").await;
    call(&Arc::new(ProviderClient::clone(&tapped)), "/b").await;
    assert!(first.clone().take().unwrap().request.starts_with(&format!("POST {}/b\n", server.base_url)));
    let second = Tap::new();
    tapped.attach(&second);
    call(&tapped, "/c").await;
    assert_eq!(first.take(), None);
    assert!(second.take().unwrap().request.starts_with(&format!("POST {}/c\n", server.base_url)));
}

#[tokio::test]
async fn a_key_never_shows() {
    // Everything that could be repeated, as a careless server repeats it: plain, in JSON, in a URL, in a header.
    let secrets = ["sk-key-1\"/x", "header-secret", "query/secret&", "pass-word", "mapped secret", "part of it"];
    let repeated = secrets.map(|secret| {
        let quoted = json!(secret).to_string();
        format!("{secret} {quoted} {}", quoted.replace('/', "\\/"))
    });
    // User and password of the URL are sent in base64, unless a key takes their place.
    let repeated = format!("{} query%2Fsecret%26", repeated.join(" "));
    let basic = format!("{repeated} dXNlcjpwYXNzLXdvcmQ=");
    for (key_place, repeated) in [(KeyPlace::Bearer, &repeated), (KeyPlace::Header("x-my-key".to_owned()), &basic)] {
        for steps in [
            answer(200, &format!("x-echo: {repeated}\r\n"), repeated),
            answer(401, "", &json!({"error": {"message": repeated, "code": "sk-key-1\"/x"}}).to_string()),
            stream(&format!("data: {{\"delta\": {}}}\n\n", json!(repeated))),
        ] {
            let server = FakeServer::start(vec![steps]).await;
            let base_url = server.base_url.replace("http://", "http://user:pass-word@");
            let (client, tap) = client(&ProviderOptions {
                key: Some(Secret::new("sk-key-1\"/x")),
                key_place: key_place.clone(),
                headers: vec![("x-extra".to_owned(), Secret::new("header-secret"))],
                query: vec![("sig".to_owned(), Secret::new("query/secret&"))],
                ..ProviderOptions::at(&base_url)
            });
            let mapping = HttpMapping {
                headers: vec![
                    ("x-token".to_owned(), Secret::new("mapped secret")),
                    ("x-auth".to_owned(), Secret::new("Token part of it")),
                ],
                ..HttpMapping::default()
            };
            let input = json!({"oops": secrets});
            watched(&agent(&client, &mapping), &request(input)).await;
            assert!(server.requests()[0].contains("sk-key-1\"/x\r\n"), "the key was sent");
            let Exchange { request, answer } = tap.take().unwrap();
            for shown in [request, answer] {
                assert!(shown.contains(HIDDEN), "{shown}");
                for part in
                    ["sk-key", "header-sec", "query/sec", "query%2F", "pass-w", "mapped s", "part of", "dXNlcjpw"]
                {
                    assert!(!shown.contains(part), "{part} in {shown}");
                }
            }
        }
    }
}

#[tokio::test]
async fn both_sides_are_bounded() {
    let long = "가".repeat(TAP_BYTES_MAX);
    let server = FakeServer::start(vec![answer(200, "", &json!({"output": long}).to_string())]).await;
    let (client, tap) = client(&ProviderOptions::at(&server.base_url));
    let done = unwatched(&agent(&client, &HttpMapping::default()), &request(json!({"notes": long}))).await;
    assert_eq!(done.reply().output, json!(long), "a tap takes nothing away");
    let Exchange { request, answer } = tap.take().unwrap();
    let note = format!("\n(cut: no more than {TAP_BYTES_MAX} bytes are shown)");
    for shown in [request, answer] {
        let kept = shown.strip_suffix(&note).unwrap();
        assert!(kept.len() <= TAP_BYTES_MAX && kept.len() > TAP_BYTES_MAX - 4, "{}", kept.len());
    }
}

/// A recording of a client with this secret.
fn recording(secret: &str) -> Recording {
    Recording::answered(secret, TAP_BYTES_MAX)
}

#[test]
fn a_secret_is_hidden_where_the_answer_was_cut_inside_it() {
    let secret = "sk-0123456789";
    for kept in 0..=secret.len() {
        let recording = recording(secret);
        recording.piece(&vec![b'.'; TAP_BYTES_MAX - kept]);
        recording.piece(secret.as_bytes());
        recording.piece(b"!");
        let answer = exchange(&recording).answer;
        assert!(!answer.contains("sk-012"), "{kept}: {}", &answer[answer.len() - 100..]);
        assert!(answer.contains("(cut: "));
    }
}

proptest! {
    #[test]
    fn any_bytes_in_any_pieces_give_the_same_text_without_the_secret(
        around in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let secret = "sk-abcdef";
        let body = around.join(secret.as_bytes());
        let whole = recording(secret);
        whole.piece(&body);
        let whole = exchange(&whole).answer;
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        places.sort_unstable();
        let pieces = recording(secret);
        let mut from = 0;
        for to in places.into_iter().chain([body.len()]) {
            pieces.piece(&body[from..to]);
            from = to;
        }
        prop_assert_eq!(&exchange(&pieces).answer, &whole);
        prop_assert!(!whole.contains(secret));
        prop_assert!(whole.matches(HIDDEN).count() >= around.len() - 1);
        prop_assert!(whole.chars().all(|letter| !letter.is_control() || letter == '\n' || letter == '\t'));
    }
}

#[test]
fn nothing_of_it_is_in_debug() {
    let recording = recording("sk-abcdef");
    recording.piece(b"sk-abcdef");
    let tap = Tap { last: Arc::new(Mutex::new(Some(recording))) };
    assert!(!format!("{tap:?}").contains("abc"));
}
