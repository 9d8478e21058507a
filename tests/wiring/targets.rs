//! An agent with several targets: who is asked, who answers instead, what is told and what is counted (B40, B41).

use std::sync::Arc;

use serde_json::Value;
use watertight::{
    model::facts::Ending,
    policy::{breaker::state::StateName, fallback::Rank},
    runtime::{
        engine::Runtime,
        ports::Backend,
        settings::{AgentSettings, TargetSettings},
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, call, code, name, pass, provider, settle},
    support::{Call, detail, hold, refused_connection, s, state},
};

fn rank(order: u32, weight: u32) -> Rank {
    Rank { order, weight }
}

/// Agent `draft` at `a/x` with this rank, and at `b/y`, `c/z` with these.
async fn targets(settings: AgentSettings, ranks: [Rank; 3]) -> (Runtime, [Arc<Scripted>; 3]) {
    let backends = [(); 3].map(|()| Scripted::always(Answer::Good));
    let further = |index: usize, of: &str, model: &str| {
        let target = TargetSettings { provider: name(of), model: Some(model.to_owned()), rank: ranks[index] };
        (target, Arc::clone(&backends[index]) as Arc<dyn Backend>)
    };
    let settings = AgentSettings { model: Some("x".to_owned()), ..settings };
    let mut builder = builder();
    for of in ["a", "b", "c"] {
        builder = builder.provider(provider(of));
    }
    let further = vec![further(1, "b", "y"), further(2, "c", "z")];
    let runtime = builder.agent_with_targets(settings, ranks[0], backends[0].clone(), further).start().await.unwrap();
    (runtime, backends)
}

async fn in_order() -> (Runtime, [Arc<Scripted>; 3]) {
    targets(agent("draft", "a"), [rank(0, 1), rank(1, 1), rank(2, 1)]).await
}

fn counts(backends: &[Arc<Scripted>; 3]) -> [usize; 3] {
    [0, 1, 2].map(|index: usize| backends[index].count())
}

#[tokio::test(start_paused = true)]
async fn the_next_target_answers_for_what_another_may() {
    for (answer, goes_on) in [
        (refused_connection(), true),
        (Answer::ending(Ending::status(500)), true),
        (Answer::ending(Ending::status(429)), true),
        (Answer::ending(Ending::BadReply), true),
        (Answer::Panic, true),
        (Answer::ending(Ending::status(400)), false),
        (Answer::ending(Ending::status(422)), false),
        (Answer::Content(Box::new(Answer::ending(Ending::StreamCut))), false),
    ] {
        let (runtime, backends) = in_order().await;
        backends[0].now(answer);
        let result = call(&runtime, "draft").await;
        assert_eq!(counts(&backends), [1, usize::from(goes_on), 0]);
        assert_eq!(result.is_ok(), goes_on);
        if let Ok(reply) = result {
            assert_eq!((reply.fallback.as_deref(), reply.attempts.len(), reply.tries.len()), (Some("b/y"), 2, 1));
            assert_eq!(&*reply.tries[0].target, "a/x");
        }
    }
}

/// B41: each target once a call, the first error kept with the list of tries.
#[tokio::test(start_paused = true)]
async fn each_target_once_and_the_first_error_is_kept() {
    let (runtime, backends) = in_order().await;
    backends[0].now(Answer::ending(Ending::status(500)));
    backends[1].now(refused_connection());
    backends[2].now(Answer::ending(Ending::status(503)));
    let result = call(&runtime, "draft").await;
    assert_eq!(counts(&backends), [1, 1, 1]);
    let error = result.unwrap_err();
    assert_eq!((error.envelope.error_code.as_str(), error.envelope.http_status), ("AGENT_ERROR", 500));
    let tries = error.envelope.details["tries"].as_array().unwrap();
    let told: Vec<&str> = tries.iter().map(|tried| tried["target"].as_str().unwrap()).collect();
    assert_eq!(told[..2], ["a/x", "b/y"]);
    assert_eq!((error.attempts.len(), error.nothing_sent), (3, false));
}

