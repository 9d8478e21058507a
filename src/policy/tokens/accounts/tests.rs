//! Whose budgets a call draws on, and that it draws on all or none.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::policy::compartment::settings::{CountedTokens, FeatureSettings, TenantSettings, UnknownTenant};
use crate::policy::tokens::BudgetRefusal;

pub(super) fn name(text: &str) -> Name {
    Name::try_new(text).unwrap()
}

pub(super) fn ms(at: u64) -> Timestamp {
    Timestamp::from_millis(at)
}

pub(super) fn rates(tokens: u64) -> Rates {
    Rates { tokens_per_minute: Some(tokens), ..Rates::default() }
}

/// Provider local 1,000; chat 600 with a ratio of 0.4; batch without one; free 200 a tenant; strangers are free.
fn settings() -> CompartmentSettings {
    let feature =
        |text, tokens, ratio| FeatureSettings { rates: rates(tokens), ratio, ..FeatureSettings::new(name(text)) };
    CompartmentSettings {
        features: vec![feature("chat", 600, Some(0.4)), feature("batch", 300, None)],
        tiers: vec![TierSettings { rates: rates(200), ..TierSettings::new(name("free")) }],
        tenants: vec![TenantSettings { name: name("acme"), tier: name("free") }],
        unknown_tenant: UnknownTenant::Own(name("free")),
        ..CompartmentSettings::default()
    }
}

fn accounts() -> Accounts {
    Accounts::new(&settings(), &[(name("local"), rates(1_000))])
}

pub(super) fn told(prompt: u64, output: u64) -> Need {
    Need { prompt, output: OutputBound::Told(output) }
}

/// Finds the caller's budgets and reserves.
pub(super) fn reserve(accounts: &mut Accounts, who: &Drawer<'_>, need: Need, at: u64) -> Result<Held, NoTokens> {
    let found = accounts.find(who, ms(at));
    accounts.reserve(who, found, need, ms(at))
}

/// A budget by its outward name.
pub(super) fn id(text: &str) -> AccountId {
    match text.split_once(':').unwrap() {
        ("provider", of) => AccountId::Provider(name(of)),
        ("feature", of) => AccountId::Feature(name(of)),
        ("tenant", of) => AccountId::Tenant(of.into()),
        (_, of) => {
            let (feature, tenant) = of.split_once('/').unwrap();
            AccountId::Cell(name(feature), tenant.into())
        }
    }
}

/// What budgets hold, by their outward names.
fn used(accounts: &mut Accounts, ids: &[&str], now: u64) -> Vec<u64> {
    let shown = |text: &&str| accounts.show_one(&id(text), ms(now)).map_or(0, |shown| shown.used);
    ids.iter().map(shown).collect()
}

const ALL: [&str; 4] = ["provider:local", "feature:chat", "tenant:acme", "cell:chat/acme"];

#[test]
fn one_attempt_draws_on_all_of_its_budgets() {
    let mut accounts = accounts();
    let local = name("local");
    let who = Drawer { provider: &local, feature: Some("chat"), tenant: Some("acme") };
    let held = reserve(&mut accounts, &who, told(30, 40), 0).unwrap();
    assert_eq!(used(&mut accounts, &ALL, 0), [70; 4]);
    // The cell has 0.4 of the tenant's 200.
    let refused = reserve(&mut accounts, &who, told(10, 10), 0).unwrap_err();
    assert_eq!(refused.to_string(), "cell:chat/acme: the tokens of this rolling minute are used up");
    assert_eq!(used(&mut accounts, &ALL, 0), [70; 4], "nothing was kept");
    accounts.settle(held, 30, 5, ms(10));
    assert_eq!(used(&mut accounts, &ALL, 10), [35; 4]);
    let held = reserve(&mut accounts, &who, told(10, 10), 10).unwrap();
    accounts.settle_in_full(held, ms(20));
    assert_eq!(used(&mut accounts, &ALL, 20), [55; 4]);
    assert!(accounts.show(ms(20)).iter().all(|shown| shown.reserved == 0));
}

