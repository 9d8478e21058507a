//! An agent that is a Rust function over serde types: async, or blocking on a thread of its own. It turns values into shapes and back
//! and nothing else; guards, retries and timeouts stay the runtime's.
//!
//! A function agent does not stream: its answer is there at once or not at all.

use std::{future::Future, sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    core::lock,
    ports::{Asked, AttemptRequest, Backend, BoxFuture, Progress, TokenEstimate},
    sync::Mutex,
};
use crate::model::{
    facts::Ending,
    name::Name,
    reply::{AttemptFailure, Reply, Usage},
};

/// The status of a failure that is the agent's own: it counts against its breaker and may be tried again.
const UNAVAILABLE_STATUS: u16 = 503;
/// The status of a failure that is the input's: it counts against nobody and is not tried again.
const REJECTED_STATUS: u16 = 422;
/// The code under which an input of the wrong shape is reported.
const INPUT_CODE: &str = "INPUT_SHAPE";

/// What a function is told beside its input.
#[derive(Debug, Clone)]
pub struct CallInfo {
    /// The agent that is called.
    pub agent: Name,
    /// The call this attempt belongs to.
    pub call_id: String,
    /// The run this call belongs to.
    pub run_id: Option<String>,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// The same over attempts, re-sends and restarts: what must not happen twice is keyed by it.
    pub idempotency_key: String,
    /// What is left until the deadline of call and run.
    pub deadline: Duration,
    /// W3C trace context, as it came.
    pub traceparent: Option<String>,
    /// Who it is for.
    pub tenant: Option<String>,
    /// For which feature.
    pub feature: Option<String>,
    left: CancellationToken,
    usage: Arc<Mutex<Option<Usage>>>,
}

impl CallInfo {
    fn of(request: &AttemptRequest) -> Self {
        Self {
            agent: request.agent.clone(),
            call_id: request.call_id.clone(),
            run_id: request.run_id.clone(),
            attempt: request.attempt,
            idempotency_key: request.idempotency_key.clone(),
            deadline: request.deadline,
            traceparent: request.traceparent.clone(),
            tenant: request.tenant.clone(),
            feature: request.feature.clone(),
            left: CancellationToken::new(),
            usage: Arc::default(),
        }
    }

    /// True once nobody waits for this attempt any more. An async function is simply dropped then; a blocking one holds its slot
    /// until it returns, so a long one should ask now and then.
    pub fn caller_left(&self) -> bool {
        self.left.is_cancelled()
    }

    /// Adds tokens that this attempt used; they count whether it ends well or not.
    pub fn used(&self, usage: Usage) {
        let mut total = lock(&self.usage);
        *total = Some(total.unwrap_or_default().plus(usage));
    }

    fn usage(&self) -> Option<Usage> {
        *lock(&self.usage)
    }
}

/// Why a function could not answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct AgentFailure {
    message: String,
    status: u16,
    retryable: bool,
    user_message: Option<String>,
    code: Option<String>,
    retry_after: Option<Duration>,
}

impl AgentFailure {
    /// The agent is not well: the attempt may be repeated, and its breaker counts it. `message` is for developers.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::of(UNAVAILABLE_STATUS, true, message.into())
    }

    /// The input is at fault: no repetition helps, and no breaker counts it. `message` is for developers.
    pub fn rejected(message: impl Into<String>) -> Self {
        Self::of(REJECTED_STATUS, false, message.into())
    }

    /// A text for a screen.
    #[must_use]
    pub fn with_user_message(mut self, text: impl Into<String>) -> Self {
        self.user_message = Some(text.into());
        self
    }

    /// The agent's own code; it goes out as `details.upstream_code`.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// How long to stay away.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    fn of(status: u16, retryable: bool, message: String) -> Self {
        Self { message, status, retryable, user_message: None, code: None, retry_after: None }
    }

    fn into_attempt_failure(self, usage: Option<Usage>) -> AttemptFailure {
        let ending = Ending::Status {
            status: self.status,
            retryable: Some(self.retryable),
            content_filter: false,
            context_too_long: false,
            quota_spent: None,
        };
        AttemptFailure {
            user_message: self.user_message,
            upstream_code: self.code,
            status: Some(self.status),
            retry_after: self.retry_after,
            usage,
            ..AttemptFailure::new(ending, self.message)
        }
    }
}

type Answer = Result<Value, AttemptFailure>;
type Work = dyn Fn(Arc<Value>, CallInfo) -> BoxFuture<'static, Answer> + Send + Sync;
type BlockingWork = dyn Fn(&Value, &CallInfo) -> Answer + Send + Sync;

#[derive(Clone)]
enum Function {
    Async(Arc<Work>),
    Blocking(Arc<BlockingWork>),
}

