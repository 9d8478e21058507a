//! The test kit: scripted agents, virtual time and assertions on transitions. The far end of every port is in the test's hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test kit fails loudly")]
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of the kit")]

pub mod model_server;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use watertight::{
    model::{
        facts::Ending,
        name::Name,
        reply::{AttemptFailure, Reply},
    },
    policy::{breaker::settings::BreakerSettings, retry_settings::RetrySettings, slow::SlowBy},
    runtime::{
        builder::RuntimeBuilder,
        call::{CallError, CallReply, CallRequest},
        engine::Runtime,
        ports::{AttemptRequest, Backend, BoxFuture, Hold, Progress},
        settings::{AgentSettings, ProviderSettings, RestartSettings, Timeouts, WarmthSettings},
    },
};

/// What a scripted agent does with one attempt.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Answers at once.
    Good,
    /// Answers this at once.
    Say(Value),
    /// Fails at once.
    Fail(AttemptFailure),
    /// Never answers.
    Hang,
    /// Panics.
    Panic,
    /// Sends a piece of content, then does the other thing.
    Content(Box<Answer>),
    /// Does the other thing after a while.
    After(Duration, Box<Answer>),
    /// Works on a blocking thread that nobody can interrupt.
    Block(Duration),
}

impl Answer {
    /// An answer with an error status.
    pub fn status(status: u16) -> Self {
        let mut failure = AttemptFailure::new(Ending::status(status), format!("status {status}"));
        failure.status = Some(status);
        Self::Fail(failure)
    }

    /// An answer with an error status that says when to come back.
    pub fn status_after(status: u16, retry_after: Duration) -> Self {
        let mut failure = AttemptFailure::new(Ending::status(status), format!("status {status}"));
        failure.status = Some(status);
        failure.retry_after = Some(retry_after);
        Self::Fail(failure)
    }

    /// An attempt that ends like this.
    pub fn ending(ending: Ending) -> Self {
        Self::Fail(AttemptFailure::new(ending, "scripted"))
    }

    /// The same after a while.
    pub fn after(self, wait: Duration) -> Self {
        Self::After(wait, Box::new(self))
    }
}

type Script = Box<dyn Fn(&AttemptRequest, usize) -> Answer + Send + Sync>;

/// An agent that does what the test says, and counts.
pub struct Scripted {
    script: Mutex<Arc<Script>>,
    /// Attempts so far.
    pub attempts: AtomicUsize,
    /// Attempts under way.
    pub running: Arc<AtomicU32>,
    /// The most attempts that were ever under way together.
    pub peak: AtomicU32,
    /// Requests as they came.
    pub requests: Mutex<Vec<AttemptRequest>>,
}

impl Scripted {
    /// An agent that does what `script` says of its nth attempt (from 0).
    pub fn new(script: impl Fn(&AttemptRequest, usize) -> Answer + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            script: Mutex::new(Arc::new(Box::new(script))),
            attempts: AtomicUsize::new(0),
            running: Arc::new(AtomicU32::new(0)),
            peak: AtomicU32::new(0),
            requests: Mutex::new(Vec::new()),
        })
    }

    /// An agent that always does the same.
    pub fn always(answer: Answer) -> Arc<Self> {
        Self::new(move |_, _| answer.clone())
    }

    /// From now on it does this.
    pub fn now(&self, answer: Answer) {
        *self.script.lock().unwrap() = Arc::new(Box::new(move |_, _| answer.clone()));
    }

    /// Attempts so far.
    pub fn count(&self) -> usize {
        self.attempts.load(Ordering::SeqCst)
    }
}

struct Running(Arc<AtomicU32>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Backend for Scripted {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async move {
            let number = self.attempts.fetch_add(1, Ordering::SeqCst);
            // What is kept for the test's eyes must not keep the call's slots.
            let seen = AttemptRequest { hold: Hold::of(Arc::new(())), ..request.clone() };
            self.requests.lock().unwrap().push(seen);
            let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            let _running = Running(Arc::clone(&self.running));
            self.peak.fetch_max(now, Ordering::SeqCst);
            let script = Arc::clone(&self.script.lock().unwrap());
            let mut answer = script(request, number);
            loop {
                answer = match answer {
                    Answer::Good => return Ok(Reply::of(json!({ "from": request.agent, "input": *request.input }))),
                    Answer::Say(output) => return Ok(Reply::of(output)),
                    Answer::Fail(failure) => return Err(failure),
                    Answer::Hang => std::future::pending().await,
                    Answer::Panic => panic!("scripted panic"),
                    Answer::Content(then) => {
                        progress.content("piece").await;
                        *then
                    }
                    Answer::After(wait, then) => {
                        tokio::time::sleep(wait).await;
                        *then
                    }
                    Answer::Block(wait) => {
                        let hold = request.hold.clone();
                        let blocked = tokio::task::spawn_blocking(move || {
                            std::thread::sleep(wait);
                            drop(hold);
                        });
                        blocked.await.unwrap();
                        Answer::Good
                    }
                };
            }
        })
    }
}

/// A name.
pub fn name(text: &str) -> Name {
    Name::try_new(text).unwrap()
}

/// A provider without slots of its own.
pub fn provider(of: &str) -> ProviderSettings {
    let breaker = BreakerSettings { open_jitter: 0.0, ..BreakerSettings::provider_default() };
    ProviderSettings { breaker, ..ProviderSettings::new(name(of)) }
}

/// An agent on `provider` with the defaults of the documentation, but for jitter and retries: none.
pub fn agent(of: &str, provider: &str) -> AgentSettings {
    AgentSettings {
        name: name(of),
        provider: name(provider),
        model: None,
        slots: 10,
        timeouts: Timeouts {
            connect: Duration::from_secs(2),
            first_token: None,
            stall: None,
            attempt: Some(Duration::from_secs(60)),
            call: Duration::from_secs(180),
        },
        slow_by: SlowBy::Total,
        breaker: BreakerSettings { open_jitter: 0.0, ..BreakerSettings::default() },
        retry: RetrySettings { attempts_max: 1, ..RetrySettings::default() },
        restart: RestartSettings::default(),
        warmth: WarmthSettings::default(),
    }
}

/// A runtime builder with a fixed seed.
pub fn builder() -> RuntimeBuilder {
    Runtime::builder().seed(7)
}

/// A runtime with one agent `draft` on provider `local`.
pub async fn one_agent(settings: AgentSettings, backend: Arc<Scripted>) -> Runtime {
    builder().provider(provider("local")).agent(settings, backend).start().await.unwrap()
}

/// Calls `agent` once and lets the supervisor judge it.
pub async fn call(runtime: &Runtime, agent: &str) -> Result<CallReply, CallError> {
    let result = runtime.agent(agent).unwrap().call(CallRequest::of(json!({"x": 1}))).await;
    settle().await;
    result
}

/// Starts a call in a task of its own.
pub fn call_later(runtime: &Runtime, agent: &str) -> tokio::task::JoinHandle<Result<CallReply, CallError>> {
    let handle = runtime.agent(agent).unwrap();
    tokio::spawn(async move { handle.call(CallRequest::of(Value::Null)).await })
}

/// Lets every task that is ready run, without moving the clock.
pub async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// Moves virtual time.
pub async fn pass(time: Duration) {
    settle().await;
    tokio::time::sleep(time).await;
    settle().await;
}

/// The code of a result, `OK` for a good one.
pub fn code(result: &Result<CallReply, CallError>) -> String {
    match result {
        Ok(_) => "OK".into(),
        Err(error) => error.envelope.error_code.as_str().into(),
    }
}
