//! A run's progress for a person: a live line a step on a terminal, plain lines elsewhere. Standard error only.

use std::{collections::HashMap, io::IsTerminal, time::Duration};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::{report::action_in_words, say::say};
use crate::model::event::{Event, EventType};

/// How often a live line moves.
const TICK: Duration = Duration::from_millis(120);

/// Shows events.
pub(super) struct Progress {
    shown: Shown,
    started_ms: HashMap<String, u64>,
}

enum Shown {
    Nothing,
    Lines,
    Bars { all: MultiProgress, bars: HashMap<String, (ProgressBar, usize)> },
}

impl Progress {
    /// Live on a terminal, lines elsewhere, nothing if `quiet`.
    pub(super) fn start(quiet: bool) -> Self {
        let shown = match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => Shown::Nothing,
            (false, false) => Shown::Lines,
            (false, true) => Shown::Bars { all: MultiProgress::new(), bars: HashMap::new() },
        };
        Self { shown, started_ms: HashMap::new() }
    }

    /// Shows one event.
    pub(super) fn show(&mut self, event: &Event) {
        let name = name_of(event);
        if event.kind == EventType::StepStarted {
            self.started_ms.insert(name.clone(), event.ts_ms);
        }
        let seconds = self.started_ms.get(&name).map(|started| event.ts_ms.saturating_sub(*started) as f64 / 1_000.0);
        match &mut self.shown {
            Shown::Nothing => {}
            Shown::Lines => {
                if let Some(line) = line_of(event, &name, seconds) {
                    say(&line);
                }
            }
            Shown::Bars { all, bars } => show_live(all, bars, event, &name, seconds),
        }
    }

    /// Leaves the terminal tidy.
    pub(super) fn end(&mut self) {
        if let Shown::Bars { bars, .. } = &mut self.shown {
            for (_, (bar, _)) in bars.drain() {
                if !bar.is_finished() {
                    bar.abandon();
                }
            }
        }
    }
}

fn show_live(
    all: &MultiProgress,
    bars: &mut HashMap<String, (ProgressBar, usize)>,
    event: &Event,
    name: &str,
    seconds: Option<f64>,
) {
    match event.kind {
        EventType::StepStarted => {
            let bar = all.add(ProgressBar::new_spinner());
            let style = ProgressStyle::with_template("{spinner:.cyan} {prefix:16} {elapsed:>4} {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.set_prefix(name.to_owned());
            bar.enable_steady_tick(TICK);
            bars.insert(name.to_owned(), (bar, 0));
        }
        EventType::StepDelta => {
            if let Some((bar, characters)) = bars.get_mut(name) {
                *characters += event.data["text"].as_str().map_or(0, |text| text.chars().count());
                bar.set_message(format!("{characters} characters"));
            }
        }
        _ => {
            if matches!(event.kind, EventType::StepFinished | EventType::StepSkipped)
                && let Some((bar, _)) = bars.remove(name)
            {
                bar.finish_and_clear();
                all.remove(&bar);
            }
            if let Some(line) = line_of(event, name, seconds) {
                // Whole lines only: what is printed after the last one begins at the left.
                all.suspend(|| say(&line));
            }
        }
    }
}

fn name_of(event: &Event) -> String {
    let mut name = event.step.clone().unwrap_or_else(|| "run".to_owned());
    if let Some(index) = event.data["index"].as_u64() {
        name.push_str(&format!("[{index}]"));
    }
    if let Some(iteration) = event.data["iteration"].as_u64().filter(|iteration| *iteration > 0) {
        name.push_str(&format!(" #{}", iteration + 1));
    }
    name
}

/// The line of an event; `None` for what only a live display shows. `seconds` since the step began.
fn line_of(event: &Event, name: &str, seconds: Option<f64>) -> Option<String> {
    let data = &event.data;
    let text = |key: &str| data[key].as_str().unwrap_or_default();
    let after = seconds.map(|seconds| format!(" after {seconds:.1} s")).unwrap_or_default();
    let wait = data["retry_after"].as_f64().map(|wait| format!(", again in {wait:.0} s")).unwrap_or_default();
    let code = data["error"]["error_code"].as_str().or_else(|| data["error_code"].as_str()).unwrap_or_default();
    let line = match event.kind {
        EventType::StepDelta | EventType::RunStarted => return None,
        EventType::RunFinished => format!("= {}", text("status")),
        EventType::RunParked => {
            let wake = data["wake_ms"].as_u64().map(|wake| wake.saturating_sub(event.ts_ms) as f64 / 1_000.0);
            let wake = wake.map_or_else(|| "until it opens".to_owned(), |wake| format!("for {wake:.0} s"));
            format!("~ parked {wake}: agent {} is shut out ({})", text("agent"), text("reason"))
        }
        EventType::RunResumed => "~ resumed".to_owned(),
        EventType::StepStarted => format!("> {name}"),
        EventType::StepRefused => format!("~ {name}: refused, {code}{wait}"),
        EventType::StepRetried => format!("~ {name}: {code}{after}, trying again"),
        EventType::StepDegraded => {
            let code = if code.is_empty() { text("cause") } else { code };
            format!("! {name}: {code}{after}, {}", action_in_words(text("action")))
        }
        EventType::StepSkipped if text("why") == "when" => format!("- {name}: not needed"),
        // What was done instead is told already.
        EventType::StepSkipped => return None,
        EventType::StepFinished if text("status") == "degraded" => return None,
        EventType::StepFinished if code.is_empty() => format!("+ {name}{after}"),
        EventType::StepFinished => format!("x {name}: {code}{after}"),
    };
    Some(line)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines() {
        let event = |kind, data| Event { id: 1, ts_ms: 5, kind, run_id: "r".into(), step: Some("draft".into()), data };
        for (kind, data, want) in [
            (EventType::StepStarted, json!({"iteration": 1}), Some("> draft #2")),
            (EventType::StepFinished, json!({"index": 3}), Some("+ draft[3] after 1.2 s")),
            (
                EventType::StepFinished,
                json!({"error": {"error_code": "AGENT_TIMEOUT"}}),
                Some("x draft: AGENT_TIMEOUT after 1.2 s"),
            ),
            (EventType::StepDelta, json!({"text": "x"}), None),
            (
                EventType::StepDegraded,
                json!({"cause": "error", "action": "default", "error_code": "AGENT_NETWORK_ERROR"}),
                Some("! draft: AGENT_NETWORK_ERROR after 1.2 s, went on with its default"),
            ),
            (EventType::StepFinished, json!({"status": "degraded", "error": {"error_code": "AGENT_TIMEOUT"}}), None),
            (EventType::StepSkipped, json!({"why": "when"}), Some("- draft: not needed")),
            (
                EventType::StepRetried,
                json!({"error_code": "AGENT_ERROR"}),
                Some("~ draft: AGENT_ERROR after 1.2 s, trying again"),
            ),
            (
                EventType::RunParked,
                json!({"agent": "draft", "reason": "consecutive", "wake_ms": 30_005}),
                Some("~ parked for 30 s: agent draft is shut out (consecutive)"),
            ),
            (
                EventType::RunParked,
                json!({"agent": "draft", "reason": "forced", "wake_ms": null}),
                Some("~ parked until it opens: agent draft is shut out (forced)"),
            ),
        ] {
            let event = event(kind, data);
            assert_eq!(line_of(&event, &name_of(&event), Some(1.234)).as_deref(), want);
        }
    }
}
