//! One run: its state, and the doors through which it is told what happened. Every door answers with what to do now.
//!
//! ```text
//!   start ─┐                     ┌─► Call / Line / Abort      (the orchestrator performs them)
//!   replied┤                     ├─► WakeAt                   (one timer a run)
//!   wake ──┼─► state ─► advance ─┼─► Emit                     (the event log)
//!   gate_changed                 └─► Finished                 (once, last)
//!   cancel ┘
//! ```
//! It reads no clock: `now` is handed in and never goes back.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use minijinja::value::Value;
use serde_json::{Map, Value as Json, json};

use super::{
    action::{Action, CallDone, CallFailed, CallRequest, Gates, StepKey},
    input,
    state::{Culprit, Hold, ItemState, LoopState, Round, StepState, Totals},
};
use crate::{
    model::{
        clock::Timestamp,
        ended::Ended,
        envelope::Envelope,
        event::EventType,
        name::Name,
        reply::Usage,
        run::{RerunOf, RunStatus},
    },
    workflow::{checked::Workflow, expression::from_json},
};

/// What distinguishes one run of a workflow from another.
#[derive(Debug, Clone)]
pub struct RunSeed {
    /// Its id.
    pub run_id: String,
    /// When it was accepted.
    pub created: Timestamp,
    /// The caller's deadline, from acceptance; the workflow's holds beside it.
    pub deadline: Option<Duration>,
    /// Unix time of [`Timestamp::ZERO`] in milliseconds, for records and events.
    pub unix_zero_ms: u64,
    /// The money of costs, as configured.
    pub currency: Option<Arc<str>>,
    /// The trace of the request that it was accepted with: its errors name it.
    pub trace_id: Option<String>,
    /// The run that it goes on from.
    pub rerun_of: Option<RerunOf>,
}

/// What the news that a plan is told are to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// They happen.
    Live,
    /// They happened, and all that followed is among them.
    Restoring,
    /// They are results of an earlier run.
    Seeding,
}

/// The plan of one run.
#[derive(Debug)]
pub struct RunPlan {
    pub(super) workflow: Arc<Workflow>,
    pub(super) run_id: String,
    pub(super) created: Timestamp,
    pub(super) deadline: Timestamp,
    pub(super) unix_zero_ms: u64,
    pub(super) currency: Option<Arc<str>>,
    pub(super) trace_id: Option<String>,
    pub(super) rerun_of: Option<RerunOf>,
    pub(super) input: Value,
    pub(super) status: RunStatus,
    pub(super) started: Option<Timestamp>,
    pub(super) ended: Option<Timestamp>,
    pub(super) steps: Vec<StepState>,
    pub(super) loops: Vec<LoopState>,
    pub(super) totals: Totals,
    /// Calls under way or in line, by agent.
    pub(super) in_flight: HashMap<Name, u32>,
    /// Parked items with a time.
    pub(super) alarms: BTreeSet<(Timestamp, StepKey)>,
    pub(super) hold: Option<Hold>,
    pub(super) culprit: Option<Culprit>,
    pub(super) usage: Usage,
    /// Calls that came to an attempt.
    pub(super) calls: u64,
    pub(super) output: Option<Json>,
    /// About the memory of outputs, in bytes.
    pub(super) output_bytes: u64,
    pub(super) error: Option<Envelope>,
    /// True while something ended of which the consequences were not drawn yet.
    pub(super) unsettled: bool,
    pub(super) mode: Mode,
    /// True if ends are to be written down.
    pub(super) is_journaled: bool,
    /// True once nothing new may be begun here: somebody else goes on with the run.
    pub(super) is_held_back: bool,
    /// Results that it begins with.
    pub(super) seeds: Vec<Ended>,
    wake_asked: Option<Timestamp>,
    actions: Vec<Action>,
}

