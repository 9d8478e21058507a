//! The ladder: its tables, its order, and what holds for every ladder whatever it says.

use proptest::prelude::*;

use super::*;
use crate::policy::fallback::Reason;

fn name(text: &str) -> Name {
    Name::try_new(text).unwrap()
}

fn ladder(rungs: &[Rung], lighter: &[&str]) -> Ladder {
    let target = |agent: &&str| LighterTarget { agent: name(agent), context_tokens: None, effect: Effect::None };
    Ladder { rungs: rungs.iter().copied().map(RungRule::of).collect(), lighter: lighter.iter().map(target).collect() }
}

fn place(cause: Cause) -> Failure {
    Failure { cause, fault: Fault::Place }
}

/// The steps of a call that fails everywhere.
fn steps(ladder: &Ladder, failure: Failure, unfit: impl Fn(&LighterTarget) -> Option<Unfit>) -> Vec<String> {
    let own = name("draft");
    let mut climb = ladder.climb(&own, failure);
    let mut steps = Vec::new();
    while let Some(step) = climb.next(&unfit) {
        steps.push(match step {
            Step::Ask(target) => target.agent.to_string(),
            Step::Defer => "deferred".to_owned(),
            Step::Default => "default".to_owned(),
            Step::Notice => "notice".to_owned(),
        });
    }
    steps
}

#[test]
fn the_table_of_failures() {
    use ErrorCode as Code;
    let may = Ended::Failed(Elsewhere::May(Reason::ServerError));
    let may_not = Ended::Failed(Elsewhere::MayNot);
    for (code, ended, cause, fault) in [
        (Code::AgentCircuitOpen, Ended::Refused, Cause::CircuitOpen, Fault::Place),
        (Code::AgentBulkheadFull, Ended::Refused, Cause::BulkheadFull, Fault::Place),
        (Code::LoadShed, Ended::Refused, Cause::BulkheadFull, Fault::Place),
        (Code::AgentWarming, Ended::Refused, Cause::Cold, Fault::Place),
        (Code::AgentRestarted, Ended::Refused, Cause::Error, Fault::Place),
        (Code::RateLimited, Ended::Refused, Cause::Budget, Fault::Place),
        (Code::TokenBudgetExhausted, Ended::Refused, Cause::Budget, Fault::Place),
        (Code::QuotaSpent, Ended::Refused, Cause::Budget, Fault::Place),
        (Code::DeadlineExceeded, Ended::Refused, Cause::Deadline, Fault::Place),
        (Code::CallVolumeExceeded, Ended::Refused, Cause::Budget, Fault::Caller),
        (Code::TokenRequestTooLarge, Ended::Refused, Cause::Error, Fault::Nobody),
        (Code::ShuttingDown, Ended::Refused, Cause::Error, Fault::Nobody),
        (Code::Internal, Ended::Refused, Cause::Error, Fault::Nobody),
        (Code::Cancelled, may_not, Cause::Error, Fault::Nobody),
        (Code::AgentError, may, Cause::Error, Fault::Place),
        (Code::AgentTimeout, may, Cause::Error, Fault::Place),
        (Code::AgentError, may_not, Cause::Error, Fault::Nobody),
        (Code::ContentFiltered, may_not, Cause::Error, Fault::Nobody),
        (Code::QuotaSpent, may, Cause::Budget, Fault::Place),
        (Code::DeadlineExceeded, Ended::Failed(Elsewhere::Later), Cause::Deadline, Fault::Place),
        // Cut by the deadline with half of the answer out.
        (Code::DeadlineExceeded, may_not, Cause::Deadline, Fault::Nobody),
    ] {
        assert_eq!(failure_of(code, ended), Failure { cause, fault }, "{code} {ended:?}");
    }
}

