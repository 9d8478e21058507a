//! Real threads: what is counted by compare-and-swap stays exact whatever the scheduler does.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use watertight::{
    model::{clock::Timestamp, run::RunStatus},
    policy::breaker::{settings::HalfOpenBy, state::StateName},
    runtime::{
        call::{CallContext, CallRequest},
        engine::{Part, Runtime},
        parts::Parts,
        ports::Clock,
        run_handle::{RunHandle, RunRequest},
        settings::AgentSettings,
    },
    workflow::check,
};

use crate::{
    kit::{Answer, Scripted, agent, builder, call_later, code, name, one_agent, provider},
    support::{ms, s},
};

/// A clock in the test's hand; tokio's own timers run on real time and are too far away to matter.
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn unix_ms(&self, at: Timestamp) -> u64 {
        at.millis()
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(ms(5)).await;
    }
    panic!("never: {what}");
}

async fn opened(settings: AgentSettings, clock: Arc<HandClock>) -> (Runtime, Arc<Scripted>) {
    let backend = Scripted::always(Answer::status(503));
    let runtime =
        builder().clock(clock).provider(provider("local")).agent(settings, backend.clone()).start().await.unwrap();
    for _ in 0..5 {
        let _ = runtime.agent("draft").unwrap().call(CallRequest::of(serde_json::Value::Null)).await;
    }
    until("open", || runtime.breaker("agent:draft").unwrap().state == StateName::Open).await;
    (runtime, backend)
}