impl RunPlan {
    /// A run that was accepted and has not started. The error is `INVALID_REQUEST` and names every input that does not fit.
    pub fn new(workflow: Arc<Workflow>, input: &Map<String, Json>, seed: RunSeed) -> Result<Self, Box<Envelope>> {
        let input = from_json(&input::complete(&workflow, input)?);
        let allowed = seed.deadline.map_or(workflow.deadline(), |given| given.min(workflow.deadline()));
        Ok(Self {
            run_id: seed.run_id,
            created: seed.created,
            deadline: seed.created.after(allowed),
            unix_zero_ms: seed.unix_zero_ms,
            currency: seed.currency,
            trace_id: seed.trace_id,
            rerun_of: seed.rerun_of,
            input,
            status: RunStatus::Queued,
            started: None,
            ended: None,
            steps: workflow.steps.iter().map(|_| StepState::new()).collect(),
            loops: workflow.loops.iter().map(|_| LoopState::default()).collect(),
            totals: Totals::default(),
            in_flight: HashMap::new(),
            alarms: BTreeSet::new(),
            hold: None,
            culprit: None,
            usage: Usage::default(),
            calls: 0,
            output: None,
            output_bytes: 0,
            error: None,
            unsettled: false,
            mode: Mode::Live,
            is_journaled: false,
            is_held_back: false,
            seeds: Vec::new(),
            wake_asked: None,
            actions: Vec::new(),
            workflow,
        })
    }

    /// The same plan, asking for every end to be written down.
    #[must_use]
    pub fn journaled(mut self) -> Self {
        self.is_journaled = true;
        self
    }

    /// Begins nothing new from now on, but goes on taking in what is under way.
    pub fn hold_back(&mut self) {
        self.is_held_back = true;
    }

    /// Its id.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Its workflow.
    pub fn workflow(&self) -> &Arc<Workflow> {
        &self.workflow
    }

    /// Calls that were made and have ended, and what they used.
    pub fn spent(&self) -> (u64, Usage) {
        (self.calls, self.usage)
    }

    /// About the memory, in bytes, that the outputs of its steps take.
    pub fn output_bytes(&self) -> u64 {
        self.output_bytes
    }

    /// Whether one of its calls is under way or in the line.
    pub fn is_moving(&self) -> bool {
        self.totals.calling + self.totals.in_line > 0
    }

    /// When it is timed out, whatever is under way.
    pub fn deadline(&self) -> Timestamp {
        self.deadline
    }

    /// Where it stands.
    pub fn status(&self) -> RunStatus {
        self.status
    }

    /// Begins. A run begins once; later calls change nothing.
    pub fn start(&mut self, now: Timestamp, gates: &dyn Gates) -> Vec<Action> {
        if self.status == RunStatus::Queued {
            self.status = RunStatus::Running;
            self.started = Some(now);
            let data = json!({ "workflow": self.workflow.name, "workflow_hash": self.workflow.hash });
            self.emit(EventType::RunStarted, None, data);
            if !self.seeds.is_empty() {
                self.plant_seeds(now);
            }
            self.advance(now, gates);
        }
        self.take_actions()
    }

    /// A call ended, or the line or a guard refused it. News of calls that are not awaited (aborted ones) change nothing.
    pub fn replied(
        &mut self,
        key: StepKey,
        result: Result<CallDone, CallFailed>,
        now: Timestamp,
        gates: &dyn Gates,
    ) -> Vec<Action> {
        if let Some(place) = self.awaited(key) {
            self.settle_reply(key.step, place, result, now, gates);
            self.advance(now, gates);
        }
        self.take_actions()
    }

    /// A call left the line: it has its slot and is being made.
    pub fn line_left(&mut self, key: StepKey, now: Timestamp) {
        if let Some(place) = self.awaited(key) {
            let until = self.call_until(key.step, now);
            self.set_state(key.step, place, ItemState::Calling { since: now, until });
        }
    }

    /// The supervisor published another gate in front of this agent.
    pub fn gate_changed(&mut self, agent: &Name, now: Timestamp, gates: &dyn Gates) -> Vec<Action> {
        if self.is_live() {
            self.follow_gate(agent, now, gates);
            self.advance(now, gates);
        }
        self.take_actions()
    }

    /// The moment of [`Action::WakeAt`] has come. Waking early or often does no harm.
    pub fn wake(&mut self, now: Timestamp, gates: &dyn Gates) -> Vec<Action> {
        if self.is_live() {
            // The timer may be spent, so whatever is next is asked for again.
            self.wake_asked = None;
            self.wake_parked(now);
            self.end_due_joins(now);
            self.advance(now, gates);
        }
        self.take_actions()
    }

    /// The caller wants no more of it. Ends at once, whatever is under way.
    pub fn cancel(&mut self, now: Timestamp) -> Vec<Action> {
        if !self.status.is_terminal() {
            self.end_cancelled(now);
        }
        self.take_actions()
    }

