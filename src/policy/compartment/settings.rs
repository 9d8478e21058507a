//! Features, tiers, tenants and classes as they are configured: plain values, with the rules that each keeps by itself.

use std::time::Duration;

use crate::{
    model::name::Name,
    policy::{
        bulkhead::{ClassShare, KeptFrom},
        setting::InvalidSetting,
        shedding::SheddingSettings,
    },
};

/// The most features.
pub const FEATURES_MAX: usize = 1_000;
/// The most tiers.
pub const TIERS_MAX: usize = 100;
/// The most tenants that are counted at once, unless configured.
pub const TENANTS_MAX_DEFAULT: u32 = 100_000;
/// No configuration counts more tenants at once.
pub const TENANTS_MAX: u32 = 1_000_000;
/// Callers that may wait in a feature's line, unless configured.
pub const LINE_MAX_DEFAULT: u32 = 100;
/// No line is longer.
pub const LINE_MAX: u32 = 100_000;
/// Nobody waits longer in a line.
pub const WAIT_MAX: Duration = Duration::from_secs(3_600);
/// The classes, the highest first, unless configured in another order.
pub const CLASSES: [&str; 5] = ["critical", "interactive", "standard", "batch", "background"];
/// What is neither named nor known is of this class.
pub const CLASS_USUAL: &str = "standard";

/// Which tokens a budget counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CountedTokens {
    /// Prompt and output.
    #[default]
    Both,
    /// The prompt's.
    Input,
    /// The output's.
    Output,
}

/// What a feature, a tier or a provider allows in a rolling minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rates {
    /// Tokens; `None` = as many as come.
    pub tokens_per_minute: Option<u64>,
    /// Which of them.
    pub tokens: CountedTokens,
    /// Requests; `None` = as many as come.
    pub requests_per_minute: Option<u32>,
}

/// One feature.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureSettings {
    /// Its name.
    pub name: Name,
    /// Its slots over all agents and tenants; `None` = no cap of its own.
    pub slots: Option<u32>,
    /// What it may use in a minute, over all tenants.
    pub rates: Rates,
    /// How long its calls may wait in line.
    pub max_wait: Duration,
    /// How many of its calls may wait.
    pub line_max: u32,
    /// Which part of a tenant's slots and tokens its cell has; `None` = no cell, all of them.
    pub ratio: Option<f64>,
    /// Slots of providers that nobody else takes.
    pub guaranteed: Vec<(Name, u32)>,
}

/// What tenants of one tier have, each.
#[derive(Debug, Clone, PartialEq)]
pub struct TierSettings {
    /// Its name.
    pub name: Name,
    /// Slots over all agents and features; `None` = no cap.
    pub slots: Option<u32>,
    /// What a tenant may use in a minute.
    pub rates: Rates,
    /// How long calls may wait in line.
    pub max_wait: Duration,
}

/// A tenant that is known by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantSettings {
    /// Its name.
    pub name: Name,
    /// Its tier.
    pub tier: Name,
}

/// What becomes of a feature's name that is not known, and of calls that name none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum UnknownFeature {
    /// It is refused.
    #[default]
    Refused,
    /// It counts as this one.
    Is(Name),
}

/// What becomes of a tenant that is not known, and of calls that name none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum UnknownTenant {
    /// It is refused.
    #[default]
    Refused,
    /// All of them together are one tenant of this tier.
    Shared(Name),
    /// Each is a tenant of its own, of this tier.
    Own(Name),
}

/// A class's part of the slots of each agent and provider.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptShare {
    /// 0 to 1.
    pub share: f64,
    /// Whom it is kept from.
    pub kept_from: KeptFrom,
}

/// The classes in their order, and what is kept for each.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassSettings {
    /// The highest first; each of [`CLASSES`] once.
    pub order: Vec<&'static str>,
    /// One a class, in that order.
    pub kept: Vec<KeptShare>,
}

impl Default for ClassSettings {
    fn default() -> Self {
        let none = KeptShare { share: 0.0, kept_from: KeptFrom::Lower };
        Self { order: CLASSES.to_vec(), kept: vec![none; CLASSES.len()] }
    }
}

