//! What several topics of this folder need beside the kit.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::sync::broadcast;
use watertight::{
    model::facts::Ending,
    policy::breaker::state::{Reason, StateName},
    runtime::{
        book::BreakerEvent,
        call::{CallContext, CallError, CallReply, CallRequest},
        engine::Runtime,
        settings::{AgentSettings, ProviderSettings},
    },
};

use crate::kit::{Answer, Scripted, agent, builder, call_later, code, provider, settle};

/// The state of a breaker.
pub fn state(runtime: &Runtime, breaker: &str) -> StateName {
    runtime.breaker(breaker).unwrap().state
}

/// Everything that changed since the last look: breaker, new state, reason.
pub fn changes(events: &mut broadcast::Receiver<BreakerEvent>) -> Vec<(String, StateName, Reason)> {
    let mut changes = Vec::new();
    while let Ok(event) = events.try_recv() {
        changes.push((event.breaker.to_string(), event.transition.to, event.transition.reason));
    }
    changes
}

/// A runtime whose agents all lean on one provider, each with a backend of its own.
pub async fn agents_on(provider: ProviderSettings, agents: Vec<AgentSettings>) -> (Runtime, Vec<Arc<Scripted>>) {
    let backends: Vec<Arc<Scripted>> = agents.iter().map(|_| Scripted::always(Answer::Good)).collect();
    let mut builder = builder().provider(provider);
    for (agent, backend) in agents.into_iter().zip(&backends) {
        builder = builder.agent(agent, backend.clone());
    }
    (builder.start().await.unwrap(), backends)
}

/// The four agents of the reference pipeline on provider `local`.
pub async fn four_agents() -> (Runtime, Vec<Arc<Scripted>>) {
    agents_on(provider("local"), FOUR.map(|of| agent(of, "local")).into()).await
}

/// Their names.
pub const FOUR: [&str; 4] = ["style", "draft", "review", "meta"];

/// Calls that hang until the test lets go of them: how many were admitted is how many slots and trials there are.
pub async fn hold(runtime: &Runtime, agent: &str, backend: &Scripted, calls: usize) -> (usize, Vec<Call>) {
    let before = backend.count();
    backend.now(Answer::Hang);
    let calls: Vec<Call> = (0..calls).map(|_| Call(call_later(runtime, agent))).collect();
    settle().await;
    (backend.count() - before, calls)
}

/// A call in a task of its own that is cancelled when the test drops it.
pub struct Call(pub tokio::task::JoinHandle<Result<CallReply, CallError>>);

impl Call {
    /// Its result.
    pub async fn end(mut self) -> Result<CallReply, CallError> {
        (&mut self.0).await.unwrap()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// From now on all of them do this.
pub fn all(backends: &[Arc<Scripted>], answer: &Answer) {
    for backend in backends {
        backend.now(answer.clone());
    }
}

/// A call with a context.
pub async fn call_with(runtime: &Runtime, agent: &str, context: CallContext) -> Result<CallReply, CallError> {
    let request = CallRequest { context, ..CallRequest::of(Value::Null) };
    let result = runtime.agent(agent).unwrap().call(request).await;
    settle().await;
    result
}

/// A detail of an error's envelope, as text.
pub fn detail(result: &Result<CallReply, CallError>, key: &str) -> String {
    let error = result.as_ref().unwrap_err();
    error.envelope.details.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// How many of `calls` made one after the other ended with each code.
pub async fn codes(runtime: &Runtime, agent: &str, calls: usize) -> std::collections::BTreeMap<String, usize> {
    let mut codes = std::collections::BTreeMap::new();
    for _ in 0..calls {
        *codes.entry(code(&crate::kit::call(runtime, agent).await)).or_insert(0) += 1;
    }
    codes
}

/// Seconds.
pub const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Milliseconds.
pub const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Nobody listens there.
pub fn refused_connection() -> Answer {
    Answer::ending(Ending::Network { connected: false })
}
