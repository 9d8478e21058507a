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

/// No share is counted for this caller: it is a member of nothing here.
pub const NO_MEMBER: u16 = u16::MAX;

/// Who asks for a slot, as far as shares go: an agent of a provider, a feature, a class. Places in the lists that the slots were made with;
/// [`NO_MEMBER`] where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The agent's place.
    pub agent: u16,
    /// The feature's place.
    pub feature: u16,
    /// The class's place, the highest first.
    pub class: u16,
}

impl Member {
    /// An agent of no feature and no class.
    pub const fn agent(agent: u16) -> Self {
        Self { agent, feature: NO_MEMBER, class: NO_MEMBER }
    }
}

/// Which slot a call was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotOf {
    /// One that it was owed, as agent, feature or class with a minimum.
    Share,
    /// One that nobody is owed.
    Common,
}

/// What is kept of a compartment's slots, and for whom. Shares of agents, features and classes add up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guarantees {
    /// By agent. Nobody else takes what is left of an agent's own.
    pub agents: Vec<u32>,
    /// By feature, in the same way.
    pub features: Vec<u32>,
    /// By class, the highest first.
    pub classes: Vec<ClassShare>,
}

/// What is kept for a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassShare {
    /// Slots.
    pub slots: u32,
    /// Whom they are kept from.
    pub kept_from: KeptFrom,
}

/// Whom the slots of a class are kept from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptFrom {
    /// Lower classes: a higher one may take them.
    Lower,
    /// Everybody else: the stated minimum of a low class.
    All,
}

impl Guarantees {
    /// By agent only.
    pub fn of_agents(agents: &[u32]) -> Self {
        Self { agents: agents.to_vec(), ..Self::default() }
    }

    /// The same members, with nothing kept for any of them.
    fn nothing(&self) -> Self {
        let classes = self.classes.iter().map(|share| ClassShare { slots: 0, ..*share }).collect();
        Self { agents: vec![0; self.agents.len()], features: vec![0; self.features.len()], classes }
    }

    /// All that is kept. A slot that one kind of member is owed may be asked for by somebody who is owed none of another kind, so shares
    /// of different kinds add up.
    pub fn sum(&self) -> u64 {
        let kept_from_lower = self.classes.iter().filter(|share| share.kept_from == KeptFrom::Lower);
        self.owed() + kept_from_lower.map(|share| u64::from(share.slots)).sum::<u64>()
    }

    /// The part of it that is kept from everybody.
    fn owed(&self) -> u64 {
        let classes = self.classes.iter().filter(|share| share.kept_from == KeptFrom::All).map(|share| &share.slots);
        self.agents.iter().chain(&self.features).chain(classes).copied().map(u64::from).sum()
    }
}

/// The slots of one compartment: an agent, a provider, a feature, a tenant, or a feature of a tenant.
#[derive(Debug, Clone)]
pub struct Bulkhead {
    cap: u32,
    in_flight: u32,
    /// Of these, so many have a slot that nobody is owed.
    common: u32,
    /// All that is owed, whether it is used or not.
    owed: u32,
    agents: Shares,
    features: Shares,
    classes: Classes,
    started_sum: u128,
    /// The last moment at which a slot was taken.
    taken_last: Timestamp,
    /// Slots that were taken until then were given by other shares: which kind they are of says nothing any more.
    stale_until: Option<Timestamp>,
    /// In seconds.
    hold_mean: Option<f64>,
    refused: u64,
}

/// Guaranteed slots of members of one kind.
#[derive(Debug, Clone, Default)]
struct Shares {
    members: Vec<Share>,
    /// Slots that members have within their shares.
    within: u32,
}

#[derive(Debug, Clone, Copy)]
struct Share {
    guaranteed: u32,
    in_flight: u32,
}

impl Shares {
    /// Other guarantees for the same members; further ones begin with nothing in flight, and who is gone keeps its count.
    fn resize(&mut self, guaranteed: &[u32]) {
        let members = self.members.len().max(guaranteed.len());
        self.members.resize(members, Share { guaranteed: 0, in_flight: 0 });
        for (place, member) in self.members.iter_mut().enumerate() {
            member.guaranteed = guaranteed.get(place).copied().unwrap_or(0);
        }
        self.within = self.members.iter().map(|member| member.guaranteed.min(member.in_flight)).sum();
    }

