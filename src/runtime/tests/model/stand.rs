//! A runtime without its actors inside one execution of the scheduler, and how often executions are tried. It asserts nothing about any one
//! guard but that all of them are empty in the end.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use shuttle::{
    Config, Runner,
    rand::{Rng, thread_rng},
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
    thread,
};
use tokio::sync::broadcast;

use crate::{
    model::{clock::Timestamp, name::Name},
    runtime::{
        builder::RuntimeBuilder, handle::AgentHandle, ports::Clock, supervisor::SupervisorActor,
        tests::hand_clock::HandClock,
    },
};

/// Each test is tried so often by each of the two schedulers, unless `WATERTIGHT_MODEL_RUNS` says otherwise.
const RUNS: usize = 1_000;
/// So many switches the second scheduler puts where they hurt, of as many as an execution has.
const SWITCHES: usize = 3;
/// Stacks of the scheduler's threads: unoptimised code needs more than its default.
const STACK_BYTES: usize = 1 << 20;

/// Tries `body` in many interleavings: half of them at random, half with few switches at chosen places, which finds what needs one
/// thread to stand still for long.
pub(super) fn explore(body: impl Fn() + Send + Sync + 'static) {
    let runs = std::env::var("WATERTIGHT_MODEL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    let body = Arc::new(body);
    explore_by(RandomScheduler::new(runs), Arc::clone(&body));
    explore_by(PctScheduler::new(SWITCHES, runs), body);
}

fn explore_by(scheduler: impl Scheduler + 'static, body: Arc<impl Fn() + Send + Sync + 'static>) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    // Every atomic is taken as the strictest: what weaker orders allow is not tried here, and the record says so.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(move || body());
}

/// A runtime whose actors are played by the test.
pub(super) struct Stand {
    pub(super) supervisor: SupervisorActor,
    clock: Arc<HandClock>,
}

impl Stand {
    pub(super) fn of(builder: RuntimeBuilder) -> Arc<Self> {
        let clock = Arc::new(HandClock::at(Timestamp::from_millis(1_000)));
        let shared = builder.clock(Arc::clone(&clock) as Arc<dyn Clock>).seed(7).assemble().unwrap();
        let supervisor = SupervisorActor { shared, events: broadcast::channel(16).0 };
        Arc::new(Self { supervisor, clock })
    }

    pub(super) fn shared(&self) -> &Arc<crate::runtime::core::Shared> {
        &self.supervisor.shared
    }

    pub(super) fn front(&self, agent: &str) -> AgentHandle {
        AgentHandle { shared: Arc::clone(self.shared()), agent: self.shared().agent(agent).unwrap() }
    }

    pub(super) fn set_time_ms(&self, at: u64) {
        self.clock.set_ms(at);
    }

    /// A thread of the test.
    pub(super) fn spawn(self: &Arc<Self>, body: impl FnOnce(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let stand = Arc::clone(self);
        thread::spawn(move || body(&stand))
    }

    /// The supervisor takes in whatever it was told by now.
    pub(super) fn supervise(&self) {
        while let Some(message) = self.shared().supervisor.unheard.take() {
            self.supervisor.turn(message);
        }
    }

    /// The supervisor dies with all that it was told, and the next one begins.
    pub(super) fn supervisor_dies(&self) {
        while let Some(message) = self.shared().supervisor.unheard.take() {
            drop(message);
        }
        self.supervisor.recover(self.shared().now());
    }

    /// Everybody has ended: whatever they took is there again, and nobody waits.
    pub(super) fn assert_empty(&self) {
        self.supervise();
        let shared = self.shared();
        while shared.orchestrator.unheard.take().is_some() {}
        assert_eq!(shared.compartments.check(), 0, "nobody waits");
        for agent in &shared.agents().agents {
            let counts = [Some(agent.common.count), agent.provider.count];
            for count in counts.into_iter().flatten() {
                assert_eq!(shared.compartments.in_flight(count), 0, "{}", agent.settings.name);
            }
            assert!(agent.presence.is_idle(), "{}", agent.settings.name);
        }
    }
}

/// How many hold something now, as those see it who hold it.
#[derive(Default)]
pub(super) struct Held(AtomicI64);

impl Held {
    /// Holds `value` for a while, lets it go in one of several ways, and asserts that no more than `most` ever held one at once.
    pub(super) fn hold<T>(&self, value: T, most: i64) {
        let now = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(now <= most, "{now} at once, and {most} may be");
        pause();
        self.0.fetch_sub(1, Ordering::SeqCst);
        let_go(value);
    }
}

/// Waits for all of these.
pub(super) fn join(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Lets others go on, or not.
pub(super) fn pause() {
    for _ in 0..thread_rng().gen_range(0..3) {
        thread::yield_now();
    }
}

/// Drops a value: at the end of its scope, or while a panic unwinds through it.
pub(super) fn let_go<T>(value: T) {
    if thread_rng().r#gen() {
        return drop(value);
    }
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let _held = value;
        // Without the panic hook, which would tell of it thousands of times.
        resume_unwind(Box::new("made up"));
    }));
    assert!(unwound.is_err());
}

pub(super) fn name(text: &str) -> Name {
    Name::try_new(text).unwrap()
}