#[test]
fn the_refusal_that_lasts_longest_speaks() {
    let mut accounts = accounts();
    let local = name("local");
    let batch = Drawer { provider: &local, feature: Some("batch"), tenant: Some("acme") };
    assert_eq!(
        reserve(&mut accounts, &batch, told(0, 250), 0).unwrap_err(),
        NoTokens { account: AccountId::Tenant("acme".into()), refusal: BudgetRefusal::TooLarge { limit: 200 } }
    );
    let _tenants = reserve(&mut accounts, &batch, told(0, 150), 0).unwrap();
    let other = Drawer { tenant: Some("other-one"), ..batch };
    let _features = reserve(&mut accounts, &other, told(0, 150), 20_000).unwrap();
    let refused = reserve(&mut accounts, &batch, told(0, 160), 30_000).unwrap_err();
    let wait = BudgetRefusal::Exhausted { retry_after: Duration::from_secs(50) };
    assert_eq!(refused, NoTokens { account: AccountId::Feature(name("batch")), refusal: wait });
}

#[test]
fn a_guess_is_cut_to_the_smallest_budget_and_a_told_size_is_not() {
    let mut accounts = accounts();
    let local = name("local");
    let who = Drawer { provider: &local, feature: Some("chat"), tenant: Some("acme") };
    let guess = Need { prompt: 30, output: OutputBound::Assumed(4_096) };
    let held = reserve(&mut accounts, &who, guess, 0).unwrap();
    assert_eq!(used(&mut accounts, &ALL, 0), [80; 4], "the first call of a small budget passes");
    accounts.settle(held, 30, 10, ms(1));
    let held = reserve(&mut accounts, &who, guess, 1).unwrap();
    assert_eq!(used(&mut accounts, &ALL, 1), [80; 4], "the next has what this one left, and not what it was taken for");
    assert!(reserve(&mut accounts, &who, guess, 1).is_err(), "a cap is a cap all the same");
    accounts.settle(held, 0, 0, ms(1));
    let too_large = |prompt, output| {
        matches!(
            reserve(&mut accounts.clone(), &who, Need { prompt, output }, 1),
            Err(NoTokens { refusal: BudgetRefusal::TooLarge { .. }, .. })
        )
    };
    assert!(too_large(30, OutputBound::Told(51)));
    assert!(too_large(80, OutputBound::Assumed(1)), "a prompt that leaves no room for an answer");
}

#[test]
fn only_what_a_budget_counts_is_taken_from_it() {
    let mut settings = settings();
    settings.features[0].rates.tokens = CountedTokens::Output;
    settings.tiers[0].rates.tokens = CountedTokens::Input;
    let mut accounts = Accounts::new(&settings, &[(name("local"), rates(1_000))]);
    let local = name("local");
    let who = Drawer { provider: &local, feature: Some("chat"), tenant: Some("acme") };
    let held = reserve(&mut accounts, &who, told(50, 400), 0).unwrap();
    assert_eq!(used(&mut accounts, &ALL, 0), [450, 400, 50, 50]);
    accounts.settle(held, 60, 100, ms(0));
    assert_eq!(used(&mut accounts, &ALL, 0), [160, 100, 60, 60]);
}

#[test]
fn who_has_no_budget_is_asked_nothing() {
    let mut accounts = accounts();
    let (local, far) = (name("local"), name("far"));
    let mut concerns =
        |provider, feature, tenant| !accounts.find(&Drawer { provider, feature, tenant }, ms(0)).is_none();
    assert!(concerns(&local, None, None));
    assert!(concerns(&far, Some("chat"), None));
    assert!(concerns(&far, None, Some("acme")));
    assert!(concerns(&far, None, Some("somebody")), "strangers are tenants of their own");
    assert!(concerns(&far, None, None), "and so are all together that name none");
    let mut shut = settings();
    shut.unknown_tenant = UnknownTenant::Refused;
    let mut accounts = Accounts::new(&shut, &[(local.clone(), rates(9))]);
    for (provider, feature, tenant, want) in [
        (&local, None, None, true),
        (&far, None, None, false),
        (&far, Some("unheard"), Some("unheard"), false),
        (&far, Some("chat"), None, true),
    ] {
        assert_eq!(!accounts.find(&Drawer { provider, feature, tenant }, ms(0)).is_none(), want);
    }
    let held = reserve(&mut accounts, &Drawer { provider: &far, feature: None, tenant: None }, told(9, 9), 0).unwrap();
    assert!(held.parts.iter().all(Option::is_none));
    let mut open = settings();
    open.unknown_feature = UnknownFeature::Is(name("batch"));
    open.unknown_tenant = UnknownTenant::Shared(name("free"));
    let mut accounts = Accounts::new(&open, &[]);
    for tenant in [None, Some("x"), Some("y")] {
        let _ = reserve(&mut accounts, &Drawer { provider: &far, feature: None, tenant }, told(0, 10), 0).unwrap();
    }
    assert_eq!(used(&mut accounts, &["feature:batch", "tenant:other", "tenant:x"], 0), [30, 30, 0]);
}

