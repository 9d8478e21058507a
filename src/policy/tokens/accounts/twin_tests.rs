//! All accounts against a twin that remembers every amount of every account for ever: reservations, ends of every kind, losses, time and
//! reloads that change, remove and bring back budgets, in any order.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    tests::{id, ms, name, rates, reserve, told},
    *,
};
use crate::policy::compartment::settings::{CountedTokens, FeatureSettings, UnknownTenant};

const FEATURES: [&str; 2] = ["chat", "batch"];
const TENANTS: [&str; 2] = ["acme", "other-one"];
/// The part of a tenant's budget that it may use in chat.
const RATIO: f64 = 0.5;
const WINDOW_MS: u64 = 60_000;

/// What is configured; `None` = no budget.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Config {
    provider: Option<(u64, CountedTokens)>,
    features: [Option<(u64, CountedTokens)>; 2],
    tier: Option<(u64, CountedTokens)>,
}

#[derive(Debug, Clone)]
enum Step {
    Reserve {
        feature: usize,
        tenant: usize,
        prompt: u64,
        output: u64,
    },
    /// It used so much; 0 and 0 as if it had never been.
    Settle {
        which: usize,
        prompt: u64,
        output: u64,
    },
    /// A panic or a cancel where nobody could look.
    SettleInFull(usize),
    /// Its holder is gone without a word.
    Lose(usize),
    Wait(u64),
    Reload(Config),
}

fn config() -> impl Strategy<Value = Config> {
    let counted = prop_oneof![
        3 => Just(CountedTokens::Both),
        1 => Just(CountedTokens::Input),
        1 => Just(CountedTokens::Output),
    ];
    let budget = move || prop_oneof![1 => Just(None), 3 => (50_u64..400, counted.clone()).prop_map(Some)];
    (budget(), budget(), budget(), budget()).prop_map(|(provider, chat, batch, tier)| Config {
        provider,
        features: [chat, batch],
        tier,
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0_usize..2, 0_usize..2, 0_u64..60, 0_u64..60)
            .prop_map(|(feature, tenant, prompt, output)| Step::Reserve { feature, tenant, prompt, output }),
        4 => (0_usize..16, 0_u64..90, 0_u64..90)
            .prop_map(|(which, prompt, output)| Step::Settle { which, prompt, output }),
        1 => (0_usize..16).prop_map(|which| Step::Settle { which, prompt: 0, output: 0 }),
        1 => (0_usize..16).prop_map(Step::SettleInFull),
        1 => (0_usize..16).prop_map(Step::Lose),
        3 => (0_u64..30_000).prop_map(Step::Wait),
        2 => config().prop_map(Step::Reload),
    ];
    prop::collection::vec(step, 0..120)
}

fn settings(config: Config) -> (CompartmentSettings, Vec<(Name, Rates)>) {
    let of = |budget: Option<(u64, CountedTokens)>| {
        budget.map_or_else(Rates::default, |(limit, tokens)| Rates { tokens, ..rates(limit) })
    };
    let features = FEATURES.iter().zip(config.features).zip([Some(RATIO), None]);
    let features = features.map(|((feature, budget), ratio)| FeatureSettings {
        rates: of(budget),
        ratio,
        ..FeatureSettings::new(name(feature))
    });
    let settings = CompartmentSettings {
        features: features.collect(),
        tiers: vec![TierSettings { rates: of(config.tier), ..TierSettings::new(name("free")) }],
        unknown_tenant: UnknownTenant::Own(name("free")),
        ..CompartmentSettings::default()
    };
    (settings, vec![(name("local"), of(config.provider))])
}

/// What one attempt took of one account, and what that counted.
#[derive(Debug, Clone)]
struct Taken {
    account: String,
    counted: CountedTokens,
    at: u64,
    tokens: u64,
    open: bool,
}

/// An account as the twin knows it.
#[derive(Debug, Clone, Copy)]
struct Known {
    limit: u64,
    counted: CountedTokens,
}

/// Whatever goes and comes back is what it was: what was taken of it is remembered by its name and by what it counts.
#[derive(Default)]
struct Twin {
    accounts: BTreeMap<String, Known>,
    taken: Vec<Taken>,
}

impl Twin {
    fn reload(&mut self, config: Config) {
        let mut wanted: BTreeMap<String, Option<(u64, CountedTokens)>> = BTreeMap::new();
        wanted.insert("provider:local".into(), config.provider);
        for (feature, budget) in FEATURES.iter().zip(config.features) {
            wanted.insert(format!("feature:{feature}"), budget);
        }
        for tenant in TENANTS {
            wanted.insert(format!("tenant:{tenant}"), config.tier);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
            let of_cell = |limit: u64| ((limit as f64) * RATIO) as u64;
            let cell = config.tier.map(|(limit, counted)| (of_cell(limit).max(1), counted));
            wanted.insert(format!("cell:chat/{tenant}"), cell);
        }
        for (account, budget) in wanted {
            match budget {
                Some((limit, counted)) => self.accounts.insert(account, Known { limit, counted }),
                None => self.accounts.remove(&account),
            };
        }
    }

