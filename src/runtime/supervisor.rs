//! The supervisor actor: it alone judges outcomes, changes breakers and publishes gates. Nobody waits for it; while it is being
//! restarted the last gates hold.

use std::sync::Arc;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{broadcast, oneshot};

pub(crate) use super::book::Book;
use super::{
    adaptive::{self, Told},
    book::BreakerEvent,
    core::{AgentCore, BreakerId, Shared, lock},
    orchestrator::OrchestratorMessage,
    permit::{Passes, Permit},
    probing,
};
use crate::{
    model::{clock::Timestamp, facts::Ending},
    policy::{
        breaker::{
            machine::Breaker,
            state::{GateView, Pass, Reason, StateName, Transition},
        },
        restart::Quarantine,
    },
};

/// What the end of a call comes to: facts, no judgement, and the permit that rides along.
pub(crate) struct Facts {
    pub(crate) agent: usize,
    pub(crate) ending: Ending,
    pub(crate) slow: bool,
    /// What its attempts say about pressure; empty where no limit learns from them.
    pub(crate) told: Vec<Told>,
    pub(crate) at: Timestamp,
    pub(crate) permit: Permit,
}

/// What an operator can do to a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerAct {
    /// Refuse everything.
    ForceOpen,
    /// Admit everything, measure nothing.
    Disable,
    /// Admit everything, measure, say what it would have done.
    MetricsOnly,
    /// Judge by itself again, from closed.
    Auto,
    /// Closed and empty.
    Reset,
}

/// What the supervisor is told. All one-way.
pub(crate) enum SupervisorMessage {
    /// A call ended.
    Outcome(Box<Facts>),
    /// An attempt in flight is slow by now.
    Aged { agent: usize, passes: Passes, at: Timestamp },
    /// The answer of a trial has begun in time, and flows.
    Flows { agent: usize, passes: Passes, at: Timestamp },
    /// A caller took a trial.
    TrialTaken { breaker: BreakerId, pass: Pass, opened_it: bool, at: Timestamp },
    /// A caller turned a gate half-open without a trial for itself.
    Opened { breaker: BreakerId, generation: u32, at: Timestamp },
    /// A pass ended as if it had never been.
    Released { breaker: BreakerId, pass: Pass, at: Timestamp },
    /// An agent's actor died; the ledger has it already.
    Died { agent: usize, quarantine: Quarantine },
    /// An operator acts.
    Act { breaker: BreakerId, act: BreakerAct },
    /// Say when all that was told before this holds.
    Tell(oneshot::Sender<()>),
    /// A run was accepted that needs these agents, in this order: have their models loaded.
    Prewarm(Vec<usize>),
    /// A timer may be due.
    Tick,
    /// Show that it turns.
    Beat,
    /// Die, as a fault would make it.
    Crash,
}

/// The actor.
pub(crate) struct SupervisorActor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) events: broadcast::Sender<BreakerEvent>,
}

/// What dies with the actor: only its timer.
#[derive(Default)]
pub(crate) struct SupervisorState {
    timer: Option<(Timestamp, tokio::task::JoinHandle<()>)>,
}

impl Actor for SupervisorActor {
    type Msg = SupervisorMessage;
    type State = SupervisorState;
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<Self::Msg>, (): ()) -> Result<Self::State, ActorProcessingErr> {
        // The address first: whatever is told from here on is only handled after this, so nothing falls between the two.
        self.shared.supervisor.set(myself.clone());
        let now = self.shared.now();
        self.shared.pulse.supervisor_turned(now);
        self.recover(now);
        // Whatever became due while nobody was here.
        let _ = myself.cast(SupervisorMessage::Tick);
        Ok(SupervisorState::default())
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: SupervisorMessage,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        if matches!(message, SupervisorMessage::Crash) {
            return Err("told to crash".into());
        }
        let (news, due) = self.turn(message);
        for event in news {
            probing::follow(&self.shared, event.id);
            self.shared.orchestrator.cast(OrchestratorMessage::GateChanged(event.id));
            // Nobody may be listening.
            let _ = self.events.send(event);
        }
        self.arm(state, due);
        Ok(())
    }
}

