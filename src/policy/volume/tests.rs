//! The guard against a loop that never fails, by the shared case and against a naive list of every call.

use proptest::prelude::*;

use super::*;

const MINUTE: u64 = 60_000;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn admits(guard: &mut VolumeGuard, settings: VolumeSettings, millis: u64) -> bool {
    guard.admit(&settings, at(millis)).is_ok()
}

/// The case B25, whose numbers stand in its own files.
#[test]
fn a_loop_of_many_good_calls_is_stopped() {
    let Some(folder) = std::env::var_os("WATERTIGHT_SHARED") else {
        eprintln!("skipped: WATERTIGHT_SHARED is not set");
        return;
    };
    let read = |name: &str| -> serde_json::Value {
        let path = std::path::Path::new(&folder).join("cases/B25").join(name);
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    };
    let (config, pattern, expected) = (read("config.json"), read("pattern.json"), read("expected.json"));
    let wanted = |key: &str| expected["assert"].as_array().unwrap().iter().find_map(|row| row[key].as_u64()).unwrap();
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let settings = VolumeSettings::of_calls(u32::try_from(number(&config["guard"]["calls_per_hour"])).unwrap());
    let (mut guard, mut other) = (VolumeGuard::default(), VolumeGuard::default());
    let hour_ms = u64::try_from(HOUR.as_millis()).unwrap();
    let (mut admitted, mut refused, mut alerts) = (Vec::new(), Vec::new(), 0);
    for index in 0..number(&pattern["count"]) {
        let now = index * number(&pattern["every_ms"]);
        match guard.admit(&settings, at(now)) {
            Ok(()) => admitted.push(now),
            Err(shut) => {
                refused.push((index, now));
                alerts += u32::from(shut.is_first);
            }
        }
        assert!(!now.is_multiple_of(MINUTE) || other.admit(&settings, at(now)).is_ok(), "others feel nothing");
    }
    let in_first_hour = admitted.iter().filter(|at| **at < hour_ms).count();
    assert_eq!(in_first_hour as u64, wanted("admitted_in_first_hour"));
    assert_eq!(refused[0], (wanted("first_refused_call_index"), wanted("first_refused_at_ms")));
    // The pattern ends at 3,599,600 ms: from then on the next call is asked every 100 ms.
    let next =
        (0..10_000).map(|step| 3_600_000 - 400 + step * 100).find(|now| admits(&mut guard, settings, *now)).unwrap();
    assert!(next >= wanted("next_admission_not_before_ms"), "{next}");
    assert!(
        next <= wanted("next_admission_not_before_ms") + 1_000,
        "an entry a second makes it a second late at most: {next}"
    );
    assert_eq!(alerts, 1, "one alert, at the first refusal");
}

#[test]
fn it_opens_at_the_later_of_the_rest_and_the_hour() {
    let settings = VolumeSettings { calls_per_hour: 3, shut_for: Duration::from_secs(1_800) };
    // Spent in the first second: the hour is the later one.
    let mut quick = VolumeGuard::default();
    assert!((0..3).all(|call| admits(&mut quick, settings, call * 100)));
    let shut = quick.admit(&settings, at(500)).unwrap_err();
    assert_eq!((shut.retry_after, shut.is_first), (Duration::from_millis(3_600_500), true));
    assert!(!admits(&mut quick, settings, 3_600_999) && admits(&mut quick, settings, 3_601_000));
    // Spent over the hour: half an hour is the later one, and what was refused meanwhile prolongs nothing.
    let mut slow = VolumeGuard::default();
    assert!((0..3).all(|call| admits(&mut slow, settings, call * 25 * MINUTE)));
    let shut_at = 59 * MINUTE;
    for refused in 0..100 {
        let shut = slow.admit(&settings, at(shut_at + refused * 1_000)).unwrap_err();
        assert_eq!(shut.is_first, refused == 0);
        assert_eq!(shut.retry_after, Duration::from_secs(1_800 - refused));
    }
    assert!(!admits(&mut slow, settings, shut_at + 30 * MINUTE - 1));
    assert!(admits(&mut slow, settings, shut_at + 30 * MINUTE));
}

