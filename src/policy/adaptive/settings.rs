//! What an adaptive limit is told. Checked once, trusted afterwards.

use crate::policy::setting::InvalidSetting;

/// No limit can be set higher.
pub const LIMIT_MAX: u32 = 100_000;

/// An adaptive limit's settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptiveSettings {
    /// Where it starts.
    pub start: u32,
    /// It never falls below this.
    pub min: u32,
    /// It never grows beyond this, nor beyond a static cap.
    pub max: u32,
    /// Calls that take longer than this many times their baseline are late.
    pub tolerance: f64,
    /// What is left of the limit under pressure: a share of it.
    pub decrease: f64,
}

impl Default for AdaptiveSettings {
    fn default() -> Self {
        Self { start: 50, min: 5, max: 500, tolerance: 1.5, decrease: 0.8 }
    }
}

impl AdaptiveSettings {
    /// Every rule that is broken.
    pub fn check(&self) -> Vec<InvalidSetting> {
        let mut broken = Vec::new();
        // A limit of 0 admits nobody, so nothing would ever be learnt.
        if !(1..=LIMIT_MAX).contains(&self.min) {
            broken.push(InvalidSetting::new("min", self.min, format!("must be 1 to {LIMIT_MAX}")));
        }
        if self.max < self.min || self.max > LIMIT_MAX {
            let rule = format!("must be from min ({}) to {LIMIT_MAX}", self.min);
            let invalid = InvalidSetting::new("max", self.max, rule);
            broken.push(if self.max > LIMIT_MAX { invalid } else { invalid.against(&["min"]) });
        }
        if !(self.min..=self.max).contains(&self.start) {
            let rule = format!("must be from min ({}) to max ({})", self.min, self.max);
            broken.push(InvalidSetting::new("start", self.start, rule).against(&["min", "max"]));
        }
        if !(self.tolerance > 1.0 && self.tolerance <= 100.0) {
            broken.push(InvalidSetting::new("tolerance", self.tolerance, "must be over 1 and at most 100"));
        }
        if !(0.1..1.0).contains(&self.decrease) {
            broken.push(InvalidSetting::new("decrease", self.decrease, "must be a share from 0.1 to under 1"));
        }
        broken
    }

    /// The same under a static cap: the cap is the most, and the rest gives way to it. A cap of 0 closes.
    #[must_use]
    pub fn under(self, cap: Option<u32>) -> Self {
        let max = cap.map_or(self.max, |cap| cap.min(self.max));
        Self { start: self.start.min(max), min: self.min.min(max), max, ..self }
    }
}