#[test]
fn which_rung_answers_what() {
    for rung in Rung::ALL {
        let rule = RungRule::of(rung);
        for cause in Cause::ALL {
            let stands_in = matches!(rung, Rung::Default | Rung::Notice);
            let in_time = rung != Rung::Lighter || cause != Cause::Deadline;
            assert_eq!(rule.answers(place(cause)), in_time, "{rung:?} {cause:?}");
            assert_eq!(rule.answers(Failure { cause, fault: Fault::Caller }), stands_in, "{rung:?} {cause:?}");
            assert!(!rule.answers(Failure { cause, fault: Fault::Nobody }));
        }
    }
    let only = RungRule { rung: Rung::Deferred, causes: Some(vec![Cause::Budget]) };
    assert!(only.answers(place(Cause::Budget)) && !only.answers(place(Cause::CircuitOpen)));
}

#[test]
fn rungs_are_met_in_their_order_and_targets_once() {
    let all = ladder(&Rung::ALL, &["small", "draft", "small", "tiny"]);
    let fits = |_: &LighterTarget| None;
    assert_eq!(steps(&all, place(Cause::Error), fits), ["small", "tiny", "deferred", "default", "notice"]);
    assert_eq!(steps(&all, place(Cause::Deadline), fits), ["deferred", "default", "notice"]);
    let batch = ladder(&[Rung::Deferred], &["small"]);
    assert_eq!(steps(&batch, place(Cause::Budget), fits), ["deferred"]);
    let turned = ladder(&[Rung::Default, Rung::Lighter], &["small"]);
    assert_eq!(steps(&turned, place(Cause::Cold), fits), ["default", "small"]);
    let nobody = Failure { cause: Cause::Error, fault: Fault::Nobody };
    assert!(steps(&all, nobody, fits).is_empty() && !all.answers(nobody));
}

#[test]
fn a_target_that_cannot_help_is_passed_over() {
    let mut all = ladder(&[Rung::Lighter, Rung::Notice], &["small", "evicting", "tiny"]);
    all.lighter[0].context_tokens = Some(8_192);
    all.lighter[1].effect = Effect::Evicts;
    let own = name("draft");
    let unfit = |target: &LighterTarget| target.unfit(Some(10_000));
    assert_eq!(steps(&all, place(Cause::CircuitOpen), unfit), ["tiny", "notice"]);
    let mut climb = all.climb(&own, place(Cause::CircuitOpen));
    assert!(matches!(climb.next(unfit), Some(Step::Ask(target)) if target.agent.as_str() == "tiny"));
    let over: Vec<_> = climb.passed_over().iter().map(|(agent, why)| (agent.as_str(), *why)).collect();
    assert_eq!(over, [("small", Unfit::ContextTooSmall), ("evicting", Unfit::WouldEvict)]);
    assert!(fits_context(None, Some(1)) && fits_context(Some(u64::MAX), None) && fits_context(Some(5), Some(5)));
}

