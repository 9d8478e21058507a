//! What counts as failure: one total function over outcomes, for each breaker that may record it. First row that fits wins;
//! the rows are those of `docs/adr/0007`. The retry plan never asks here: it reads the envelope.

use std::time::Duration;

use crate::model::facts::{Ending, QuotaReset};

/// What a breaker makes of an outcome. Slow is an axis of its own beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Counts as good.
    Success,
    /// Counts as bad.
    Failure {
        /// True for no usable answer at all (rows 1 and 2): the only kind that counts for failures in a row.
        hard: bool,
    },
    /// Neither, nor slow; a trial goes back. Never dilutes a share.
    Ignored,
}

/// What an outcome means for the key that was used, beside its count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAct {
    /// Nothing.
    None,
    /// The key was refused (401, 403): shut its breaker until an operator or a reload.
    Reject,
    /// Its quota is spent: stay away until the reset.
    Cool(QuotaReset),
}

/// The verdicts of one outcome, for each breaker on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// For the agent's target.
    pub target: Verdict,
    /// For the key, if one was used.
    pub key: Verdict,
    /// For the shared provider.
    pub provider: Verdict,
    /// For the key, beside its count.
    pub key_act: KeyAct,
}

impl Judgement {
    const IGNORED: Self =
        Self { target: Verdict::Ignored, key: Verdict::Ignored, provider: Verdict::Ignored, key_act: KeyAct::None };
}

/// Whether the agent has a key of its provider: then the key owns what is the key's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keyed {
    /// It has.
    Yes,
    /// It has not: its target's breaker stands for the key's.
    No,
}

const HARD: Verdict = Verdict::Failure { hard: true };
const SOFT: Verdict = Verdict::Failure { hard: false };

/// The verdicts of an outcome.
pub fn judge(ending: &Ending, keyed: Keyed) -> Judgement {
    let ignored = Judgement::IGNORED;
    match ending {
        // Row 0. A cancel after the slow threshold without any content is the one way to learn of a hang shorter than our timeout.
        Ending::Cancelled { slow_without_content: true } => Judgement { target: SOFT, ..ignored },
        Ending::Cancelled { .. }
        | Ending::OwnRefusal
        | Ending::Loading
        | Ending::Restarted
        | Ending::Internal
        | Ending::DeadlineCut => ignored,
        // Nothing was asked of the model, so nothing is known of how it answers.
        Ending::NoDraft => ignored,
        // Row 1.
        Ending::Network { .. } | Ending::Timeout { .. } | Ending::StreamCut => {
            Judgement { target: HARD, provider: HARD, ..ignored }
        }
        // The place answered; only this agent's promise was missed.
        Ending::BadReply => Judgement { target: HARD, provider: Verdict::Success, ..ignored },
        // Row 4, by shape.
        Ending::CallerShape => ignored,
        // Row 6.
        Ending::Success => Judgement {
            target: Verdict::Success,
            provider: Verdict::Success,
            key: if keyed == Keyed::Yes { Verdict::Success } else { Verdict::Ignored },
            key_act: KeyAct::None,
        },
        Ending::Status { status, retryable, content_filter, context_too_long, quota_spent } => {
            let of_content = *content_filter || *context_too_long;
            judge_status(*status, *retryable, of_content, *quota_spent, keyed)
        }
    }
}

fn judge_status(
    status: u16,
    retryable: Option<bool>,
    of_content: bool,
    quota_spent: Option<QuotaReset>,
    keyed: Keyed,
) -> Judgement {
    let ignored = Judgement::IGNORED;
    match status {
        // Row 2.
        500..=599 => Judgement { target: HARD, provider: HARD, ..ignored },
        // Row 3. A 402 that names a spent quota is the same thing by another number.
        429 => of_key(SOFT, quota_spent.map_or(KeyAct::None, KeyAct::Cool), keyed),
        402 if quota_spent.is_some() => of_key(SOFT, quota_spent.map_or(KeyAct::None, KeyAct::Cool), keyed),
        // Row 4.
        401 | 403 if keyed == Keyed::Yes && !of_content && retryable != Some(true) => {
            Judgement { key_act: KeyAct::Reject, ..ignored }
        }
        400..=499 if of_content || retryable != Some(true) => ignored,
        // Row 5 (other 4xx, to be tried again) and row 7 (what has no row of its own).
        _ => Judgement { target: SOFT, ..ignored },
    }
}

/// What is the key's fault is recorded there, and in the target's breaker only where no key stands for it.
fn of_key(verdict: Verdict, key_act: KeyAct, keyed: Keyed) -> Judgement {
    match keyed {
        Keyed::Yes => Judgement { key: verdict, key_act, ..Judgement::IGNORED },
        Keyed::No => Judgement { target: verdict, key_act, ..Judgement::IGNORED },
    }
}

