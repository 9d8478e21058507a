//! What is believed, step by step, and what holds whatever happens.

use proptest::prelude::*;

use super::*;

const ON_DEMAND: ColdStart = ColdStart::OnDemand { keeps_for: Some(Duration::from_secs(300)) };

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn begun(warmth: &mut Warmth, cold_start: ColdStart, now: Timestamp) -> Epoch {
    match warmth.ask(cold_start, now) {
        Ask::WarmUp(epoch) => epoch,
        other => panic!("no warm-up: {other:?}"),
    }
}

#[test]
fn one_warms_up_and_the_others_are_told_when_to_come_back() {
    let mut warmth = Warmth::default();
    let epoch = begun(&mut warmth, ON_DEMAND, at(0));
    for (now, wait) in [(0, 45), (1, 44), (44, 1), (45, 5), (99, 5)] {
        assert_eq!(warmth.ask(ON_DEMAND, at(now)), Ask::Wait(s(wait)), "after {now} s");
    }
    assert!(warmth.warm_up_ended(epoch, WarmUpEnd::Loaded, ON_DEMAND, at(20)));
    assert!(matches!(warmth.ask(ON_DEMAND, at(20)), Ask::Go(_)));
    // The next load is expected to take as long as this one did, until a longer one is seen.
    assert_eq!(warmth.belief(at(320)), Belief::Cold, "unused for its time");
    let epoch = begun(&mut warmth, ON_DEMAND, at(400));
    assert_eq!(warmth.ask(ON_DEMAND, at(400)), Ask::Wait(s(20)));
    assert!(warmth.warm_up_ended(epoch, WarmUpEnd::Loaded, ON_DEMAND, at(470)));
    assert_eq!(warmth.expected_load(), s(70));
}

#[test]
fn use_keeps_it_warm_and_a_server_that_tells_is_asked_for_nothing_before_it_does() {
    let mut warmth = Warmth::default();
    let Ask::Go(epoch) = warmth.ask(ColdStart::Told, at(0)) else { panic!("nobody said that it is cold") };
    warmth.used(epoch, ColdStart::Told, at(5));
    assert_eq!(warmth.belief(at(9_999_999)), Belief::Warm, "until somebody says otherwise");
    assert_eq!(warmth.found_cold(epoch, at(50)), FoundCold::Surprise);
    let epoch = begun(&mut warmth, ColdStart::Told, at(50));
    assert!(warmth.warm_up_ended(epoch, WarmUpEnd::WasLoaded, ON_DEMAND, at(51)));
    let Ask::Go(epoch) = warmth.ask(ON_DEMAND, at(350)) else { panic!("it is warm") };
    warmth.used(epoch, ON_DEMAND, at(350));
    assert!(matches!(warmth.ask(ON_DEMAND, at(649)), Ask::Go(_)));
    assert!(matches!(warmth.ask(ON_DEMAND, at(650)), Ask::WarmUp(_)));
}

#[test]
fn what_was_seen_before_a_warm_up_says_nothing_after_it() {
    let mut warmth = Warmth::default();
    let Ask::Go(early) = warmth.ask(ColdStart::Told, at(0)) else { panic!("it is unknown") };
    assert_eq!(warmth.found_cold(early, at(1)), FoundCold::Expected);
    let first = begun(&mut warmth, ColdStart::Told, at(1));
    assert_eq!(warmth.found_cold(early, at(2)), FoundCold::Stale);
    warmth.used(early, ColdStart::Told, at(2));
    assert_eq!(warmth.belief(at(2)), Belief::Warming, "only its end ends it");
    assert!(warmth.warm_up_ended(first, WarmUpEnd::Loaded, ColdStart::Told, at(3)));
    assert_eq!(warmth.found_cold(early, at(4)), FoundCold::Stale);
    assert!(!warmth.warm_up_ended(first, WarmUpEnd::StillCold, ColdStart::Told, at(5)), "told twice");
    assert_eq!(warmth.belief(at(5)), Belief::Warm);
}

#[test]
fn how_a_warm_up_failed_decides_who_asks_next() {
    for (end, belief) in [(WarmUpEnd::StillCold, Belief::Cold), (WarmUpEnd::Failed, Belief::Unknown)] {
        let mut warmth = Warmth::default();
        let epoch = begun(&mut warmth, ON_DEMAND, at(0));
        assert!(warmth.warm_up_ended(epoch, end, ON_DEMAND, at(180)));
        assert_eq!(warmth.belief(at(180)), belief);
        assert!(matches!(warmth.ask(ON_DEMAND, at(181)), Ask::WarmUp(_)));
    }
}

#[test]
fn another_model_takes_its_place() {
    let mut warmth = Warmth::default();
    assert!(!warmth.evicted(at(0)), "it was never loaded");
    let epoch = begun(&mut warmth, ON_DEMAND, at(0));
    assert!(!warmth.evicted(at(1)), "its load is under way");
    assert!(warmth.warm_up_ended(epoch, WarmUpEnd::Loaded, ON_DEMAND, at(10)));
    let Ask::Go(epoch) = warmth.ask(ON_DEMAND, at(11)) else { panic!("it is warm") };
    assert!(warmth.evicted(at(12)));
    warmth.used(epoch, ON_DEMAND, at(13));
    assert_eq!(warmth.belief(at(13)), Belief::Cold, "an answer from before says nothing");
    let Ask::WarmUp(epoch) = warmth.ask(ON_DEMAND, at(14)) else { panic!("it is cold") };
    assert!(warmth.warm_up_ended(epoch, WarmUpEnd::Loaded, ON_DEMAND, at(20)));
    assert!(!warmth.evicted(at(320)), "nobody wanted it any more");
}

