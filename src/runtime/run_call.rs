//! A step's call: the task that waits for its answer in the run's stead, and the words that plan and call exchange.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    call::{CallContext, CallError, CallReply, CallRequest, Degraded},
    fallback::Admitted,
    handle::AgentHandle,
    ladder::Descent,
    orchestrator::OrchestratorMessage,
    ports::{Asked, BoxFuture},
    run_cell::{RunCell, Told},
    run_table::RunTable,
};
use crate::{
    model::{
        envelope::{Envelope, ErrorCode},
        event::EventType,
        run::AttemptRecord,
    },
    workflow::{
        definition::Effects,
        plan::{
            action::{CallDone, CallFailed, CallRequest as StepRequest, Instead, Resend, StepKey},
            run_plan::RunPlan,
        },
    },
};

/// Pieces of content are gathered for so long before they become one event.
const DELTA_GATHER: Duration = Duration::from_millis(200);
/// Retries that may be under way to a run.
const RETRIES_MAX: usize = 16;
/// Pieces that may be under way between an attempt and its run.
const DELTAS_MAX: usize = 64;

/// Who a step's call is for, and until when.
pub(crate) fn context_of(run: &RunCell, plan: &RunPlan, request: &StepRequest) -> CallContext {
    CallContext {
        run_id: Some(run.id.clone()),
        step: Some(plan.workflow().steps()[request.key.step].id().to_string()),
        idempotency_key: Some(idempotency_key(run, plan, request.key)),
        prompt: run.prompts.get(request.agent.as_str()).cloned(),
        deadline: Some(plan.deadline()),
        timeout: request.timeout,
        asked: Some(Asked { input: Arc::clone(&request.input), relay: None }),
        ..run.context.clone()
    }
}

/// The same over attempts, re-sends and restarts.
pub(crate) fn idempotency_key(run: &RunCell, plan: &RunPlan, key: StepKey) -> String {
    let step = plan.workflow().steps()[key.step].id();
    let index = key.index.map_or_else(|| "-".to_owned(), |index| index.to_string());
    format!("{}/{step}/{index}/{}", run.id, key.iteration)
}

/// How a step's call begins.
pub(crate) enum Begins {
    /// A target took it. What refuses or fails then goes down its ladder, if it has one.
    Admitted(Box<Admitted>),
    /// It was refused, and goes down its ladder at once.
    Refused(Box<CallError>),
    /// It was refused or failed before, and only this rung is tried.
    Instead(Box<Instead>),
}

/// Starts the task that waits for the answer. It belongs to no actor.
pub(crate) fn start(
    (front, begins): (&AgentHandle, Begins),
    context: CallContext,
    (run, runs): (&Arc<RunCell>, &Arc<RunTable>),
    (step, effects): (String, Effects),
    request: &StepRequest,
    abort: CancellationToken,
) {
    let (run, runs) = (Arc::clone(run), Arc::clone(runs));
    let shared = Arc::clone(&front.shared);
    let key = request.key;
    let streams = front.agent.settings.timeouts.first_token.is_some();
    let (deltas, pieces) = streams.then(|| mpsc::channel(DELTAS_MAX)).unzip();
    let (retried, retries) = mpsc::channel(RETRIES_MAX);
    let call = CallRequest { input: Arc::clone(&request.input), context, deltas, retried: Some(retried), relay: None };
    let call = answer_of(front, begins, call);
    let (all, of_runs) = (shared.tracker.clone(), shared.run_steps.clone());
    let once = (effects == Effects::Once).then(|| shared.steps_made_once.token());
    all.spawn(of_runs.track_future(async move {
        let _counted = once;
        let told = follow(call, pieces, retries, |news| {
            let (kind, mut data) = match news {
                News::Content(text) => (EventType::StepDelta, json!({ "text": text })),
                News::Retried(attempt) => (EventType::StepRetried, json!(attempt)),
            };
            data["index"] = json!(key.index);
            data["iteration"] = json!(key.iteration);
            run.append(&shared, kind, Some(step.clone()), data);
            run.send_beside(&shared, &runs);
        });
        tokio::select! {
            biased;
            result = told => {
                run.tell(Told::Replied(key, Box::new(result)));
                shared.orchestrator.cast(OrchestratorMessage::Wake(Arc::clone(&run)));
            }
            // Leaving drops the call's future, and with it everything upstream.
            () = abort.cancelled() => {}
        }
    }));
}