/// A [`Backend`] made of a function.
#[derive(Clone)]
pub struct FunctionAgent {
    function: Function,
}

impl std::fmt::Debug for FunctionAgent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.function {
            Function::Async(_) => "async",
            Function::Blocking(_) => "blocking",
        };
        formatter.debug_tuple("FunctionAgent").field(&kind).finish()
    }
}

impl FunctionAgent {
    /// An agent whose work is an async function. It is dropped where it stands when the caller leaves or time runs out, and must not
    /// block its thread: for that there is [`FunctionAgent::blocking`].
    pub fn new<Input, Output, Answering>(
        function: impl Fn(Input, CallInfo) -> Answering + Send + Sync + 'static,
    ) -> Self
    where
        Input: DeserializeOwned + Send + 'static,
        Output: Serialize + 'static,
        Answering: Future<Output = Result<Output, AgentFailure>> + Send + 'static,
    {
        let work = move |input: Arc<Value>, info: CallInfo| -> BoxFuture<'static, Answer> {
            let typed = match read_input::<Input>(&input, &info) {
                Ok(typed) => typed,
                Err(failure) => return Box::pin(std::future::ready(Err(failure))),
            };
            let usage = info.clone();
            let answer = function(typed, info);
            Box::pin(async move { write_output(answer.await, &usage) })
        };
        Self { function: Function::Async(Arc::new(work)) }
    }

    /// An agent whose work blocks: it runs on a thread for such work. Nobody can interrupt a thread, so the call's slots are free
    /// only when the function has returned, also where its caller has left long before ([`CallInfo::caller_left`]).
    pub fn blocking<Input, Output>(
        function: impl Fn(Input, &CallInfo) -> Result<Output, AgentFailure> + Send + Sync + 'static,
    ) -> Self
    where
        Input: DeserializeOwned,
        Output: Serialize,
    {
        let work = move |input: &Value, info: &CallInfo| -> Answer {
            let typed = read_input::<Input>(input, info)?;
            write_output(function(typed, info), info)
        };
        Self { function: Function::Blocking(Arc::new(work)) }
    }
}

impl Backend for FunctionAgent {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        _: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        let info = CallInfo::of(request);
        let input = Arc::clone(&request.input);
        Box::pin(async move {
            // Dropping this future tells a blocking function that nobody waits any more.
            let _left = info.left.clone().drop_guard();
            let shown = info.clone();
            let output = match &self.function {
                Function::Async(work) => work(input, info).await?,
                Function::Blocking(work) => {
                    let (work, hold) = (Arc::clone(work), request.hold.clone());
                    let thread = tokio::task::spawn_blocking(move || {
                        let _slots_until_it_returns = hold;
                        work(&input, &info)
                    });
                    match thread.await {
                        Ok(answer) => answer?,
                        // A panic there is a panic here: the runtime counts it and answers for it.
                        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                        Err(_) => return Err(AttemptFailure::new(Ending::Internal, "the thread pool is stopping")),
                    }
                }
            };
            Ok(Reply { usage: shown.usage(), ..Reply::of(output) })
        })
    }

    /// A function that uses a model says so when it has: what it used is debt in its budgets.
    fn estimate(&self, _: &Asked, _: Option<&str>) -> Option<TokenEstimate> {
        Some(TokenEstimate::NONE)
    }
}

/// An input of another shape is the caller's fault, not the agent's.
fn read_input<Input: DeserializeOwned>(input: &Value, info: &CallInfo) -> Result<Input, AttemptFailure> {
    Input::deserialize(input).map_err(|error| {
        let message = format!("the input is not what agent {} takes: {error}", info.agent);
        AgentFailure::rejected(message).with_code(INPUT_CODE).into_attempt_failure(None)
    })
}

