//! The supervisor's book: every breaker of the runtime, what it judged, and its timers. It lives outside the actor, so that a
//! restarted supervisor finds it; only the supervisor writes in it.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    book_metrics::{EntryMetrics, show_shares, show_state, tell, tell_exceeded},
    core::{BreakerId, Guard},
    gate::Gate,
    permit::{GatePass, Passes},
    supervisor::Facts,
};
use crate::{
    model::{clock::Timestamp, facts::QuotaReset},
    policy::{
        breaker::{
            machine::Breaker,
            state::{Effect, Outcome, Pass, PassKind, Reason, Snapshot, StateName, Transition},
            window::Source,
        },
        verdict::{Judgement, KeyAct, Keyed, Verdict, judge},
    },
};

/// A spent quota that names no reset is stayed away from for this long.
pub(crate) const QUOTA_COOL: std::time::Duration = std::time::Duration::from_secs(300);

/// A transition with the name of its breaker: what observers are told.
#[derive(Debug, Clone, PartialEq)]
pub struct BreakerEvent {
    /// `agent:draft`, `provider:local`, `key:local/main`.
    pub breaker: Arc<str>,
    /// What changed.
    pub transition: Transition,
    pub(crate) id: BreakerId,
}

pub(crate) struct Entry {
    pub(crate) name: Arc<str>,
    pub(crate) breaker: Breaker,
    pub(crate) gate: Arc<Gate>,
    /// The breakers that stand below this one: while it is not closed nothing is recorded in them, and they begin anew with it.
    pub(super) members: Vec<BreakerId>,
    timer: Option<Timestamp>,
    pub(super) metrics: EntryMetrics,
    pub(super) shown: Shown,
}

/// Whether there is anything that a breaker guards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Yes,
    /// What it guarded is gone. It lives on for calls that are under way, and in case that comes back.
    Hidden,
}

/// All breakers.
#[derive(Default)]
pub(crate) struct Book {
    pub(super) entries: Vec<Entry>,
    timers: BTreeSet<(Timestamp, BreakerId)>,
    /// Transitions that nobody was told of yet.
    news: Vec<BreakerEvent>,
    /// Every name that a breaker ever had, as of the last reload.
    pub(super) former: BTreeSet<Arc<str>>,
    /// When the first quarantine may end.
    pub(crate) quarantine_until: Option<Timestamp>,
}

impl Book {
    /// Adds a breaker and gives its guard.
    pub(crate) fn add(&mut self, name: String, breaker: Breaker) -> Guard {
        let id = BreakerId(self.entries.len());
        let name: Arc<str> = name.into();
        let gate = Arc::new(Gate::new(breaker.gate(), breaker.generation(), breaker.settings().trials));
        let metrics = EntryMetrics::of(&name);
        let entry = Entry {
            name: Arc::clone(&name),
            breaker,
            gate: Arc::clone(&gate),
            members: Vec::new(),
            timer: None,
            metrics,
            shown: Shown::Yes,
        };
        show_state(&entry);
        self.entries.push(entry);
        self.arm(id);
        Guard { name, id, gate }
    }

    /// `member` stands below `owner`.
    pub(crate) fn add_member(&mut self, owner: BreakerId, member: BreakerId) {
        if let Some(entry) = self.entries.get_mut(owner.0) {
            entry.members.push(member);
        }
    }

    pub(crate) fn snapshot(&self, id: BreakerId) -> Option<Snapshot> {
        self.entries.get(id.0).map(|entry| entry.breaker.snapshot())
    }

    pub(crate) fn entry(&self, id: BreakerId) -> Option<&Entry> {
        self.entries.get(id.0)
    }

    /// The breaker of this name.
    pub(crate) fn find(&self, name: &str) -> Option<BreakerId> {
        let is_it = |entry: &Entry| entry.shown == Shown::Yes && &*entry.name == name;
        self.entries.iter().position(is_it).map(BreakerId)
    }

