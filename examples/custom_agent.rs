//! Watertight as a library: two agents that are Rust functions, a workflow that is built in Rust, one run.
//!
//! `cargo run --example custom_agent -- "some words to count"`

use std::{collections::BTreeSet, error::Error, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::json;
use watertight::{
    model::name::Name,
    runtime::{
        call::{CallContext, CallRequest},
        engine::Runtime,
        function_agent::{AgentFailure, CallInfo, FunctionAgent},
        run_handle::RunRequest,
        settings::{AgentSettings, ProviderSettings},
    },
    workflow::{
        builder::{StepBuilder, WorkflowBuilder},
        definition::InputKind,
    },
};

#[derive(Deserialize)]
struct Text {
    text: String,
}

#[derive(Deserialize, Serialize)]
struct Counted {
    words: usize,
    longest: String,
}

#[derive(Serialize)]
struct Headline {
    headline: String,
}

/// Pure work on a thread of its own. A text without words is the caller's fault: it opens no breaker and is not tried again.
#[allow(clippy::needless_pass_by_value, reason = "an agent owns its input")]
fn count(input: Text, _: &CallInfo) -> Result<Counted, AgentFailure> {
    let longest = input.text.split_whitespace().max_by_key(|word| word.chars().count());
    let longest = longest.ok_or_else(|| AgentFailure::rejected("there is not one word in it"))?;
    Ok(Counted { words: input.text.split_whitespace().count(), longest: longest.to_owned() })
}

/// Waits for something, as a model would. It is not well at its first attempt, so the runtime asks once more.
async fn headline(input: Counted, info: CallInfo) -> Result<Headline, AgentFailure> {
    tokio::time::sleep(Duration::from_millis(50)).await;
    if info.attempt == 1 {
        return Err(AgentFailure::unavailable("not quite awake"));
    }
    Ok(Headline { headline: format!("{} words, and {} is the longest", input.words, input.longest) })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let text = std::env::args().nth(1).unwrap_or_else(|| "one agent's flood never sinks the ship".to_owned());

    let (here, counter, editor) = (Name::try_new("here")?, Name::try_new("counter")?, Name::try_new("editor")?);
    let runtime = Runtime::builder()
        .provider(ProviderSettings::new(here.clone()))
        .agent(AgentSettings::new(counter.clone(), here.clone()), Arc::new(FunctionAgent::blocking(count)))
        .agent(
            AgentSettings { slots: 2, ..AgentSettings::new(editor.clone(), here) },
            Arc::new(FunctionAgent::new(headline)),
        )
        .start()
        .await?;

    // One call of one agent.
    let agent = runtime.agent("counter").ok_or("counter is here")?;
    match agent.call(CallRequest::of(json!({ "text": text }))).await {
        Ok(reply) => println!("call:  {}", reply.output),
        Err(error) => println!("call:  {}: {}", error.envelope.error_code, error.envelope.message),
    }

    // The same as a step of a run.
    let workflow = WorkflowBuilder::new("headline")
        .input("text", InputKind::Text)
        .step(StepBuilder::new("count", "counter").input([("text", "input.text")]))
        .step(StepBuilder::new("write", "editor").input("steps.count.output"))
        .output("steps.write.output.headline")
        .build(&BTreeSet::from([counter, editor]))?;
    let request = RunRequest {
        workflow: Arc::new(workflow),
        input: serde_json::Map::from_iter([("text".to_owned(), json!(text))]),
        deadline: Some(Duration::from_secs(10)),
        context: CallContext::default(),
    };
    let record = runtime.start_run(request).map_err(|envelope| envelope.message)?.finished().await;
    println!("run:   {} {}", record.status.as_str(), record.output.clone().unwrap_or_default());
    for step in &record.steps {
        println!("       {} ({}): {} attempts, {}", step.id, step.agent, step.attempts.len(), step.status.as_str());
    }
    runtime.stop(Duration::from_secs(1)).await;
    Ok(())
}
