//! Files as values of an input: an id with what is known of the file, never its bytes. The one place that says how such a value looks.
//! Only objects with an id of ours are files; whatever else stands in an input is the sender's and is left as it is.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::{
    journal::files::table::StoredFile,
    model::file_id::{FILE_ID, FILE_PATH, of_object},
};

/// A file as a value of an input.
pub fn as_value(file: &StoredFile) -> Value {
    json!({ FILE_ID: file.id, "name": file.name, "type": file.media_type, "bytes": file.bytes })
}

/// What a value names as files.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Named {
    /// Each id once, in the order in which it first stands there.
    pub ids: Vec<String>,
    /// How often each one stands there.
    pub times: HashMap<String, usize>,
}

impl Named {
    /// Those within `value`.
    pub fn within(value: &Value) -> Self {
        let mut named = Self::default();
        named.collect(value);
        named
    }

    /// How many objects are files, all together.
    pub fn all(&self) -> usize {
        self.times.values().sum()
    }

    /// Bounded in depth by what an input may have.
    fn collect(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(id) = of_object(fields) {
                    self.add(id);
                }
                fields.values().for_each(|field| self.collect(field));
            }
            Value::Array(items) => items.iter().for_each(|item| self.collect(item)),
            _ => {}
        }
    }

    fn add(&mut self, id: &str) {
        if let Some(times) = self.times.get_mut(id) {
            *times += 1;
        } else {
            self.ids.push(id.to_owned());
            self.times.insert(id.to_owned(), 1);
        }
    }
}

/// Changes each file within `value`: what it is called, and its fields without any path that somebody wrote down.
pub fn change_files(value: &mut Value, change: &mut impl FnMut(&str, &mut Map<String, Value>)) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(|field| change_files(field, change));
            if let Some(id) = of_object(fields).map(str::to_owned) {
                fields.remove(FILE_PATH);
                change(&id, fields);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| change_files(item, change)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: char) -> String {
        format!("file-{}", String::from(digit).repeat(32))
    }

    #[test]
    fn files_are_found_wherever_they_stand() {
        let (a, b) = (id('a'), id('b'));
        let deep = (0..90).fold(json!({ "file_id": b }), |inner, _| json!([inner]));
        let value = json!({
            "photos": [{ "file_id": a }, { "file_id": b, "name": "x" }], "one": { "of": { "file_id": a } }, "text": a,
            "deep": deep, "file_id": "file-of-somebody-else",
        });
        let named = Named::within(&value);
        assert_eq!(named.ids, [a.clone(), b.clone()], "in the order in which they stand there");
        assert_eq!((named.times[&a], named.times[&b], named.all()), (2, 2, 4));
        assert_eq!(Named::within(&json!([{ "file_id": "file-abc123" }, { "file_id": 7 }])), Named::default());
    }

    #[test]
    fn only_files_are_changed() {
        let (a, b) = (id('a'), id('b'));
        let mut value = json!({
            "path": "/articles/7", "query": { "path": ["$", 1] }, "upload": { "file_id": "file-abc123", "path": "x" },
            "photos": [{ "path": "kept" }, { "file_id": a, "path": "/etc/passwd", "note": "n" }],
            "one": { "file_id": a, "in": { "file_id": b, "path": "/etc" } },
        });
        change_files(&mut value, &mut |id, file| {
            file.insert("seen".to_owned(), json!(&id[5..6]));
        });
        let wanted = json!({
            "path": "/articles/7", "query": { "path": ["$", 1] }, "upload": { "file_id": "file-abc123", "path": "x" },
            "photos": [{ "path": "kept" }, { "file_id": a, "note": "n", "seen": "a" }],
            "one": { "file_id": a, "in": { "file_id": b, "seen": "b" }, "seen": "a" },
        });
        assert_eq!(value, wanted);
    }
}
