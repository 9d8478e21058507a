//! What became different between a run and its rerun: each step's status and time, the tokens, and the outputs as text, line by line.
//! Compares records only; knows nothing of how they came to be.

use std::{collections::BTreeSet, fmt::Write as _};

use serde::Serialize;
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

use crate::{
    cli::{
        report::{cost_in_words, tokens_in_words},
        table::table,
    },
    model::run::{RunRecord, RunStatus, RunTokens, StepRecord, StepStatus},
};

/// Lines around a change that are shown with it.
const CONTEXT_LINES: usize = 3;

/// Whether a text is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paint {
    Colours,
    Plain,
}

/// What became different.
#[derive(Debug, Serialize)]
pub(super) struct Difference {
    status: Two<RunStatus>,
    duration_ms: Two<Option<u64>>,
    /// Those of the new run are its own only: what it took over was paid by the old one.
    tokens: Two<RunTokens>,
    /// With their money, where prices are known.
    cost: Two<Option<String>>,
    steps: Vec<StepDifference>,
    /// The result, as lines; `None` if it is the same.
    output: Option<Vec<Line>>,
}

#[derive(Debug, Serialize)]
struct Two<T> {
    old: T,
    new: T,
}

/// One step of either run.
#[derive(Debug, Serialize)]
struct StepDifference {
    id: String,
    index: Option<usize>,
    iteration: u32,
    old: Option<StepFacts>,
    new: Option<StepFacts>,
    /// What it made, as lines; `None` if that is the same.
    output: Option<Vec<Line>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct StepFacts {
    status: StepStatus,
    duration_ms: Option<u64>,
    attempts: usize,
}

/// A line of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Line {
    change: Change,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    Same,
    Removed,
    Added,
    /// Lines that are the same in both are left out here.
    Gap,
}

type Key = (String, Option<usize>, u32);

impl Difference {
    /// Compares.
    pub(super) fn of(old: &RunRecord, new: &RunRecord) -> Self {
        let mut seen = BTreeSet::new();
        let all = old.steps.iter().chain(&new.steps);
        let keys: Vec<Key> = all.map(key_of).filter(|key| seen.insert(key.clone())).collect();
        Self {
            status: Two { old: old.status, new: new.status },
            duration_ms: Two { old: old.duration_ms, new: new.duration_ms },
            tokens: Two { old: old.tokens, new: new.tokens },
            cost: Two { old: cost_in_words(old), new: cost_in_words(new) },
            steps: keys.into_iter().map(|key| step_of(key, old, new)).collect(),
            output: lines_of(old.output.as_ref(), new.output.as_ref()),
        }
    }

    /// For a person: a table of the steps, then what changed in their outputs.
    pub(super) fn as_text(&self, paint: Paint) -> String {
        let rows = self.steps.iter().map(|step| {
            let output = if step.output.is_some() { "changed" } else { "same" };
            vec![name_of(step), shown(step.old), shown(step.new), output.to_owned()]
        });
        let mut text = table(&["step", "old run", "new run", "output"], rows);
        let one = |status: RunStatus, duration: Option<u64>, used: RunTokens, cost: Option<&str>| {
            let cost = cost.map(|cost| format!(", {cost}")).unwrap_or_default();
            format!("{}, {}, {}{cost}", status.as_str(), seconds(duration), tokens_in_words(used))
        };
        let (old, new) = (self.cost.old.as_deref(), self.cost.new.as_deref());
        let _ = writeln!(text, "\nold run: {}", one(self.status.old, self.duration_ms.old, self.tokens.old, old));
        let _ = writeln!(text, "new run: {}", one(self.status.new, self.duration_ms.new, self.tokens.new, new));
        for step in &self.steps {
            if let Some(lines) = &step.output {
                write_lines(&mut text, &format!("step {}", name_of(step)), lines, paint);
            }
        }
        match &self.output {
            Some(lines) => write_lines(&mut text, "result", lines, paint),
            None => text.push_str("\nThe result is the same.\n"),
        }
        text
    }
}

