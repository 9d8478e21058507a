//! A caller in the line: where one is configured, a call that lacks only a slot waits for it, in its own task. It holds nothing while it
//! waits; deadline, stop and gates are asked again when it is served. Leaving costs nothing.

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    call::CallContext,
    compartments::{LinedUp, Lining, NoPlace, Served},
    core::{AgentCore, Shared},
    fallback::Admitted,
    handle::{AgentHandle, Held},
    overload::Waiting,
    parked::ParkedAt,
    refusal::Refusal,
    sync::sleep,
};
use crate::{
    model::clock::Timestamp,
    policy::{
        breaker::state::GateView,
        compartment::{
            directory::Place,
            line::{LineFull, Ticket},
        },
    },
};

/// Who stands in line for an agent that a reload takes away waits so long for another reload to bring it back: time enough to mend a
/// mistake, too little to be silence.
const GONE_PATIENCE: Duration = Duration::from_secs(5);

/// Where a call can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Targets {
    /// At each target of its agent.
    All,
    /// At the agent's own only: it is about bytes that no other one understands.
    Own,
}

/// A place in the line. Dropping it leaves the line.
struct Standing<'a> {
    shared: &'a Shared,
    ticket: Ticket,
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.shared.compartments.leave(self.ticket);
    }
}

/// How standing in the line ended.
enum Stood {
    /// With everything that was lacking.
    Served(Served),
    /// A reload took away what it stood for.
    Dismissed,
    /// Its patience is over.
    InVain,
}

/// Why it could not go on standing there.
enum NotStood {
    /// There was no place, or somebody of a higher class took it.
    Full(LineFull),
    /// Something else refuses it.
    Refused(Refusal),
}

/// What a caller has who waited for a model.
enum Waited {
    /// Everything.
    Admitted(Box<Admitted>),
    /// Not yet everything.
    Lacks(Refusal),
}

impl AgentHandle {
    /// Waits for the slot that `refusal` found missing, or for the model that is being loaded, as long as feature, tier and deadline allow;
    /// what was refused otherwise stays so.
    pub(crate) async fn line_up(
        &self,
        targets: Targets,
        context: &CallContext,
        refusal: Refusal,
    ) -> Result<Admitted, Refusal> {
        let mut allowed = match (refusal.place(), refusal.warming()) {
            (Some(place), _) => place.max_wait,
            (None, Some(_)) => self.shared.compartments.max_wait(context.asking()),
            // It may not wait for a slot, or something else is in its way.
            (None, None) => return Err(refusal),
        }
        .saturating_sub(context.waited);
        let refusal = match refusal.warming().map(Arc::clone) {
            Some(model) if !allowed.is_zero() => {
                let began = self.shared.now();
                let refusal = self.wait_for_model(targets, context, (&model, allowed), refusal).await?;
                allowed = allowed.saturating_sub(self.shared.now().since(began));
                match refusal {
                    Waited::Admitted(admitted) => return Ok(*admitted),
                    Waited::Lacks(refusal) => refusal,
                }
            }
            _ => refusal,
        };
        if refusal.is_full() { self.stand_in_line(targets, context, allowed, refusal).await } else { Err(refusal) }
    }

    fn admit_at(&self, targets: Targets, context: &CallContext) -> Result<Admitted, Refusal> {
        match targets {
            Targets::All => self.admit_any(context, &ParkedAt::default()),
            Targets::Own => self.admit(context).map(|permit| Admitted::alone(self.clone(), permit)),
        }
    }

    /// Once the model is there, everything is asked for again.
    async fn wait_for_model(
        &self,
        targets: Targets,
        context: &CallContext,
        (model, allowed): (&str, Duration),
        refusal: Refusal,
    ) -> Result<Waited, Refusal> {
        let shared = &self.shared;
        let left = context.deadline.map_or(Duration::MAX, |deadline| deadline.since(shared.now()));
        let is_over = tokio::select! {
            biased;
            is_over = shared.models.until_over(model) => is_over,
            () = shared.stopping.cancelled() => return Err(Refusal::ShuttingDown),
            () = sleep(allowed.min(left)) => return Err(if left <= allowed { Refusal::Deadline } else { refusal }),
        };
        if !is_over {
            return Err(refusal);
        }
        match self.admit_at(targets, context) {
            Ok(admitted) => Ok(Waited::Admitted(Box::new(admitted))),
            Err(refusal) => Ok(Waited::Lacks(refusal)),
        }
    }

