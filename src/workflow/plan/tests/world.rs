//! A world for one plan: virtual time, agents that answer by script, gates that open and shut at set times, a line.
//! It performs actions exactly as they are asked for and checks what must hold at every moment.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use serde_json::{Map, Value, json};

use crate::{
    model::{
        clock::Timestamp,
        ended::{Ended, EndedScope},
        envelope::{Envelope, ErrorCode},
        event::{Event, EventType},
        name::Name,
        reply::Usage,
        run::{AttemptRecord, RunRecord, RunStatus, StepStatus},
    },
    workflow::{
        check::load,
        plan::{
            action::{Action, Ask, CallDone, CallFailed, CallRequest, GateLook, Gates, NewEvent, Resend, StepKey},
            open::{judge, open_calls},
            run_plan::{RunPlan, RunSeed},
        },
    },
};

pub(super) const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
pub(super) const UNIX_ZERO_MS: u64 = 1_000_000;
const TURNS_MAX: usize = 200_000;
pub(super) const AGENTS: [&str; 6] = ["a", "b", "c", "d", "draft", "review"];

/// How an agent answers one call.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// This output after so many milliseconds.
    Good(u64, Value),
    /// This failure after so many milliseconds; something was sent.
    Bad(u64, ErrorCode),
    /// Refused at once by us; seconds until a later call makes sense.
    Refused(ErrorCode, Option<f64>),
    /// Never.
    Hangs,
}

pub(super) fn good(after_ms: u64, output: Value) -> Answer {
    Answer::Good(after_ms, output)
}

pub(super) fn bad(after_ms: u64, code: ErrorCode) -> Answer {
    Answer::Bad(after_ms, code)
}

pub(super) fn refused(code: ErrorCode, retry_after: f64) -> Answer {
    Answer::Refused(code, Some(retry_after))
}

/// Gates by agent: what they say until a time, in order.
#[derive(Debug, Default)]
pub(super) struct TestGates {
    now: RefCell<Timestamp>,
    looks: HashMap<String, Vec<(u64, GateLook)>>,
    share: HashMap<String, u32>,
}

impl Gates for TestGates {
    fn look(&self, agent: &Name) -> GateLook {
        let now = self.now.borrow().millis();
        let looks = self.looks.get(agent.as_str()).map_or(&[][..], Vec::as_slice);
        looks.iter().rev().find(|(from, _)| *from <= now).map_or(GateLook::Admits, |(_, look)| look.clone())
    }

    fn share(&self, agent: &Name) -> u32 {
        self.share.get(agent.as_str()).copied().unwrap_or(u32::MAX)
    }
}

#[derive(Debug)]
enum News {
    Reply(StepKey, Box<Result<CallDone, CallFailed>>),
    SlotFree(StepKey),
    Gate(String),
    Cancel,
}

/// When a call is answered, in which order among those of that moment, and with what.
type Owed = (Timestamp, u64, Result<CallDone, CallFailed>);

pub(super) struct World {
    plan: RunPlan,
    gates: TestGates,
    scripts: HashMap<String, VecDeque<Answer>>,
    line_wait_ms: u64,
    line_is_full: bool,
    cancel_at_ms: Option<u64>,
    now: Timestamp,
    queue: BTreeMap<(Timestamp, u64), News>,
    sequence: u64,
    wake: Option<Timestamp>,
    open: BTreeSet<StepKey>,
    may_resend: HashMap<StepKey, bool>,
    /// Answers that agents still owe to calls, whoever asks for them.
    owed: HashMap<StepKey, Option<Owed>>,
    input: Map<String, Value>,
    journal: Vec<(Vec<Ended>, Vec<Event>)>,
    over: HashSet<StepKey>,
    /// Calls for which a rung of the ladder was asked in this life.
    instead: HashSet<StepKey>,
    finished: bool,
    pub(super) calls: Vec<(u64, String, Value)>,
    pub(super) events: Vec<(u64, NewEvent)>,
    pub(super) aborted: Vec<StepKey>,
    pub(super) in_flight_max: usize,
}

impl World {
    /// A run of this workflow; the table `[workflow]` with a name and an output is put in front.
    pub(super) fn new(text: &str, input: Value) -> Self {
        Self::with_head("output = \"1\"", text, input)
    }

