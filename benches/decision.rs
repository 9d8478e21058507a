//! What a decision costs: gates, slots and permit taken and given back, the outcome judged and recorded. Beside it a refusal as a typed
//! value, and breakers of others.
#![allow(clippy::unwrap_used, reason = "a bench that cannot be set up has no figure")]

mod kit;

use std::{
    hint::black_box,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use criterion::Criterion;
use failsafe::CircuitBreaker as _;
use watertight::{
    model::{clock::Timestamp, facts::Ending},
    policy::{
        breaker::{
            machine::Breaker,
            settings::{BreakerSettings, Scope},
            state::{Outcome, Pass, PassKind},
            window::Source,
        },
        bulkhead::KeptFrom,
        chance::Chance,
        compartment::settings::{CompartmentSettings, FeatureSettings, KeptShare, Rates, TenantSettings, TierSettings},
        verdict::{Keyed, Verdict, judge},
        volume::{CALLS_PER_HOUR_MAX, VolumeSettings},
    },
    runtime::{
        call::CallContext,
        callers::CallerSettings,
        engine::Runtime,
        handle::AgentHandle,
        ports::{Clock, TokioClock},
        supervisor::BreakerAct,
    },
};

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let tokio = kit::two_workers();
    let runtime = tokio.block_on(open_and_full());
    let good = runtime.agent("good").unwrap();
    decisions(&mut criterion, &good);
    refusals(&mut criterion, &runtime);
    compartments(&mut criterion, &tokio);
    peers(&mut criterion);
    criterion.final_summary();
    tokio.block_on(runtime.stop(Duration::ZERO));
}

/// Three agents on one provider: one that admits, one whose gate is shut, one whose only slot is taken for good.
async fn open_and_full() -> Runtime {
    // The one slot must stay taken for as long as the rows before it may run.
    let mut full = kit::agent("full", 1);
    full.timeouts.attempt = None;
    full.timeouts.call = Duration::from_secs(3_600);
    let builder = kit::builder()
        .agent(kit::agent("good", kit::PLENTY), Arc::new(kit::Nothing))
        .agent(kit::agent("open", kit::PLENTY), Arc::new(kit::Nothing))
        .agent(full, Arc::new(kit::Never));
    let runtime = builder.start().await.unwrap();
    runtime.act("agent:open", BreakerAct::ForceOpen).unwrap();
    let full = runtime.agent("full").unwrap();
    tokio::spawn(async move { full.call(kit::request()).await });
    while runtime.agent("full").unwrap().in_flight() == 0 || admits(&runtime.agent("open").unwrap()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    runtime
}

fn admits(handle: &AgentHandle) -> bool {
    handle.admit_and_release(&CallContext::default()).is_ok()
}

/// The breakers of a target and its provider as the supervisor holds them, in their documented settings.
struct Books {
    target: Breaker,
    provider: Breaker,
    clock: TokioClock,
    calls: u64,
}

impl Books {
    fn new() -> Self {
        let chance = Chance::from_seed(1);
        Self {
            target: Breaker::try_new(BreakerSettings::default(), Scope::Target, chance).unwrap(),
            provider: Breaker::try_new(BreakerSettings::provider_default(), Scope::Provider, chance).unwrap(),
            clock: TokioClock::start(),
            calls: 0,
        }
    }

    /// Judges an outcome and records it in both.
    fn record(&mut self, ending: &Ending) {
        let now = self.clock.now();
        let judgement = judge(ending, Keyed::No);
        self.calls += 1;
        let source = Source { agent: 0, model: 0 };
        for (breaker, verdict) in [(&mut self.provider, judgement.provider), (&mut self.target, judgement.target)] {
            let pass = Pass { id: self.calls, generation: breaker.generation(), kind: PassKind::Plain };
            let outcome = Outcome { verdict, slow: false, source, connected: ending.connected() };
            black_box(breaker.record(pass, outcome, now));
            black_box(breaker.next_timer());
        }
    }
}

fn decisions(criterion: &mut Criterion, handle: &AgentHandle) {
    let mut group = criterion.benchmark_group("decision");
    let context = CallContext::default();
    let decide = |books: &Mutex<Books>| {
        handle.admit_and_release(black_box(&context)).unwrap();
        books.lock().unwrap().record(black_box(&Ending::Success));
    };
    let books = Mutex::new(Books::new());
    kit::row(&mut group, "whole_decision/1_thread", 1, |iterations| {
        for _ in 0..iterations {
            decide(&books);
        }
    });
    kit::row(&mut group, "whole_decision/2_threads_on_one_agent", 2, |iterations| {
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..iterations {
                        decide(&books);
                    }
                });
            }
        });
    });
    kit::row(&mut group, "part/admit_and_release", 1, |iterations| {
        for _ in 0..iterations {
            handle.admit_and_release(black_box(&context)).unwrap();
        }
    });
    kit::row(&mut group, "part/judge_and_record_in_two_breakers", 1, |iterations| {
        let mut books = books.lock().unwrap();
        for _ in 0..iterations {
            books.record(black_box(&Ending::Success));
        }
    });
    group.finish();
}

