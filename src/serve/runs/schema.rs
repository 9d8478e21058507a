//! A run as `/openapi.json` describes it. Nothing is ever made of these: a test holds them against what is really told.
#![allow(dead_code, reason = "only described: records are told as they are")]

use serde_json::Value;
use utoipa::ToSchema;

/// A run as it stands: the object of `watertight run --json`. Times are Unix milliseconds.
#[derive(ToSchema)]
pub(crate) struct Run {
    /// Its id.
    run_id: String,
    /// Its workflow.
    workflow: String,
    /// The content hash of that workflow's definition.
    workflow_hash: String,
    /// The run that it goes on from; left out where there is none.
    #[schema(nullable = false)]
    rerun_of: Option<RerunOf>,
    /// Where it stands.
    #[schema(pattern = "^(queued|running|parked|completed|completed_degraded|failed|cancelled|timed_out)$")]
    status: String,
    /// Accepted.
    created_ms: u64,
    /// First step.
    #[schema(required)]
    started_ms: Option<u64>,
    /// Over.
    #[schema(required)]
    ended_ms: Option<u64>,
    /// From acceptance to the end.
    #[schema(required)]
    duration_ms: Option<u64>,
    /// Tokens of all steps.
    tokens: Tokens,
    /// What they cost, as far as prices are known; left out where none is.
    #[schema(nullable = false)]
    cost: Option<f64>,
    /// The money of all costs; only beside a cost.
    #[schema(nullable = false)]
    currency: Option<String>,
    /// What the workflow's `output` says, once completed.
    #[schema(required)]
    output: Option<Value>,
    /// Every step, in the workflow's order.
    steps: Vec<Step>,
    /// What was replaced or left out, and why.
    degraded: Vec<DegradedStep>,
    /// Why it failed, if it did.
    #[schema(required, value_type = Option<Object>)]
    error: Option<Value>,
}

/// The run that another one goes on from.
#[derive(ToSchema)]
pub(crate) struct RerunOf {
    /// That run.
    run_id: String,
    /// Whether only what was degraded or failed is done again, or everything from one step on.
    #[schema(pattern = "^(repair|rerun)$")]
    kind: String,
    /// The step that it is rerun from; left out of a repair.
    #[schema(nullable = false)]
    from: Option<String>,
    /// The steps that are done again, by name.
    again: Vec<String>,
}

/// Tokens.
#[derive(ToSchema)]
pub(crate) struct Tokens {
    /// Of all prompts.
    prompt: u64,
    /// Of all answers.
    output: u64,
    /// True if any of it was counted by us.
    estimated: bool,
}

/// One step, or one item or iteration of it.
#[derive(ToSchema)]
pub(crate) struct Step {
    /// Its name in the workflow.
    id: String,
    /// The agent it called.
    agent: String,
    /// The item of a `map`, from 0.
    #[schema(required)]
    index: Option<u64>,
    /// The iteration of a revision, from 0.
    iteration: u32,
    /// Where it stands.
    #[schema(pattern = "^(pending|running|succeeded|degraded|failed|skipped|cancelled)$")]
    status: String,
    /// When it began.
    #[schema(required)]
    started_ms: Option<u64>,
    /// How long it took.
    #[schema(required)]
    duration_ms: Option<u64>,
    /// All exchanges.
    attempts: Vec<Attempt>,
    /// All our own refusals.
    refusals: Vec<Refused>,
    /// What was done instead, if anything was.
    #[schema(required)]
    degraded: Option<Degraded>,
    /// Tokens of all its attempts; left out where it used none that are known.
    #[schema(nullable = false)]
    tokens: Option<Tokens>,
    /// What they cost; left out where no price is known.
    #[schema(nullable = false)]
    cost: Option<f64>,
    /// The error, if it ended with one.
    #[schema(required, value_type = Option<Object>)]
    error: Option<Value>,
    /// The output, if it has one.
    #[schema(required)]
    output: Option<Value>,
}

