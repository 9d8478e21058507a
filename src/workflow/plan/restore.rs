//! A run brought back from what was written of it: ends are applied in their order through the doors that they came in by, and
//! whatever those said to do then is not done again. What was cut has an end of its own, so nothing is cut while ends are applied.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::{
    action::{Action, CallRequest, Gates, StepKey},
    open::{Doubt, NODE_STOPS, OpenCall, OpenStage, resumed_data},
    run_plan::{Mode, RunPlan, RunSeed},
    settle::Failure,
    start::invalid_expression,
    state::{End, ItemState},
};
use crate::{
    model::{
        clock::Timestamp,
        ended::{Ended, EndedScope},
        envelope::{Envelope, ErrorCode},
        event::EventType,
        run::{Cause, RunStatus},
    },
    policy::suspects::Sentence,
    workflow::{checked::Workflow, definition::Effects},
};

impl RunPlan {
    /// The run as it stood when `ended` was all that was over. `started` is when it began, if it had. `seeds` are the results that it
    /// was begun with. The error says what of it does not fit together.
    pub fn restore(
        workflow: Arc<Workflow>,
        input: &Map<String, Json>,
        seed: RunSeed,
        seeds: Vec<Ended>,
        started: Option<Timestamp>,
        ended: &[Ended],
    ) -> Result<Self, Box<Envelope>> {
        let mut plan = Self::new(workflow, input, seed)?.with_seeds(seeds);
        let Some(started) = started else { return Ok(plan) };
        plan.status = RunStatus::Running;
        plan.started = Some(started);
        plan.plant_seeds(started);
        plan.mode = Mode::Restoring;
        plan.open_until_quiet(started);
        for end in ended {
            let at = plan.moment(end.at_ms);
            plan.apply(end, at)?;
            plan.open_until_quiet(at);
        }
        plan.mode = Mode::Live;
        plan.drop_actions();
        Ok(plan)
    }

    /// Results that it begins with instead of making those calls.
    #[must_use]
    pub fn with_seeds(mut self, seeds: Vec<Ended>) -> Self {
        self.seeds = seeds;
        self
    }

    /// Goes on after a restart: what was under way is asked for again, with the same key; time went on meanwhile.
    pub fn resume(&mut self, now: Timestamp, gates: &dyn Gates, open: &[OpenCall]) -> Vec<Action> {
        if self.status == RunStatus::Queued {
            return self.start(now, gates);
        }
        if self.is_live() {
            self.emit(EventType::RunResumed, None, resumed_data(&self.workflow, open));
            let reopened: Vec<(usize, usize)> = open.iter().filter_map(|call| self.reopen(call, now)).collect();
            self.end_due_joins(now);
            if now < self.deadline {
                self.ask_again(&reopened, now);
            }
            self.advance(now, gates);
        }
        self.take_actions()
    }

    /// Whether calls of this step must not be made twice.
    pub fn acts_once(&self, step: usize) -> bool {
        self.workflow.steps.get(step).is_some_and(|step| step.effects == Effects::Once)
    }

    /// Calls that wait for an operator, and why.
    pub fn in_doubt(&self) -> Vec<(CallRequest, Doubt)> {
        let mut found = Vec::new();
        for (step, state) in self.steps.iter().enumerate() {
            for (place, item) in state.round().items.iter().enumerate() {
                if let ItemState::InDoubt(doubt) = item.state {
                    found.extend(self.request_of(step, place).map(|request| (request, doubt)));
                }
            }
        }
        found
    }