/// Tenants that are known, and those of them that call.
const TENANTS_KNOWN: usize = 100_000;
const TENANTS_ACTIVE: usize = 1_000;
/// More than any bench makes.
const REQUESTS_PER_MINUTE: u32 = 4_000_000_000;

/// The same with everything on: five counts, a line configured, token budgets, requests a minute, a volume guard, a hundred thousand known
/// tenants of whom a thousand call in turn. What these tenants take in memory is printed.
fn compartments(criterion: &mut Criterion, tokio: &tokio::runtime::Runtime) {
    let resident = || kit::resident_mib().unwrap_or_default();
    let before = resident();
    let settings = everything();
    let settings_kept = resident() - before;
    let builder = kit::builder().compartments(settings).callers(guarded());
    let builder = builder.agent(kit::agent("good", kit::PLENTY), Arc::new(kit::Nothing));
    let before = resident();
    let runtime = tokio.block_on(builder.start()).unwrap();
    let known = resident() - before;
    let handle = runtime.agent("good").unwrap();
    let contexts: Vec<CallContext> = (0..TENANTS_ACTIVE).map(|tenant| context_of(tenant * 97)).collect();
    let before = resident();
    for context in &contexts {
        handle.admit_and_release(context).unwrap();
    }
    let active = resident() - before;
    println!(
        "{TENANTS_KNOWN} known tenants: {settings_kept:.1} MiB as settings, {known:.1} MiB in the runtime; {TENANTS_ACTIVE} active ones \
         {active:.2} MiB more\n"
    );
    let books = Mutex::new(Books::new());
    let decide = |from: usize, iterations: u64| {
        for context in contexts.iter().cycle().skip(from).take(usize::try_from(iterations).unwrap()) {
            handle.admit_and_release(black_box(context)).unwrap();
            books.lock().unwrap().record(black_box(&Ending::Success));
        }
    };
    let mut group = criterion.benchmark_group("decision");
    kit::row(&mut group, "everything_on/1_thread", 1, |iterations| decide(0, iterations));
    kit::row(&mut group, "everything_on/2_threads_on_one_agent", 2, |iterations| {
        thread::scope(|scope| {
            scope.spawn(|| decide(0, iterations));
            scope.spawn(|| decide(TENANTS_ACTIVE / 2, iterations));
        });
    });
    let stranger = CallContext { tenant: Some("nobody".to_owned()), ..context_of(0) };
    kit::row(&mut group, "everything_on/unknown_tenant_refused", 1, |iterations| {
        for _ in 0..iterations {
            black_box(handle.admit_and_release(black_box(&stranger)).unwrap_err());
        }
    });
    group.finish();
    tokio.block_on(runtime.stop(Duration::ZERO));
}

fn tenant(number: usize) -> String {
    format!("tenant-{number:06}")
}

fn context_of(number: usize) -> CallContext {
    CallContext {
        tenant: Some(tenant(number)),
        feature: Some("chat".to_owned()),
        priority: Some("interactive".to_owned()),
        ..CallContext::default()
    }
}

