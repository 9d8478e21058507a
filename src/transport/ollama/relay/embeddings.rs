//! Embeddings: OpenAI's request as `/api/embed` takes it, and its vectors back in OpenAI's shape. Nothing is cut to fit.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::{
    model::{
        facts::Ending,
        loose_json,
        reply::{AttemptFailure, Reply, Usage},
    },
    runtime::{
        ports::{AttemptRequest, Progress},
        relay::{Relay, RelayPiece},
        tally::AnswerForm,
    },
    transport::{
        client::ProviderClient,
        error_body::{AnswerHead, Beside, ErrorPointers, failure_inside_success},
        http_agent::request::invalid_input,
        ollama::{failure::corrected, fit::Prompt, settings::CheckedOllama},
        openai::{
            relay::way_out::{hand_on, reply},
            request::headers,
        },
        outgoing::{Ears, Outgoing},
    },
};

/// Where embeddings are asked for, joined to the provider's `base_url`.
const EMBED_PATH: &str = "/api/embed";
/// The most texts of one request, as OpenAI has it.
const INPUTS_MAX: usize = 2_048;

/// How the caller wants its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Floats,
    /// 32-bit floats, lowest byte first, in base64.
    Base64,
}

/// A request that is ready to be sent.
struct Prepared {
    body: Bytes,
    inputs: usize,
    encoding: Encoding,
    /// About how many tokens its texts have.
    counted: u64,
}

/// What embeddings would be refused for before they are asked for.
pub(in crate::transport::ollama) async fn check(agent: &CheckedOllama, relay: &Relay) -> Result<(), AttemptFailure> {
    prepared(agent, relay).await.map(|_| ())
}

/// The request, refused where it cannot be asked here or does not fit.
async fn prepared(agent: &CheckedOllama, relay: &Relay) -> Result<Prepared, AttemptFailure> {
    let asked: Value = serde_json::from_str(relay.body.as_str()).map_err(|error| invalid_input(error.to_string()))?;
    let inputs = inputs(&asked)?;
    let encoding = match asked.get("encoding_format").and_then(Value::as_str) {
        None | Some("float") => Encoding::Floats,
        Some("base64") => Encoding::Base64,
        Some(_) => return Err(invalid_input("encoding_format: must be float or base64".to_owned())),
    };
    let mut counted = 0_u64;
    for text in &inputs {
        counted += Prompt::of_text(text).fit(agent.model(), None, agent.num_ctx).await?;
    }
    let body = body(agent, &inputs, asked.get("dimensions"));
    Ok(Prepared { body, inputs: inputs.len(), encoding, counted })
}

/// Asks for embeddings.
pub(in crate::transport::ollama) async fn embed(
    client: &ProviderClient,
    agent: &CheckedOllama,
    attempt: &AttemptRequest,
    relay: &Relay,
    progress: &Progress,
) -> Result<Reply, AttemptFailure> {
    let Prepared { body, inputs, encoding, counted } = prepared(agent, relay).await?;
    let outgoing = Outgoing {
        method: Method::POST,
        path: EMBED_PATH.to_owned(),
        headers: headers(attempt, AnswerForm::Whole)?,
        body: Some(body),
    };
    let answer =
        client.send_heard(outgoing, &ErrorPointers::default(), Ears::of(attempt, progress, AnswerForm::Whole)).await;
    let answer = answer.map_err(corrected)?;
    let head = answer.head;
    let told = answer.into_body().await?;
    let (vectors, prompt_tokens) = vectors(head, &told)?;
    if vectors.len() != inputs {
        return Err(bad(head, format!("{} texts were sent, and {} embeddings came back", inputs, vectors.len())));
    }
    let usage = prompt_tokens.filter(|told| *told > 0).map_or_else(
        || progress.tally().estimate(|| counted, 0),
        |prompt_tokens| Usage { prompt_tokens, ..Usage::default() },
    );
    let whole = answer_of(&vectors, encoding, agent.model(), usage);
    hand_on(relay, RelayPiece::Whole(Bytes::from(whole.to_string()))).await?;
    Ok(reply(head, Some(usage), None))
}