/// A 429 that asks for a longer pause than we would ever sleep is a spent quota, whatever its code.
#[must_use]
pub fn with_far_reset(ending: Ending, retry_after: Option<Duration>, retry_wait_max: Duration) -> Ending {
    match (ending, retry_after) {
        (
            Ending::Status { status: 429, retryable, content_filter, context_too_long, quota_spent: None },
            Some(wait),
        ) if wait > retry_wait_max => Ending::Status {
            status: 429,
            retryable,
            content_filter,
            context_too_long,
            quota_spent: Some(QuotaReset::told(Some(wait))),
        },
        (ending, _) => ending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::TimeoutKind;

    fn status(status: u16, retryable: Option<bool>) -> Ending {
        Ending::Status { status, retryable, content_filter: false, context_too_long: false, quota_spent: None }
    }

    fn filtered(status: u16, retryable: Option<bool>) -> Ending {
        Ending::Status { status, retryable, content_filter: true, context_too_long: false, quota_spent: None }
    }

    #[test]
    fn the_table() {
        use Verdict::{Ignored, Success};
        let call = Ending::Timeout { timeout: TimeoutKind::Call };
        for (row, ending, target, key, provider) in [
            (0, Ending::OwnRefusal, Ignored, Ignored, Ignored),
            (0, Ending::Loading, Ignored, Ignored, Ignored),
            (0, Ending::Restarted, Ignored, Ignored, Ignored),
            (0, Ending::Internal, Ignored, Ignored, Ignored),
            (0, Ending::DeadlineCut, Ignored, Ignored, Ignored),
            (0, Ending::NoDraft, Ignored, Ignored, Ignored),
            (0, Ending::Cancelled { slow_without_content: false }, Ignored, Ignored, Ignored),
            (0, Ending::Cancelled { slow_without_content: true }, SOFT, Ignored, Ignored),
            (1, Ending::Network { connected: false }, HARD, Ignored, HARD),
            (1, Ending::Network { connected: true }, HARD, Ignored, HARD),
            (1, call, HARD, Ignored, HARD),
            (1, Ending::StreamCut, HARD, Ignored, HARD),
            (1, Ending::BadReply, HARD, Ignored, Success),
            (2, status(500, Some(false)), HARD, Ignored, HARD),
            (2, status(501, None), HARD, Ignored, HARD),
            (2, status(529, None), HARD, Ignored, HARD),
            (2, status(526, None), HARD, Ignored, HARD),
            (3, status(429, Some(true)), Ignored, SOFT, Ignored),
            (3, status(429, Some(false)), Ignored, SOFT, Ignored),
            (4, Ending::CallerShape, Ignored, Ignored, Ignored),
            (4, status(404, Some(false)), Ignored, Ignored, Ignored),
            (4, status(422, None), Ignored, Ignored, Ignored),
            (4, status(408, None), Ignored, Ignored, Ignored),
            (4, filtered(400, Some(true)), Ignored, Ignored, Ignored),
            (4, status(401, Some(false)), Ignored, Ignored, Ignored),
            (5, status(409, Some(true)), SOFT, Ignored, Ignored),
            (6, Ending::Success, Success, Success, Success),
            (7, status(304, None), SOFT, Ignored, Ignored),
            (7, status(0, None), SOFT, Ignored, Ignored),
        ] {
            let judged = judge(&ending, Keyed::Yes);
            assert_eq!((judged.target, judged.key, judged.provider), (target, key, provider), "row {row}: {ending:?}");
        }
    }

    #[test]
    fn every_status_has_a_verdict_and_only_4xx_are_ever_ignored() {
        for code in 0..=999_u16 {
            for retryable in [None, Some(true), Some(false)] {
                let judged = judge(&status(code, retryable), Keyed::No);
                if judged.target == Verdict::Ignored {
                    assert!((400..500).contains(&code) && retryable != Some(true), "{code} {retryable:?}");
                }
                if (500..600).contains(&code) {
                    assert_eq!(judged.target, HARD);
                }
            }
        }
    }

    #[test]
    fn the_keys_fault_is_the_targets_where_there_is_no_key() {
        assert_eq!(judge(&status(429, None), Keyed::No).target, SOFT);
        assert_eq!(judge(&status(401, None), Keyed::No), Judgement::IGNORED);
        assert_eq!(judge(&status(401, None), Keyed::Yes).key_act, KeyAct::Reject);
        assert_eq!(judge(&status(403, Some(false)), Keyed::Yes).key_act, KeyAct::Reject);
        assert_eq!(judge(&status(403, Some(true)), Keyed::Yes), Judgement { target: SOFT, ..Judgement::IGNORED });
    }

    #[test]
    fn a_far_reset_is_a_spent_quota() {
        let seconds = Duration::from_secs;
        for (wait, spent) in [(Some(3), false), (Some(10), false), (Some(11), true), (None, false)] {
            let ending = with_far_reset(status(429, None), wait.map(seconds), seconds(10));
            let act = judge(&ending, Keyed::Yes).key_act;
            assert_eq!(matches!(act, KeyAct::Cool(_)), spent, "{wait:?}");
        }
        // Whoever names a year means something else: a date, a slip. It is stayed away from as if nothing was named.
        for (wait, reset) in [
            (31 * 86_400, QuotaReset::In(seconds(31 * 86_400))),
            (31 * 86_400 + 1, QuotaReset::Unknown),
            (1 << 60, QuotaReset::Unknown),
        ] {
            let ending = with_far_reset(status(429, None), Some(seconds(wait)), seconds(10));
            assert_eq!(judge(&ending, Keyed::Yes).key_act, KeyAct::Cool(reset), "{wait}");
        }
        let other = with_far_reset(status(503, None), Some(seconds(900)), seconds(10));
        assert_eq!(judge(&other, Keyed::Yes).key_act, KeyAct::None);
    }
}
