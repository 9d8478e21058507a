//! Relayed exchanges over real sockets.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::{
    model::{raw_object::RawObject, reply::Usage},
    runtime::{
        ports::{AttemptTimeouts, Backend, TokioClock},
        relay::{RELAY_PIECES_MAX, RelayBegan, RelayKind, StreamUsage},
    },
    transport::{
        client::ProviderOptions,
        fake_server::{FakeServer, Step, answer, stream, stream_head},
        openai::{
            backend::OpenAiAgent,
            settings::{ModelPath, OpenAiPaths, OpenAiSettings},
        },
        test_attempt,
    },
};

const STREAM: RelayForm = RelayForm::Stream { usage: StreamUsage::Unwanted };
const SAID: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"안\"}}],\"x\":1.50}\n\n";
const ROLE: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\n";
const DONE_MARK: &str = "data: [DONE]\n\n";

fn agent(server: &FakeServer, upstream: StreamUpstream) -> OpenAiAgent {
    let client = ProviderClient::try_new(&ProviderOptions::at(&format!("{}/v1", server.base_url))).unwrap();
    let settings = OpenAiSettings {
        model: "qwen".to_owned(),
        prompt: "x".to_owned(),
        stream_upstream: upstream,
        ..OpenAiSettings::default()
    };
    OpenAiAgent::try_new(Arc::new(client), settings).unwrap()
}

struct Relayed {
    ended: Result<Reply, AttemptFailure>,
    began: Option<RelayBegan>,
    text: String,
    committed: bool,
}

async fn relayed(agent: &OpenAiAgent, kind: RelayKind, form: RelayForm, body: &str) -> Relayed {
    let (out, mut pieces) = mpsc::channel(RELAY_PIECES_MAX);
    let body = Arc::new(RawObject::try_new(body.as_bytes().to_vec()).unwrap());
    let mut request = test_attempt::request(Value::Null);
    request.timeouts =
        AttemptTimeouts { first_token: Some(Duration::from_secs(5)), stall: Some(Duration::from_secs(5)) };
    request.relay = Some(Relay { kind, form, body, out, fallback: None, degraded: None, earlier: 0 });
    let progress = Progress::start(Arc::new(TokioClock::start()), None);
    let ended = agent.attempt(&request, &progress).await;
    drop(request);
    let (mut began, mut text) = (None, String::new());
    while let Some(piece) = pieces.recv().await {
        match piece {
            RelayPiece::Began(head) => began = Some(head),
            RelayPiece::Frame(bytes) | RelayPiece::Whole(bytes) => text.push_str(std::str::from_utf8(&bytes).unwrap()),
        }
    }
    Relayed { ended, began, text, committed: progress.first_content().is_some() }
}

fn json_answer(body: &str) -> Vec<Step> {
    answer(200, "content-type: application/json\r\n", body)
}