    pub(crate) fn next_timer(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at).into_iter().chain(self.quarantine_until).min()
    }

    /// Transitions since the last call.
    pub(crate) fn take_news(&mut self) -> Vec<BreakerEvent> {
        std::mem::take(&mut self.news)
    }

    /// Fires every timer that is due.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        let due: Vec<BreakerId> = self.timers.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect();
        for id in due {
            self.change(id, |breaker| breaker.tick(now));
        }
    }

    pub(crate) fn trial_taken(&mut self, id: BreakerId, pass: Pass, opened_it: bool, at: Timestamp) {
        self.change(id, |breaker| {
            let opened = if opened_it { follow_gate(breaker, pass.generation, at) } else { None };
            breaker.take_trial(pass.id, pass.generation, at);
            opened.into_iter().collect()
        });
    }

    /// A caller has turned the gate half-open, in `generation`, and left its trials to others.
    pub(crate) fn opened(&mut self, id: BreakerId, generation: u32, at: Timestamp) {
        self.change(id, |breaker| follow_gate(breaker, generation, at).into_iter().collect());
    }

    /// A pass that ended as if it had never been. Its trial is back on the gate already.
    pub(crate) fn released(&mut self, id: BreakerId, pass: Pass, at: Timestamp) {
        self.change(id, |breaker| breaker.release(pass, at).transitions);
    }

    /// An attempt in flight is slow by now: pending in every breaker that measures its call.
    pub(crate) fn aged(&mut self, passes: &Passes, source: Source, at: Timestamp) {
        let mut below = false;
        if let Some(passed) = &passes.provider {
            if passed.pass.kind == PassKind::Plain {
                self.age(passed, source, at);
            }
            below = self.is_shut(passed.breaker) || self.is_over(passed);
        }
        if let Some(passed) = passes.target.as_ref().filter(|passed| !below && passed.pass.kind == PassKind::Plain) {
            self.age(passed, source, at);
        }
    }

    /// Records the outcome of a call in every breaker that it passed, the shared provider first: while that one is not closed, nothing
    /// is recorded below it, and neither is what a call of its earlier generation came to.
    pub(crate) fn outcome(&mut self, facts: &Facts, source: Source, keyed: Keyed) {
        let judgement = judge(&facts.ending, keyed);
        let (passes, how) = (&facts.permit.passes, (facts.ending.connected(), facts.at));
        let mut below = false;
        if let Some(passed) = &passes.provider {
            self.record(passed, judgement.provider, facts.slow, source, how);
            below = self.is_shut(passed.breaker) || self.is_over(passed);
        }
        // Slowness is the target's: one slow agent must not shut a key that others use.
        for (passed, verdict, slow) in
            [(&passes.key, judgement.key, false), (&passes.target, judgement.target, facts.slow)]
        {
            let Some(passed) = passed else { continue };
            let verdict = if below { Verdict::Ignored } else { verdict };
            self.record(passed, verdict, slow, source, how);
        }
        if let Some(passed) = passes.key.as_ref().or(passes.target.as_ref()) {
            self.act(passed, judgement, facts.at);
        }
    }

    /// The answer of a call that is a trial flows on and on. It has shown what a trial is to show, and is not waited for.
    pub(crate) fn flows(&mut self, passes: &Passes, source: Source, at: Timestamp) {
        for passed in passes.all().filter(|passed| passed.pass.kind == PassKind::Trial) {
            self.record(passed, Verdict::Success, false, source, (true, at));
        }
    }

    /// Everything a half-open breaker was told may be lost with a supervisor: its trials begin anew. Which ones do.
    pub(crate) fn recover(&mut self, now: Timestamp) -> Vec<BreakerId> {
        let mut anew = Vec::new();
        for id in (0..self.entries.len()).map(BreakerId) {
            let Some(shown) = self.entries.get(id.0).map(|entry| entry.gate.generation()) else { continue };
            self.change(id, |breaker| {
                let opened = follow_gate(breaker, shown, now);
                breaker.restart_trials(now);
                if breaker.state() == StateName::HalfOpen {
                    anew.push(id);
                }
                opened.into_iter().collect()
            });
        }
        anew
    }

    /// Changes one breaker, then publishes its gate, tells its transitions and arms its timer.
    pub(crate) fn change(&mut self, id: BreakerId, change: impl FnOnce(&mut Breaker) -> Vec<Transition>) {
        let Some(entry) = self.entries.get_mut(id.0) else { return };
        let generation = entry.breaker.generation();
        let transitions = change(&mut entry.breaker);
        if entry.breaker.generation() != generation || !transitions.is_empty() {
            entry.gate.publish(entry.breaker.gate(), entry.breaker.generation());
            show_state(entry);
        } else if matches!(entry.breaker.state(), StateName::Open | StateName::ForcedOpen) {
            // A longer open time is no transition, but callers must be told.
            entry.gate.publish(entry.breaker.gate(), entry.breaker.generation());
        }
        let closed = transitions.iter().any(|transition| transition.to == StateName::Closed);
        let members = if closed { entry.members.clone() } else { Vec::new() };
        for transition in transitions {
            tell(&entry.name, transition);
            self.news.push(BreakerEvent { breaker: Arc::clone(&entry.name), transition, id });
        }
        self.arm(id);
        // What closed explains what those below it went through: they begin empty.
        for member in members {
            if let Some(member) = self.entries.get_mut(member.0) {
                member.breaker.restart_empty();
            }
        }
    }

    /// Whether it keeps calls out, wholly or but for trials. One that an operator has switched off keeps nobody out.
    fn is_shut(&self, id: BreakerId) -> bool {
        let state = self.entries.get(id.0).map(|entry| entry.breaker.state());
        matches!(state, Some(StateName::Open | StateName::HalfOpen | StateName::ForcedOpen))
    }

    /// Whether the generation that admitted this call is over.
    fn is_over(&self, passed: &GatePass) -> bool {
        let generation = self.entries.get(passed.breaker.0).map(|entry| entry.breaker.generation());
        generation != Some(passed.pass.generation)
    }

    fn age(&mut self, passed: &GatePass, source: Source, at: Timestamp) {
        let mut exceeded = Vec::new();
        self.change(passed.breaker, |breaker| {
            let effect = breaker.aged(passed.pass, source, at);
            exceeded = effect.exceeded;
            effect.transitions
        });
        let Some(entry) = self.entries.get(passed.breaker.0) else { return };
        show_shares(entry);
        tell_exceeded(entry, &exceeded);
    }

    /// Records a verdict in one breaker.
    fn record(
        &mut self,
        passed: &GatePass,
        verdict: Verdict,
        slow: bool,
        source: Source,
        (connected, at): (bool, Timestamp),
    ) {
        let (id, pass) = (passed.breaker, passed.pass);
        let outcome = Outcome { verdict, slow, source, connected };
        let mut effect = Effect::default();
        self.change(id, |breaker| {
            effect = breaker.record(pass, outcome, at);
            std::mem::take(&mut effect.transitions)
        });
        let Some(entry) = self.entries.get(id.0) else { return };
        if effect.trial_returned && pass.kind == PassKind::Trial {
            entry.gate.give_back(pass.generation);
        }
        show_shares(entry);
        tell_exceeded(entry, &effect.exceeded);
        let counter = match verdict {
            _ if effect.stale => &entry.metrics.stale,
            Verdict::Success => &entry.metrics.success,
            Verdict::Failure { .. } => &entry.metrics.failure,
            Verdict::Ignored => &entry.metrics.ignored,
        };
        counter.increment(1);
    }

    /// What an outcome means for a key beside its count. A state that an operator chose stays, and so does whatever began after the
    /// call did; but calls that were out together all say when their quota comes back, and the latest word wins.
    fn act(&mut self, passed: &GatePass, judgement: Judgement, at: Timestamp) {
        let id = passed.breaker;
        let Some(entry) = self.entries.get(id.0) else { return };
        let ago = entry.breaker.generation().wrapping_sub(passed.pass.generation);
        let judges_itself = match entry.breaker.state() {
            StateName::Closed | StateName::HalfOpen => ago == 0,
            StateName::Open => ago <= 1,
            StateName::ForcedOpen | StateName::Disabled | StateName::MetricsOnly => false,
        };
        if !judges_itself {
            return;
        }
        match judgement.key_act {
            KeyAct::None => {}
            KeyAct::Reject => {
                tracing::error!(
                    breaker = &*entry.name,
                    "the provider rejects this key; calls with it are refused until a reload or an operator's reset"
                );
                self.change(id, |breaker| breaker.force_open(Reason::KeyRejected, None, at).into_iter().collect());
            }
            KeyAct::Cool(reset) => {
                let wait = match reset {
                    QuotaReset::Unknown => QUOTA_COOL,
                    QuotaReset::In(wait) => wait,
                };
                let until = at.after(wait);
                self.change(id, |breaker| breaker.cool_down(until, at).into_iter().collect());
            }
        }
    }

    fn arm(&mut self, id: BreakerId) {
        let Some(entry) = self.entries.get_mut(id.0) else { return };
        let timer = entry.breaker.next_timer();
        if timer == entry.timer {
            return;
        }
        if let Some(old) = entry.timer {
            self.timers.remove(&(old, id));
        }
        entry.timer = timer;
        self.timers.extend(timer.map(|at| (at, id)));
    }
}

