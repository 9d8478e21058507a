//! A caller in the line: where one is configured, a call that lacks only a slot waits for it, in its own task. It holds nothing while it
//! waits; deadline, stop and gates are asked again when it is served. Leaving costs nothing.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    call::CallContext,
    compartments::{LinedUp, Lining, NoPlace, Served},
    core::{AgentCore, Shared},
    fallback::Admitted,
    handle::AgentHandle,
    overload::Waiting,
    parked::ParkedAt,
    refusal::Refusal,
    sync::sleep,
};
use crate::policy::{breaker::state::GateView, compartment::line::Ticket};

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
    pub(crate) async fn line_up(&self, context: &CallContext, refusal: Refusal) -> Result<Admitted, Refusal> {
        let mut allowed = match (refusal.place(), refusal.warming()) {
            (Some(place), _) => place.max_wait,
            (None, Some(_)) => self.shared.compartments.max_wait(context.asking()),
            // It may not wait for a slot, or something else is in its way.
            (None, None) => return Err(refusal),
        };
        let refusal = match refusal.warming().map(Arc::clone) {
            Some(model) if !allowed.is_zero() => {
                let began = self.shared.now();
                let refusal = self.wait_for_model(context, (&model, allowed), refusal).await?;
                allowed = allowed.saturating_sub(self.shared.now().since(began));
                match refusal {
                    Waited::Admitted(admitted) => return Ok(*admitted),
                    Waited::Lacks(refusal) => refusal,
                }
            }
            _ => refusal,
        };
        if refusal.is_full() { self.stand_in_line(context, allowed, refusal).await } else { Err(refusal) }
    }

    /// Once the model is there, everything is asked for again.
    async fn wait_for_model(
        &self,
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
        match self.admit_any(context, &ParkedAt::default()) {
            Ok(admitted) => Ok(Waited::Admitted(Box::new(admitted))),
            Err(refusal) => Ok(Waited::Lacks(refusal)),
        }
    }

    async fn stand_in_line(
        &self,
        context: &CallContext,
        allowed: Duration,
        refusal: Refusal,
    ) -> Result<Admitted, Refusal> {
        let front = self.now().ok_or(Refusal::Gone)?;
        let shared = &self.shared;
        let now = shared.now();
        let left = context.deadline.map(|deadline| deadline.since(now));
        let wait = left.map_or(allowed, |left| left.min(allowed));
        if wait.is_zero() {
            return Err(refusal);
        }
        // The lowest classes are refused before they wait, where higher ones wait too long.
        let class = shared.compartments.class(context.priority.as_deref());
        let waiting = match refusal.lacks() {
            Some(count) => shared.overload.enter(count, class, now).map_err(|shed| Refusal::Shed { shed })?,
            None => None,
        };
        let targets = front.targets_in_line();
        let (sender, mut served) = oneshot::channel();
        let asking = (context.asking(), refusal.place());
        let lined = shared.compartments.line_up(shared, &targets, asking, Lining::Call(sender), now);
        let ticket = match lined {
            Ok(LinedUp::Served(served)) => return self.served(context, &targets, served),
            Ok(LinedUp::Waits(ticket)) => ticket,
            Err(NoPlace::Full(_)) => return Err(refusal),
            Err(NoPlace::Stranger(stranger)) => return Err(Refusal::Stranger { stranger }),
        };
        let standing = Standing { shared, ticket };
        let was_served = || waiting.iter().for_each(Waiting::served);
        let end = tokio::select! {
            biased;
            // Nobody who stands here is let go without a slot but by a reload that took the agent away.
            served = &mut served => Some(Some(served.map_err(|_| Refusal::Gone)?)),
            () = shared.stopping.cancelled() => None,
            () = sleep(wait) => Some(None),
        };
        drop(standing);
        match end {
            Some(Some(served)) => {
                was_served();
                self.served(context, &targets, served)
            }
            None => Err(Refusal::ShuttingDown),
            // Served between the end of its patience and its leaving: what is there is used.
            Some(None) => match served.try_recv() {
                Ok(served) => {
                    was_served();
                    self.served(context, &targets, served)
                }
                Err(_) if left.is_some_and(|left| left <= wait) => Err(Refusal::Deadline),
                // It waited in vain: what it is told is how things are now, not how they were.
                Err(_) => self.admit_any(context, &ParkedAt::default()),
            },
        }
    }

    /// The targets that would take a call if they had a slot; all of them if none would.
    pub(crate) fn targets_in_line(&self) -> Vec<Arc<AgentCore>> {
        let all = self.shared.targets_of(&self.agent);
        let is_open = |core: &&Arc<AgentCore>| !matches!(self.at(Arc::clone(core)).look(), GateView::Refuse(_));
        let open: Vec<Arc<AgentCore>> = all.iter().filter(is_open).map(Arc::clone).collect();
        if open.is_empty() { all } else { open }
    }

    fn served(&self, context: &CallContext, targets: &[Arc<AgentCore>], served: Served) -> Result<Admitted, Refusal> {
        let Served { way, seats } = served;
        // proof: a way is one of the targets that were lined up for.
        let target = targets.get(way).unwrap_or(&self.agent);
        match self.admit_served(context, &ParkedAt::default(), target, seats) {
            // A reload took this target away while the call stood here; the agent may have others.
            Err(Refusal::Gone) => self.admit_any(context, &ParkedAt::default()),
            admitted => admitted,
        }
    }
}
