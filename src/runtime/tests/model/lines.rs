//! Slots and the line: whoever waits ends with a slot or with its refusal, a slot has one holder at a time, and none is lost, whoever
//! leaves, dies or stops in whatever moment.

use std::{sync::Arc, time::Duration};

use shuttle::{
    future::block_on,
    rand::{Rng, thread_rng},
};

use super::stand::{Held, Stand, explore, join, let_go, name, pause};
use crate::{
    policy::compartment::settings::{CompartmentSettings, FeatureSettings},
    runtime::{
        builder::RuntimeBuilder,
        call::CallContext,
        fallback::Admitted,
        handle::AgentHandle,
        line::Targets,
        outside::OutsideBackend,
        parked::ParkedAt,
        refusal::Refusal,
        settings::{AgentSettings, ProviderSettings},
        sync::sleep,
    },
};

/// Longer than any execution: only a slot, a stop or a reload ends this wait.
const PATIENT: Duration = Duration::from_secs(48 * 3_600);
/// Ends at any moment.
const BRISK: Duration = Duration::from_secs(5);

/// One provider for two agents with so many slots; callers of the feature `patient` wait for ever, those of `brisk` not long.
pub(super) fn builder(provider: u32, draft: u32, review: u32) -> RuntimeBuilder {
    let mut local = ProviderSettings::new(name("local"));
    local.slots = Some(provider);
    local.guaranteed = vec![(name("draft"), 0), (name("review"), 0)];
    let agent = |text, slots| AgentSettings { slots, ..AgentSettings::new(name(text), name("local")) };
    RuntimeBuilder::default()
        .provider(local)
        .agent(agent("draft", draft), Arc::new(OutsideBackend))
        .agent(agent("review", review), Arc::new(OutsideBackend))
        .compartments(compartments())
}

pub(super) fn compartments() -> CompartmentSettings {
    let feature = |text, max_wait| FeatureSettings { max_wait, ..FeatureSettings::new(name(text)) };
    CompartmentSettings {
        features: vec![
            feature("patient", PATIENT),
            feature("brisk", BRISK),
            FeatureSettings { line_max: 1, ..feature("narrow", PATIENT) },
        ],
        ..CompartmentSettings::default()
    }
}

pub(super) fn of_feature(feature: &str) -> CallContext {
    CallContext { feature: Some(feature.to_owned()), ..CallContext::default() }
}

/// Takes a slot at once or stands in the line for it, as a call does.
pub(super) fn admit(front: &AgentHandle, feature: &str) -> Result<Admitted, Refusal> {
    let context = of_feature(feature);
    match front.admit_any(&context, &ParkedAt::default()) {
        Ok(admitted) => Ok(admitted),
        Err(refusal) => block_on(front.line_up(Targets::All, &context, refusal)),
    }
}

/// The same for a caller that leaves in any moment: its future is dropped where it stands, and with it whatever it was given.
fn admit_and_leave(stand: &Stand, agent: &str) {
    let (front, context) = (stand.front(agent), of_feature("patient"));
    let Err(refusal) = front.admit_any(&context, &ParkedAt::default()) else { return };
    let admitted = block_on(async {
        tokio::select! {
            biased;
            () = sleep(BRISK) => None,
            admitted = front.line_up(Targets::All, &context, refusal) => Some(admitted),
        }
    });
    let_go(admitted);
}

/// B12 in every order: one slot, one who waits for ever, one whose patience ends and one who leaves, all in the moment of a hand-over.
#[test]
fn a_slot_that_is_handed_over_is_never_lost() {
    explore(|| {
        let stand = Stand::of(builder(1, 1, 1));
        let held = Arc::new(Held::default());
        let first = stand.front("draft").admit_any(&of_feature("patient"), &ParkedAt::default()).unwrap();
        let mut threads = Vec::new();
        for feature in ["patient", "brisk"] {
            let held = Arc::clone(&held);
            threads.push(stand.spawn(move |stand| match admit(&stand.front("draft"), feature) {
                Ok(admitted) => held.hold(admitted, 1),
                Err(refusal) => assert!(feature == "brisk" && refusal.is_full(), "{feature}: {refusal:?}"),
            }));
        }
        threads.push(stand.spawn(|stand| admit_and_leave(stand, "draft")));
        pause();
        let_go(first);
        join(threads);
        stand.assert_empty();
    });
}

