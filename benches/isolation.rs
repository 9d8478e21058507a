//! Whether healthy agents notice an ill one: their p99 while another agent on the same provider is flooded or dead, against their p99
//! while it is quiet, in interleaved pairs. Every healthy call takes 20 ms upstream.
#![allow(clippy::unwrap_used, reason = "a bench that cannot be set up has no figure")]

mod kit;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::Value;
use watertight::{
    model::{
        facts::Ending,
        reply::{AttemptFailure, Reply},
    },
    runtime::{
        engine::Runtime,
        handle::AgentHandle,
        ports::{AttemptRequest, Backend, BoxFuture, Progress},
        settings::ProviderSettings,
    },
};

const UPSTREAM: Duration = Duration::from_millis(20);
const HEALTHY: [&str; 3] = ["style", "review", "meta"];
const ILL: &str = "draft";
const SLOTS: u32 = 10;
/// Callers of each healthy agent, one after the other each. A slot is free a moment after its caller has the answer, so there are twice
/// as many slots.
const CALLERS: usize = 5;
/// Callers of the ill agent; most of them are refused, and come back after [`PAUSE`].
const FLOOD: usize = 200;
const PAUSE: Duration = Duration::from_millis(5);
const PHASE: Duration = Duration::from_secs(3);
const PAIRS: usize = 5;

/// What the ill agent goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sickness {
    /// Nobody calls it.
    Quiet,
    /// It is well, and called twenty times as often as it can answer.
    Saturated,
    /// It answers every call with 503, and is called as often.
    Dead,
}

/// The ill agent's work.
struct Moody(AtomicU8);

impl Backend for Moody {
    fn attempt<'a>(&'a self, _: &'a AttemptRequest, _: &'a Progress) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async {
            if self.0.load(Ordering::Relaxed) == Sickness::Dead as u8 {
                return Err(AttemptFailure::new(Ending::status(503), "dead"));
            }
            tokio::time::sleep(UPSTREAM).await;
            Ok(Reply::of(Value::Null))
        })
    }
}

/// What the ill agent's callers got.
#[derive(Default)]
struct Flood {
    answered: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

fn main() {
    let tokio = kit::two_workers();
    println!(
        "p99 of healthy agents, {PAIRS} interleaved pairs of {} s, {} ms upstream:",
        PHASE.as_secs(),
        UPSTREAM.as_millis()
    );
    for sickness in [Sickness::Saturated, Sickness::Dead] {
        let mut ratios = Vec::new();
        for pair in 1..=PAIRS {
            let (quiet, _) = tokio.block_on(phase(Sickness::Quiet));
            let (ill, flood) = tokio.block_on(phase(sickness));
            let ratio = ill.as_secs_f64() / quiet.as_secs_f64();
            let counts = [&flood.answered, &flood.refused, &flood.failed].map(|count| count.load(Ordering::Relaxed));
            println!(
                "  {sickness:?} {pair}: quiet {:.2} ms, ill {:.2} ms, ratio {ratio:.3}; ill agent: {} answered, {} refused, {} failed",
                quiet.as_secs_f64() * 1e3,
                ill.as_secs_f64() * 1e3,
                counts[0],
                counts[1],
                counts[2],
            );
            ratios.push(ratio);
        }
        ratios.sort_by(f64::total_cmp);
        println!("{sickness:?}: median ratio {:.3}", ratios[ratios.len() / 2]);
    }
}

/// One phase on a runtime of its own: the healthy agents' p99, and what the ill one's callers got.
async fn phase(sickness: Sickness) -> (Duration, Arc<Flood>) {
    let moody = Arc::new(Moody(AtomicU8::new(sickness as u8)));
    let well = || Arc::new(Moody(AtomicU8::new(Sickness::Quiet as u8)));
    let provider = ProviderSettings { slots: Some(4 * SLOTS), ..ProviderSettings::new(kit::name("local")) };
    let mut builder = Runtime::builder().seed(1).provider(provider).agent(kit::agent(ILL, SLOTS), moody);
    for agent in HEALTHY {
        builder = builder.agent(kit::agent(agent, SLOTS), well());
    }
    let runtime = builder.start().await.unwrap();
    let until = Instant::now() + PHASE;
    let flood = Arc::new(Flood::default());
    let flooding = if sickness == Sickness::Quiet { 0 } else { FLOOD };
    let flooders: Vec<_> =
        (0..flooding).map(|_| tokio::spawn(press(runtime.agent(ILL).unwrap(), until, Arc::clone(&flood)))).collect();
    let callers: Vec<_> = HEALTHY
        .iter()
        .flat_map(|agent| std::iter::repeat_n(agent, CALLERS))
        .map(|agent| tokio::spawn(measure(runtime.agent(agent).unwrap(), until)))
        .collect();
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await.unwrap());
    }
    for flooder in flooders {
        flooder.await.unwrap();
    }
    runtime.stop(Duration::ZERO).await;
    (kit::percentile(&mut times, 0.99), flood)
}

/// Calls one after the other; each must succeed. How long each took.
async fn measure(handle: AgentHandle, until: Instant) -> Vec<Duration> {
    let mut times = Vec::new();
    while Instant::now() < until {
        let began = Instant::now();
        kit::call_in_turn(&handle, 1).await;
        times.push(began.elapsed());
    }
    times
}

async fn press(handle: AgentHandle, until: Instant, flood: Arc<Flood>) {
    while Instant::now() < until {
        match handle.call(kit::request()).await {
            Ok(_) => flood.answered.fetch_add(1, Ordering::Relaxed),
            Err(error) if error.nothing_sent => flood.refused.fetch_add(1, Ordering::Relaxed),
            Err(_) => flood.failed.fetch_add(1, Ordering::Relaxed),
        };
        tokio::time::sleep(PAUSE).await;
    }
}
