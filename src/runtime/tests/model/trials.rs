//! Half-open gates: in one generation no more trials are out than are configured, each comes back or is judged once, and gate and breaker agree
//! in the end, whoever opens the gate, dies, or shuts it meanwhile.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use shuttle::{
    rand::{Rng, thread_rng},
    thread,
};

use super::stand::{Stand, explore, join, let_go, name, pause};
use crate::{
    model::{clock::Timestamp, facts::Ending},
    policy::breaker::{
        settings::{BreakerSettings, HalfOpenBy},
        state::{GateView, Pass, PassKind, Reason, Refusal, StateName},
    },
    runtime::{
        builder::RuntimeBuilder,
        call::CallContext,
        core::{BreakerId, lock},
        gate::{Asker, Gate},
        outside::OutsideBackend,
        permit::GatePass,
        settings::{AgentSettings, ProviderSettings},
        supervisor::{BreakerAct, Facts, SupervisorMessage},
    },
};

const TRIALS: u32 = 2;
const OPENED_MS: u64 = 1_000;
const OPEN_MS: u64 = 30_000;

fn breaker(by: HalfOpenBy) -> BreakerSettings {
    BreakerSettings {
        trials: TRIALS,
        half_open_by: by,
        open: Duration::from_millis(OPEN_MS),
        open_jitter: 0.0,
        ..BreakerSettings::default()
    }
}

/// Two agents on one provider; `open` are the breakers whose open time is just over.
fn stand(open: &[&str]) -> Arc<Stand> {
    let by = if thread_rng().r#gen() { HalfOpenBy::Timer } else { HalfOpenBy::FirstCall };
    let provider = ProviderSettings { breaker: breaker(by), ..ProviderSettings::new(name("local")) };
    let agent = |text| AgentSettings { breaker: breaker(by), ..AgentSettings::new(name(text), name("local")) };
    let builder = RuntimeBuilder::default()
        .provider(provider)
        .agent(agent("draft"), Arc::new(OutsideBackend))
        .agent(agent("review"), Arc::new(OutsideBackend));
    let stand = Stand::of(builder);
    let mut book = lock(&stand.shared().book);
    for name in open {
        let id = book.find(name).unwrap();
        let now = stand.shared().now();
        book.change(id, |breaker| breaker.open(Reason::Consecutive, None, now).into_iter().collect());
    }
    drop(book);
    stand.set_time_ms(OPENED_MS + OPEN_MS);
    stand
}

/// Trials that are out, by breaker and generation, as those know them who have them. Not one of the scheduler's locks.
#[derive(Default)]
struct Out(Mutex<BTreeMap<(BreakerId, u32), u32>>);

impl Out {
    fn take(&self, passes: &[GatePass]) {
        let mut out = self.0.lock().unwrap();
        for passed in passes.iter().filter(|passed| passed.pass.kind == PassKind::Trial) {
            let now = out.entry((passed.breaker, passed.pass.generation)).or_default();
            *now += 1;
            assert!(*now <= TRIALS, "{:?} has {now} trials out", passed.breaker);
        }
    }

    fn give_back(&self, passes: &[GatePass]) {
        let mut out = self.0.lock().unwrap();
        for passed in passes.iter().filter(|passed| passed.pass.kind == PassKind::Trial) {
            *out.get_mut(&(passed.breaker, passed.pass.generation)).unwrap() -= 1;
        }
    }
}

/// One call: refused, dropped, lost in a panic, or ended as `endings` has it.
fn call(stand: &Stand, agent: &str, out: &Out, endings: &[Ending]) {
    let front = stand.front(agent);
    let Ok(permit) = front.admit(&CallContext::default()) else { return };
    let passes: Vec<GatePass> = permit.passes.all().copied().collect();
    assert!(passes.iter().filter(|passed| passed.pass.kind == PassKind::Trial).count() <= 1, "one trial a call");
    out.take(&passes);
    pause();
    out.give_back(&passes);
    let which = thread_rng().gen_range(0..=endings.len());
    let Some(ending) = endings.get(which) else { return let_go(permit) };
    let (ending, at) = (ending.clone(), stand.shared().now());
    let facts =
        Facts { agent: permit.agent.index, ending, slow: false, told: Vec::new(), at, permit: permit.hand_over() };
    stand.shared().supervisor.cast(SupervisorMessage::Outcome(Box::new(facts)));
}

/// A call of an earlier generation has ended: the supervisor publishes the gate anew as it still has it.
fn late_word(stand: &Stand) {
    let breaker = lock(&stand.shared().book).find("agent:draft").unwrap();
    let (pass, at) = (Pass { id: 99, generation: 0, kind: PassKind::Plain }, stand.shared().now());
    stand.shared().supervisor.cast(SupervisorMessage::Released { breaker, pass, at });
}

/// Every gate shows what its breaker is, and a half-open one has every trial that was not judged.
fn assert_agreed(stand: &Stand) {
    stand.assert_empty();
    let shared = stand.shared();
    for agent in &shared.agents().agents {
        for guard in agent.guards() {
            let snapshot = lock(&shared.book).snapshot(guard.id).unwrap();
            assert_eq!(guard.gate.generation(), snapshot.generation, "{}", guard.name);
            let fits = match guard.gate.look() {
                GateView::Admit => snapshot.state == StateName::Closed,
                GateView::Probe { .. } => snapshot.state == StateName::HalfOpen,
                GateView::Refuse(_) => matches!(snapshot.state, StateName::Open | StateName::ForcedOpen),
            };
            assert!(fits, "{}: {:?} is shown as {:?}", guard.name, snapshot.state, guard.gate.look());
        }
    }
}

