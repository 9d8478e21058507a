//! The stop, and several runtimes in one process.

use watertight::policy::breaker::state::StateName;

use crate::{
    kit::{Answer, Scripted, agent, builder, call, call_later, code, one_agent, pass, provider, settle},
    support::{Call, changes, codes, ms, s, state},
};

#[tokio::test(start_paused = true)]
async fn what_is_in_flight_may_end_within_the_grace() {
    let backend = Scripted::always(Answer::Good.after(s(5)));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    let handle = runtime.agent("draft").unwrap();
    let running = Call(call_later(&runtime, "draft"));
    settle().await;
    let stopping = tokio::spawn(runtime.stop(s(10)));
    settle().await;
    let request = watertight::runtime::call::CallRequest::of(serde_json::Value::Null);
    let refused = handle.call(request).await;
    assert_eq!(code(&refused), "SHUTTING_DOWN");
    assert!(refused.unwrap_err().envelope.retryable);
    let before = tokio::time::Instant::now();
    assert_eq!(code(&running.end().await), "OK");
    stopping.await.unwrap();
    assert_eq!(before.elapsed(), s(5), "no longer than needed");
    settle().await;
    assert_eq!(handle.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_after_the_grace_is_aborted_and_told_so() {
    let mut settings = agent("draft", "local");
    settings.retry.attempts_max = 3;
    for answer in [Answer::Hang, Answer::status_after(503, s(10))] {
        let backend = Scripted::always(answer);
        let runtime = one_agent(settings.clone(), backend.clone()).await;
        let handle = runtime.agent("draft").unwrap();
        let running = Call(call_later(&runtime, "draft"));
        settle().await;
        let before = tokio::time::Instant::now();
        runtime.stop(s(2)).await;
        assert_eq!(before.elapsed(), s(2));
        let ended = running.end().await;
        assert_eq!(code(&ended), "SHUTTING_DOWN");
        assert!(!ended.unwrap_err().nothing_sent);
        settle().await;
        assert_eq!((backend.running.load(std::sync::atomic::Ordering::SeqCst), handle.in_flight()), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_queued_when_the_stop_begins_is_not_lost() {
    let backend = Scripted::always(Answer::Good.after(s(1)));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    let handle = runtime.agent("draft").unwrap();
    let mut queued = Box::pin(handle.call(watertight::runtime::call::CallRequest::of(serde_json::Value::Null)));
    assert!(futures_util::FutureExt::now_or_never(queued.as_mut()).is_none());
    let (ended, ()) = tokio::join!(queued, runtime.stop(s(5)));
    assert_eq!(code(&ended), "OK");
}

#[tokio::test(start_paused = true)]
async fn dropping_a_runtime_aborts_what_runs() {
    let backend = Scripted::always(Answer::Hang);
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    let handle = runtime.agent("draft").unwrap();
    let running = Call(call_later(&runtime, "draft"));
    settle().await;
    drop(runtime);
    assert_eq!(code(&running.end().await), "SHUTTING_DOWN");
    settle().await;
    assert_eq!((backend.running.load(std::sync::atomic::Ordering::SeqCst), handle.in_flight()), (0, 0));
    let request = watertight::runtime::call::CallRequest::of(serde_json::Value::Null);
    assert_eq!(code(&handle.call(request).await), "SHUTTING_DOWN");
}

#[tokio::test(start_paused = true)]
async fn several_runtimes_in_one_process_are_strangers() {
    let (ill, well) = (Scripted::always(Answer::status(503)), Scripted::always(Answer::Good));
    let first = one_agent(agent("draft", "local"), ill.clone()).await;
    let second = one_agent(agent("draft", "local"), well.clone()).await;
    let mut events = second.breaker_events();
    codes(&first, "draft", 5).await;
    assert_eq!((state(&first, "agent:draft"), state(&second, "agent:draft")), (StateName::Open, StateName::Closed));
    first.crash(watertight::runtime::engine::Part::Supervisor).unwrap();
    settle().await;
    first.stop(ms(1)).await;
    pass(s(60)).await;
    assert_eq!(codes(&second, "draft", 5).await, [("OK".to_owned(), 5)].into());
    assert_eq!((changes(&mut events), well.count()), (Vec::new(), 5));
}

#[tokio::test(start_paused = true)]
async fn a_runtime_without_agents_starts_and_stops() {
    let runtime = builder().provider(provider("local")).start().await.unwrap();
    assert!(runtime.agent("draft").is_none() && runtime.agents().is_empty());
    runtime.stop(s(1)).await;
    let again = one_agent(agent("draft", "local"), Scripted::always(Answer::Good)).await;
    assert_eq!(code(&call(&again, "draft").await), "OK");
}
