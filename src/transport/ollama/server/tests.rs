//! Questions to an Ollama server, over real sockets.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::runtime::ports::{Backend, ColdStart, WarmUp};
use crate::transport::{
    client::ProviderOptions,
    fake_server::{FakeServer, Step, answer},
    ollama::{
        backend::OllamaAgent,
        settings::{KeepAlive, OllamaSettings},
    },
    openai::settings::OpenAiSettings,
};

fn client(server: &FakeServer) -> ProviderClient {
    ProviderClient::try_new(&ProviderOptions::at(&server.base_url)).unwrap()
}

fn json_answer(status: u16, body: &str) -> Vec<Step> {
    answer(status, "content-type: application/json; charset=utf-8\r\n", body)
}

#[tokio::test]
async fn which_models_are_loaded() {
    let told = json!({"models": [
        {"name": "qwen2.5:3b", "model": "qwen2.5:3b", "size": 5, "expires_at": "2026-11-30T14:38:31.83753+09:00",
         "size_vram": 5, "context_length": 8192},
        {"name": "llama3:latest", "expires_at": "soon", "context_length": 0},
        {"size": 1},
    ]});
    let server = FakeServer::start(vec![json_answer(200, &told.to_string())]).await;
    let loaded = OllamaServer::new(&client(&server)).loaded().await.unwrap();
    let want = [
        LoadedModel { name: "qwen2.5:3b".to_owned(), expires_at_ms: Some(1_796_017_111_837), num_ctx: Some(8_192) },
        LoadedModel { name: "llama3:latest".to_owned(), expires_at_ms: None, num_ctx: None },
    ];
    assert_eq!(loaded, want);
    assert!(
        loaded[1].is("llama3")
            && loaded[1].is("Llama3:latest")
            && !loaded[1].is("llama3:8b")
            && !loaded[0].is("qwen2.5")
    );
    assert!(server.requests().concat().starts_with("GET /api/ps HTTP/1.1\r\n"));
}

#[tokio::test]
async fn other_questions() {
    let tags = r#"{"models":[{"name":"a:latest","model":"a:latest"},{"name":"b:1b"}]}"#;
    let server = FakeServer::start(vec![
        json_answer(200, tags),
        json_answer(200, r#"{"version":"0.12.3"}"#),
        json_answer(200, r#"{"models":null}"#),
        json_answer(200, r#"{"data":[]}"#),
        json_answer(404, "404 page not found"),
    ])
    .await;
    let client = client(&server);
    let asked = OllamaServer::new(&client);
    assert_eq!(asked.models().await.unwrap(), ["a:latest", "b:1b"]);
    assert_eq!(asked.version().await.unwrap(), "0.12.3");
    assert_eq!(asked.loaded().await.unwrap(), []);
    assert_eq!(asked.version().await.unwrap_err().ending, Ending::BadReply);
    assert_eq!(asked.version().await.unwrap_err().ending, Ending::status(404));
}

fn agent(server: &FakeServer) -> OllamaAgent {
    let asked = OpenAiSettings { model: "m:8b".to_owned(), ..OpenAiSettings::default() };
    let settings = OllamaSettings { asked, num_ctx: 4_096, keep_alive: KeepAlive::Forever };
    OllamaAgent::try_new(Arc::new(client(server)), settings).unwrap()
}

#[tokio::test]
async fn a_model_is_loaded_as_its_agent_uses_it() {
    let loaded = r#"{"model":"m","message":{"role":"assistant","content":""},"done":true,"done_reason":"load"}"#;
    for (steps, want) in [
        (json_answer(200, loaded), None),
        (json_answer(404, r#"{"error":"model 'm:8b' not found"}"#), Some(Ending::status(404))),
        (json_answer(500, r#"{"error":"model failed to load"}"#), Some(Ending::status(500))),
        (json_answer(200, r#"{"error":"model failed to load"}"#), Some(Ending::status(502))),
        (json_answer(200, r#"{"done":false}"#), Some(Ending::BadReply)),
        (json_answer(200, "<html>"), Some(Ending::BadReply)),
    ] {
        let server = FakeServer::start(vec![json_answer(200, r#"{"models":[]}"#), steps]).await;
        assert_eq!(agent(&server).load().await.err().map(|failure| failure.ending), want);
        let sent = server.requests().concat();
        let body: Value = serde_json::from_str(sent.rsplit("\r\n\r\n").next().unwrap()).unwrap();
        assert_eq!((&body["model"], &body["messages"], &body["stream"]), (&json!("m:8b"), &json!([]), &json!(false)));
        assert_eq!((&body["options"]["num_ctx"], &body["keep_alive"]), (&json!(4_096), &json!(-1)));
    }
}

#[tokio::test]
async fn a_model_that_stands_in_memory_is_not_loaded_again() {
    let told = |num_ctx: u64| json!({"models": [{"name": "m:8b", "context_length": num_ctx}]}).to_string();
    let loaded = r#"{"done":true,"done_reason":"load"}"#;
    for (told, want, requests) in [
        (json_answer(200, &told(4_096)), WarmUp::WasLoaded, 1),
        (json_answer(200, r#"{"models":[{"name":"M:8B"}]}"#), WarmUp::WasLoaded, 1),
        // With another context the server would load it anew anyway.
        (json_answer(200, &told(2_048)), WarmUp::Loaded, 2),
        (json_answer(404, "404 page not found"), WarmUp::Loaded, 2),
    ] {
        let server = FakeServer::start(vec![told, json_answer(200, loaded)]).await;
        assert_eq!(agent(&server).warm_up().await, Ok(want));
        assert_eq!(server.requests().len(), requests);
    }
}

#[tokio::test]
async fn a_load_that_nobody_waits_for_is_let_go() {
    let mut server = FakeServer::start(vec![json_answer(200, r#"{"models":[]}"#), vec![Step::UntilClosed]]).await;
    let agent = agent(&server);
    tokio::select! {
        _ = agent.load() => panic!("nobody answers"),
        () = server.has_requests(2) => {}
    }
    assert!(server.sees_client_leave().await);
}

#[tokio::test]
async fn what_the_runtime_is_told_of_it() {
    let server = FakeServer::start(vec![json_answer(200, r#"{"version":"0.12.3"}"#), json_answer(500, "{}")]).await;
    let forever = agent(&server);
    assert_eq!(forever.cold_start(), ColdStart::OnDemand { keeps_for: None });
    assert!(forever.health().unwrap().await.is_ok());
    assert_eq!(forever.health().unwrap().await.unwrap_err().ending, Ending::status(500));
    let asked = OpenAiSettings { model: "m:8b".to_owned(), ..OpenAiSettings::default() };
    let settings = OllamaSettings { asked, ..OllamaSettings::default() };
    let usual = OllamaAgent::try_new(Arc::new(client(&server)), settings).unwrap();
    assert_eq!(usual.cold_start(), ColdStart::OnDemand { keeps_for: Some(Duration::from_secs(300)) });
}