/// B40: all refuse; one 503 with the earliest return, and no breaker hears of it.
#[tokio::test(start_paused = true)]
async fn nobody_is_left() {
    let (runtime, backends) = in_order().await;
    for backend in &backends {
        backend.now(refused_connection());
    }
    for _ in 0..5 {
        call(&runtime, "draft").await.unwrap_err();
    }
    assert_eq!(counts(&backends), [5, 5, 5]);
    for breaker in ["agent:draft", "agent:draft:b/y", "agent:draft:c/z"] {
        assert_eq!(state(&runtime, breaker), StateName::Open, "{breaker}");
    }
    pass(s(23)).await;
    let before = ["agent:draft", "agent:draft:b/y"].map(|name| runtime.breaker(name).unwrap());
    let error = call(&runtime, "draft").await.unwrap_err();
    assert_eq!((error.envelope.error_code.as_str(), error.envelope.http_status), ("AGENT_CIRCUIT_OPEN", 503));
    assert!((6.0..=7.5).contains(&error.envelope.retry_after.unwrap()), "{:?}", error.envelope.retry_after);
    assert_eq!(error.envelope.details["tries"].as_array().unwrap().len(), 3);
    assert!(error.nothing_sent && counts(&backends) == [5, 5, 5]);
    assert_eq!(before, ["agent:draft", "agent:draft:b/y"].map(|name| runtime.breaker(name).unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_sick_target_is_passed_over_and_the_first_comes_back() {
    let (runtime, backends) = in_order().await;
    backends[0].now(refused_connection());
    for _ in 0..5 {
        assert_eq!(call(&runtime, "draft").await.unwrap().fallback.as_deref(), Some("b/y"));
    }
    assert_eq!(
        (state(&runtime, "agent:draft"), state(&runtime, "agent:draft:b/y")),
        (StateName::Open, StateName::Closed)
    );
    let reply = call(&runtime, "draft").await.unwrap();
    assert_eq!((counts(&backends), reply.attempts.len()), ([5, 6, 0], 1), "an open gate costs no attempt");
    backends[0].now(Answer::Good);
    pass(s(31)).await;
    for _ in 0..5 {
        assert_eq!(call(&runtime, "draft").await.unwrap().fallback, None);
    }
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn weights_share_the_calls_of_one_order() {
    let (runtime, backends) = targets(agent("draft", "a"), [rank(0, 3), rank(0, 1), rank(1, 9)]).await;
    for _ in 0..400 {
        call(&runtime, "draft").await.unwrap();
    }
    let [first, second, third] = counts(&backends);
    assert!((270..330).contains(&first) && first + second == 400 && third == 0, "{first} {second} {third}");
}

/// One cap for all targets: no call gets a slot because it goes elsewhere.
#[tokio::test(start_paused = true)]
async fn slots_are_the_agents() {
    let settings = AgentSettings { slots: 3, ..agent("draft", "a") };
    let (runtime, backends) = targets(settings, [rank(0, 1), rank(0, 1), rank(0, 1)]).await;
    for backend in &backends {
        backend.now(Answer::Hang);
    }
    let (_, calls) = hold(&runtime, "draft", &backends[0], 3).await;
    settle().await;
    let refused = call(&runtime, "draft").await;
    assert_eq!(
        (code(&refused).as_str(), detail(&refused, "compartment").as_str()),
        ("AGENT_BULKHEAD_FULL", "agent:draft")
    );
    assert_eq!((runtime.agents()[0].in_flight, runtime.agents().len(), runtime.agents()[0].targets.len()), (3, 1, 3));
    drop(calls);
    pass(s(1)).await;
    assert_eq!(runtime.agents()[0].in_flight, 0);
}

/// A caller that leaves while a further target works stops that one too, and no other is asked.
#[tokio::test(start_paused = true)]
async fn who_leaves_stops_the_further_target() {
    let (runtime, backends) = in_order().await;
    backends[0].now(refused_connection());
    backends[1].now(Answer::Hang);
    let handle = runtime.agent("draft").unwrap();
    let request = watertight::runtime::call::CallRequest::of(Value::Null);
    let left = Call(tokio::spawn(async move { handle.call(request).await }));
    settle().await;
    assert_eq!(backends[1].running.load(std::sync::atomic::Ordering::SeqCst), 1);
    drop(left);
    settle().await;
    assert_eq!(backends[1].running.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert_eq!((counts(&backends), runtime.agents()[0].in_flight), ([1, 1, 0], 0));
}

/// The call's own time is the time of all its targets together.
#[tokio::test(start_paused = true)]
async fn further_targets_get_what_is_left_of_the_call() {
    let (runtime, backends) = in_order().await;
    for backend in &backends {
        backend.now(Answer::Hang);
    }
    let began = tokio::time::Instant::now();
    let error = call(&runtime, "draft").await.unwrap_err();
    assert_eq!((error.envelope.error_code.as_str(), began.elapsed()), ("AGENT_TIMEOUT", s(180)));
    assert_eq!(counts(&backends), [1, 1, 1], "60 s each");
}