fn key_of(step: &StepRecord) -> Key {
    (step.id.clone(), step.index, step.iteration)
}

fn step_of(key: Key, old: &RunRecord, new: &RunRecord) -> StepDifference {
    let find = |run: &RunRecord| run.steps.iter().find(|step| key_of(step) == key).cloned();
    let (old, new) = (find(old), find(new));
    let facts = |step: &StepRecord| StepFacts {
        status: step.status,
        duration_ms: step.duration_ms,
        attempts: step.attempts.len(),
    };
    let output = |step: &Option<StepRecord>| step.as_ref().and_then(|step| step.output.clone());
    StepDifference {
        output: lines_of(output(&old).as_ref(), output(&new).as_ref()),
        old: old.as_ref().map(facts),
        new: new.as_ref().map(facts),
        id: key.0,
        index: key.1,
        iteration: key.2,
    }
}

/// What a person reads of an output: a post or a text as it is, a list or object as JSON, its own texts with their line ends.
fn as_text(output: &Value) -> String {
    let text = ["markdown", "text"].iter().find_map(|name| output.get(*name)).unwrap_or(output).as_str();
    let whole = |output: &Value| format!("{output:#}").replace("\\n", "\n");
    match text {
        // Beside its text an object may hold more that changed.
        Some(text) if output.is_object() && output.as_object().is_some_and(|all| all.len() > 1) => {
            let mut rest = output.clone();
            if let Some(members) = rest.as_object_mut() {
                members.retain(|_, value| value.as_str() != Some(text));
            }
            format!("{}\n{text}\n", whole(&rest))
        }
        Some(text) => format!("{text}\n"),
        None => whole(output) + "\n",
    }
}

/// The comparison of two outputs, unchanged stretches left out; `None` if they are the same.
fn lines_of(old: Option<&Value>, new: Option<&Value>) -> Option<Vec<Line>> {
    if old == new {
        return None;
    }
    let (old, new) = (old.map(as_text).unwrap_or_default(), new.map(as_text).unwrap_or_default());
    let diff = TextDiff::from_lines(old.as_str(), new.as_str());
    let mut lines = Vec::new();
    for (number, group) in diff.grouped_ops(CONTEXT_LINES).iter().enumerate() {
        if number > 0 {
            lines.push(Line { change: Change::Gap, text: String::new() });
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let kind = match change.tag() {
                ChangeTag::Equal => Change::Same,
                ChangeTag::Delete => Change::Removed,
                ChangeTag::Insert => Change::Added,
            };
            let text: &str = change.value();
            lines.push(Line { change: kind, text: text.trim_end_matches(['\n', '\r']).to_owned() });
        }
    }
    Some(lines)
}

fn write_lines(text: &mut String, title: &str, lines: &[Line], paint: Paint) {
    let _ = writeln!(text, "\n--- {title}, old\n+++ {title}, new");
    for line in lines {
        let (mark, colour) = match line.change {
            Change::Same => (" ", None),
            Change::Removed => ("-", Some(31)),
            Change::Added => ("+", Some(32)),
            Change::Gap => ("...", None),
        };
        let shown: String = line.text.chars().map(|letter| if is_steering(letter) { ' ' } else { letter }).collect();
        let _ = match colour.filter(|_| paint == Paint::Colours) {
            Some(colour) => writeln!(text, "\u{1b}[{colour}m{mark}{shown}\u{1b}[0m"),
            None => writeln!(text, "{mark}{shown}"),
        };
    }
}

/// A model's text must not steer the terminal.
fn is_steering(letter: char) -> bool {
    letter.is_control() && letter != '\t'
}

fn name_of(step: &StepDifference) -> String {
    let index = step.index.map(|index| format!("[{index}]")).unwrap_or_default();
    let iteration = if step.iteration > 0 { format!(" #{}", step.iteration + 1) } else { String::new() };
    format!("{}{index}{iteration}", step.id)
}