#[test]
fn a_way_back_is_found_wherever_it_begins() {
    let edges = |pairs: &[(&str, &[&str])]| {
        pairs.iter().map(|(from, to)| (name(from), to.iter().map(|to| name(to)).collect())).collect()
    };
    let names = |found: Option<Vec<Name>>| found.map(|way| way.iter().map(ToString::to_string).collect::<Vec<_>>());
    for (pairs, want) in [
        (&[("a", &["b"][..]), ("b", &["a"][..])][..], Some(vec!["a", "b"])),
        (&[("a", &["a"][..])][..], Some(vec!["a"])),
        (&[("a", &["b"][..]), ("b", &["c"][..]), ("c", &["b"][..])][..], Some(vec!["b", "c"])),
        (&[("a", &["b", "c"][..]), ("b", &["c"][..]), ("c", &["d"][..])][..], None),
        (&[][..], None),
    ] {
        let want = want.map(|way| way.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(names(cycle(&edges(pairs))), want);
    }
}

fn any_ladder() -> impl Strategy<Value = Ladder> {
    let cause = prop::sample::select(Cause::ALL.to_vec());
    let causes = prop::option::of(prop::collection::vec(cause, 0..4));
    let rule = (prop::sample::select(Rung::ALL.to_vec()), causes).prop_map(|(rung, causes)| RungRule { rung, causes });
    let target = (0..6_u8, prop::option::of(0..10_u64)).prop_map(|(number, context_tokens)| LighterTarget {
        agent: name(&format!("a{number}")),
        context_tokens,
        effect: if number == 5 { Effect::Evicts } else { Effect::None },
    });
    (prop::collection::vec(rule, 0..6), prop::collection::vec(target, 0..8))
        .prop_map(|(rungs, lighter)| Ladder { rungs, lighter })
}

proptest! {
    /// Whatever a ladder says, a call meets each target at most once, never its own agent again, nothing that does not answer its
    /// failure, in the order of the rungs, and comes to an end.
    #[test]
    fn every_climb_is_finite_and_fair(
        ladder in any_ladder(),
        own in 0..6_u8,
        cause in prop::sample::select(Cause::ALL.to_vec()),
        fault in prop::sample::select(vec![Fault::Place, Fault::Caller, Fault::Nobody]),
        tokens in prop::option::of(0..10_u64),
    ) {
        let own = name(&format!("a{own}"));
        let failure = Failure { cause, fault };
        let unfit = |target: &LighterTarget| target.unfit(tokens);
        let mut climb = ladder.climb(&own, failure);
        let mut asked: Vec<Name> = Vec::new();
        let mut rungs: Vec<Rung> = Vec::new();
        let bound = ladder.rungs.len() + ladder.lighter.len();
        while let Some(step) = climb.next(unfit) {
            let rung = match step {
                Step::Ask(target) => {
                    prop_assert!(target.agent != own && !asked.contains(&target.agent));
                    prop_assert!(fits_context(tokens, target.context_tokens) && target.effect == Effect::None);
                    asked.push(target.agent.clone());
                    Rung::Lighter
                }
                Step::Defer => Rung::Deferred,
                Step::Default => Rung::Default,
                Step::Notice => Rung::Notice,
            };
            prop_assert!(ladder.rungs.iter().any(|rule| rule.rung == rung && rule.answers(failure)));
            rungs.push(rung);
            prop_assert!(rungs.len() <= bound);
        }
        prop_assert!(fault != Fault::Nobody || rungs.is_empty());
        // The order is the ladder's: what was met is a subsequence of it, the lighter rung standing for all of its targets.
        rungs.dedup();
        let mut order = ladder.rungs.iter().map(|rule| rule.rung);
        prop_assert!(rungs.iter().all(|met| order.any(|rung| rung == *met)));
    }

    /// The first agent on a way back is on it, and every step of the way is a stated one.
    #[test]
    fn a_found_cycle_is_one(edges in prop::collection::btree_map(0..5_u8, prop::collection::vec(0..5_u8, 0..4), 0..5)) {
        let node = |number: u8| name(&format!("a{number}"));
        let lighter: BTreeMap<Name, Vec<Name>> =
            edges.iter().map(|(from, to)| (node(*from), to.iter().map(|to| node(*to)).collect())).collect();
        // The naive way: who can be reached from itself.
        let mut reach: BTreeMap<Name, std::collections::BTreeSet<Name>> =
            lighter.iter().map(|(from, to)| (from.clone(), to.iter().cloned().collect())).collect();
        for _ in 0..6 {
            let known = reach.clone();
            for found in reach.values_mut() {
                for next in found.clone() {
                    found.extend(known.get(&next).into_iter().flatten().cloned());
                }
            }
        }
        let has_cycle = reach.iter().any(|(from, to)| to.contains(from));
        // Broken at each that is told, none is left; and none is told twice.
        let mut broken = lighter.clone();
        let told = cycles(&lighter);
        prop_assert_eq!(told.is_empty(), !has_cycle);
        for way in &told {
            let (first, last) = (&way[0], &way[way.len() - 1]);
            prop_assert!(broken[last].contains(first));
            broken.get_mut(last).unwrap().retain(|target| target != first);
        }
        prop_assert_eq!(cycle(&broken), None);
        match cycle(&lighter) {
            None => prop_assert!(!has_cycle),
            Some(way) => {
                for (at, from) in way.iter().enumerate() {
                    let next = &way[(at + 1) % way.len()];
                    prop_assert!(lighter[from].contains(next));
                }
            }
        }
    }
}
