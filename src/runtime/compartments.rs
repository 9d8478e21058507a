//! All slots of a runtime behind one short lock: what callers take and give back, and who waits for it. What is taken is a value; its
//! drop gives back exactly what was taken, exactly once, and hands it to those who wait, in the same step.

mod needs;
mod resize;

use std::sync::Arc;

use metrics::Gauge;
use needs::needs_of;
pub(crate) use needs::{Part, is_of_target};
use tokio::sync::oneshot;

use super::{
    compartments_builder::CompartmentsBuilder,
    core::{AgentCore, Shared, lock},
    metric,
    orchestrator::OrchestratorMessage,
    run_cell::RunCell,
    run_table::Turn,
    shielded::Shielded,
    sync::Mutex,
};
use crate::{
    model::{call_log::Counted, clock::Timestamp, name::Name},
    policy::{
        bulkhead::{Full, Member},
        compartment::{
            directory::{Directory, Names, Place, Stranger},
            known_tenants::KnownTenants,
            line::{Bounds, LineFull, Order, Ticket},
            needs::{CountId, Needs, Seat},
            pool::{Granted, Joined, Pool},
            settings::{ClassSettings, CompartmentSettings},
        },
    },
    workflow::plan::action::StepKey,
};

/// The slots, and who waits for them.
pub(crate) struct Compartments {
    /// Written by callers, by whoever gives something back, and by the orchestrator.
    state: Mutex<State>,
    /// Their order holds for as long as the runtime runs; what each keeps stands with the state.
    order: ClassSettings,
}

/// What stands behind the lock.
#[derive(Default)]
pub(crate) struct State {
    /// What each class keeps.
    pub(super) classes: ClassSettings,
    pub(super) pool: Pool<Waiter>,
    pub(super) directory: Directory,
    /// What features have taken, by their place; the count of each, where it has one of its own.
    pub(super) feature_gauges: Vec<(Option<CountId>, Shielded<Gauge>)>,
}

/// Who waits in the line.
pub(crate) enum Waiter {
    /// A caller, in its own task. It is served, or hears that a higher class took its place.
    Call(oneshot::Sender<Result<Served, LineFull>>),
    /// A step of a run, standing there for this time. It is asked for by the orchestrator.
    Step(Arc<RunCell>, StepKey, Turn),
}

/// What one who waited is given: everything, on one of its ways.
#[derive(Debug)]
pub(crate) struct Served {
    /// Which of its ways.
    pub(crate) way: usize,
    /// What was taken.
    pub(crate) seats: Seats,
}

/// Slots that were taken together.
pub(crate) struct Seats {
    shared: Arc<Shared>,
    needs: Needs,
    taken: Timestamp,
    /// The call that they were taken for has not begun: nothing is learnt from how long they were held.
    unused: bool,
    /// The agent whose slot is among them, where metrics show it.
    shown: Option<Arc<AgentCore>>,
}

/// Why a caller got no slot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NoSeats {
    /// A count is full. `place` is where its call can wait for it, if it may wait at all.
    Full { count: Arc<str>, full: Full, reach: Reach, place: Option<Box<Place>> },
    /// It may not call at all.
    Stranger(Stranger),
}

/// Whom a full count concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The call, whatever its target.
    Call,
    /// One target: another one may have room.
    Target,
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking<'a> {
    pub(crate) feature: Option<&'a str>,
    pub(crate) tenant: Option<&'a str>,
    pub(crate) class: Option<&'a str>,
    /// Whether it is a newcomer.
    pub(crate) names: Names,
}

impl<'a> Asking<'a> {
    fn who(&self) -> (Option<&'a str>, Option<&'a str>, Names) {
        (self.feature, self.tenant, self.names)
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Call(_) => formatter.write_str("Call"),
            Self::Step(run, key, _) => formatter.debug_tuple("Step").field(&run.id).field(key).finish(),
        }
    }
}

impl std::fmt::Debug for Seats {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Seats").field("needs", &self.needs).finish_non_exhaustive()
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        if self.needs.is_empty() {
            return;
        }
        let now = self.shared.now_or(self.taken);
        self.shared.compartments.give_back(&self.shared, &self.needs, (self.taken, now), self.unused);
        self.shown.iter().for_each(|agent| agent.show_given_back(now.since(self.taken)));
    }
}