/// Each caller has a volume guard.
fn guarded() -> CallerSettings {
    CallerSettings { volume: Some(VolumeSettings::of_calls(CALLS_PER_HOUR_MAX)), ..CallerSettings::default() }
}

/// Two features and three tiers, each with slots, a line, a token budget and requests a minute; classes with reserved shares; every tenant
/// known by name.
fn everything() -> CompartmentSettings {
    let rates = Rates {
        tokens_per_minute: Some(u64::MAX / 4),
        requests_per_minute: Some(REQUESTS_PER_MINUTE),
        ..Rates::default()
    };
    let feature = |name: &str, ratio| FeatureSettings {
        slots: Some(kit::PLENTY),
        rates,
        max_wait: Duration::from_secs(5),
        ratio: Some(ratio),
        guaranteed: vec![(kit::name("local"), kit::PLENTY / 4)],
        ..FeatureSettings::new(kit::name(name))
    };
    let tiers = ["enterprise", "pro", "free"];
    let tier = |name: &&str| TierSettings {
        slots: Some(30),
        rates,
        max_wait: Duration::from_secs(8),
        ..TierSettings::new(kit::name(name))
    };
    let known = |number: usize| TenantSettings {
        name: kit::name(&tenant(number)),
        tier: kit::name(tiers[number % tiers.len()]),
    };
    let mut settings = CompartmentSettings {
        features: vec![feature("chat", 0.4), feature("batch", 0.15)],
        tiers: tiers.iter().map(tier).collect(),
        tenants: (0..TENANTS_KNOWN).map(known).collect(),
        ..CompartmentSettings::default()
    };
    settings.classes.kept[1].share = 0.3;
    settings.classes.kept[3] = KeptShare { share: 0.05, kept_from: KeptFrom::All };
    settings
}

fn refusals(criterion: &mut Criterion, runtime: &Runtime) {
    let mut group = criterion.benchmark_group("refusal");
    let context = CallContext::default();
    for name in ["open", "full"] {
        let handle = runtime.agent(name).unwrap();
        kit::row(&mut group, &format!("typed_value/{name}"), 1, |iterations| {
            for _ in 0..iterations {
                black_box(handle.admit_and_release(black_box(&context)).unwrap_err());
            }
        });
        let refused = handle.admit_and_release(&context).unwrap_err();
        kit::row(&mut group, &format!("as_envelope/{name}"), 1, |iterations| {
            for _ in 0..iterations {
                black_box(refused.to_envelope());
            }
        });
    }
    group.finish();
}

/// Breakers of others around nothing, one thread: permission and result, no slots.
fn peers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decision_peers");
    let backoff = || failsafe::backoff::constant(Duration::from_secs(30));
    let consecutive =
        failsafe::Config::new().failure_policy(failsafe::failure_policy::consecutive_failures(5, backoff())).build();
    kit::row(&mut group, "failsafe/consecutive_failures", 1, |iterations| {
        for _ in 0..iterations {
            black_box(consecutive.call(|| Ok::<(), ()>(()))).unwrap();
        }
    });
    let window = Duration::from_secs(600);
    let share = failsafe::failure_policy::success_rate_over_time_window(0.5, 10, window, backoff());
    let share = failsafe::Config::new().failure_policy(share).build();
    kit::row(&mut group, "failsafe/success_rate_over_time_window", 1, |iterations| {
        for _ in 0..iterations {
            black_box(share.call(|| Ok::<(), ()>(()))).unwrap();
        }
    });
    let pure = Mutex::new(Breaker::try_new(BreakerSettings::default(), Scope::Target, Chance::from_seed(1)).unwrap());
    let clock = TokioClock::start();
    let source = Source { agent: 0, model: 0 };
    let outcome = Outcome { verdict: Verdict::Success, slow: false, source, connected: true };
    kit::row(&mut group, "watertight/pure_breaker_alone", 1, |iterations| {
        for call in 0..iterations {
            let now = clock.now();
            let pass = pure.lock().unwrap().acquire(call, now).0.unwrap();
            let ended: Timestamp = clock.now();
            black_box(pure.lock().unwrap().record(pass, outcome, ended));
        }
    });
    group.finish();
}