/// Sends the call, where a target took it, and gives back what waits for its end.
fn answer_of(
    front: &AgentHandle,
    begins: Begins,
    call: CallRequest,
) -> BoxFuture<'static, Result<CallReply, CallError>> {
    match begins {
        Begins::Admitted(admitted) => {
            let descent = front.descent(&call).map(Descent::for_a_step);
            let routed = admitted.send(call);
            Box::pin(async move {
                match (routed.answer().await, descent) {
                    (Err(error), Some(descent)) => descent.go(error).await,
                    (result, _) => result,
                }
            })
        }
        Begins::Refused(error) => match front.descent(&call).map(Descent::for_a_step) {
            Some(descent) => Box::pin(descent.go(*error)),
            None => Box::pin(std::future::ready(Err(*error))),
        },
        Begins::Instead(instead) => {
            let Instead { rung, cause, error } = *instead;
            let descent = front.descent_to(rung, &call).for_a_step();
            Box::pin(descent.go_for(cause, CallError::refused(error)))
        }
    }
}

/// What a call shows of itself before it ends.
enum News {
    Content(String),
    Retried(AttemptRecord),
}

/// Waits for the answer and passes on what happens meanwhile; the last piece before the answer.
async fn follow(
    answer: impl Future<Output = Result<CallReply, CallError>>,
    mut pieces: Option<mpsc::Receiver<String>>,
    mut retries: mpsc::Receiver<AttemptRecord>,
    pass_on: impl Fn(News),
) -> Result<CallReply, CallError> {
    tokio::pin!(answer);
    let mut gathered = String::new();
    let flush = tokio::time::sleep(DELTA_GATHER);
    tokio::pin!(flush);
    let result = loop {
        tokio::select! {
            biased;
            Some(piece) = next_piece(&mut pieces) => {
                if gathered.is_empty() {
                    flush.as_mut().reset(tokio::time::Instant::now() + DELTA_GATHER);
                }
                gathered.push_str(&piece);
            }
            Some(attempt) = retries.recv() => pass_on(News::Retried(attempt)),
            () = &mut flush, if !gathered.is_empty() => pass_on(News::Content(std::mem::take(&mut gathered))),
            result = &mut answer => break result,
        }
    };
    // What came between the last look and the answer.
    while let Ok(attempt) = retries.try_recv() {
        pass_on(News::Retried(attempt));
    }
    while let Some(Ok(piece)) = pieces.as_mut().map(mpsc::Receiver::try_recv) {
        gathered.push_str(&piece);
    }
    if !gathered.is_empty() {
        pass_on(News::Content(gathered));
    }
    result
}

/// The next piece of content; none from an agent that does not stream, or has ended.
async fn next_piece(pieces: &mut Option<mpsc::Receiver<String>>) -> Option<String> {
    pieces.as_mut()?.recv().await
}

/// A call's end in the plan's words.
pub(crate) fn as_plan_result(result: Result<CallReply, CallError>) -> Result<CallDone, CallFailed> {
    match result {
        Ok(reply) => {
            let instead = reply.degraded.map(|degraded| {
                let Degraded { cause, action, error } = *degraded;
                Box::new(Instead { rung: action, cause, error })
            });
            Ok(CallDone { output: reply.output, usage: reply.usage, attempts: reply.attempts, instead })
        }
        Err(CallError { deferred: Some(_), degraded: Some(degraded), envelope, attempts, usage, .. }) => {
            let Degraded { cause, action, .. } = *degraded;
            let instead = Some(Box::new(Instead { rung: action, cause, error: *envelope }));
            Ok(CallDone { output: Value::Null, usage, attempts, instead })
        }
        Err(error) => Err(CallFailed {
            resend: if error.nothing_sent { resend_of(&error.envelope) } else { Resend::Never },
            envelope: *error.envelope,
            attempts: error.attempts,
            usage: error.usage,
        }),
    }
}

/// A refusal of our own in the plan's words.
pub(crate) fn own_refusal(envelope: Envelope) -> CallFailed {
    let resend = resend_of(&envelope);
    CallFailed { envelope, resend, attempts: Vec::new(), usage: None }
}

fn resend_of(refused: &Envelope) -> Resend {
    if refused.error_code == ErrorCode::NotFound { Resend::WhenBack } else { Resend::Allowed }
}

/// A refusal that the plan must not wait out.
pub(crate) fn not_resendable(envelope: Envelope) -> CallFailed {
    CallFailed { envelope, resend: Resend::Never, attempts: Vec::new(), usage: None }
}
