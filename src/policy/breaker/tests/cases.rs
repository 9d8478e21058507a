//! Faults that broke public systems of our kind, as they were told to us. Where the shared files are at hand they are played; a twin of
//! each is written here, so that something always runs. Cases run without jitter, early verdict and consecutive rule.

use std::{env, fs, path::PathBuf, time::Duration};

use serde_json::{Value, json};

use super::{
    super::{
        settings::WindowKind,
        state::{GateView, Outcome, StateName},
        window::Source,
    },
    Rig, seconds,
};
use crate::{
    model::{
        clock::Timestamp,
        facts::{Ending, QuotaReset, TimeoutKind},
    },
    policy::{
        slow::{SlowBy, Timing},
        verdict::{Keyed, Verdict, judge},
    },
};

fn shared(name: &str) -> Option<String> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared");
    let path = PathBuf::from(env::var("WATERTIGHT_SHARED").unwrap_or_else(|_| beside.into())).join("cases").join(name);
    let text = fs::read_to_string(&path).ok();
    if text.is_none() {
        println!("skipped: {} is not there", path.display());
    }
    text
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().filter(|line| !line.trim().is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What was seen after an event.
#[derive(Debug)]
struct Seen {
    admitted: usize,
    refused: usize,
    state: StateName,
    /// The shortest wait that a refused call was told.
    wait: Option<Duration>,
}

/// Plays events on a breaker by the cases' settings; what was seen stands under `op call`.
fn play(events: &[Value]) -> Vec<(String, Seen)> {
    let mut rig = Rig::new(|_| ());
    let mut passes = Vec::new();
    let mut log = Vec::new();
    for event in events {
        rig.now = Timestamp::from_millis(event["t_ms"].as_u64().unwrap());
        rig.breaker.tick(rig.now);
        let (op, call) = (event["op"].as_str().unwrap(), event["call"].as_str().unwrap_or_default().to_owned());
        let mut seen = Seen { admitted: 0, refused: 0, state: rig.state(), wait: None };
        match op {
            "admit" | "admit_burst" => {
                for _ in 0..event["count"].as_u64().unwrap_or(1) {
                    match rig.acquire() {
                        Ok(pass) => {
                            seen.admitted += 1;
                            passes.push((call.clone(), pass));
                        }
                        Err(refusal) => {
                            seen.refused += 1;
                            let wait = refusal.until.map(|until| until.since(rig.now));
                            seen.wait = seen.wait.or(wait).min(wait.or(seen.wait));
                        }
                    }
                }
            }
            "done" => {
                let (_, pass) = passes.iter().find(|(known, _)| *known == call).unwrap();
                let status = u16::try_from(event["status"].as_u64().unwrap()).unwrap();
                let verdict = judge(&Ending::status(status), Keyed::No).target;
                rig.record(*pass, Outcome { verdict, slow: false, source: Source::default(), connected: true });
            }
            "inspect" => {}
            other => panic!("unknown op {other}"),
        }
        seen.state = rig.state();
        log.push((format!("{op} {call}"), seen));
    }
    log
}

fn ten_failures() -> Vec<Value> {
    let call = |index: u64| {
        let name = format!("f{index}");
        [
            json!({"t_ms": index, "op": "admit", "call": name}),
            json!({"t_ms": index, "op": "done", "call": name, "status": 503}),
        ]
    };
    (0..10).flat_map(call).collect()
}

fn both(twin: Vec<Value>, file: &str) -> Vec<Vec<Value>> {
    [Some(twin), shared(file).map(|text| lines(&text))].into_iter().flatten().collect()
}

#[test]
fn b01_trials_that_never_answer_fail_and_new_ones_follow() {
    let mut twin = ten_failures();
    twin.extend((0..6).map(|index| json!({"t_ms": 30_020 + index, "op": "admit", "call": format!("p{index}")})));
    twin.push(json!({"t_ms": 90_030, "op": "inspect"}));
    twin.push(json!({"t_ms": 120_060, "op": "admit", "call": "q0"}));
    for events in both(twin, "B01/events.jsonl") {
        let log = play(&events);
        let seen = |key: &str| &log.iter().find(|(known, _)| known.trim() == key).unwrap().1;
        assert_eq!(seen("done f9").state, StateName::Open);
        for trial in 0..5 {
            let trial = seen(&format!("admit p{trial}"));
            assert_eq!((trial.admitted, trial.state), (1, StateName::HalfOpen));
        }
        assert_eq!(seen("admit p5").refused, 1);
        assert!(seen("admit p5").wait.is_some_and(|wait| wait >= seconds(1)));
        assert_eq!(seen("inspect").state, StateName::Open);
        assert_eq!(seen("admit q0").admitted, 1);
    }
}

#[test]
fn b02_of_a_thousand_callers_at_once_five_pass() {
    let mut twin = ten_failures();
    twin.push(json!({"t_ms": 30_020, "op": "admit_burst", "count": 1_000}));
    for events in both(twin, "B02/events.jsonl") {
        let log = play(&events);
        let (_, burst) = log.last().unwrap();
        assert_eq!((burst.admitted, burst.refused, burst.state), (5, 995, StateName::HalfOpen));
        assert!(burst.wait.is_some_and(|wait| wait >= seconds(1)));
    }
}

/// The facts of an answer of the case, as an adapter would state them.
fn facts(answer: &Value) -> (Ending, bool) {
    let elapsed = Duration::from_secs_f64(answer["elapsed_s"].as_f64().unwrap_or(0.0));
    let slow = SlowBy::Total.is_slow(seconds(30), Timing { elapsed, ..Timing::default() });
    let error = &answer["body"]["error"];
    let code = error["code"].as_str().or(error["type"].as_str()).unwrap_or_default();
    let status = answer["status"].as_u64().map(|status| u16::try_from(status).unwrap());
    let ending = match (status, answer["network"].as_str()) {
        (_, Some("connect_refused")) => Ending::Network { connected: false },
        (_, Some("read_timeout")) => Ending::Timeout { timeout: TimeoutKind::Attempt },
        (Some(200), _) if error.is_null() => Ending::Success,
        // An error under 200 that names no number and none of the special kinds is a 502.
        (Some(200), _) => Ending::status(502),
        (Some(status), _) => Ending::Status {
            status,
            retryable: answer["body"]["retryable"].as_bool(),
            content_filter: code == "content_filter",
            context_too_long: code == "context_length_exceeded",
            quota_spent: (code == "insufficient_quota").then_some(QuotaReset::Unknown),
        },
        _ => Ending::Cancelled { slow_without_content: false },
    };
    (ending, slow)
}

fn b06_answers() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"status": 400, "body": {"error": {"code": "content_filter"}, "retryable": false}}), "IGNORE"),
        (json!({"status": 400, "body": {"error": {"code": "content_filter"}, "retryable": true}}), "IGNORE"),
        (json!({"status": 400, "body": {"error": {"code": "context_length_exceeded"}}}), "IGNORE"),
        (json!({"status": 409, "body": {"error": {"code": "BUSY"}, "retryable": true}}), "FAILURE"),
        (json!({"status": 429, "body": {"error": {"code": "insufficient_quota"}}}), "FAILURE"),
        (json!({"status": 529, "body": {"error": {"type": "overloaded_error"}}}), "FAILURE"),
        (json!({"network": "connect_refused"}), "FAILURE"),
        (json!({"network": "read_timeout", "elapsed_s": 60}), "FAILURE"),
        (json!({"client_cancelled_after_ms": 300}), "IGNORE"),
        (json!({"status": 200, "body": {"error": {"code": "server_error"}}}), "FAILURE"),
        (json!({"status": 200, "elapsed_s": 30.0, "body": "ok"}), "SUCCESS"),
        (json!({"status": 200, "elapsed_s": 30.001, "body": "ok"}), "SUCCESS+SLOW"),
        (json!({"status": 401, "body": {"error": {"code": "invalid_api_key"}, "retryable": false}}), "IGNORE"),
    ]
}

