//! Random small workflows with random answers, refusals and gates: every run ends, once, explained at every moment (the world
//! checks that on each turn), and keeps what its siblings brought.

use proptest::prelude::*;
use serde_json::json;

use super::world::{AGENTS, Answer, World, bad, forced, good, refused, shut};
use crate::{
    model::{
        envelope::ErrorCode,
        event::EventType,
        run::{RunStatus, StepStatus},
    },
    workflow::plan::action::GateLook,
};

const CODES: [ErrorCode; 9] = [
    ErrorCode::AgentCircuitOpen,
    ErrorCode::AgentBulkheadFull,
    ErrorCode::AgentWarming,
    ErrorCode::TokenBudgetExhausted,
    ErrorCode::QuotaSpent,
    ErrorCode::DeadlineExceeded,
    ErrorCode::AgentTimeout,
    ErrorCode::AgentRestarted,
    ErrorCode::AgentBadReply,
];

pub(super) fn answer() -> impl Strategy<Value = Answer> {
    let code = || proptest::sample::select(CODES.to_vec());
    prop_oneof![
        6 => (0_u64..5_000, 0_u32..100).prop_map(|(after, score)| good(after, json!({ "score": score }))),
        1 => (0_u64..5_000).prop_map(|after| good(after, json!("no object"))),
        2 => (0_u64..5_000, code()).prop_map(|(after, code)| bad(after, code)),
        3 => (code(), 0.0..100.0_f64).prop_map(|(code, after)| refused(code, after)),
        1 => code().prop_map(|code| Answer::Refused(code, None)),
        1 => Just(Answer::Hangs),
    ]
}

pub(super) fn look() -> impl Strategy<Value = GateLook> {
    prop_oneof![
        3 => Just(GateLook::Admits),
        1 => Just(GateLook::HalfOpen),
        2 => (1_u64..80_000).prop_map(shut),
        1 => Just(forced()),
    ]
}

/// One step's text after its id and agent; `{n}` stands for a list, `before` for steps it may need.
fn step(at: usize) -> impl Strategy<Value = String> {
    let needs = proptest::collection::vec(any::<prop::sample::Index>(), if at == 0 { 0..1 } else { 0..3 });
    let extra = prop_oneof![
        4 => Just(String::new()),
        2 => Just("optional = true\n".to_owned()),
        1 => Just("on = { error = \"default\", budget = \"default\" }\ndefault = { score = 1 }\n".to_owned()),
        1 => Just("on = { error = \"lighter\", budget = \"deferred\", circuit_open = \"notice\", cold = \"lighter\" }\n".to_owned()),
        1 => Just("on = { circuit_open = \"skip\", bulkhead_full = \"fail\" }\n".to_owned()),
        1 => Just("when = \"input.x\"\n".to_owned()),
        1 => Just("timeout = \"2s\"\n".to_owned()),
        2 => Just("map = { over = \"range(4)\", as = \"item\", parallel = 2 }\n".to_owned()),
        1 => Just("map = { over = \"range(3)\", as = \"item\", join = \"best_effort:3s\" }\noptional = true\n".to_owned()),
        1 => Just("map = { over = \"range(3)\", as = \"item\" }\nwhen = \"index > 0\"\n".to_owned()),
        1 => Just("map = { over = \"range(4)\", as = \"item\", join = \"quorum:2\" }\n".to_owned()),
        1 => Just("map = { over = \"range(3)\", as = \"item\", join = \"first_good\" }\noptional = true\n".to_owned()),
    ];
    (0..AGENTS.len(), needs, extra, any::<bool>()).prop_map(move |(agent, needs, extra, revises)| {
        let needed: std::collections::BTreeSet<usize> =
            needs.iter().filter(|_| at > 0).map(|index| index.index(at.max(1))).collect();
        let names: Vec<String> = needed.iter().map(|needed| format!("s{needed}")).collect();
        let seen: Vec<String> = names.iter().map(|name| format!("{name} = \"steps.{name}.output\"")).collect();
        let mut text =
            format!("[[step]]\nid = \"s{at}\"\nagent = \"{}\"\nin = {{ {} }}\n", AGENTS[agent], seen.join(", "));
        if let (true, Some(target), false) = (revises, names.first(), extra.starts_with("map")) {
            let revise = format!("revise = {{ step = \"{target}\", until = \"output.score >= 80\", max = 2 }}\n");
            text.push_str(&revise);
        }
        text + &extra
    })
}

