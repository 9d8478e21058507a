//! A panic at any point of a call: whatever the call had comes back, and no lock is lost with its holder. The clock is where it panics: it is
//! read all along the way, and belongs to others.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use tokio::sync::broadcast;

use crate::{
    model::{
        clock::Timestamp,
        facts::Ending,
        name::Name,
        reply::{AttemptFailure, Reply},
    },
    policy::{
        breaker::state::{GateView, Pass, Reason},
        compartment::settings::{CompartmentSettings, FeatureSettings, Rates},
        tokens::draw::AccountId,
    },
    runtime::{
        builder::RuntimeBuilder,
        call::CallContext,
        core::{Shared, lock},
        gate::{Asker, Passed},
        handle::AgentHandle,
        permit::{GatePass, Passing},
        ports::{Asked, AttemptRequest, Backend, BoxFuture, Clock, Progress, TokenEstimate, VendorBudget},
        settings::{AgentSettings, ProviderSettings},
        spending::SpentFor,
        supervisor::{Facts, SupervisorActor, SupervisorMessage},
    },
};

/// More readings than one call makes.
const READINGS_MAX: u64 = 40;

/// A clock that panics once, when it is read for the nth time from now on; 0 = never.
#[derive(Default)]
struct Fragile {
    millis: AtomicU64,
    left: AtomicU64,
}

impl Clock for Fragile {
    fn now(&self) -> Timestamp {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left == Ok(1) {
            resume_unwind(Box::new("made up"));
        }
        Timestamp::from_millis(self.millis.load(Ordering::SeqCst))
    }

    fn unix_ms(&self, at: Timestamp) -> u64 {
        at.millis()
    }
}

/// Panics whenever it is asked about anything.
struct Rude;

impl Backend for Rude {
    fn attempt<'a>(&'a self, _: &'a AttemptRequest, _: &'a Progress) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        resume_unwind(Box::new("made up"))
    }

    fn estimate(&self, _: &Asked, _: Option<&str>) -> Option<TokenEstimate> {
        resume_unwind(Box::new("made up"))
    }

    fn vendor_budget(&self) -> Option<VendorBudget> {
        resume_unwind(Box::new("made up"))
    }
}

fn name(text: &str) -> Name {
    Name::try_new(text).unwrap()
}

/// Two agents with every guard there is, and `agent:draft` half-open for the next who comes.
fn assembled() -> (Arc<Shared>, Arc<Fragile>) {
    let clock = Arc::new(Fragile::default());
    let rates = Rates { tokens_per_minute: Some(100_000), requests_per_minute: Some(1_000), ..Rates::default() };
    let provider = ProviderSettings { slots: Some(4), rates, ..ProviderSettings::new(name("local")) };
    let chat = FeatureSettings { slots: Some(3), rates, ..FeatureSettings::new(name("chat")) };
    let agent = |text| AgentSettings::new(name(text), name("local"));
    let shared = RuntimeBuilder::default()
        .clock(Arc::clone(&clock) as Arc<dyn Clock>)
        .seed(5)
        .provider(provider)
        .compartments(CompartmentSettings { features: vec![chat], ..CompartmentSettings::default() })
        .agent(agent("draft"), Arc::new(Rude))
        .agent(agent("review"), Arc::new(Rude))
        .assemble()
        .unwrap();
    let mut book = lock(&shared.book);
    let id = book.find("agent:draft").unwrap();
    book.change(id, |breaker| {
        let until = Some(Timestamp::from_millis(1_000));
        breaker.open(Reason::Consecutive, until, Timestamp::ZERO).into_iter().collect()
    });
    drop(book);
    clock.millis.store(1_000, Ordering::SeqCst);
    (shared, clock)
}

fn front(shared: &Arc<Shared>) -> AgentHandle {
    AgentHandle { shared: Arc::clone(shared), agent: shared.agent("draft").unwrap() }
}

fn context() -> CallContext {
    let asked = Asked { input: Arc::new(json!({ "text": "a few words" })), relay: None };
    CallContext { feature: Some("chat".into()), asked: Some(asked), ..CallContext::default() }
}

/// Nobody holds anything, and every trial is there.
fn assert_nothing_taken(shared: &Arc<Shared>, when: &str) {
    let core = front(shared).agent;
    let counts = [Some(core.common.count), core.provider.count];
    for count in counts.into_iter().flatten() {
        assert_eq!(shared.compartments.in_flight(count), 0, "{when}");
    }
    assert_eq!(shared.compartments.check(), 0, "{when}");
    for account in [AccountId::Provider(name("local")), AccountId::Feature(name("chat"))] {
        assert_eq!(shared.tokens.look(&account, shared.now()).unwrap().reserved, 0, "{when}");
    }
    assert!(core.presence.is_idle(), "{when}");
    let free = match core.guard.gate.look() {
        GateView::Probe { free, .. } => free,
        GateView::Refuse(_) => core.settings.breaker.trials,
        GateView::Admit => panic!("{when}: its breaker is not closed"),
    };
    assert_eq!(free, core.settings.breaker.trials, "{when}");
}