    fn amount(counted: CountedTokens, prompt: u64, output: u64) -> u64 {
        match counted {
            CountedTokens::Both => prompt + output,
            CountedTokens::Input => prompt,
            CountedTokens::Output => output,
        }
    }

    fn sum(&self, account: &str, now: u64, counts: impl Fn(&Taken) -> bool) -> u64 {
        let Some(known) = self.accounts.get(account) else { return 0 };
        let here = self.taken.iter().filter(|taken| taken.account == account && taken.counted == known.counted);
        here.filter(|taken| taken.at + WINDOW_MS > now && counts(taken)).map(|taken| taken.tokens).sum()
    }

    fn concerned(feature: usize, tenant: usize) -> Vec<String> {
        let (feature, tenant) = (FEATURES[feature], TENANTS[tenant]);
        let mut all = vec!["provider:local".into(), format!("feature:{feature}"), format!("tenant:{tenant}")];
        if feature == "chat" {
            all.push(format!("cell:chat/{tenant}"));
        }
        all
    }

    /// What is taken of each account, or `None` where one of them has no room.
    fn reserve(&mut self, who: (usize, usize), (prompt, output): (u64, u64), now: u64) -> Option<Vec<usize>> {
        let mut parts = Vec::new();
        for account in Self::concerned(who.0, who.1) {
            let Some(known) = self.accounts.get(&account).copied() else { continue };
            let tokens = Self::amount(known.counted, prompt, output);
            let used = self.sum(&account, now, |_| true);
            if tokens > known.limit || (tokens > 0 && used + tokens > known.limit) {
                return None;
            }
            parts.push(Taken { account, counted: known.counted, at: now, tokens, open: true });
        }
        let first = self.taken.len();
        self.taken.extend(parts);
        Some((first..self.taken.len()).collect())
    }

    /// Settles it, whatever became of the account meanwhile.
    fn settle(&mut self, parts: &[usize], used: Option<(u64, u64)>) {
        for part in parts {
            let taken = &mut self.taken[*part];
            taken.open = false;
            if let Some((prompt, output)) = used {
                taken.tokens = Self::amount(taken.counted, prompt, output);
            }
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "a step is done once")]
fn step(
    step: Step,
    (accounts, twin): (&mut Accounts, &mut Twin),
    open: &mut Vec<(Held, Vec<usize>)>,
    now: &mut u64,
) -> Result<(), TestCaseError> {
    let local = name("local");
    let next = |open: &mut Vec<(Held, Vec<usize>)>, which: usize| {
        (!open.is_empty()).then(|| open.swap_remove(which % open.len().max(1)))
    };
    match step {
        Step::Reserve { feature, tenant, prompt, output } => {
            let who = Drawer { provider: &local, feature: Some(FEATURES[feature]), tenant: Some(TENANTS[tenant]) };
            let taken = twin.reserve((feature, tenant), (prompt, output), *now);
            match (reserve(accounts, &who, told(prompt, output), *now), taken) {
                (Ok(held), Some(parts)) => open.push((held, parts)),
                (Err(_), None) => {}
                (got, want) => prop_assert!(false, "{:?}, and the twin says {:?}", got, want),
            }
        }
        Step::Settle { which, prompt, output } => {
            if let Some((held, parts)) = next(open, which) {
                accounts.settle(held, prompt, output, ms(*now));
                twin.settle(&parts, Some((prompt, output)));
            }
        }
        Step::SettleInFull(which) => {
            if let Some((held, parts)) = next(open, which) {
                accounts.settle_in_full(held, ms(*now));
                twin.settle(&parts, None);
            }
        }
        // It counts as it is, and as open, until its minute is over.
        Step::Lose(which) => drop(next(open, which)),
        Step::Wait(millis) => *now += millis,
        Step::Reload(config) => {
            let (settings, providers) = settings(config);
            accounts.configure(&settings, &KnownTenants::of(&settings), &providers, ms(*now));
            twin.reload(config);
        }
    }
    for account in twin.accounts.keys() {
        let want = (twin.sum(account, *now, |_| true), twin.sum(account, *now, |taken| taken.open));
        match accounts.show_one(&id(account), ms(*now)) {
            Some(shown) => prop_assert_eq!((shown.used, shown.reserved), want, "{}", account),
            // A tenant's accounts are there, or there again, once it calls.
            None => prop_assert!(account.starts_with("tenant:") || account.starts_with("cell:"), "{}", account),
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn accounts_hold_what_their_twin_holds(first in config(), steps in steps()) {
        let (settings, providers) = settings(first);
        let (mut accounts, mut twin) = (Accounts::new(&settings, &providers), Twin::default());
        twin.reload(first);
        let (mut open, mut now) = (Vec::new(), 0);
        for each in steps {
            step(each, (&mut accounts, &mut twin), &mut open, &mut now)?;
        }
        // A minute later nothing is left, whatever was lost.
        now += WINDOW_MS;
        step(Step::Wait(0), (&mut accounts, &mut twin), &mut open, &mut now)?;
        prop_assert!(twin.accounts.keys().all(|account| twin.sum(account, now, |_| true) == 0));
    }
}
