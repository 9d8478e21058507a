//! What a refused or failed call does next: down the ladder of its agent and feature, until a rung answers. The one way for callers, the
//! gateway and runs. The first error is kept with the list of what was tried; once part of an answer is out, nothing stands in for it.
//! Lighter targets are agents of their own, asked like any other, and their own ladders are not walked.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    call::{CallError, CallReply, CallRequest, Degraded, LadderUse, Try},
    core::AgentCore,
    counted::CallIs,
    deferred::store::Ticket,
    fallback::further_request,
    handle::AgentHandle,
    ladders::{CallLadder, Ladders, Notice},
    metric,
    ports::{Asked, TokenEstimate},
    relay::Relay,
    token_count::tokens_of,
};
use crate::{
    model::{
        clock::Timestamp,
        envelope::{Envelope, ErrorCode},
        reply::Usage,
        run::{AttemptRecord, Cause},
    },
    policy::{
        fallback::{Content, Elsewhere},
        ladder::{Ended, Failure, Fault, LighterTarget, Rung, Step, Unfit, failure_of},
    },
};

/// A call that has a ladder, before it is made.
pub(crate) struct Descent {
    front: AgentHandle,
    ladder: CallLadder,
    /// The request as another one gets it.
    request: CallRequest,
    /// When the call itself began.
    began: Timestamp,
    whose: Whose,
}

/// Who is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// A person, or whoever asks for one: a notice is an end.
    Callers,
    /// A run's step: what becomes of it without an answer, it says itself.
    Steps,
}

/// What was tried, and what became of it.
struct Story {
    front: AgentHandle,
    cause: Cause,
    first: CallError,
    /// Whether one of them was admitted, and so counted among the caller's calls.
    counted: CallIs,
    tries: Vec<Try>,
    attempts: Vec<AttemptRecord>,
    usage: Option<Usage>,
    spent: Duration,
}

impl AgentHandle {
    /// Calls the agent: one outcome, after as many attempts as its retry plan allows. Refused at once if any guard refuses. A refusal or
    /// failure that the ladder of the agent and the caller's feature answers is answered by it, and says so
    /// ([`CallReply::degraded`], [`CallError::degraded`]). Dropping the future cancels the call and aborts what is under way upstream.
    pub async fn call(&self, request: CallRequest) -> Result<CallReply, CallError> {
        match self.descent(&request) {
            None => self.call_once(request).await,
            Some(descent) => match self.call_once(request).await {
                Ok(reply) => Ok(reply),
                Err(error) => descent.go(error).await,
            },
        }
    }

    /// The way down that a call has, if it has one.
    pub(crate) fn descent(&self, request: &CallRequest) -> Option<Descent> {
        let context = &request.context;
        if context.ladder != LadderUse::Walk {
            return None;
        }
        let ladder = self.of_feature(context.feature.as_deref(), |ladders, feature| {
            ladders.has(self.name(), feature).then(|| ladders.of(self.name(), feature))
        });
        ladder.map(|ladder| self.descend(ladder, request))
    }

    /// Looks something up in the ladders of the feature that a caller's feature, or none, is counted as.
    fn of_feature<T>(&self, said: Option<&str>, look: impl FnOnce(&Ladders, Option<&str>) -> T) -> T {
        let ladders = self.shared.ladders.load();
        // Where no feature has a ladder of its own, nobody is looked up.
        if ladders.features.is_empty() {
            return look(&ladders, None);
        }
        let counted = self.shared.compartments.feature_of(said);
        // Features may have ladders without being compartments.
        let feature = match &counted {
            Some(counted) => Some(counted.as_str()),
            None => said.filter(|said| ladders.features.contains_key(*said)),
        };
        look(&ladders, feature)
    }

    /// Whether something may stand in for a call of this feature that ended so. A notice alone stands in for nothing.
    pub(crate) fn may_go_down(&self, feature: Option<&str>, error: &CallError) -> bool {
        let failure = failure_of(error.envelope.error_code, ended(error));
        let answers = |found: &CallLadder| {
            found.ladder.rungs.iter().any(|rule| rule.rung != Rung::Notice && rule.answers(failure))
        };
        self.of_feature(feature, |ladders, feature| {
            ladders.has(self.name(), feature) && answers(&ladders.of(self.name(), feature))
        })
    }

