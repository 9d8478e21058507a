//! Slots: how many calls are in flight at once, for one agent or for a provider that several agents share. Zero wait: there is a slot
//! or there is none. Check and count are one step under the owner's lock, so `cap` calls pass and never one less or more.

use std::time::Duration;

use super::chance::Chance;
use crate::model::clock::Timestamp;

/// The least and the longest time a refused caller is told to stay away.
pub const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
/// See [`RETRY_AFTER_MIN`].
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);

/// How much a new holding time moves the mean: about the last ten count.
const MEAN_HOLD_WEIGHT: f64 = 0.2;
/// Refused callers come back spread over this share of the estimate.
const RETRY_AFTER_SPREAD: f64 = 0.25;

/// No slot for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no slot free")]
pub struct Full {
    /// When a slot may be free, judged by how long slots are really held; 1 to 10 s.
    pub retry_after: Duration,
}

/// The slots of one compartment. Its members are the agents of a provider; an agent's own slots have one member.
#[derive(Debug, Clone)]
pub struct Bulkhead {
    cap: u32,
    in_flight: u32,
    members: Vec<Member>,
    /// Guaranteed slots that their members do not use now: nobody else may take these.
    reserved: u32,
    started_sum: u128,
    hold_mean: Option<Duration>,
    refused: u64,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    guaranteed: u32,
    in_flight: u32,
}

impl Bulkhead {
    /// Slots for one member: `cap` of them; 0 refuses everybody.
    pub fn single(cap: u32) -> Self {
        Self::shared(cap, &[0])
    }

    /// Slots for several members with these guaranteed shares. Shares that do not fit into `cap` are none at all.
    pub fn shared(cap: u32, guaranteed: &[u32]) -> Self {
        let members = guaranteed.iter().map(|guaranteed| Member { guaranteed: *guaranteed, in_flight: 0 }).collect();
        let mut bulkhead =
            Self { cap, in_flight: 0, members, reserved: 0, started_sum: 0, hold_mean: None, refused: 0 };
        bulkhead.resize(cap, guaranteed);
        bulkhead
    }

    /// The shares that members get when nothing is configured: an equal part each, none where there are fewer slots than members.
    pub fn equal_shares(cap: u32, members: usize) -> Vec<u32> {
        let count = u32::try_from(members).unwrap_or(u32::MAX).max(1);
        vec![cap / count; members]
    }

    /// Another cap and other shares for the same members, while calls run: shrinking below what is in flight only refuses newcomers.
    pub fn resize(&mut self, cap: u32, guaranteed: &[u32]) {
        self.cap = cap;
        let fit = guaranteed.iter().try_fold(0_u32, |sum, share| sum.checked_add(*share)).is_some_and(|sum| sum <= cap);
        for (member, share) in self.members.iter_mut().zip(guaranteed) {
            member.guaranteed = if fit { *share } else { 0 };
        }
        self.reserved = self.members.iter().map(|member| member.guaranteed.saturating_sub(member.in_flight)).sum();
    }

    /// Takes a slot for `member`, or none.
    pub fn try_take(&mut self, member: usize, now: Timestamp, chance: Chance) -> Result<(), Full> {
        let free = self.cap.saturating_sub(self.in_flight);
        let own = self.members.get(member).is_some_and(|member| member.in_flight < member.guaranteed);
        let open = if own { free > 0 } else { free > self.reserved };
        if !open {
            self.refused += 1;
            return Err(Full { retry_after: self.retry_after(now, chance.share(self.refused)) });
        }
        self.in_flight += 1;
        self.started_sum += u128::from(now.nanoseconds());
        if let Some(member) = self.members.get_mut(member) {
            member.in_flight += 1;
        }
        if own {
            self.reserved -= 1;
        }
        Ok(())
    }