/// Steps, of which loops that overlap were taken out.
pub(super) fn workflow() -> impl Strategy<Value = String> {
    let steps = (step(0), step(1), step(2), step(3), step(4), step(5));
    (steps, 1_usize..=6, prop_oneof![Just("20s"), Just("15m")]).prop_map(|((a, b, c, d, e, f), count, deadline)| {
        let steps: Vec<String> = [a, b, c, d, e, f].into_iter().take(count).collect();
        let head = format!(
            "[workflow]\nname = \"test\"\noutput = \"1\"\ndeadline = \"{deadline}\"\n[inputs]\nx = \"text?\"\n"
        );
        let mut text = head;
        for step in steps {
            let with = format!("{text}{step}");
            let agents = AGENTS.iter().map(|name| crate::model::name::Name::try_new(name).unwrap()).collect();
            if crate::workflow::check::load("test.toml", with.as_bytes(), &agents).is_ok() {
                text = with;
            } else {
                let plain: Vec<&str> = step.lines().filter(|line| !line.starts_with("revise")).collect();
                text = format!("{text}{}\n", plain.join("\n"));
            }
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_run_ends_and_is_explained_all_the_way(
        text in workflow(),
        scripts in proptest::collection::vec(proptest::collection::vec(answer(), 0..8), AGENTS.len()),
        gates in proptest::collection::vec((0..AGENTS.len(), 0_u64..60_000, look()), 0..6),
        share in 0_u32..4,
        full_line: bool,
        cancelled_at in proptest::option::weighted(0.1, 0_u64..30_000),
    ) {
        let agents = AGENTS.iter().map(|name| crate::model::name::Name::try_new(name).unwrap()).collect();
        let workflow = crate::workflow::check::load("test.toml", text.as_bytes(), &agents).unwrap();
        let plan = crate::workflow::plan::run_plan::RunPlan::new(
            std::sync::Arc::new(workflow), &serde_json::Map::new(), super::world::seed(None)).unwrap();
        let mut world = World::of(plan);
        for (agent, script) in AGENTS.iter().zip(scripts) {
            world = world.agent(agent, script).share(agent, share);
        }
        let mut gates = gates;
        gates.sort_by_key(|(_, from, _)| *from);
        for (agent, from, look) in gates {
            world = world.gate(AGENTS[agent], from, look);
        }
        if full_line {
            world = world.full_line();
        }
        if let Some(at) = cancelled_at {
            world = world.cancelled_at(at);
        }
        let world = world.run();
        let record = world.record();
        // Nothing that an agent brought is lost: as many outputs in the records as good answers that were taken.
        let brought = world
            .events
            .iter()
            .filter(|(_, event)| event.kind == EventType::StepFinished && event.data["status"] == "succeeded")
            .filter(|(_, event)| event.data["index"].is_u64() || !is_mapped(&text, event.step.as_deref()))
            .count();
        let kept = record.steps.iter().filter(|step| step.status == StepStatus::Succeeded && step.started_ms.is_some());
        prop_assert_eq!(kept.clone().count(), brought);
        prop_assert!(kept.clone().all(|step| step.output.is_some()));
        let deadline_passed = record.duration_ms.unwrap() >= if text.contains("20s") { 20_000 } else { 900_000 };
        prop_assert_eq!(record.status == RunStatus::TimedOut, deadline_passed);
        prop_assert_eq!(record.status == RunStatus::Cancelled, record.error.as_ref().is_some_and(|error| error.error_code == ErrorCode::Cancelled));
    }
}

fn is_mapped(text: &str, step: Option<&str>) -> bool {
    let step = step.unwrap_or_default();
    let own = text.split("[[step]]").find(|own| own.contains(&format!("id = \"{step}\"")));
    own.is_some_and(|own| own.contains("map = "))
}