#[test]
fn tenants_are_bounded_and_busy_ones_are_not_forgotten() {
    let mut settings = settings();
    settings.tenants_max = 3;
    let mut accounts = Accounts::new(&settings, &[]);
    let far = name("far");
    let ask = |accounts: &mut Accounts, tenant: &str, at| {
        let who = Drawer { provider: &far, feature: None, tenant: Some(tenant) };
        reserve(accounts, &who, told(0, 150), at).map(drop)
    };
    for tenant in ["a", "b", "c", "d"] {
        assert!(ask(&mut accounts, tenant, 0).is_ok(), "{tenant}");
    }
    assert_eq!(accounts.tenants(), 4, "the crowd beyond the bound has one budget together");
    assert!(ask(&mut accounts, "e", 1).is_err());
    assert!(ask(&mut accounts, "a", 1).is_err(), "nobody's budget is emptied by newcomers");
    assert!(ask(&mut accounts, "e", 60_001).is_ok());
    assert!(accounts.tenants() <= 4);
}

#[test]
fn other_settings_keep_what_is_in_the_window() {
    let mut accounts = accounts();
    let local = name("local");
    let who = Drawer { provider: &local, feature: Some("chat"), tenant: Some("acme") };
    let held = reserve(&mut accounts, &who, told(40, 40), 0).unwrap();
    let mut next = settings();
    next.features[0].rates = rates(90);
    next.features.remove(1);
    next.tiers[0].rates = rates(400);
    accounts.configure(&next, &KnownTenants::of(&next), &[(name("local"), rates(2_000))], ms(0));
    assert_eq!(used(&mut accounts, &ALL, 1), [80; 4]);
    let refused = reserve(&mut accounts, &who, told(0, 20), 1).unwrap_err();
    assert_eq!(refused.account.to_string(), "feature:chat");
    accounts.configure(
        &CompartmentSettings::default(),
        &KnownTenants::of(&CompartmentSettings::default()),
        &[(name("local"), rates(2_000))],
        ms(0),
    );
    accounts.settle(held, 1, 1, ms(2));
    assert_eq!(used(&mut accounts, &ALL, 2), [2, 0, 0, 0], "what is gone is not shown");
    // It comes back within the minute: it is what it was, and what was settled meanwhile is.
    accounts.configure(&settings(), &KnownTenants::of(&settings()), &[(name("local"), rates(1_000))], ms(3));
    let _ = reserve(&mut accounts, &who, told(0, 0), 3).unwrap();
    assert_eq!(used(&mut accounts, &ALL, 3), [2; 4]);
    accounts.configure(&CompartmentSettings::default(), &KnownTenants::of(&CompartmentSettings::default()), &[], ms(4));
    accounts.configure(
        &CompartmentSettings::default(),
        &KnownTenants::of(&CompartmentSettings::default()),
        &[],
        ms(70_000),
    );
    accounts.configure(&settings(), &KnownTenants::of(&settings()), &[(name("local"), rates(1_000))], ms(70_001));
    let _ = reserve(&mut accounts, &who, told(0, 0), 70_001).unwrap();
    assert_eq!(used(&mut accounts, &ALL, 70_001), [0; 4]);
}

#[test]
fn a_vendors_word_concerns_its_own_budget() {
    let mut accounts = accounts();
    let local = name("local");
    accounts.narrow(&local, 50, ms(10_000), ms(0));
    accounts.narrow(&name("far"), 0, ms(10_000), ms(0));
    let who = Drawer { provider: &local, feature: None, tenant: None };
    assert!(reserve(&mut accounts, &who, told(0, 60), 0).is_err());
    assert!(reserve(&mut accounts, &who, told(0, 50), 0).is_ok());
}

