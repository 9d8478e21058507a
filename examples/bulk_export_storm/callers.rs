//! Who calls: people who ask, read and ask again, and the workers of a bulk export that turn to the next document when one is done.
//! Everybody who is refused stays away for as long as they are told and asks for the same again; an export loses no document.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use watertight::{
    policy::chance::Chance,
    runtime::{
        call::{CallContext, CallError, CallRequest},
        handle::AgentHandle,
    },
};

use crate::storm::{samples::Samples, server::Work};

/// The customers; the first one exports.
pub(crate) const TENANTS: [&str; 3] = ["acme", "birch", "cedar"];
/// A person does not ask for the same more often.
const ASKED_MAX: u32 = 20;

/// Who calls how much.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// All chance comes from here.
    pub(crate) seed: u64,
    /// People who chat.
    pub(crate) users: u64,
    /// The mean of the time that a person takes before the next question.
    pub(crate) think: Duration,
    /// Documents that the export works on at once.
    pub(crate) workers: u64,
    /// Tokens of a document, its prompt and its answer together.
    pub(crate) document_tokens: u64,
    /// How much faster than life everything is.
    pub(crate) faster: f64,
}

/// What was seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// Of everybody who chats.
    pub(crate) chat: Samples,
    /// Of those of the tenant that exports.
    pub(crate) neighbours: Samples,
    /// Of the export.
    pub(crate) export: Samples,
    /// How long it took.
    pub(crate) span: Duration,
}

impl Seen {
    /// Both together.
    #[allow(dead_code, reason = "only over HTTP, where there are several rounds")]
    pub(crate) fn and(&mut self, other: Self) {
        self.chat.and(other.chat);
        self.neighbours.and(other.neighbours);
        self.export.and(other.export);
        self.span += other.span;
    }
}

/// What is asked for beside chatting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Export {
    /// Nothing, for so long.
    None(Duration),
    /// So many documents; it takes as long as it takes.
    Documents(u64),
    /// As many documents as can be, for so long. What is not done then is not counted.
    #[allow(dead_code, reason = "only over HTTP")]
    Until(Duration),
}

impl Plan {
    /// What a document of this number costs: the same for all, of which the answer is 200 to 800.
    fn document(&self, number: u64) -> Work {
        // proof of no loss: below 1,000 and positive.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
        let output_tokens = (200.0 + 600.0 * Chance::from_seed(self.seed).fork(u64::MAX).share(number)) as u64;
        Work { prompt_tokens: self.document_tokens.saturating_sub(output_tokens), output_tokens }
    }

    /// How long a person takes before it: the mean exponentially, six times that at most.
    fn thinking(&self, chance: Chance, number: u64) -> Duration {
        let mean = self.think.as_secs_f64();
        let seconds = exponential(mean, chance.fork(3).share(number)).min(6.0 * mean);
        Duration::from_secs_f64(seconds / self.faster)
    }
}

/// What a person's question of this number costs: a prompt of 400 to 1,200 tokens, and an answer that the model ends when it is done,
/// after 80 to 800.
fn question(chance: Chance, number: u64) -> Work {
    let prompt = 400.0 + 800.0 * chance.fork(1).share(number);
    let output = (80.0 + exponential(170.0, chance.fork(2).share(number))).min(800.0);
    // proof of no loss: both are below 2,000 and positive.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
    let work = Work { prompt_tokens: prompt as u64, output_tokens: output as u64 };
    work
}

fn exponential(mean: f64, share: f64) -> f64 {
    -mean * (1.0 - share).ln()
}

