//! The version of a workflow: SHA-256 over one canonical JSON text of its definition. Layout, comments, key order and
//! defaults that are written out do not change it; anything that changes a run does.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::definition::{Definition, Join, Presence, Shape, StepDefinition};

/// The form that is hashed. A change of form is a change of every hash, so it is named.
pub(super) const FORM: &str = "watertight workflow 1";

/// SHA-256 of the canonical JSON, as 64 lower-case hexadecimal digits.
pub fn hash(definition: &Definition) -> String {
    hash_text(&canonical_json(definition))
}

/// SHA-256 of a text, in the same digits.
pub(super) fn hash_text(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The canonical JSON: every key present, keys sorted, durations in nanoseconds.
pub fn canonical_json(definition: &Definition) -> String {
    let inputs: Map<String, Value> = definition
        .inputs
        .iter()
        .map(|(name, input)| {
            let kind = json!({ "kind": input.kind.as_str(), "optional": input.presence == Presence::Optional });
            (name.clone(), kind)
        })
        .collect();
    let whole = json!({
        "form": FORM,
        "name": definition.name,
        "deadline": nanoseconds(definition.deadline),
        "output": shape(&definition.output),
        "inputs": inputs,
        "steps": definition.steps.iter().map(step).collect::<Vec<_>>(),
    });
    sorted(&whole).to_string()
}

fn step(step: &StepDefinition) -> Value {
    let on: Map<String, Value> =
        step.on.iter().map(|(cause, action)| (cause.as_str().to_owned(), action.as_str().into())).collect();
    let map = step.map.as_ref().map(|map| {
        let join = match map.join {
            Join::All => json!("all"),
            Join::BestEffort(time) => json!({ "best_effort": nanoseconds(time) }),
            Join::Quorum(items) => json!({ "quorum": items }),
            Join::FirstGood => json!("first_good"),
        };
        json!({ "over": map.over, "as": map.item, "parallel": map.parallel, "join": join })
    });
    let revise = step.revise.as_ref().map(|revise| {
        json!({ "step": revise.step, "until": revise.until, "max": revise.revisions_max, "score": revise.score })
    });
    json!({
        "id": step.id,
        "agent": step.agent,
        "in": shape(&step.input),
        "needs": step.needs,
        "when": step.when,
        "optional": step.presence == Presence::Optional,
        "timeout": step.timeout.map(nanoseconds),
        "on": on,
        // A default of JSON null is not the same as none at all.
        "default": step.default.as_ref().map(|value| json!({ "value": value })),
        "map": map,
        "revise": revise,
        "effects": step.effects.as_str(),
    })
}

fn shape(shape: &Shape) -> Value {
    match shape {
        Shape::Value(expression) => json!(expression),
        Shape::Table(fields) => json!(fields),
    }
}

/// As text, since JSON numbers do not hold every length.
fn nanoseconds(duration: Duration) -> String {
    duration.as_nanos().to_string()
}

/// The same value with the keys of all objects in order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        Value::Object(fields) => {
            let fields: BTreeMap<&String, Value> = fields.iter().map(|(key, field)| (key, sorted(field))).collect();
            Value::Object(fields.into_iter().map(|(key, field)| (key.clone(), field)).collect())
        }
        plain => plain.clone(),
    }
}
