//! Runs that are cut off after any of their turns and brought back from what was written by then.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    property::{answer, look, workflow},
    world::{AGENTS, Answer, World, bad, chain, good, nothing, refused, seed},
};
use crate::{
    model::{
        ended::Ended,
        envelope::ErrorCode,
        event::EventType,
        name::Name,
        run::{RunRecord, RunStatus, StepStatus},
    },
    policy::suspects::{BLAMES_MAX, DEATHS_MAX, Guilt, SUSPECT_DEATHS},
    workflow::{
        check::load,
        plan::{
            action::{GateLook, StepKey},
            open::Doubt,
            run_plan::RunPlan,
        },
    },
};

/// The same run, once whole and once cut off after each of its turns; what it comes to must be the same.
fn cut_everywhere(make: impl Fn() -> World) -> RunRecord {
    let whole = make().run();
    let turns = whole.batches();
    for turn in 1..turns {
        let cut = make().run_until(turn).restarted().run_on();
        assert_eq!(outcome(&cut), outcome(&whole), "cut after turn {turn} of {turns}");
        assert_eq!(cut.data(EventType::RunStarted, None).len(), 1);
        assert_eq!(cut.data(EventType::RunResumed, None).first(), Some(&json!({ "reason": "restart" })));
    }
    whole.record()
}

/// What a run came to. The attempt of a call that was cut off began with the latest time that the call was made.
fn outcome(world: &World) -> RunRecord {
    let mut record = world.record();
    for step in record.steps.iter_mut().filter(|step| step.status == StepStatus::Cancelled) {
        step.attempts.clear();
    }
    record
}

#[test]
fn a_chain_goes_on_where_it_was() {
    let make = || World::with_head("output = \"steps.c.output\"", &chain(&["a", "b", "c"]), nothing());
    let record = cut_everywhere(make);
    assert_eq!((record.status, record.tokens.prompt), (RunStatus::Completed, 30));
}

#[test]
fn a_call_under_way_is_made_again_and_says_so() {
    let world = World::new(&chain(&["a", "b"]), nothing()).run_until(2).restarted().run_on();
    assert_eq!(world.called(), ["0 a", "10 b", "10 b"]);
    let starts = world.data(EventType::StepStarted, Some("b"));
    assert_eq!(
        starts,
        [json!({ "index": null, "iteration": 0 }), json!({ "index": null, "iteration": 0, "again": true })]
    );
}

#[test]
fn maps_and_their_joins_come_back() {
    for join in ["all", "quorum:2", "first_good", "best_effort:25ms"] {
        let text = format!(
            "[[step]]\nid = \"m\"\nagent = \"a\"\nin = \"item\"\nmap = {{ over = \"range(5)\", as = \"item\", parallel = 3, join = \"{join}\" }}\n[[step]]\nid = \"after\"\nagent = \"b\"\nin = \"steps.m.output\"\n"
        );
        let script = [good(30, json!(0)), bad(5, ErrorCode::AgentError), good(10, json!(2)), good(40, json!(3))];
        cut_everywhere(|| {
            World::with_head("output = \"steps.after.output\"", &text, nothing()).agent("a", script.clone())
        });
    }
}

#[test]
fn a_revision_keeps_its_versions_and_scores() {
    let text = "[[step]]\nid = \"draft\"\nagent = \"draft\"\n[[step]]\nid = \"check\"\nagent = \"a\"\nin = \"steps.draft.output\"\n[[step]]\nid = \"review\"\nagent = \"review\"\nneeds = [\"check\"]\nin = \"steps.draft.output\"\nrevise = { step = \"draft\", until = \"output.score >= 80\", max = 4 }\n";
    for scores in [vec![50, 70, 90], vec![60, 55, 50], vec![10, 20, 30, 40, 50]] {
        let drafts: Vec<Answer> = (0..5).map(|version| good(10, json!(format!("v{version}")))).collect();
        let reviews: Vec<Answer> = scores.iter().map(|score| good(10, json!({ "score": score }))).collect();
        cut_everywhere(|| {
            World::with_head("output = \"steps.draft.output\"", text, nothing())
                .agent("draft", drafts.clone())
                .agent("review", reviews.clone())
        });
    }
    let given_up = [good(10, json!({ "score": 50 })), bad(10, ErrorCode::AgentError)];
    let record = cut_everywhere(|| World::new(text, nothing()).agent("review", given_up.clone()));
    assert_eq!(record.degraded[0].action, "best_so_far");
}

