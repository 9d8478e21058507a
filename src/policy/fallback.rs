//! Which target a call asks first, which one after that, and for which failures another one may answer at all. Pure: chance is
//! handed in, and whether a target would take the call is not asked here.

use super::{chance::Chance, verdict::Keyed};
use crate::model::facts::Ending;

/// Whether another target may answer for a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elsewhere {
    /// The place, the key or the model failed: another one may do better.
    May(Reason),
    /// None may, as time is up; but nothing of an answer is out, so that something else may stand in.
    Later,
    /// The request itself is at fault, its caller is gone, or part of the answer is out already.
    MayNot,
}

/// Why a target is passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// No answer: network error, or a stream that was cut before its first content.
    Network,
    /// One of our own timeouts.
    Timeout,
    /// An answer that is not of the promised shape.
    BadReply,
    /// A 5xx, or a status that means nothing to us.
    ServerError,
    /// A 429.
    RateLimited,
    /// A quota is used up, or the account has to be paid (402).
    QuotaSpent,
    /// Our key was refused.
    KeyRejected,
    /// The place does not know what is configured there (404).
    NotThere,
    /// Another 4xx that says that a later try can succeed.
    AskedLater,
    /// Its gate is shut.
    GateShut,
    /// No slot there.
    SlotsFull,
    /// Its token budget is used up.
    TokensSpent,
    /// It is not up yet.
    Warming,
    /// Its actor died with the call queued.
    Restarted,
}

impl Reason {
    /// Every reason, in the order of the table.
    pub const ALL: [Self; 14] = [
        Self::Network,
        Self::Timeout,
        Self::BadReply,
        Self::ServerError,
        Self::RateLimited,
        Self::QuotaSpent,
        Self::KeyRejected,
        Self::NotThere,
        Self::AskedLater,
        Self::GateShut,
        Self::SlotsFull,
        Self::TokensSpent,
        Self::Warming,
        Self::Restarted,
    ];

    /// The word on metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Timeout => "timeout",
            Self::BadReply => "bad_reply",
            Self::ServerError => "server_error",
            Self::RateLimited => "rate_limited",
            Self::QuotaSpent => "quota_spent",
            Self::KeyRejected => "key_rejected",
            Self::NotThere => "not_there",
            Self::AskedLater => "asked_later",
            Self::GateShut => "gate_shut",
            Self::SlotsFull => "slots_full",
            Self::TokensSpent => "tokens_spent",
            Self::Warming => "warming",
            Self::Restarted => "restarted",
        }
    }
}

/// Where a failed call stands with regard to its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Nothing was passed on.
    None,
    /// Something was, or may have been: nobody else can go on from there.
    Passed,
}

/// The table of reasons. It reads the fact, never a verdict: a refused key counts nowhere as a failure and still sends a call on.
pub fn elsewhere(ending: &Ending, content: Content, keyed: Keyed) -> Elsewhere {
    use Elsewhere::{Later, May, MayNot};
    if content == Content::Passed {
        return MayNot;
    }
    match ending {
        Ending::Network { .. } | Ending::StreamCut => May(Reason::Network),
        Ending::Timeout { .. } => May(Reason::Timeout),
        Ending::BadReply | Ending::NoDraft => May(Reason::BadReply),
        Ending::OwnRefusal | Ending::Loading => May(Reason::Warming),
        Ending::Restarted => May(Reason::Restarted),
        Ending::Status { content_filter: true, .. } | Ending::Status { context_too_long: true, .. } => MayNot,
        Ending::Status { quota_spent: Some(_), .. } => May(Reason::QuotaSpent),
        Ending::Status { status, retryable, .. } => match status {
            // Our key, so our place to be wrong; without one it is the caller who is told.
            401 | 403 if keyed == Keyed::Yes => May(Reason::KeyRejected),
            402 => May(Reason::QuotaSpent),
            // Paths and models are configured: what is not there is missing at this target only.
            404 => May(Reason::NotThere),
            429 => May(Reason::RateLimited),
            408 | 425 => May(Reason::AskedLater),
            400..=499 if *retryable == Some(true) => May(Reason::AskedLater),
            400..=499 => MayNot,
            _ => May(Reason::ServerError),
        },
        Ending::DeadlineCut => Later,
        Ending::Success | Ending::CallerShape | Ending::Cancelled { .. } | Ending::Internal => MayNot,
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
            (Ending::Network { connected: false }, May(Reason::Network)),
            (Ending::Network { connected: true }, May(Reason::Network)),
            (Ending::Timeout { timeout: TimeoutKind::FirstToken }, May(Reason::Timeout)),
            (Ending::Timeout { timeout: TimeoutKind::Call }, May(Reason::Timeout)),
            (Ending::BadReply, May(Reason::BadReply)),
            (Ending::NoDraft, May(Reason::BadReply)),
            (Ending::StreamCut, May(Reason::Network)),
            (Ending::OwnRefusal, May(Reason::Warming)),
            (Ending::Loading, May(Reason::Warming)),
            (Ending::Restarted, May(Reason::Restarted)),
            (status(500), May(Reason::ServerError)),
            (told(503, false), May(Reason::ServerError)),
            (status(529), May(Reason::ServerError)),
            (status(429), May(Reason::RateLimited)),
            (spent(429), May(Reason::QuotaSpent)),
            (spent(402), May(Reason::QuotaSpent)),
            (status(401), May(Reason::KeyRejected)),
            (status(403), May(Reason::KeyRejected)),
            (status(402), May(Reason::QuotaSpent)),
            (status(404), May(Reason::NotThere)),
            (status(408), May(Reason::AskedLater)),
            (told(409, true), May(Reason::AskedLater)),
            (status(302), May(Reason::ServerError)),
            (status(400), MayNot),
            (status(409), MayNot),
            (status(413), MayNot),
            (status(422), MayNot),
            (of_content(true), MayNot),
            (of_content(false), MayNot),
            (Ending::CallerShape, MayNot),
            (Ending::Cancelled { slow_without_content: true }, MayNot),
            (Ending::DeadlineCut, Elsewhere::Later),
            (Ending::Internal, MayNot),
            (Ending::Success, MayNot),
        ] {
            assert_eq!(elsewhere(&ending, Content::None, Keyed::Yes), want, "{ending:?}");
            assert_eq!(elsewhere(&ending, Content::Passed, Keyed::Yes), MayNot, "{ending:?}");
        }
        assert_eq!(elsewhere(&status(401), Content::None, Keyed::No), MayNot, "the caller's own key");
        let words: std::collections::HashSet<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
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