#[test]
fn a_second_shutting_is_told_once_more() {
    let settings = VolumeSettings { calls_per_hour: 1, shut_for: Duration::from_secs(60) };
    let mut guard = VolumeGuard::default();
    assert!(admits(&mut guard, settings, 0));
    assert!(guard.admit(&settings, at(1)).unwrap_err().is_first);
    assert!(!guard.admit(&settings, at(3_600_999)).unwrap_err().is_first);
    assert!(admits(&mut guard, settings, 3_601_000));
    assert!(guard.admit(&settings, at(3_601_001)).unwrap_err().is_first);
}

#[test]
fn a_call_that_was_refused_further_in_was_never_there() {
    let settings = VolumeSettings::of_calls(2);
    let mut guard = VolumeGuard::default();
    for second in 0..1_000 {
        assert!(admits(&mut guard, settings, second * 1_000));
        guard.undo(&settings, at(second * 1_000));
    }
    assert!(guard.is_idle(&settings, at(1_000_000)));
    assert!(guard.seconds.is_empty(), "and leaves nothing behind");
    // Another one was refused because of it: wrongly, so it is open again.
    assert!(admits(&mut guard, settings, 2_000_000) && admits(&mut guard, settings, 2_000_000));
    assert!(!admits(&mut guard, settings, 2_000_001));
    guard.undo(&settings, at(2_000_000));
    assert!(admits(&mut guard, settings, 2_000_002) && !admits(&mut guard, settings, 2_000_003));
}

#[test]
fn an_operator_lifts_it_and_the_hour_begins_anew() {
    let settings = VolumeSettings::of_calls(2);
    let mut guard = VolumeGuard::default();
    assert!((0..2).all(|call| admits(&mut guard, settings, call)));
    assert!(!guard.lift(), "it was not shut");
    assert!((0..2).all(|call| admits(&mut guard, settings, 10 + call)) && !admits(&mut guard, settings, 20));
    assert_eq!(guard.view(&settings, at(21)).shut.map(|(since, _)| since), Some(at(20)));
    assert!(guard.lift());
    assert_eq!(guard.view(&settings, at(22)), VolumeView { admitted: 0, shut: None });
    assert!((0..2).all(|call| admits(&mut guard, settings, 30 + call)) && !admits(&mut guard, settings, 40));
}

#[test]
fn looking_counts_and_shuts_nothing() {
    let settings = VolumeSettings::of_calls(1);
    let mut guard = VolumeGuard::default();
    assert!((0..10).all(|_| guard.look(&settings, at(0)).is_ok()));
    assert!(admits(&mut guard, settings, 0));
    assert!(!guard.look(&settings, at(1)).unwrap_err().is_first);
    assert_eq!(guard.view(&settings, at(2)).shut, None);
}

#[test]
fn nothing_an_hour_is_nothing_and_no_configuration() {
    let settings = VolumeSettings::of_calls(0);
    let mut guard = VolumeGuard::default();
    for hour in 0..5 {
        let shut = guard.admit(&settings, at(hour * 60 * MINUTE)).unwrap_err();
        assert!(shut.retry_after >= SHUT_FOR_DEFAULT, "{shut:?}");
    }
    let broken = |settings: VolumeSettings| settings.check().iter().map(InvalidSetting::key).collect::<Vec<_>>();
    assert_eq!(broken(settings), ["calls_per_hour"]);
    assert_eq!(broken(VolumeSettings { shut_for: Duration::ZERO, ..VolumeSettings::of_calls(1) }), ["shut_for"]);
    assert_eq!(broken(VolumeSettings::of_calls(1)), Vec::<&str>::new());
}

