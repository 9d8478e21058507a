//! Token budgets: what is reserved, what is settled and what is free are the budget, in every order of admissions, ends of every kind, panics
//! and reloads, and each reservation is settled once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use shuttle::rand::{Rng, thread_rng};

use super::stand::{Stand, explore, join, let_go, name, pause};
use crate::{
    model::{
        facts::Ending,
        reply::{AttemptFailure, Reply, Usage},
    },
    policy::{
        compartment::{
            known_tenants::KnownTenants,
            settings::{CompartmentSettings, FeatureSettings, Rates},
        },
        tokens::draw::{AccountId, Shown},
    },
    runtime::{
        builder::RuntimeBuilder,
        call::CallContext,
        ports::{Asked, AttemptRequest, Backend, BoxFuture, Progress, TokenEstimate},
        settings::{AgentSettings, ProviderSettings},
        spending::{SpendingSettings, SpentFor},
    },
};

const PROMPT: u64 = 10;
const OUTPUT: u64 = 20;
const NEED: u64 = PROMPT + OUTPUT;
/// Three attempts fit.
const LIMIT: u64 = 3 * NEED + 5;

/// Tells a size, and is never asked for more.
struct Sized;

impl Backend for Sized {
    fn attempt<'a>(&'a self, _: &'a AttemptRequest, _: &'a Progress) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(std::future::pending())
    }

    fn estimate(&self, _: &Asked, _: Option<&str>) -> Option<TokenEstimate> {
        Some(TokenEstimate { prompt: PROMPT, output_max: Some(OUTPUT), ..TokenEstimate::NONE })
    }
}

fn rates(tokens: u64) -> Rates {
    Rates { tokens_per_minute: Some(tokens), ..Rates::default() }
}

fn providers(tokens: u64) -> Vec<ProviderSettings> {
    vec![ProviderSettings { rates: rates(tokens), ..ProviderSettings::new(name("local")) }]
}

fn compartments(tokens: u64) -> CompartmentSettings {
    let chat = FeatureSettings { rates: rates(tokens), ..FeatureSettings::new(name("chat")) };
    CompartmentSettings { features: vec![chat], ..CompartmentSettings::default() }
}

fn stand() -> Arc<Stand> {
    let [local] = <[ProviderSettings; 1]>::try_from(providers(LIMIT)).unwrap();
    let agent = AgentSettings { slots: 9, ..AgentSettings::new(name("draft"), name("local")) };
    let builder = RuntimeBuilder::default().provider(local).compartments(compartments(LIMIT));
    Stand::of(builder.agent(agent, Arc::new(Sized)))
}

fn shown(stand: &Stand, account: &AccountId) -> Shown {
    stand.shared().tokens.look(account, stand.shared().now()).unwrap()
}

fn both() -> [AccountId; 2] {
    [AccountId::Provider(name("local")), AccountId::Feature(name("chat"))]
}

fn asking() -> CallContext {
    let asked = Asked { input: Arc::new(json!({})), relay: None };
    CallContext { feature: Some("chat".into()), asked: Some(asked), ..CallContext::default() }
}

/// One call with up to two attempts, which end in any way. What it used goes to `used`; false if it was refused.
fn call(stand: &Stand, used: &AtomicU64) -> bool {
    let shared = stand.shared();
    let Ok(mut permit) = stand.front("draft").admit(&asking()) else { return false };
    let Some(mut spending) = permit.spending.take() else { panic!("a budget concerns it") };
    pause();
    let progress = Progress::start(Arc::clone(&shared.clock), None);
    for _ in 0..2 {
        if spending.begin_attempt(SpentFor::CHAT, shared.now()).is_err() {
            break;
        }
        pause();
        let output = thread_rng().gen_range(0..=OUTPUT);
        let (result, amount) = match thread_rng().gen_range(0..4) {
            0 => {
                let usage = Usage { prompt_tokens: PROMPT, output_tokens: output, ..Usage::default() };
                (Ok(Reply { usage: Some(usage), ..Reply::of(json!({})) }), PROMPT + output)
            }
            1 => (Err(AttemptFailure::new(Ending::Network { connected: false }, "refused")), 0),
            // Nobody tells what it used: the prompt.
            2 => (Err(AttemptFailure::new(Ending::StreamCut, "cut")), PROMPT),
            _ => {
                // A panic, or a task that is dropped: it counts as it was reserved.
                used.fetch_add(NEED, Ordering::SeqCst);
                let_go((spending, permit));
                return true;
            }
        };
        used.fetch_add(amount, Ordering::SeqCst);
        spending.settle(&result, &progress, Duration::ZERO);
    }
    let_go((permit, spending));
    true
}

#[test]
fn reserved_settled_and_free_are_the_budget() {
    explore(|| {
        let stand = stand();
        let used = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::new();
        for _ in 0..4 {
            let used = Arc::clone(&used);
            threads.push(stand.spawn(move |stand| {
                call(stand, &used);
            }));
        }
        threads.push(stand.spawn(|stand| {
            for _ in 0..4 {
                for account in both() {
                    let shown = shown(stand, &account);
                    assert!(shown.reserved <= shown.used && shown.used <= LIMIT, "{shown:?}");
                    assert_eq!(shown.reserved % NEED, 0, "{shown:?}");
                }
                pause();
            }
        }));
        join(threads);
        for account in both() {
            let shown = shown(&stand, &account);
            assert_eq!((shown.used, shown.reserved), (used.load(Ordering::SeqCst), 0), "settled once each");
        }
        stand.assert_empty();
    });
}

/// Whoever was admitted before a reload settles after it, in the budgets that are still there.
#[test]
fn a_reload_changes_limits_and_settles_nothing() {
    explore(|| {
        let stand = stand();
        let used = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::new();
        for _ in 0..3 {
            let used = Arc::clone(&used);
            threads.push(stand.spawn(move |stand| {
                call(stand, &used);
            }));
        }
        threads.push(stand.spawn(|stand| {
            let configure = |provider, feature: Option<u64>| {
                let compartments = feature.map_or_else(CompartmentSettings::default, compartments);
                let settings = SpendingSettings::default();
                stand.shared().tokens.configure(
                    settings,
                    (&compartments, &KnownTenants::of(&compartments)),
                    &providers(provider),
                    stand.shared().now(),
                );
            };
            configure(NEED, Some(LIMIT));
            pause();
            configure(2 * LIMIT, None);
            pause();
            configure(LIMIT, Some(LIMIT));
        }));
        join(threads);
        let [provider, feature] = both().map(|account| shown(&stand, &account));
        assert_eq!((provider.used, provider.reserved), (used.load(Ordering::SeqCst), 0));
        // The feature's budget was away for a while, and what was in it went with it.
        assert!(feature.used <= provider.used && feature.reserved == 0, "{feature:?}");
        stand.assert_empty();
    });
}
