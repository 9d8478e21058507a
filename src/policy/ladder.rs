//! The ladder of a refused or failed call: which rungs answer which cause, in which order, each lighter target at most once, and whether a
//! ladder leads back to where it began. Pure: it asks nobody, keeps no answer, and never decides what the first error was.

use std::collections::BTreeMap;

use super::fallback::Elsewhere;
use crate::model::{envelope::ErrorCode, name::Name, run::Cause};

/// One way to answer a call that was refused or failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rung {
    /// Another, lighter place does the work.
    Lighter,
    /// The work is done later.
    Deferred,
    /// A stated value stands in.
    Default,
    /// A clear text for a person; no answer to the call.
    Notice,
}

impl Rung {
    /// Every rung, in the order in which they usually stand.
    pub const ALL: [Self; 4] = [Self::Lighter, Self::Deferred, Self::Default, Self::Notice];

    /// The word in a configuration, on headers and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lighter => "lighter",
            Self::Deferred => "deferred",
            Self::Default => "default",
            Self::Notice => "notice",
        }
    }

    /// Whether it can answer `cause` at all: no lighter place is faster than a deadline that is over.
    pub const fn can_answer(self, cause: Cause) -> bool {
        !matches!((self, cause), (Self::Lighter, Cause::Deadline))
    }
}

/// Where the fault of a failure lies: what may still be done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// With the place, the key, the model, or a guard in front of them: another place or another time may do better.
    Place,
    /// With this caller, who asks too much: neither another place nor the queue is a way around that.
    Caller,
    /// With the request itself, or its caller is gone, or part of the answer is out: nothing stands in.
    Nobody,
}

/// A failure as a ladder sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Its cause.
    pub cause: Cause,
    /// Where the fault lies.
    pub fault: Fault,
}

/// How a call ended badly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// One of our own guards refused it; nothing was sent.
    Refused,
    /// It was sent and failed; whether another place may answer.
    Failed(Elsewhere),
}

/// The cause that a code stands for.
pub const fn cause_of(code: ErrorCode) -> Cause {
    match code {
        ErrorCode::AgentCircuitOpen => Cause::CircuitOpen,
        ErrorCode::AgentBulkheadFull => Cause::BulkheadFull,
        ErrorCode::AgentWarming => Cause::Cold,
        // All of them pass by themselves, at a time that they tell.
        ErrorCode::TokenBudgetExhausted
        | ErrorCode::RateLimited
        | ErrorCode::QuotaSpent
        | ErrorCode::CallVolumeExceeded
        | ErrorCode::LoadShed => Cause::Budget,
        ErrorCode::DeadlineExceeded => Cause::Deadline,
        _ => Cause::Error,
    }
}

/// The same where a ladder asks: whoever is shed or shut out lacks room, whatever a run's step makes of it.
const fn cause_for_ladder(code: ErrorCode) -> Cause {
    match code {
        ErrorCode::LoadShed => Cause::BulkheadFull,
        other => cause_of(other),
    }
}

/// The table of failures: what a ladder may do about a call that ended with `code`.
pub const fn failure_of(code: ErrorCode, ended: Ended) -> Failure {
    let cause = cause_for_ladder(code);
    let fault = match ended {
        Ended::Failed(Elsewhere::May(_) | Elsewhere::Later) => Fault::Place,
        Ended::Failed(Elsewhere::MayNot) => Fault::Nobody,
        Ended::Refused => match code {
            ErrorCode::AgentCircuitOpen
            | ErrorCode::AgentBulkheadFull
            | ErrorCode::AgentWarming
            | ErrorCode::AgentRestarted
            | ErrorCode::RateLimited
            | ErrorCode::TokenBudgetExhausted
            | ErrorCode::QuotaSpent
            | ErrorCode::LoadShed
            | ErrorCode::DeadlineExceeded => Fault::Place,
            ErrorCode::CallVolumeExceeded => Fault::Caller,
            _ => Fault::Nobody,
        },
    };
    Failure { cause, fault }
}

/// A rung with the causes that it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RungRule {
    /// The rung.
    pub rung: Rung,
    /// The causes that it answers; `None` = all that it can.
    pub causes: Option<Vec<Cause>>,
}

impl RungRule {
    /// The rung for every cause that it can answer.
    pub const fn of(rung: Rung) -> Self {
        Self { rung, causes: None }
    }

    /// Whether it answers a failure.
    pub fn answers(&self, failure: Failure) -> bool {
        let Failure { cause, fault } = failure;
        let listed = self.causes.as_ref().is_none_or(|causes| causes.contains(&cause));
        let may = match fault {
            Fault::Place => true,
            Fault::Caller => matches!(self.rung, Rung::Default | Rung::Notice),
            Fault::Nobody => false,
        };
        listed && may && self.rung.can_answer(cause)
    }
}

/// A lighter target: an agent that can take the call over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LighterTarget {
    /// Who.
    pub agent: Name,
    /// The window of its model, in tokens; `None` = unknown, so nothing is too large for it.
    pub context_tokens: Option<u64>,
    /// What its use does to the model that it stands in for.
    pub effect: Effect,
}

/// What the use of a lighter target does to the main model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Effect {
    /// Nothing that is known of.
    #[default]
    None,
    /// It pushes it out of a server that keeps one model loaded.
    Evicts,
}

impl LighterTarget {
    /// Why a request of `tokens` is not taken to it, as far as that can be told without asking.
    pub fn unfit(&self, tokens: Option<u64>) -> Option<Unfit> {
        if self.effect == Effect::Evicts {
            return Some(Unfit::WouldEvict);
        }
        (!fits_context(tokens, self.context_tokens)).then_some(Unfit::ContextTooSmall)
    }
}

