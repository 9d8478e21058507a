//! Shared fate: when the bad outcomes at a provider cannot be one agent's, or one model's, own illness.

use super::{
    state::Reason,
    window::{Counts, Source},
};

/// An agent or model with so many outcomes in the window is a witness.
const WITNESS_CALLS_MIN: u32 = 5;

/// Whether the window's bad outcomes on the axis of `reason` come from at least two agents while no agent or model with enough
/// outcomes did well in half of them or more.
pub(super) fn is_shared(by_source: &[(Source, Counts)], reason: Reason) -> bool {
    let bad = |counts: &Counts| if reason == Reason::SlowShare { counts.slow } else { counts.failed };
    let agents_ill = sum_by(by_source, |source| source.agent).filter(|counts| bad(counts) > 0).count();
    let did_well = |counts: &Counts| counts.entries >= WITNESS_CALLS_MIN && 2 * counts.good >= counts.entries;
    let witness = sum_by(by_source, |source| source.agent).any(|counts| did_well(&counts))
        || sum_by(by_source, |source| source.model).any(|counts| did_well(&counts));
    agents_ill >= 2 && !witness
}

fn sum_by(by_source: &[(Source, Counts)], key: impl Fn(Source) -> u16) -> impl Iterator<Item = Counts> {
    let mut sums: Vec<(u16, Counts)> = Vec::new();
    for (source, counts) in by_source {
        let key = key(*source);
        match sums.iter_mut().find(|(known, _)| *known == key) {
            Some((_, sum)) => sum.plus(*counts),
            None => sums.push((key, *counts)),
        }
    }
    sums.into_iter().map(|(_, counts)| counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(entries: u32, failed: u32) -> Counts {
        Counts { entries, finished: entries, failed, slow: 0, good: entries - failed }
    }

    #[test]
    fn who_is_ill() {
        let source = |agent, model| Source { agent, model };
        for (what, window, shared) in [
            ("one ill agent", vec![(source(0, 0), counts(10, 10))], false),
            ("two ill agents", vec![(source(0, 0), counts(10, 10)), (source(1, 0), counts(10, 10))], true),
            (
                "two ill agents, one well",
                vec![(source(0, 0), counts(8, 8)), (source(1, 0), counts(7, 7)), (source(2, 0), counts(5, 0))],
                false,
            ),
            (
                "two ill agents, too few outcomes of a third",
                vec![(source(0, 0), counts(8, 8)), (source(1, 0), counts(8, 8)), (source(2, 0), counts(4, 0))],
                true,
            ),
            (
                "the heavy model is ill, the light one well",
                vec![
                    (source(0, 0), counts(6, 6)),
                    (source(1, 0), counts(6, 6)),
                    (source(0, 1), counts(4, 0)),
                    (source(1, 1), counts(4, 0)),
                ],
                false,
            ),
        ] {
            assert_eq!(is_shared(&window, Reason::FailureShare), shared, "{what}");
        }
    }
}
