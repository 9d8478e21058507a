//! Keys of a provider: what is the key's fault stays with the key.

use std::{sync::Arc, time::Duration};

use watertight::{
    model::{
        facts::{Ending, QuotaReset},
        reply::AttemptFailure,
    },
    policy::breaker::state::{Reason, StateName},
    runtime::{engine::Runtime, settings::ProviderSettings, supervisor::BreakerAct},
};

use crate::{
    kit::{Answer, Scripted, agent, call, call_later, code, name, pass, provider, settle},
    support::{Call, agents_on, changes, codes, detail, s, state},
};

const KEY: &str = "key:vendor/main";

async fn keyed() -> (Runtime, Vec<Arc<Scripted>>) {
    let vendor = ProviderSettings { key: Some(name("main")), ..provider("vendor") };
    agents_on(vendor, vec![agent("draft", "vendor"), agent("review", "vendor")]).await
}

fn spent(reset: QuotaReset) -> Answer {
    let ending = Ending::Status {
        status: 429,
        retryable: Some(true),
        content_filter: false,
        context_too_long: false,
        quota_spent: Some(reset),
    };
    let mut failure = AttemptFailure::new(ending, "quota");
    failure.status = Some(429);
    Answer::Fail(failure)
}

#[tokio::test(start_paused = true)]
async fn too_many_requests_are_the_keys_fault_only() {
    let (runtime, backends) = keyed().await;
    let mut events = runtime.breaker_events();
    backends[0].now(Answer::status(429));
    codes(&runtime, "draft", 10).await;
    assert_eq!(changes(&mut events), [(KEY.to_owned(), StateName::Open, Reason::FailureShare)]);
    for breaker in ["agent:draft", "provider:vendor"] {
        assert_eq!(runtime.breaker(breaker).unwrap().counts.entries, 0, "{breaker}");
    }
    let refused = call(&runtime, "review").await;
    assert_eq!((code(&refused), detail(&refused, "breaker")), ("AGENT_CIRCUIT_OPEN".into(), KEY.into()));
}

