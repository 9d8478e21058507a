//! A run brought back from what was written of it: ends are applied in their order through the doors that they came in by, and
//! whatever those said to do then is not done again. What was cut has an end of its own, so nothing is cut while ends are applied.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::{
    action::{Action, CallRequest, Gates, StepKey},
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
        event::{Event, EventType},
        run::{Cause, RefusalRecord, RunStatus},
    },
    workflow::{checked::Workflow, definition::Effects},
};

/// A call that was begun so often without an end is what took the process with it, as far as anybody can tell: it waits for an operator. So
/// many, because a process that is killed takes every call with it: of those under way in a row of kills each would soon look guilty.
pub const DEATHS_MAX: u32 = 60;
/// Says of a call that is begun again after the restart: it was cut by a node that stopped of itself, and killed nobody.
const NODE_STOPS: &str = "node_stops";

/// A call that had begun and not ended when whoever made it was gone.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenCall {
    /// Which.
    pub key: StepKey,
    /// Unix milliseconds of its first start.
    pub started_ms: u64,
    /// What refused it so far.
    pub refusals: Vec<RefusalRecord>,
    /// How far it had come.
    pub stage: OpenStage,
    /// How often it was begun and the process died before its end.
    pub deaths: u32,
}

/// How far a call had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenStage {
    /// It may have been sent.
    UnderWay,
    /// It was refused by us and waited: nothing was sent.
    Refused,
}

/// The calls that had begun and not ended, by a run's events.
pub fn open_calls(workflow: &Workflow, events: &[Event]) -> Vec<OpenCall> {
    let mut open: Vec<OpenCall> = Vec::new();
    for event in events {
        let Some(key) = key_of(workflow, event) else { continue };
        let place = open.iter().position(|call| call.key == key);
        match (event.kind, place) {
            (EventType::StepStarted, None) => {
                let (started_ms, stage) = (event.ts_ms, OpenStage::UnderWay);
                open.push(OpenCall { key, started_ms, refusals: Vec::new(), stage, deaths: 1 });
            }
            (EventType::StepStarted, Some(place)) => {
                open[place].stage = OpenStage::UnderWay;
                open[place].deaths += 1;
            }
            (EventType::StepRetried, Some(place)) if event.data[NODE_STOPS] == true => {
                open[place].deaths = open[place].deaths.saturating_sub(1);
            }
            (EventType::StepRefused, Some(place)) => {
                open[place].stage = OpenStage::Refused;
                open[place].deaths = 0;
                open[place].refusals.push(RefusalRecord {
                    at_ms: event.ts_ms,
                    error_code: event.data["error_code"].as_str().unwrap_or_default().to_owned(),
                    retry_after: event.data["retry_after"].as_f64(),
                });
            }
            (EventType::StepFinished | EventType::StepSkipped, Some(place)) => {
                open.remove(place);
            }
            _ => {}
        }
    }
    open
}

/// The call that an event is about; none for the events of a `map` as a whole.
fn key_of(workflow: &Workflow, event: &Event) -> Option<StepKey> {
    let id = event.step.as_deref()?;
    let step = workflow.steps.iter().position(|step| step.id() == id)?;
    let index = event.data["index"].as_u64().and_then(|index| u32::try_from(index).ok());
    let iteration = u32::try_from(event.data["iteration"].as_u64()?).ok()?;
    (workflow.steps[step].map.is_some() == index.is_some()).then_some(StepKey { step, index, iteration })
}

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
            self.emit(EventType::RunResumed, None, json!({ "reason": "restart" }));
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

    /// Calls that wait for an operator: they may have acted and must not act twice, or the process died with them too often.
    pub fn in_doubt(&self) -> Vec<CallRequest> {
        let mut found = Vec::new();
        for (step, state) in self.steps.iter().enumerate() {
            for (place, item) in state.round().items.iter().enumerate() {
                if matches!(item.state, ItemState::InDoubt) {
                    found.extend(self.request_of(step, place));
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
        let state = self.steps.get(key.step).filter(|state| state.iteration() == key.iteration);
        let place = key.index.map_or(0, |index| index as usize);
        let item = state.and_then(|state| state.round().items.get(place));
        self.is_live() && item.is_some_and(|item| matches!(item.state, ItemState::InDoubt))
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
        let must_wait = self.acts_once(step) || call.deaths >= DEATHS_MAX;
        if call.stage == OpenStage::UnderWay && must_wait {
            self.put_in_doubt(step, place, now);
            return None;
        }
        (call.stage == OpenStage::UnderWay).then_some((step, place))
    }

    fn put_in_doubt(&mut self, step: usize, place: usize, now: Timestamp) {
        self.steps[step].round_mut().waiting.retain(|waiting| *waiting != place);
        match self.item_input(step, place) {
            Ok(input) => {
                self.steps[step].round_mut().items[place].input = input.map(Arc::new);
                self.set_state(step, place, ItemState::InDoubt);
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