/// One exchange with an agent.
#[derive(ToSchema)]
pub(crate) struct Attempt {
    /// When it began.
    started_ms: u64,
    /// How long it took.
    duration_ms: u64,
    /// HTTP status, if there was one.
    #[schema(required)]
    status: Option<u16>,
    /// What went wrong, if anything did.
    #[schema(required)]
    error_code: Option<String>,
    /// Seconds the other side asked us to stay away.
    #[schema(required)]
    retry_after: Option<f64>,
}

/// One refusal of our own.
#[derive(ToSchema)]
pub(crate) struct Refused {
    /// When.
    at_ms: u64,
    /// By which guard.
    error_code: String,
    /// Seconds until a later call makes sense.
    #[schema(required)]
    retry_after: Option<f64>,
}

/// What was done instead, and why.
#[derive(ToSchema)]
pub(crate) struct Degraded {
    /// Why.
    cause: String,
    /// What was done instead.
    action: String,
}

/// One line of a run's list of degradations.
#[derive(ToSchema)]
pub(crate) struct DegradedStep {
    /// The step.
    step: String,
    /// Why.
    cause: String,
    /// What was done instead.
    action: String,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};
    use utoipa::PartialSchema;

    use super::*;
    use crate::model::run::{RunRecord, RunTokens};

    fn names<'a>(names: impl IntoIterator<Item = &'a String>) -> BTreeSet<String> {
        names.into_iter().cloned().collect()
    }

    /// What is told and what is described: all names, and those that are always there.
    #[track_caller]
    fn same<T: PartialSchema>(full: &Value, least: &Value) {
        let described = serde_json::to_value(T::schema()).unwrap();
        let properties = names(described["properties"].as_object().unwrap().keys());
        assert_eq!(properties, names(full.as_object().unwrap().keys()), "{described:#}");
        let required: Vec<String> = serde_json::from_value(described["required"].clone()).unwrap();
        assert_eq!(names(&required), names(least.as_object().unwrap().keys()), "{described:#}");
    }

    #[test]
    fn what_is_described_is_what_is_told() {
        let attempt =
            json!({ "started_ms": 1, "duration_ms": 1, "status": 200, "error_code": null, "retry_after": null });
        let refused = json!({ "at_ms": 1, "error_code": "X", "retry_after": null });
        let tokens = json!(RunTokens::default());
        let step = json!({
            "id": "a", "agent": "a", "index": null, "iteration": 0, "status": "degraded", "started_ms": null,
            "duration_ms": null, "attempts": [attempt], "refusals": [refused],
            "degraded": { "cause": "error", "action": "default" }, "tokens": tokens, "cost": 1.0, "error": null,
            "output": null
        });
        let rerun_of = json!({ "run_id": "r", "kind": "rerun", "from": "a", "again": [] });
        let run = json!({
            "run_id": "r", "workflow": "w", "workflow_hash": "h", "rerun_of": rerun_of, "status": "completed",
            "created_ms": 1, "started_ms": null, "ended_ms": null, "duration_ms": null, "tokens": tokens, "cost": 1.0,
            "currency": "KRW", "output": null, "steps": [step],
            "degraded": [{ "step": "a", "cause": "error", "action": "default" }], "error": null
        });
        // What is told is what these really are: each is read, and told again with all and with the least that it can have.
        let full: RunRecord = serde_json::from_value(run).unwrap();
        let mut least = full.clone();
        (least.cost, least.currency) = (None, None);
        if let Some(rerun_of) = &mut least.rerun_of {
            rerun_of.from = None;
        }
        (least.steps[0].tokens, least.steps[0].cost) = (None, None);
        let (full, least_whole) = (json!(full), json!(least));
        least.rerun_of = None;
        same::<Run>(&full, &json!(least));
        same::<RerunOf>(&full["rerun_of"], &least_whole["rerun_of"]);
        same::<Tokens>(&full["tokens"], &full["tokens"]);
        same::<Step>(&full["steps"][0], &least_whole["steps"][0]);
        same::<Attempt>(&full["steps"][0]["attempts"][0], &full["steps"][0]["attempts"][0]);
        same::<Refused>(&full["steps"][0]["refusals"][0], &full["steps"][0]["refusals"][0]);
        same::<Degraded>(&full["steps"][0]["degraded"], &full["steps"][0]["degraded"]);
        same::<DegradedStep>(&full["degraded"][0], &full["degraded"][0]);
    }
}