#[test]
fn a_failing_run_lets_finish_what_was_under_way() {
    let text = "[[step]]\nid = \"ill\"\nagent = \"a\"\n[[step]]\nid = \"well\"\nagent = \"b\"\n[[step]]\nid = \"late\"\nagent = \"c\"\nneeds = [\"well\"]\n";
    let make = || {
        let world = World::new(text, nothing()).agent("a", [bad(5, ErrorCode::AgentError)]);
        world.agent("b", [good(50, json!("paid for"))])
    };
    let record = cut_everywhere(make);
    let well = record.steps.iter().find(|step| step.id == "well").unwrap();
    assert_eq!((record.status, well.status), (RunStatus::Failed, StepStatus::Succeeded));
}

#[test]
fn a_parked_step_asks_again_and_is_not_said_to_run_twice() {
    let make = || World::new(&chain(&["a"]), nothing()).agent("a", [refused(ErrorCode::AgentWarming, 40.0)]);
    let world = make().run_until(2).restarted().run_on();
    assert_eq!((world.called(), world.status()), (vec!["0 a".to_owned(), "0 a".to_owned()], RunStatus::Completed));
    assert_eq!(world.data(EventType::StepStarted, Some("a")).len(), 1);
    assert_eq!(world.record().steps[0].refusals.len(), 1);
}

#[test]
fn time_that_nobody_ran_counts() {
    let text = chain(&["a", "b"]);
    let make = || World::with_head("output = \"1\"\ndeadline = \"1m\"", &text, nothing());
    let world = make().run_until(2).down_until(59_000).restarted().run_on();
    assert_eq!((world.status(), world.record().duration_ms), (RunStatus::Completed, Some(59_000)));
    let world = make().run_until(2).down_until(60_000).restarted().run_on();
    assert_eq!((world.status(), world.record().duration_ms), (RunStatus::TimedOut, Some(60_000)));
    assert_eq!(world.called(), ["0 a", "10 b"], "nothing was begun that cannot end");
}

#[test]
fn what_may_act_only_once_waits_for_an_operator() {
    let text = "[[step]]\nid = \"pay\"\nagent = \"a\"\neffects = \"once\"\n[[step]]\nid = \"after\"\nagent = \"b\"\nneeds = [\"pay\"]\n";
    let mut world = World::with_head("output = \"1\"\ndeadline = \"1m\"", text, nothing()).run_until(1).restarted();
    assert_eq!((world.status(), world.called().len()), (RunStatus::Parked, 1));
    let why = serde_json::to_value(world.plan().why()).unwrap();
    assert_eq!((&why["state"], &why["reason"]), (&json!("parked"), &json!("in_doubt")));
    let doubtful = world.plan().in_doubt();
    assert_eq!((doubtful.len(), doubtful[0].0.agent.as_str()), (1, "a"));
    let released = world.released(doubtful[0].0.key).run_on();
    assert_eq!((released.status(), released.called().len()), (RunStatus::Completed, 3));
    let waits =
        World::with_head("output = \"1\"\ndeadline = \"1m\"", text, nothing()).run_until(1).restarted().run_on();
    assert_eq!((waits.status(), waits.called().len()), (RunStatus::TimedOut, 1), "never by itself");
    // What ended, or never began, is not in doubt.
    let over = World::new(text, nothing()).run_until(2).restarted().run_on();
    assert_eq!((over.status(), over.called().len()), (RunStatus::Completed, 3));
}

/// Two steps beside each other, so that there is always one that is no suspect's.
fn pair() -> World {
    let text = "[[step]]\nid = \"kills\"\nagent = \"a\"\n[[step]]\nid = \"well\"\nagent = \"b\"\n";
    let world = World::with_head("output = \"1\"\ndeadline = \"10m\"", text, nothing());
    world.agent("a", [Answer::Hangs]).agent("b", [Answer::Hangs])
}

const KILLS: StepKey = StepKey { step: 0, index: None, iteration: 0 };

fn suspects(world: &World) -> Vec<Value> {
    let resumed = world.data(EventType::RunResumed, None);
    resumed.last().and_then(|data| data["suspects"].as_array()).cloned().unwrap_or_default()
}