/// Lets everybody call until the export is done, or its time is over. A question that was asked before is waited for: whoever waits
/// longest must not be missing in the figures.
pub(crate) async fn play(agent: &AgentHandle, plan: Plan, export: Export) -> Seen {
    let began = Instant::now();
    let (over, until) = watch::channel(false);
    let mut people = JoinSet::new();
    for user in 0..plan.users {
        people.spawn(chat(agent.clone(), plan, user, until.clone()));
    }
    let mut seen = Seen::default();
    let collected = Collected::default();
    match export {
        Export::None(span) => sleep(span).await,
        Export::Documents(documents) => work_off(agent, plan, documents, &collected).await,
        Export::Until(span) => drop(timeout(span, work_off(agent, plan, u64::MAX, &collected)).await),
    }
    seen.span = began.elapsed();
    seen.export = std::mem::take(&mut *collected.lock().unwrap_or_else(PoisonError::into_inner));
    let _ = over.send(true);
    for (tenant, samples) in people.join_all().await {
        if tenant == TENANTS[0] {
            seen.neighbours.and(samples.clone());
        }
        seen.chat.and(samples);
    }
    seen
}

/// One person, who asks until it is over.
async fn chat(agent: AgentHandle, plan: Plan, user: u64, mut over: watch::Receiver<bool>) -> (&'static str, Samples) {
    let chance = Chance::from_seed(plan.seed).fork(user);
    let tenant = *TENANTS.iter().cycle().nth(usize::try_from(user).unwrap_or_default()).unwrap_or(&TENANTS[0]);
    let mut samples = Samples::default();
    for number in 0.. {
        tokio::select! {
            biased;
            _ = over.wait_for(|over| *over) => break,
            () = sleep(plan.thinking(chance, number)) => {}
        }
        let work = question(chance, number);
        ask(&agent, ("chat", "interactive", tenant), work, &mut samples, Some(ASKED_MAX)).await;
    }
    (tenant, samples)
}

/// What the export's workers have seen so far.
type Collected = Arc<Mutex<Samples>>;

/// The workers of the export, while there are documents. Dropping it ends them.
async fn work_off(agent: &AgentHandle, plan: Plan, documents: u64, collected: &Collected) {
    let next = Arc::new(AtomicU64::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..plan.workers {
        let (agent, next, collected) = (agent.clone(), Arc::clone(&next), Arc::clone(collected));
        workers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= documents {
                    break;
                }
                let mut samples = Samples::default();
                ask(&agent, ("export", "batch", TENANTS[0]), plan.document(number), &mut samples, None).await;
                collected.lock().unwrap_or_else(PoisonError::into_inner).and(samples);
            }
        });
    }
    workers.join_all().await;
}

/// Asks until there is an answer, at the pace that refusals set.
async fn ask(
    agent: &AgentHandle,
    (feature, class, tenant): (&str, &str, &str),
    work: Work,
    samples: &mut Samples,
    asked_max: Option<u32>,
) {
    let context = CallContext {
        tenant: Some(tenant.to_owned()),
        feature: Some(feature.to_owned()),
        priority: Some(class.to_owned()),
        ..CallContext::default()
    };
    let input = json!({ "prompt_tokens": work.prompt_tokens, "output_tokens": work.output_tokens });
    let began = Instant::now();
    for asked in 1.. {
        let request = CallRequest { context: context.clone(), ..CallRequest::of(input.clone()) };
        match agent.call(request).await {
            Ok(reply) => return samples.answered(began.elapsed(), reply.spent, work.tokens()),
            Err(error) => {
                samples.refused(&reason(&error));
                if asked_max.is_some_and(|max| asked >= max) {
                    break;
                }
                // Whoever is told nothing waits a second, as after any error.
                sleep(Duration::from_secs_f64(error.envelope.retry_after.unwrap_or(1.0))).await;
            }
        }
    }
    samples.given_up += 1;
}

/// The code, and the compartment that was full.
fn reason(error: &CallError) -> String {
    let code = error.envelope.error_code.as_str();
    let compartment = error.envelope.details.get("compartment").and_then(serde_json::Value::as_str);
    compartment.map_or_else(|| code.to_owned(), |compartment| format!("{code} {compartment}"))
}