#[tokio::test]
async fn a_whole_answer_comes_back_byte_for_byte() {
    let body = r#"{ "choices" : [ {"message":{"content":"\u00e9"},"finish_reason":"stop","f":1.10} ], "usage":{"prompt_tokens":3,"completion_tokens":2}, "big":123456789012345678901 }"#;
    let server = FakeServer::start(vec![json_answer(body)]).await;
    let asked = r#"{"model":"fast","messages":[],"seed":123456789012345678901,"zeta":[1.0]}"#;
    let done = relayed(&agent(&server, StreamUpstream::AsAsked), RelayKind::Chat, RelayForm::Whole, asked).await;
    let reply = done.ended.unwrap();
    assert_eq!((done.text.as_str(), done.began), (body, None));
    assert_eq!(reply.usage, Some(Usage { prompt_tokens: 3, output_tokens: 2, estimated: false, ..Usage::default() }));
    let sent = server.requests().concat();
    assert!(sent.ends_with(r#"{"model":"qwen","messages":[],"seed":123456789012345678901,"zeta":[1.0]}"#), "{sent}");
}

/// The gateway passes on what the model wrote, also what no value of ours could hold; counting it spoils nothing.
#[tokio::test]
async fn what_no_value_can_hold_goes_through() {
    let half = |inside: &str| {
        format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{inside}\"}},\"x\":-1e999}}]}}\n\n")
    };
    let frames =
        [half("abcdefg\\ud83d"), half("\\ude00"), half("\\ud83d"), STOP.to_owned(), DONE_MARK.to_owned()].concat();
    for (form, want) in [
        (STREAM, frames.as_str()),
        (
            RelayForm::Whole,
            r#"{"object":"chat.completion","choices":[{"index":0,"message":{"content":"abcdefg\ud83d\ude00\ud83d","role":"assistant"},"x":-1e999,"finish_reason":"stop"}]}"#,
        ),
    ] {
        let server = FakeServer::start(vec![stream(&frames)]).await;
        let done = relayed(&agent(&server, StreamUpstream::Always), RelayKind::Chat, form, "{}").await;
        let reply = done.ended.unwrap();
        assert_eq!(done.text, want);
        assert_eq!((reply.finish_reason.as_deref(), reply.usage.unwrap().output_tokens), (Some("stop"), 4), "{form:?}");
    }
    let body = r#"{"choices":[{"message":{"content":"abcdefgh\ud83d","x":1e999},"finish_reason":"stop"}]}"#;
    let server = FakeServer::start(vec![json_answer(body)]).await;
    let done = relayed(&agent(&server, StreamUpstream::AsAsked), RelayKind::Chat, RelayForm::Whole, "{}").await;
    assert_eq!((done.ended.unwrap().usage.unwrap().output_tokens, done.text.as_str()), (3, body));
}

#[tokio::test]
async fn frames_go_on_and_the_usage_only_where_it_was_asked_for() {
    let whole = [ROLE, SAID, STOP, USAGE, DONE_MARK].concat();
    for (usage, want) in [
        (StreamUsage::Wanted, [ROLE, SAID, STOP, USAGE, DONE_MARK].concat()),
        (StreamUsage::Unwanted, [ROLE, SAID, STOP, DONE_MARK].concat()),
    ] {
        let server = FakeServer::start(vec![stream(&whole)]).await;
        let agent = agent(&server, StreamUpstream::AsAsked);
        let done = relayed(&agent, RelayKind::Chat, RelayForm::Stream { usage }, r#"{"stream":true}"#).await;
        assert_eq!(done.text, want);
        assert_eq!(
            done.ended.unwrap().usage,
            Some(Usage { prompt_tokens: 3, output_tokens: 1, estimated: false, ..Usage::default() })
        );
        let began = done.began.unwrap();
        assert_eq!((began.call_id.as_str(), began.attempt, began.fallback), ("call-1", 2, None));
        assert_eq!(server.bodies()[0]["stream_options"], json!({"include_usage": true}));
    }
}

/// Nothing is out before the first output; after it nothing of a failed stream looks like its end.
#[tokio::test]
async fn held_back_until_the_first_output() {
    let error = "data: {\"error\":{\"message\":\"busy\",\"code\":503}}\n\n";
    for (sent, text, committed, ending) in [
        (vec![ROLE], String::new(), false, Ending::StreamCut),
        (vec![ROLE, error, DONE_MARK], String::new(), false, Ending::status(503)),
        (vec![ROLE, SAID], [ROLE, SAID].concat(), true, Ending::StreamCut),
        (vec![ROLE, SAID, error, DONE_MARK], [ROLE, SAID].concat(), true, Ending::status(503)),
    ] {
        let server = FakeServer::start(vec![stream(&sent.concat())]).await;
        let done = relayed(&agent(&server, StreamUpstream::Always), RelayKind::Chat, STREAM, "{}").await;
        let failure = done.ended.unwrap_err();
        assert_eq!((done.text, done.committed, failure.ending), (text, committed, ending), "{sent:?}");
        assert_eq!(failure.usage.is_some_and(|usage| usage.estimated), committed, "what came has cost something");
    }
    // Nothing but its end: as bad as it is where the answer was wanted whole.
    for upstream in [StreamUpstream::Always, StreamUpstream::AsAsked] {
        let server = FakeServer::start(vec![stream(DONE_MARK)]).await;
        let done = relayed(&agent(&server, upstream), RelayKind::Chat, STREAM, "{}").await;
        assert_eq!((done.ended.unwrap_err().ending, done.text.as_str(), done.committed), (Ending::BadReply, "", false));
    }
    let endless = format!("data: {{\"choices\":[],\"pad\":\"{}\"}}\n\n", "x".repeat(60_000)).repeat(6);
    let server = FakeServer::start(vec![stream(&endless)]).await;
    let done = relayed(&agent(&server, StreamUpstream::Always), RelayKind::Chat, STREAM, "{}").await;
    assert_eq!((done.ended.unwrap_err().ending, done.text.as_str()), (Ending::BadReply, ""));
}

#[tokio::test]
async fn a_plain_answer_of_a_streaming_server() {
    let whole = [ROLE, SAID, STOP, USAGE, DONE_MARK].concat();
    let server = FakeServer::start(vec![stream(&whole), stream(&[ROLE, SAID].concat()), stream(DONE_MARK)]).await;
    let agent = agent(&server, StreamUpstream::Always);
    let done = relayed(&agent, RelayKind::Chat, RelayForm::Whole, r#"{"stream":false}"#).await;
    let answer: Value = serde_json::from_str(&done.text).unwrap();
    let message = json!({"role": "assistant", "content": "안"});
    assert_eq!(answer["choices"], json!([{"index": 0, "message": message, "finish_reason": "stop"}]));
    assert_eq!((&answer["object"], &answer["usage"]["prompt_tokens"]), (&json!("chat.completion"), &json!(3)));
    assert_eq!(server.bodies()[0]["stream"], true);
    for _ in 0..2 {
        let cut = relayed(&agent, RelayKind::Chat, RelayForm::Whole, "{}").await;
        assert!(cut.ended.is_err() && cut.text.is_empty());
    }
}

#[tokio::test]
async fn answers_of_another_form_than_asked() {
    let body = r#"{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}"#;
    let error = r#"{"error":{"message":"slow down","code":429}}"#;
    let server = FakeServer::start(vec![json_answer(body), json_answer(body), json_answer(error)]).await;
    let agent = agent(&server, StreamUpstream::Always);
    assert_eq!(relayed(&agent, RelayKind::Chat, RelayForm::Whole, "{}").await.text, body);
    for ending in [Ending::BadReply, Ending::status(429)] {
        let done = relayed(&agent, RelayKind::Chat, STREAM, "{}").await;
        assert_eq!((done.ended.unwrap_err().ending, done.committed), (ending, false));
    }
}

#[tokio::test]
async fn embeddings_and_paths() {
    let body =
        r#"{"data":[{"embedding":[0.1,-2.5e-3]},{"embedding":[1]}],"usage":{"prompt_tokens":4,"total_tokens":4}}"#;
    let server = FakeServer::start(vec![json_answer(body)]).await;
    let options = ProviderOptions {
        query: vec![("api-version".to_owned(), crate::transport::secret::Secret::new("2024-10-21"))],
        key: Some(crate::transport::secret::Secret::new("sk-azure-1")),
        key_place: crate::transport::client::KeyPlace::Header("api-key".to_owned()),
        ..ProviderOptions::at(&server.base_url)
    };
    let settings = OpenAiSettings {
        model: "em bed/2".to_owned(),
        prompt: "x".to_owned(),
        paths: OpenAiPaths {
            embeddings: ModelPath::new("/openai/deployments/{model}/embeddings"),
            ..OpenAiPaths::default()
        },
        ..OpenAiSettings::default()
    };
    let agent = OpenAiAgent::try_new(Arc::new(ProviderClient::try_new(&options).unwrap()), settings).unwrap();
    let done = relayed(&agent, RelayKind::Embeddings, RelayForm::Whole, r#"{"model":"e","input":["a","b"]}"#).await;
    assert_eq!(done.text, body);
    assert_eq!(done.ended.unwrap().usage.map(|usage| usage.prompt_tokens), Some(4));
    let sent = server.requests().concat();
    let first = "POST /openai/deployments/em%20bed%2F2/embeddings?api-version=2024-10-21 HTTP/1.1\r\n";
    assert!(sent.starts_with(first) && sent.contains("api-key: sk-azure-1\r\n"), "{sent}");
    assert!(sent.ends_with(r#"{"model":"em bed/2","input":["a","b"]}"#) && !sent.contains("authorization"), "{sent}");
}

/// Dropping the attempt closes the connection: also for a plain answer, also before the first byte.
#[tokio::test]
async fn who_leaves_stops_the_other_side() {
    for (form, steps) in [
        (RelayForm::Whole, vec![Step::UntilClosed]),
        (STREAM, vec![Step::UntilClosed]),
        (STREAM, vec![stream_head(), Step::Send(SAID.as_bytes().to_vec()), Step::UntilClosed]),
    ] {
        let mut server = FakeServer::start(vec![steps]).await;
        let agent = agent(&server, StreamUpstream::AsAsked);
        let work = relayed(&agent, RelayKind::Chat, form, "{}");
        assert!(tokio::time::timeout(Duration::from_millis(100), work).await.is_err());
        assert!(server.sees_client_leave().await, "{form:?}");
    }
}