/// A call that takes the process with it must not keep the service from starting for ever.
#[test]
fn what_the_process_dies_with_is_tried_alone_and_put_aside() {
    let mut world = pair().run_until(1);
    for deaths in 1..SUSPECT_DEATHS {
        world = world.restarted();
        assert_eq!(world.called().len(), 2 * (deaths as usize + 1), "asked for again");
    }
    for blamed in 0..BLAMES_MAX {
        world = world.restarted();
        let why = serde_json::to_value(world.plan().why_steps()).unwrap();
        assert_eq!((&why[0]["state"], &why[0]["reason"]), (&json!("parked"), &json!("suspect")));
        assert_eq!(suspects(&world)[0]["blamed"], json!(blamed), "{:?}", suspects(&world));
        assert_eq!((world.status(), world.plan().in_doubt().len()), (RunStatus::Parked, 0));
        assert!(world.plan().is_on_trial(KILLS));
        let before = world.called().len();
        world = world.tried(KILLS);
        assert_eq!(world.called().len(), before + 1, "it alone");
        assert_eq!(world.data(EventType::StepStarted, Some("kills")).last().unwrap()["alone"], json!(true));
        // A turn that is not its own changes nothing.
        world = world.tried(KILLS);
        assert_eq!(world.called().len(), before + 1);
    }
    for _ in 0..2 {
        // It stays so over further restarts.
        world = world.restarted();
        let doubtful = world.plan().in_doubt();
        assert_eq!((doubtful.len(), doubtful[0].0.key, doubtful[0].1), (1, KILLS, Doubt::Kills(Guilt::Blamed)));
        assert!(!world.plan().acts_once(0) && !world.plan().is_on_trial(KILLS));
    }
    // An operator can let it go on.
    let before = world.called().len();
    let released = world.released(KILLS);
    assert_eq!((released.called().len(), released.status()), (before + 1, RunStatus::Running));
}

#[test]
fn who_dies_without_a_trial_takes_the_blame_back() {
    let mut world = pair().run_until(1);
    for _ in 0..SUSPECT_DEATHS {
        world = world.restarted();
    }
    world = world.tried(KILLS).restarted();
    let told = &suspects(&world)[0];
    assert_eq!((&told["step"], &told["blamed"]), (&json!("kills"), &json!(1)));
    assert_eq!(told["quiet_ms"], json!(15 * 250), "{told}");
    world = world.restarted();
    assert_eq!(suspects(&world)[0]["blamed"], json!(0));
    // Nor is one blamed that ran for long, or that a node cut which stopped of itself.
    world = world.tried(KILLS).down_until(60_000).restarted();
    assert_eq!(suspects(&world)[0]["blamed"], json!(0));
    world = world.tried(KILLS).stopped().restarted();
    assert_eq!(suspects(&world)[0]["blamed"], json!(0));
}

#[test]
fn who_outlives_its_trial_goes_on_and_who_is_held_back_ends_with_its_run() {
    let text = "[[step]]\nid = \"kills\"\nagent = \"a\"\n";
    let slow =
        || World::with_head("output = \"1\"\ndeadline = \"1m\"", text, nothing()).agent("a", [good(50, json!(1))]);
    let held = || (0..SUSPECT_DEATHS).fold(slow().run_until(1), |world, _| world.restarted());
    let world = held().tried(KILLS).run_on();
    assert_eq!(world.status(), RunStatus::Completed);
    let world = held().run_on();
    assert_eq!((world.status(), world.called().len()), (RunStatus::TimedOut, SUSPECT_DEATHS as usize));
    let mut world = held().cancelled();
    assert_eq!((world.status(), world.plan().is_on_trial(KILLS)), (RunStatus::Cancelled, false));
    // A node that stops of itself is nobody's death.
    let mut world = slow().run_until(1);
    for _ in 0..4 * DEATHS_MAX {
        world = world.stopped().restarted();
    }
    assert_eq!((suspects(&world).len(), world.run_on().status()), (0, RunStatus::Completed));
}

