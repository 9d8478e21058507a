//! The supervisor's book: every breaker of the runtime, what it judged, and its timers. It lives outside the actor, so that a
//! restarted supervisor finds it; only the supervisor writes in it.

use std::{collections::BTreeSet, sync::Arc};

use metrics::{Counter, Label};

use super::{
    core::{BreakerId, Guard, Shared},
    gate::Gate,
    metric,
};
use crate::{
    model::{
        clock::Timestamp,
        facts::{Ending, QuotaReset},
    },
    policy::{
        breaker::{
            machine::Breaker,
            state::{Effect, Outcome, Pass, PassKind, Reason, Snapshot, StateName, Transition},
            window::Source,
        },
        verdict::{Judgement, KeyAct, Verdict, judge},
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
    timer: Option<Timestamp>,
    metrics: EntryMetrics,
}

struct EntryMetrics {
    success: Counter,
    failure: Counter,
    ignored: Counter,
    stale: Counter,
}

impl EntryMetrics {
    fn of(name: &Arc<str>) -> Self {
        let outcome = |verdict: &'static str| {
            let labels = vec![Label::new("breaker", name.to_string()), Label::from_static_parts("verdict", verdict)];
            metrics::counter!(metric::BREAKER_OUTCOMES.name, labels)
        };
        Self {
            success: outcome("success"),
            failure: outcome("failure"),
            ignored: outcome("ignored"),
            stale: metrics::counter!(metric::BREAKER_STALE.name, vec![Label::new("breaker", name.to_string())]),
        }
    }
}

