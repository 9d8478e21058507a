//! Calls that were put aside, and what operators do with them.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::{World, until};
use crate::{
    runtime::journal::{DeadCause, DeadLetter, Journal as _, RunOwner},
    serve::operator::dead_letters::restore_letters,
};

fn letter(cause: DeadCause, agent: &str) -> DeadLetter {
    DeadLetter {
        id: "l-1".into(),
        at_ms: 1,
        cause,
        agent: agent.into(),
        run_id: Some("r-1".into()),
        step: Some("echo/-/0".into()),
        owner: RunOwner { tenant: Some("acme".into()), ..RunOwner::default() },
        idempotency_key: Some("k-1".into()),
        input: json!({ "text": "x" }),
        message: "it killed".into(),
    }
}

/// What `key` is told of the letters that there are.
async fn listed(world: &World, key: &str) -> Vec<Value> {
    let got = world.with_key(key, "GET", "/v1/dead-letters", "").await.is(200).json();
    got["data"].as_array().unwrap().clone()
}

async fn call(world: &World, key: &str) -> u16 {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str()), ("idempotency-key", "k-1")];
    world.ask("POST", "/v1/agents/echo/call", &headers, r#"{"input":1}"#).await.status.as_u16()
}

async fn with_letter(letter: DeadLetter) -> World {
    let world = World::usual().await;
    let running = world.state.running().await.unwrap();
    running.journal.put_aside(letter);
    // It is put aside when it is on the disk.
    for _ in 0..3_000 {
        if !listed(&world, "olga").await.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // As after a restart: the runtime knows nothing of it yet.
    restore_letters(&running).await.unwrap();
    world
}

const REPLAY: &str = "/v1/dead-letters/l-1/replay";

#[tokio::test]
async fn a_call_that_killed_is_refused_after_a_restart_and_made_by_one_operator() {
    let world = with_letter(letter(DeadCause::KilledTwice, "echo")).await;
    assert_eq!((listed(&world, "ann").await.len(), listed(&world, "bob").await.len()), (1, 0));
    assert_eq!((call(&world, "ann").await, call(&world, "bob").await), (500, 200), "one tenant's key is no other's");
    world.with_key("ann", "POST", REPLAY, "").await.fails(403, "FORBIDDEN");
    let (one, two) =
        tokio::join!(world.with_key("olga", "POST", REPLAY, ""), world.with_key("olga", "POST", REPLAY, ""));
    let (won, lost) = if one.status == 200 { (one, two) } else { (two, one) };
    assert_eq!(won.is(200).json()["output"], json!({ "text": "x" }));
    assert!([404, 409].contains(&lost.status.as_u16()), "{lost:?}");
    assert!(listed(&world, "olga").await.is_empty());
    assert_eq!(call(&world, "ann").await, 200, "it is forgiven");
    world.with_key("olga", "POST", REPLAY, "").await.fails(404, "NOT_FOUND");
}

#[tokio::test]
async fn a_letter_whose_act_fails_stays_and_refuses_as_before() {
    let world = with_letter(letter(DeadCause::KilledTwice, "echo")).await;
    let act = |action: &str| format!(r#"{{"action":"{action}","reason":"drill"}}"#);
    world.with_key("olga", "POST", "/v1/agents/echo/breaker", &act("force_open")).await.is(200);
    let runtime = world.state.runtime().await.unwrap();
    let state = || runtime.breaker("agent:echo").unwrap().state;
    let forced = crate::policy::breaker::state::StateName::ForcedOpen;
    until("it is forced open", || state() == forced).await;
    world.with_key("olga", "POST", REPLAY, "").await.fails(503, "AGENT_CIRCUIT_OPEN");
    assert_eq!(listed(&world, "olga").await.len(), 1);
    world.with_key("olga", "POST", "/v1/agents/echo/breaker", &act("reset")).await.is(200);
    until("it is closed", || state() != forced).await;
    assert_eq!(call(&world, "ann").await, 500);
    world.with_key("olga", "POST", REPLAY, "").await.is(200);
    let world = with_letter(letter(DeadCause::KilledTwice, "gone")).await;
    world.with_key("olga", "POST", REPLAY, "").await.fails(404, "NOT_FOUND");
    assert_eq!(listed(&world, "olga").await.len(), 1);
}

#[tokio::test]
async fn what_cannot_be_replayed_says_what_to_do_and_stays() {
    for (cause, word) in [(DeadCause::PlanPanicked, "/v1/runs/r-1/repair"), (DeadCause::InDoubt, "does not wait")] {
        let world = with_letter(letter(cause, "echo")).await;
        let got = world.with_key("olga", "POST", REPLAY, "").await;
        got.fails(409, "CONFLICT");
        assert!(got.text.contains(word), "{got:?}");
        assert_eq!(listed(&world, "olga").await.len(), 1);
        assert_eq!(call(&world, "ann").await, 200, "only what killed is refused");
    }
}

#[tokio::test]
async fn every_answer_to_a_call_tells_of_it() {
    let world = World::usual().await;
    let got = world.with_key("ann", "POST", "/v1/agents/echo/call", r#"{"input":1}"#).await;
    let told = |name: &str| got.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(
        (told("x-watertight-agent").as_deref(), told("x-watertight-attempts").as_deref()),
        (Some("echo"), Some("1"))
    );
    assert!(told("x-watertight-call-id").is_some_and(|id| !id.is_empty()) && told("x-watertight-fallback").is_none());
    assert!(told("x-watertight-overhead-ms").is_some_and(|text| text.parse::<f64>().is_ok()), "{got:?}");
}
