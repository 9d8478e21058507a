//! Other features, tiers and tenants while calls run.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    directory::{Directory, Names, Stranger},
    line::{Bounds, LineId, Order},
    needs::Needs,
    pool::{Joined, Pool},
    settings::{CompartmentSettings, FeatureSettings, TenantSettings, TierSettings, UnknownFeature, UnknownTenant},
};
use crate::{
    model::{clock::Timestamp, name::Name},
    policy::chance::Chance,
};

const NOW: Timestamp = Timestamp::ZERO;
const CHANCE: Chance = Chance::from_seed(7);

fn name(text: &str) -> Name {
    Name::try_new(text).unwrap()
}

fn feature(of: &str, slots: Option<u32>, ratio: Option<f64>) -> FeatureSettings {
    FeatureSettings { slots, ratio, ..FeatureSettings::new(name(of)) }
}

fn tier(of: &str, slots: Option<u32>) -> TierSettings {
    TierSettings { slots, ..TierSettings::new(name(of)) }
}

fn settings(features: Vec<FeatureSettings>, tiers: Vec<TierSettings>) -> CompartmentSettings {
    let tenants = vec![TenantSettings { name: name("acme"), tier: name("pro") }];
    let unknown_tenant = tiers.first().map_or(UnknownTenant::Refused, |tier| UnknownTenant::Own(tier.name.clone()));
    CompartmentSettings { features, tiers, tenants, unknown_tenant, ..CompartmentSettings::default() }
}

struct World {
    pool: Pool<u32>,
    directory: Directory,
}

impl World {
    fn of(settings: &CompartmentSettings) -> Self {
        let mut pool = Pool::default();
        let directory = Directory::new(settings, &mut pool);
        Self { pool, directory }
    }

    fn renew(&mut self, settings: &CompartmentSettings) -> Vec<u32> {
        self.directory.renew(settings, &mut self.pool, NOW).into_iter().map(|granted| granted.who).collect()
    }

    fn needs(&mut self, feature: &str, tenant: &str) -> Result<Needs, Stranger> {
        self.needs_as(feature, tenant, Names::Known)
    }

    fn needs_as(&mut self, feature: &str, tenant: &str, names: Names) -> Result<Needs, Stranger> {
        let who = (Some(feature), Some(tenant), names);
        self.directory.place(&mut self.pool, who, 0).map(|place| place.needs)
    }

    /// Takes as many as there are, at most 100.
    fn fill(&mut self, feature: &str, tenant: &str) -> Vec<Needs> {
        let needs = self.needs(feature, tenant).unwrap();
        let mut taken = Vec::new();
        while taken.len() < 100
            && let Ok(needs) = self.pool.try_take(&needs, NOW, CHANCE)
        {
            taken.push(needs);
        }
        taken
    }

    fn give_back(&mut self, taken: Vec<Needs>) {
        for needs in taken {
            assert!(self.pool.give_back(&needs, NOW, NOW).is_empty());
        }
    }
}

#[test]
fn counts_go_on_under_their_names() {
    let chat = |slots| feature("chat", slots, None);
    let batch = |slots| feature("batch", slots, None);
    let mut world = World::of(&settings(vec![chat(Some(3)), batch(Some(2))], vec![]));
    let under_way = world.fill("chat", "acme");
    assert_eq!(under_way.len(), 3);
    // Another order, another cap: three are under way, so there is room for two more.
    world.renew(&settings(vec![batch(Some(2)), chat(Some(5))], vec![]));
    let more = world.fill("chat", "acme");
    assert_eq!(more.len(), 2);
    assert_eq!(world.fill("batch", "acme").len(), 2);
    // Less than is under way: nobody is let in, nobody is thrown out.
    world.renew(&settings(vec![chat(Some(1)), batch(Some(2))], vec![]));
    world.give_back(more);
    world.give_back(under_way[..2].to_vec());
    assert_eq!(world.fill("chat", "acme").len(), 0);
    // Without a cap it counts on, so that a later cap knows of it.
    world.renew(&settings(vec![chat(None)], vec![]));
    assert_eq!(world.fill("chat", "acme").len(), 100);
    world.renew(&settings(vec![chat(Some(102))], vec![]));
    assert_eq!(world.fill("chat", "acme").len(), 1);
}

