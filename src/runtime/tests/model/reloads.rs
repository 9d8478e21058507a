//! A reload in any moment: caps up and down and agents that come and go, while calls are admitted, wait, end and are judged. Nobody waits for
//! ever, nobody holds more than the larger of old and new cap, and no two locks are ever taken in two orders.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::{
    lines::{admit, builder, compartments, of_feature},
    stand::{Held, Stand, explore, join, name, pause},
};
use crate::{
    model::facts::{Ending, TimeoutKind},
    policy::adaptive::settings::AdaptiveSettings,
    runtime::{
        builder::RuntimeBuilder,
        outside::OutsideBackend,
        parts::Parts,
        refusal::Refusal,
        reload::apply::{come_back, make, newcomers, put_in_place},
        settings::{AgentSettings, ProviderSettings},
    },
};

/// Draft with so many slots, and review if `review` says how many.
fn parts(provider: ProviderSettings, draft: u32, review: Option<u32>) -> Parts {
    let agent = |text, slots| AgentSettings { slots, ..AgentSettings::new(name(text), name("local")) };
    let parts = Parts::new().provider(provider).compartments(compartments());
    let parts = parts.agent(agent("draft", draft), Arc::new(OutsideBackend));
    match review {
        Some(slots) => parts.agent(agent("review", slots), Arc::new(OutsideBackend)),
        None => parts,
    }
}

fn provider(slots: u32) -> ProviderSettings {
    ProviderSettings {
        slots: Some(slots),
        guaranteed: vec![(name("draft"), 0)],
        ..ProviderSettings::new(name("local"))
    }
}

/// What the runtime does at a reload, with the actors of newcomers taken for begun.
fn reload(stand: &Stand, parts: &Parts) {
    let shared = stand.shared();
    let old = shared.table.load_full();
    let table = Arc::new(make(shared, parts, &old).unwrap());
    come_back(&newcomers(&table, &old));
    put_in_place(shared, &old, &table);
}

#[test]
fn caps_that_change_under_those_who_wait_lose_nobody() {
    explore(|| {
        let stand = Stand::of(builder(2, 2, 1));
        // Who comes while there is no slot at all does not wait for one; who waits by then does.
        let (held, was_shut) = (Arc::new(Held::default()), Arc::new(AtomicBool::new(false)));
        let mut threads = Vec::new();
        for caller in 0..4 {
            let (held, was_shut) = (Arc::clone(&held), Arc::clone(&was_shut));
            threads.push(stand.spawn(move |stand| {
                let feature = if caller < 3 { "patient" } else { "brisk" };
                match admit(&stand.front("draft"), feature) {
                    Ok(admitted) => held.hold(admitted, 2),
                    Err(refusal) => {
                        let may_be = feature == "brisk" || was_shut.load(Ordering::SeqCst);
                        assert!(may_be && refusal.is_full(), "{feature}: {refusal:?}");
                    }
                }
            }));
        }
        threads.push(stand.spawn(move |stand| {
            for (all, draft) in [(1, 2), (2, 0), (1, 1)] {
                was_shut.fetch_or(draft == 0, Ordering::SeqCst);
                reload(stand, &parts(provider(all), draft, Some(1)));
                stand.shared().compartments.check();
                pause();
            }
        }));
        join(threads);
        stand.assert_empty();
    });
}

/// Once the agent is gone and nobody is in, nobody comes in: whoever takes it away may let its actor end.
#[test]
fn who_waits_for_an_agent_that_goes_is_told() {
    explore(|| {
        let stand = Stand::of(builder(2, 1, 1));
        let (held, over) = (Arc::new(Held::default()), Arc::new(AtomicBool::new(false)));
        let mut threads = Vec::new();
        for _ in 0..3 {
            let (held, over) = (Arc::clone(&held), Arc::clone(&over));
            // Of the configuration that is about to go.
            let front = stand.front("review");
            threads.push(stand.spawn(move |_| match admit(&front, "patient") {
                Ok(admitted) => {
                    assert!(!over.load(Ordering::SeqCst), "its actor has ended");
                    held.hold(admitted, 1);
                    assert!(!over.load(Ordering::SeqCst), "it was in");
                }
                Err(refusal) => assert_eq!(refusal, Refusal::Gone),
            }));
        }
        threads.push(stand.spawn(move |stand| {
            let gone = stand.front("review").agent;
            reload(stand, &parts(provider(2), 1, None));
            while !gone.presence.is_idle() {
                shuttle::thread::yield_now();
            }
            over.store(true, Ordering::SeqCst);
        }));
        join(threads);
        stand.assert_empty();
    });
}

/// An agent that goes and comes back: who had its front finds it again, or is told that it was gone.
#[test]
fn an_agent_that_comes_back_has_what_it_had() {
    explore(|| {
        let stand = Stand::of(builder(2, 1, 1));
        let held = Arc::new(Held::default());
        let mut threads = Vec::new();
        for _ in 0..3 {
            let (held, front) = (Arc::clone(&held), stand.front("review"));
            threads.push(stand.spawn(move |_| match admit(&front, "patient") {
                Ok(admitted) => held.hold(admitted, 1),
                // Served while it was gone, it found somebody else's call when it looked again.
                Err(refusal) => assert!(refusal == Refusal::Gone || refusal.is_full(), "{refusal:?}"),
            }));
        }
        threads.push(stand.spawn(|stand| {
            reload(stand, &parts(provider(2), 1, None));
            pause();
            reload(stand, &parts(provider(2), 1, Some(1)));
        }));
        join(threads);
        stand.assert_empty();
        assert!(stand.front("review").admit(&of_feature("patient")).is_ok());
    });
}

/// The supervisor judges outcomes, moves the adaptive limit by them and gives back what they held, while a reload renews slots and book.
#[test]
fn judging_and_reloading_never_wait_for_each_other() {
    explore(|| {
        let learning = || ProviderSettings {
            adaptive: Some(AdaptiveSettings { start: 4, min: 1, max: 8, ..AdaptiveSettings::default() }),
            ..provider(8)
        };
        let stand = Stand::of(
            RuntimeBuilder::default()
                .provider(learning())
                .agent(AgentSettings::new(name("draft"), name("local")), Arc::new(OutsideBackend))
                .compartments(compartments()),
        );
        let mut threads = Vec::new();
        for _ in 0..2 {
            threads.push(stand.spawn(|stand| {
                for _ in 0..2 {
                    if let Ok(admission) = stand.front("draft").enter(&of_feature("patient")) {
                        stand.set_time_ms(2_000);
                        let timeout = TimeoutKind::Attempt;
                        admission.finish(Ending::Timeout { timeout });
                    }
                }
            }));
        }
        threads.push(stand.spawn(|stand| {
            for _ in 0..3 {
                stand.supervise();
                pause();
            }
        }));
        threads.push(stand.spawn(move |stand| {
            for draft in [3, 5] {
                reload(stand, &parts(learning(), draft, None));
            }
        }));
        join(threads);
        stand.assert_empty();
    });
}
