//! What goes into a plan and what comes out of it: the whole language between the plan and whoever performs it.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use crate::{
    model::{
        clock::Timestamp,
        ended::Ended,
        envelope::Envelope,
        event::EventType,
        name::Name,
        reply::Usage,
        run::{AttemptRecord, Cause},
    },
    policy::ladder::Rung,
};

/// One call of a run: a step, an item of its `map`, an iteration of its revision. Late news carries it and is known by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepKey {
    /// The step, as a place in `Workflow::steps`.
    pub step: usize,
    /// The item of a `map`, from 0.
    pub index: Option<u32>,
    /// The iteration of a revision, from 0.
    pub iteration: u32,
}

/// A call to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRequest {
    /// Which.
    pub key: StepKey,
    /// The agent.
    pub agent: Name,
    /// Its input; the same each time this call is asked for.
    pub input: Arc<Value>,
    /// The step's own limit; the run's deadline holds beside it.
    pub timeout: Option<Duration>,
    /// How it is to be made.
    pub ask: Ask,
}

/// How a call of a run is to be made.
#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    /// The agent is asked.
    Agent,
    /// The agent was asked and refused or failed: only this rung of its ladder is tried.
    Instead(Box<Instead>),
}

/// What a rung stands in for.
#[derive(Debug, Clone, PartialEq)]
pub struct Instead {
    /// The rung.
    pub rung: Rung,
    /// Why.
    pub cause: Cause,
    /// The first error of the call.
    pub error: Envelope,
}

/// What to do now, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Make this call and tell `RunPlan::replied`.
    Call(CallRequest),
    /// Stand in the bounded line for a slot of the agent. When one is free, tell `RunPlan::line_left` and make the call;
    /// if the line is full or a gate shuts, tell `RunPlan::replied` with the refusal.
    Line(CallRequest),
    /// Tell `RunPlan::wake` at this moment. Replaces what was asked before.
    WakeAt(Timestamp),
    /// Abort this call, under way or in line. Nothing needs to be told back.
    Abort(StepKey),
    /// Write this into the run's event log.
    Emit(NewEvent),
    /// Write this down: a call is over. Only asked for by a plan that keeps a journal.
    Record(Box<Ended>),
    /// The run is over: the last action of every run, once.
    Finished,
}

/// An event that still lacks its number, run and time.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// What happened.
    pub kind: EventType,
    /// The step, where it concerns one.
    pub step: Option<String>,
    /// Further facts.
    pub data: Value,
}

/// A call that ended well.
#[derive(Debug, Clone, PartialEq)]
pub struct CallDone {
    /// The agent's output.
    pub output: Value,
    /// Tokens of all attempts.
    pub usage: Option<Usage>,
    /// All exchanges.
    pub attempts: Vec<AttemptRecord>,
    /// The rung that answered in the agent's stead. One that puts a call off answers with no output.
    pub instead: Option<Box<Instead>>,
}

/// A call that was refused or failed.
#[derive(Debug, Clone, PartialEq)]
pub struct CallFailed {
    /// What went wrong.
    pub envelope: Envelope,
    /// Whether the same call may be asked for again.
    pub resend: Resend,
    /// Tokens that are known to have been used.
    pub usage: Option<Usage>,
    /// All exchanges.
    pub attempts: Vec<AttemptRecord>,
}

/// Whether a failed call may be asked for again by the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resend {
    /// A guard of our own refused it and nothing was ever sent.
    Allowed,
    /// Its agent is not here: it may be asked for again when it is back.
    WhenBack,
    /// Something was sent, or its attempts are used up.
    Never,
}

/// What the gates in front of an agent say: those of its provider, its key and its target together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateLook {
    /// A call would be admitted.
    Admits,
    /// A call may be admitted as a trial.
    HalfOpen,
    /// A call would be refused: open, forced open or quarantined.
    Refuses {
        /// Until when; `None` until somebody acts.
        until: Option<Timestamp>,
        /// Why, as in the envelope's `details.reason`.
        reason: String,
    },
}

/// The published gates. Looking takes no trial and costs no message.
pub trait Gates {
    /// The gates in front of this agent.
    fn look(&self, agent: &Name) -> GateLook;

    /// So many calls this run may have under way with this agent; taken as 1 where less.
    fn share(&self, agent: &Name) -> u32;
}
