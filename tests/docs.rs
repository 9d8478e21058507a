//! Documents must not win against code: every decision record is well formed and linked, names tests that exist, and its tables say what
//! the code does. A record that is added is checked without a change here.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use watertight::{
    model::facts::{Ending, QuotaReset, TimeoutKind},
    policy::{
        breaker::settings::{BreakerSettings, HalfOpenBy, HalfOpenEnd, HalfOpenFrom, Mode, Probe, WindowKind},
        verdict::{Keyed, Verdict, judge},
    },
};

const LINES_MAX: usize = 120;
const SECTIONS: [&str; 8] = [
    "What hurts",
    "What pulls",
    "We will",
    "We looked at",
    "What it costs us",
    "How we will know",
    "Reopen when",
    "Log",
];

/// A decision record.
struct Record {
    number: String,
    file: String,
    text: String,
    front: BTreeMap<String, String>,
}

impl Record {
    fn is_accepted(&self) -> bool {
        self.front["status"] == "accepted"
    }

    fn leans_on(&self) -> Vec<&str> {
        let list = self.front.get("leans-on").map_or("", |list| list.trim_matches(['[', ']']));
        list.split(',').map(str::trim).filter(|number| !number.is_empty()).collect()
    }

    fn links_to(&self, other: &Self) -> bool {
        self.text.contains(&format!("]({})", other.file))
    }

    /// Every `path::name` in backticks that names a Rust file.
    fn tests(&self) -> Vec<(&str, &str)> {
        let quoted = self.text.split('`').skip(1).step_by(2);
        quoted.filter_map(|quoted| quoted.split_once(".rs::")).collect()
    }

    /// The cells of the rows under the table head `head`.
    fn table(&self, head: &str) -> Vec<Vec<&str>> {
        let lines = self.text.lines().skip_while(|line| *line != head).skip(2);
        let rows = lines.take_while(|line| line.starts_with('|'));
        rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn front_matter(file: &str, text: &str) -> BTreeMap<String, String> {
    let inner = text.strip_prefix("---\n").and_then(|rest| rest.split_once("\n---\n"));
    let (inner, _) = inner.unwrap_or_else(|| panic!("{file}: no front matter between lines of ---"));
    let entry = |line: &str| {
        let (key, value) = line.split_once(':').unwrap_or_else(|| panic!("{file}: front matter: {line}"));
        (key.trim().to_owned(), value.split('#').next().unwrap_or_default().trim().to_owned())
    };
    inner.lines().map(entry).collect()
}

fn records() -> BTreeMap<String, Record> {
    let mut records = BTreeMap::new();
    for entry in fs::read_dir(root().join("docs/adr")).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.extension().is_none_or(|extension| extension != "md") || file == "README.md" {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let number = file.split('-').next().unwrap_or_default().to_owned();
        let front = front_matter(&file, &text);
        let record = Record { number: number.clone(), file: file.clone(), text, front };
        let other = records.insert(number, record);
        assert!(other.is_none(), "{file}: another record has its number");
    }
    assert!(!records.is_empty(), "no record was found");
    records
}

fn record(number: &str) -> Record {
    records().remove(number).unwrap_or_else(|| panic!("there is no record {number}"))
}

fn is_number(text: &str) -> bool {
    text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    parts.iter().map(|part| part.len()).eq([4, 2, 2]) && parts.iter().all(|part| part.parse::<u16>().is_ok())
}

#[test]
fn every_record_has_the_form_of_one() {
    let records = records();
    for record in records.values() {
        let file = &record.file;
        assert!(is_number(&record.number), "{file}: its name must begin with four digits");
        let lines = record.text.lines().count();
        assert!(lines <= LINES_MAX, "{file}: {lines} lines, at most {LINES_MAX}");
        for key in ["status", "date", "touches"] {
            assert!(record.front.get(key).is_some_and(|value| !value.is_empty()), "{file}: front matter has no {key}");
        }
        assert!(is_date(&record.front["date"]), "{file}: date: {}", record.front["date"]);
        let status = record.front["status"].as_str();
        match status.strip_prefix("superseded by ") {
            Some(by) => assert!(records.contains_key(by), "{file}: superseded by {by}, which is not there"),
            None => assert!(["proposed", "accepted"].contains(&status), "{file}: status: {status}"),
        }
        let title = format!("# {}. ", record.number);
        assert!(record.text.lines().any(|line| line.starts_with(&title)), "{file}: no title {title}...");
        let headings: Vec<&str> = record.text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings, SECTIONS, "{file}: its sections");
    }
}

#[test]
fn records_that_lean_on_each_other_link_to_each_other() {
    let records = records();
    for record in records.values() {
        for number in record.leans_on() {
            let other = records.get(number);
            let other = other.unwrap_or_else(|| panic!("{}: leans on {number}, which is not there", record.file));
            assert!(record.links_to(other), "{} does not link to {}", record.file, other.file);
            assert!(other.links_to(record), "{} does not link back to {}", other.file, record.file);
        }
    }
}

#[test]
fn every_link_between_records_leads_to_a_file() {
    for record in records().values() {
        let targets = record.text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let path = target.split('#').next().unwrap_or_default();
            assert!(root().join("docs/adr").join(path).exists(), "{}: {target} leads nowhere", record.file);
        }
    }
}