/// The texts of a request.
fn inputs(asked: &Value) -> Result<Vec<&str>, AttemptFailure> {
    let wrong =
        || invalid_input(format!("input: must be a text or 1 to {INPUTS_MAX} texts; this server takes no tokens"));
    let inputs = match asked.get("input") {
        Some(Value::String(text)) => vec![text.as_str()],
        Some(Value::Array(list)) if (1..=INPUTS_MAX).contains(&list.len()) => {
            list.iter().map(Value::as_str).collect::<Option<Vec<&str>>>().ok_or_else(wrong)?
        }
        _ => return Err(wrong()),
    };
    if inputs.iter().any(|text| text.is_empty()) {
        return Err(invalid_input("input: must not hold an empty text".to_owned()));
    }
    Ok(inputs)
}

fn body(agent: &CheckedOllama, inputs: &[&str], dimensions: Option<&Value>) -> Bytes {
    let mut fields = Map::new();
    fields.insert("model".to_owned(), json!(agent.model()));
    fields.insert("input".to_owned(), json!(inputs));
    fields.insert("truncate".to_owned(), json!(false));
    fields.extend(dimensions.filter(|count| !count.is_null()).map(|count| ("dimensions".to_owned(), count.clone())));
    fields.insert("options".to_owned(), json!({ "num_ctx": agent.num_ctx }));
    fields.insert("keep_alive".to_owned(), agent.keep_alive.on_the_wire());
    Bytes::from(Value::Object(fields).to_string())
}

fn bad(head: AnswerHead, message: String) -> AttemptFailure {
    AttemptFailure { status: Some(head.status), ..AttemptFailure::new(Ending::BadReply, message) }
}

/// The vectors of an answer, as its numbers were written, and the tokens that they cost, if told.
fn vectors(head: AnswerHead, told: &[u8]) -> Result<(Vec<Vec<Value>>, Option<u64>), AttemptFailure> {
    let told = loose_json::read(told).map_err(|error| bad(head, format!("the answer is no JSON: {error}")))?;
    let beside = Beside::promised(told.get("embeddings").is_some_and(Value::is_array));
    if let Some(failure) = failure_inside_success(head, &told, &ErrorPointers::default(), beside) {
        return Err(corrected(failure));
    }
    let prompt_tokens = told.get("prompt_eval_count").and_then(crate::transport::usage::tokens);
    let list = match told {
        Value::Object(mut fields) => fields.remove("embeddings"),
        _ => None,
    };
    let Some(Value::Array(list)) = list else { return Err(bad(head, "the answer holds no embeddings".to_owned())) };
    let vector = |value: Value| match value {
        Value::Array(numbers) if !numbers.is_empty() && numbers.iter().all(Value::is_number) => Some(numbers),
        _ => None,
    };
    let vectors: Option<Vec<Vec<Value>>> = list.into_iter().map(vector).collect();
    let vectors = vectors.ok_or_else(|| bad(head, "an embedding of the answer is no list of numbers".to_owned()))?;
    Ok((vectors, prompt_tokens))
}

fn answer_of(vectors: &[Vec<Value>], encoding: Encoding, model: &str, usage: Usage) -> Value {
    let data = vectors.iter().enumerate().map(|(index, numbers)| {
        let embedding = match encoding {
            Encoding::Floats => json!(numbers),
            Encoding::Base64 => json!(base64(numbers)),
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    json!({
        "object": "list", "data": data.collect::<Value>(), "model": model,
        "usage": { "prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens },
    })
}

fn base64(numbers: &[Value]) -> String {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the shape is one of 32-bit floats, which is what the model made"
    )]
    let floats = numbers.iter().map(|number| number.as_f64().unwrap_or(0.0) as f32);
    STANDARD.encode(floats.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests;