    pub(super) fn with_head(head: &str, text: &str, input: Value) -> Self {
        let agents = AGENTS.iter().map(|name| Name::try_new(name).unwrap()).collect();
        let text = format!("[workflow]\nname = \"test\"\n{head}\n{text}");
        let workflow = load("test.toml", text.as_bytes(), &agents).map_err(|error| error.to_string()).unwrap();
        let Value::Object(input) = input else { panic!("an input is an object") };
        let plan = RunPlan::new(Arc::new(workflow), &input, seed(None)).unwrap();
        Self { input, ..Self::of(plan.journaled()) }
    }

    pub(super) fn of(plan: RunPlan) -> Self {
        Self {
            plan,
            gates: TestGates::default(),
            scripts: HashMap::new(),
            line_wait_ms: 100,
            line_is_full: false,
            cancel_at_ms: None,
            now: Timestamp::ZERO,
            queue: BTreeMap::new(),
            sequence: 0,
            wake: None,
            open: BTreeSet::new(),
            may_resend: HashMap::new(),
            owed: HashMap::new(),
            input: Map::new(),
            journal: Vec::new(),
            over: HashSet::new(),
            instead: HashSet::new(),
            finished: false,
            calls: Vec::new(),
            events: Vec::new(),
            aborted: Vec::new(),
            in_flight_max: 0,
        }
    }

    /// What an agent answers, call by call; afterwards it answers its input after 10 ms.
    pub(super) fn agent(mut self, agent: &str, answers: impl IntoIterator<Item = Answer>) -> Self {
        self.scripts.insert(agent.to_owned(), answers.into_iter().collect());
        self
    }

    /// What the gates in front of an agent say from this moment on. The plan is told of it.
    pub(super) fn gate(mut self, agent: &str, from_ms: u64, look: GateLook) -> Self {
        self.gates.looks.entry(agent.to_owned()).or_default().push((from_ms, look));
        if from_ms > 0 {
            self.later(Timestamp::from_millis(from_ms), News::Gate(agent.to_owned()));
        }
        self
    }

    pub(super) fn share(mut self, agent: &str, calls: u32) -> Self {
        self.gates.share.insert(agent.to_owned(), calls);
        self
    }

    pub(super) fn full_line(mut self) -> Self {
        self.line_is_full = true;
        self
    }

    pub(super) fn cancelled_at(mut self, at_ms: u64) -> Self {
        self.cancel_at_ms = Some(at_ms);
        self
    }

    /// Begins with these results.
    pub(super) fn seeded(mut self, seeds: Vec<Ended>) -> Self {
        self.plan = self.plan.with_seeds(seeds);
        self
    }

    /// Runs to the end.
    pub(super) fn run(self) -> Self {
        self.run_until(0).run_on()
    }

    /// Runs until so many turns were written down, if it does not end before; none = until it has begun.
    pub(super) fn run_until(mut self, batches: usize) -> Self {
        if self.journal.is_empty() {
            if let Some(at) = self.cancel_at_ms {
                self.later(Timestamp::from_millis(at), News::Cancel);
            }
            let actions = self.plan.start(self.now, &self.gates);
            self.perform(actions);
        }
        while self.journal.len() < batches && !self.finished && self.turn() {}
        self
    }

    /// Nobody runs until then.
    pub(super) fn down_until(mut self, at_ms: u64) -> Self {
        self.now = Timestamp::from_millis(at_ms);
        *self.gates.now.borrow_mut() = self.now;
        self
    }

    /// All that was not written down is gone: the plan, the line, the timer. Agents go on with what they were asked for.
    pub(super) fn restarted(mut self) -> Self {
        if self.finished {
            return self;
        }
        let started = Some(Timestamp::ZERO);
        let workflow = Arc::clone(self.plan.workflow());
        let events: Vec<Event> = self.journal.iter().flat_map(|(_, events)| events.clone()).collect();
        let mut open = vec![open_calls(&workflow, &events)];
        judge(&mut open, Some(UNIX_ZERO_MS + self.now.millis()));
        let open = open.remove(0);
        let plan = RunPlan::restore(workflow, &self.input, seed(None), Vec::new(), started, &self.ended());
        self.plan = plan.unwrap().journaled();
        self.may_resend.extend(self.open.iter().map(|key| (*key, true)));
        self.instead.clear();
        self.wake = None;
        let open_before = std::mem::take(&mut self.open);
        self.owed.retain(|key, _| open_before.contains(key));
        self.queue.retain(|_, news| matches!(news, News::Gate(_) | News::Cancel));
        let actions = self.plan.resume(self.now, &self.gates, &open);
        self.perform(actions);
        self
    }