/// Whether a source text has a test function of this name, also inside `proptest!`.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let opening = format!("fn {name}(");
    let mut functions = (0..lines.len()).filter(|index| lines[*index].contains(&opening));
    functions.any(|index| {
        let mut attributes = lines[..index].iter().rev().take_while(|line| line.starts_with("#["));
        attributes.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    })
}

#[test]
fn accepted_records_name_tests_that_exist() {
    for record in records().values() {
        let tests = record.tests();
        assert!(!record.is_accepted() || !tests.is_empty(), "{}: accepted, but names no test", record.file);
        for (path, name) in tests {
            let path = format!("{path}.rs");
            let source = fs::read_to_string(root().join(&path));
            let source = source.unwrap_or_else(|error| panic!("{}: {path}: {error}", record.file));
            assert!(has_test(&source, name), "{}: {path} has no test {name}", record.file);
        }
    }
}

#[test]
fn only_tests_count_as_tests() {
    let source = "#[test]\nfn a() {}\nfn b() {}\n    #[tokio::test(start_paused = true)]\n    async fn c() {}\n#[test]\n#[cfg(unix)]\nfn d() {}\n";
    for (name, is_test) in [("a", true), ("b", false), ("c", true), ("d", true), ("e", false)] {
        assert_eq!(has_test(source, name), is_test, "{name}");
    }
}

/// A duration as the configuration writes it: a minute is still 60s.
fn duration(value: Duration) -> String {
    let seconds = value.as_secs();
    if seconds > 60 && seconds.is_multiple_of(60) { format!("{}m", seconds / 60) } else { format!("{seconds}s") }
}

fn optional<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "off".to_owned(), text)
}

/// What the code does where nothing is configured. The pattern names every field, so that a new one cannot be forgotten.
fn defaults() -> BTreeMap<&'static str, String> {
    let BreakerSettings {
        window,
        calls_min,
        max_age,
        failure_share,
        slow_share,
        slow_call,
        consecutive_failures,
        open,
        open_growth,
        open_max,
        open_jitter,
        trials,
        trial_timeout,
        half_open_max,
        half_open_from,
        half_open_end,
        half_open_by,
        early_verdict,
        mode,
        probe,
    } = BreakerSettings::default();
    let provider = BreakerSettings::provider_default();
    let (window_key, window) = match window {
        WindowKind::Calls(calls) => ("window_calls", calls.to_string()),
        WindowKind::Time(time) => ("window", duration(time)),
    };
    let half_open_from = match half_open_from {
        HalfOpenFrom::FirstTrial => "first_trial",
        HalfOpenFrom::Entry => "entry",
    };
    let half_open_end = match half_open_end {
        HalfOpenEnd::Open => "open",
        HalfOpenEnd::Closed => "closed",
    };
    let half_open_by = match half_open_by {
        HalfOpenBy::Timer => "timer",
        HalfOpenBy::FirstCall => "first_call",
    };
    let mode = match mode {
        Mode::Auto => "auto",
        Mode::ForcedOpen => "forced_open",
        Mode::Disabled => "disabled",
        Mode::MetricsOnly => "metrics_only",
    };
    let probe = match probe {
        Probe::Off => "off",
        Probe::Health => "health",
        Probe::Request => "request",
    };
    BTreeMap::from([
        (window_key, window),
        ("calls_min", calls_min.to_string()),
        ("max_age", optional(max_age, duration)),
        ("failure_share", failure_share.to_string()),
        ("slow_share", slow_share.to_string()),
        ("slow_call", duration(slow_call)),
        ("consecutive_failures", optional(consecutive_failures, |count| count.to_string())),
        ("consecutive_failures (provider)", optional(provider.consecutive_failures, |count| count.to_string())),
        ("open", duration(open)),
        ("open_growth", format!("{open_growth:?}")),
        ("open_max", duration(open_max)),
        ("open_jitter", open_jitter.to_string()),
        ("trials", trials.to_string()),
        ("trial_timeout", optional(trial_timeout, duration)),
        ("half_open_max", optional(half_open_max, duration)),
        ("half_open_from", half_open_from.to_owned()),
        ("half_open_end", half_open_end.to_owned()),
        ("half_open_by", half_open_by.to_owned()),
        ("early_verdict", early_verdict.to_string()),
        ("mode", mode.to_owned()),
        ("probe", probe.to_owned()),
    ])
}