    /// Gives back the slot that `member` took at `taken`.
    pub fn give_back(&mut self, member: usize, taken: Timestamp, now: Timestamp) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.started_sum = self.started_sum.saturating_sub(u128::from(taken.nanoseconds()));
        let held = now.since(taken).as_secs_f64();
        let mean =
            self.hold_mean.map_or(held, |mean| mean.as_secs_f64() * (1.0 - MEAN_HOLD_WEIGHT) + held * MEAN_HOLD_WEIGHT);
        self.hold_mean = Some(Duration::from_secs_f64(mean));
        if let Some(member) = self.members.get_mut(member) {
            member.in_flight = member.in_flight.saturating_sub(1);
            if member.in_flight < member.guaranteed {
                self.reserved += 1;
            }
        }
    }

    /// Gives back a slot whose call never began: nothing is learnt from how long it was held.
    pub fn undo(&mut self, member: usize, taken: Timestamp) {
        let mean = self.hold_mean;
        self.give_back(member, taken, taken);
        self.hold_mean = mean;
    }

    /// Slots taken now.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Slots in all.
    pub fn cap(&self) -> u32 {
        self.cap
    }

    /// How long until a slot may be free: what the calls in flight have left of the usual holding time, if they all began together;
    /// the gap between two ends, if they are spread; with a share of jitter, 1 to 10 s.
    fn retry_after(&self, now: Timestamp, jitter: f64) -> Duration {
        if self.in_flight == 0 {
            return RETRY_AFTER_MAX;
        }
        let count = f64::from(self.in_flight);
        // Whole numbers to the end: where moments are Unix times, a float could not tell two of them apart.
        let age_sum = (u128::from(now.nanoseconds()) * u128::from(self.in_flight)).saturating_sub(self.started_sum);
        let age_mean = age_sum as f64 / count / 1e9;
        let hold_mean = self.hold_mean.map_or(age_mean * 2.0, |mean| mean.as_secs_f64());
        let estimate = (hold_mean - age_mean).max(hold_mean / count);
        let spread = estimate.max(RETRY_AFTER_MIN.as_secs_f64()) * (1.0 + RETRY_AFTER_SPREAD * jitter);
        Duration::from_secs_f64(spread.min(RETRY_AFTER_MAX.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHANCE: Chance = Chance::from_seed(1);

    fn take(bulkhead: &mut Bulkhead, member: usize) -> bool {
        bulkhead.try_take(member, Timestamp::ZERO, CHANCE).is_ok()
    }

    #[test]
    fn cap_calls_pass_and_not_one_less() {
        for (cap, callers, pass) in [(5, 6, 5), (1, 2, 1), (0, 3, 0)] {
            let mut bulkhead = Bulkhead::single(cap);
            assert_eq!((0..callers).filter(|_| take(&mut bulkhead, 0)).count(), pass, "cap {cap}");
        }
    }

    #[test]
    fn guaranteed_shares_are_never_taken_by_others() {
        let mut bulkhead = Bulkhead::shared(4, &Bulkhead::equal_shares(4, 2));
        assert_eq!((0..10).filter(|_| take(&mut bulkhead, 0)).count(), 2);
        assert!(take(&mut bulkhead, 1) && take(&mut bulkhead, 1) && !take(&mut bulkhead, 1));
        let mut uneven = Bulkhead::shared(5, &Bulkhead::equal_shares(5, 2));
        assert_eq!((0..10).filter(|_| take(&mut uneven, 0)).count(), 3, "the odd slot is anybody's");
        assert_eq!(Bulkhead::equal_shares(1, 2), vec![0, 0], "fewer slots than agents: no shares");
        let mut one = Bulkhead::shared(1, &Bulkhead::equal_shares(1, 2));
        assert!(take(&mut one, 1) && !take(&mut one, 0));
    }

    #[test]
    fn shrinking_below_what_is_in_flight_only_refuses_newcomers() {
        let mut bulkhead = Bulkhead::single(10);
        assert!((0..10).all(|_| take(&mut bulkhead, 0)));
        bulkhead.resize(2, &[0]);
        assert_eq!((bulkhead.in_flight(), take(&mut bulkhead, 0)), (10, false));
        for _ in 0..8 {
            bulkhead.give_back(0, Timestamp::ZERO, Timestamp::from_millis(5));
        }
        assert!(!take(&mut bulkhead, 0));
        bulkhead.give_back(0, Timestamp::ZERO, Timestamp::from_millis(5));
        assert!(take(&mut bulkhead, 0));
    }

    #[test]
    fn retry_after_comes_from_how_long_slots_are_held() {
        // A clock that begins with the runtime, and one that shows Unix time.
        for zero in [Timestamp::ZERO, Timestamp::from_millis(1_796_000_000_123)] {
            let mut bulkhead = Bulkhead::single(2);
            // Calls of 8 s; both slots taken together at 100 s: at 103 s about 5 s are left.
            let seconds = |seconds: u64| zero.after(Duration::from_secs(seconds));
            bulkhead.try_take(0, zero, CHANCE).unwrap();
            bulkhead.give_back(0, zero, seconds(8));
            for _ in 0..2 {
                bulkhead.try_take(0, seconds(100), CHANCE).unwrap();
            }
            let full = bulkhead.try_take(0, seconds(103), CHANCE).unwrap_err();
            assert!((5.0..=6.25).contains(&full.retry_after.as_secs_f64()), "{full:?}");
        }
    }

    proptest! {
        #[test]
        fn counts_agree_with_a_simple_model(
            cap in 0_u32..8,
            shares in prop::collection::vec(0_u32..4, 1..4),
            steps in prop::collection::vec((0_usize..4, any::<bool>(), 0_u32..8), 0..80),
        ) {
            let mut bulkhead = Bulkhead::shared(cap, &shares);
            let mut model = vec![0_u32; shares.len()];
            let mut cap = cap;
            for (at, (member, take, new_cap)) in steps.into_iter().enumerate() {
                let member = member % shares.len();
                let now = Timestamp::from_millis(at as u64 * 10);
                if take {
                    let fit = shares.iter().sum::<u32>() <= cap;
                    let share = |index: usize| if fit { shares[index] } else { 0 };
                    let others: u32 = (0..shares.len()).filter(|other| *other != member).map(|other| share(other).saturating_sub(model[other])).sum();
                    let used: u32 = model.iter().sum();
                    // A member's own guaranteed slot needs room under the cap; any other slot leaves room for everybody's guarantee.
                    let free = cap.saturating_sub(used);
                    let want = if model[member] < share(member) { free > 0 } else { free > others };
                    let got = bulkhead.try_take(member, now, CHANCE);
                    prop_assert_eq!(got.is_ok(), want);
                    if let Err(full) = got {
                        prop_assert!(full.retry_after >= RETRY_AFTER_MIN && full.retry_after <= RETRY_AFTER_MAX);
                    }
                    model[member] += u32::from(want);
                } else if model[member] > 0 {
                    model[member] -= 1;
                    bulkhead.give_back(member, Timestamp::ZERO, now);
                } else {
                    cap = new_cap;
                    bulkhead.resize(cap, &shares);
                }
                prop_assert_eq!(bulkhead.in_flight(), model.iter().sum::<u32>());
            }
        }
    }
}