#[test]
fn who_is_gone_is_not_known_and_runs_dry() {
    let chat = feature("chat", Some(3), None);
    let mut world = World::of(&settings(vec![chat.clone(), feature("batch", Some(2), None)], vec![]));
    let under_way = world.fill("chat", "acme");
    world.renew(&settings(vec![feature("batch", Some(2), None)], vec![]));
    assert_eq!(world.needs("chat", "acme"), Err(Stranger::Feature));
    assert_eq!(world.directory.gone_features().map(Name::as_str).collect::<Vec<_>>(), ["chat"]);
    // It comes back before its calls have ended: they count.
    world.renew(&settings(vec![chat.clone()], vec![]));
    assert_eq!(world.fill("chat", "acme").len(), 0);
    world.give_back(under_way);
    assert_eq!(world.fill("chat", "acme").len(), 3);
    assert_eq!(world.directory.gone_features().map(Name::as_str).collect::<Vec<_>>(), ["batch"]);
    let unknown = CompartmentSettings {
        unknown_feature: UnknownFeature::Is(name("other")),
        ..settings(vec![feature("other", Some(1), None)], vec![])
    };
    world.renew(&unknown);
    assert_eq!(world.fill("chat", "acme").len(), 1, "it counts as another one now");
    // Without any feature nobody is asked for one.
    world.renew(&settings(vec![], vec![]));
    assert!(world.needs("chat", "acme").unwrap().is_empty());
}

#[test]
fn tenants_get_what_their_tier_has_now() {
    let chat = |ratio| feature("chat", None, ratio);
    let (free, pro) = (|slots| tier("free", slots), |slots| tier("pro", slots));
    let mut world = World::of(&settings(vec![chat(Some(0.5))], vec![free(Some(2)), pro(Some(8))]));
    let under_way = world.fill("chat", "acme");
    assert_eq!((under_way.len(), world.fill("chat", "stranger").len()), (4, 1), "half of the tier's");
    world.renew(&settings(vec![chat(Some(0.5))], vec![pro(Some(10)), free(Some(4))]));
    assert_eq!(world.fill("chat", "acme").len(), 1);
    assert_eq!(world.fill("chat", "stranger").len(), 4, "the first tier is theirs now, so they are of `pro`");
    // No cells any more: the tenant's own count holds alone.
    world.renew(&settings(vec![chat(None)], vec![pro(Some(10)), free(Some(4))]));
    assert_eq!(world.fill("chat", "acme").len(), 5);
    // Unknown from now on.
    let refused = CompartmentSettings {
        unknown_tenant: UnknownTenant::Refused,
        ..settings(vec![chat(None)], vec![pro(Some(10)), free(Some(4))])
    };
    world.renew(&refused);
    assert_eq!(world.needs("chat", "stranger"), Err(Stranger::Tenant));
}

/// Runs that were accepted before a reload took their feature or tenant away go on, counted where they were.
#[test]
fn who_was_accepted_goes_on_where_it_was_counted() {
    let with =
        |features, tiers| CompartmentSettings { unknown_tenant: UnknownTenant::Refused, ..settings(features, tiers) };
    let chat = || feature("chat", Some(3), Some(0.5));
    let mut world = World::of(&with(vec![chat()], vec![tier("pro", Some(4))]));
    let before = world.needs("chat", "acme").unwrap();
    assert_eq!(before.iter().count(), 3, "of the feature, of the tenant, of both");
    let without_acme =
        CompartmentSettings { tenants: vec![], ..with(vec![feature("talk", None, None)], vec![tier("pro", Some(4))]) };
    world.renew(&without_acme);
    assert_eq!(world.needs("chat", "acme"), Err(Stranger::Feature));
    assert_eq!(world.directory.knows(Some("chat"), Some("acme")), Err(Stranger::Feature));
    assert_eq!(world.directory.knows(Some("talk"), Some("acme")), Err(Stranger::Tenant));
    assert_eq!(world.directory.knows(Some("talk"), None), Err(Stranger::NoTenant));
    assert_eq!(world.needs_as("chat", "acme", Names::Accepted), Ok(before));
    // What was never counted here, as after a restart, has no place of its own: and takes nobody else's.
    assert!(world.needs_as("gone", "nobody", Names::Accepted).unwrap().is_empty());
    // Back again they are what they were.
    world.renew(&with(vec![chat()], vec![tier("pro", Some(4))]));
    assert_eq!(world.directory.knows(Some("chat"), Some("acme")), Ok(()));
    assert_eq!(world.needs("chat", "acme"), Ok(before));
    assert_eq!(world.needs_as("chat", "acme", Names::Accepted), Ok(before));
}

/// A place that was found once is used until its counts may be somebody else's.
#[test]
fn a_place_is_current_until_counts_go_or_settings_come() {
    let settings = CompartmentSettings {
        tenants_max: 1,
        ..settings(vec![feature("chat", Some(2), None)], vec![tier("pro", Some(1))])
    };
    let mut world = World::of(&settings);
    let place = |world: &mut World, tenant: &str| {
        world.directory.place(&mut world.pool, (Some("chat"), Some(tenant), Names::Known), 0)
    };
    let first = place(&mut world, "acme").unwrap();
    assert_eq!(place(&mut world, "acme"), Ok(first));
    let _second = place(&mut world, "brick").unwrap();
    assert!(world.directory.is_current(&first), "another tenant takes nothing away");
    let third = place(&mut world, "clay").unwrap();
    assert!(!world.directory.is_current(&first), "one had to make room");
    assert!(world.directory.is_current(&third));
    world.renew(&settings);
    assert!(!world.directory.is_current(&third));
}

