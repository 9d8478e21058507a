//! How deep values may be nested. What comes in deeper is refused there, so that whatever was stored or handed on can be read again:
//! parsers end at 128, and what we wrap around a value takes a few more.

use serde_json::Value;

/// The deepest that an input of a run, an output of an agent and what a workflow makes of them may be. A plain value is 1 deep.
pub const VALUE_DEPTH_MAX: usize = 100;
/// The deepest input of a call: a step puts values into an object of its own.
pub const CALL_INPUT_DEPTH_MAX: usize = VALUE_DEPTH_MAX + 10;

/// Whether `value` is nested deeper than `depth_max`. Looks no deeper than that.
pub fn is_deeper(value: &Value, depth_max: usize) -> bool {
    let Some(left) = depth_max.checked_sub(1) else { return true };
    match value {
        Value::Array(items) => items.iter().any(|item| is_deeper(item, left)),
        Value::Object(fields) => fields.values().any(|field| is_deeper(field, left)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn depth_is_counted_in_lists_and_objects() {
        for (value, depth) in [
            (json!(null), 1),
            (json!("[[[["), 1),
            (json!([]), 1),
            (json!([1]), 2),
            (json!({ "a": 1, "b": [[], { "c": [1] }] }), 5),
        ] {
            assert!(!is_deeper(&value, depth), "{value}");
            assert!(is_deeper(&value, depth - 1), "{value}");
        }
        let deep = (1..VALUE_DEPTH_MAX).fold(json!(1), |inner, _| json!([inner]));
        assert!(!is_deeper(&deep, VALUE_DEPTH_MAX));
        assert!(is_deeper(&json!([deep]), VALUE_DEPTH_MAX));
    }
}
