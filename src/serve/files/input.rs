//! Files as values of a run's input: an id with what is known of the file, never its bytes. The one place that says how such a value
//! looks.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::journal::files::table::StoredFile;

/// The field that makes an object a file.
pub const FILE_ID: &str = "file_id";
/// Deeper values are not looked into for files.
const DEPTH_MAX: usize = 16;

/// A file as a value of an input.
pub fn as_value(file: &StoredFile) -> Value {
    json!({ FILE_ID: file.id, "name": file.name, "type": file.media_type, "bytes": file.bytes })
}

/// The ids of all files within `value`, in their order, each once.
pub fn ids_within(value: &Value) -> Vec<String> {
    let (mut ids, mut known) = (Vec::new(), HashSet::new());
    visit(value, 0, &mut |file| {
        if let Some(id) = id_of(file).filter(|id| known.insert((*id).to_owned())) {
            ids.push(id.to_owned());
        }
    });
    ids
}

/// The same value with each file changed by `change`.
pub fn with_files(value: &Value, change: &dyn Fn(&mut Map<String, Value>)) -> Value {
    let mut changed = value.clone();
    visit_mut(&mut changed, 0, change);
    changed
}

/// The same value without any `path`: whoever sent it cannot know one, only make one up.
pub fn without_paths(mut value: Value) -> Value {
    strip(&mut value);
    value
}

/// Bounded by the depth that the parser of requests allows.
fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("path");
            fields.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

/// The id of a file's object.
pub fn id_of(file: &Map<String, Value>) -> Option<&str> {
    file.get(FILE_ID).and_then(Value::as_str)
}

fn visit(value: &Value, depth: usize, see: &mut impl FnMut(&Map<String, Value>)) {
    if depth > DEPTH_MAX {
        return;
    }
    match value {
        Value::Object(fields) if id_of(fields).is_some() => see(fields),
        Value::Object(fields) => fields.values().for_each(|field| visit(field, depth + 1, see)),
        Value::Array(items) => items.iter().for_each(|item| visit(item, depth + 1, see)),
        _ => {}
    }
}

fn visit_mut(value: &mut Value, depth: usize, change: &dyn Fn(&mut Map<String, Value>)) {
    if depth > DEPTH_MAX {
        return;
    }
    match value {
        Value::Object(fields) if id_of(fields).is_some() => change(fields),
        Value::Object(fields) => fields.values_mut().for_each(|field| visit_mut(field, depth + 1, change)),
        Value::Array(items) => items.iter_mut().for_each(|item| visit_mut(item, depth + 1, change)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_wherever_they_stand() {
        let value = json!({ "photos": [{ "file_id": "a" }, { "file_id": "b", "name": "x" }], "one": { "of": { "file_id": "a" } }, "text": "file_id" });
        assert_eq!(ids_within(&value), ["a", "b"]);
        let changed = with_files(&value, &|file| {
            file.insert("seen".to_owned(), json!(true));
        });
        assert_eq!(changed.pointer("/photos/1/seen"), Some(&json!(true)));
        assert_eq!(changed.pointer("/one/of/seen"), Some(&json!(true)));
        let strange = json!({
            "photos": [{ "path": "/etc/passwd" }, { "file_id": "a", "path": "/etc/passwd" }],
            "path": "/etc", "one": { "file_id": "a", "in": { "file_id": "b", "path": "/etc" } },
        });
        let left = json!({ "photos": [{}, { "file_id": "a" }], "one": { "file_id": "a", "in": { "file_id": "b" } } });
        assert_eq!(without_paths(strange), left);
        let deep = (0..100).fold(json!({ "file_id": "deep" }), |inner, _| json!([inner]));
        assert!(ids_within(&deep).is_empty(), "bounded");
    }
}