/// B02: a thousand callers in the same moment against a breaker whose open time is over: exactly five pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_thousand_callers_five_trials() {
    for round in 0..20 {
        let mut settings = agent("draft", "local");
        settings.slots = 100;
        let clock = Arc::new(HandClock(AtomicU64::new(0)));
        let (runtime, backend) = opened(settings, clock.clone()).await;
        backend.now(Answer::Hang);
        clock.0.store(31_000, Ordering::SeqCst);
        let refused = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..1_000)
            .map(|_| {
                let (handle, refused) = (runtime.agent("draft").unwrap(), refused.clone());
                tokio::spawn(async move {
                    let error = handle.call(CallRequest::of(serde_json::Value::Null)).await.unwrap_err();
                    if error.nothing_sent {
                        assert_eq!(error.envelope.error_code.as_str(), "AGENT_CIRCUIT_OPEN");
                        assert!(error.envelope.retry_after.unwrap() >= 1.0);
                        refused.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        until("995 refused", || refused.load(Ordering::SeqCst) == 995).await;
        until("5 sent", || backend.count() == 5 + 5).await;
        assert_eq!(runtime.agent("draft").unwrap().in_flight(), 5, "round {round}");
        drop(runtime);
        for caller in callers {
            caller.await.unwrap();
        }
    }
}

/// B02 again, with runs parked before the gate: they get their trials, the callers what is left, and five pass in all.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_thousand_callers_parked_runs_and_five_trials() {
    for round in 0..21 {
        let parked = round % 7;
        let mut settings = agent("draft", "local");
        settings.slots = 100;
        let clock = Arc::new(HandClock(AtomicU64::new(0)));
        let (runtime, backend) = opened(settings, clock.clone()).await;
        backend.now(Answer::Hang);
        let runs: Vec<_> = (0..parked).map(|_| one_step_run(&runtime)).collect();
        let is_parked = |run: &RunHandle| run.record().status == RunStatus::Parked;
        until("parked", || runs.iter().all(is_parked)).await;
        backend.requests.lock().unwrap().clear();
        clock.0.store(31_000, Ordering::SeqCst);
        let refused = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..1_000)
            .map(|_| {
                let (handle, refused) = (runtime.agent("draft").unwrap(), refused.clone());
                tokio::spawn(async move {
                    let error = handle.call(CallRequest::of(serde_json::Value::Null)).await.unwrap_err();
                    if error.nothing_sent {
                        assert!(error.envelope.retry_after.unwrap() >= 1.0);
                        refused.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        until("5 sent", || backend.requests.lock().unwrap().len() == 5).await;
        let of_runs = || backend.requests.lock().unwrap().iter().filter(|request| request.run_id.is_some()).count();
        assert_eq!(of_runs(), parked.min(5), "round {round}: parked runs come first");
        let direct = 5 - parked.min(5);
        until("the others refused", || refused.load(Ordering::SeqCst) == 1_000 - direct).await;
        assert_eq!((backend.count(), runtime.agent("draft").unwrap().in_flight()), (5 + 5, 5), "round {round}");
        drop(runtime);
        for caller in callers {
            caller.await.unwrap();
        }
    }
}

/// A run of one step of `draft`.
fn one_step_run(runtime: &Runtime) -> RunHandle {
    let text = "[workflow]\nname = \"one\"\noutput = \"none\"\n[[step]]\nid = \"draft\"\nagent = \"draft\"\n";
    let workflow = check::load("one.toml", text.as_bytes(), &[name("draft")].into()).unwrap();
    let (input, context) = (serde_json::Map::new(), CallContext::default());
    runtime.start_run(RunRequest { workflow: Arc::new(workflow), input, deadline: None, context }).unwrap()
}

/// Callers storm while the supervisor's own timer, late results and its restarts change the gate under them.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn five_trials_whoever_opens_the_gate() {
    for round in 0..24 {
        let mut settings = agent("draft", "local");
        settings.slots = 100;
        settings.breaker.open = ms(20);
        settings.breaker.open_max = ms(20);
        settings.breaker.half_open_by = if round % 2 == 0 { HalfOpenBy::Timer } else { HalfOpenBy::FirstCall };
        // Late results of the first generation keep arriving in the very moments in which it is turned half-open.
        let backend = Scripted::new(|_, number| match number {
            0..40 => Answer::status(404).after(ms(10 + number as u64 / 2)),
            40..45 => Answer::status(503),
            _ => Answer::Hang,
        });
        let runtime = one_agent(settings, backend.clone()).await;
        let late: Vec<_> = (0..40).map(|_| call_later(&runtime, "draft")).collect();
        until("40 sent", || backend.count() == 40).await;
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..5 {
            let _ = runtime.agent("draft").unwrap().call(CallRequest::of(serde_json::Value::Null)).await;
        }
        until("open", || runtime.breaker("agent:draft").unwrap().state != StateName::Closed).await;
        let storm: Vec<_> = (0..16)
            .map(|_| {
                let (handle, stop) = (runtime.agent("draft").unwrap(), stop.clone());
                tokio::spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        let call = handle.call(CallRequest::of(serde_json::Value::Null));
                        let _ = tokio::time::timeout(Duration::from_secs(10), call).await;
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        until("5 trials", || backend.count() >= 50).await;
        tokio::time::sleep(ms(40)).await;
        assert_eq!(backend.count() - 45, 5, "round {round}");
        stop.store(true, Ordering::SeqCst);
        drop(runtime);
        for task in storm {
            task.await.unwrap();
        }
        for call in late {
            let _ = call.await.unwrap();
        }
    }
}

/// Whatever ends on eight threads at once, in all kinds of ways: no slot is lost and the cap always holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn slots_stay_exact_under_a_storm() {
    let mut settings = agent("draft", "local");
    (settings.slots, settings.restart.max) = (7, u32::MAX);
    settings.breaker.mode = watertight::policy::breaker::settings::Mode::Disabled;
    let backend = Scripted::new(|_, number| match number % 6 {
        0 => Answer::Panic,
        1 => Answer::status(503),
        2 => Answer::Good,
        3 => Answer::Good.after(ms(1)),
        4 => Answer::Hang,
        _ => Answer::Content(Box::new(Answer::Good.after(ms(2)))),
    });
    let mut local = provider("local");
    local.slots = Some(7);
    let runtime = builder().provider(local).agent(settings, backend.clone()).start().await.unwrap();
    let storm: Vec<_> = (0..32)
        .map(|worker: u64| {
            let handle = runtime.agent("draft").unwrap();
            tokio::spawn(async move {
                for turn in 0..150 {
                    let call = handle.call(CallRequest::of(serde_json::Value::Null));
                    let _ = tokio::time::timeout(Duration::from_micros((worker * 37 + turn * 211) % 4_000), call).await;
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for turn in 0..20 {
        tokio::time::sleep(ms(10)).await;
        runtime.crash(if turn % 2 == 0 { Part::Agent("draft") } else { Part::Supervisor }).unwrap();
    }
    for task in storm {
        task.await.unwrap();
    }
    assert!(backend.peak.load(Ordering::SeqCst) <= 7);
    until("all slots back", || runtime.agent("draft").unwrap().in_flight() == 0).await;
    backend.now(Answer::Hang);
    let held: Vec<_> = (0..20).map(|_| call_later(&runtime, "draft")).collect();
    until("7 sent", || runtime.agent("draft").unwrap().in_flight() == 7).await;
    let mut refused = 0;
    for call in held {
        if let Ok(ended) = tokio::time::timeout(s(1), call).await {
            assert_eq!(code(&ended.unwrap()), "AGENT_BULKHEAD_FULL");
            refused += 1;
        }
    }
    assert_eq!(refused, 13, "the provider's slots are all back too");
}

/// A reload and the supervisor each have the breakers' book and the slots at some time: whichever way round, nobody waits for ever.
#[test]
fn reloads_among_callers_on_many_threads_come_to_an_end() {
    const RELOADS: u32 = 300;
    const CALLERS: usize = 8;
    let (done, is_done) = std::sync::mpsc::channel();
    // In a thread of its own, so that one that hangs is told by this one.
    std::thread::spawn(move || {
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        let served = tokio.block_on(async {
            let backend = Scripted::always(Answer::Good);
            let draft = |slots| AgentSettings { slots, ..agent("draft", "local") };
            let runtime = Arc::new(one_agent(draft(10), backend.clone()).await);
            let stop = Arc::new(AtomicBool::new(false));
            let callers: Vec<_> = (0..CALLERS)
                .map(|_| {
                    let (runtime, stop) = (Arc::clone(&runtime), Arc::clone(&stop));
                    tokio::spawn(async move {
                        let mut served = 0_u32;
                        while !stop.load(Ordering::Relaxed) {
                            let called = runtime.agent("draft").unwrap().call(CallRequest::of(json!({}))).await;
                            served += u32::from(called.is_ok());
                            tokio::task::yield_now().await;
                        }
                        served
                    })
                })
                .collect();
            for turn in 0..RELOADS {
                let parts = Parts::new().provider(provider("local")).agent(draft(10 + turn % 2), backend.clone());
                runtime.reload(parts).await.unwrap();
                tokio::task::yield_now().await;
            }
            stop.store(true, Ordering::Relaxed);
            let mut served = 0;
            for caller in callers {
                served += caller.await.unwrap();
            }
            served
        });
        done.send(served).unwrap();
    });
    let served = is_done.recv_timeout(Duration::from_secs(120)).expect("reloads and calls wait for each other");
    assert!(served > 0);
}