    /// Its caller cancels it now.
    pub(super) fn cancelled(mut self) -> Self {
        let actions = self.plan.cancel(self.now);
        self.perform(actions);
        self
    }

    /// The node stops of itself, and says so.
    pub(super) fn stopped(mut self) -> Self {
        let said = self.plan.leave_unsent(&[]);
        self.perform(said);
        self
    }

    /// It is the turn of a call that is held back as a suspect.
    pub(super) fn tried(mut self, key: StepKey) -> Self {
        let actions = self.plan.try_alone(key, self.now, &self.gates);
        self.perform(actions);
        self
    }

    /// An operator lets this call go on.
    pub(super) fn released(mut self, key: StepKey) -> Self {
        let actions = self.plan.release(key, self.now, &self.gates);
        self.perform(actions);
        self
    }

    pub(super) fn batches(&self) -> usize {
        self.journal.len()
    }

    pub(super) fn is_over(&self) -> bool {
        self.finished
    }

    /// What was written of calls that are over.
    pub(super) fn ended(&self) -> Vec<Ended> {
        self.journal.iter().flat_map(|(ended, _)| ended.clone()).collect()
    }

    /// Runs to the end from where it is.
    pub(super) fn run_on(mut self) -> Self {
        for _ in 0..TURNS_MAX {
            if !self.turn() {
                break;
            }
        }
        assert!(self.finished, "the run did not end: {:#?}", self.plan.why_steps());
        assert!(self.open.is_empty(), "calls left open: {:?}", self.open);
        self.check_end();
        self
    }

    /// Takes up the next thing that happens.
    fn turn(&mut self) -> bool {
        let next = self.queue.keys().next().map(|(at, _)| *at);
        let at = match (next, self.wake) {
            (Some(news), Some(wake)) => news.min(wake),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => return false,
        };
        self.now = self.now.max(at);
        *self.gates.now.borrow_mut() = self.now;
        let actions = if self.wake == Some(at) {
            self.wake = None;
            self.plan.wake(self.now, &self.gates)
        } else if let Some((_, news)) = self.queue.pop_first() {
            self.tell(news)
        } else {
            Vec::new()
        };
        self.perform(actions);
        true
    }

    fn tell(&mut self, news: News) -> Vec<Action> {
        match news {
            News::Reply(key, result) => {
                self.owed.remove(&key);
                if self.open.remove(&key) {
                    let resend = matches!(&*result, Err(failed) if failed.resend == Resend::Allowed);
                    self.may_resend.insert(key, resend);
                }
                self.plan.replied(key, *result, self.now, &self.gates)
            }
            News::SlotFree(key) => {
                if self.open.contains(&key)
                    && let Some(request) = self.plan.request(key)
                {
                    self.plan.line_left(key, self.now);
                    self.call(&request);
                }
                Vec::new()
            }
            News::Gate(agent) => self.plan.gate_changed(&Name::try_new(&agent).unwrap(), self.now, &self.gates),
            News::Cancel => self.plan.cancel(self.now),
        }
    }

    fn perform(&mut self, actions: Vec<Action>) {
        if !actions.is_empty() {
            self.journal.push((Vec::new(), Vec::new()));
        }
        for action in actions {
            assert!(!self.finished, "after the end: {action:?}");
            match action {
                Action::Call(request) => {
                    let first = !self.may_resend.contains_key(&request.key);
                    let resend = self.may_resend.get(&request.key).copied().unwrap_or_default();
                    // A rung of the ladder is asked once for each call that failed.
                    let stands_in = matches!(request.ask, Ask::Instead(_)) && self.instead.insert(request.key);
                    assert!(first || resend || stands_in, "{:?} was called again, but not refused by us", request.key);
                    assert!(!self.over.contains(&request.key), "{:?} is called again, but had ended", request.key);
                    assert!(self.open.insert(request.key), "{:?} is called twice at once", request.key);
                    self.call(&request);
                }
                Action::Line(request) => {
                    assert!(self.open.insert(request.key), "{:?} is in line twice", request.key);
                    let at = self.now.after(Duration::from_millis(self.line_wait_ms));
                    let news = if self.line_is_full {
                        News::Reply(
                            request.key,
                            Box::new(Err(failed(ErrorCode::AgentBulkheadFull, Some(1.0), Resend::Allowed))),
                        )
                    } else {
                        News::SlotFree(request.key)
                    };
                    self.later(at, news);
                }
                Action::WakeAt(at) => self.wake = Some(at),
                Action::Abort(key) => {
                    assert!(self.open.remove(&key), "{key:?} is aborted but not open");
                    self.aborted.push(key);
                }
                Action::Emit(event) => self.write_event(event),
                Action::Record(ended) => self.write_end(&ended),
                Action::Finished => self.finished = true,
            }
        }
        self.in_flight_max = self.in_flight_max.max(self.open.len());
        assert_eq!(self.finished, self.plan.status().is_terminal());
        assert!(self.plan.is_explained(), "{:?}: {:#?}", self.plan.status(), self.plan.why_steps());
        assert!(self.finished || self.wake.is_some_and(|at| at <= self.plan.deadline()), "no timer for the deadline");
    }