#[test]
fn a_larger_cap_lets_waiters_in_and_a_hopeless_one_goes() {
    let chat = |slots| vec![feature("chat", Some(slots), None)];
    let mut world = World::of(&settings(chat(1), vec![]));
    let needs = world.needs("chat", "acme").unwrap();
    world.fill("chat", "acme");
    for who in 0..3 {
        let order = Order { class: 0, since: NOW, number: u64::from(who) };
        assert!(matches!(
            world.pool.join(order, &Bounds::of(LineId(3), 9), vec![needs], who, NOW),
            Ok(Joined::Waits(_))
        ));
    }
    assert_eq!(world.renew(&settings(chat(3), vec![])), [0, 1]);
    let count = needs.iter().next().unwrap().count;
    assert_eq!(world.pool.dismiss(count, |_| true), [2]);
    assert_eq!((world.pool.waiting(), world.pool.dismiss(count, |_| true)), (0, vec![]));
}

proptest! {
    /// Whatever is renewed while calls come and go: no count is over the larger of its old and new cap, none is under zero, and all
    /// are empty in the end.
    #[test]
    fn nothing_leaks(steps in prop::collection::vec((0_u8..8, 0_u32..6, any::<bool>(), 0_u8..4), 1..60)) {
        let names = ["chat", "batch", "free", "pro"];
        let of = |slots: u32, with_ratio: bool| {
            let ratio = with_ratio.then_some(0.5);
            let features = vec![feature("chat", Some(slots), ratio), feature("batch", (slots > 2).then_some(slots), ratio)];
            settings(features, vec![tier("free", Some(slots + 1)), tier("pro", (slots > 1).then_some(slots))])
        };
        let mut world = World::of(&of(3, true));
        let mut held: Vec<Needs> = Vec::new();
        for (act, slots, with_ratio, tenant) in steps {
            match act {
                0 => {
                    let counts: Vec<_> = held.iter().flat_map(Needs::iter).map(|seat| seat.count).collect();
                    let before: Vec<_> = counts.iter().map(|count| world.pool.cap(*count)).collect();
                    world.renew(&of(slots, with_ratio));
                    for (count, before) in counts.iter().zip(before) {
                        let cap = world.pool.cap(*count).max(before);
                        let own = held.iter().flat_map(Needs::iter).filter(|seat| seat.count == *count).count();
                        prop_assert_eq!(world.pool.in_flight(*count) as usize, own);
                        prop_assert!(world.pool.in_flight(*count) <= cap.max(6));
                    }
                }
                1..=5 => {
                    let needs = world.needs(names[usize::from(tenant % 2)], names[usize::from(2 + tenant / 2)]);
                    if let Ok(needs) = needs
                        && let Ok(needs) = world.pool.try_take(&needs, NOW, CHANCE)
                    {
                        held.push(needs);
                    }
                }
                _ => {
                    if let Some(needs) = held.pop() {
                        world.pool.give_back(&needs, NOW, NOW.after(Duration::from_millis(1)));
                    }
                }
            }
        }
        let counts: Vec<_> = held.iter().flat_map(Needs::iter).map(|seat| seat.count).collect();
        for needs in held {
            world.pool.give_back(&needs, NOW, NOW);
        }
        prop_assert!(counts.iter().all(|count| world.pool.in_flight(*count) == 0));
    }
}

/// Strangers are bounded among themselves: however many are busy, a tenant that the configuration names has its slots.
#[test]
fn strangers_take_no_room_from_a_tenant_that_is_known() {
    let settings = CompartmentSettings {
        tenants_max: 2,
        ..settings(vec![feature("chat", Some(9), None)], vec![tier("pro", Some(1))])
    };
    let mut world = World::of(&settings);
    for stranger in ["brick", "clay"] {
        world.fill("chat", stranger);
    }
    assert_eq!(world.needs("chat", "dust"), Err(Stranger::TooManyTenants));
    assert!(world.needs("chat", "acme").is_ok());
    world.fill("chat", "acme");
    assert_eq!(world.needs("chat", "dust"), Err(Stranger::TooManyTenants), "and it makes no room for them");
    let unnamed = CompartmentSettings { tenants: Vec::new(), tenants_max: 3, ..settings };
    world.renew(&unnamed);
    assert_eq!(world.needs("chat", "dust"), Err(Stranger::TooManyTenants), "it is a stranger itself from now on");
}
