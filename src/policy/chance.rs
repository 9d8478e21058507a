//! Chance without a source of randomness: a share in [0, 1) that is a function of a seed and of what it is for.
//! The same seed and the same history give the same jitter, live, in replay and in a failed test's re-run.

/// A seed, handed in by whoever owns real randomness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chance {
    seed: u64,
}

impl Chance {
    /// Chance from this seed.
    pub const fn from_seed(seed: u64) -> Self {
        Self { seed }
    }

    /// The seed.
    pub const fn seed(self) -> u64 {
        self.seed
    }

    /// Another stream of chance for `purpose`, independent of this one.
    #[must_use]
    pub const fn fork(self, purpose: u64) -> Self {
        Self { seed: mix(self.seed ^ mix(purpose)) }
    }

    /// The `count`th share of this stream, at least 0 and below 1.
    pub fn share(self, count: u64) -> f64 {
        let bits = mix(self.seed.wrapping_add(count.wrapping_mul(GOLDEN)));
        // 53 bits are what an f64 can hold exactly.
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// 2^64 divided by the golden ratio; the step of `SplitMix64` (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of `SplitMix64`.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(GOLDEN);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_lie_in_range_and_spread() {
        let chance = Chance::from_seed(7);
        let shares: Vec<f64> = (0..10_000).map(|count| chance.share(count)).collect();
        assert!(shares.iter().all(|share| (0.0..1.0).contains(share)));
        let mean = shares.iter().sum::<f64>() / 10_000.0;
        assert!((0.48..0.52).contains(&mean), "{mean}");
        let low = shares.iter().filter(|share| **share < 0.1).count();
        assert!((900..1_100).contains(&low), "{low}");
    }

    #[test]
    fn the_same_seed_gives_the_same_and_another_another() {
        assert_eq!(Chance::from_seed(1).share(5).to_bits(), Chance::from_seed(1).share(5).to_bits());
        assert_ne!(Chance::from_seed(1).share(5).to_bits(), Chance::from_seed(2).share(5).to_bits());
        assert_ne!(Chance::from_seed(1).fork(1).share(0).to_bits(), Chance::from_seed(1).fork(2).share(0).to_bits());
    }
}
