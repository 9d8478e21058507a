//! Looking ahead and parking: a run does not spend a long draft when a gate further on would refuse what follows, and what
//! was refused waits for the gate's time or its change. Half-open holds nothing up, and looking takes no trial.

use std::time::Duration;

use super::{
    action::{GateLook, Gates},
    parked::is_before_gate,
    run_plan::RunPlan,
    settle::Failure,
    state::{Hold, ItemState, StepState},
};
use crate::{
    model::{
        clock::Timestamp,
        envelope::{Envelope, ErrorCode},
        name::Name,
        run::Cause,
    },
    workflow::{checked::About, definition::OnCause},
};

/// A refusal without a time of its own is asked again after this.
pub(super) const PARKED_MIN: Duration = Duration::from_secs(1);

impl RunPlan {
    /// True if nothing may be started now because the gate of a required agent is shut. A gate that stays shut until after
    /// the run's deadline is not waited for: its step fails at once.
    pub(super) fn is_held(&mut self, now: Timestamp, gates: &dyn Gates) -> bool {
        let Some(hold) = self.look_ahead(now, gates) else { return false };
        if hold.until.is_some_and(|until| until >= self.deadline) {
            let failure = gate_failure(&hold.agent, hold.until, &hold.reason, now);
            self.settle_waiting(hold.step, &failure, now);
        } else {
            self.hold = Some(hold);
        }
        true
    }

    /// Of the gates that shut out what this run still needs, the one that stays shut longest.
    fn look_ahead(&self, now: Timestamp, gates: &dyn Gates) -> Option<Hold> {
        let mut longest: Option<Hold> = None;
        for (step, definition) in self.workflow.steps.iter().enumerate() {
            let is_required = !definition.is_optional() && definition.on(Cause::CircuitOpen) == OnCause::Wait;
            if !is_required || !self.still_calls(step) {
                continue;
            }
            let GateLook::Refuses { until, reason } = gates.look(&definition.agent) else { continue };
            // A gate whose time has come is asked by calling: the first caller may be what opens it.
            if until.is_some_and(|until| until <= now) {
                continue;
            }
            let until_for = |hold: &Hold| hold.until.unwrap_or(Timestamp::NEVER);
            let hold = Hold { step, agent: definition.agent.clone(), until, reason };
            if longest.as_ref().is_none_or(|known| until_for(&hold) > until_for(known)) {
                longest = Some(hold);
            }
        }
        longest
    }

    /// Whether a step is known to call its agent again. One whose `when` cannot be decided yet is not known to.
    fn still_calls(&self, step: usize) -> bool {
        let definition = &self.workflow.steps[step];
        let round = self.steps[step].round();
        if round.end.is_some() || self.loop_is_over(step) {
            return false;
        }
        if round.opened.is_some() {
            return !round.waiting.is_empty();
        }
        match &definition.when {
            None => true,
            Some(when) if when.about == About::Step && (when.steps.is_empty() || self.needs_have_ended(step)) => {
                when.expression.holds(&self.step_context(step)).unwrap_or(false)
            }
            Some(_) => false,
        }
    }

    /// What a shut gate does to a step that waits for it, if waiting is no way out.
    fn settle_waiting(&mut self, step: usize, failure: &Failure, now: Timestamp) {
        let waiting: Vec<usize> = self.steps[step].round_mut().waiting.drain(..).collect();
        if waiting.is_empty() {
            self.settle_step(step, failure, now);
        }
        for place in waiting {
            // The first that fails may have ended the others already.
            if self.steps[step].round().items.get(place).is_some_and(|item| item.end().is_none()) {
                self.settle_item(step, place, failure, now);
            }
        }
    }

    /// Brings parked items whose time has come back into the run's list.
    pub(super) fn wake_parked(&mut self, now: Timestamp) {
        while let Some((at, key)) = self.alarms.first().copied() {
            if at > now {
                break;
            }
            self.unpark(key.step, key.index.map_or(0, |index| index as usize));
        }
    }

    /// Another gate in front of an agent: those parked for it wake, or learn of another time.
    pub(super) fn follow_gate(&mut self, agent: &Name, now: Timestamp, gates: &dyn Gates) {
        if self.totals.parked == 0 {
            return;
        }
        let look = gates.look(agent);
        for step in 0..self.steps.len() {
            if self.workflow.steps[step].agent != *agent {
                continue;
            }
            for place in parked_for_gate(&self.steps[step]) {
                match &look {
                    GateLook::Admits | GateLook::HalfOpen => self.unpark(step, place),
                    GateLook::Refuses { until, reason } => self.park_again(step, place, *until, reason, now),
                }
            }
        }
    }

    /// A time that is later than the deadline is not waited for.
    fn park_again(&mut self, step: usize, place: usize, until: Option<Timestamp>, reason: &str, now: Timestamp) {
        // A step that failed before may have ended this one already.
        if self.steps[step].round().items.get(place).is_none_or(|item| item.end().is_some()) {
            return;
        }
        if until.is_some_and(|until| until >= self.deadline) {
            let failure = gate_failure(&self.workflow.steps[step].agent.clone(), until, reason, now);
            return self.settle_item(step, place, &failure, now);
        }
        let until = until.map(|until| until.max(now.after(PARKED_MIN)));
        let state = ItemState::Parked { until, cause: Cause::CircuitOpen, reason: reason.to_owned() };
        self.set_state(step, place, state);
    }

    fn unpark(&mut self, step: usize, place: usize) {
        self.set_state(step, place, ItemState::Waiting);
        self.steps[step].round_mut().waiting.push_front(place);
    }
}

/// Items that a change of the gate concerns: refused by it, or by a model that was being loaded.
fn parked_for_gate(state: &StepState) -> Vec<usize> {
    let items = state.round().items.iter().enumerate();
    items.filter(|(_, item)| is_before_gate(item)).map(|(place, _)| place).collect()
}

fn gate_failure(agent: &Name, until: Option<Timestamp>, reason: &str, now: Timestamp) -> Failure {
    let message = format!("the gate of {agent} stays shut until after the run's deadline ({reason})");
    let envelope = Envelope::new(ErrorCode::AgentCircuitOpen, message).with_agent(agent.as_str());
    let envelope = envelope.with_detail("reason", reason);
    let envelope = match until {
        Some(until) => envelope.with_retry_after(until.since(now).as_secs_f64()),
        None => envelope,
    };
    Failure::of(Cause::CircuitOpen, envelope)
}