    /// The node stops, and nothing was sent of the calls `put_off` and of those that stand in the line. Of one that must not act twice
    /// that is said, so that it is not in doubt after the restart; any other is asked for again anyway. Of what is under way it is said
    /// that the node ends of itself and not by it.
    pub fn leave_unsent(&mut self, put_off: &[StepKey]) -> Vec<Action> {
        let (mut unsent, mut cut) = (Vec::new(), Vec::new());
        for (step, state) in self.steps.iter().enumerate() {
            for item in &state.round().items {
                let key = StepKey { step, index: item.index, iteration: state.iteration() };
                let is_unsent = matches!(item.state, ItemState::InLine { .. }) || put_off.contains(&key);
                match item.state {
                    _ if is_unsent && self.acts_once(step) => unsent.push(key),
                    ItemState::Calling { .. } | ItemState::InLine { .. } if !self.acts_once(step) => cut.push(key),
                    _ => {}
                }
            }
        }
        for key in unsent {
            let data = json!({ "error_code": ErrorCode::ShuttingDown });
            self.emit_step(EventType::StepRefused, key.step, key.index, data);
        }
        for key in cut {
            let data = json!({ "error_code": ErrorCode::ShuttingDown, NODE_STOPS: true });
            self.emit_step(EventType::StepRetried, key.step, key.index, data);
        }
        self.take_actions()
    }

    /// Whether this call waits for an operator.
    pub fn is_in_doubt(&self, key: StepKey) -> bool {
        self.is_live() && matches!(self.item_state(key), Some(ItemState::InDoubt(_)))
    }

    /// An operator lets a call that is in doubt be made again. Any other is left alone.
    pub fn release(&mut self, key: StepKey, now: Timestamp, gates: &dyn Gates) -> Vec<Action> {
        let place = key.index.map_or(0, |index| index as usize);
        if self.is_in_doubt(key) {
            self.set_state(key.step, place, ItemState::Waiting);
            self.steps[key.step].round_mut().waiting.push_front(place);
            self.advance(now, gates);
        }
        self.take_actions()
    }

    /// Applies the results that the run begins with, in whatever order their steps open. What does not fit is asked for anew.
    pub(super) fn plant_seeds(&mut self, now: Timestamp) {
        let mut seeds = std::mem::take(&mut self.seeds);
        self.mode = Mode::Seeding;
        self.open_until_quiet(now);
        loop {
            let before = seeds.len();
            let mut later = Vec::new();
            for seed in seeds {
                if self.takes(&seed) {
                    // It takes it, so it fits.
                    let _ = self.apply(&seed, now);
                    self.open_until_quiet(now);
                } else {
                    later.push(seed);
                }
            }
            seeds = later;
            if seeds.is_empty() || seeds.len() == before {
                break;
            }
        }
        self.mode = Mode::Live;
    }

    /// True if this end can be applied as things stand.
    fn takes(&self, end: &Ended) -> bool {
        let Some(step) = self.step_of(end) else { return false };
        let round = self.steps[step].round();
        let fits = round.end.is_none() && self.steps[step].iteration() == end.record.iteration;
        fits && match end.scope {
            EndedScope::Round => true,
            EndedScope::Item => round.items.get(end.record.index.unwrap_or(0)).is_some_and(|item| item.end().is_none()),
        }
    }

    fn apply(&mut self, ended: &Ended, at: Timestamp) -> Result<(), Box<Envelope>> {
        let Some(step) = self.step_of(ended) else { return Err(self.unfit(ended, "there is no such step")) };
        let (iteration, round) = (self.steps[step].iteration(), self.steps[step].round());
        if ended.record.iteration > iteration {
            return Err(self.unfit(ended, "its iteration had not begun"));
        }
        if ended.record.iteration < iteration || (round.end.is_some() && ended.scope == EndedScope::Round) {
            return Ok(());
        }
        let end = End {
            status: ended.record.status,
            output: ended.record.output.clone(),
            error: ended.record.error.clone(),
            cause: ended.cause,
            degraded: ended.record.degraded.clone(),
        };
        if ended.scope == EndedScope::Round {
            self.finish_round(step, end, at);
            return Ok(());
        }
        let place = ended.record.index.unwrap_or(0);
        let Some(item) = round.items.get(place) else { return Err(self.unfit(ended, "it had not begun")) };
        if item.end().is_some() {
            return Ok(());
        }
        let started = ended.record.started_ms.map(|started| self.moment(started));
        self.usage = self.usage.plus(ended.usage.unwrap_or_default());
        self.calls += u64::from(!ended.record.attempts.is_empty());
        let round = self.steps[step].round_mut();
        if let Some(waits) = round.waiting.iter().position(|waiting| *waiting == place) {
            round.waiting.remove(waits);
        }
        let item = &mut round.items[place];
        item.started = started;
        item.attempts.clone_from(&ended.record.attempts);
        item.refusals.clone_from(&ended.record.refusals);
        item.usage = ended.usage;
        let took = ended.record.duration_ms.map(std::time::Duration::from_millis);
        let ended_at =
            if self.mode == Mode::Seeding { started.zip(took).map(|(from, took)| from.after(took)) } else { None };
        self.end_item(step, place, end, ended_at.unwrap_or(at));
        Ok(())
    }

