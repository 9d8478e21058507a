//! The window's running totals against a recount of everything that was ever put in.

use std::time::Duration;

use proptest::prelude::*;
use watertight::{
    model::clock::Timestamp,
    policy::breaker::{
        settings::WindowKind,
        window::{Counts, Mark, Source, Window},
    },
};

#[derive(Debug, Clone, Copy)]
enum Event {
    Record {
        id: u64,
        failed: bool,
        slow: bool,
    },
    Pending {
        id: u64,
    },
    Forget {
        id: u64,
    },
    Wait {
        milliseconds: u64,
    },
    /// A fact that was on its way for a while: its time is before that of the last one.
    Late {
        id: u64,
        milliseconds: u64,
    },
}

fn events(late: u32) -> impl Strategy<Value = Vec<Event>> {
    let id = 0_u64..8;
    let event = prop_oneof![
        6 => (id.clone(), any::<bool>(), any::<bool>()).prop_map(|(id, failed, slow)| Event::Record { id, failed, slow }),
        3 => id.clone().prop_map(|id| Event::Pending { id }),
        2 => id.clone().prop_map(|id| Event::Forget { id }),
        4 => (0_u64..3_000).prop_map(|milliseconds| Event::Wait { milliseconds }),
        late => (id, 0_u64..5_000).prop_map(|(id, milliseconds)| Event::Late { id, milliseconds }),
    ];
    prop::collection::vec(event, 1..200)
}

fn windows() -> impl Strategy<Value = (WindowKind, Option<Duration>)> {
    let kind = prop_oneof![
        (1_u32..15).prop_map(WindowKind::Calls),
        (1_u64..10).prop_map(|seconds| WindowKind::Time(Duration::from_secs(seconds))),
    ];
    (kind, prop::option::of((1_u64..10).prop_map(Duration::from_secs)))
}

/// Small numbers by which sources differ, from the call's id.
fn source_of(id: u64) -> Source {
    Source { agent: u16::try_from(id % 3).unwrap(), model: u16::try_from(id % 2).unwrap() }
}

#[derive(Debug, Clone, Copy)]
struct Line {
    id: u64,
    at: Timestamp,
    failed: Option<bool>,
    slow: bool,
}

fn recount<'a>(lines: impl Iterator<Item = &'a Line>) -> Counts {
    let mut counts = Counts::default();
    for line in lines {
        counts.entries += 1;
        counts.slow += u32::from(line.slow);
        counts.finished += u32::from(line.failed.is_some());
        counts.failed += u32::from(line.failed == Some(true));
        counts.good += u32::from(line.failed == Some(false) && !line.slow);
    }
    counts
}

struct List {
    kind: WindowKind,
    max_age: Option<Duration>,
    lines: Vec<Line>,
}

impl List {
    fn forget_old(&mut self, now: Timestamp) {
        match (self.kind, self.max_age) {
            (WindowKind::Time(window), _) => {
                let oldest = (now.millis() / 1_000 + 1).saturating_sub(window.as_secs());
                self.lines.retain(|line| line.at.millis() / 1_000 >= oldest);
            }
            (WindowKind::Calls(_), Some(max_age)) => self.lines.retain(|line| now.since(line.at) <= max_age),
            (WindowKind::Calls(_), None) => {}
        }
    }

    fn write(&mut self, line: Line) {
        if let Some(pending) = self.lines.iter_mut().find(|known| known.id == line.id && known.failed.is_none()) {
            pending.failed = line.failed;
            return;
        }
        self.lines.push(line);
        if let WindowKind::Calls(calls) = self.kind {
            let surplus = self.lines.len().saturating_sub(calls as usize);
            self.lines.drain(..surplus);
        }
    }
}

fn by_source_sums(window: &Window) -> Counts {
    let mut sum = Counts::default();
    for (_, counts) in window.by_source() {
        sum.entries += counts.entries;
        sum.finished += counts.finished;
        sum.failed += counts.failed;
        sum.slow += counts.slow;
        sum.good += counts.good;
    }
    sum
}

proptest! {
    #[test]
    fn totals_equal_a_recount((kind, max_age) in windows(), events in events(0)) {
        let mut window = Window::new(kind, max_age);
        let mut list = List { kind, max_age, lines: Vec::new() };
        let mut now = Timestamp::ZERO;
        for event in events {
            list.forget_old(now);
            match event {
                Event::Record { id, failed, slow } => {
                    let mark = if failed { Mark::Failed } else { Mark::Passed };
                    window.record(id, now, source_of(id), mark, slow);
                    list.write(Line { id, at: now, failed: Some(failed), slow });
                }
                Event::Pending { id } => {
                    let _ = window.record_pending(id, now, source_of(id));
                    list.write(Line { id, at: now, failed: None, slow: true });
                }
                Event::Forget { id } => {
                    window.prune(now);
                    window.forget_pending(id);
                    list.lines.retain(|line| line.id != id || line.failed.is_some());
                }
                Event::Wait { milliseconds } | Event::Late { milliseconds, .. } => {
                    now = now.after(Duration::from_millis(milliseconds));
                }
            }
            window.prune(now);
            list.forget_old(now);
            prop_assert_eq!(window.totals(), recount(list.lines.iter()));
            for (source, counts) in window.by_source() {
                prop_assert_eq!(counts, recount(list.lines.iter().filter(|line| source_of(line.id) == source)));
            }
        }
    }

    #[test]
    fn a_late_fact_never_unbalances_the_totals((kind, max_age) in windows(), events in events(4)) {
        let mut window = Window::new(kind, max_age);
        let mut now = Timestamp::ZERO;
        for event in events {
            match event {
                Event::Record { id, failed, slow } => {
                    let mark = if failed { Mark::Failed } else { Mark::Passed };
                    window.record(id, now, source_of(id), mark, slow);
                }
                Event::Pending { id } => drop(window.record_pending(id, now, source_of(id))),
                Event::Forget { id } => window.forget_pending(id),
                Event::Wait { milliseconds } => now = now.after(Duration::from_millis(milliseconds)),
                Event::Late { id, milliseconds } => {
                    window.record(id, now.before(Duration::from_millis(milliseconds)), source_of(id), Mark::Failed, false);
                }
            }
            window.prune(now);
            prop_assert_eq!(window.totals(), by_source_sums(&window));
            if let WindowKind::Calls(calls) = kind {
                prop_assert!(window.totals().entries <= calls);
            }
        }
        // Whatever came late, time takes it out again.
        window.prune(now.after(Duration::from_secs(20)));
        if max_age.is_some() || matches!(kind, WindowKind::Time(_)) {
            prop_assert_eq!(window.totals(), Counts::default());
        }
    }
}