impl Seats {
    /// The call begins: from now on it counts how long they are held.
    pub(crate) fn begin(&mut self) {
        self.unused = false;
    }

    /// As whom a slot of this count was taken, if one was.
    pub(crate) fn member_of(&self, count: CountId) -> Option<Member> {
        self.needs.iter().find(|seat| seat.count == count).map(|seat| seat.member)
    }

    /// Those of the target apart from those of the call as a whole.
    pub(crate) fn split(mut self, target: &Needs) -> (Self, Self) {
        let is_of_target = |seat: &Seat| target.iter().any(|of_target| of_target.count == seat.count);
        let of_target = Needs::of(self.needs.iter().filter(is_of_target));
        let of_call = Needs::of(self.needs.iter().filter(|seat| !is_of_target(seat)));
        // What is left here is nothing, so the drop of this value gives nothing back.
        self.needs = Needs::default();
        let part = |needs| Self {
            shared: Arc::clone(&self.shared),
            needs,
            taken: self.taken,
            unused: self.unused,
            shown: None,
        };
        (part(of_target), part(of_call))
    }

    /// From now on metrics show the agent's slot among them as taken, until it is given back.
    pub(crate) fn show(&mut self, agent: &Arc<AgentCore>) {
        agent.show_taken();
        self.shown = Some(Arc::clone(agent));
    }
}

impl Compartments {
    pub(crate) fn of(state: State) -> Self {
        let order = state.classes.clone();
        Self { state: Mutex::new(state), order }
    }

    /// Whether there is a place for each of these features.
    pub(crate) fn has_places_for(&self, settings: &CompartmentSettings) -> bool {
        lock(&self.state).directory.has_places_for(settings)
    }

    /// The order of classes: it holds for as long as the runtime runs.
    pub(crate) fn order(&self) -> &[&'static str] {
        &self.order.order
    }

