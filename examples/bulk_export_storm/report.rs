//! What the run showed, as a table or as JSON, and whether it was what was promised. Every figure comes from the run.

use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets::NOTHING};
use serde_json::{Value, json};

use crate::storm::{Storm, callers::Seen, samples::Samples, sides::EXPORT_SLOTS};

/// What chat's p99 may be beside the export, as a multiple of its p99 alone: in virtual time, and over HTTP on a machine that does other
/// things too.
pub(crate) const RATIO_MAX: f64 = 1.05;
pub(crate) const RATIO_OVER_HTTP_MAX: f64 = 1.1;
/// The part of its own slots that the export must have used.
const EXPORT_USE_MIN: f64 = 0.85;
/// Without compartments chat's p99 is at least so many times as long.
const COLLAPSE_MIN: f64 = 2.0;

/// The language of labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    English,
    Korean,
}

impl Language {
    fn say<'a>(self, english: &'a str, korean: &'a str) -> &'a str {
        match self {
            Self::English => english,
            Self::Korean => korean,
        }
    }
}

/// A promise, what became of it, and whether it was kept.
pub(crate) struct Verdict {
    pub(crate) text: String,
    pub(crate) kept: bool,
}

/// The three parts, with their names.
fn sides(storm: &Storm, language: Language) -> [(&str, &Seen); 3] {
    [
        (language.say("quiet: no export", "조용할 때 (내보내기 없음)"), &storm.quiet),
        (language.say("with compartments", "격실 있음"), &storm.kept_apart),
        (language.say("without", "격실 없음"), &storm.open),
    ]
}

fn groups(seen: &Seen, language: Language) -> Vec<(&'static str, &Samples)> {
    let all = [
        (language.say("chat", "채팅"), &seen.chat),
        (language.say("chat, exporting customer", "채팅 (내보내는 고객)"), &seen.neighbours),
        (language.say("export", "대량 내보내기"), &seen.export),
    ];
    all.into_iter().filter(|(_, samples)| !samples.took_ms.is_empty()).collect()
}

/// The table, refusals by reason below it.
pub(crate) fn table(storm: &Storm, faster: f64, language: Language) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let english = ["", "", "n", "p50 s", "p90 s", "p99 s", "refused", "answers/min", "tokens/min", "calls there"];
    let korean = ["", "", "n", "p50 초", "p90 초", "p99 초", "거절", "응답/분", "토큰/분", "진행 중"];
    table.set_header(if language == Language::Korean { korean } else { english });
    let mut refusals = Vec::new();
    for (side, seen) in sides(storm, language) {
        for (place, (who, samples)) in groups(seen, language).into_iter().enumerate() {
            let mut row = vec![if place == 0 { side } else { "" }.to_owned(), who.to_owned()];
            row.extend(figures(samples, seen.span, faster));
            table.add_row(row);
            for (reason, count) in &samples.refused {
                refusals.push(format!("  {side}, {who}: {count} x {reason}"));
            }
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let unpadded = |line: &str| line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned();
    let mut lines: Vec<String> = table.to_string().lines().map(unpadded).collect();
    lines.push(String::new());
    lines.push(language.say("Refusals by reason:", "거절 사유:").to_owned());
    if refusals.is_empty() {
        refusals.push(language.say("  none", "  없음").to_owned());
    }
    lines.extend(refusals);
    lines.join("\n") + "\n"
}

/// In life's own time, whatever the run's was.
fn figures(samples: &Samples, span: Duration, faster: f64) -> Vec<String> {
    let seconds = |percent| {
        samples.percentile(percent).map_or_else(|| "-".to_owned(), |ms| format!("{:.1}", ms * faster / 1_000.0))
    };
    let minutes = span.as_secs_f64() * faster / 60.0;
    let count = samples.took_ms.len();
    vec![
        count.to_string(),
        seconds(50),
        seconds(90),
        seconds(99),
        samples.refused_sum().to_string(),
        format!("{:.1}", count as f64 / minutes),
        format!("{:.0}", samples.tokens as f64 / minutes),
        format!("{:.2}", slots(samples, span)),
    ]
}

/// How many calls of a group were at the server on average, in its slots or in its queue.
fn slots(samples: &Samples, span: Duration) -> f64 {
    samples.held.as_secs_f64() / span.as_secs_f64()
}

/// What was promised, and what came.
pub(crate) fn verdicts(storm: &Storm, documents: Option<u64>, ratio_max: f64) -> Vec<Verdict> {
    let p99 = |seen: &Seen| seen.chat.percentile(99).unwrap_or(f64::NAN);
    let (kept_apart, open) = (p99(&storm.kept_apart) / p99(&storm.quiet), p99(&storm.open) / p99(&storm.quiet));
    let p50 = |seen: &Seen| seen.chat.percentile(50).unwrap_or(f64::NAN);
    let (export, span) = (&storm.kept_apart.export, storm.kept_apart.span);
    let done = export.took_ms.len() as u64;
    let held = slots(export, span);
    vec![
        Verdict {
            text: format!("with compartments, chat's p99 is {kept_apart:.3} x its quiet p99 (at most {ratio_max})"),
            kept: kept_apart <= ratio_max,
        },
        Verdict {
            text: format!(
                "without, it is {open:.2} x (at least {COLLAPSE_MIN}), and the middle {:.1} x",
                p50(&storm.open) / p50(&storm.quiet)
            ),
            kept: open >= COLLAPSE_MIN,
        },
        Verdict {
            text: match documents {
                Some(all) => format!("with compartments, the export finishes {done} of {all} documents"),
                None => format!("with compartments, the export finishes {done} documents while it may"),
            },
            kept: documents.is_none_or(|all| done == all) && done > 0 && export.given_up == 0,
        },
        Verdict {
            text: format!("and holds {held:.2} of its {EXPORT_SLOTS} slots (at least {EXPORT_USE_MIN} of them)"),
            kept: held >= EXPORT_USE_MIN * f64::from(EXPORT_SLOTS),
        },
    ]
}

/// The same for programs.
pub(crate) fn json(storm: &Storm, faster: f64, verdicts: &[Verdict]) -> Value {
    let group = |samples: &Samples, span: Duration| {
        let seconds = |percent| samples.percentile(percent).map(|ms| ms * faster / 1_000.0);
        json!({
            "n": samples.took_ms.len(),
            "p50_s": seconds(50),
            "p90_s": seconds(90),
            "p99_s": seconds(99),
            "refused": samples.refused,
            "given_up": samples.given_up,
            "tokens": samples.tokens,
            "calls_at_server_mean": slots(samples, span),
        })
    };
    let side = |seen: &Seen| {
        json!({
            "span_s": seen.span.as_secs_f64() * faster,
            "chat": group(&seen.chat, seen.span),
            "chat_of_exporting_customer": group(&seen.neighbours, seen.span),
            "export": group(&seen.export, seen.span),
        })
    };
    let queues: Vec<usize> = storm.servers.iter().map(|server| server.queue_max).collect();
    json!({
        "quiet": side(&storm.quiet),
        "with_compartments": side(&storm.kept_apart),
        "without": side(&storm.open),
        "server_queue_max": { "quiet": queues[0], "with_compartments": queues[1], "without": queues[2] },
        "promises": verdicts.iter().map(|verdict| json!({ "promise": verdict.text, "kept": verdict.kept })).collect::<Vec<_>>(),
    })
}