impl ClassSettings {
    /// The place of a class, the highest first; of the usual one for what is not known or not named.
    pub fn place(&self, class: Option<&str>) -> u16 {
        let of = |class: &str| self.order.iter().position(|known| *known == class);
        let place = class.and_then(of).or_else(|| of(CLASS_USUAL)).unwrap_or_default();
        u16::try_from(place).unwrap_or(u16::MAX)
    }

    /// What is kept of `cap` slots: the part rounded down, but one at least where there are slots enough for every class that keeps some.
    pub fn shares_of(&self, cap: u32) -> Vec<ClassShare> {
        let keeping = self.kept.iter().filter(|kept| kept.share > 0.0).count();
        if keeping == 0 {
            return Vec::new();
        }
        let least = u32::from(u32::try_from(keeping).is_ok_and(|keeping| keeping < cap));
        let slots = |kept: &KeptShare| {
            if kept.share <= 0.0 {
                return 0;
            }
            // proof of no loss: a share is at most 1 and slots are at most 100,000.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and cap")]
            let part = (f64::from(cap) * kept.share + 1e-9).floor() as u32;
            part.max(least)
        };
        self.kept.iter().map(|kept| ClassShare { slots: slots(kept), kept_from: kept.kept_from }).collect()
    }

    /// What is wrong with it.
    pub fn check(&self) -> Vec<InvalidSetting> {
        let mut broken = Vec::new();
        let mut sorted = self.order.clone();
        sorted.sort_unstable();
        let mut all = CLASSES;
        all.sort_unstable();
        if sorted != all {
            let rule = format!("must name each of {} once", CLASSES.join(", "));
            broken.push(InvalidSetting::new("order", self.order.join(", "), rule));
        }
        let sum: f64 = self.kept.iter().map(|kept| kept.share).sum();
        if self.kept.iter().any(|kept| !(0.0..=1.0).contains(&kept.share)) || sum > 1.0 + 1e-9 {
            broken.push(InvalidSetting::new(
                "reserved",
                sum,
                "shares of all classes, minimums included, must fit into 1",
            ));
        }
        broken
    }
}

/// The highest class that a caller may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HighestClass {
    class: &'static str,
    order: [&'static str; CLASSES.len()],
}

impl HighestClass {
    /// This one of [`CLASSES`], in their usual order.
    pub const fn of(class: &'static str) -> Self {
        Self { class, order: CLASSES }
    }

    /// The same class where classes stand in another order; an order that is none changes nothing.
    #[must_use]
    pub fn in_order(self, order: &[&'static str]) -> Self {
        let order = order.try_into().unwrap_or(self.order);
        Self { order, ..self }
    }

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        self.class
    }

    /// Whether this class is not above it.
    pub fn allows(self, class: &str) -> bool {
        let place = |class: &str| self.order.iter().position(|known| *known == class);
        place(class).is_some_and(|wanted| place(self.class).is_some_and(|highest| wanted >= highest))
    }
}

/// All compartments.
#[derive(Debug, Clone, PartialEq)]
pub struct CompartmentSettings {
    /// Features.
    pub features: Vec<FeatureSettings>,
    /// Tiers.
    pub tiers: Vec<TierSettings>,
    /// Tenants that are known.
    pub tenants: Vec<TenantSettings>,
    /// What becomes of other features, where there are any.
    pub unknown_feature: UnknownFeature,
    /// What becomes of other tenants, where there are tiers.
    pub unknown_tenant: UnknownTenant,
    /// So many tenants are counted at once; idle ones are forgotten first.
    pub tenants_max: u32,
    /// Classes.
    pub classes: ClassSettings,
    /// When the lowest are refused.
    pub shedding: SheddingSettings,
}