    fn write_event(&mut self, event: NewEvent) {
        let id = self.events.len() as u64 + 1;
        let NewEvent { kind, step, data } = event.clone();
        let ts_ms = UNIX_ZERO_MS + self.now.millis();
        self.events.push((self.now.millis(), event));
        let (_, events) = self.journal.last_mut().unwrap();
        events.push(Event { id, ts_ms, kind, run_id: "run-1".to_owned(), step, data });
    }

    fn write_end(&mut self, ended: &Ended) {
        // As a journal keeps it.
        let ended: Ended = serde_json::from_str(&serde_json::to_string(ended).unwrap()).unwrap();
        if ended.scope == EndedScope::Item {
            let step = self.plan.workflow().steps().iter().position(|step| step.id() == ended.record.id).unwrap();
            let index = ended.record.index.map(|index| u32::try_from(index).unwrap());
            let key = StepKey { step, index, iteration: ended.record.iteration };
            assert!(self.over.insert(key), "{key:?} ended twice");
        }
        self.journal.last_mut().unwrap().0.push(ended);
    }

    fn call(&mut self, request: &CallRequest) {
        let agent = match &request.ask {
            Ask::Agent => request.agent.to_string(),
            Ask::Instead(instead) => format!("{}:{}", instead.rung.as_str(), request.agent),
        };
        self.calls.push((self.now.millis(), agent.clone(), (*request.input).clone()));
        match self.owed.get(&request.key).cloned() {
            Some(Some((at, sequence, result))) => {
                // Of two agents that answer in the same moment the same one is first, whoever asks again first.
                self.queue.insert((at.max(self.now), sequence), News::Reply(request.key, Box::new(result)));
                return;
            }
            Some(None) => return,
            None => {}
        }
        let answer = self.scripts.get_mut(&agent).and_then(VecDeque::pop_front);
        let answer = answer.unwrap_or_else(|| good(10, (*request.input).clone()));
        let at = |after_ms| self.now.after(Duration::from_millis(after_ms));
        let (at, result) = match answer {
            Answer::Hangs => {
                self.owed.insert(request.key, None);
                return;
            }
            Answer::Good(after_ms, output) => {
                let instead = match &request.ask {
                    Ask::Agent => None,
                    Ask::Instead(instead) => Some(instead.clone()),
                };
                let usage = Some(Usage { prompt_tokens: 10, output_tokens: 1, estimated: false, ..Usage::default() });
                (at(after_ms), Ok(CallDone { output, usage, attempts: vec![attempt(self.now, after_ms)], instead }))
            }
            Answer::Bad(after_ms, code) => (at(after_ms), Err(failed(code, None, Resend::Never))),
            Answer::Refused(code, retry_after) => (at(0), Err(failed(code, retry_after, Resend::Allowed))),
        };
        self.later(at, News::Reply(request.key, Box::new(result.clone())));
        self.owed.insert(request.key, Some((at, self.sequence, result)));
    }

