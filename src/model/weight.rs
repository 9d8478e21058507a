//! About the memory that values of runs take, in bytes: what they hold and the places they stand in. Within a factor of two of what an
//! allocator gives; nothing here decides how much is too much.

use serde_json::{Map, Value};

use super::{
    event::Event,
    run::{RunRecord, StepRecord},
};

/// Memory of a value. Bounded in depth by what parsers allow.
pub fn of_value(value: &Value) -> usize {
    let within = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(of_value).sum(),
        Value::Object(fields) => of_fields(fields),
        _ => 0,
    };
    within + size_of::<Value>()
}

/// Memory of an object's fields.
pub fn of_fields(fields: &Map<String, Value>) -> usize {
    fields.iter().map(|(name, value)| name.len() + of_value(value)).sum()
}

/// Memory of a run's record: its outputs, and a place for each step.
pub fn of_record(record: &RunRecord) -> usize {
    let of_step = |step: &StepRecord| {
        size_of::<StepRecord>() + step.id.len() + step.agent.len() + step.output.as_ref().map_or(0, of_value)
    };
    let steps: usize = record.steps.iter().map(of_step).sum();
    size_of::<RunRecord>() + steps + record.output.as_ref().map_or(0, of_value)
}

/// Memory of an event beside its data.
pub const EVENT_BYTES: usize = size_of::<Event>();