    /// What this member does not use of its own.
    fn left(&self, member: u16) -> u32 {
        self.members.get(usize::from(member)).map_or(0, |member| member.guaranteed.saturating_sub(member.in_flight))
    }

    fn took(&mut self, member: u16) {
        if let Some(member) = self.members.get_mut(usize::from(member)) {
            self.within += u32::from(member.in_flight < member.guaranteed);
            member.in_flight += 1;
        }
    }

    fn gave_back(&mut self, member: u16) {
        // Who took its slot before it was a member was never counted as one.
        if let Some(member) = self.members.get_mut(usize::from(member)).filter(|member| member.in_flight > 0) {
            member.in_flight -= 1;
            self.within -= u32::from(member.in_flight < member.guaranteed);
        }
    }
}

/// Slots kept for classes.
#[derive(Debug, Clone, Default)]
struct Classes {
    classes: Vec<Class>,
}

#[derive(Debug, Clone, Copy)]
struct Class {
    share: ClassShare,
    in_flight: u32,
    /// Of these, those that nobody is owed.
    common: u32,
}

impl Classes {
    fn resize(&mut self, shares: &[ClassShare]) {
        let none = ClassShare { slots: 0, kept_from: KeptFrom::Lower };
        let classes = self.classes.len().max(shares.len());
        self.classes.resize(classes, Class { share: none, in_flight: 0, common: 0 });
        for (place, class) in self.classes.iter_mut().enumerate() {
            class.share = shares.get(place).copied().unwrap_or(none);
        }
    }

    /// What it does not use of its stated minimum.
    fn left(&self, class: u16) -> u32 {
        let own = self.classes.get(usize::from(class)).filter(|class| class.share.kept_from == KeptFrom::All);
        own.map_or(0, |class| class.share.slots.saturating_sub(class.in_flight))
    }

    /// Slots that classes have within their minimums.
    fn within(&self) -> u32 {
        let minimums = self.classes.iter().filter(|class| class.share.kept_from == KeptFrom::All);
        minimums.map(|class| class.in_flight.min(class.share.slots)).sum()
    }

    /// What higher classes keep from this one of the slots that nobody is owed, and do not use now.
    fn kept_from(&self, class: u16) -> u32 {
        let higher = self.classes.iter().take(usize::from(class));
        let keeping = higher.filter(|higher| higher.share.kept_from == KeptFrom::Lower);
        keeping.map(|higher| higher.share.slots.saturating_sub(higher.common)).sum()
    }

    fn took(&mut self, class: u16, slot: SlotOf) {
        if let Some(class) = self.classes.get_mut(usize::from(class)) {
            class.in_flight += 1;
            class.common += u32::from(slot == SlotOf::Common);
        }
    }

    fn gave_back(&mut self, class: u16, slot: SlotOf) {
        if let Some(class) = self.classes.get_mut(usize::from(class)) {
            class.in_flight = class.in_flight.saturating_sub(1);
            class.common = class.common.saturating_sub(u32::from(slot == SlotOf::Common));
        }
    }
}

impl Bulkhead {
    /// Slots of which nothing is kept for anybody: `cap` of them; 0 refuses everybody.
    pub fn single(cap: u32) -> Self {
        Self::shared(cap, &Guarantees::default())
    }

    /// Slots for several members with these guaranteed shares. Shares that do not fit into `cap` are none at all.
    pub fn shared(cap: u32, guarantees: &Guarantees) -> Self {
        let mut bulkhead = Self {
            cap,
            in_flight: 0,
            common: 0,
            owed: 0,
            agents: Shares::default(),
            features: Shares::default(),
            classes: Classes::default(),
            started_sum: 0,
            taken_last: Timestamp::ZERO,
            stale_until: None,
            hold_mean: None,
            refused: 0,
        };
        bulkhead.resize(cap, guarantees);
        bulkhead
    }

    /// The shares that members get when nothing is configured: an equal part each, none where there are fewer slots than members.
    pub fn equal_shares(cap: u32, members: usize) -> Vec<u32> {
        let count = u32::try_from(members).unwrap_or(u32::MAX).max(1);
        vec![cap / count; members]
    }

