//! Revision loops: every version is kept with its score, the best one counts, and the reason why it stopped is told.
//! Once there is a version, nothing that goes wrong inside the loop fails the run.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::{
    run_plan::RunPlan,
    settle::Failure,
    state::{Candidate, End, LoopState, Stop},
};
use crate::{
    model::{
        clock::Timestamp,
        envelope::{Envelope, ErrorCode},
        run::{Cause, Degradation, StepStatus},
    },
    workflow::{
        checked::Loop,
        expression::{ExpressionError, from_json},
    },
};

/// So many revisions in a row that score no better than the best before them end a loop. One is not enough: scores of models
/// are noisy.
const IN_VAIN_MAX: u32 = 2;
const BEST_SO_FAR: &str = "best_so_far";

/// What a reviewer said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Review {
    passed: bool,
    score: Option<f64>,
}

/// What the end of a step means for its loop.
#[derive(Debug)]
pub(super) enum LoopDecision {
    /// Nothing.
    None,
    /// One more revision.
    Again(Candidate),
    /// The loop is over; the version of this iteration counts.
    Over { judged: Option<Candidate>, stop: Stop, result: Candidate, degraded: Option<Degradation> },
}

impl LoopDecision {
    /// For the event of the step that ended.
    pub(super) fn data(&self) -> Option<Json> {
        match self {
            Self::None => None,
            Self::Again(candidate) => Some(json!({ "score": candidate.score })),
            Self::Over { judged, stop, result, .. } => Some(json!({
                "score": judged.and_then(|candidate| candidate.score),
                "stop": stop.as_str(),
                "best_iteration": result.iteration,
                "best_score": result.score,
            })),
        }
    }
}

impl RunPlan {
    /// True for a step of a loop that is over.
    pub(super) fn loop_is_over(&self, step: usize) -> bool {
        self.workflow.steps[step].in_loop.is_some_and(|found| self.loops[found].result.is_some())
    }

    /// True for the step that is sent back and the one that judges, once there is a version before this one.
    pub(super) fn has_version_to_fall_back_on(&self, step: usize) -> bool {
        let definition = &self.workflow.steps[step];
        let Some(found) = definition.in_loop.map(|found| &self.workflow.loops[found]) else { return false };
        self.steps[step].iteration() > 0 && definition.map.is_none() && (step == found.target || step == found.reviewer)
    }

    /// An end as its loop sees it: an unusable review is a failure, a failed revision falls back on the best so far.
    pub(super) fn judged(&self, step: usize, mut end: End) -> (End, Option<Review>) {
        let Some(in_loop) = self.workflow.steps[step].in_loop else { return (end, None) };
        let found = &self.workflow.loops[in_loop];
        let mut review = None;
        if step == found.reviewer && end.status == StepStatus::Succeeded {
            match self.review(found, &end) {
                Ok(said) => review = Some(said),
                Err(error) => end = self.end_of_unusable_review(step, &error),
            }
        }
        if end.status == StepStatus::Failed && self.steps[step].iteration() > 0 {
            let cause = end.cause.unwrap_or(Cause::Error);
            end.status = StepStatus::Degraded;
            end.degraded = Some(Degradation { cause, action: BEST_SO_FAR.to_owned() });
        }
        (end, review)
    }