fn shown(facts: Option<StepFacts>) -> String {
    facts.map_or_else(|| "-".to_owned(), |facts| format!("{}, {}", facts.status.as_str(), seconds(facts.duration_ms)))
}

fn seconds(milliseconds: Option<u64>) -> String {
    milliseconds.map_or_else(|| "-".to_owned(), |milliseconds| format!("{:.1} s", milliseconds as f64 / 1_000.0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::cost::Cost;

    fn run(steps: &[(&str, &str, Value)]) -> RunRecord {
        let steps: Vec<Value> = steps
            .iter()
            .map(|(id, status, output)| {
                json!({"id": id, "agent": "a", "index": null, "iteration": 0, "status": status, "started_ms": 1,
                    "duration_ms": 1_500, "attempts": [], "refusals": [], "degraded": null, "error": null, "output": output})
            })
            .collect();
        let output = steps.last().map_or(Value::Null, |step| step["output"].clone());
        serde_json::from_value(json!({"run_id": "r", "workflow": "w", "workflow_hash": "h", "status": "completed",
            "created_ms": 1, "started_ms": 1, "ended_ms": 2, "duration_ms": 2_000,
            "tokens": {"prompt": 10, "output": 5, "estimated": true}, "output": output, "steps": steps, "degraded": [],
            "error": null}))
        .unwrap()
    }

    #[test]
    fn what_a_person_reads() {
        let old = run(&[
            ("draft", "succeeded", json!({"text": "봄 산책\n바다"})),
            ("검토", "succeeded", json!({"score": 70, "text": "좋다\n길다"})),
        ]);
        let old = RunRecord { cost: Cost::from_units(0.5), currency: Some("KRW".to_owned()), ..old };
        let new = run(&[
            ("draft", "succeeded", json!({"text": "봄 산책\n바다"})),
            ("검토", "succeeded", json!({"score": 90, "text": "좋다\n짧다"})),
            ("extra", "failed", Value::Null),
        ]);
        let text = Difference::of(&old, &new).as_text(Paint::Plain);
        let want = "\
step   old run           new run           output
draft  succeeded, 1.5 s  succeeded, 1.5 s  same
검토   succeeded, 1.5 s  succeeded, 1.5 s  changed
extra  -                 failed, 1.5 s     same

old run: completed, 2.0 s, about 10 + 5 tokens, 0.5 KRW
new run: completed, 2.0 s, about 10 + 5 tokens

--- step 검토, old
+++ step 검토, new
 {
-  \"score\": 70
+  \"score\": 90
 }
 좋다
-길다
+짧다
";
        assert!(text.starts_with(want), "{text}");
    }

    #[test]
    fn long_texts_are_shown_around_their_changes_and_colours_only_on_a_terminal() {
        let lines = |changed: &str| {
            (0..30)
                .map(|line| if line == 15 { format!("{changed}\n") } else { format!("line {line}\n") })
                .collect::<String>()
        };
        let (old, new) =
            (run(&[("a", "succeeded", json!(lines("old")))]), run(&[("a", "succeeded", json!(lines("\u{1b}[2Jnew")))]));
        let difference = Difference::of(&old, &new);
        let text = difference.as_text(Paint::Plain);
        assert!(
            text.contains("\n line 12\n line 13\n line 14\n-old\n+ [2Jnew\n line 16\n line 17\n line 18\n"),
            "{text}"
        );
        assert!(!text.contains("line 11") && !text.contains('\u{1b}'), "{text}");
        assert!(difference.as_text(Paint::Colours).contains("\u{1b}[31m-old\u{1b}[0m\n\u{1b}[32m+ [2Jnew\u{1b}[0m\n"));
        let same = Difference::of(&old, &old);
        assert!(same.as_text(Paint::Plain).ends_with("\nThe result is the same.\n"));
        assert!(serde_json::to_value(&same).unwrap()["output"].is_null());
    }
}
