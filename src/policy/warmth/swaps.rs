//! What models of one server do to each other: whether one throws another out, and when that happens so often that somebody should hear
//! of it. It counts and compares; it knows no server.

use std::{collections::VecDeque, time::Duration};

use crate::model::clock::Timestamp;

/// So many swaps ...
pub const SWAPS_MAX: usize = 3;
/// ... within this time are worth an alarm, and one alarm is enough for as long.
pub const SWAPS_WITHIN: Duration = Duration::from_secs(600);

/// A model at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    /// The provider.
    pub provider: &'a str,
    /// The model there; `None` = whatever the server has.
    pub model: Option<&'a str>,
}

/// Whether using `other` throws `main` out, on a server that keeps `models_max` models loaded (`None` = not known): only a server that
/// keeps a single one is sure to. A step of a ladder that would is skipped.
pub fn would_evict(main: Place<'_>, other: Place<'_>, models_max: Option<u32>) -> bool {
    models_max == Some(1) && main.provider == other.provider && main.model != other.model
}

/// The swaps of one server.
#[derive(Debug, Clone, Default)]
pub struct Swaps {
    /// The latest, oldest first, at most [`SWAPS_MAX`].
    latest: VecDeque<Timestamp>,
    alarmed_at: Option<Timestamp>,
}

impl Swaps {
    /// A model was thrown out while it was still wanted. True if it is time to say so.
    pub fn count(&mut self, now: Timestamp) -> bool {
        if self.latest.len() == SWAPS_MAX {
            self.latest.pop_front();
        }
        self.latest.push_back(now);
        let many = self.latest.len() == SWAPS_MAX
            && self.latest.front().is_some_and(|first| now.since(*first) <= SWAPS_WITHIN);
        let said = self.alarmed_at.is_some_and(|alarmed| now.since(alarmed) < SWAPS_WITHIN);
        if many && !said {
            self.alarmed_at = Some(now);
        }
        many && !said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_throws_out_whom() {
        let place = |provider, model| Place { provider, model: Some(model) };
        for (other, models_max, want) in [
            (place("local", "small"), Some(1), true),
            (place("local", "small"), Some(2), false),
            (place("local", "small"), None, false),
            (place("local", "large"), Some(1), false),
            (place("cloud", "small"), Some(1), false),
        ] {
            assert_eq!(would_evict(place("local", "large"), other, models_max), want, "{other:?} {models_max:?}");
        }
    }

    #[test]
    fn an_alarm_is_raised_once_and_again_only_much_later() {
        let at = |seconds: u64| Timestamp::from_millis(seconds * 1_000);
        let mut swaps = Swaps::default();
        let alarms: Vec<u64> = (0..30).map(|number| number * 60).filter(|second| swaps.count(at(*second))).collect();
        assert_eq!(alarms, [120, 720, 1_320]);
        let mut rare = Swaps::default();
        assert!((0..50).all(|number| !rare.count(at(number * 301))), "two in ten minutes are no habit");
    }
}