#[test]
fn what_does_not_fit_is_said() {
    let text = "[workflow]\nname = \"test\"\noutput = \"1\"\n".to_owned() + &chain(&["a", "b"]);
    let agents = AGENTS.iter().map(|name| Name::try_new(name).unwrap()).collect();
    let workflow = Arc::new(load("test.toml", text.as_bytes(), &agents).unwrap());
    let whole = World::new(&chain(&["a", "b"]), nothing()).run();
    let ended = whole.ended();
    let restore = |ended: &[Ended]| {
        let started = Some(crate::model::clock::Timestamp::ZERO);
        RunPlan::restore(Arc::clone(&workflow), &serde_json::Map::new(), seed(None), Vec::new(), started, ended)
    };
    assert!(restore(&ended).is_ok());
    let error = restore(&ended[1..]).unwrap_err();
    assert_eq!(error.error_code, ErrorCode::Internal);
    assert!(error.message.contains("\"b\""), "{}", error.message);
    let mut strange = ended.clone();
    strange[0].record.id = "z".to_owned();
    assert!(restore(&strange).unwrap_err().message.contains("no such step"));
    strange[0].record = ended[0].record.clone();
    strange[0].record.iteration = 3;
    assert!(restore(&strange).is_err());
    assert!(restore(&[ended[0].clone(), ended[0].clone(), ended[1].clone()]).is_ok(), "twice is no harm");
}

#[test]
fn a_run_begins_with_the_results_it_is_given() {
    let text = chain(&["a", "b", "c"]);
    let first =
        World::with_head("output = \"steps.c.output\"", &text, nothing()).agent("a", [good(5, json!("old"))]).run();
    let mut seeds: Vec<Ended> = first.ended().into_iter().filter(|ended| ended.record.id == "a").collect();
    for seed in &mut seeds {
        seed.usage = None;
    }
    let world = World::with_head("output = \"steps.a.output\"", &text, nothing()).seeded(seeds).run();
    assert_eq!((world.called().len(), world.record().output), (2, Some(json!("old"))));
    assert_eq!(world.data(EventType::StepFinished, Some("a"))[0]["reused"], json!(true));
    assert!(world.data(EventType::StepStarted, Some("a")).is_empty());
    assert_eq!(world.record().tokens.prompt, 20, "what was paid for before is not counted again");
}

/// What one random run is made of.
type Parts = (String, Vec<Vec<Answer>>, Vec<(usize, u64, GateLook)>, u32, bool, Option<u64>);

fn parts() -> impl Strategy<Value = Parts> {
    (
        workflow(),
        proptest::collection::vec(proptest::collection::vec(answer(), 0..8), AGENTS.len()),
        proptest::collection::vec((0..AGENTS.len(), 0_u64..60_000, look()), 0..4),
        0_u32..4,
        any::<bool>(),
        proptest::option::weighted(0.1, 0_u64..30_000),
    )
}

fn make((text, scripts, gates, share, full_line, cancelled_at): &Parts) -> World {
    let agents = AGENTS.iter().map(|name| Name::try_new(name).unwrap()).collect();
    let workflow = load("test.toml", text.as_bytes(), &agents).unwrap();
    let plan = RunPlan::new(Arc::new(workflow), &serde_json::Map::new(), seed(None)).unwrap();
    let mut world = World::of(plan.journaled());
    for (agent, script) in AGENTS.iter().zip(scripts) {
        world = world.agent(agent, script.clone()).share(agent, *share);
    }
    let mut gates = gates.clone();
    gates.sort_by_key(|(_, from, _)| *from);
    for (agent, from, look) in gates {
        world = world.gate(AGENTS[agent], from, look);
    }
    if *full_line {
        world = world.full_line();
    }
    match cancelled_at {
        Some(at) => world.cancelled_at(*at),
        None => world,
    }
}

fn is_refusal(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused(..))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Cut at any turn, once or twice: it ends, explained all the way, and no call that ended is made again (the world sees to both).
    #[test]
    fn a_run_that_is_cut_off_anywhere_ends(parts in parts(), first: prop::sample::Index, second: prop::sample::Index) {
        let turns = make(&parts).run().batches();
        let world = make(&parts).run_until(1 + first.index(turns)).restarted();
        let world = if world.is_over() { world } else { world.run_until(turns + second.index(turns)).restarted() };
        let world = world.run_on();
        let started: Vec<Value> = world.data(EventType::RunStarted, None);
        prop_assert_eq!(started.len(), 1);
    }

    /// Agents that answer the same call in the same way and at the same time: cut or not, every run comes to the same.
    #[test]
    fn what_a_run_comes_to_does_not_depend_on_where_it_was_cut(mut parts in parts(), at: prop::sample::Index) {
        for script in &mut parts.1 {
            script.retain(|answer| !is_refusal(answer));
        }
        let whole = make(&parts).run();
        let turn = 1 + at.index(whole.batches());
        let cut = make(&parts).run_until(turn).restarted().run_on();
        prop_assert_eq!(outcome(&cut), outcome(&whole), "cut after turn {}", turn);
    }
}