/// Does it with a clock that panics at the nth reading, for every n; then nothing is taken. How often it panicked.
fn at_every_reading(what: impl Fn(&Arc<Shared>)) -> u64 {
    let mut panicked = 0;
    for reading in 1..=READINGS_MAX {
        let (shared, clock) = assembled();
        clock.left.store(reading, Ordering::SeqCst);
        panicked += u64::from(catch_unwind(AssertUnwindSafe(|| what(&shared))).is_err());
        clock.left.store(0, Ordering::SeqCst);
        assert_nothing_taken(&shared, &format!("reading {reading}"));
        assert!(front(&shared).admit(&context()).is_ok(), "the next one is a call like any other");
    }
    panicked
}

#[test]
fn a_panic_in_an_admission_gives_back_what_was_taken_so_far() {
    let panicked = at_every_reading(|shared| drop(front(shared).admit(&context()).unwrap()));
    assert!(panicked >= 1, "the clock is read");
}

/// Whatever may panic there one day.
#[test]
fn a_panic_between_gates_and_permit_gives_the_trial_back() {
    let (shared, _) = assembled();
    let agent = front(&shared).agent;
    let guard = agent.guard.clone();
    let now = shared.now();
    let admission = || {
        let mut passing = Passing::begin(&shared, &agent, now);
        let Passed { generation, kind, opened_it } = guard.gate.pass(now, Asker::Anyone).unwrap();
        passing.passes.target = Some(GatePass { breaker: guard.id, pass: Pass { id: 1, generation, kind }, opened_it });
        resume_unwind(Box::new("made up"));
    };
    for _ in 0..=front(&shared).agent.settings.breaker.trials {
        assert!(catch_unwind(AssertUnwindSafe(admission)).is_err());
        assert_nothing_taken(&shared, "between gates and permit");
    }
}

#[test]
fn a_panic_while_tokens_are_settled_settles_them_once() {
    at_every_reading(|shared| {
        let mut permit = front(shared).admit(&context()).unwrap();
        let mut spending = permit.spending.take().unwrap();
        let progress = Progress::start(Arc::clone(&shared.clock), None);
        let now = shared.now();
        spending.begin_attempt(SpentFor::CHAT, now).unwrap();
        let failed = Err(AttemptFailure::new(Ending::StreamCut, "cut"));
        spending.settle(&failed, &progress, Duration::from_secs(1));
        spending.begin_attempt(SpentFor::CHAT, shared.now()).unwrap();
        let outcome = Facts {
            agent: permit.agent.index,
            ending: Ending::Cancelled { slow_without_content: false },
            slow: false,
            told: Vec::new(),
            at: shared.now(),
            permit: permit.hand_over(),
        };
        // Nobody lives there: the message is dropped, and with it everything.
        shared.supervisor.cast(SupervisorMessage::Outcome(Box::new(outcome)));
    });
}

/// The supervisor panics in the middle of a judgement, with the call's permit in its hands.
#[test]
fn a_panic_in_a_judgement_gives_the_permit_back_and_loses_no_lock() {
    let (shared, clock) = assembled();
    let supervisor = SupervisorActor { shared: Arc::clone(&shared), events: broadcast::channel(4).0 };
    for ending in [Ending::Success, Ending::Restarted] {
        let permit = front(&shared).admit(&context()).unwrap();
        let (agent, at) = (permit.agent.index, shared.now());
        let facts = Facts { agent, ending, slow: false, told: Vec::new(), at, permit: permit.hand_over() };
        clock.left.store(1, Ordering::SeqCst);
        let judged = catch_unwind(AssertUnwindSafe(|| supervisor.turn(SupervisorMessage::Outcome(Box::new(facts)))));
        assert!(judged.is_err());
        assert!(shared.book.is_poisoned(), "the test is about a lock whose holder panicked");
        assert_nothing_taken(&shared, "after the panic");
    }
    supervisor.recover(shared.now());
    assert!(front(&shared).admit(&context()).is_ok());
}

/// A reload that panics has the lock of all slots.
#[test]
fn no_lock_is_lost_with_its_holder() {
    let (shared, _) = assembled();
    let held = front(&shared).admit(&context()).unwrap();
    let settings =
        CompartmentSettings { features: vec![FeatureSettings::new(name("chat"))], ..CompartmentSettings::default() };
    let renewed = || shared.compartments.renew(&shared, &settings, |_| -> () { resume_unwind(Box::new("made up")) });
    assert!(catch_unwind(AssertUnwindSafe(renewed)).is_err());
    drop(held);
    assert_nothing_taken(&shared, "after a reload that panicked");
    assert!(front(&shared).admit(&context()).is_ok());
}

/// What a backend says of itself is worth a guess, not a call.
#[test]
fn a_backend_that_panics_when_asked_is_not_believed() {
    let (shared, _) = assembled();
    let permit = front(&shared).admit(&context()).unwrap();
    let reserved = || shared.tokens.look(&AccountId::Provider(name("local")), shared.now()).unwrap().reserved;
    assert!(permit.spending.is_some() && reserved() > 1_000, "guessed: {}", reserved());
    drop(permit);
    assert_nothing_taken(&shared, "after a guess");
}
