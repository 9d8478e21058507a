//! Readers of an answer under way that take their time: it is theirs, and neither timeout nor slowness of the agent.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use watertight::{
    model::reply::{AttemptFailure, Reply},
    policy::slow::SlowBy,
    runtime::{
        call::{CallContext, CallRequest},
        ports::{AttemptRequest, Backend, BoxFuture, Progress},
        settings::{AgentSettings, Timeouts},
    },
};

use crate::kit::{agent, builder, code, provider, settle};

const PIECES: usize = 30;

/// Says piece after piece, each after a second; then it may hang.
struct Talker {
    hangs: bool,
}

impl Backend for Talker {
    fn attempt<'a>(
        &'a self,
        _: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async move {
            for _ in 0..PIECES {
                sleep(Duration::from_secs(1)).await;
                progress.content("piece ").await;
            }
            if self.hangs {
                std::future::pending::<()>().await;
            }
            Ok(Reply { output: json!("all"), usage: None, finish_reason: None, status: Some(200) })
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_no_slow_agent() {
    let seconds = Duration::from_secs;
    for (reads_every_s, hangs, deadline_s, ended, took_s) in [
        (0, false, None, "", 30),
        // Ten minutes of a reader: no timeout of an agent that spoke for half a minute.
        (20, false, None, "", 600),
        // One that hangs in the end has its own time, and no more.
        (20, true, None, "AGENT_TIMEOUT", 0),
        (0, true, None, "AGENT_TIMEOUT", 40),
        // A deadline is one, whoever is slow.
        (20, false, Some(100), "DEADLINE_EXCEEDED", 100),
    ] {
        for slow_by in [SlowBy::Total, SlowBy::FirstToken, SlowBy::Pace(0.5)] {
            let timeouts = Timeouts { attempt: Some(seconds(40)), call: seconds(40), ..Timeouts::default() };
            let mut talker = AgentSettings { timeouts, slow_by, ..agent("draft", "local") };
            talker.breaker.slow_call = seconds(35);
            let builder = builder().provider(provider("local")).agent(talker, Arc::new(Talker { hangs }));
            let runtime = builder.start().await.unwrap();
            let (deltas, mut pieces) = tokio::sync::mpsc::channel(1);
            let reader = tokio::spawn(async move {
                while pieces.recv().await.is_some() {
                    sleep(seconds(reads_every_s)).await;
                }
            });
            let context = CallContext { timeout: deadline_s.map(seconds), ..CallContext::default() };
            let request = CallRequest { deltas: Some(deltas), context, ..CallRequest::of(Value::Null) };
            let began = Instant::now();
            let result = runtime.agent("draft").unwrap().call(request).await;
            let took = began.elapsed();
            let what = format!("{reads_every_s} {hangs} {slow_by:?}: {result:?} after {took:?}");
            assert_eq!(if result.is_ok() { String::new() } else { code(&result) }, ended, "{what}");
            if took_s > 0 {
                assert!(took >= seconds(took_s).mul_f64(0.9) && took <= seconds(took_s + 40), "{what}");
            }
            settle().await;
            let counts = runtime.breaker("agent:draft").unwrap().counts;
            let failed = u32::from(ended == "AGENT_TIMEOUT");
            assert_eq!(counts.failed, failed, "{what}");
            if failed == 0 {
                assert_eq!(counts.slow, 0, "{what}");
            }
            reader.abort();
        }
    }
}