/// All breakers.
#[derive(Default)]
pub(crate) struct Book {
    entries: Vec<Entry>,
    timers: BTreeSet<(Timestamp, BreakerId)>,
    /// Transitions that nobody was told of yet.
    news: Vec<BreakerEvent>,
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
        let entry = Entry { name: Arc::clone(&name), breaker, gate: Arc::clone(&gate), timer: None, metrics };
        show_state(&entry);
        self.entries.push(entry);
        self.arm(id);
        Guard { name, id, gate }
    }

    pub(crate) fn snapshot(&self, id: BreakerId) -> Option<Snapshot> {
        self.entries.get(id.0).map(|entry| entry.breaker.snapshot())
    }

    /// The breaker of this name.
    pub(crate) fn find(&self, name: &str) -> Option<BreakerId> {
        self.entries.iter().position(|entry| &*entry.name == name).map(BreakerId)
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
            let opened = if opened_it { breaker.half_open_by_call(at) } else { None };
            breaker.take_trial(pass.id, pass.generation, at);
            opened.into_iter().collect()
        });
    }

    /// A pass that ended as if it had never been. Its trial is back on the gate already.
    pub(crate) fn released(&mut self, id: BreakerId, pass: Pass, at: Timestamp) {
        self.change(id, |breaker| breaker.release(pass, at).transitions);
    }

    pub(crate) fn aged(&mut self, id: BreakerId, pass: Pass, source: Source, at: Timestamp) {
        self.change(id, |breaker| breaker.aged(pass, source, at).transitions);
    }

    /// Records the outcome of a call in every breaker that it passed, the shared provider first: while that one is not closed, nothing
    /// is recorded below it.
    pub(crate) fn outcome(&mut self, shared: &Shared, facts: &super::supervisor::Facts) {
        let Some(agent) = shared.agents.get(facts.agent) else { return };
        let judgement = judge(&facts.ending, agent.keyed);
        let passes = &facts.permit.passes;
        let mut below = false;
        if let Some(passed) = &passes.provider {
            self.record(passed.guard.id, passed.pass, judgement.provider, facts, agent.source);
            below = self.state(passed.guard.id) != Some(StateName::Closed);
            if self
                .news
                .iter()
                .any(|news| *news.breaker == *passed.guard.name && news.transition.to == StateName::Closed)
            {
                self.restart_members(shared, agent.provider.settings.name.as_str());
                below = true;
            }
        }
        for (passed, verdict) in [(&passes.key, judgement.key), (&passes.target, judgement.target)] {
            let Some(passed) = passed else { continue };
            let verdict = if below { Verdict::Ignored } else { verdict };
            self.record(passed.guard.id, passed.pass, verdict, facts, agent.source);
        }
        let key = passes.key.as_ref().or(passes.target.as_ref());
        if let Some(passed) = key {
            self.act(passed.guard.id, judgement, facts.at);
        }
    }

    /// Everything a half-open breaker was told may be lost with a supervisor: its trials begin anew.
    pub(crate) fn recover(&mut self, now: Timestamp) {
        for id in (0..self.entries.len()).map(BreakerId) {
            self.change(id, |breaker| {
                breaker.restart_trials(now);
                Vec::new()
            });
        }
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
        for transition in transitions {
            tell(&entry.name, transition);
            self.news.push(BreakerEvent { breaker: Arc::clone(&entry.name), transition, id });
        }
        self.arm(id);
    }

    fn state(&self, id: BreakerId) -> Option<StateName> {
        self.entries.get(id.0).map(|entry| entry.breaker.state())
    }

    fn record(
        &mut self,
        id: BreakerId,
        pass: Pass,
        verdict: Verdict,
        facts: &super::supervisor::Facts,
        source: Source,
    ) {
        let connected = !matches!(facts.ending, Ending::Network { connected: false })
            && !matches!(facts.ending, Ending::Timeout { timeout: crate::model::facts::TimeoutKind::Connect });
        let outcome = Outcome { verdict, slow: facts.slow, source, connected };
        let mut effect = Effect::default();
        self.change(id, |breaker| {
            effect = breaker.record(pass, outcome, facts.at);
            effect.transitions.clone()
        });
        let Some(entry) = self.entries.get(id.0) else { return };
        if effect.trial_returned && pass.kind == PassKind::Trial {
            entry.gate.give_back(pass.generation);
        }
        let counter = match verdict {
            _ if effect.stale => &entry.metrics.stale,
            Verdict::Success => &entry.metrics.success,
            Verdict::Failure { .. } => &entry.metrics.failure,
            Verdict::Ignored => &entry.metrics.ignored,
        };
        counter.increment(1);
    }

    /// What an outcome means for a key beside its count.
    fn act(&mut self, id: BreakerId, judgement: Judgement, at: Timestamp) {
        match judgement.key_act {
            KeyAct::None => {}
            KeyAct::Reject => {
                tracing::error!(
                    breaker = &*self.entries[id.0].name,
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

    /// A shared provider that closed explains what its agents went through: they begin empty.
    fn restart_members(&mut self, shared: &Shared, provider: &str) {
        for agent in shared.agents.iter().filter(|agent| agent.settings.provider.as_str() == provider) {
            if let Some(entry) = self.entries.get_mut(agent.guard.id.0) {
                entry.breaker.restart_empty();
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

/// One line a transition; never one a call.
fn tell(breaker: &Arc<str>, transition: Transition) {
    tracing::warn!(
        breaker = &**breaker,
        from = transition.from.as_str(),
        to = transition.to.as_str(),
        reason = transition.reason.as_str(),
        value = transition.value,
        generation = transition.generation,
        "breaker changed"
    );
    let labels = vec![
        Label::new("breaker", breaker.to_string()),
        Label::from_static_parts("from", transition.from.as_str()),
        Label::from_static_parts("to", transition.to.as_str()),
        Label::from_static_parts("reason", transition.reason.as_str()),
    ];
    metric::count(metric::BREAKER_TRANSITIONS, labels, 1);
}

/// One-hot, so that the sum over states is always 1.
fn show_state(entry: &Entry) {
    let snapshot = entry.breaker.snapshot();
    for state in StateName::ALL {
        let labels =
            vec![Label::new("breaker", entry.name.to_string()), Label::from_static_parts("state", state.as_str())];
        metric::set(metric::BREAKER_STATE, labels, if state == snapshot.state { 1.0 } else { 0.0 });
    }
    let label = || vec![Label::new("breaker", entry.name.to_string())];
    metric::set(metric::BREAKER_FAILURE_SHARE, label(), snapshot.failure_share.unwrap_or(0.0));
    metric::set(metric::BREAKER_SLOW_SHARE, label(), snapshot.slow_share.unwrap_or(0.0));
}