    fn open_until_quiet(&mut self, at: Timestamp) {
        loop {
            self.unsettled = false;
            self.open_rounds(at);
            if !self.unsettled {
                return;
            }
        }
    }

    /// Puts a call that had begun where it can be asked for again, or aside if it must not act twice. Its place, if it is asked for.
    fn reopen(&mut self, call: &OpenCall, now: Timestamp) -> Option<(usize, usize)> {
        let StepKey { step, index, iteration } = call.key;
        let place = index.map_or(0, |index| index as usize);
        let state = self.steps.get(step).filter(|state| state.iteration() == iteration)?;
        state.round().items.get(place).filter(|item| matches!(item.state, ItemState::Waiting))?;
        let started = self.moment(call.started_ms);
        let item = &mut self.steps[step].round_mut().items[place];
        item.started = Some(started);
        item.refusals.clone_from(&call.refusals);
        item.was_interrupted = call.stage == OpenStage::UnderWay;
        if call.stage != OpenStage::UnderWay {
            return None;
        }
        match call.sentence {
            _ if self.acts_once(step) => self.hold(step, place, ItemState::InDoubt(Doubt::ActsOnce), now),
            Sentence::PutAside(guilt) => self.hold(step, place, ItemState::InDoubt(Doubt::Kills(guilt)), now),
            Sentence::Try { .. } => self.hold(step, place, ItemState::Suspect, now),
            Sentence::Free => return Some((step, place)),
        }
        None
    }

    /// Takes a call out of the run's own list until somebody else lets it go on.
    fn hold(&mut self, step: usize, place: usize, state: ItemState, now: Timestamp) {
        self.steps[step].round_mut().waiting.retain(|waiting| *waiting != place);
        match self.item_input(step, place) {
            Ok(input) => {
                self.steps[step].round_mut().items[place].input = input.map(Arc::new);
                self.set_state(step, place, state);
            }
            Err(error) => self.settle_item(step, place, &Failure::of(Cause::Error, invalid_expression(&error)), now),
        }
    }

    /// What was under way comes before whatever is new: it had its place. In a run that will fail nothing else starts.
    fn ask_again(&mut self, reopened: &[(usize, usize)], now: Timestamp) {
        for (step, place) in reopened.iter().copied() {
            let item = self.steps[step].round().items.get(place);
            if item.is_some_and(|item| matches!(item.state, ItemState::Waiting)) {
                self.steps[step].round_mut().waiting.retain(|waiting| *waiting != place);
                self.start_item(step, place, now);
            }
        }
        if self.culprit.is_some() {
            self.cut_everything_idle(now);
        }
    }

    /// Where a call of a current round stands.
    pub(super) fn item_state(&self, key: StepKey) -> Option<&ItemState> {
        let state = self.steps.get(key.step).filter(|state| state.iteration() == key.iteration)?;
        state.round().items.get(key.index.map_or(0, |index| index as usize)).map(|item| &item.state)
    }

    fn step_of(&self, end: &Ended) -> Option<usize> {
        self.workflow.steps.iter().position(|step| step.id() == end.record.id)
    }

    /// A moment of this run's clock.
    fn moment(&self, unix_ms: u64) -> Timestamp {
        Timestamp::from_millis(unix_ms.saturating_sub(self.unix_zero_ms))
    }

    fn unfit(&self, end: &Ended, why: &str) -> Box<Envelope> {
        let (step, iteration) = (&end.record.id, end.record.iteration);
        let message = format!("what was written of step {step:?} (iteration {iteration}) does not fit the run: {why}");
        Box::new(self.own_envelope(ErrorCode::Internal, &message))
    }
}