    /// The way down that only tries this rung.
    pub(crate) fn descent_to(&self, rung: Rung, request: &CallRequest) -> Descent {
        let feature = request.context.feature.as_deref();
        let ladder = self.of_feature(feature, |ladders, feature| ladders.only(self.name(), feature, rung));
        self.descend(ladder, request)
    }

    fn descend(&self, ladder: CallLadder, request: &CallRequest) -> Descent {
        let began = self.shared.now();
        let request = further_request(request, self, began);
        Descent { front: self.clone(), ladder, request, began, whose: Whose::Callers }
    }
}

impl Descent {
    /// The same for a step of a run.
    pub(crate) fn for_a_step(mut self) -> Self {
        self.whose = Whose::Steps;
        self
    }

    /// Goes down from `first`, the end of the call itself.
    pub(crate) async fn go(self, first: CallError) -> Result<CallReply, CallError> {
        let failure = failure_of(first.envelope.error_code, ended(&first));
        self.go_from(failure, first).await
    }

    /// Goes down for a cause that was found before, and whose fault it was is settled: the author of a workflow asked for the rung.
    pub(crate) async fn go_for(self, cause: Cause, first: CallError) -> Result<CallReply, CallError> {
        self.go_from(Failure { cause, fault: Fault::Place }, first).await
    }

    async fn go_from(self, failure: Failure, first: CallError) -> Result<CallReply, CallError> {
        if !self.ladder.ladder.answers(failure) {
            return Err(first);
        }
        let mut story = Story::of(&self.front, failure.cause, first);
        let mut climb = self.ladder.ladder.climb(self.front.name(), failure);
        let mut said = 0;
        loop {
            let step = climb.next(|target| self.unfit(target, &story));
            for (agent, why) in climb.passed_over().iter().skip(said) {
                story.passed_over(agent.as_str(), *why);
            }
            said = climb.passed_over().len();
            let Some(step) = step else { break };
            match step {
                Step::Ask(target) => match self.ask(target, &story).await {
                    Ok(reply) => return Ok(story.answered(reply)),
                    Err(error) => {
                        let is_over = error.content == Content::Passed;
                        story.add(error);
                        if is_over {
                            break;
                        }
                    }
                },
                Step::Defer => match self.put_off(&story).await {
                    Ok(ticket) => return Err(story.put_off(&ticket)),
                    Err(refused) => story.tried("deferred", &refused, None),
                },
                Step::Default => {
                    // Somebody else's request has a shape of its own, which no stated value has.
                    if let Some(value) = self.ladder.default.as_ref().filter(|_| self.request.relay.is_none()) {
                        return Ok(story.replaced((**value).clone()));
                    }
                }
                Step::Notice if self.whose == Whose::Steps => story.tell(self.ladder.notice.as_deref()),
                Step::Notice => return Err(story.noticed(self.ladder.notice.as_deref())),
            }
        }
        Err(story.ended())
    }

    /// Why a lighter target cannot be asked.
    fn unfit(&self, target: &LighterTarget, story: &Story) -> Option<Unfit> {
        let Some(agent) = self.front.shared.agent(target.agent.as_str()) else { return Some(Unfit::NotThere) };
        let asked = story.places();
        if self.front.shared.targets_of(&agent).iter().all(|core| core.is_among(&asked)) {
            return Some(Unfit::AskedBefore);
        }
        if self.request.relay.is_some() && !agent.backend.relays() {
            return Some(Unfit::NotThere);
        }
        target.unfit(target.context_tokens.and_then(|_| self.tokens_at(&agent)))
    }