#[test]
fn the_defaults_table_is_what_the_code_does() {
    let record = record("0003");
    let rows = record.table("| key | default | where it comes from |");
    let table: BTreeMap<&str, String> = rows.iter().map(|row| (row[0], row[1].to_owned())).collect();
    assert_eq!(table.len(), rows.len(), "a key stands in the table twice");
    assert_eq!(table, defaults());
    assert!(rows.iter().all(|row| row.len() == 3 && !row[2].is_empty()), "every number has a source");
    let provider = BreakerSettings { consecutive_failures: Some(3), ..BreakerSettings::default() };
    assert_eq!(BreakerSettings::provider_default(), provider, "a provider differs in nothing else");
}

fn status(status: u16, retryable: Option<bool>) -> Ending {
    Ending::Status { status, retryable, content_filter: false, context_too_long: false, quota_spent: None }
}

/// What the record's phrases stand for.
fn endings(outcome: &str) -> Vec<Ending> {
    let timeouts =
        [TimeoutKind::Connect, TimeoutKind::FirstToken, TimeoutKind::Stall, TimeoutKind::Attempt, TimeoutKind::Call];
    let of_content = |content_filter, retryable| Ending::Status {
        status: 400,
        retryable,
        content_filter,
        context_too_long: !content_filter,
        quota_spent: None,
    };
    let spent = |status, quota_spent| Ending::Status {
        status,
        retryable: None,
        content_filter: false,
        context_too_long: false,
        quota_spent: Some(quota_spent),
    };
    match outcome {
        "our own refusal" => vec![Ending::OwnRefusal],
        "the server says that it loads its model" => vec![Ending::Loading],
        "actor restarted or attempt panicked" => vec![Ending::Restarted],
        "a fault of ours" => vec![Ending::Internal],
        "cut by the caller's shorter deadline" => vec![Ending::DeadlineCut],
        "cancelled by the caller" => vec![Ending::Cancelled { slow_without_content: false }],
        "cancelled past the slow threshold without content" => vec![Ending::Cancelled { slow_without_content: true }],
        "network error" => vec![Ending::Network { connected: false }, Ending::Network { connected: true }],
        "our timeout" => timeouts.map(|timeout| Ending::Timeout { timeout }).to_vec(),
        "stream cut without an end" => vec![Ending::StreamCut],
        "bad reply" => vec![Ending::BadReply],
        "model loaded or put away, no answer" => vec![Ending::NoDraft],
        "any 5xx" => [None, Some(true), Some(false)]
            .into_iter()
            .flat_map(|retryable| (500..=599).map(move |code| status(code, retryable)))
            .collect(),
        "429" => vec![status(429, None), status(429, Some(true)), status(429, Some(false))],
        "quota spent" => vec![
            spent(429, QuotaReset::Unknown),
            spent(402, QuotaReset::Unknown),
            spent(429, QuotaReset::In(Duration::from_secs(3_600))),
        ],
        "content filter or context too long" => {
            vec![of_content(true, None), of_content(true, Some(true)), of_content(false, Some(true))]
        }
        "the caller's own schema missed" => vec![Ending::CallerShape],
        "401 or 403 with our key" => vec![status(401, None), status(403, Some(false))],
        "4xx not retryable or silent about it" => (400..=499)
            .filter(|code| *code != 429)
            .flat_map(|code| [status(code, None), status(code, Some(false))])
            .collect(),
        "4xx retryable" => (400..=499).filter(|code| *code != 429).map(|code| status(code, Some(true))).collect(),
        "promised answer" => vec![Ending::Success],
        "anything else" => (0..=399).chain(600..=999).map(|code| status(code, None)).collect(),
        other => panic!("the record has an outcome that this test does not know: {other}"),
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Success => "success",
        Verdict::Failure { hard: true } => "hard failure",
        Verdict::Failure { hard: false } => "failure",
        Verdict::Ignored => "ignored",
    }
}

#[test]
fn the_verdict_table_is_what_the_code_does() {
    let record = record("0007");
    let rows = record.table("| # | outcome | target | key | provider |");
    assert_eq!(rows.len(), 22, "rows of the record");
    for row in rows {
        for ending in endings(row[1]) {
            let judged = judge(&ending, Keyed::Yes);
            let verdicts = [judged.target, judged.key, judged.provider].map(word);
            assert_eq!(verdicts, row[2..5], "row {} ({}): {ending:?}", row[0], row[1]);
        }
    }
}
