//! How a file of ours is named within a value: an object whose `file_id` has the form of our ids. Says nothing about whether there is such
//! a file.

use serde_json::{Map, Value};

/// The field that makes an object a file.
pub const FILE_ID: &str = "file_id";
/// Where a file's bytes lie. Beside a file's id it is our word alone, so whoever reads files by their path reads only those.
pub const FILE_PATH: &str = "path";
/// What every id of a file begins with.
pub const FILE_ID_PREFIX: &str = "file-";
/// Lower-case hexadecimal digits behind it.
const DIGITS: usize = 32;

/// Whether `text` has the form of our ids.
pub fn is_file_id(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.strip_prefix(FILE_ID_PREFIX).is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(is_digit))
}

/// The id of the file that this object is; `None` for every other object, also where a `file_id` of somebody else's stands in it.
pub fn of_object(fields: &Map<String, Value>) -> Option<&str> {
    fields.get(FILE_ID).and_then(Value::as_str).filter(|id| is_file_id(id))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_our_own_form_is_a_file() {
        let ours = format!("file-{}", "0123456789abcdef".repeat(2));
        for (id, is_ours) in [
            (json!(ours), true),
            (json!(format!("{ours}0")), false),
            (json!(ours[..36]), false),
            (json!(ours.to_uppercase()), false),
            (json!(ours.replace('a', "g")), false),
            (json!(ours.replace("ab", "é")), false),
            (json!("file-abc123"), false),
            (json!(""), false),
            (json!(7), false),
            (json!(null), false),
        ] {
            let object = json!({ FILE_ID: id, "name": "x" });
            assert_eq!(of_object(object.as_object().unwrap()).is_some(), is_ours, "{id}");
        }
        assert_eq!(of_object(&Map::new()), None);
    }
}