    /// The tokens that an agent needs for the request: its own count, with its prompt and the longest answer, or ours where it has none.
    fn tokens_at(&self, agent: &AgentCore) -> Option<u64> {
        let relay = self.request.relay.as_ref().map(|relay| (relay.kind, Arc::clone(&relay.body)));
        let asked = Asked { input: Arc::clone(&self.request.input), relay };
        let counted = agent.backend.estimate(&asked, self.request.context.prompt.as_deref());
        let needed = |told: TokenEstimate| told.prompt.saturating_add(told.output_max.unwrap_or(0));
        counted.map(needed).filter(|tokens| *tokens > 0).or_else(|| self.tokens())
    }

    /// About so many tokens the request has; pictures and other bytes in it are not counted.
    fn tokens(&self) -> Option<u64> {
        let read = |relay: &Relay| serde_json::from_str::<Value>(relay.body.as_str()).ok();
        let of_relay = self.request.relay.as_ref().map(read);
        match of_relay {
            Some(body) => body.as_ref().map(tokens_of),
            None => Some(tokens_of(&self.request.input)),
        }
    }

    async fn ask(&self, target: &LighterTarget, story: &Story) -> Result<CallReply, CallError> {
        let shared = &self.front.shared;
        let Some(agent) = shared.agent(target.agent.as_str()) else {
            let gone = Envelope::new(ErrorCode::NotFound, format!("agent {} is not here", target.agent));
            return Err(CallError::refused(gone));
        };
        // The only slot of a provider may be that of the very call that is stood in for.
        shared.judged().await;
        let handle = AgentHandle { shared: Arc::clone(shared), agent };
        let mut request = self.request.clone();
        if story.counted == CallIs::MovingOn {
            request.context.ladder = LadderUse::StandsIn;
        }
        request.context.places_asked = story.places();
        // What no attempt took was waited.
        request.context.waited += shared.now().since(self.began).saturating_sub(story.spent);
        if let Some(relay) = &mut request.relay {
            relay.fallback = Some(Arc::clone(&handle.agent.target));
            relay.degraded = Some(Rung::Lighter);
            relay.earlier = u32::try_from(story.attempts.len()).unwrap_or(u32::MAX);
        }
        handle.call_once(request).await
    }

    async fn put_off(&self, story: &Story) -> Result<Ticket, Envelope> {
        let Some(queue) = &self.front.shared.deferred else {
            return Err(Envelope::new(ErrorCode::Internal, "there is no journal here to keep a call in"));
        };
        queue.put_off(&self.front, &self.request, story.cause, &story.first.envelope).await
    }
}

/// What an error says of its call to the table of failures.
fn ended(error: &CallError) -> Ended {
    let by_us = error.nothing_sent && error.target.is_none() && error.elsewhere == Elsewhere::MayNot;
    if by_us { Ended::Refused } else { Ended::Failed(error.elsewhere) }
}

impl Story {
    fn of(front: &AgentHandle, cause: Cause, mut first: CallError) -> Self {
        let attempts = std::mem::take(&mut first.attempts);
        let tries = std::mem::take(&mut first.tries);
        let (usage, spent) = (first.usage, first.spent);
        let counted = if first.target.is_some() { CallIs::MovingOn } else { CallIs::New };
        let mut story = Self { front: front.clone(), cause, first, counted, tries, attempts, usage, spent };
        if story.tries.is_empty() {
            let status = story.attempts.last().and_then(|attempt| attempt.status);
            let envelope = story.first.envelope.clone();
            story.tried(&Arc::clone(&front.agent.target), &envelope, status);
        }
        story
    }

    /// Where the call has been.
    fn places(&self) -> Vec<Arc<str>> {
        self.tries.iter().map(|tried| Arc::from(&*tried.target)).collect()
    }

    fn tried(&mut self, target: &str, envelope: &Envelope, status: Option<u16>) {
        self.tries.push(Try {
            target: target.into(),
            error_code: envelope.error_code,
            status,
            message: envelope.message.clone(),
            retry_after: envelope.retry_after,
        });
    }

