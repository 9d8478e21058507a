//! The same over real HTTP: the model server stands behind an OpenAI-compatible endpoint on this machine's loopback, and the runtime
//! reaches it through its own client. Everything goes [`FASTER`] times as fast as in life, so that it is over within a minute.

use std::{sync::Arc, time::Duration};

use axum::{Json, Router, extract::State, http::StatusCode, response::IntoResponse, routing::post};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use watertight::transport::{
    client::{ProviderClient, ProviderOptions},
    openai::{
        backend::OpenAiAgent,
        settings::{Answer, OpenAiSettings, StreamUpstream},
    },
};

use crate::storm::{
    SERVER, Storm,
    callers::{Export, Plan, Seen, play},
    server::{self, ModelServer, Speed, Work},
    sides::{Failed, Side, start},
};

/// How much faster than life.
pub(crate) const FASTER: f64 = 40.0;
/// All three take turns, so that a machine that is busy for a while is so for all of them.
const ROUNDS: u64 = 2;
/// How long each of them is.
const SPAN: Duration = Duration::from_secs(8);

/// Plays all three; about fifty seconds.
pub(crate) async fn over_http(plan: Plan) -> Result<Storm, Failed> {
    let (mut quiet, mut kept_apart, mut open) = (Seen::default(), Seen::default(), Seen::default());
    let mut servers = [server::Seen::default(); 3];
    for round in 0..ROUNDS {
        let plan = Plan { seed: plan.seed + round, faster: FASTER, ..plan };
        let (alone, idle) = one(plan, Side::Compartments, Export::None(SPAN)).await?;
        let (beside, busy) = one(plan, Side::Compartments, Export::Until(SPAN)).await?;
        let (flooded, full) = one(plan, Side::Open, Export::Until(SPAN)).await?;
        for (all, seen) in [(&mut quiet, alone), (&mut kept_apart, beside), (&mut open, flooded)] {
            all.and(seen);
        }
        for (all, seen) in servers.iter_mut().zip([idle, busy, full]) {
            all.and(seen);
        }
    }
    Ok(Storm { quiet, kept_apart, open, servers })
}

async fn one(plan: Plan, side: Side, export: Export) -> Result<(Seen, server::Seen), Failed> {
    let server = ModelServer::new(Speed { alone: SERVER.alone * FASTER, ..SERVER });
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(Failed::Tokio)?;
    let address = listener.local_addr().map_err(Failed::Tokio)?;
    let routes = Router::new().route("/v1/chat/completions", post(complete)).with_state(Arc::clone(&server));
    let serving = tokio::spawn(async move { axum::serve(listener, routes).await });
    let working = tokio::spawn(Arc::clone(&server).run());
    let agent = agent(&format!("http://{address}/v1")).map_err(|bad| Failed::Backend(bad.to_string()))?;
    let runtime = start(side, SERVER.slots, plan, Arc::new(agent)).await?;
    let assistant = runtime.agent("assistant").ok_or(Failed::NoAgent)?;
    let seen = play(&assistant, plan, export).await;
    runtime.stop(Duration::from_secs(1)).await;
    serving.abort();
    working.abort();
    Ok((seen, server.seen()))
}

/// The runtime's own adapter. What a request costs stands in its message.
fn agent(base_url: &str) -> Result<OpenAiAgent, Box<dyn std::error::Error>> {
    let client = Arc::new(ProviderClient::try_new(&ProviderOptions::at(base_url))?);
    let settings = OpenAiSettings {
        model: "storm".to_owned(),
        prompt: "{{ input.prompt_tokens }} {{ input.output_tokens }}".to_owned(),
        answer: Answer::Text,
        stream_upstream: StreamUpstream::AsAsked,
        ..OpenAiSettings::default()
    };
    Ok(OpenAiAgent::try_new(client, settings)?)
}

/// The endpoint: two numbers in the last message, and the server's time for them.
async fn complete(State(server): State<Arc<ModelServer>>, Json(request): Json<Value>) -> axum::response::Response {
    let Some(work) = work_of(&request) else { return StatusCode::BAD_REQUEST.into_response() };
    server.answer(work).await;
    let usage = json!({
        "prompt_tokens": work.prompt_tokens,
        "completion_tokens": work.output_tokens,
        "total_tokens": work.tokens(),
    });
    let message = json!({ "role": "assistant", "content": "done" });
    let choice = json!({ "index": 0, "message": message, "finish_reason": "stop" });
    Json(json!({ "id": "storm", "object": "chat.completion", "model": "storm", "choices": [choice], "usage": usage }))
        .into_response()
}

fn work_of(request: &Value) -> Option<Work> {
    let text = request.get("messages")?.as_array()?.last()?.get("content")?.as_str()?;
    let (prompt_tokens, output_tokens) = text.split_once(' ')?;
    Some(Work { prompt_tokens: prompt_tokens.parse().ok()?, output_tokens: output_tokens.parse().ok()? })
}