impl Default for CompartmentSettings {
    fn default() -> Self {
        Self {
            features: Vec::new(),
            tiers: Vec::new(),
            tenants: Vec::new(),
            unknown_feature: UnknownFeature::default(),
            unknown_tenant: UnknownTenant::default(),
            tenants_max: TENANTS_MAX_DEFAULT,
            classes: ClassSettings::default(),
            shedding: SheddingSettings::for_classes(CLASSES.len()),
        }
    }
}

impl FeatureSettings {
    /// A feature without any limit.
    pub fn new(name: Name) -> Self {
        Self {
            name,
            slots: None,
            rates: Rates::default(),
            max_wait: Duration::ZERO,
            line_max: LINE_MAX_DEFAULT,
            ratio: None,
            guaranteed: Vec::new(),
        }
    }
}

impl TierSettings {
    /// A tier without any limit.
    pub fn new(name: Name) -> Self {
        Self { name, slots: None, rates: Rates::default(), max_wait: Duration::ZERO }
    }

    /// The slots of the cell of a feature with this ratio: its part, one at least.
    pub fn cell_slots(&self, ratio: f64) -> Option<u32> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the tier's slots")]
        let part = |slots: u32| if slots == 0 { 0 } else { ((f64::from(slots) * ratio + 1e-9).floor() as u32).max(1) };
        self.slots.map(part)
    }

    /// The tokens a minute of such a cell.
    pub fn cell_tokens(&self, ratio: f64) -> Option<u64> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the tier's tokens")]
        let part = |tokens: u64| if tokens == 0 { 0 } else { ((tokens as f64 * ratio + 1e-6).floor() as u64).max(1) };
        self.rates.tokens_per_minute.map(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_keeps_its_part_and_one_slot_at_least() {
        let kept = |share, kept_from| KeptShare { share, kept_from };
        let mut classes = ClassSettings::default();
        assert!(classes.shares_of(10).is_empty());
        classes.kept[1] = kept(0.3, KeptFrom::Lower);
        classes.kept[4] = kept(0.05, KeptFrom::All);
        let slots = |cap| classes.shares_of(cap).iter().map(|share| share.slots).collect::<Vec<_>>();
        for (cap, want) in [
            (0, [0; 5]),
            (1, [0; 5]),
            (2, [0; 5]),
            (3, [0, 1, 0, 0, 1]),
            (10, [0, 3, 0, 0, 1]),
            (100, [0, 30, 0, 0, 5]),
        ] {
            assert_eq!(slots(cap), want, "{cap}");
        }
        assert!(classes.check().is_empty());
        assert_eq!((classes.place(Some("critical")), classes.place(None), classes.place(Some("?"))), (0, 2, 2));
        classes.kept[0] = kept(0.8, KeptFrom::Lower);
        classes.order.swap(0, 1);
        assert_eq!(classes.check().len(), 1);
        classes.order[0] = "batch";
        assert_eq!(classes.check().len(), 2);
    }

    #[test]
    fn the_highest_class_follows_the_order() {
        let usual = HighestClass::of("standard");
        assert_eq!(
            ["interactive", "standard", "batch", "?"].map(|class| usual.allows(class)),
            [false, true, true, false]
        );
        let turned = usual.in_order(&["background", "batch", "standard", "interactive", "critical"]);
        assert_eq!(["interactive", "standard", "batch"].map(|class| turned.allows(class)), [true, true, false]);
        assert_eq!(usual.in_order(&["batch"]), usual);
    }

    #[test]
    fn a_cell_is_a_part_of_its_tier_and_one_at_least() {
        let mut tier = TierSettings::new(Name::try_new("free").unwrap());
        assert_eq!((tier.cell_slots(0.4), tier.cell_tokens(0.4)), (None, None));
        for (slots, ratio, want) in [(5, 0.4, 2), (5, 0.15, 1), (30, 0.1, 3), (15, 0.2, 3), (0, 0.4, 0)] {
            tier.slots = Some(slots);
            assert_eq!(tier.cell_slots(ratio), Some(want), "{slots} x {ratio}");
        }
        tier.rates.tokens_per_minute = Some(20_000);
        assert_eq!(tier.cell_tokens(0.15), Some(3_000));
    }
}