    /// Another cap and other shares for the same members, while calls run: shrinking below what is in flight only refuses newcomers.
    pub fn resize(&mut self, cap: u32, guarantees: &Guarantees) {
        self.cap = cap;
        let fit = guarantees.sum() <= u64::from(cap);
        let none = guarantees.nothing();
        let guarantees = if fit { guarantees } else { &none };
        // proof of no loss: what fits into `cap` is no more than it.
        self.owed = u32::try_from(guarantees.owed()).unwrap_or(cap);
        self.agents.resize(&guarantees.agents);
        self.features.resize(&guarantees.features);
        self.classes.resize(&guarantees.classes);
        self.common = self.beyond_shares();
        self.stale_until = (self.in_flight > 0).then_some(self.taken_last);
    }

    /// Whether there is a slot for `member` now. Who is owed one, as agent, feature or class with a minimum, gets any that is free. Who is owed
    /// none gets one of those that nobody is owed, and of these leaves what higher classes keep from it; else somebody who is owed a slot
    /// as a member of one kind could find it taken by those of another.
    pub fn has_room(&self, member: Member) -> bool {
        self.room_for(member) > 0
    }

    /// How many slots `member` could take now if nobody else took any.
    pub fn room_for(&self, member: Member) -> u32 {
        let taken = self.common_taken() + self.classes.kept_from(member.class);
        let common = (self.cap - self.owed).saturating_sub(taken);
        self.cap.saturating_sub(self.in_flight).min(self.own_left(member) + common)
    }

    /// One call uses what it is owed as a member of several kinds at once.
    fn own_left(&self, member: Member) -> u32 {
        let (agents, features) = (self.agents.left(member.agent), self.features.left(member.feature));
        agents.max(features).max(self.classes.left(member.class))
    }

    /// How many slots count as those that nobody is owed: as they were given, but never more than are in flight beyond the shares of one
    /// kind. A member that was beyond its share and now is within it has given such a slot back, whichever of its calls that was.
    fn common_taken(&self) -> u32 {
        self.common.min(self.beyond_shares())
    }

    fn beyond_shares(&self) -> u32 {
        let within = self.agents.within.max(self.features.within).max(self.classes.within());
        self.in_flight.saturating_sub(within)
    }

    /// Takes a slot for `member`, or none.
    pub fn try_take(&mut self, member: Member, now: Timestamp, chance: Chance) -> Result<SlotOf, Full> {
        if !self.has_room(member) {
            return Err(self.refuse(now, chance));
        }
        Ok(self.take(member, now))
    }

    /// Takes a slot that [`Bulkhead::has_room`] found.
    pub(super) fn take(&mut self, member: Member, now: Timestamp) -> SlotOf {
        let slot = if self.own_left(member) > 0 { SlotOf::Share } else { SlotOf::Common };
        self.in_flight += 1;
        self.common += u32::from(slot == SlotOf::Common);
        self.started_sum += u128::from(now.nanoseconds());
        self.taken_last = self.taken_last.max(now);
        self.agents.took(member.agent);
        self.features.took(member.feature);
        self.classes.took(member.class, slot);
        slot
    }

    /// A refusal for the lack of a slot, counted.
    pub(super) fn refuse(&mut self, now: Timestamp, chance: Chance) -> Full {
        self.refused += 1;
        Full { retry_after: self.retry_after(now, chance.share(self.refused)) }
    }

