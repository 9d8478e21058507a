//! An agent whose adapter says that it is not up yet: neither failure nor trial, and nothing was sent.

use std::time::Duration;

use watertight::{
    model::{facts::Ending, reply::AttemptFailure},
    policy::{breaker::state::StateName, retry_settings::RetrySettings},
};

use crate::kit::{Answer, Scripted, agent, call, code, one_agent, pass};

fn warming() -> Answer {
    let mut failure = AttemptFailure::new(Ending::OwnRefusal, "not up yet");
    failure.retry_after = Some(Duration::from_secs(1));
    Answer::Fail(failure)
}

#[tokio::test(start_paused = true)]
async fn it_is_no_failure_and_may_be_asked_again() {
    let backend = Scripted::always(warming());
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    for _ in 0..30 {
        let refused = call(&runtime, "draft").await.unwrap_err();
        let envelope = &refused.envelope;
        assert_eq!((envelope.error_code.as_str(), envelope.http_status), ("AGENT_WARMING", 503));
        assert_eq!((envelope.retryable, envelope.retry_after), (true, Some(1.0)));
        assert_eq!((refused.nothing_sent, refused.exhausted), (true, false));
    }
    backend.now(Answer::Good);
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    let breaker = runtime.breaker("agent:draft").unwrap();
    assert_eq!(breaker.state, StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn trials_go_back() {
    let backend = Scripted::always(Answer::status(503));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    for _ in 0..5 {
        let _ = call(&runtime, "draft").await;
    }
    pass(Duration::from_secs(30)).await;
    backend.now(warming());
    for _ in 0..12 {
        assert_eq!(code(&call(&runtime, "draft").await), "AGENT_WARMING");
    }
    assert_eq!(runtime.breaker("agent:draft").unwrap().state, StateName::HalfOpen);
    backend.now(Answer::Good);
    for _ in 0..5 {
        assert_eq!(code(&call(&runtime, "draft").await), "OK");
    }
    assert_eq!(runtime.breaker("agent:draft").unwrap().state, StateName::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_sent_once_is_not_unsent_by_a_later_refusal() {
    let mut settings = agent("draft", "local");
    settings.retry = RetrySettings { attempts_max: 2, ..RetrySettings::default() };
    let backend = Scripted::new(|_, attempt| if attempt == 0 { Answer::status(503) } else { warming() });
    let runtime = one_agent(settings, backend.clone()).await;
    let refused = call(&runtime, "draft").await.unwrap_err();
    assert_eq!((backend.count(), refused.envelope.error_code.as_str()), (2, "AGENT_WARMING"));
    assert!(!refused.nothing_sent, "the first attempt was paid for");
}

#[tokio::test(start_paused = true)]
async fn who_is_told_not_to_try_again_does_not() {
    let mut settings = agent("draft", "local");
    settings.retry = RetrySettings { attempts_max: 3, ..RetrySettings::default() };
    let mut failure = AttemptFailure::new(Ending::status(503), "tried enough");
    failure.should_retry = Some(false);
    let backend = Scripted::always(Answer::Fail(failure));
    let runtime = one_agent(settings, backend.clone()).await;
    let failed = call(&runtime, "draft").await.unwrap_err();
    assert_eq!((backend.count(), failed.exhausted, failed.envelope.retryable), (1, true, true));
}
