//! Whether a run is given what its workflow asks for. All faults in one answer.

use serde_json::{Map, Value};

use crate::{
    model::{
        depth::{VALUE_DEPTH_MAX, is_deeper},
        envelope::{Envelope, ErrorCode},
        nearest::hint,
    },
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
        } else if is_deeper(value, VALUE_DEPTH_MAX) {
            faults.push(format!("input {name:?} is nested deeper than {VALUE_DEPTH_MAX}"));
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::{
        model::name::Name,
        workflow::builder::{StepBuilder, WorkflowBuilder},
    };

    #[test]
    fn an_input_that_could_not_be_read_again_is_refused() {
        let agents = BTreeSet::from([Name::try_new("echo").unwrap()]);
        let workflow = WorkflowBuilder::new("deep")
            .input("any", InputKind::Json)
            .step(StepBuilder::new("step", "echo").input([("any", "input.any")]))
            .output("steps.step.output")
            .build(&agents)
            .unwrap();
        let given = |depth: usize| {
            let value = (1..depth).fold(json!(1), |inner, _| json!([inner]));
            complete(&workflow, json!({ "any": value }).as_object().unwrap())
        };
        assert!(given(VALUE_DEPTH_MAX).is_ok());
        let refused = given(VALUE_DEPTH_MAX + 1).unwrap_err();
        assert_eq!(refused.error_code, ErrorCode::InvalidRequest);
        assert_eq!(refused.message, "deep: input \"any\" is nested deeper than 100");
    }
}
