//! Published gates and the supervisor behind them.

use std::time::Duration;

use watertight::policy::breaker::state::StateName;

use crate::kit::{Answer, Scripted, agent, call, call_later, code, one_agent, pass, settle};

#[tokio::test(start_paused = true)]
async fn five_failures_in_a_row_open_it_five_trials_close_it() {
    let backend = Scripted::always(Answer::status(503));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    for _ in 0..5 {
        assert_eq!(code(&call(&runtime, "draft").await), "AGENT_ERROR");
    }
    let refused = call(&runtime, "draft").await.unwrap_err();
    assert_eq!(refused.envelope.details["breaker"], "agent:draft");
    assert_eq!(refused.envelope.details["reason"], "consecutive");
    assert_eq!(refused.envelope.retry_after, Some(30.0));
    assert_eq!(backend.count(), 5);
    backend.now(Answer::Good.after(Duration::from_secs(1)));
    pass(Duration::from_secs(30)).await;
    assert_eq!(runtime.breaker("agent:draft").unwrap().state, StateName::HalfOpen);
    let calls: Vec<_> = (0..20).map(|_| call_later(&runtime, "draft")).collect();
    let mut good = 0;
    for call in calls {
        let result = call.await.unwrap();
        good += usize::from(result.is_ok());
        if let Err(error) = result {
            assert!(error.envelope.retry_after.unwrap() >= 1.0);
        }
    }
    settle().await;
    assert_eq!(good, 5);
    assert_eq!(runtime.breaker("agent:draft").unwrap().state, StateName::Closed);
}
