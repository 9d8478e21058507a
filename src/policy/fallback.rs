//! Which target a call asks first, which one after that, and for which failures another one may answer at all. Pure: chance is
//! handed in, and whether a target would take the call is not asked here.

use super::{chance::Chance, verdict::Keyed};
use crate::model::facts::Ending;

/// Whether another target may answer for a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elsewhere {
    /// The place, the key or the model failed: another one may do better.
    May,
    /// The request itself is at fault, its caller is gone or out of time, or part of the answer is out already.
    MayNot,
}

/// Where a failed call stands with regard to its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Nothing was passed on.
    None,
    /// Something was: nobody else can go on from there.
    Passed,
}

/// The table of reasons. It reads the fact, never a verdict: a refused key counts nowhere as a failure and still sends a call on.
pub fn elsewhere(ending: &Ending, content: Content, keyed: Keyed) -> Elsewhere {
    if content == Content::Passed {
        return Elsewhere::MayNot;
    }
    match ending {
        Ending::Network { .. }
        | Ending::Timeout { .. }
        | Ending::BadReply
        | Ending::StreamCut
        | Ending::OwnRefusal
        | Ending::Restarted => Elsewhere::May,
        Ending::Status { content_filter: true, .. } | Ending::Status { context_too_long: true, .. } => {
            Elsewhere::MayNot
        }
        Ending::Status { quota_spent: Some(_), .. } => Elsewhere::May,
        Ending::Status { status, retryable, .. } => match status {
            // Our key, so our place to be wrong; without one it is the caller who is told.
            401 | 403 if keyed == Keyed::Yes => Elsewhere::May,
            // Paths and models are configured: what is not there is missing at this target only.
            404 | 408 | 425 | 429 | 500..=599 => Elsewhere::May,
            400..=499 if *retryable == Some(true) => Elsewhere::May,
            400..=499 => Elsewhere::MayNot,
            _ => Elsewhere::May,
        },
        Ending::Success | Ending::CallerShape | Ending::Cancelled { .. } | Ending::DeadlineCut | Ending::Internal => {
            Elsewhere::MayNot
        }
    }
}

/// A target's place in its agent's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// Lower ones are asked first.
    pub order: u32,
    /// The share among those of equal order.
    pub weight: u32,
}

/// The order in which one call asks its targets, as places in `ranks`: lower orders first, those of one order drawn by weight. Each
/// target stands in it exactly once. `count` tells calls apart.
pub fn plan(ranks: &[Rank], chance: Chance, count: u64) -> Vec<usize> {
    let chance = chance.fork(count);
    let mut left: Vec<usize> = (0..ranks.len()).collect();
    left.sort_by_key(|place| ranks.get(*place).map_or(u32::MAX, |rank| rank.order));
    let mut planned = Vec::with_capacity(left.len());
    let mut draw = 0;
    while let Some(order) = left.first().and_then(|place| ranks.get(*place)).map(|rank| rank.order) {
        let equal = left.iter().take_while(|place| ranks.get(**place).is_some_and(|rank| rank.order == order)).count();
        let weight = |place: &usize| ranks.get(*place).map_or(0, |rank| u64::from(rank.weight));
        let total: u64 = left.iter().take(equal).map(weight).sum();
        let mut at = chance.share(draw) * total as f64;
        draw += 1;
        let mut chosen = 0;
        for (index, place) in left.iter().take(equal).enumerate() {
            chosen = index;
            at -= weight(place) as f64;
            if at < 0.0 {
                break;
            }
        }
        planned.push(left.remove(chosen));
    }
    planned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::{QuotaReset, TimeoutKind};

    const CHANCE: Chance = Chance::from_seed(11);

    fn status(status: u16) -> Ending {
        Ending::status(status)
    }

    #[test]
    fn the_table_of_reasons() {
        use Elsewhere::{May, MayNot};
        let told = |status, retryable| Ending::Status {
            status,
            retryable: Some(retryable),
            content_filter: false,
            context_too_long: false,
            quota_spent: None,
        };
        let of_content = |content_filter| Ending::Status {
            status: 400,
            retryable: Some(true),
            content_filter,
            context_too_long: !content_filter,
            quota_spent: None,
        };
        let spent = |status| Ending::Status {
            status,
            retryable: Some(false),
            content_filter: false,
            context_too_long: false,
            quota_spent: Some(QuotaReset::Unknown),
        };
        for (ending, want) in [
            (Ending::Network { connected: false }, May),
            (Ending::Network { connected: true }, May),
            (Ending::Timeout { timeout: TimeoutKind::FirstToken }, May),
            (Ending::Timeout { timeout: TimeoutKind::Call }, May),
            (Ending::BadReply, May),
            (Ending::StreamCut, May),
            (Ending::OwnRefusal, May),
            (Ending::Restarted, May),
            (status(500), May),
            (told(503, false), May),
            (status(529), May),
            (status(429), May),
            (spent(429), May),
            (spent(402), May),
            (status(401), May),
            (status(403), May),
            (status(404), May),
            (status(408), May),
            (told(409, true), May),
            (status(302), May),
            (status(400), MayNot),
            (status(409), MayNot),
            (status(413), MayNot),
            (status(422), MayNot),
            (of_content(true), MayNot),
            (of_content(false), MayNot),
            (Ending::CallerShape, MayNot),
            (Ending::Cancelled { slow_without_content: true }, MayNot),
            (Ending::DeadlineCut, MayNot),
            (Ending::Internal, MayNot),
            (Ending::Success, MayNot),
        ] {
            assert_eq!(elsewhere(&ending, Content::None, Keyed::Yes), want, "{ending:?}");
            assert_eq!(elsewhere(&ending, Content::Passed, Keyed::Yes), MayNot, "{ending:?}");
        }
        assert_eq!(elsewhere(&status(401), Content::None, Keyed::No), MayNot, "the caller's own key");
    }

    #[test]
    fn orders_come_first_and_weights_share_among_equals() {
        let ranks = [(1, 1), (0, 3), (0, 1), (2, 1)].map(|(order, weight)| Rank { order, weight });
        let mut first = [0_u32; 4];
        for count in 0..4_000 {
            let planned = plan(&ranks, CHANCE, count);
            let mut sorted = planned.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3], "each once");
            assert_eq!(planned[2..], [0, 3], "{planned:?}");
            first[planned[0]] += 1;
        }
        assert_eq!((first[0], first[3]), (0, 0));
        assert!((2_850..3_150).contains(&first[1]), "three of four: {first:?}");
        assert_eq!(plan(&ranks, CHANCE, 7), plan(&ranks, CHANCE, 7), "the same chance, the same plan");
        assert!(plan(&[], CHANCE, 0).is_empty());
    }
}
