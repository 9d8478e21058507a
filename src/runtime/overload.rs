//! Overload at work: how long callers stand in the line for an agent or a provider, and which classes are refused there for it. Steps of
//! runs are none of these callers: a run waits by design, and its line is bounded by itself. Waits for a tenant's or a feature's own slots
//! say nothing about the place, and are not counted. It holds no slot and hands none over.

use std::{collections::HashMap, sync::Arc, time::Duration};

use metrics::{Gauge, Label};

use super::{
    core::lock,
    metric,
    ports::Clock,
    shielded::{Shielded, shielded},
    sync::Mutex,
};
use crate::{
    model::clock::Timestamp,
    policy::{
        chance::Chance,
        shedding::{Shedder, SheddingSettings},
    },
};

/// The lines in front of all agents and providers.
pub(crate) struct Overload {
    /// Written by callers.
    state: Mutex<State>,
    chance: Chance,
    clock: Arc<dyn Clock>,
}

struct State {
    settings: SheddingSettings,
    /// By the count that is waited for; as many as there are agents and providers at most.
    lines: HashMap<Arc<str>, Line>,
}

struct Line {
    shedder: Shedder,
    /// Callers that stand there, by class.
    standing: Vec<u32>,
    gauge: Shielded<Gauge>,
    shown: usize,
}

/// A caller that stands in a line. Dropping it leaves the line.
pub(crate) struct Waiting<'a> {
    overload: &'a Overload,
    line: Arc<str>,
    class: usize,
    since: Timestamp,
}

/// A class is refused, for a higher one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shed {
    /// What is waited for.
    pub(crate) compartment: Arc<str>,
    /// When it may come again.
    pub(crate) retry_after: Duration,
}

impl Line {
    /// Shows how many classes are refused, where that changed.
    fn show(&mut self, now: Timestamp) {
        let refused = self.standing.len() - self.shedder.first_refused(now);
        if refused != self.shown {
            self.shown = refused;
            self.gauge.set(refused as f64);
        }
    }
}

impl Overload {
    pub(crate) fn new(settings: SheddingSettings, chance: Chance, clock: Arc<dyn Clock>) -> Self {
        Self { state: Mutex::new(State { settings, lines: HashMap::new() }), chance, clock }
    }

    /// Other settings; who stands there goes on standing.
    pub(crate) fn change(&self, settings: SheddingSettings, now: Timestamp) {
        let mut state = lock(&self.state);
        for line in state.lines.values_mut() {
            line.shedder.reset(&settings, now);
            line.standing.resize(settings.minimums.len(), 0);
            line.show(now);
        }
        state.settings = settings;
    }

    /// The lines in which nobody can stand any more; their gauges show nothing.
    pub(crate) fn gone(&self, is_here: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let mut state = lock(&self.state);
        let gone = state.lines.iter_mut().filter(|(name, _)| !is_here(name));
        gone.map(|(name, line)| {
            line.shown = 0;
            Arc::clone(name)
        })
        .collect()
    }

    /// Lets a caller of `class` stand in the line for `count`, or refuses it for a higher class; `None` where `count` is no place that
    /// is watched.
    pub(crate) fn enter(&self, count: &Arc<str>, class: u16, now: Timestamp) -> Result<Option<Waiting<'_>>, Shed> {
        if !count.starts_with("agent:") && !count.starts_with("provider:") {
            return Ok(None);
        }
        let class = usize::from(class);
        let mut state = lock(&self.state);
        let State { settings, lines } = &mut *state;
        let chance = self.chance.fork(lines.len() as u64);
        let line = lines.entry(Arc::clone(count)).or_insert_with(|| Line {
            shedder: Shedder::new(settings, chance),
            standing: vec![0; settings.minimums.len()],
            gauge: metrics::gauge!(metric::CLASSES_SHED.name, vec![Label::new("compartment", count.to_string())])
                .into(),
            shown: 0,
        });
        // Who has slots kept for its class found one, and does not come here: nothing is in flight as far as this is concerned.
        let refused = line.shedder.refuses(class, u32::MAX, now);
        line.show(now);
        if let Some(retry_after) = refused {
            return Err(Shed { compartment: Arc::clone(count), retry_after });
        }
        line.shedder.entered(class, now);
        if let Some(standing) = line.standing.get_mut(class) {
            *standing += 1;
        }
        Ok(Some(Waiting { overload: self, line: Arc::clone(count), class, since: now }))
    }
}

impl Waiting<'_> {
    /// It got what it stood for.
    pub(crate) fn served(&self) {
        let now = self.overload.clock.now();
        let mut state = lock(&self.overload.state);
        if let Some(line) = state.lines.get_mut(&self.line) {
            line.shedder.waited(self.class, now.since(self.since), now);
            line.show(now);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let now = shielded(|| self.overload.clock.now()).unwrap_or(self.since);
        let mut state = lock(&self.overload.state);
        let Some(line) = state.lines.get_mut(&self.line) else { return };
        let Some(standing) = line.standing.get_mut(self.class) else { return };
        *standing = standing.saturating_sub(1);
        if *standing == 0 {
            line.shedder.line_empty(self.class, now);
            line.show(now);
        }
    }
}