    /// Gives back the slot that `member` took at `taken`.
    pub fn give_back(&mut self, (member, slot): (Member, SlotOf), taken: Timestamp, now: Timestamp) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let is_stale = self.stale_until.is_some_and(|until| taken <= until);
        self.common = self.common.saturating_sub(u32::from(slot == SlotOf::Common && !is_stale));
        self.started_sum = self.started_sum.saturating_sub(u128::from(taken.nanoseconds()));
        let held = now.since(taken).as_secs_f64();
        let mean = self.hold_mean.map_or(held, |mean| mean * (1.0 - MEAN_HOLD_WEIGHT) + held * MEAN_HOLD_WEIGHT);
        self.hold_mean = Some(mean);
        self.agents.gave_back(member.agent);
        self.features.gave_back(member.feature);
        self.classes.gave_back(member.class, slot);
        if self.in_flight == 0 {
            (self.common, self.stale_until) = (0, None);
        }
    }

    /// Gives back a slot whose call never began: nothing is learnt from how long it was held.
    pub fn undo(&mut self, slot: (Member, SlotOf), taken: Timestamp) {
        let mean = self.hold_mean;
        self.give_back(slot, taken, taken);
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
        let spread = 1.0 + RETRY_AFTER_SPREAD * jitter;
        // The longest is spread too: callers that are all told the same come back all at once.
        let most = RETRY_AFTER_MAX.as_secs_f64() / (1.0 + RETRY_AFTER_SPREAD);
        if self.in_flight == 0 {
            return Duration::from_secs_f64(most * spread);
        }
        let count = f64::from(self.in_flight);
        // Whole numbers to the end: where moments are Unix times, a float could not tell two of them apart. The sum of all ages is bounded by
        // 584 years, so that the last step is one instruction and no call.
        let age_sum = (u128::from(now.nanoseconds()) * u128::from(self.in_flight)).saturating_sub(self.started_sum);
        let age_mean = u64::try_from(age_sum).unwrap_or(u64::MAX) as f64 / (count * 1e9);
        let hold_mean = self.hold_mean.unwrap_or(age_mean * 2.0);
        let estimate = (hold_mean - age_mean).max(hold_mean / count);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 10 s, as nanoseconds")]
        let nanoseconds = (estimate.clamp(RETRY_AFTER_MIN.as_secs_f64(), most) * spread * 1e9) as u64;
        Duration::from_nanos(nanoseconds)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHANCE: Chance = Chance::from_seed(1);

    fn equal(cap: u32, members: usize) -> Guarantees {
        Guarantees::of_agents(&Bulkhead::equal_shares(cap, members))
    }

    fn take(bulkhead: &mut Bulkhead, member: u16) -> bool {
        bulkhead.try_take(Member::agent(member), Timestamp::ZERO, CHANCE).is_ok()
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
        let mut bulkhead = Bulkhead::shared(4, &equal(4, 2));
        assert_eq!((0..10).filter(|_| take(&mut bulkhead, 0)).count(), 2);
        assert!(take(&mut bulkhead, 1) && take(&mut bulkhead, 1) && !take(&mut bulkhead, 1));
        let mut uneven = Bulkhead::shared(5, &equal(5, 2));
        assert_eq!((0..10).filter(|_| take(&mut uneven, 0)).count(), 3, "the odd slot is anybody's");
        assert_eq!(Bulkhead::equal_shares(1, 2), vec![0, 0], "fewer slots than agents: no shares");
        let mut one = Bulkhead::shared(1, &equal(1, 2));
        assert!(take(&mut one, 1) && !take(&mut one, 0));
    }

    #[test]
    fn a_class_keeps_its_share_from_lower_ones_and_a_minimum_from_all() {
        let share = |slots, kept_from| ClassShare { slots, kept_from };
        // interactive keeps 3 of 10, background its minimum of 1.
        let classes = vec![
            share(0, KeptFrom::Lower),
            share(3, KeptFrom::Lower),
            share(0, KeptFrom::Lower),
            share(1, KeptFrom::All),
        ];
        let guarantees = Guarantees { classes, ..Guarantees::default() };
        let take_all = |bulkhead: &mut Bulkhead, class| {
            let member = Member { agent: NO_MEMBER, feature: NO_MEMBER, class };
            (0..20).filter(|_| bulkhead.try_take(member, Timestamp::ZERO, CHANCE).is_ok()).count()
        };
        for (order, want) in
            [([2, 1, 3], [6, 3, 1]), ([3, 1, 2], [7, 3, 0]), ([0, 1, 3], [9, 0, 1]), ([1, 2, 3], [9, 0, 1])]
        {
            let mut bulkhead = Bulkhead::shared(10, &guarantees);
            assert_eq!(order.map(|class| take_all(&mut bulkhead, class)), want, "{order:?}");
        }
    }

    #[test]
    fn shares_of_features_are_kept_like_those_of_agents() {
        let guarantees = Guarantees { agents: vec![2, 0], features: vec![0, 2], ..Guarantees::default() };
        let mut bulkhead = Bulkhead::shared(5, &guarantees);
        let member = |agent, feature| Member { agent, feature, class: NO_MEMBER };
        let mut take = |agent, feature| bulkhead.try_take(member(agent, feature), Timestamp::ZERO, CHANCE).is_ok();
        assert_eq!((0..5).filter(|_| take(0, 0)).count(), 3, "two are kept for the other feature");
        assert!(!take(1, 0) && take(1, 1) && take(1, 1) && !take(0, 1));
    }

    #[test]
    fn shares_of_different_kinds_do_not_take_each_others_slots() {
        let share = |slots, kept_from| ClassShare { slots, kept_from };
        let kept = Guarantees {
            agents: vec![0],
            features: vec![4, 0],
            classes: vec![share(3, KeptFrom::Lower), share(0, KeptFrom::Lower), share(1, KeptFrom::All)],
        };
        assert_eq!(kept.sum(), 8);
        let mut bulkhead = Bulkhead::shared(10, &kept);
        let mut take_all = |feature, class| {
            let member = Member { agent: 0, feature, class };
            (0..20).filter(|_| bulkhead.try_take(member, Timestamp::ZERO, CHANCE).is_ok()).count()
        };
        assert_eq!(take_all(1, 1), 2, "a flood has what nobody keeps");
        assert_eq!(take_all(0, 1), 4, "the feature has its own, whatever classes keep");
        assert_eq!(take_all(1, 2), 1, "the lowest class has its minimum, whatever features keep");
        assert_eq!(take_all(1, 0), 3, "the highest class has the rest");
        let too_much = Guarantees { agents: vec![8], features: vec![8], ..Guarantees::default() };
        let mut none = Bulkhead::shared(10, &too_much);
        assert!((0..10).all(|_| {
            none.try_take(Member { agent: 0, feature: NO_MEMBER, class: NO_MEMBER }, Timestamp::ZERO, CHANCE).is_ok()
        }));
    }

    proptest! {
        /// Whoever is owed a slot gets one at every moment, in every history of others.
        #[test]
        fn what_is_owed_is_there_at_every_moment(
            agents in prop::collection::vec(0_u32..4, 0..3),
            features in prop::collection::vec(0_u32..4, 0..3),
            minimums in prop::collection::vec(0_u32..3, 0..3),
            spare in 0_u32..4,
            steps in prop::collection::vec((any::<bool>(), 0_u16..4, 0_u16..4, 0_u16..4, 0_usize..20), 0..120),
        ) {
            let classes = minimums.iter().map(|slots| ClassShare { slots: *slots, kept_from: KeptFrom::All }).collect();
            let kept = Guarantees { agents, features, classes };
            let cap = u32::try_from(kept.sum()).unwrap() + spare;
            let mut bulkhead = Bulkhead::shared(cap, &kept);
            let mut held: Vec<(Member, SlotOf)> = Vec::new();
            for (take, agent, feature, class, which) in steps {
                let member = Member { agent, feature, class };
                if take {
                    let count = |is: &dyn Fn(&Member) -> bool| u32::try_from(held.iter().filter(|(held, _)| is(held)).count()).unwrap();
                    let share = |shares: &[u32], place: u16| shares.get(usize::from(place)).copied().unwrap_or(0);
                    let is_owed = count(&|held| held.agent == agent) < share(&kept.agents, agent)
                        || count(&|held| held.feature == feature) < share(&kept.features, feature)
                        || count(&|held| held.class == class) < kept.classes.get(usize::from(class)).map_or(0, |share| share.slots);
                    let got = bulkhead.try_take(member, Timestamp::ZERO, CHANCE);
                    prop_assert!(got.is_ok() || !is_owed, "{:?} of {:?} with {:?}", member, kept, held);
                    held.extend(got.map(|slot| (member, slot)));
                } else if !held.is_empty() {
                    let member = held.swap_remove(which % held.len());
                    bulkhead.give_back(member, Timestamp::ZERO, Timestamp::ZERO);
                }
                prop_assert!(bulkhead.in_flight() <= cap);
                let (member, mut alone) = (Member { agent, feature, class }, bulkhead.clone());
                let got = (0..=cap).take_while(|_| alone.try_take(member, Timestamp::ZERO, CHANCE).is_ok()).count();
                let room = bulkhead.room_for(member) as usize;
                let kinds = [!kept.agents.is_empty(), !kept.features.is_empty(), !kept.classes.is_empty()];
                let is_one_kind = kinds.into_iter().filter(|is| *is).count() <= 1;
                prop_assert!(got == room || !is_one_kind && got > 0 && got < room, "{} of {}", got, room);
            }
        }
    }

    #[test]
    fn shrinking_below_what_is_in_flight_only_refuses_newcomers() {
        let mut bulkhead = Bulkhead::single(10);
        assert!((0..10).all(|_| take(&mut bulkhead, 0)));
        bulkhead.resize(2, &Guarantees::default());
        assert_eq!((bulkhead.in_flight(), take(&mut bulkhead, 0)), (10, false));
        for _ in 0..8 {
            bulkhead.give_back((Member::agent(0), SlotOf::Common), Timestamp::ZERO, Timestamp::from_millis(5));
        }
        assert!(!take(&mut bulkhead, 0));
        bulkhead.give_back((Member::agent(0), SlotOf::Common), Timestamp::ZERO, Timestamp::from_millis(5));
        assert!(take(&mut bulkhead, 0));
    }

    #[test]
    fn retry_after_comes_from_how_long_slots_are_held() {
        // A clock that begins with the runtime, and one that shows Unix time.
        for zero in [Timestamp::ZERO, Timestamp::from_millis(1_796_000_000_123)] {
            let mut bulkhead = Bulkhead::single(2);
            // Calls of 8 s; both slots taken together at 100 s: at 103 s about 5 s are left.
            let seconds = |seconds: u64| zero.after(Duration::from_secs(seconds));
            bulkhead.try_take(Member::agent(0), zero, CHANCE).unwrap();
            bulkhead.give_back((Member::agent(0), SlotOf::Common), zero, seconds(8));
            for _ in 0..2 {
                bulkhead.try_take(Member::agent(0), seconds(100), CHANCE).unwrap();
            }
            let full = bulkhead.try_take(Member::agent(0), seconds(103), CHANCE).unwrap_err();
            assert!((5.0..=6.25).contains(&full.retry_after.as_secs_f64()), "{full:?}");
        }
    }

    #[test]
    fn callers_that_are_refused_for_long_do_not_come_back_all_at_once() {
        // Nothing in flight and no slots; then slots that are held for an hour.
        let mut closed = Bulkhead::single(0);
        let mut slow = Bulkhead::single(1);
        slow.try_take(Member::agent(0), Timestamp::ZERO, CHANCE).unwrap();
        let later = Timestamp::ZERO.after(Duration::from_secs(3_600));
        for bulkhead in [&mut closed, &mut slow] {
            let told: std::collections::BTreeSet<Duration> =
                (0..100).map(|_| bulkhead.try_take(Member::agent(0), later, CHANCE).unwrap_err().retry_after).collect();
            assert_eq!(told.len(), 100);
            assert!(told.iter().all(|wait| (7_900..=10_000).contains(&wait.as_millis())), "{told:?}");
        }
    }

    proptest! {
        #[test]
        fn counts_agree_with_a_simple_model(
            cap in 0_u32..8,
            shares in prop::collection::vec(0_u32..4, 1..4),
            steps in prop::collection::vec((0_usize..4, any::<bool>(), 0_u32..8), 0..80),
        ) {
            let mut bulkhead = Bulkhead::shared(cap, &Guarantees::of_agents(&shares));
            let mut model = vec![0_u32; shares.len()];
            let mut slots: Vec<Vec<(SlotOf, Timestamp)>> = vec![Vec::new(); shares.len()];
            let mut cap = cap;
            for (at, (member, take, new_cap)) in steps.into_iter().enumerate() {
                let member = member % shares.len();
                let who = Member::agent(u16::try_from(member).unwrap());
                let now = Timestamp::from_millis(at as u64 * 10);
                if take {
                    let fit = shares.iter().sum::<u32>() <= cap;
                    let share = |index: usize| if fit { shares[index] } else { 0 };
                    let others: u32 = (0..shares.len()).filter(|other| *other != member).map(|other| share(other).saturating_sub(model[other])).sum();
                    let used: u32 = model.iter().sum();
                    // A member's own guaranteed slot needs room under the cap; any other slot leaves room for everybody's guarantee.
                    let free = cap.saturating_sub(used);
                    let want = if model[member] < share(member) { free > 0 } else { free > others };
                    let got = bulkhead.try_take(who, now, CHANCE);
                    prop_assert_eq!(got.is_ok(), want);
                    match got {
                        Ok(slot) => slots[member].push((slot, now)),
                        Err(full) => {
                            prop_assert!(full.retry_after >= RETRY_AFTER_MIN && full.retry_after <= RETRY_AFTER_MAX);
                        }
                    }
                    model[member] += u32::from(want);
                } else if model[member] > 0 {
                    model[member] -= 1;
                    let (slot, taken) = slots[member].pop().unwrap();
                    bulkhead.give_back((who, slot), taken, now);
                } else {
                    cap = new_cap;
                    bulkhead.resize(cap, &Guarantees::of_agents(&shares));
                }
                prop_assert_eq!(bulkhead.in_flight(), model.iter().sum::<u32>());
            }
        }
    }
}