    fn later(&mut self, at: Timestamp, news: News) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), news);
    }

    /// What holds at the end of every run.
    fn check_end(&self) {
        let finished = self.events.iter().filter(|(_, event)| event.kind == EventType::RunFinished).count();
        assert_eq!(finished, 1, "run.finished must come once");
        assert_eq!(self.events.last().map(|(_, event)| event.kind), Some(EventType::RunFinished));
        let record = self.plan.record();
        for step in self.plan.workflow().steps() {
            assert!(record.steps.iter().any(|known| known.id == step.id()), "no record of {}", step.id());
        }
        for step in &record.steps {
            assert!(!matches!(step.status, StepStatus::Pending | StepStatus::Running), "left open: {step:?}");
            let explained = !matches!(step.status, StepStatus::Failed | StepStatus::Cancelled) || step.error.is_some();
            assert!(explained, "no reason given: {step:?}");
        }
        let is_degraded = record.status == RunStatus::CompletedDegraded;
        assert!(!is_degraded || !record.degraded.is_empty());
        assert!(record.status != RunStatus::Completed || record.degraded.is_empty());
        let is_bad = matches!(record.status, RunStatus::Failed | RunStatus::TimedOut | RunStatus::Cancelled);
        assert_eq!(is_bad, record.error.is_some());
        assert_eq!(is_bad, record.output.is_none());
    }

    pub(super) fn record(&self) -> RunRecord {
        self.plan.record()
    }

    pub(super) fn status(&self) -> RunStatus {
        self.plan.status()
    }

    pub(super) fn plan(&mut self) -> &mut RunPlan {
        &mut self.plan
    }

    /// `id[index].iteration status`, one for each record.
    pub(super) fn steps(&self) -> Vec<String> {
        let named = |step: &crate::model::run::StepRecord| {
            let index = step.index.map(|index| format!("[{index}]")).unwrap_or_default();
            let iteration = if step.iteration > 0 { format!(".{}", step.iteration) } else { String::new() };
            format!("{}{index}{iteration} {}", step.id, step.status.as_str())
        };
        self.record().steps.iter().map(named).collect()
    }

    /// `ms agent`, one for each call.
    pub(super) fn called(&self) -> Vec<String> {
        self.calls.iter().map(|(at, agent, _)| format!("{at} {agent}")).collect()
    }

    /// `step cause action`, one for each degradation.
    pub(super) fn degraded(&self) -> Vec<String> {
        let named = self.record().degraded.into_iter();
        named.map(|degraded| format!("{} {} {}", degraded.step, degraded.cause.as_str(), degraded.action)).collect()
    }

    /// `ms type`, one for each event of the run itself.
    pub(super) fn run_events(&self) -> Vec<String> {
        let own = self.events.iter().filter(|(_, event)| event.kind.as_str().starts_with("run."));
        own.map(|(at, event)| format!("{at} {}", event.kind.as_str())).collect()
    }

    /// The data of the events of one kind and step.
    pub(super) fn data(&self, kind: EventType, step: Option<&str>) -> Vec<Value> {
        let fits = self.events.iter().filter(|(_, event)| event.kind == kind && event.step.as_deref() == step);
        fits.map(|(_, event)| event.data.clone()).collect()
    }
}

pub(super) fn seed(deadline: Option<Duration>) -> RunSeed {
    RunSeed {
        run_id: "run-1".to_owned(),
        created: Timestamp::ZERO,
        deadline,
        unix_zero_ms: UNIX_ZERO_MS,
        currency: None,
        trace_id: Some(TRACE_ID.to_owned()),
        rerun_of: None,
    }
}

pub(super) fn failed(code: ErrorCode, retry_after: Option<f64>, resend: Resend) -> CallFailed {
    let envelope = Envelope::new(code, format!("scripted {code}"));
    let envelope = match retry_after {
        Some(seconds) => envelope.with_retry_after(seconds),
        None => envelope,
    };
    CallFailed { envelope, resend, usage: None, attempts: Vec::new() }
}

fn attempt(at: Timestamp, duration_ms: u64) -> AttemptRecord {
    AttemptRecord {
        started_ms: UNIX_ZERO_MS + at.millis(),
        duration_ms,
        status: Some(200),
        error_code: None,
        retry_after: None,
    }
}

pub(super) fn shut(until_ms: u64) -> GateLook {
    GateLook::Refuses { until: Some(Timestamp::from_millis(until_ms)), reason: "failure_share".to_owned() }
}

pub(super) fn forced() -> GateLook {
    GateLook::Refuses { until: None, reason: "forced".to_owned() }
}

/// An input without anything.
pub(super) fn nothing() -> Value {
    Value::Object(Map::new())
}

/// Steps that need each other in a row: a, b, c, ...
pub(super) fn chain(ids: &[&str]) -> String {
    let steps = ids.iter().enumerate().map(|(at, id)| {
        let needs = at.checked_sub(1).map_or_else(|| "[]".to_owned(), |before| json!([ids[before]]).to_string());
        format!("[[step]]\nid = \"{id}\"\nagent = \"{id}\"\nneeds = {needs}\n")
    });
    steps.collect()
}