impl Shared {
    /// Waits until whatever the supervisor was told before is judged: acts hold, and slots of calls that ended are back. What a supervisor took
    /// with it when it died never is.
    pub(crate) async fn judged(&self) {
        let (tell, told) = oneshot::channel();
        self.supervisor.cast(SupervisorMessage::Tell(tell));
        // A supervisor that dies lets go of it.
        let _ = told.await;
    }
}

impl SupervisorActor {
    /// Takes one message in. The transitions that follow from it, and when the next timer is due.
    pub(crate) fn turn(&self, message: SupervisorMessage) -> (Vec<BreakerEvent>, Option<Timestamp>) {
        let told = {
            let mut book = lock(&self.shared.book);
            self.take_in(&mut book, &message);
            (book.take_news(), book.next_timer())
        };
        // Without the book in hand, also where taking in panicked: whoever gives slots back or resizes them locks the compartments, and
        // nobody has to wait for both.
        match message {
            SupervisorMessage::Outcome(facts) => {
                adaptive::learn(&self.shared, facts.agent, &facts.told, &facts.permit.lease);
                facts.permit.settle();
            }
            SupervisorMessage::Tell(done) => {
                // Who asked may have left.
                let _ = done.send(());
            }
            _ => {}
        }
        told
    }

    fn take_in(&self, book: &mut Book, message: &SupervisorMessage) {
        let now = self.shared.now();
        match message {
            SupervisorMessage::Outcome(facts) => {
                if facts.ending == Ending::Restarted {
                    self.panicked(book, facts.agent, facts.at);
                }
                if let Some(agent) = self.shared.at(facts.agent) {
                    book.outcome(facts, agent.source, agent.keyed);
                }
            }
            SupervisorMessage::Aged { agent, passes, at } => {
                if let Some(agent) = self.shared.at(*agent) {
                    book.aged(passes, agent.source, *at);
                }
            }
            SupervisorMessage::Flows { agent, passes, at } => {
                if let Some(agent) = self.shared.at(*agent) {
                    book.flows(passes, agent.source, *at);
                }
            }
            &SupervisorMessage::TrialTaken { breaker, pass, opened_it, at } => {
                book.trial_taken(breaker, pass, opened_it, at);
            }
            &SupervisorMessage::Opened { breaker, generation, at } => book.opened(breaker, generation, at),
            &SupervisorMessage::Released { breaker, pass, at } => book.released(breaker, pass, at),
            &SupervisorMessage::Died { agent, quarantine } => {
                if let Some(agent) = self.shared.at(agent) {
                    quarantine_gate(book, &agent, quarantine, now);
                }
            }
            &SupervisorMessage::Act { breaker, act } => book.change(breaker, |breaker| {
                let transition = match act {
                    BreakerAct::ForceOpen => breaker.force_open(Reason::Forced, None, now),
                    BreakerAct::Disable => breaker.disable(now),
                    BreakerAct::MetricsOnly => breaker.metrics_only(now),
                    BreakerAct::Auto => breaker.close(now),
                    BreakerAct::Reset => breaker.reset(now),
                };
                transition.into_iter().collect::<Vec<Transition>>()
            }),
            SupervisorMessage::Tick => {
                book.tick(now);
                self.release_quarantined(book, now);
            }
            SupervisorMessage::Prewarm(agents) => probing::warm_ahead(&self.shared, agents),
            SupervisorMessage::Beat => {
                self.shared.pulse.supervisor_turned(now);
                self.shared.models.show(now);
                // What leaves a window leaves it without anybody's doing.
                self.shared.tokens.show(now);
            }
            SupervisorMessage::Tell(_) | SupervisorMessage::Crash => {}
        }
    }

