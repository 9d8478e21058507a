//! Overload told by the wait in the line, class by class; and that asking changes nothing.

use proptest::prelude::*;

use super::*;

const CHANCE: Chance = Chance::from_seed(3);

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn shedder(minimums: &[u32]) -> Shedder {
    Shedder::new(&SheddingSettings { minimums: minimums.to_vec(), ..SheddingSettings::for_classes(0) }, CHANCE)
}

fn first(shedder: &Shedder, millis: u64) -> usize {
    shedder.clone().first_refused(at(millis))
}

#[test]
fn one_class_after_another_while_nobody_gets_through_in_time() {
    let mut five = shedder(&[0; 5]);
    // A call goes to stand in the line and nobody leaves: late from 150 ms on, overload a second later.
    five.entered(2, at(0));
    let seen: Vec<usize> = [0, 1_149, 1_150, 2_149, 2_150, 3_150, 60_000].map(|millis| first(&five, millis)).to_vec();
    // It stays there: nobody is refused for those below.
    assert_eq!(seen, [5, 5, 4, 4, 3, 3, 3]);
}

#[test]
fn the_highest_class_is_never_refused() {
    let mut two = shedder(&[0, 0]);
    two.entered(0, at(0));
    assert_eq!(first(&two, 3_600_000), 1);
    let mut alone = shedder(&[0]);
    alone.entered(0, at(0));
    assert_eq!((first(&alone, 3_600_000), alone.refuses(0, 9, at(3_600_000))), (1, None));
}

#[test]
fn one_wait_in_time_is_no_overload() {
    let mut three = shedder(&[0; 3]);
    three.entered(1, at(0));
    for second in 1..60 {
        // Most wait for long, but each second one gets through quickly.
        three.waited(1, Duration::from_secs(1), at(second * 1_000));
        three.waited(1, Duration::from_millis(150), at(second * 1_000 + 10));
        assert_eq!(first(&three, second * 1_000 + 500), 3, "at {second} s");
    }
    // From the last one on everybody is late.
    three.waited(1, Duration::from_secs(1), at(59_020));
    assert_eq!((first(&three, 60_019), first(&three, 60_020)), (3, 2));
}

#[test]
fn it_steps_back_only_once_calm_and_one_class_at_a_time() {
    let mut four = shedder(&[0; 4]);
    four.entered(0, at(0));
    assert_eq!(first(&four, 3_150), 1);
    four.waited(0, Duration::from_secs(3), at(3_200));
    four.line_empty(0, at(3_200));
    let seen: Vec<usize> =
        [3_200, 4_199, 4_200, 5_199, 5_200, 6_200, 60_000].map(|millis| first(&four, millis)).to_vec();
    assert_eq!(seen, [1, 1, 2, 2, 3, 4, 4]);
    // Waits between calm and too long hold the level where it is.
    let mut held = shedder(&[0; 4]);
    held.entered(0, at(0));
    assert_eq!(first(&held, 2_150), 2);
    for step in 0..50 {
        held.waited(0, Duration::from_millis(100), at(2_200 + step * 500));
        assert_eq!(first(&held, 2_200 + step * 500), 2, "step {step}");
    }
}

#[test]
fn nobody_is_refused_for_those_who_wait_below() {
    let mut three = shedder(&[0; 3]);
    three.entered(2, at(0));
    assert_eq!(first(&three, 3_600_000), 3, "the lowest waits by itself: its line says how long");
    three.entered(1, at(10_000));
    assert_eq!((first(&three, 11_149), first(&three, 11_150), first(&three, 60_000)), (3, 2, 2));
    // Once the higher ones are calm it is let in again, though it still waits.
    three.waited(1, Duration::from_secs(20), at(30_000));
    three.line_empty(1, at(30_000));
    assert_eq!((first(&three, 30_999), first(&three, 31_000)), (2, 3));
}