    /// What the end of a step means for its loop.
    pub(super) fn loop_decision(&self, step: usize, end: &End, review: Option<Review>) -> LoopDecision {
        let Some(in_loop) = self.workflow.steps[step].in_loop else { return LoopDecision::None };
        let (found, state) = (&self.workflow.loops[in_loop], &self.loops[in_loop]);
        let iteration = self.steps[step].iteration();
        let here = Candidate { iteration, score: review.and_then(|review| review.score) };
        let gave_up = end.degraded.as_ref().filter(|degraded| degraded.action == BEST_SO_FAR);
        let over = |judged, stop, result, degraded| LoopDecision::Over { judged, stop, result, degraded };
        if let Some(degraded) = gave_up {
            let reason = match degraded.cause {
                Cause::Budget => Stop::Budget,
                _ if step == found.reviewer => Stop::ReviewerDown,
                _ => Stop::NoImprovement,
            };
            return over(None, reason, best(state, None).unwrap_or(here), Some(degraded.clone()));
        }
        let is_verdict = step == found.reviewer && !matches!(end.status, StepStatus::Failed | StepStatus::Cancelled);
        if !is_verdict {
            return LoopDecision::None;
        }
        let Some(review) = review else {
            let reason = match end.cause {
                None => Stop::NotReviewed,
                Some(Cause::Budget) => Stop::Budget,
                Some(_) => Stop::ReviewerDown,
            };
            return over(None, reason, best(state, None).unwrap_or(here), None);
        };
        if review.passed {
            return over(Some(here), Stop::Passed, here, None);
        }
        let target_end = self.steps[found.target].round().end.as_ref();
        let can_improve = target_end.is_some_and(|end| end.status == StepStatus::Succeeded);
        let reason = if iteration >= found.revisions_max {
            Stop::Cap
        } else if !can_improve || in_vain(state, here) >= IN_VAIN_MAX {
            Stop::NoImprovement
        } else if self.culprit.is_some() {
            return LoopDecision::None;
        } else {
            return LoopDecision::Again(here);
        };
        over(Some(here), reason, best(state, Some(here)).unwrap_or(here), None)
    }

    /// Carries a decision out.
    pub(super) fn follow(&mut self, step: usize, decision: LoopDecision, now: Timestamp) {
        let Some(in_loop) = self.workflow.steps[step].in_loop else { return };
        let workflow = Arc::clone(&self.workflow);
        let members = &workflow.loops[in_loop].members;
        match decision {
            LoopDecision::None => {}
            LoopDecision::Again(candidate) => {
                let state = &mut self.loops[in_loop];
                state.in_vain = in_vain(state, candidate);
                state.candidates.push(candidate);
                for member in members {
                    self.steps[*member].next_round();
                }
            }
            LoopDecision::Over { judged, result, degraded, .. } => {
                let state = &mut self.loops[in_loop];
                state.candidates.extend(judged);
                state.result = Some(result.iteration);
                state.degraded = degraded.map(|degraded| (step, degraded));
                let message = format!("the revision was given up at step {:?}", workflow.steps[step].id());
                let cut = End::cancelled(None, self.own_envelope(ErrorCode::Cancelled, &message));
                for member in members {
                    let round = self.steps[*member].round();
                    if round.opened.is_some() && round.end.is_none() {
                        self.cut_round(*member, &cut, now);
                    }
                }
            }
        }
    }

    fn review(&self, found: &Loop, end: &End) -> Result<Review, ExpressionError> {
        let context = self.review_context(from_json(end.output.as_ref().unwrap_or(&Json::Null)));
        let passed = found.until.holds(&context)?;
        // A reviewer without a score still says whether the version is good enough.
        let score = found.score.evaluate(&context).ok().and_then(|score| score.as_f64());
        Ok(Review { passed, score })
    }

    fn end_of_unusable_review(&self, step: usize, error: &ExpressionError) -> End {
        let envelope = Envelope::new(ErrorCode::AgentBadReply, error.to_string())
            .with_agent(self.workflow.steps[step].agent.as_str())
            .with_detail("place", error.place());
        self.end_for(step, &Failure::of(Cause::Error, envelope))
    }
}

/// The best version: the highest score; of equal scores the earlier, of versions without any the latest.
fn best(state: &LoopState, further: Option<Candidate>) -> Option<Candidate> {
    state.candidates.iter().copied().chain(further).reduce(|best, next| if is_better(next, best) { next } else { best })
}

fn is_better(next: Candidate, best: Candidate) -> bool {
    match (next.score, best.score) {
        (Some(next), Some(best)) => next > best,
        (Some(_) | None, None) => true,
        (None, Some(_)) => false,
    }
}

/// Versions in a row, up to this one, that were no better than the best before them.
fn in_vain(state: &LoopState, candidate: Candidate) -> u32 {
    match best(state, None) {
        Some(best) if !is_better(candidate, best) => state.in_vain + 1,
        _ => 0,
    }
}
