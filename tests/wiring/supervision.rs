//! Deaths: of agents' actors, of attempts, of the supervisor. Two ledgers that never mix.

use watertight::{
    policy::breaker::state::{Reason, StateName},
    runtime::{
        call::CallRequest,
        engine::{Part, Runtime},
        supervisor::BreakerAct,
    },
};

use crate::{
    kit::{Answer, Scripted, agent, call, call_later, code, one_agent, pass, settle},
    support::{Call, FOUR, changes, codes, detail, four_agents, hold, ms, s, state},
};

fn restarts(runtime: &Runtime, agent: &str) -> u64 {
    runtime.agents().iter().find(|view| view.name.as_str() == agent).unwrap().restarts
}

async fn crash(runtime: &Runtime, part: Part<'_>, times: usize) {
    for _ in 0..times {
        runtime.crash(part).unwrap();
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn running_calls_outlive_their_actor() {
    let backend = Scripted::always(Answer::Good.after(s(20)));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    let calls: Vec<_> = (0..3).map(|_| Call(call_later(&runtime, "draft"))).collect();
    settle().await;
    for part in [Part::Agent("draft"), Part::Supervisor, Part::Orchestrator] {
        crash(&runtime, part, 1).await;
    }
    for call in calls {
        assert_eq!(code(&call.end().await), "OK");
    }
    settle().await;
    assert_eq!((restarts(&runtime, "draft"), runtime.agent("draft").unwrap().in_flight()), (1, 0));
    assert_eq!(runtime.breaker("agent:draft").unwrap().counts.entries, 3, "and are judged");
}

#[tokio::test(start_paused = true)]
async fn queued_calls_are_told_that_the_agent_restarted() {
    let backend = Scripted::always(Answer::Good);
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    let handle = runtime.agent("draft").unwrap();
    // Nothing yields here: the crash is in the mailbox before the calls.
    runtime.crash(Part::Agent("draft")).unwrap();
    let mut calls: Vec<_> = (0..10).map(|_| Box::pin(handle.call(CallRequest::of(serde_json::Value::Null)))).collect();
    for call in &mut calls {
        assert!(futures_util::FutureExt::now_or_never(call.as_mut()).is_none());
    }
    assert_eq!((handle.mailbox_depth(), handle.in_flight()), (10, 10));
    for call in calls {
        let failed = call.await.unwrap_err();
        assert_eq!(failed.envelope.error_code.as_str(), "AGENT_RESTARTED");
        assert!(failed.envelope.retryable && failed.nothing_sent && !failed.exhausted);
    }
    settle().await;
    assert_eq!((handle.mailbox_depth(), handle.in_flight(), backend.count()), (0, 0, 0));
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn queued_trials_go_back_when_the_actor_dies() {
    let backend = Scripted::always(Answer::status(503));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    codes(&runtime, "draft", 5).await;
    pass(s(30)).await;
    let handle = runtime.agent("draft").unwrap();
    runtime.crash(Part::Agent("draft")).unwrap();
    let mut calls: Vec<_> = (0..5).map(|_| Box::pin(handle.call(CallRequest::of(serde_json::Value::Null)))).collect();
    for call in &mut calls {
        assert!(futures_util::FutureExt::now_or_never(call.as_mut()).is_none());
    }
    for call in calls {
        assert_eq!(code(&call.await), "AGENT_RESTARTED");
    }
    settle().await;
    backend.now(Answer::Good);
    assert_eq!(codes(&runtime, "draft", 5).await, [("OK".to_owned(), 5)].into());
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_panic_ends_its_call_only_and_never_reaches_a_breaker() {
    let backend = Scripted::new(|_, number| if number % 20 == 0 { Answer::Panic } else { Answer::Good });
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    let failed = call(&runtime, "draft").await.unwrap_err();
    assert_eq!((failed.envelope.error_code.as_str(), failed.attempts.len()), ("AGENT_RESTARTED", 1));
    assert!(!failed.nothing_sent, "what it had sent by then nobody knows");
    assert_eq!(codes(&runtime, "draft", 19).await, [("OK".to_owned(), 19)].into());
    assert_eq!(restarts(&runtime, "draft"), 1);
    let counts = runtime.breaker("agent:draft").unwrap().counts;
    assert_eq!((counts.entries, counts.failed), (19, 0));
}

#[tokio::test(start_paused = true)]
async fn sickness_of_what_an_agent_leans_on_never_counts_as_a_restart() {
    let backend = Scripted::always(Answer::status(503));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    runtime.act("agent:draft", BreakerAct::Disable).unwrap();
    codes(&runtime, "draft", 200).await;
    assert_eq!(restarts(&runtime, "draft"), 0);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_again_and_again_is_quarantined() {
    for by_panic in [false, true] {
        let (runtime, backends) = four_agents().await;
        let mut events = runtime.breaker_events();
        backends[1].now(Answer::Panic);
        for death in 1..=6 {
            assert_eq!(state(&runtime, "agent:draft"), StateName::Closed, "death {death}");
            if by_panic {
                assert_eq!(code(&call(&runtime, "draft").await), "AGENT_RESTARTED");
            } else {
                crash(&runtime, Part::Agent("draft"), 1).await;
            }
        }
        backends[1].now(Answer::Good);
        let refused = call(&runtime, "draft").await;
        assert_eq!((code(&refused), detail(&refused, "reason")), ("AGENT_CIRCUIT_OPEN".into(), "crash_loop".into()));
        let wait = refused.unwrap_err().envelope.retry_after.unwrap();
        assert!((60.0..=62.0).contains(&wait), "{wait}");
        for of in ["style", "review", "meta"] {
            assert_eq!((code(&call(&runtime, of).await), restarts(&runtime, of)), ("OK".into(), 0));
        }
        // A good start clears nothing; a minute alive leads through half-open to normal.
        pass(s(58)).await;
        assert_eq!(code(&call(&runtime, "draft").await), "AGENT_CIRCUIT_OPEN");
        pass(s(4)).await;
        assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen);
        assert_eq!(codes(&runtime, "draft", 5).await, [("OK".to_owned(), 5)].into());
        let seen: Vec<_> = changes(&mut events).into_iter().map(|(breaker, to, _)| (breaker, to)).collect();
        let of_draft = |to| ("agent:draft".to_owned(), to);
        assert_eq!(seen, [StateName::ForcedOpen, StateName::HalfOpen, StateName::Closed].map(of_draft));
    }
}

#[tokio::test(start_paused = true)]
async fn deaths_in_quarantine_double_the_wait() {
    let backend = Scripted::always(Answer::Good);
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    crash(&runtime, Part::Agent("draft"), 6).await;
    for back_off in [1, 2, 4, 8, 16, 32, 60, 60] {
        let before = restarts(&runtime, "draft");
        // It is not there before its back-off is over: the fault that would kill it finds nobody.
        pass(s(back_off) - ms(10)).await;
        crash(&runtime, Part::Agent("draft"), 1).await;
        assert_eq!(restarts(&runtime, "draft"), before, "{back_off} s");
        pass(ms(20)).await;
        crash(&runtime, Part::Agent("draft"), 1).await;
        assert_eq!(restarts(&runtime, "draft"), before + 1, "{back_off} s");
    }
    assert_eq!(state(&runtime, "agent:draft"), StateName::ForcedOpen);
    pass(s(60 + 61)).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen);
}

#[tokio::test(start_paused = true)]
async fn a_quarantine_does_not_end_what_an_operator_began() {
    let backend = Scripted::always(Answer::Good);
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    runtime.act("agent:draft", BreakerAct::ForceOpen).unwrap();
    settle().await;
    crash(&runtime, Part::Agent("draft"), 6).await;
    pass(s(300)).await;
    let refused = call(&runtime, "draft").await;
    assert_eq!((state(&runtime, "agent:draft"), detail(&refused, "reason")), (StateName::ForcedOpen, "forced".into()));
}

#[tokio::test(start_paused = true)]
async fn a_quarantine_that_no_supervisor_heard_of_begins_with_the_next() {
    let backend = Scripted::always(Answer::Good);
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    // The supervisor dies so often that it is not back for some seconds; meanwhile the agent dies six times.
    crash(&runtime, Part::Supervisor, 22).await;
    crash(&runtime, Part::Agent("draft"), 6).await;
    assert_eq!((restarts(&runtime, "draft"), state(&runtime, "agent:draft")), (6, StateName::Closed));
    pass(s(10)).await;
    assert_eq!(detail(&call(&runtime, "draft").await, "reason"), "crash_loop");
    pass(s(62)).await;
    assert_eq!(codes(&runtime, "draft", 5).await, [("OK".to_owned(), 5)].into());
}

#[tokio::test(start_paused = true)]
async fn gates_hold_while_the_supervisor_is_restarted() {
    let (runtime, backends) = four_agents().await;
    backends[1].now(Answer::ending(watertight::model::facts::Ending::BadReply));
    codes(&runtime, "draft", 5).await;
    let opened = runtime.breaker("agent:draft").unwrap();
    let (_, held) = hold(&runtime, "meta", &backends[3], 5).await;
    for _ in 0..50 {
        runtime.crash(Part::Supervisor).unwrap();
        assert_eq!(code(&call(&runtime, "draft").await), "AGENT_CIRCUIT_OPEN");
        for of in ["style", "review"] {
            assert_eq!(code(&call(&runtime, of).await), "OK");
        }
        settle().await;
    }
    assert_eq!(runtime.breaker("agent:draft").unwrap(), opened);
    drop(held);
    settle().await;
    for of in FOUR {
        assert_eq!(runtime.agent(of).unwrap().in_flight(), 0, "{of}");
    }
    // Fifty deaths slow its restarts down, but it comes back and carries on where it was.
    backends[1].now(Answer::Good);
    pass(s(120)).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::HalfOpen);
    assert_eq!(codes(&runtime, "draft", 5).await, [("OK".to_owned(), 5)].into());
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
    // And a single death much later is as cheap as the first.
    pass(s(600)).await;
    crash(&runtime, Part::Supervisor, 1).await;
    backends[1].now(Answer::status(503));
    codes(&runtime, "draft", 5).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Open);
}

#[tokio::test(start_paused = true)]
async fn trials_that_are_out_when_the_supervisor_dies_wedge_nothing() {
    for trials_out in 1..=5 {
        for early in [true, false] {
            let mut settings = agent("draft", "local");
            settings.breaker.early_verdict = early;
            let backend = Scripted::always(Answer::status(503));
            let runtime = one_agent(settings, backend.clone()).await;
            codes(&runtime, "draft", 5).await;
            pass(s(30)).await;
            let (admitted, held) = hold(&runtime, "draft", &backend, trials_out).await;
            assert_eq!(admitted, trials_out);
            crash(&runtime, Part::Supervisor, 1).await;
            // Whatever was out is void; there are five trials again, and not one more when the old ones come back.
            let (admitted, more) = hold(&runtime, "draft", &backend, 9 - trials_out).await;
            assert_eq!(admitted, 5.min(9 - trials_out), "{trials_out} out");
            drop(held);
            settle().await;
            assert_eq!(hold(&runtime, "draft", &backend, 9).await.0, 5 - 5.min(9 - trials_out), "{trials_out} out");
            drop(more);
            settle().await;
            backend.now(Answer::Good);
            assert_eq!(codes(&runtime, "draft", 5).await, [("OK".to_owned(), 5)].into());
            assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn trials_taken_or_ended_while_nobody_supervises_wedge_nothing() {
    let backend = Scripted::always(Answer::status(503));
    let mut settings = agent("draft", "local");
    settings.breaker.early_verdict = false;
    let runtime = one_agent(settings, backend.clone()).await;
    codes(&runtime, "draft", 5).await;
    // So many deaths that the next start waits for some seconds.
    crash(&runtime, Part::Supervisor, 23).await;
    pass(s(30)).await;
    crash(&runtime, Part::Supervisor, 1).await;
    backend.now(Answer::Good);
    for _ in 0..20 {
        let ended = code(&call(&runtime, "draft").await);
        assert!(["OK", "AGENT_CIRCUIT_OPEN"].contains(&ended.as_str()), "{ended}");
    }
    pass(s(120)).await;
    codes(&runtime, "draft", 5).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn transitions_are_told_after_a_restart_too() {
    let backend = Scripted::always(Answer::status(503));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    let mut events = runtime.breaker_events();
    codes(&runtime, "draft", 5).await;
    crash(&runtime, Part::Supervisor, 1).await;
    pass(s(30)).await;
    let seen: Vec<_> = changes(&mut events).into_iter().map(|(_, to, reason)| (to, reason)).collect();
    assert_eq!(seen, [(StateName::Open, Reason::Consecutive), (StateName::HalfOpen, Reason::OpenElapsed)]);
}
