//! The request of an own agent: what it always says, what is refused before it.

use serde_json::json;

use super::*;
use crate::transport::{
    ollama::settings::{KeepAlive, OllamaSettings},
    openai::settings::{Answer, OpenAiSettings},
    test_attempt::request as attempt,
};

fn asked() -> OpenAiSettings {
    OpenAiSettings {
        model: "qwen2.5:3b".to_owned(),
        system: Some("style guide".to_owned()),
        prompt: "{{ input.notes }}".to_owned(),
        ..OpenAiSettings::default()
    }
}

fn agent(asked: OpenAiSettings) -> CheckedOllama {
    CheckedOllama::try_new(OllamaSettings { asked, ..OllamaSettings::default() }).unwrap()
}

async fn body(agent: &CheckedOllama, input: Value, wanted: AnswerForm) -> Result<Value, AttemptFailure> {
    chat(agent, &attempt(input), wanted).await.map(|chat| serde_json::from_slice(&chat.body).unwrap())
}

#[tokio::test]
async fn context_and_stay_are_always_sent() {
    let got = body(&agent(asked()), json!({"notes": "사진 3장"}), AnswerForm::Stream).await.unwrap();
    let want = json!({
        "model": "qwen2.5:3b",
        "messages": [{"role": "system", "content": "style guide"}, {"role": "user", "content": "사진 3장"}],
        "stream": true,
        "options": {"num_ctx": 8192, "num_predict": 8192},
        "keep_alive": "300s",
        "truncate": false,
        "shift": false,
    });
    assert_eq!(got, want);
}

#[tokio::test]
async fn what_the_agent_is_told() {
    let schema = json!({"type": "object", "required": ["score"]});
    let asked = OpenAiSettings {
        system: None,
        schema: Some(schema.clone()),
        max_output_tokens: Some(600),
        temperature: Some(0.2),
        seed: Some(7),
        ..asked()
    };
    let settings = OllamaSettings { asked: asked.clone(), num_ctx: 4_096, keep_alive: KeepAlive::Forever };
    let got = body(&CheckedOllama::try_new(settings).unwrap(), json!({"notes": "x"}), AnswerForm::Whole).await.unwrap();
    assert_eq!(got["options"], json!({"temperature": 0.2, "seed": 7, "num_ctx": 4096, "num_predict": 600}));
    assert_eq!((&got["format"], &got["keep_alive"], &got["stream"]), (&schema, &json!(-1), &json!(false)));
    assert_eq!(got["messages"].as_array().unwrap().len(), 1);
    let text = OpenAiSettings { answer: Answer::Text, schema: Some(json!({"type": "object"})), ..asked };
    assert_eq!(body(&agent(text), json!({"notes": "x"}), AnswerForm::Whole).await.unwrap().get("format"), None);
}

#[tokio::test]
async fn pictures_go_beside_the_prompt_as_bytes() {
    let with = |url: &str| json!({"notes": "x", "photos": [{"name": "a.jpg", "image_url": url}]});
    let got = body(&agent(asked()), with("data:image/jpeg;base64,QUJD"), AnswerForm::Stream).await.unwrap();
    assert_eq!(got["messages"][1], json!({"role": "user", "content": "x", "images": ["QUJD"]}));
    let failure = body(&agent(asked()), with("data:image/svg+xml,<svg/>"), AnswerForm::Stream).await.unwrap_err();
    assert!(failure.message.contains("base64"), "{}", failure.message);
}

#[tokio::test]
async fn b34_nothing_asked_is_nothing_sent() {
    for input in [json!({"notes": ""}), json!({"notes": " \n\t"}), json!({})] {
        let failure = body(&agent(asked()), input.clone(), AnswerForm::Stream).await.unwrap_err();
        let crate::model::facts::Ending::Status { status, retryable, .. } = failure.ending else { panic!("{input}") };
        assert_eq!((status, retryable, failure.status), (400, Some(false), None), "{input}");
    }
    let picture = json!({"notes": "", "photos": [{"image_url": "data:image/png;base64,QUJD"}]});
    assert!(body(&agent(asked()), picture, AnswerForm::Stream).await.is_ok());
}

#[tokio::test]
async fn what_does_not_fit_the_context_is_not_sent() {
    let capped = OpenAiSettings { max_output_tokens: Some(1_000), system: None, ..asked() };
    let small = |asked: OpenAiSettings| {
        CheckedOllama::try_new(OllamaSettings { asked, num_ctx: 2_048, ..OllamaSettings::default() }).unwrap()
    };
    for (asked, notes, fits) in [
        (capped.clone(), "안".repeat(600), true),
        (capped, "안녕, ".repeat(900), false),
        (OpenAiSettings { system: None, ..self::asked() }, "a".repeat(6_000), true),
        (OpenAiSettings { system: None, ..self::asked() }, "a word ".repeat(1_200), false),
        (OpenAiSettings { system: Some("a word ".repeat(1_200)), ..self::asked() }, "a".to_owned(), false),
    ] {
        let got = body(&small(asked), json!({"notes": notes}), AnswerForm::Stream).await;
        assert_eq!(got.is_ok(), fits, "{} letters", notes.chars().count());
        if let Err(failure) = got {
            assert!(failure.message.contains("num_ctx = 2048"), "{}", failure.message);
        }
    }
}

#[test]
fn asked_for_a_stream_unless_told_otherwise() {
    use crate::transport::openai::settings::StreamUpstream::{Always, AsAsked};
    for (upstream, watched, want) in [
        (Always, false, AnswerForm::Stream),
        (Always, true, AnswerForm::Stream),
        (AsAsked, true, AnswerForm::Stream),
        (AsAsked, false, AnswerForm::Whole),
    ] {
        let agent = agent(OpenAiSettings { stream_upstream: upstream, ..asked() });
        assert_eq!(wanted(&agent, watched), want);
    }
}