/// Two agents on one provider: callers in several counts at once, with and without a line.
#[test]
fn counts_hold_and_everybody_who_waits_is_served() {
    explore(|| {
        let stand = Stand::of(builder(2, 1, 2));
        let all = Arc::new(Held::default());
        let of_draft = Arc::new(Held::default());
        let mut threads = Vec::new();
        for caller in 0..5 {
            let (all, of_draft) = (Arc::clone(&all), Arc::clone(&of_draft));
            threads.push(stand.spawn(move |stand| {
                let agent = if caller % 2 == 0 { "draft" } else { "review" };
                let feature = ["patient", "patient", "brisk"][thread_rng().gen_range(0..3)];
                match admit(&stand.front(agent), feature) {
                    Ok(admitted) if agent == "draft" => of_draft.hold(Nested(&all, Some(admitted)), 1),
                    Ok(admitted) => all.hold(admitted, 2),
                    Err(refusal) => assert!(feature == "brisk" && refusal.is_full(), "{feature}: {refusal:?}"),
                }
                // Nobody is ever waiting for what is free.
                stand.shared().compartments.check();
            }));
        }
        join(threads);
        stand.assert_empty();
    });
}

/// Whoever holds one agent's slot holds the provider's.
struct Nested<'a>(&'a Held, Option<Admitted>);

impl Drop for Nested<'_> {
    fn drop(&mut self) {
        if let Some(admitted) = self.1.take().filter(|_| !std::thread::panicking()) {
            self.0.hold(admitted, 2);
        }
    }
}

/// A stop in any moment: those who wait are told, and nothing stays taken.
#[test]
fn a_stop_lets_everybody_go() {
    explore(|| {
        let stand = Stand::of(builder(1, 1, 1));
        let held = Arc::new(Held::default());
        let mut threads = Vec::new();
        for agent in ["draft", "review", "draft"] {
            let held = Arc::clone(&held);
            threads.push(stand.spawn(move |stand| match admit(&stand.front(agent), "patient") {
                Ok(admitted) => held.hold(admitted, 1),
                Err(refusal) => assert_eq!(refusal, Refusal::ShuttingDown),
            }));
        }
        pause();
        stand.shared().stopping.cancel();
        join(threads);
        stand.assert_empty();
    });
}

/// One place in the line: the high class has it in the end, whoever came first, and who gave way is told so and holds nothing.
#[test]
fn a_high_class_finds_a_place_in_a_full_line() {
    explore(|| {
        let stand = Stand::of(builder(1, 1, 1));
        let held = Arc::new(Held::default());
        let first = stand.front("draft").admit_any(&of_feature("narrow"), &ParkedAt::default()).unwrap();
        let mut threads = Vec::new();
        for class in ["critical", "batch", "background"] {
            let held = Arc::clone(&held);
            threads.push(stand.spawn(move |stand| {
                let context = CallContext { priority: Some(class.to_owned()), ..of_feature("narrow") };
                let front = stand.front("draft");
                let admitted = match front.admit_any(&context, &ParkedAt::default()) {
                    Ok(admitted) => Ok(admitted),
                    Err(refusal) => block_on(front.line_up(Targets::All, &context, refusal)),
                };
                match admitted {
                    Ok(admitted) => held.hold(admitted, 1),
                    Err(refusal) => assert!(class != "critical" && refusal.is_full(), "{class}: {refusal:?}"),
                }
                stand.shared().compartments.check();
            }));
        }
        pause();
        let_go(first);
        join(threads);
        stand.assert_empty();
    });
}