fn check_answer(answer: &Value, want: &str) {
    let (ending, slow) = facts(answer);
    let got = match (judge(&ending, Keyed::No).target, slow) {
        (Verdict::Success, false) => "SUCCESS",
        (Verdict::Success, true) => "SUCCESS+SLOW",
        (Verdict::Failure { .. }, _) => "FAILURE",
        (Verdict::Ignored, _) => "IGNORE",
    };
    assert_eq!(got, want, "{answer}");
}

#[test]
fn b06_every_answer_has_its_verdict() {
    for (answer, want) in b06_answers() {
        check_answer(&answer, want);
    }
    let (Some(answers), Some(expected)) = (shared("B06/responses.jsonl"), shared("B06/expected.json")) else { return };
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let expected = expected["assert"].as_array().unwrap();
    let answers = lines(&answers);
    assert_eq!(answers.len(), expected.len());
    for (answer, expected) in answers.iter().zip(expected) {
        assert_eq!(answer["id"], expected["id"]);
        check_answer(answer, expected["breaker"].as_str().unwrap());
    }
}

#[test]
fn b06_twenty_content_refusals_record_nothing() {
    let mut rig = Rig::new(|settings| settings.consecutive_failures = Some(5));
    let (ending, slow) = facts(&b06_answers()[0].0);
    for _ in 0..20 {
        let pass = rig.acquire().unwrap();
        let verdict = judge(&ending, Keyed::No).target;
        rig.record(pass, Outcome { verdict, slow, source: Source::default(), connected: true });
    }
    rig.is(StateName::Closed);
    assert_eq!((rig.counts(), rig.breaker.snapshot().failure_share), ((0, 0, 0, 0), None));
}

