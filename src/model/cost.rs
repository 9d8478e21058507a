//! What something cost: an amount in whole billionths of a unit of money, so that sums are exact. Which money it is, only the
//! configuration knows; nothing here converts anything.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Billionths in one unit.
pub const NANOS_PER_UNIT: u64 = 1_000_000_000;

/// An amount of money. Outward it is a number of units; every amount below a million units is exact in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cost(u64);

impl Cost {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// So many billionths.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The nearest amount to so many units; `None` for what is negative, no number, or beyond all bounds.
    pub fn from_units(units: f64) -> Option<Self> {
        let nanos = (units * NANOS_PER_UNIT as f64).round();
        // proof of no loss: the range was checked, the fraction is gone.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to fit")]
        let fits = |nanos: f64| (0.0..=9e18).contains(&nanos).then_some(nanos as u64);
        fits(nanos).map(Self)
    }

    /// Billionths.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Units, as a number for whoever reads it.
    pub fn units(self) -> f64 {
        self.0 as f64 / NANOS_PER_UNIT as f64
    }

    /// The sum; saturates.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The sum of what is known; `None` where nothing is: what has no price is not free.
    pub fn sum(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(one.plus(other)),
            (one, other) => one.or(other),
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (units, nanos) = (self.0 / NANOS_PER_UNIT, self.0 % NANOS_PER_UNIT);
        let text = format!("{units}.{nanos:09}");
        formatter.pad(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl Serialize for Cost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.units())
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let units = f64::deserialize(deserializer)?;
        Self::from_units(units).ok_or_else(|| serde::de::Error::custom(format!("{units} is no amount of money")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amounts_in_words() {
        for (nanos, want) in
            [(0, "0"), (1, "0.000000001"), (2_500_000_000, "2.5"), (10_000_000_000, "10"), (1_010, "0.00000101")]
        {
            assert_eq!(Cost::from_nanos(nanos).to_string(), want);
        }
        assert_eq!(Cost::sum(None, None), None);
        assert_eq!(Cost::sum(None, Some(Cost::from_nanos(2))), Some(Cost::from_nanos(2)));
        assert_eq!(Cost::sum(Some(Cost::from_nanos(1)), Some(Cost::from_nanos(2))), Some(Cost::from_nanos(3)));
        assert_eq!(Cost::from_nanos(u64::MAX).plus(Cost::from_nanos(1)), Cost::from_nanos(u64::MAX));
    }

    #[test]
    fn what_is_no_amount() {
        for units in [-0.1, f64::NAN, f64::INFINITY, 1e10] {
            assert_eq!(Cost::from_units(units), None, "{units}");
        }
        assert!(serde_json::from_str::<Cost>("-1").is_err());
    }

    #[test]
    fn a_million_dimes_are_what_they_are() {
        let sum = (0..1_000_000).fold(Cost::ZERO, |sum, _| sum.plus(Cost::from_units(0.1).unwrap()));
        assert_eq!(sum.to_string(), "100000");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(nanos in 0_u64..1_000_000 * NANOS_PER_UNIT) {
            let cost = Cost::from_nanos(nanos);
            let text = serde_json::to_string(&cost).unwrap();
            prop_assert_eq!(serde_json::from_str::<Cost>(&text).unwrap(), cost);
        }
    }
}
