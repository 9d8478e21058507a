//! What a run made, for a person or a program: the result on standard output; what was replaced, what failed, where and what to do
//! about it on standard error.

use serde_json::Value;

use super::{exit::Stop, run_command::print, say::say};
use crate::{
    model::{
        envelope::{Envelope, ErrorCode},
        run::{RunRecord, RunStatus, RunTokens, StepRecord, StepStatus},
    },
    settings::load::Settings,
};

/// The whole run as one JSON object.
pub(super) fn show_json(record: &RunRecord, settings: &Settings) -> Result<(), Stop> {
    let language = settings.run.language;
    let mut record = record.clone();
    record.error = record.error.map(|error| error.in_language(language));
    for step in &mut record.steps {
        step.error = step.error.take().map(|error| error.in_language(language));
    }
    let text = serde_json::to_string(&record).map_err(Stop::usage)?;
    print(&format!("{text}\n"))
}

/// What the run made, or why it made nothing.
pub(super) fn show(record: &RunRecord, settings: &Settings) -> Result<(), Stop> {
    if let Some(output) = &record.output {
        print(&as_text(output))?;
    }
    let lines = problem_lines(record).into_iter().chain(degraded_lines(record)).chain(failed_lines(record, settings));
    for line in lines.chain(spent_line(record)) {
        say(&line);
    }
    Ok(())
}

/// What the run cost, where prices are known.
fn spent_line(record: &RunRecord) -> Option<String> {
    let cost = cost_in_words(record)?;
    Some(format!("watertight: used {}, which cost {cost}", tokens_in_words(record.tokens)))
}

/// Tokens, as a person reads them.
pub(super) fn tokens_in_words(tokens: RunTokens) -> String {
    let about = if tokens.estimated { "about " } else { "" };
    format!("{about}{} + {} tokens", tokens.prompt, tokens.output)
}

/// The cost with its money; `None` where no price is known.
pub(super) fn cost_in_words(record: &RunRecord) -> Option<String> {
    let cost = record.cost?;
    Some(record.currency.as_deref().map_or_else(|| cost.to_string(), |currency| format!("{cost} {currency}")))
}

/// A post as it is, a text as it is, anything else as JSON.
fn as_text(output: &Value) -> String {
    let text = output.get("markdown").unwrap_or(output).as_str();
    let mut text = text.map_or_else(|| format!("{output:#}"), str::to_owned);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Files of which an agent could make nothing, each with its reason: they are in the result, but a person should know.
fn problem_lines(record: &RunRecord) -> Vec<String> {
    let outputs = record.steps.iter().filter_map(|step| step.output.as_ref()?.get("photos")?.as_array());
    let problems = outputs.flatten().filter_map(|file| {
        let (name, problem) = (file.get("name")?.as_str()?, file.get("problem")?.as_str()?);
        Some(format!("watertight: {name}: {problem}"))
    });
    problems.collect()
}

fn degraded_lines(record: &RunRecord) -> Vec<String> {
    let mut lines = Vec::new();
    for degraded in &record.degraded {
        let (step, cause) = (&degraded.step, degraded.cause.as_str());
        lines.push(format!("watertight: degraded: step {step}: {} ({cause})", action_in_words(&degraded.action)));
        let causes = record.steps.iter().filter(|known| known.id == *step && known.degraded.is_some());
        if let Some(error) = causes.filter_map(|known| known.error.as_ref()).next_back() {
            lines.push(format!("  {}: {}", error.error_code, error.message));
        }
    }
    lines
}

/// What was done instead, as a person says it.
pub(super) fn action_in_words(action: &str) -> &str {
    match action {
        "default" => "went on with its default",
        "skip" => "left out",
        "best_so_far" => "kept the best version so far",
        "partial" => "went on with what there was",
        other => other,
    }
}

fn failed_lines(record: &RunRecord, settings: &Settings) -> Vec<String> {
    let Some(error) = &record.error else { return Vec::new() };
    let mut lines = vec![format!("watertight: {}: {}", record.status.as_str(), error.message)];
    let agent = match culprits(record, error)[..] {
        [] => None,
        [step, ..] => {
            lines.push(format!("  step {}, {}", step.id, whereabouts(step, settings)));
            Some(step.agent.as_str())
        }
    };
    // Whoever cancelled knows why.
    if record.status == RunStatus::Cancelled {
        return lines;
    }
    let mut advice = advice(error, agent);
    if let Some(wait) = error.retry_after {
        advice.push_str(&format!("; worth trying again in {wait:.0} s"));
    }
    lines.push(format!("  {code}: {advice} (docs/errors/{code}.md)", code = error.error_code));
    lines
}

/// The steps that ended the run: the one that failed, else those that were under way when it ended.
fn culprits<'a>(record: &'a RunRecord, error: &Envelope) -> Vec<&'a StepRecord> {
    let named = error.details.get("step").and_then(Value::as_str);
    let failed = |step: &&StepRecord| step.status == StepStatus::Failed && named.is_none_or(|named| named == step.id);
    let failed: Vec<&StepRecord> = record.steps.iter().filter(failed).collect();
    if !failed.is_empty() {
        return failed;
    }
    let cut = |step: &&StepRecord| step.status == StepStatus::Cancelled && step.started_ms.is_some();
    record.steps.iter().filter(cut).collect()
}

fn whereabouts(step: &StepRecord, settings: &Settings) -> String {
    let provider = settings.agent(step.agent.as_str()).map(|agent| agent.settings.provider.as_str());
    let place = provider.and_then(|provider| address(settings, provider));
    let place = place.map(|place| format!(" at {place}")).unwrap_or_default();
    let attempts = match step.attempts.len() {
        0 => "no attempt came to an end".to_owned(),
        1 => "1 attempt".to_owned(),
        many => format!("{many} attempts"),
    };
    format!("agent {}{place}, {attempts}", step.agent)
}

/// The address of a provider that has one. The settings let no credentials and no query into it.
fn address<'a>(settings: &'a Settings, provider: &str) -> Option<&'a str> {
    settings.provider(provider)?.backend.endpoint().map(|endpoint| endpoint.base_url.as_str())
}

/// What a person can do about an error.
fn advice(error: &Envelope, agent: Option<&str>) -> String {
    let agent = agent.unwrap_or("NAME");
    match error.error_code {
        ErrorCode::AgentNetworkError => {
            "nothing answers there as it should: start it, or correct its provider's base_url".to_owned()
        }
        ErrorCode::AgentTimeout => {
            format!("it answers too slowly for its timeouts: `check --explain` lists them under agents.{agent}")
        }
        ErrorCode::AgentBadReply => {
            format!("its answer has not the promised shape: see it with `check --call {agent} --input FILE`")
        }
        ErrorCode::AgentCircuitOpen => {
            "its breaker shuts it out after too many failures, or an operator did".to_owned()
        }
        ErrorCode::AgentBulkheadFull => format!("too many calls at once: raise agents.{agent}.slots or start fewer"),
        ErrorCode::DeadlineExceeded => "allow more time with --deadline or `deadline` in the workflow".to_owned(),
        ErrorCode::InvalidRequest => "an expression of the workflow does not fit what it was given".to_owned(),
        ErrorCode::AgentError if error.retryable => "the agent itself reports this; it may pass".to_owned(),
        ErrorCode::AgentError => "the agent itself reports this, and trying again does not help".to_owned(),
        _ if error.retryable => "this may pass by itself".to_owned(),
        _ => "trying again does not help".to_owned(),
    }
}