    async fn stand_in_line(
        &self,
        at: Targets,
        context: &CallContext,
        allowed: Duration,
        refusal: Refusal,
    ) -> Result<Admitted, Refusal> {
        let shared = &self.shared;
        let now = shared.now();
        let left = context.deadline.map(|deadline| deadline.since(now));
        let wait = left.map_or(allowed, |left| left.min(allowed));
        if wait.is_zero() {
            return if self.now().is_some() { Err(refusal) } else { Err(Refusal::Gone) };
        }
        // The lowest classes are refused before they wait, where higher ones wait too long.
        let class = shared.compartments.class(context.priority.as_deref());
        let waiting = match refusal.lacks() {
            Some(count) => shared.overload.enter(count, class, now).map_err(|shed| Refusal::Shed { shed })?,
            None => None,
        };
        let (age, mut known) = ((now, shared.next_call()), refusal.place());
        let patience = sleep(wait);
        tokio::pin!(patience);
        // Once, but for reloads: whoever stood for what is somewhere else now stands for that, as old and as patient as it was.
        loop {
            let front = self.here(patience.as_mut()).await?;
            let targets = front.targets_at(at);
            let stood = front.stand(&targets, (context, known.take()), age, patience.as_mut()).await;
            let told = |not_stood| match not_stood {
                NotStood::Full(full) => refusal.clone().in_full_line(full),
                NotStood::Refused(refusal) => refusal,
            };
            let served = match stood.map_err(told)? {
                Stood::Served(served) => served,
                Stood::Dismissed => continue,
                Stood::InVain if left.is_some_and(|left| left <= wait) => return Err(Refusal::Deadline),
                // What it is told is how things are now, not how they were.
                Stood::InVain => return self.admit_at(at, context),
            };
            match front.served(at, context, &targets, served) {
                // A reload took this target away while the call was served.
                Err(Refusal::Gone) => {}
                admitted => {
                    waiting.iter().for_each(Waiting::served);
                    return admitted;
                }
            }
        }
    }

    /// The agent as it is now. One that a reload took away may be brought back by the next: that is waited for, but not for long.
    async fn here(&self, mut patience: Pin<&mut impl Future<Output = ()>>) -> Result<Self, Refusal> {
        let shared = &self.shared;
        let is_gone = sleep(GONE_PATIENCE);
        tokio::pin!(is_gone);
        loop {
            let reloaded = shared.reloaded.notified();
            tokio::pin!(reloaded);
            // Listening comes before looking, so that no reload falls between the two.
            reloaded.as_mut().enable();
            if let Some(front) = self.now() {
                return Ok(front);
            }
            tokio::select! {
                biased;
                () = reloaded => {}
                () = shared.stopping.cancelled() => return Err(Refusal::ShuttingDown),
                () = &mut is_gone => return Err(Refusal::Gone),
                () = patience.as_mut() => return Err(Refusal::Gone),
            }
        }
    }

    /// Stands in the line for these targets until something ends it.
    async fn stand(
        &self,
        targets: &[Arc<AgentCore>],
        (context, known): (&CallContext, Option<&Place>),
        (since, number): (Timestamp, u64),
        patience: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Stood, NotStood> {
        let shared = &self.shared;
        let (sender, mut served) = oneshot::channel();
        let who = Lining::Call { served: sender, since, number };
        let asking = (context.asking(), known);
        let ticket = match shared.compartments.line_up(shared, targets, asking, who, shared.now()) {
            Ok(LinedUp::Served(served)) => return Ok(Stood::Served(served)),
            Ok(LinedUp::Waits(ticket)) => ticket,
            Err(NoPlace::Full(full)) => return Err(NotStood::Full(full)),
            Err(NoPlace::Stranger(stranger)) => return Err(NotStood::Refused(Refusal::Stranger { stranger })),
        };
        let standing = Standing { shared, ticket };
        let stood = tokio::select! {
            biased;
            // Nobody who stands here is let go without a word but by a reload that took the agent away, or moved it.
            told = &mut served => Some(told.map_or(Ok(Stood::Dismissed), |told| told.map(Stood::Served))),
            () = shared.stopping.cancelled() => return Err(NotStood::Refused(Refusal::ShuttingDown)),
            () = patience => None,
        };
        drop(standing);
        // Served between the end of its patience and its leaving: what is there is used.
        let stood =
            stood.unwrap_or_else(|| served.try_recv().map_or(Ok(Stood::InVain), |told| told.map(Stood::Served)));
        stood.map_err(NotStood::Full)
    }

    /// The targets that would take a call if they had a slot; all of them if none would.
    pub(crate) fn targets_in_line(&self) -> Vec<Arc<AgentCore>> {
        let all = self.shared.targets_of(&self.agent);
        let is_open = |core: &&Arc<AgentCore>| !matches!(self.at(Arc::clone(core)).look(), GateView::Refuse(_));
        let open: Vec<Arc<AgentCore>> = all.iter().filter(is_open).map(Arc::clone).collect();
        if open.is_empty() { all } else { open }
    }

    fn targets_at(&self, at: Targets) -> Vec<Arc<AgentCore>> {
        match at {
            Targets::All => self.targets_in_line(),
            Targets::Own => vec![Arc::clone(&self.agent)],
        }
    }

    fn served(
        &self,
        at: Targets,
        context: &CallContext,
        targets: &[Arc<AgentCore>],
        served: Served,
    ) -> Result<Admitted, Refusal> {
        let Served { way, seats } = served;
        if at == Targets::Own {
            let permit = self.admit_as(context, &ParkedAt::default(), Held::All(seats))?;
            return Ok(Admitted::alone(self.clone(), permit));
        }
        // proof: a way is one of the targets that were lined up for.
        let target = targets.get(way).unwrap_or(&self.agent);
        self.admit_served(context, &ParkedAt::default(), target, seats)
    }
}