/// What is free at a breaker's gate.
fn free(stand: &Stand, breaker: &str) -> Option<u32> {
    let shared = stand.shared();
    let id = lock(&shared.book).find(breaker).unwrap();
    let table = shared.agents();
    let guard = table.agents.iter().find_map(|agent| agent.guard_of(id).cloned()).unwrap();
    match guard.gate.look() {
        GateView::Probe { free, .. } => Some(free),
        _ => None,
    }
}

/// Calls that never get an answer give every trial back, whoever opened the gate and whatever else happened.
#[test]
fn trials_that_are_not_judged_are_all_there_again() {
    explore(|| {
        let stand = stand(&["agent:draft"]);
        let out = Arc::new(Out::default());
        let mut threads = Vec::new();
        for _ in 0..4 {
            let out = Arc::clone(&out);
            threads.push(stand.spawn(move |stand| call(stand, "draft", &out, &[])));
        }
        threads.push(stand.spawn(|stand| {
            stand.shared().supervisor.cast(SupervisorMessage::Tick);
            for _ in 0..3 {
                late_word(stand);
                stand.supervise();
                pause();
            }
        }));
        join(threads);
        assert_agreed(&stand);
        // Either nobody came, or all of them are back.
        assert!(free(&stand, "agent:draft").is_none_or(|free| free == TRIALS));
    });
}

/// Answers of every kind, a supervisor that dies, and an operator, in any order.
#[test]
fn gate_and_breaker_agree_in_the_end() {
    explore(|| {
        let stand = stand(&["agent:draft"]);
        let out = Arc::new(Out::default());
        let mut threads = Vec::new();
        for _ in 0..3 {
            let out = Arc::clone(&out);
            threads.push(stand.spawn(move |stand| {
                let endings = [Ending::Success, Ending::Network { connected: true }];
                for _ in 0..2 {
                    call(stand, "draft", &out, &endings);
                }
            }));
        }
        threads.push(stand.spawn(|stand| {
            let id = lock(&stand.shared().book).find("agent:draft").unwrap();
            for _ in 0..3 {
                match thread_rng().gen_range(0..5) {
                    0 => stand.supervisor_dies(),
                    1 => {
                        let act = if thread_rng().r#gen() { BreakerAct::Reset } else { BreakerAct::ForceOpen };
                        stand.shared().supervisor.cast(SupervisorMessage::Act { breaker: id, act });
                    }
                    _ => stand.supervise(),
                }
                stand.shared().supervisor.cast(SupervisorMessage::Tick);
                late_word(stand);
                pause();
            }
        }));
        join(threads);
        assert_agreed(&stand);
    });
}

/// Provider and target both open: a call that finds a trial at one and none at the other gives it back, and takes one at most.
#[test]
fn two_gates_give_all_or_nothing() {
    explore(|| {
        let stand = stand(&["provider:local", "agent:draft"]);
        let out = Arc::new(Out::default());
        let mut threads = Vec::new();
        for caller in 0..4 {
            let out = Arc::clone(&out);
            threads.push(stand.spawn(move |stand| {
                let agent = if caller % 2 == 0 { "draft" } else { "review" };
                let endings: &[Ending] = if caller == 3 { &[Ending::Success] } else { &[] };
                call(stand, agent, &out, endings);
            }));
        }
        threads.push(stand.spawn(|stand| {
            for _ in 0..3 {
                stand.supervise();
                pause();
            }
        }));
        join(threads);
        assert_agreed(&stand);
        // One call was judged at most.
        assert!(free(&stand, "provider:local").is_none_or(|free| free + 1 >= TRIALS));
    });
}

/// The gate alone, with trials that are kept for parked runs: whatever becomes of the kept ones, exactly as many are out or free as there are.
#[test]
fn what_is_kept_for_parked_runs_is_neither_lost_nor_doubled() {
    explore(|| {
        let until = Some(Timestamp::from_millis(OPENED_MS));
        let refusal = Refusal { reason: Reason::Consecutive, until };
        let gate = Arc::new(Gate::new(GateView::Refuse(refusal), 1, TRIALS));
        let (now, out) = (Timestamp::from_millis(OPENED_MS), Arc::new(AtomicU32::new(0)));
        gate.run_parked();
        let take = |asker: Asker, comes_back: bool| {
            let (gate, out) = (Arc::clone(&gate), Arc::clone(&out));
            thread::spawn(move || {
                for turn in 0..2 {
                    let at = now.after(Duration::from_millis(600 * turn));
                    let Ok(passed) = gate.pass(at, asker) else { continue };
                    assert_eq!((passed.generation, passed.kind), (2, PassKind::Trial));
                    assert!(out.fetch_add(1, Ordering::SeqCst) < TRIALS, "too many are out");
                    pause();
                    if comes_back {
                        out.fetch_sub(1, Ordering::SeqCst);
                        gate.give_back(passed.generation);
                    }
                }
            })
        };
        let mut threads = vec![take(Asker::Anyone, true), take(Asker::Anyone, false), take(Asker::ParkedRun, true)];
        let opened = Arc::clone(&gate);
        threads.push(thread::spawn(move || {
            opened.publish(GateView::Probe { free: TRIALS, reason: Reason::Consecutive }, 2);
            opened.offered(2);
            opened.run_left();
        }));
        join(threads);
        let (GateView::Probe { free, .. }, out) = (gate.look(), out.load(Ordering::SeqCst)) else {
            panic!("half-open")
        };
        assert_eq!(free + out, TRIALS);
    });
}
