//! Exponential back-off with full jitter (AWS Architecture Blog, 2015), a floor and a cap; no count of tries overflows it.

use std::time::Duration;

use super::{chance::Chance, setting::InvalidSetting};

/// The least wait between two tries: never a hot loop.
pub const BACKOFF_FLOOR: Duration = Duration::from_millis(50);

/// How waits grow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    base: Duration,
    factor: f64,
    cap: Duration,
}

impl Backoff {
    /// `base` is the first upper bound, each further one `factor` times the last, none over `cap`.
    ///
    /// Refused: a base of 0, a factor that is no finite number of at least 1, a cap below the base or below the floor.
    pub fn try_new(base: Duration, factor: f64, cap: Duration) -> Result<Self, InvalidSetting> {
        match Self::check(base, factor, cap).into_iter().next() {
            Some(invalid) => Err(invalid),
            None => Ok(Self { base, factor, cap }),
        }
    }

    /// Every rule that these would break.
    pub fn check(base: Duration, factor: f64, cap: Duration) -> Vec<InvalidSetting> {
        let mut broken = Vec::new();
        if base.is_zero() {
            broken.push(InvalidSetting::new("backoff", "0s", "must be longer than 0"));
        }
        if !factor.is_finite() || factor < 1.0 {
            broken.push(InvalidSetting::new("factor", factor, "must be a finite number of at least 1"));
        }
        if cap < base || cap < BACKOFF_FLOOR {
            let invalid = InvalidSetting::new("backoff_max", format!("{cap:?}"), "must be at least `backoff` and 50ms");
            broken.push(if cap < BACKOFF_FLOOR { invalid } else { invalid.against(&["backoff"]) });
        }
        broken
    }

    /// The longest wait before try `attempt` is repeated (0 = the first).
    pub fn upper_bound(&self, attempt: u32) -> Duration {
        // f64 reaches infinity instead of overflowing; `min` then takes the cap.
        let grown = self.base.as_secs_f64() * self.factor.powf(f64::from(attempt));
        let bounded = grown.min(self.cap.as_secs_f64());
        Duration::from_secs_f64(bounded).clamp(BACKOFF_FLOOR, self.cap)
    }

    /// The wait before try `attempt` is repeated: between the floor and the upper bound.
    pub fn wait(&self, attempt: u32, chance: Chance) -> Duration {
        let spread = self.upper_bound(attempt).saturating_sub(BACKOFF_FLOOR);
        BACKOFF_FLOOR + spread.mul_f64(chance.share(u64::from(attempt)))
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(500), factor: 2.0, cap: Duration::from_secs(30) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refused() {
        let ms = Duration::from_millis;
        for (base, factor, cap, fits) in [
            (ms(500), 2.0, ms(30_000), true),
            (ms(500), 1.0, ms(500), true),
            (ms(500), f64::NAN, ms(30_000), false),
            (ms(500), f64::INFINITY, ms(30_000), false),
            (ms(500), -2.0, ms(30_000), false),
            (ms(500), 0.0, ms(30_000), false),
            (ms(0), 2.0, ms(30_000), false),
            (ms(500), 2.0, ms(10), false),
        ] {
            assert_eq!(Backoff::try_new(base, factor, cap).is_ok(), fits, "{base:?} {factor} {cap:?}");
        }
    }

    #[test]
    fn b37_bounds_by_attempt_never_wrap() {
        let backoff = Backoff::default();
        let table = [
            (0, 500),
            (1, 1_000),
            (5, 16_000),
            (6, 30_000),
            (7, 30_000),
            (31, 30_000),
            (32, 30_000),
            (63, 30_000),
            (64, 30_000),
            (1_000, 30_000),
            (u32::MAX, 30_000),
        ];
        for (attempt, upper_bound_ms) in table {
            let upper_bound = Duration::from_millis(upper_bound_ms);
            assert_eq!(backoff.upper_bound(attempt), upper_bound, "attempt {attempt}");
            for seed in 0..50 {
                let wait = backoff.wait(attempt, Chance::from_seed(seed));
                assert!(wait >= BACKOFF_FLOOR && wait <= upper_bound, "attempt {attempt}: {wait:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn every_wait_lies_between_floor_and_cap(attempt: u32, seed: u64, base_ms in 1_u64..60_000, factor in 1.0_f64..1e9) {
            let cap = Duration::from_millis(base_ms.max(50));
            let backoff = Backoff::try_new(Duration::from_millis(base_ms), factor, cap).unwrap();
            let wait = backoff.wait(attempt, Chance::from_seed(seed));
            prop_assert!(wait >= BACKOFF_FLOOR && wait <= cap);
        }
    }
}