    /// Renews features, tiers and tenants, and whatever `make` renews, in one step. Who waited for what is there now gets it.
    pub(crate) fn renew<T>(
        &self,
        shared: &Arc<Shared>,
        settings: &CompartmentSettings,
        make: impl FnOnce(&mut CompartmentsBuilder<'_>) -> T,
    ) -> T {
        let mut state = lock(&self.state);
        let mut builder = CompartmentsBuilder::new(settings, &mut state, shared.now());
        let made = make(&mut builder);
        let granted = builder.finish();
        Self::show_line(&state.pool);
        drop(state);
        for granted in granted {
            deliver(shared, granted);
        }
        made
    }

    /// Lets everybody go who waits for a slot of this count and nothing else: there will be none.
    pub(crate) fn dismiss(&self, count: CountId) {
        self.let_go(count, |_| true);
    }

    /// Lets callers go who wait for a slot of this count: it is to be had in other ways now, for which they line up anew. Steps are looked
    /// after by the orchestrator.
    pub(crate) fn dismiss_callers(&self, count: CountId) {
        self.let_go(count, |waiter| matches!(waiter, Waiter::Call(_)));
    }

    fn let_go(&self, count: CountId, goes: impl Fn(&Waiter) -> bool) {
        let dismissed = {
            let mut state = lock(&self.state);
            let dismissed = state.pool.dismiss(count, goes);
            Self::show_line(&state.pool);
            dismissed
        };
        // Callers hear of it by this; steps are looked after by the orchestrator.
        drop(dismissed);
    }

    /// Features that are gone, by name.
    pub(crate) fn gone_features(&self) -> Vec<Arc<str>> {
        lock(&self.state).directory.gone_features().map(|name| Arc::from(name.as_str())).collect()
    }

    /// Under which names tenants are counted: one table for slots, requests and tokens.
    pub(crate) fn known_tenants(&self) -> Arc<KnownTenants> {
        lock(&self.state).directory.known_tenants()
    }

    /// What calls of this feature and tenant are counted under.
    pub(crate) fn counted(&self, feature: Option<&str>, tenant: Option<&str>) -> Counted {
        let state = lock(&self.state);
        let directory = &state.directory;
        Counted { tenant: directory.counted_tenant(tenant), feature: directory.counted_feature(feature) }
    }

    /// Whether a run of this feature and tenant may begin: its steps go on under these names.
    pub(crate) fn knows(&self, feature: Option<&str>, tenant: Option<&str>) -> Result<(), Stranger> {
        lock(&self.state).directory.knows(feature, tenant)
    }

    /// The feature that calls of this one, or of none, are counted as.
    pub(crate) fn feature_of(&self, feature: Option<&str>) -> Option<Name> {
        lock(&self.state).directory.feature_of(feature).cloned()
    }

    /// The place of a class, the highest first.
    pub(crate) fn class(&self, class: Option<&str>) -> u16 {
        self.order.place(class)
    }

    /// Takes what a call needs at this target, all or nothing. A call that has its own already takes only what the target adds.
    pub(crate) fn take(
        &self,
        shared: &Arc<Shared>,
        agent: &AgentCore,
        asking: Asking<'_>,
        (part, now): (Part, Timestamp),
    ) -> Result<Seats, NoSeats> {
        let class = self.class(asking.class);
        let chance = shared.chance.fork(agent.index as u64);
        let mut state = lock(&self.state);
        let State { pool, directory, .. } = &mut *state;
        let mut place = Place::default();
        directory.find_place(pool, asking.who(), class, &mut place).map_err(NoSeats::Stranger)?;
        let mut needs = needs_of(agent, &place, class, part);
        match pool.try_fill(&mut needs, now, chance) {
            Ok(()) => {
                for seat in place.needs.iter() {
                    show_feature(&state, seat);
                }
                drop(state);
                Ok(Seats { shared: Arc::clone(shared), needs, taken: now, unused: true, shown: None })
            }
            Err(lacks) => {
                let reach = if Some(lacks.count) == agent.provider.count { Reach::Target } else { Reach::Call };
                // Where there is no slot at all, none can come free.
                let may_wait = !place.max_wait.is_zero() && pool.cap(lacks.count) > 0;
                let place = may_wait.then(|| Box::new(place));
                Err(NoSeats::Full { count: pool.name(lacks.count), full: lacks.full, reach, place })
            }
        }
    }

    /// Lines a caller up for any of these targets; or the slots, if there are some by now. Where it stands is looked up, unless its
    /// refusal told so and that is true still.
    pub(crate) fn line_up(
        &self,
        shared: &Arc<Shared>,
        targets: &[Arc<AgentCore>],
        (asking, known): (Asking<'_>, Option<&Place>),
        who: Lining,
        now: Timestamp,
    ) -> Result<LinedUp, NoPlace> {
        let class = self.class(asking.class);
        let mut state = lock(&self.state);
        let State { pool, directory, .. } = &mut *state;
        let place = match known.filter(|known| directory.is_current(known)) {
            Some(known) => *known,
            None => directory.place(pool, asking.who(), class).map_err(NoPlace::Stranger)?,
        };
        let ways: Vec<Needs> = targets.iter().map(|target| needs_of(target, &place, class, Part::Everything)).collect();
        let (line, since, number) = match &who {
            Lining::Call { since, number, .. } => (place.line, *since, *number),
            Lining::Step { run, line, .. } => (*line, run.since, run.number),
        };
        let waiter = match who {
            Lining::Call { served, .. } => Waiter::Call(served),
            Lining::Step { run, key, turn, .. } => Waiter::Step(run, key, turn),
        };
        let joined = pool.join(Order { class, since, number }, &line, ways, waiter, now).map_err(NoPlace::Full)?;
        Self::show_line(pool);
        drop(state);
        Ok(match joined {
            Joined::Waits(ticket) => LinedUp::Waits(ticket),
            Joined::InPlaceOf { ticket, displaced, full } => {
                // Steps of runs stand in a line that nobody is sent out of.
                if let Waiter::Call(caller) = displaced {
                    // Who has left meanwhile need not hear of it.
                    let _ = caller.send(Err(full));
                }
                LinedUp::Waits(ticket)
            }
            Joined::Granted(granted) => LinedUp::Served(served(shared, &granted)),
        })
    }

    /// How long a call of this feature and tenant may wait in line.
    pub(crate) fn max_wait(&self, asking: Asking<'_>) -> std::time::Duration {
        let class = self.class(asking.class);
        let mut state = lock(&self.state);
        let State { pool, directory, .. } = &mut *state;
        directory.place(pool, asking.who(), class).map_or(std::time::Duration::ZERO, |place| place.max_wait)
    }

    /// Leaves the line; false if it was served meanwhile or never stood there.
    pub(crate) fn leave(&self, ticket: Ticket) -> bool {
        let mut state = lock(&self.state);
        let left = state.pool.leave(ticket);
        Self::show_line(&state.pool);
        drop(state);
        // The waiter is freed where nobody waits for the lock.
        left.is_some()
    }

    /// Whether it still stands in the line.
    pub(crate) fn is_waiting(&self, ticket: Ticket) -> bool {
        lock(&self.state).pool.is_waiting(ticket)
    }

    pub(crate) fn in_flight(&self, count: CountId) -> u32 {
        lock(&self.state).pool.in_flight(count)
    }

    pub(crate) fn cap(&self, count: CountId) -> u32 {
        lock(&self.state).pool.cap(count)
    }

    /// What the pool promises, checked between any two steps.
    #[cfg(test)]
    pub(super) fn check(&self) -> usize {
        let state = lock(&self.state);
        state.pool.check();
        state.pool.waiting()
    }

    fn give_back(&self, shared: &Arc<Shared>, needs: &Needs, (taken, now): (Timestamp, Timestamp), unused: bool) {
        let mut state = lock(&self.state);
        let pool = &mut state.pool;
        let granted = if unused { pool.undo(needs, taken, now) } else { pool.give_back(needs, taken, now) };
        if !granted.is_empty() {
            Self::show_line(pool);
        }
        for seat in needs.iter() {
            show_feature(&state, seat);
        }
        drop(state);
        for granted in granted {
            deliver(shared, granted);
        }
    }

    fn show_line(pool: &Pool<Waiter>) {
        metric::set(metric::LINE_LENGTH, Vec::new(), pool.waiting() as f64);
    }
}

/// Shows the feature whose own count this is.
fn show_feature(state: &State, seat: Seat) {
    if let Some((count, gauge)) = state.feature_gauges.get(usize::from(seat.member.feature))
        && *count == Some(seat.count)
    {
        gauge.set(f64::from(state.pool.in_flight(seat.count)));
    }
}

/// Who wants to line up.
pub(crate) enum Lining {
    /// A caller that stands there since then, with a number that tells those of one moment apart; what it gets is sent there.
    Call { served: oneshot::Sender<Result<Served, LineFull>>, since: Timestamp, number: u64 },
    /// A step of a run.
    Step { run: Arc<RunCell>, key: StepKey, turn: Turn, line: Bounds },
}

/// What became of it.
pub(crate) enum LinedUp {
    /// It waits.
    Waits(Ticket),
    /// There was a slot meanwhile.
    Served(Served),
}

/// Why somebody could not line up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The line is full.
    Full(LineFull),
    /// It may not call at all.
    Stranger(Stranger),
}

fn served(shared: &Arc<Shared>, granted: &Granted<Waiter>) -> Served {
    let seats =
        Seats { shared: Arc::clone(shared), needs: granted.needs, taken: granted.taken, unused: true, shown: None };
    Served { way: granted.way, seats }
}

/// Tells one who waited. Whoever has left meanwhile drops what it gets, and the next one is served.
fn deliver(shared: &Arc<Shared>, granted: Granted<Waiter>) {
    let served = served(shared, &granted);
    match granted.who {
        Waiter::Call(caller) => drop(caller.send(Ok(served))),
        Waiter::Step(run, key, turn) => {
            shared.orchestrator.cast(OrchestratorMessage::Served { run, key, turn, served: Box::new(served) });
        }
    }
}