    /// What the last supervisor may not have heard: trials that were out, agents that died often.
    pub(crate) fn recover(&self, now: Timestamp) {
        let anew = lock(&self.shared.book).recover(now);
        for anew in anew {
            // Trials that are given out anew go to parked runs first, like any others.
            self.shared.orchestrator.cast(OrchestratorMessage::GateChanged(anew));
            probing::follow(&self.shared, anew);
        }
        let mut book = lock(&self.shared.book);
        for agent in &self.shared.agents().agents {
            let held = lock(&agent.ledger).released_at().is_some();
            if held {
                quarantine_gate(&mut book, agent, Quarantine::Goes, now);
            }
        }
    }

    /// A panic of an attempt's task counts in the restart ledger only.
    fn panicked(&self, book: &mut Book, agent: usize, at: Timestamp) {
        let Some(agent) = self.shared.at(agent) else { return };
        agent.metrics.restarts.increment(1);
        let restart = lock(&agent.ledger).died(at);
        quarantine_gate(book, &agent, restart.quarantine, at);
    }

    fn release_quarantined(&self, book: &mut Book, now: Timestamp) {
        if book.quarantine_until.is_none_or(|until| until > now) {
            return;
        }
        book.quarantine_until = None;
        for agent in &self.shared.agents().agents {
            let (released, next) = {
                let mut ledger = lock(&agent.ledger);
                (ledger.release(now), ledger.released_at())
            };
            book.quarantine_until = book.quarantine_until.into_iter().chain(next).min();
            if released {
                tracing::warn!(
                    agent = agent.settings.name.as_str(),
                    "quarantine over: the agent lives long enough for trials"
                );
                book.change(agent.guard.id, |breaker| match forced_by(breaker) {
                    Some(Reason::CrashLoop) => {
                        breaker.half_open(Reason::OpenElapsed, now).ok().flatten().into_iter().collect()
                    }
                    // An operator has decided otherwise meanwhile.
                    _ => Vec::new(),
                });
            }
        }
    }

    /// One timer at a time: the next of all breakers and quarantines.
    fn arm(&self, state: &mut SupervisorState, due: Option<Timestamp>) {
        let Some(due) = due else {
            if let Some((_, timer)) = state.timer.take() {
                timer.abort();
            }
            return;
        };
        if state.timer.as_ref().is_some_and(|(armed, timer)| *armed == due && !timer.is_finished()) {
            return;
        }
        if let Some((_, timer)) = state.timer.take() {
            timer.abort();
        }
        let shared = Arc::clone(&self.shared);
        let wait = due.since(shared.now());
        let timer = tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            shared.supervisor.cast(SupervisorMessage::Tick);
        });
        state.timer = Some((due, timer));
    }
}

/// Shuts, or keeps shut, the gate of an agent that dies again and again.
fn quarantine_gate(book: &mut Book, agent: &AgentCore, quarantine: Quarantine, now: Timestamp) {
    if quarantine == Quarantine::No {
        return;
    }
    if quarantine == Quarantine::Begins {
        tracing::error!(agent = agent.settings.name.as_str(), "quarantined: it died too often");
    }
    let until = lock(&agent.ledger).released_at();
    book.quarantine_until = book.quarantine_until.into_iter().chain(until).min();
    book.change(agent.guard.id, |breaker| match forced_by(breaker) {
        // What an operator shut, only they open.
        Some(Reason::Forced) => Vec::new(),
        _ => breaker.force_open(Reason::CrashLoop, until, now).into_iter().collect(),
    });
}

/// Why a breaker refuses until told otherwise, if it does.
fn forced_by(breaker: &Breaker) -> Option<Reason> {
    match breaker.gate() {
        GateView::Refuse(refusal) if breaker.state() == StateName::ForcedOpen => Some(refusal.reason),
        _ => None,
    }
}