    /// Frees what an ended run was made of. Its record, and whatever else is asked of it, must have been taken before.
    pub fn let_go(&mut self) {
        if self.status.is_terminal() {
            self.steps = Vec::new();
            self.input = Value::from(());
            self.output = None;
            self.output_bytes = 0;
            self.alarms.clear();
        }
    }

    /// The call of this key as it was or would be asked for, if it is awaited.
    pub fn request(&self, key: StepKey) -> Option<CallRequest> {
        self.awaited(key).and_then(|place| self.request_of(key.step, place))
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.status, RunStatus::Running | RunStatus::Parked)
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    /// Asks to be woken at the earliest moment that matters, unless that was asked already.
    pub(super) fn ask_to_wake(&mut self) {
        let joins = self.steps.iter().map(StepState::round).filter(|round| round.end.is_none());
        let join = joins.filter_map(|round| round.join_at).min();
        let alarm = self.alarms.first().map(|(at, _)| *at);
        let hold = self.hold.as_ref().and_then(|hold| hold.until);
        let next = [join, alarm, hold].into_iter().flatten().min().unwrap_or(self.deadline).min(self.deadline);
        if self.wake_asked != Some(next) {
            self.wake_asked = Some(next);
            self.act(Action::WakeAt(next));
        }
    }

    /// The round whose output counts: the current one, or the best of a revision that is over.
    pub(super) fn counting_round(&self, step: usize) -> &Round {
        let state = &self.steps[step];
        let best = self.workflow.steps[step].in_loop.and_then(|found| self.loops[found].result);
        best.and_then(|iteration| state.round_of(iteration)).unwrap_or_else(|| state.round())
    }

    /// Moves an item, keeping every count true.
    pub(super) fn set_state(&mut self, step: usize, place: usize, next: ItemState) {
        let iteration = self.steps[step].iteration();
        let item = &mut self.steps[step].round_mut().items[place];
        let key = StepKey { step, index: item.index, iteration };
        let before = std::mem::replace(&mut item.state, ItemState::Waiting);
        self.count_out(&before, key);
        self.count_in(&next, key);
        self.steps[step].round_mut().items[place].state = next;
    }

    /// The place of the item in its round, if a reply to it is awaited.
    fn awaited(&self, key: StepKey) -> Option<usize> {
        let state = self.steps.get(key.step).filter(|state| state.iteration() == key.iteration)?;
        let place = key.index.map_or(0, |index| index as usize);
        let item = state.round().items.get(place).filter(|item| item.index == key.index)?;
        matches!(item.state, ItemState::Calling { .. } | ItemState::InLine { .. }).then_some(place)
    }

    fn count_out(&mut self, state: &ItemState, key: StepKey) {
        match state {
            ItemState::Calling { .. } => self.totals.calling -= 1,
            ItemState::InLine { .. } => self.totals.in_line -= 1,
            ItemState::InDoubt(_) | ItemState::Suspect => self.totals.parked -= 1,
            ItemState::Parked { until, .. } => {
                self.totals.parked -= 1;
                if let Some(until) = until {
                    self.alarms.remove(&(*until, key));
                }
            }
            ItemState::Waiting | ItemState::Ended(_) => return,
        }
        self.steps[key.step].round_mut().active -= 1;
        if is_under_way(state)
            && let Some(count) = self.in_flight.get_mut(&self.workflow.steps[key.step].agent)
        {
            *count -= 1;
        }
    }

    fn count_in(&mut self, state: &ItemState, key: StepKey) {
        match state {
            ItemState::Calling { .. } => self.totals.calling += 1,
            ItemState::InLine { .. } => self.totals.in_line += 1,
            ItemState::InDoubt(_) | ItemState::Suspect => self.totals.parked += 1,
            ItemState::Parked { until, .. } => {
                self.totals.parked += 1;
                self.alarms.extend(until.map(|until| (until, key)));
            }
            ItemState::Waiting | ItemState::Ended(_) => return,
        }
        self.steps[key.step].round_mut().active += 1;
        if is_under_way(state) {
            *self.in_flight.entry(self.workflow.steps[key.step].agent.clone()).or_default() += 1;
        }
    }

    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub(super) fn drop_actions(&mut self) {
        self.actions.clear();
    }
}

/// Whether it counts as one of the run's calls of its agent.
fn is_under_way(state: &ItemState) -> bool {
    !matches!(state, ItemState::Parked { .. } | ItemState::InDoubt(_) | ItemState::Suspect)
}