#[test]
fn one_that_was_loaded_on_the_way_is_warm() {
    let mut warmth = Warmth::default();
    let epoch = begun(&mut warmth, ON_DEMAND, at(0));
    assert!(warmth.warm_up_ended(epoch, WarmUpEnd::WasLoaded, ON_DEMAND, at(0)));
    let epoch = warmth.epoch();
    assert_eq!(warmth.loaded_on_the_way(epoch, ON_DEMAND, at(60)), FoundCold::Surprise);
    assert_eq!((warmth.belief(at(60)), warmth.was_loaded_after(at(59))), (Belief::Warm, true));
    assert_eq!(warmth.loaded_on_the_way(epoch, ON_DEMAND, at(61)), FoundCold::Stale);
}

#[test]
fn an_attempt_without_an_answer_makes_it_doubtful() {
    let mut warmth = Warmth::default();
    let epoch = begun(&mut warmth, ON_DEMAND, at(0));
    warmth.doubted(epoch);
    assert_eq!(warmth.belief(at(0)), Belief::Warming);
    assert!(warmth.warm_up_ended(epoch, WarmUpEnd::Loaded, ON_DEMAND, at(1)));
    warmth.doubted(epoch);
    assert_eq!(warmth.belief(at(1)), Belief::Warm, "that was another epoch");
    let Ask::Go(epoch) = warmth.ask(ON_DEMAND, at(1)) else { panic!("it is warm") };
    warmth.doubted(epoch);
    assert!(matches!(warmth.ask(ON_DEMAND, at(2)), Ask::WarmUp(_)));
}

#[derive(Debug, Clone)]
enum Event {
    Ask(bool),
    AskAhead,
    End { which: usize, end: u8 },
    Used(usize),
    Cold(usize),
    OnTheWay(usize),
    Doubted(usize),
    Evicted,
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => any::<bool>().prop_map(Event::Ask),
        1 => Just(Event::AskAhead),
        3 => (0..8_usize, 0..4_u8).prop_map(|(which, end)| Event::End { which, end }),
        1 => (0..8_usize).prop_map(Event::Used),
        2 => (0..8_usize).prop_map(Event::Cold),
        1 => (0..8_usize).prop_map(Event::OnTheWay),
        1 => (0..8_usize).prop_map(Event::Doubted),
        1 => Just(Event::Evicted),
        3 => (0..400_u64).prop_map(Event::Pass),
    ]
}

proptest! {
    /// Whatever happens in whatever order: one warm-up at a time, its own end and nothing else ends it, an end of an earlier epoch
    /// changes nothing, and whoever waits is told to come back between a second and the longest load that was ever seen.
    #[test]
    fn one_warm_up_at_a_time(events in prop::collection::vec(event(), 0..120)) {
        let mut warmth = Warmth::default();
        let mut now = 0;
        let mut longest = LOAD_EXPECTED;
        let mut seen: Vec<Epoch> = vec![warmth.epoch()];
        let mut under_way: Option<(Epoch, u64)> = None;
        for event in events {
            let epoch_of = |which: usize| seen[seen.len() - 1 - which % seen.len()];
            match event {
                Event::Ask(told) => match warmth.ask(if told { ColdStart::Told } else { ON_DEMAND }, at(now)) {
                    Ask::Go(epoch) => {
                        prop_assert!(under_way.is_none());
                        prop_assert_eq!(epoch, warmth.epoch());
                    }
                    Ask::WarmUp(epoch) => {
                        prop_assert!(under_way.is_none(), "a second warm-up");
                        under_way = Some((epoch, now));
                    }
                    Ask::Wait(wait) => {
                        prop_assert!(under_way.is_some());
                        prop_assert!(wait >= WAIT_MIN && wait <= longest.max(OVERDUE_WAIT));
                    }
                },
                Event::AskAhead => {
                    if let Some(epoch) = warmth.ask_ahead(at(now)) {
                        prop_assert!(under_way.is_none(), "a second warm-up");
                        under_way = Some((epoch, now));
                    }
                }
                Event::End { which, end } => {
                    let ends = [WarmUpEnd::Loaded, WarmUpEnd::WasLoaded, WarmUpEnd::StillCold, WarmUpEnd::Failed];
                    let (epoch, end) = (epoch_of(which), ends[usize::from(end)]);
                    let before = (warmth.belief(at(now)), warmth.epoch(), warmth.expected_load());
                    let counts = warmth.warm_up_ended(epoch, end, ON_DEMAND, at(now));
                    prop_assert_eq!(counts, under_way.is_some_and(|(own, _)| own == epoch));
                    if !counts {
                        prop_assert_eq!(before, (warmth.belief(at(now)), warmth.epoch(), warmth.expected_load()));
                    } else if let Some((_, since)) = under_way.take() {
                        longest = longest.max(s(now - since));
                    }
                }
                Event::Used(which) => warmth.used(epoch_of(which), ON_DEMAND, at(now)),
                Event::Cold(which) => drop(warmth.found_cold(epoch_of(which), at(now))),
                Event::OnTheWay(which) => drop(warmth.loaded_on_the_way(epoch_of(which), ON_DEMAND, at(now))),
                Event::Doubted(which) => warmth.doubted(epoch_of(which)),
                Event::Evicted => drop(warmth.evicted(at(now))),
                Event::Pass(seconds) => now += seconds,
            }
            prop_assert_eq!(under_way.is_some(), warmth.belief(at(now)) == Belief::Warming);
            prop_assert_eq!(under_way.is_some(), warmth.wait(at(now)).is_some());
            if seen.last() != Some(&warmth.epoch()) {
                seen.push(warmth.epoch());
            }
        }
    }
}
