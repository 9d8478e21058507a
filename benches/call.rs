//! What a whole supervised call of an agent that does nothing costs, through the actors; others' guards and bare channels beside it. And
//! how long a dead actor stays away.
#![allow(clippy::unwrap_used, reason = "a bench that cannot be set up has no figure")]

mod kit;

use std::{
    convert::Infallible,
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use criterion::Criterion;
use failsafe::futures::CircuitBreaker as _;
use tokio::{
    runtime::Runtime as Tokio,
    sync::{mpsc, oneshot},
};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_resilience::prelude::{BulkheadLayer, CircuitBreakerLayer};
use watertight::{
    model::facts::Ending,
    runtime::{
        call::CallContext,
        engine::{Part, Runtime},
        handle::AgentHandle,
        settings::{AgentSettings, RestartSettings},
        supervisor::BreakerAct,
    },
};

/// Callers beside each other.
const CALLERS: [u64; 2] = [1, 64];
/// Deaths that the restart is measured over.
const DEATHS: usize = 5_000;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let tokio = kit::two_workers();
    let runtime = tokio.block_on(kit::nothing_doers(&["draft", "review"]));
    supervised(&mut criterion, &tokio, &runtime);
    peers(&mut criterion, &tokio);
    criterion.final_summary();
    tokio.block_on(runtime.stop(Duration::ZERO));
    tokio.block_on(restart());
}

fn supervised(criterion: &mut Criterion, tokio: &Tokio, runtime: &Runtime) {
    let mut group = criterion.benchmark_group("call");
    let handle = runtime.agent("draft").unwrap();
    for callers in CALLERS {
        let refused = Arc::new(AtomicU64::new(0));
        kit::row(&mut group, &format!("watertight/{callers}_callers"), 1, |iterations| {
            kit::beside_each_other(tokio, callers, iterations, |share| {
                let (handle, refused) = (handle.clone(), Arc::clone(&refused));
                async move {
                    refused.fetch_add(kit::call_until_answered(&handle, share).await, Ordering::Relaxed);
                }
            });
        });
        println!("(refused for want of a slot: {})\n", refused.load(Ordering::Relaxed));
    }
    let guard = runtime.agent("draft").unwrap();
    kit::row(&mut group, "watertight/guards_around_outside_work", 1, |iterations| {
        kit::beside_each_other(tokio, 1, iterations, |share| {
            let guard = guard.clone();
            async move { work_outside(&guard, share).await }
        });
    });
    let shut = runtime.agent("review").unwrap();
    runtime.act("agent:review", BreakerAct::ForceOpen).unwrap();
    tokio.block_on(async {
        while shut.call(kit::request()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    kit::row(&mut group, "watertight/refused_with_envelope", 1, |iterations| {
        kit::beside_each_other(tokio, 1, iterations, |share| {
            let shut = shut.clone();
            async move {
                for _ in 0..share {
                    black_box(shut.call(kit::request()).await.unwrap_err());
                }
            }
        });
    });
    group.finish();
}

/// Work that the runtime does not do itself: admission, nothing, outcome. Where slots lag behind, the supervisor gets its turn.
async fn work_outside(guard: &AgentHandle, calls: u64) {
    let context = CallContext::default();
    for _ in 0..calls {
        let admission = loop {
            match guard.enter(&context) {
                Ok(admission) => break admission,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        admission.finish(Ending::Success);
    }
}

fn peers(criterion: &mut Criterion, tokio: &Tokio) {
    let mut group = criterion.benchmark_group("call_peers");
    let (bare, mut inbox) = mpsc::channel::<oneshot::Sender<()>>(kit::PLENTY as usize);
    tokio.spawn(async move {
        while let Some(reply) = inbox.recv().await {
            let _ = reply.send(());
        }
    });
    let breaker = failsafe::Config::new().build();
    let service = ServiceBuilder::new()
        .layer(CircuitBreakerLayer::builder().sliding_window_size(20).minimum_number_of_calls(10).build().unwrap())
        .layer(BulkheadLayer::builder().max_concurrent_calls(kit::PLENTY as usize).reject_when_full().build().unwrap())
        .service(service_fn(|(): ()| async { Ok::<(), Infallible>(()) }));
    for callers in CALLERS {
        kit::row(&mut group, &format!("tokio_mpsc_and_oneshot/{callers}_callers"), 1, |iterations| {
            kit::beside_each_other(tokio, callers, iterations, |share| {
                let bare = bare.clone();
                async move {
                    for _ in 0..share {
                        let (reply, answer) = oneshot::channel();
                        bare.send(reply).await.unwrap();
                        answer.await.unwrap();
                    }
                }
            });
        });
        kit::row(&mut group, &format!("tower_resilience_breaker_and_bulkhead/{callers}_callers"), 1, |iterations| {
            kit::beside_each_other(tokio, callers, iterations, |share| {
                let mut service = service.clone();
                async move {
                    for _ in 0..share {
                        service.ready().await.unwrap().call(()).await.unwrap();
                    }
                }
            });
        });
        kit::row(&mut group, &format!("failsafe_breaker/{callers}_callers"), 1, |iterations| {
            kit::beside_each_other(tokio, callers, iterations, |share| {
                let breaker = breaker.clone();
                async move {
                    for _ in 0..share {
                        breaker.call(std::future::ready(Ok::<(), ()>(()))).await.unwrap();
                    }
                }
            });
        });
    }
    group.finish();
}

/// From an actor's death, as a fault would make it, to its next answer. Who calls too early is told so and calls again at once.
async fn restart() {
    let restart = RestartSettings { max: u32::MAX, within: Duration::from_secs(60) };
    let mortal = AgentSettings { restart, ..kit::agent("draft", kit::PLENTY) };
    let runtime = kit::builder().agent(mortal, Arc::new(kit::Nothing)).start().await.unwrap();
    let runtime = Arc::new(runtime);
    // Measured on a worker thread: waking the main thread is no part of a restart.
    let measuring = Arc::clone(&runtime);
    let mut times = tokio::spawn(async move {
        let handle = measuring.agent("draft").unwrap();
        let mut times = Vec::with_capacity(DEATHS);
        for _ in 0..DEATHS {
            kit::call_in_turn(&handle, 1).await;
            times.push(one_death(&measuring, &handle).await);
        }
        times
    })
    .await
    .unwrap();
    println!("restart of a dead actor to its next answer, {DEATHS} deaths:");
    for share in [0.5, 0.9, 0.99, 0.999] {
        println!("  p{:<5} {:>9.1} us", share * 100.0, kit::percentile(&mut times, share).as_secs_f64() * 1e6);
    }
}

async fn one_death(runtime: &Runtime, handle: &AgentHandle) -> Duration {
    let died = Instant::now();
    runtime.crash(Part::Agent("draft")).unwrap();
    while handle.call(kit::request()).await.is_err() {
        tokio::task::yield_now().await;
    }
    died.elapsed()
}