    fn passed_over(&mut self, agent: &str, why: Unfit) {
        let code = match why {
            Unfit::ContextTooSmall => ErrorCode::TokenRequestTooLarge,
            Unfit::WouldEvict => ErrorCode::AgentWarming,
            Unfit::NotThere | Unfit::AskedBefore => ErrorCode::NotFound,
        };
        self.tried(agent, &Envelope::new(code, format!("not asked: {}", why.as_str())), None);
    }

    /// A lighter target did not answer.
    fn add(&mut self, mut error: CallError) {
        if error.target.is_some() {
            self.counted = CallIs::MovingOn;
        }
        if error.tries.is_empty() {
            let target = error.target.clone().unwrap_or_else(|| error.envelope.agent.as_deref().unwrap_or("").into());
            let status = error.attempts.last().and_then(|attempt| attempt.status);
            self.tried(&target, &error.envelope, status);
        }
        self.tries.append(&mut error.tries);
        self.spend(&mut error.attempts, error.usage, error.spent);
    }

    fn spend(&mut self, attempts: &mut Vec<AttemptRecord>, usage: Option<Usage>, spent: Duration) {
        self.attempts.append(attempts);
        self.usage = self.usage.into_iter().chain(usage).reduce(Usage::plus);
        self.spent = self.spent.saturating_add(spent);
    }

    fn degraded(&self, action: Rung) -> Box<Degraded> {
        let word = metrics::Label::from_static_parts;
        let agent = metrics::Label::new("agent", self.front.name().as_str().to_owned());
        let labels = vec![agent, word("action", action.as_str()), word("cause", self.cause.as_str())];
        metric::count(metric::DEGRADED, labels, 1);
        Box::new(Degraded { cause: self.cause, action, error: (*self.first.envelope).clone() })
    }

    /// A lighter target answered.
    fn answered(mut self, mut reply: CallReply) -> CallReply {
        self.tries.append(&mut reply.tries);
        self.spend(&mut reply.attempts, reply.usage, reply.spent);
        CallReply {
            degraded: Some(self.degraded(Rung::Lighter)),
            attempts: self.attempts,
            usage: self.usage,
            spent: self.spent,
            fallback: Some(Arc::clone(&reply.target)),
            tries: self.tries,
            ..reply
        }
    }

    /// The stated value answers.
    fn replaced(self, output: Value) -> CallReply {
        let shared = &self.front.shared;
        let call_id = self.first.call_id.clone().unwrap_or_else(|| shared.call_id(shared.now()));
        CallReply {
            degraded: Some(self.degraded(Rung::Default)),
            output,
            usage: self.usage,
            finish_reason: None,
            attempts: self.attempts,
            call_id,
            spent: self.spent,
            target: Arc::clone(&self.front.agent.target),
            fallback: None,
            tries: self.tries,
        }
    }

    /// The call is made later. Whoever asks again at once would only have it made twice.
    fn put_off(self, ticket: &Ticket) -> CallError {
        let degraded = Some(self.degraded(Rung::Deferred));
        let mut error = self.ended();
        error.envelope.details.insert("deferred".to_owned(), json!(ticket));
        CallError { degraded, deferred: Some(Box::new(ticket.clone())), exhausted: true, ..error }
    }

    /// Gives the first error a text that a person can do something with.
    fn tell(&mut self, notice: Option<&Notice>) {
        if let Some(notice) = notice {
            notice.put_into(&mut self.first.envelope);
        }
    }

    /// The error as a notice.
    fn noticed(mut self, notice: Option<&Notice>) -> CallError {
        self.tell(notice);
        let degraded = Some(self.degraded(Rung::Notice));
        CallError { degraded, ..self.ended() }
    }

    /// The first error, which no later one hides.
    fn ended(self) -> CallError {
        let mut error = self.first;
        if self.tries.len() > 1 {
            error.envelope.details.insert("attempts".to_owned(), self.attempts.len().into());
            error.envelope.details.insert("tries".to_owned(), json!(self.tries));
        }
        CallError { attempts: self.attempts, usage: self.usage, spent: self.spent, tries: self.tries, ..error }
    }
}