#[test]
fn a_stated_minimum_is_kept_and_the_rest_is_told_when_to_come_back() {
    let mut three = shedder(&[0, 0, 2]);
    three.entered(0, at(0));
    let now = at(1_150);
    assert_eq!((three.refuses(2, 0, now), three.refuses(2, 1, now)), (None, None));
    let waits: Vec<Duration> = (0..200).filter_map(|_| three.refuses(2, 2, now)).collect();
    assert_eq!(waits.len(), 200);
    assert!(waits.iter().all(|wait| (1.0..1.5).contains(&wait.as_secs_f64())), "{waits:?}");
    assert!(waits.iter().max() > waits.iter().min(), "they do not all come back together");
    assert_eq!((three.refuses(1, 5, now), three.refuses(0, 5, now)), (None, None));
    // With two classes refused, the lower one has two steps to wait.
    let later = at(2_150);
    let (low, mid) = (three.refuses(2, 2, later).unwrap(), three.refuses(1, 0, later).unwrap());
    assert!((2.0..3.0).contains(&low.as_secs_f64()) && (1.0..1.5).contains(&mid.as_secs_f64()), "{low:?} {mid:?}");
}

#[test]
fn other_settings_keep_the_level_where_it_can_be() {
    let mut five = shedder(&[0; 5]);
    five.entered(0, at(0));
    assert_eq!(first(&five, 4_150), 1);
    five.reset(&SheddingSettings::for_classes(3), at(4_150));
    assert_eq!(first(&five, 4_150), 1);
    five.reset(&SheddingSettings::for_classes(6), at(4_150));
    assert_eq!(first(&five, 4_150), 4, "two are refused, as before");
}

#[test]
fn what_cannot_be_is_refused() {
    let broken = |settings: SheddingSettings| settings.check().iter().map(InvalidSetting::key).collect::<Vec<_>>();
    let good = SheddingSettings::for_classes(5);
    assert_eq!(broken(good.clone()), Vec::<&str>::new());
    assert_eq!(broken(SheddingSettings { wait_max: Duration::ZERO, ..good.clone() }), ["wait_max"]);
    assert_eq!(broken(SheddingSettings { over: Duration::from_secs(7_200), ..good }), ["over"]);
    assert_eq!(broken(SheddingSettings::for_classes(0)), ["order"]);
    assert_eq!(broken(SheddingSettings::for_classes(17)), ["order"]);
}

#[derive(Debug, Clone)]
enum Step {
    Enter,
    Wait(u64),
    Empty,
}

fn steps() -> impl Strategy<Value = Vec<(u64, usize, Step)>> {
    let step = prop_oneof![Just(Step::Enter), (0_u64..600).prop_map(Step::Wait), Just(Step::Empty)];
    prop::collection::vec((0_u64..1_500, 0_usize..5, step), 0..120)
}

proptest! {
    /// However often it is asked between the events, the answer at any moment is the same; the level moves one step in `over`.
    #[test]
    fn asking_changes_nothing_and_levels_move_slowly(steps in steps(), classes in 1_usize..5, every in 1_u64..400) {
        let (mut asked, mut left) = (shedder(&vec![0; classes]), shedder(&vec![0; classes]));
        let (mut now, mut level, mut moved) = (0, 0, None);
        for (wait, class, step) in steps {
            let class = class % classes;
            let next = now + wait;
            while now < next {
                now = (now + every).min(next);
                let seen = classes - asked.first_refused(at(now));
                if seen != level {
                    prop_assert!(seen.abs_diff(level) <= 1 + usize::try_from(every / 1_000).unwrap_or(0));
                    if let Some(moved) = moved {
                        prop_assert!(now - moved + every > 1_000, "moved at {moved} and {now}");
                    }
                    (level, moved) = (seen, Some(now));
                }
                prop_assert!(seen < classes);
            }
            for shedder in [&mut asked, &mut left] {
                match step {
                    Step::Enter => shedder.entered(class, at(now)),
                    Step::Wait(wait) => shedder.waited(class, Duration::from_millis(wait), at(now)),
                    Step::Empty => shedder.line_empty(class, at(now)),
                }
            }
            prop_assert_eq!(asked.clone().first_refused(at(now)), left.clone().first_refused(at(now)));
            level = classes - asked.clone().first_refused(at(now));
        }
        // A line that stays empty is calm in the end.
        for class in 0..classes {
            asked.line_empty(class, at(now));
        }
        prop_assert_eq!(asked.first_refused(at(now + 60_000)), classes);
    }
}
