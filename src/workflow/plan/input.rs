//! Whether a run is given what its workflow asks for. All faults in one answer.

use crate::model::nearest::hint;
use serde_json::{Map, Value};

use crate::{
    model::envelope::{Envelope, ErrorCode},
    workflow::{
        checked::Workflow,
        definition::{InputKind, Presence},
    },
};

/// The input as expressions see it: what may be missing and is not given is null. An error is `INVALID_REQUEST`.
pub(super) fn complete(workflow: &Workflow, given: &Map<String, Value>) -> Result<Value, Box<Envelope>> {
    let mut faults = Vec::new();
    let mut input = Map::new();
    for (name, expected) in workflow.inputs() {
        let value = given.get(name).unwrap_or(&Value::Null);
        if value.is_null() && expected.presence == Presence::Required {
            faults.push(format!("input {name:?} ({}) is missing", expected.kind.as_str()));
        } else if !value.is_null() && !fits(expected.kind, value) {
            faults.push(format!("input {name:?} must be {}", described(expected.kind)));
        }
        input.insert(name.to_owned(), value.clone());
    }
    for name in given.keys().filter(|name| !input.contains_key(name.as_str())) {
        let known = workflow.inputs().map(|(known, _)| known);
        faults.push(format!("the workflow has no input {name:?}{}", hint(name, known)));
    }
    if faults.is_empty() {
        return Ok(Value::Object(input));
    }
    let message = format!("{}: {}", workflow.name(), faults.join("; "));
    Err(Box::new(Envelope::new(ErrorCode::InvalidRequest, message)))
}

fn fits(kind: InputKind, value: &Value) -> bool {
    match kind {
        InputKind::Files => value.is_array(),
        InputKind::Text => value.is_string(),
        InputKind::Json => true,
    }
}

fn described(kind: InputKind) -> &'static str {
    match kind {
        InputKind::Files => "a list of files",
        InputKind::Text => "a text",
        InputKind::Json => "a JSON value",
    }
}
