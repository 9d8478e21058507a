//! Requests in OpenAI's shape, and what is asked of Ollama for them.

use super::*;
use crate::{
    model::facts::Ending,
    transport::{
        ollama::settings::{KeepAlive, OllamaSettings},
        openai::settings::OpenAiSettings,
        shared_cases,
    },
};

fn agent() -> CheckedOllama {
    let asked =
        OpenAiSettings { model: "qwen2.5:3b".to_owned(), max_output_tokens: Some(500), ..OpenAiSettings::default() };
    CheckedOllama::try_new(OllamaSettings { asked, num_ctx: 4_096, keep_alive: KeepAlive::Forever }).unwrap()
}

async fn asked(body: &str) -> Result<Value, AttemptFailure> {
    let body = RawObject::try_new(body.as_bytes().to_vec()).unwrap();
    chat(&agent(), &body, AnswerForm::Stream).await.map(|asked| serde_json::from_slice(&asked.body).unwrap())
}

/// A request that says hello and this.
fn with(members: &str) -> String {
    format!(r#"{{"model":"gpt","messages":[{{"role":"user","content":"hello"}}]{members}}}"#)
}

#[tokio::test]
async fn what_every_request_becomes() {
    let got = asked(&with(r#","stream":false,"user":"u","store":true,"keep_alive":0,"options":{"num_ctx":1}"#))
        .await
        .unwrap();
    let want = json!({
        "model": "qwen2.5:3b",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": true,
        "options": {"num_ctx": 4096, "num_predict": 500},
        "keep_alive": -1,
        "truncate": false,
        "shift": false,
    });
    assert_eq!(got, want, "context and stay are the agent's, whatever a caller says");
}

#[tokio::test]
async fn members_that_have_a_counterpart() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    let (a, b) = (tool("a"), tool("b"));
    let tools = format!(r#","tools":[{a},{b}]"#);
    for (members, place, want) in [
        (r#","max_tokens":7"#.to_owned(), "/options/num_predict", json!(7)),
        (r#","max_tokens":7,"max_completion_tokens":9"#.to_owned(), "/options/num_predict", json!(9)),
        (r#","max_tokens":null"#.to_owned(), "/options/num_predict", json!(500)),
        (r#","temperature":0.25,"top_k":3"#.to_owned(), "/options/temperature", json!(0.25)),
        (r#","stop":"END""#.to_owned(), "/options/stop", json!(["END"])),
        (r#","stop":["a","b"]"#.to_owned(), "/options/stop", json!(["a", "b"])),
        (r#","response_format":{"type":"json_object"}"#.to_owned(), "/format", json!("json")),
        (
            r#","response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object"}}}"#
                .to_owned(),
            "/format",
            json!({"type": "object"}),
        ),
        (r#","response_format":{"type":"text"}"#.to_owned(), "/format", Value::Null),
        (r#","reasoning_effort":"none""#.to_owned(), "/think", json!(false)),
        (r#","reasoning_effort":"high""#.to_owned(), "/think", json!("high")),
        (r#","logprobs":true,"top_logprobs":2"#.to_owned(), "/top_logprobs", json!(2)),
        (tools.clone(), "/tools", json!([a, b])),
        (tools.clone() + r#","tool_choice":"auto""#, "/tools", json!([a, b])),
        (tools.clone() + r#","tool_choice":"required""#, "/tools", json!([a, b])),
        (tools.clone() + r#","tool_choice":"none""#, "/tools", Value::Null),
        (tools + r#","tool_choice":{"type":"function","function":{"name":"b"}}"#, "/tools", json!([b])),
        (r#","tools":[]"#.to_owned(), "/tools", Value::Null),
        (r#","n":1"#.to_owned(), "/n", Value::Null),
    ] {
        let got = asked(&with(&members)).await.unwrap();
        assert_eq!(got.pointer(place).cloned().unwrap_or_default(), want, "{members}");
    }
}

#[tokio::test]
async fn what_is_refused_before_it_is_sent() {
    let long = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "word and word ".repeat(4_000));
    for (body, status, part) in [
        (with(r#","n":2"#), 400, "n: this server gives one answer"),
        (with(r#","max_tokens":0"#), 400, "max_tokens: must be"),
        (with(r#","max_tokens":"7""#), 400, "max_tokens: must be"),
        (with(r#","temperature":"hot""#), 400, "temperature: must be a number"),
        (with(r#","stop":[1]"#), 400, "stop: must be"),
        (with(r#","tools":{}"#), 400, "tools: must be a list"),
        (with(r#","tools":[],"tool_choice":{"function":{"name":"a"}}"#), 400, "tool_choice: names none"),
        (with(r#","response_format":{"type":"xml"}"#), 400, "response_format.type: must be"),
        (with(r#","response_format":{"type":"json_schema"}"#), 400, "response_format.json_schema.schema: must be"),
        (with(r#","reasoning_effort":"a bit""#), 400, "reasoning_effort: must be"),
        ("{}".to_owned(), 400, "messages: must be a list"),
        (r#"{"messages":[]}"#.to_owned(), 400, "nothing is asked"),
        (with(r#","max_tokens":4096"#), 413, "num_ctx = 4096"),
        (long, 413, "num_ctx = 4096"),
    ] {
        let failure = asked(&body).await.unwrap_err();
        let Ending::Status { status: told, retryable, .. } = failure.ending else { panic!("{body:.80}") };
        assert_eq!((told, retryable, failure.status), (status, Some(false), None), "{body:.80}");
        assert!(failure.message.contains(part), "{body:.80}: {}", failure.message);
    }
}

/// TRAPS B34 through the gateway.
#[tokio::test]
async fn b34_requests_of_the_case() {
    for (file, sent) in [("request_system_only.json", false), ("request_normal.json", true)] {
        let Some(body) = shared_cases::text(&format!("cases/B34/{file}")) else { return };
        assert_eq!(asked(&body).await.is_ok(), sent, "{file}");
    }
}