proptest! {
    /// Whatever happens, every budget holds exactly what its open and settled attempts took, and none more than its cap but for debt.
    #[test]
    fn all_or_nothing_for_everybody(
        asks in prop::collection::vec((0_usize..3, 0_usize..4, 0_u64..80, 0_u64..80, 0_u64..200, 0_u64..4_000), 1..150),
    ) {
        let mut accounts = accounts();
        let local = name("local");
        let (features, tenants) = ([None, Some("chat"), Some("batch")], [None, Some("acme"), Some("x"), Some("y")]);
        // Who, when, how much: the twin.
        let mut book: Vec<(usize, usize, u64, u64)> = Vec::new();
        let mut open = Vec::new();
        let mut now = 0;
        for (feature, tenant, prompt, output, used, gap) in asks {
            now += gap;
            let who = Drawer { provider: &local, feature: features[feature], tenant: tenants[tenant] };
            let cap = |sum: u64, cap: u64| prompt + output == 0 || sum + prompt + output <= cap;
            let sum = |book: &[(usize, usize, u64, u64)], of: &dyn Fn(usize, usize) -> bool| -> u64 {
                book.iter().filter(|(f, t, at, _)| at + 60_000 > now && of(*f, *t)).map(|(_, _, _, amount)| *amount).sum()
            };
            let fits = cap(sum(&book, &|_, _| true), 1_000)
                && (feature != 1 || cap(sum(&book, &|f, _| f == 1), 600))
                && (feature != 2 || cap(sum(&book, &|f, _| f == 2), 300))
                && cap(sum(&book, &|_, t| t == tenant), 200)
                && (feature != 1 || cap(sum(&book, &|f, t| f == 1 && t == tenant), 80));
            match reserve(&mut accounts, &who, told(prompt, output), now) {
                Ok(held) => {
                    prop_assert!(fits);
                    book.push((feature, tenant, now, prompt + output));
                    open.push((held, book.len() - 1));
                }
                Err(_) => prop_assert!(!fits),
            }
            if used % 3 == 0 && !open.is_empty() {
                let (held, entry) = open.swap_remove(usize::try_from(used).unwrap() % open.len());
                accounts.settle(held, 0, used, ms(now));
                book[entry].3 = used;
            }
            let provider = sum(&book, &|_, _| true);
            prop_assert_eq!(accounts.show_one(&AccountId::Provider(local.clone()), ms(now)).unwrap().used, provider);
        }
    }
}

/// However many strangers are busy, a tenant that the configuration names has a budget of its own, and takes none of their places.
#[test]
fn tenants_that_are_known_need_no_room() {
    let names: Vec<String> = (0..20).map(|number| format!("known-{number}")).collect();
    let known = names.iter().map(|text| TenantSettings { name: name(text), tier: name("free") }).collect();
    let settings = CompartmentSettings { tenants: known, tenants_max: 2, ..settings() };
    let mut accounts = Accounts::new(&settings, &[]);
    let local = name("local");
    let of = |tenant: &'static str| Drawer { provider: &local, feature: None, tenant: Some(tenant) };
    let held: Vec<Held> =
        ["a", "b"].map(|stranger| reserve(&mut accounts, &of(stranger), told(10, 0), 0).unwrap()).into();
    let crowded = reserve(&mut accounts, &of("c"), told(10, 0), 0).unwrap();
    assert_eq!(used(&mut accounts, &["tenant:c", "tenant:other"], 0), [0, 10], "no room: it is one of all others");
    for known in &names {
        let who = Drawer { provider: &local, feature: None, tenant: Some(known) };
        let held = reserve(&mut accounts, &who, told(150, 0), 0).unwrap();
        assert!(reserve(&mut accounts, &who, told(60, 0), 0).is_err(), "{known}: its own 200, and no other's");
        accounts.settle_in_full(held, ms(0));
        assert_eq!(used(&mut accounts, &[&format!("tenant:{known}")], 0), [150]);
    }
    assert_eq!(used(&mut accounts, &["tenant:a", "tenant:b", "tenant:other"], 0), [10; 3], "nobody was pushed out");
    held.into_iter().chain([crowded]).for_each(|held| accounts.settle_in_full(held, ms(1)));
}
