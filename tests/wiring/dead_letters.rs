//! Calls that kill are put aside the second time: nobody makes them again until an operator forgives them.

use std::sync::{Arc, Mutex};

use watertight::{
    policy::breaker::state::StateName,
    runtime::{
        call::{CallContext, CallError, CallReply},
        dead_letters::{DeadLetterBox, SUSPECT_AGE_MAX},
        engine::Runtime,
        journal::{DeadCause, DeadLetter},
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, code, pass, provider, settle},
    support::{call_with, detail, ms, state},
};

/// What was put aside, as a journal would see it.
#[derive(Default)]
struct Seen(Mutex<Vec<DeadLetter>>);

impl DeadLetterBox for Seen {
    fn put_aside(&self, letter: DeadLetter) {
        self.0.lock().unwrap().push(letter);
    }
}

/// An agent that panics over everything that has a key beginning with `bad`.
async fn frail() -> (Runtime, Arc<Scripted>, Arc<Seen>) {
    let backend = Scripted::new(
        |request, _| if request.idempotency_key.starts_with("bad") { Answer::Panic } else { Answer::Good },
    );
    let seen = Arc::new(Seen::default());
    let mut settings = agent("draft", "local");
    settings.restart.max = u32::MAX;
    let builder = builder().provider(provider("local")).dead_letter_box(seen.clone());
    (builder.agent(settings, backend.clone()).start().await.unwrap(), backend, seen)
}

async fn keyed(runtime: &Runtime, key: &str, tenant: Option<&str>) -> Result<CallReply, CallError> {
    let context = CallContext {
        idempotency_key: Some(key.to_owned()),
        tenant: tenant.map(str::to_owned),
        ..CallContext::default()
    };
    call_with(runtime, "draft", context).await
}

#[tokio::test(start_paused = true)]
async fn a_call_that_panics_twice_is_made_no_more() {
    let (runtime, backend, seen) = frail().await;
    assert_eq!(code(&keyed(&runtime, "bad/1", Some("a")).await), "AGENT_RESTARTED");
    assert!(runtime.dead_letters().is_empty());
    for attempts in [2, 2, 2] {
        let dead = keyed(&runtime, "bad/1", Some("a")).await;
        assert_eq!((code(&dead), detail(&dead, "reason")), ("INTERNAL".into(), "dead_letter".into()));
        let error = dead.unwrap_err();
        assert!(!error.envelope.retryable && error.exhausted);
        assert_eq!(backend.count(), attempts, "the second kill is the last");
    }
    let letters = runtime.dead_letters();
    assert_eq!(letters, *seen.0.lock().unwrap(), "told outside too, once");
    let letter = &letters[0];
    assert_eq!((letter.cause, letter.agent.as_str()), (DeadCause::KilledTwice, "draft"));
    assert_eq!(letter.owner.tenant.as_deref(), Some("a"));
    assert_eq!((letter.idempotency_key.as_deref(), letter.run_id.as_deref()), (Some("bad/1"), None));
    // Nobody else is concerned: another tenant with the same key, other keys, calls without one; and no breaker.
    assert_eq!(code(&keyed(&runtime, "bad/1", Some("b")).await), "AGENT_RESTARTED");
    assert_eq!(code(&keyed(&runtime, "good", Some("a")).await), "OK");
    assert_eq!(code(&crate::kit::call(&runtime, "draft").await), "OK");
    assert_eq!(state(&runtime, "agent:draft"), StateName::Closed);
    settle().await;
    assert_eq!(runtime.agent("draft").unwrap().in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_forgiven_is_made_again() {
    let (runtime, backend, _) = frail().await;
    for _ in 0..2 {
        let _ = keyed(&runtime, "bad/1", None).await;
    }
    assert_eq!(runtime.forgive("bad/2"), 0);
    assert_eq!(code(&keyed(&runtime, "bad/1", None).await), "INTERNAL");
    assert_eq!((runtime.forgive("bad/1"), runtime.dead_letters().len()), (1, 0));
    backend.now(Answer::Good);
    assert_eq!(code(&keyed(&runtime, "bad/1", None).await), "OK");
    // Its earlier kills are forgotten too.
    backend.now(Answer::Panic);
    assert_eq!(code(&keyed(&runtime, "bad/1", None).await), "AGENT_RESTARTED");
    assert_eq!(code(&keyed(&runtime, "bad/1", None).await), "INTERNAL");
}

#[tokio::test(start_paused = true)]
async fn a_kill_long_ago_is_forgotten() {
    let (runtime, _, _) = frail().await;
    for _ in 0..3 {
        assert_eq!(code(&keyed(&runtime, "bad/1", None).await), "AGENT_RESTARTED");
        pass(SUSPECT_AGE_MAX + ms(1)).await;
    }
    assert!(runtime.dead_letters().is_empty());
}

#[tokio::test(start_paused = true)]
async fn calls_without_a_key_are_never_put_aside() {
    let (runtime, backend, _) = frail().await;
    backend.now(Answer::Panic);
    for _ in 0..5 {
        assert_eq!(code(&crate::kit::call(&runtime, "draft").await), "AGENT_RESTARTED");
    }
    assert!(runtime.dead_letters().is_empty());
}