fn write_output<Output: Serialize>(answer: Result<Output, AgentFailure>, info: &CallInfo) -> Answer {
    let output = answer.map_err(|failure| failure.into_attempt_failure(info.usage()))?;
    serde_json::to_value(output).map_err(|error| {
        let message = format!("the output of agent {} is no JSON: {error}", info.agent);
        AttemptFailure { usage: info.usage(), ..AttemptFailure::new(Ending::BadReply, message) }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::runtime::ports::{AttemptTimeouts, Hold, TokioClock};

    #[derive(Debug, Deserialize)]
    struct Words {
        text: String,
    }

    #[derive(Debug, Serialize)]
    struct Count {
        words: usize,
    }

    fn request(input: Value, hold: Hold) -> AttemptRequest {
        AttemptRequest {
            agent: Name::try_new("count").unwrap(),
            input: Arc::new(input),
            call_id: "call".into(),
            run_id: Some("run".into()),
            step: None,
            attempt: 2,
            idempotency_key: "key".into(),
            traceparent: None,
            deadline: Duration::from_secs(9),
            tenant: Some("t".into()),
            feature: None,
            priority: None,
            prompt: None,
            timeouts: AttemptTimeouts { first_token: None, stall: None },
            hold,
            relay: None,
            capture: None,
        }
    }

    async fn ask(agent: &FunctionAgent, input: Value) -> Result<Reply, AttemptFailure> {
        let progress = Progress::start(Arc::new(TokioClock::start()), None);
        agent.attempt(&request(input, Hold::of(Arc::new(()))), &progress).await
    }

    fn count(input: &Words, info: &CallInfo) -> Result<Count, AgentFailure> {
        assert_eq!((info.agent.as_str(), info.attempt, info.idempotency_key.as_str()), ("count", 2, "key"));
        info.used(Usage { prompt_tokens: 3, ..Usage::default() });
        info.used(Usage { output_tokens: 1, ..Usage::default() });
        match input.text.as_str() {
            "ill" => Err(AgentFailure::unavailable("no").with_retry_after(Duration::from_secs(4))),
            "wrong" => Err(AgentFailure::rejected("never").with_code("MINE").with_user_message("Sorry.")),
            text => Ok(Count { words: text.split_whitespace().count() }),
        }
    }

    fn both() -> [FunctionAgent; 2] {
        [
            FunctionAgent::new(async |input: Words, info: CallInfo| count(&input, &info)),
            FunctionAgent::blocking(|input: Words, info| count(&input, info)),
        ]
    }

    #[tokio::test]
    async fn answers_are_values() {
        for agent in both() {
            let reply = ask(&agent, json!({"text": "one two", "more": 1})).await.unwrap();
            assert_eq!(reply.output, json!({"words": 2}), "{agent:?}");
            assert_eq!(
                reply.usage,
                Some(Usage { prompt_tokens: 3, output_tokens: 1, estimated: false, ..Usage::default() })
            );
        }
    }

    #[tokio::test]
    async fn failures_say_whose_they_are() {
        for agent in both() {
            let ill = ask(&agent, json!({"text": "ill"})).await.unwrap_err();
            assert_eq!((ill.status, ill.retry_after), (Some(503), Some(Duration::from_secs(4))));
            assert!(matches!(ill.ending, Ending::Status { status: 503, retryable: Some(true), .. }));
            assert_eq!(ill.usage.map(|usage| usage.prompt_tokens), Some(3), "a failed attempt used tokens too");

            let wrong = ask(&agent, json!({"text": "wrong"})).await.unwrap_err();
            assert!(matches!(wrong.ending, Ending::Status { status: 422, retryable: Some(false), .. }));
            assert_eq!((wrong.upstream_code.as_deref(), wrong.user_message.as_deref()), (Some("MINE"), Some("Sorry.")));

            let shapeless = ask(&agent, json!({"txt": "typo"})).await.unwrap_err();
            assert!(matches!(shapeless.ending, Ending::Status { status: 422, retryable: Some(false), .. }));
            assert!(shapeless.message.contains("missing field `text`"), "{}", shapeless.message);
        }
    }

    #[tokio::test]
    async fn an_output_that_is_no_json_is_a_bad_reply() {
        let agent = FunctionAgent::blocking(|_: Value, _| Ok(BTreeMap::from([((1, 2), 3)])));
        assert_eq!(ask(&agent, Value::Null).await.unwrap_err().ending, Ending::BadReply);
    }

    #[tokio::test]
    async fn a_blocking_function_holds_the_slots_until_it_returns() {
        let slots = Arc::new(());
        let (told, heard) = std::sync::mpsc::channel();
        let (started, mut running) = tokio::sync::mpsc::unbounded_channel();
        let agent = FunctionAgent::blocking(move |_: Value, info| {
            started.send(()).unwrap();
            while !info.caller_left() {
                std::thread::sleep(Duration::from_millis(1));
            }
            told.send(()).unwrap();
            Ok(Value::Null)
        });
        let request = request(Value::Null, Hold::of(slots.clone()));
        let progress = Progress::start(Arc::new(TokioClock::start()), None);
        let attempt = agent.attempt(&request, &progress);
        tokio::select! {
            biased;
            _ = running.recv() => {}
            _ = attempt => panic!("it cannot answer while its caller is here"),
        }
        // Here the attempt was dropped: the caller has left, the thread has not.
        drop(request);
        heard.recv().unwrap();
        while Arc::strong_count(&slots) > 1 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_panic_reaches_the_attempt() {
        let agent = FunctionAgent::blocking(|_: Value, _| -> Result<Value, AgentFailure> { panic!("scripted") });
        let unwound = tokio::spawn(async move { ask(&agent, Value::Null).await }).await;
        assert!(unwound.unwrap_err().is_panic());
    }
}
