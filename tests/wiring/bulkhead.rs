//! Slots in front of the mailbox.

use std::time::Duration;

use crate::kit::{Answer, Scripted, agent, call, call_later, code, one_agent, settle};

#[tokio::test(start_paused = true)]
async fn a_burst_of_200_against_10_slots() {
    let backend = Scripted::always(Answer::Good.after(Duration::from_secs(1)));
    let runtime = one_agent(agent("draft", "local"), backend.clone()).await;
    let handle = runtime.agent("draft").unwrap();
    let calls: Vec<_> = (0..200).map(|_| call_later(&runtime, "draft")).collect();
    settle().await;
    assert!(handle.mailbox_depth() <= 10);
    let mut codes = std::collections::BTreeMap::new();
    for call in calls {
        *codes.entry(code(&call.await.unwrap())).or_insert(0) += 1;
    }
    settle().await;
    assert_eq!(codes, [("AGENT_BULKHEAD_FULL".to_owned(), 190), ("OK".to_owned(), 10)].into());
    assert_eq!(handle.in_flight(), 0);
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
}