#[test]
fn b07_a_provider_that_is_well_nineteen_times_of_twenty_never_opens() {
    for window in [WindowKind::Calls(20), WindowKind::Time(seconds(20))] {
        let mut rig = Rig::new(|settings| {
            settings.window = window;
            settings.consecutive_failures = Some(5);
        });
        for call in 1..=1_000 {
            rig.play(if call % 20 == 0 { "x" } else { "." }).wait(seconds(1));
        }
        assert_eq!(rig.transitions, []);
    }
}

#[test]
fn b08_twenty_calls_that_hang_open_it_at_once_and_count_once() {
    let mut rig = Rig::new(|_| ());
    let passes: Vec<_> = (0..20).map(|_| rig.acquire().unwrap()).collect();
    rig.wait(Duration::from_millis(30_001)).is(StateName::Closed);
    for pass in &passes {
        rig.aged(*pass);
        rig.aged(*pass);
    }
    rig.is(StateName::Open);
    assert_eq!(rig.transitions.len(), 1);
    assert_eq!(rig.counts(), (10, 0, 0, 10), "open as soon as ten are judged");
    rig.wait(seconds(29));
    for pass in passes {
        assert!(rig.record(pass, super::outcome('X')).stale, "the time-outs at 60 s are of an earlier generation");
    }
    assert_eq!((rig.transitions.len(), rig.counts()), (1, (10, 0, 0, 10)));
}

#[test]
fn b11_a_client_that_leaves() {
    let cancel = |slow_without_content| judge(&Ending::Cancelled { slow_without_content }, Keyed::No).target;
    let outcome = |slow| Outcome { verdict: cancel(slow), slow, source: Source::default(), connected: true };

    let mut rig = Rig::new(|_| ());
    let (early, late) = (rig.acquire().unwrap(), rig.acquire().unwrap());
    rig.wait(Duration::from_millis(300)).record(early, outcome(false));
    assert_eq!(rig.counts(), (0, 0, 0, 0), "at 0.3 s: nothing happened");
    rig.wait(seconds(61));
    rig.aged(late);
    rig.record(late, outcome(true));
    assert_eq!(rig.counts(), (1, 1, 1, 1), "at 61 s without a byte: failed, slow, once");

    let mut rig = Rig::new(|_| ());
    rig.play("xxxxxxxxxx").wait(seconds(30));
    let trial = rig.acquire().unwrap();
    let effect = rig.wait(Duration::from_millis(300)).record(trial, outcome(false));
    assert!(effect.trial_returned);
    assert!(matches!(rig.breaker.gate(), GateView::Probe { free: 5, .. }), "a trial at 0.3 s goes back");
}
