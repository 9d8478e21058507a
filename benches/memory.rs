//! How much memory a runtime holds: idle, with a thousand agents more, with ten thousand calls in flight, and after rounds of them.
//! Reads the resident set from the kernel, so it says something on Linux only.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench that cannot be set up has no figure")]

mod kit;

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{sync::Notify, task::JoinHandle};
use watertight::{
    model::reply::{AttemptFailure, Reply},
    runtime::{
        engine::Runtime,
        ports::{AttemptRequest, Backend, BoxFuture, Progress},
    },
};

const AGENTS_FEW: usize = 5;
const AGENTS_MANY: usize = 1_000;
const CALLS: u32 = 10_000;
const ROUNDS: usize = 5;

/// An agent that answers when it is told to.
struct Held(Arc<Notify>);

impl Backend for Held {
    fn attempt<'a>(&'a self, _: &'a AttemptRequest, _: &'a Progress) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async {
            self.0.notified().await;
            Ok(Reply::of(Value::Null))
        })
    }
}

fn main() {
    let Some(start) = kit::resident_mib() else {
        println!("no /proc/self/statm here: nothing measured");
        return;
    };
    let tokio = kit::two_workers();
    tokio.block_on(async {
        println!("resident set: {start:.1} MiB before anything");
        let few = agents(AGENTS_FEW).await;
        let idle = show("idle, 5 agents", 0.0);
        let many = agents(AGENTS_MANY).await;
        show("1,000 idle agents more", idle);
        many.stop(Duration::ZERO).await;
        few.stop(Duration::ZERO).await;
        calls_in_flight().await;
    });
}

async fn agents(count: usize) -> Runtime {
    let mut builder = kit::builder();
    for agent in 0..count {
        builder = builder.agent(kit::agent(&format!("agent-{agent}"), 10), Arc::new(kit::Nothing));
    }
    builder.start().await.unwrap()
}

async fn calls_in_flight() {
    let free = Arc::new(Notify::new());
    let builder = kit::builder().agent(kit::agent("held", CALLS), Arc::new(Held(Arc::clone(&free))));
    let runtime = builder.start().await.unwrap();
    let handle = runtime.agent("held").unwrap();
    for round in 1..=ROUNDS {
        let before = kit::resident_mib().unwrap();
        let callers: Vec<JoinHandle<()>> = (0..CALLS)
            .map(|_| {
                let handle = handle.clone();
                tokio::spawn(async move { kit::call_in_turn(&handle, 1).await })
            })
            .collect();
        while handle.in_flight() < CALLS || handle.mailbox_depth() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        show(&format!("10,000 calls in flight, round {round}"), before);
        free.notify_waiters();
        for caller in callers {
            caller.await.unwrap();
        }
    }
    show("after the last round", 0.0);
    runtime.stop(Duration::ZERO).await;
}

/// Prints the resident set and gives it, in MiB.
fn show(what: &str, before: f64) -> f64 {
    let now = kit::resident_mib().unwrap();
    println!("{what:<36} {now:>7.1} MiB  (+{:.1})", now - before);
    now
}
