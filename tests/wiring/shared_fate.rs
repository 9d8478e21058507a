//! A provider that several agents lean on: one ill agent never shuts its neighbours, a sick provider is one event and not four.

use watertight::{
    model::facts::Ending,
    policy::breaker::state::{Reason, StateName},
    runtime::{engine::Runtime, supervisor::BreakerAct},
};

use crate::{
    kit::{Answer, agent, call, call_later, code, pass, provider, settle},
    support::{
        Call, FOUR, agents_on, all, changes, codes, detail, four_agents, hold, ms, refused_connection, s, state,
    },
};

async fn round(runtime: &Runtime) {
    for of in FOUR {
        drop(call(runtime, of).await);
    }
}

#[tokio::test(start_paused = true)]
async fn one_ill_agent_never_shuts_its_neighbours() {
    for (what, answer) in [
        ("503", Answer::status(503)),
        ("hang", Answer::Hang),
        ("crawl", Answer::Good.after(s(40))),
        ("connection lost", Answer::ending(Ending::Network { connected: true })),
        ("cut streams", Answer::ending(Ending::StreamCut)),
    ] {
        let (runtime, backends) = four_agents().await;
        let mut events = runtime.breaker_events();
        backends[1].now(answer);
        let mut ill = Vec::new();
        for _ in 0..30 {
            ill.extend((0..10).map(|_| Call(call_later(&runtime, "draft"))));
            for of in ["style", "review", "meta"] {
                assert_eq!(code(&call(&runtime, of).await), "OK", "{what}");
            }
            pass(s(10)).await;
        }
        let changes = changes(&mut events);
        assert!(changes.iter().any(|(breaker, to, _)| breaker == "agent:draft" && *to == StateName::Open), "{what}");
        assert!(changes.iter().all(|(breaker, ..)| breaker == "agent:draft"), "{what}: {changes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sick_provider_opens_once_and_spares_its_agents() {
    let (runtime, backends) = four_agents().await;
    let mut events = runtime.breaker_events();
    all(&backends, &Answer::status(503));
    for _ in 0..5 {
        round(&runtime).await;
    }
    let refused = call(&runtime, "meta").await;
    assert_eq!((code(&refused), detail(&refused, "breaker")), ("AGENT_CIRCUIT_OPEN".into(), "provider:local".into()));
    assert_eq!(changes(&mut events), [("provider:local".to_owned(), StateName::Open, Reason::Consecutive)]);
    // It took three calls, not forty, to learn of it.
    assert_eq!(backends.iter().map(|backend| backend.count()).sum::<usize>(), 3);
    pass(s(30)).await;
    all(&backends, &Answer::Good);
    round(&runtime).await;
    round(&runtime).await;
    let (mut seen, closed) = (changes(&mut events), StateName::Closed);
    assert_eq!(seen.pop(), Some(("provider:local".to_owned(), closed, Reason::TrialsPassed)));
    assert_eq!(seen, [("provider:local".to_owned(), StateName::HalfOpen, Reason::OpenElapsed)]);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_hangs_is_seen_by_age_and_is_one_event() {
    let (runtime, backends) = four_agents().await;
    let mut events = runtime.breaker_events();
    all(&backends, &Answer::Hang);
    let mut calls = Vec::new();
    for number in 0..40 {
        calls.push(Call(call_later(&runtime, FOUR[number % 4])));
        pass(ms(5)).await;
    }
    pass(s(31)).await;
    assert_eq!(changes(&mut events), [("provider:local".to_owned(), StateName::Open, Reason::SlowShare)]);
    // They end while it is open, half-open and closed again: all that is explained by its illness.
    pass(s(29)).await;
    for call in calls {
        assert_eq!(code(&call.end().await), "AGENT_TIMEOUT");
    }
    all(&backends, &Answer::Good);
    pass(s(5)).await;
    round(&runtime).await;
    round(&runtime).await;
    let changes = changes(&mut events);
    assert!(changes.iter().all(|(breaker, ..)| breaker == "provider:local"), "{changes:?}");
    assert_eq!(state(&runtime, "provider:local"), StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn results_of_calls_from_before_the_illness_are_explained_by_it() {
    let (runtime, backends) = four_agents().await;
    backends[0].now(Answer::status(503).after(s(55)));
    let old: Vec<_> = (0..10).map(|_| Call(call_later(&runtime, "style"))).collect();
    settle().await;
    all(&backends[1..], &Answer::status(503));
    for of in ["draft", "review", "meta"] {
        drop(call(&runtime, of).await);
    }
    assert_eq!(state(&runtime, "provider:local"), StateName::Open);
    pass(s(30)).await;
    all(&backends[1..], &Answer::Good);
    for of in ["draft", "review", "meta", "draft", "review"] {
        assert_eq!(code(&call(&runtime, of).await), "OK");
    }
    assert_eq!(state(&runtime, "provider:local"), StateName::Closed);
    for call in old {
        assert_eq!(code(&call.end().await), "AGENT_ERROR");
    }
    settle().await;
    let style = runtime.breaker("agent:style").unwrap();
    assert_eq!((style.state, style.counts.entries), (StateName::Closed, 0));
}

#[tokio::test(start_paused = true)]
async fn while_the_provider_is_not_closed_nothing_is_recorded_or_tried_below() {
    let (runtime, backends) = four_agents().await;
    // `draft` is half-open by its own illness before its provider falls ill.
    backends[1].now(Answer::ending(Ending::BadReply));
    codes(&runtime, "draft", 5).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Open);
    pass(s(29)).await;
    all(&backends, &refused_connection());
    for of in ["style", "review", "meta"] {
        drop(call(&runtime, of).await);
    }
    assert_eq!(state(&runtime, "provider:local"), StateName::Open);
    pass(s(30)).await;
    let below = runtime.breaker("agent:draft").unwrap();
    assert_eq!(below.state, StateName::HalfOpen);
    all(&backends, &Answer::Good);
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    assert_eq!(runtime.breaker("agent:draft").unwrap(), below, "a trial of the provider is none of the agent's");
    all(&backends, &Answer::status(503));
    for of in ["style", "review", "meta"] {
        drop(call(&runtime, of).await);
        let below = runtime.breaker(&format!("agent:{of}")).unwrap();
        assert!(below.state == StateName::Closed && below.counts.entries <= 1, "{below:?}");
    }
    assert_eq!(state(&runtime, "provider:local"), StateName::Open);
}

#[tokio::test(start_paused = true)]
async fn when_it_closes_its_agents_begin_empty() {
    for by_operator in [false, true] {
        let (runtime, backends) = four_agents().await;
        all(&backends, &Answer::ending(Ending::BadReply));
        for _ in 0..3 {
            round(&runtime).await;
        }
        assert_eq!(runtime.breaker("agent:draft").unwrap().counts.failed, 3);
        all(&backends, &refused_connection());
        for of in ["style", "review", "meta"] {
            drop(call(&runtime, of).await);
        }
        assert_eq!(state(&runtime, "provider:local"), StateName::Open);
        if by_operator {
            runtime.act("provider:local", BreakerAct::Reset).unwrap();
            settle().await;
        } else {
            pass(s(30)).await;
            all(&backends, &Answer::Good);
            codes(&runtime, "style", 3).await;
        }
        assert_eq!(state(&runtime, "provider:local"), StateName::Closed);
        for of in FOUR {
            let counts = runtime.breaker(&format!("agent:{of}")).unwrap().counts;
            assert_eq!(counts.entries, 0, "{of}, by operator: {by_operator}");
        }
        // Nor is a streak of failures left: four more bad replies in a row open nothing.
        all(&backends, &Answer::ending(Ending::BadReply));
        codes(&runtime, "draft", 4).await;
        assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_at_the_door_needs_only_one_agent_to_tell() {
    let (runtime, backends) = four_agents().await;
    backends[1].now(refused_connection());
    codes(&runtime, "draft", 3).await;
    assert_eq!(state(&runtime, "provider:local"), StateName::Open);
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_provider_breaker_that_is_switched_off_leaves_the_agents_theirs() {
    for act in [BreakerAct::Disable, BreakerAct::MetricsOnly] {
        let (runtime, backends) = four_agents().await;
        runtime.act("provider:local", act).unwrap();
        settle().await;
        all(&backends, &Answer::status(503));
        for _ in 0..5 {
            round(&runtime).await;
        }
        for of in FOUR {
            assert_eq!(state(&runtime, &format!("agent:{of}")), StateName::Open, "{act:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_agents_target_stands_for_its_provider() {
    let (runtime, backends) = agents_on(provider("local"), vec![agent("draft", "local")]).await;
    assert!(runtime.breaker("provider:local").is_err());
    backends[0].now(refused_connection());
    codes(&runtime, "draft", 5).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Open);
}

/// A target that only its first caller can half-open must not keep the provider's trials out for ever.
#[tokio::test(start_paused = true)]
async fn provider_trials_pass_targets_whose_open_time_is_over() {
    let agents = FOUR
        .map(|of| {
            let mut settings = agent(of, "local");
            settings.breaker.half_open_by = watertight::policy::breaker::settings::HalfOpenBy::FirstCall;
            settings
        })
        .into();
    let (runtime, backends) = agents_on(provider("local"), agents).await;
    all(&backends, &Answer::ending(Ending::BadReply));
    for _ in 0..5 {
        round(&runtime).await;
    }
    runtime.act("provider:local", BreakerAct::ForceOpen).unwrap();
    settle().await;
    runtime.act("provider:local", BreakerAct::Auto).unwrap();
    settle().await;
    pass(s(30)).await;
    all(&backends, &refused_connection());
    for of in ["style", "draft", "review"] {
        drop(call(&runtime, of).await);
    }
    assert_eq!(state(&runtime, "provider:local"), StateName::Open);
    // Every target fell open again with its first trial, or is open still; the provider's trials come 30 s later.
    all(&backends, &Answer::Good);
    pass(s(31)).await;
    for _ in 0..4 {
        round(&runtime).await;
    }
    assert_eq!(state(&runtime, "provider:local"), StateName::Closed);
    let (admitted, _held) = hold(&runtime, "meta", &backends[3], 3).await;
    assert!(admitted > 0);
}