#[tokio::test(start_paused = true)]
async fn slowness_and_outages_are_not_the_keys() {
    let (runtime, backends) = keyed().await;
    for answer in [Answer::Good.after(s(40)), Answer::status(503)] {
        backends[0].now(answer);
        for _ in 0..12 {
            drop(call(&runtime, "draft").await);
            assert_eq!(code(&call(&runtime, "review").await), "OK");
        }
        let key = runtime.breaker(KEY).unwrap();
        assert_eq!((key.state, key.counts.slow, key.counts.failed), (StateName::Closed, 0, 0));
    }
    assert_ne!(state(&runtime, "agent:draft"), StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_key_is_shut_until_somebody_acts() {
    for status in [401, 403] {
        let (runtime, backends) = keyed().await;
        backends[0].now(Answer::status(status));
        let failed = call(&runtime, "draft").await.unwrap_err();
        assert_eq!(failed.envelope.error_code.as_str(), "AGENT_ERROR");
        assert_eq!((failed.envelope.http_status, failed.envelope.retryable), (502, false));
        assert!(failed.exhausted && !failed.nothing_sent);
        pass(s(24 * 3_600)).await;
        let refused = call(&runtime, "review").await;
        assert_eq!((detail(&refused, "breaker"), detail(&refused, "reason")), (KEY.into(), "key_rejected".into()));
        assert_eq!(refused.as_ref().unwrap_err().envelope.retry_after, None, "nobody knows when");
        assert_eq!(backends[1].count(), 0);
        runtime.act(KEY, BreakerAct::Reset).unwrap();
        settle().await;
        assert_eq!(code(&call(&runtime, "review").await), "OK");
    }
}

/// The old key's calls come back after the new one was put in.
#[tokio::test(start_paused = true)]
async fn a_late_rejection_does_not_shut_the_new_key() {
    let (runtime, backends) = keyed().await;
    backends[0].now(Answer::status(401).after(s(5)));
    let late = Call(call_later(&runtime, "draft"));
    settle().await;
    runtime.act(KEY, BreakerAct::Reset).unwrap();
    settle().await;
    drop(late.end().await);
    settle().await;
    assert_eq!(state(&runtime, KEY), StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_late_result_does_not_undo_an_operators_act() {
    for (answer, act, stays) in [
        (spent(QuotaReset::In(s(60))), BreakerAct::ForceOpen, StateName::ForcedOpen),
        (spent(QuotaReset::In(s(60))), BreakerAct::Disable, StateName::Disabled),
        (Answer::status(401), BreakerAct::MetricsOnly, StateName::MetricsOnly),
    ] {
        let (runtime, backends) = keyed().await;
        backends[0].now(answer.after(s(5)));
        let late = Call(call_later(&runtime, "draft"));
        settle().await;
        runtime.act(KEY, act).unwrap();
        drop(late.end().await);
        pass(s(100)).await;
        assert_eq!(state(&runtime, KEY), stays);
    }
}

#[tokio::test(start_paused = true)]
async fn a_spent_quota_is_cooled_until_its_reset() {
    for (reset, until) in [(QuotaReset::In(s(900)), s(900)), (QuotaReset::Unknown, s(300))] {
        let (runtime, backends) = keyed().await;
        backends[0].now(spent(reset));
        let failed = call(&runtime, "draft").await;
        assert_eq!((code(&failed), backends[0].count()), ("QUOTA_SPENT".into(), 1));
        let failed = failed.unwrap_err();
        assert!(!failed.envelope.retryable && failed.exhausted);
        assert_eq!(failed.envelope.http_status, 402);
        let refused = call(&runtime, "review").await.unwrap_err();
        assert_eq!(refused.envelope.error_code.as_str(), "QUOTA_SPENT");
        assert_eq!(refused.envelope.retry_after, Some(until.as_secs_f64()));
        assert!(!refused.envelope.retryable && refused.nothing_sent);
        pass(until - s(1)).await;
        assert_eq!(code(&call(&runtime, "review").await), "QUOTA_SPENT");
        pass(s(1)).await;
        assert_eq!(code(&call(&runtime, "review").await), "OK");
    }
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_may_be_back_is_not_called_spent() {
    let (runtime, backends) = keyed().await;
    backends[0].now(spent(QuotaReset::In(s(60))));
    drop(call(&runtime, "draft").await);
    pass(s(60)).await;
    let (admitted, _held) = crate::support::hold(&runtime, "draft", &backends[0], 5).await;
    assert_eq!(admitted, 5);
    let refused = call(&runtime, "review").await;
    assert_eq!((code(&refused), detail(&refused, "breaker")), ("AGENT_CIRCUIT_OPEN".into(), KEY.into()));
    assert!(refused.unwrap_err().envelope.retryable);
}

/// A 429 with a pause that nobody would sleep is a spent quota, whatever its code.
#[tokio::test(start_paused = true)]
async fn a_far_retry_after_is_a_spent_quota() {
    let (runtime, backends) = keyed().await;
    backends[0].now(Answer::status_after(429, s(600)));
    assert_eq!(code(&call(&runtime, "draft").await), "QUOTA_SPENT");
    assert_eq!(call(&runtime, "draft").await.unwrap_err().envelope.retry_after, Some(600.0));
}

#[tokio::test(start_paused = true)]
async fn the_later_deadline_wins() {
    for (first, second) in [(100, 500), (500, 100)] {
        let (runtime, backends) = keyed().await;
        backends[0].now(spent(QuotaReset::In(s(first))).after(s(1)));
        backends[1].now(spent(QuotaReset::In(s(second))).after(s(2)));
        let both = [Call(call_later(&runtime, "draft")), Call(call_later(&runtime, "review"))];
        for call in both {
            drop(call.end().await);
        }
        settle().await;
        let wait = call(&runtime, "draft").await.unwrap_err().envelope.retry_after.unwrap();
        let at = Duration::from_secs_f64(wait).as_secs();
        assert!((498..=500).contains(&at), "{first} then {second}: {at}");
    }
}

/// Without a key the agent's target stands for it.
#[tokio::test(start_paused = true)]
async fn an_agent_without_a_key_answers_for_itself() {
    let (runtime, backends) =
        agents_on(provider("vendor"), vec![agent("draft", "vendor"), agent("review", "vendor")]).await;
    backends[0].now(Answer::status(429));
    codes(&runtime, "draft", 10).await;
    assert_eq!(state(&runtime, "agent:draft"), StateName::Open);
    assert_eq!(code(&call(&runtime, "review").await), "OK");
    backends[1].now(Answer::status(401));
    let failed = call(&runtime, "review").await.unwrap_err();
    assert_eq!((failed.envelope.http_status, failed.envelope.retryable), (401, false));
    assert_eq!(state(&runtime, "agent:review"), StateName::Closed);
}