proptest! {
    /// Against a list of every call: no hour ever holds more than the limit, at most one entry a second is kept, and it admits whatever
    /// the list admits, a second late at most.
    #[test]
    fn no_hour_is_over_its_limit(
        limit in 1_u32..30,
        shut_s in 1_u64..4_000,
        steps in prop::collection::vec((0_u64..400_000, 0_u8..10), 1..250),
    ) {
        let settings = VolumeSettings { calls_per_hour: limit, shut_for: Duration::from_secs(shut_s) };
        let mut guard = VolumeGuard::default();
        let (mut calls, mut now, mut shut_at): (Vec<u64>, u64, Option<u64>) = (Vec::new(), 0, None);
        for (wait, act) in steps {
            now += wait;
            // Some come in bursts.
            for _ in 0..if act < 3 { 5 } else { 1 } {
                let in_hour = calls.iter().filter(|call| **call + 3_600_000 > now).count();
                let mut guess = guard.clone();
                let looked = guess.look(&settings, at(now)).is_ok();
                let got = guard.admit(&settings, at(now));
                prop_assert_eq!(looked, got.is_ok());
                match got {
                    Ok(()) => {
                        prop_assert!(in_hour < limit as usize, "{in_hour} before at {now}");
                        prop_assert!(shut_at.is_none_or(|shut| now >= shut + shut_s * 1_000), "shut at {shut_at:?}, now {now}");
                        shut_at = None;
                        calls.push(now);
                    }
                    Err(shut) => {
                        if shut.is_first {
                            prop_assert!(shut_at.is_none_or(|shut| now >= shut + shut_s * 1_000));
                            shut_at = Some(now);
                            let late = calls.iter().filter(|call| **call + 3_601_000 > now).count();
                            prop_assert!(late >= limit as usize, "refused with {late} of {limit}");
                        }
                        let opens = now + u64::try_from(shut.retry_after.as_millis()).unwrap() + 1;
                        prop_assert!(guard.clone().admit(&settings, at(opens)).is_ok(), "what it told was not true");
                    }
                }
                if act == 9 && calls.last() == Some(&now) {
                    calls.pop();
                    guard.undo(&settings, at(now));
                }
                prop_assert!(guard.seconds.len() <= 3_601 && guard.seconds.len() <= calls.len());
            }
        }
    }
}

/// Shut, kept in words, and gone on with by another process: it opens when it would have opened.
#[test]
fn a_shut_guard_goes_on_from_what_it_remembers() {
    let settings = VolumeSettings::of_calls(100);
    for apart in [1_000, 400, 30_000] {
        let mut guard = VolumeGuard::default();
        let admitted = (0..110).filter(|index| admits(&mut guard, settings, 7_250 + index * apart)).count();
        assert!(admitted == 100 && guard.is_shut());
        let memory = guard.memory().unwrap();
        let mut restored = VolumeGuard::remembering(&memory);
        assert_eq!(restored.memory().as_ref(), Some(&memory), "nothing is lost on the way");
        let opens = |guard: &mut VolumeGuard| {
            (7_250..10_000_000).step_by(250).find(|now| guard.look(&settings, at(110 * apart + now)).is_ok())
        };
        assert_eq!(opens(&mut restored), opens(&mut guard), "{apart}");
        // Another clock's zero lies within one of its seconds.
        let shifted = ShutMemory {
            since: memory.since.after(Duration::from_millis(300)),
            seconds: memory.seconds.iter().map(|(at, calls)| (at.after(Duration::from_millis(300)), *calls)).collect(),
        };
        let mut late = VolumeGuard::remembering(&shifted);
        let (late, right) = (opens(&mut late).unwrap(), opens(&mut VolumeGuard::remembering(&memory)).unwrap());
        assert!((right..=right + 1_300).contains(&late), "{late} of {right}");
    }
    assert_eq!(VolumeGuard::default().memory(), None, "one that is open begins its hour anew");
}