/// The first caller has turned the gate half-open under `shown`: the breaker follows, even where its open time was lengthened at that
/// very moment, because the trials are out.
pub(super) fn follow_gate(breaker: &mut Breaker, shown: u32, at: Timestamp) -> Option<Transition> {
    let ahead = breaker.state() == StateName::Open && shown == breaker.generation().wrapping_add(1);
    if ahead { breaker.half_open(Reason::FirstCall, at).ok().flatten() } else { None }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        policy::{
            breaker::{
                settings::{BreakerSettings, HalfOpenBy, Scope},
                state::GateView,
            },
            chance::Chance,
        },
        runtime::gate::Asker,
    };

    fn opened(by: HalfOpenBy) -> (Book, Guard) {
        let settings = BreakerSettings { half_open_by: by, open_jitter: 0.0, ..BreakerSettings::default() };
        let breaker = Breaker::try_new(settings, Scope::Target, Chance::from_seed(1)).unwrap();
        let mut book = Book::default();
        let guard = book.add("agent:draft".into(), breaker);
        book.change(guard.id, |breaker| breaker.open(Reason::Consecutive, None, Timestamp::ZERO).into_iter().collect());
        (book, guard)
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO.after(Duration::from_secs(seconds))
    }

    fn take(guard: &Guard, id: u64, now: Timestamp) -> (Pass, bool) {
        let passed = guard.gate.pass(now, Asker::Anyone).unwrap();
        (Pass { id, generation: passed.generation, kind: passed.kind }, passed.opened_it)
    }

    const LATE: Pass = Pass { id: 99, generation: 0, kind: PassKind::Plain };

    /// The supervisor hears of a late result after the first caller passed and before it hears of that.
    #[test]
    fn a_late_result_does_not_shut_the_gate_before_the_first_caller() {
        for by in [HalfOpenBy::Timer, HalfOpenBy::FirstCall] {
            let (mut book, guard) = opened(by);
            let (first, opened_it) = take(&guard, 1, at(30));
            assert!(opened_it);
            book.released(guard.id, LATE, at(29));
            assert_eq!(guard.gate.look(), GateView::Probe { free: 4, reason: Reason::Consecutive });
            book.trial_taken(guard.id, first, opened_it, at(30));
            assert_eq!(book.snapshot(guard.id).unwrap().state, StateName::HalfOpen);
            assert_eq!(guard.gate.look(), GateView::Probe { free: 4, reason: Reason::Consecutive });
        }
    }

    /// The open time is lengthened in the moment in which its end lets the first caller through.
    #[test]
    fn a_breaker_follows_its_gate() {
        let (mut book, guard) = opened(HalfOpenBy::FirstCall);
        let (first, opened_it) = take(&guard, 1, at(30));
        book.change(guard.id, |breaker| breaker.cool_down(at(900), at(30)).into_iter().collect());
        book.trial_taken(guard.id, first, opened_it, at(30));
        let snapshot = book.snapshot(guard.id).unwrap();
        assert_eq!((snapshot.state, snapshot.generation), (StateName::HalfOpen, guard.gate.generation()));
        assert_eq!((1..9).filter(|_| guard.gate.pass(at(31), Asker::Anyone).is_ok()).count(), 4);
    }

    /// The word of the first caller died with the supervisor.
    #[test]
    fn what_was_not_heard_is_made_good_on_recovery() {
        for by in [HalfOpenBy::Timer, HalfOpenBy::FirstCall] {
            let (mut book, guard) = opened(by);
            let (lost, _) = take(&guard, 1, at(30));
            book.recover(at(31));
            assert_eq!(book.snapshot(guard.id).unwrap().state, StateName::HalfOpen);
            guard.gate.give_back(lost.generation);
            assert_eq!(
                (0..9).filter(|_| guard.gate.pass(at(31), Asker::Anyone).is_ok()).count(),
                5,
                "the lost one is void"
            );
        }
    }
}