/// Why a lighter target is passed over without being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// The request does not fit into its window.
    ContextTooSmall,
    /// Its model would push the main one out of a server that holds one.
    WouldEvict,
    /// It is not there, or cannot do this kind of call.
    NotThere,
    /// The call has been to each of its places before.
    AskedBefore,
}

impl Unfit {
    /// The word in lists of tries.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ContextTooSmall => "context_too_small",
            Self::WouldEvict => "would_evict",
            Self::NotThere => "not_there",
            Self::AskedBefore => "asked_before",
        }
    }
}

/// Whether a request of `tokens` fits into a window of `context_tokens`. What is unknown is no obstacle.
pub const fn fits_context(tokens: Option<u64>, context_tokens: Option<u64>) -> bool {
    match (tokens, context_tokens) {
        (Some(tokens), Some(window)) => tokens <= window,
        _ => true,
    }
}

/// An ordered list of rungs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ladder {
    /// From the first that is tried to the last.
    pub rungs: Vec<RungRule>,
    /// Who takes a call over on the lighter rung, in order.
    pub lighter: Vec<LighterTarget>,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// Ask this one.
    Ask(&'a LighterTarget),
    /// Put the call into the queue.
    Defer,
    /// Answer with the stated value.
    Default,
    /// Say the notice.
    Notice,
}

/// One call on its way down its ladder. Ends, as each rung and each target is met once.
#[derive(Debug)]
pub struct Climb<'a> {
    ladder: &'a Ladder,
    failure: Failure,
    rung: usize,
    target: usize,
    /// Agents that this call was given to, the first one included.
    asked: Vec<&'a Name>,
    passed_over: Vec<(&'a Name, Unfit)>,
}

impl Ladder {
    /// Whether any rung answers a failure.
    pub fn answers(&self, failure: Failure) -> bool {
        self.rungs.iter().any(|rule| rule.answers(failure))
    }

    /// Whether it has this rung.
    pub fn has(&self, rung: Rung) -> bool {
        self.rungs.iter().any(|rule| rule.rung == rung)
    }

    /// The way of a call that failed at agent `own`.
    pub fn climb<'a>(&'a self, own: &'a Name, failure: Failure) -> Climb<'a> {
        Climb { ladder: self, failure, rung: 0, target: 0, asked: vec![own], passed_over: Vec::new() }
    }
}

impl<'a> Climb<'a> {
    /// The next step; `None` when the ladder is at its end. `unfit` says why a target cannot be asked.
    pub fn next(&mut self, unfit: impl Fn(&LighterTarget) -> Option<Unfit>) -> Option<Step<'a>> {
        let ladder = self.ladder;
        while let Some(rule) = ladder.rungs.get(self.rung) {
            if rule.answers(self.failure) {
                match rule.rung {
                    Rung::Lighter => {
                        if let Some(target) = self.next_target(&unfit) {
                            return Some(Step::Ask(target));
                        }
                    }
                    Rung::Deferred => return Some(self.step(Step::Defer)),
                    Rung::Default => return Some(self.step(Step::Default)),
                    Rung::Notice => return Some(self.step(Step::Notice)),
                }
            }
            self.rung += 1;
        }
        None
    }

    /// Targets that were passed over unasked so far.
    pub fn passed_over(&self) -> &[(&'a Name, Unfit)] {
        &self.passed_over
    }

    /// The cause that this ladder answers.
    pub const fn cause(&self) -> Cause {
        self.failure.cause
    }

    fn step(&mut self, step: Step<'a>) -> Step<'a> {
        self.rung += 1;
        step
    }

    fn next_target(&mut self, unfit: &impl Fn(&LighterTarget) -> Option<Unfit>) -> Option<&'a LighterTarget> {
        let ladder = self.ladder;
        while let Some(target) = ladder.lighter.get(self.target) {
            self.target += 1;
            if self.asked.contains(&&target.agent) {
                continue;
            }
            self.asked.push(&target.agent);
            match unfit(target) {
                Some(why) => self.passed_over.push((&target.agent, why)),
                None => return Some(target),
            }
        }
        None
    }
}

/// Ways of lighter targets that lead back to where they began: as many as have to be broken so that none is left.
pub fn cycles(lighter: &BTreeMap<Name, Vec<Name>>) -> Vec<Vec<Name>> {
    let mut left = lighter.clone();
    let mut found = Vec::new();
    // Each round takes one step of a cycle away, so there are at most as many as there are steps.
    while let Some(way) = cycle(&left) {
        if let (Some(first), Some(last)) = (way.first(), way.last())
            && let Some(targets) = left.get_mut(last)
        {
            targets.retain(|target| target != first);
        }
        found.push(way);
    }
    found
}

/// A way of lighter targets that leads back to where it began, each once; `None` if there is none.
pub fn cycle(lighter: &BTreeMap<Name, Vec<Name>>) -> Option<Vec<Name>> {
    let mut done: Vec<&Name> = Vec::new();
    for start in lighter.keys() {
        let mut way: Vec<(&Name, usize)> = vec![(start, 0)];
        while let Some((agent, at)) = way.last_mut() {
            let next = lighter.get(*agent).and_then(|targets| targets.get(*at));
            *at += 1;
            match next {
                None => {
                    done.extend(way.pop().map(|(agent, _)| agent));
                }
                Some(next) => {
                    if let Some(begin) = way.iter().position(|(agent, _)| *agent == next) {
                        return Some(way[begin..].iter().map(|(agent, _)| (*agent).clone()).collect());
                    }
                    if !done.contains(&next) {
                        way.push((next, 0));
                    }
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
