//! Pictures of an input on their way to a model that sees: they leave the input, whose text becomes the prompt, and stand beside that
//! prompt as parts of the message. Fetches and changes none.

use std::borrow::Cow;

use serde_json::{Value, json};

/// The field of a file's object that holds its picture as a data URL.
const PICTURE: &str = "image_url";
/// Only these are taken out: an address that a caller wrote down stays a text.
const DATA: &str = "data:image/";

/// The input without its pictures, and the pictures in their order.
pub(in crate::transport) fn taken_out(input: &Value) -> (Cow<'_, Value>, Vec<String>) {
    if !has_pictures(input) {
        return (Cow::Borrowed(input), Vec::new());
    }
    let mut rest = input.clone();
    let mut pictures = Vec::new();
    take(&mut rest, &mut pictures);
    (Cow::Owned(rest), pictures)
}

/// The bytes of a picture's data URL, as base64; `None` where they are written in another way.
pub(in crate::transport) fn base64_of(url: &str) -> Option<&str> {
    let (kind, bytes) = url.split_once(',')?;
    (kind.starts_with("data:") && kind.ends_with(";base64")).then_some(bytes)
}

/// Puts pictures beside the text of the last message, which is the user's.
pub(super) fn put_beside(messages: &mut [Value], pictures: &[String]) {
    let Some(message) = messages.last_mut().filter(|_| !pictures.is_empty()) else { return };
    let text = json!({ "type": "text", "text": message["content"] });
    let shown = pictures.iter().map(|url| json!({ "type": "image_url", "image_url": { "url": url } }));
    message["content"] = std::iter::once(text).chain(shown).collect();
}

fn is_picture(name: &str, value: &Value) -> bool {
    name == PICTURE && value.as_str().is_some_and(|url| url.starts_with(DATA))
}

fn has_pictures(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(name, field)| is_picture(name, field) || has_pictures(field)),
        Value::Array(items) => items.iter().any(has_pictures),
        _ => false,
    }
}

/// As deep as the parser of inputs allows, no deeper.
fn take(value: &mut Value, pictures: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            if fields.get(PICTURE).is_some_and(|field| is_picture(PICTURE, field))
                && let Some(Value::String(url)) = fields.remove(PICTURE)
            {
                pictures.push(url);
            }
            fields.values_mut().for_each(|field| take(field, pictures));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| take(item, pictures)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_leave_the_input_and_stand_beside_the_prompt() {
        let input = json!({
            "photos": [
                { "name": "a.jpg", "image_url": "data:image/jpeg;base64,AAAA" },
                { "name": "b.jpg", "image_url": "https://elsewhere.example/b.jpg" },
            ],
            "notes": "data:image/png is a text here",
        });
        let (rest, pictures) = taken_out(&input);
        assert_eq!(pictures, ["data:image/jpeg;base64,AAAA"]);
        assert_eq!(rest.pointer("/photos/0"), Some(&json!({ "name": "a.jpg" })));
        assert_eq!(rest.pointer("/photos/1"), input.pointer("/photos/1"));
        let mut messages = vec![json!({ "role": "system", "content": "s" }), json!({ "role": "user", "content": "p" })];
        put_beside(&mut messages, &pictures);
        assert_eq!(messages[0]["content"], "s");
        let picture = json!({ "type": "image_url", "image_url": { "url": "data:image/jpeg;base64,AAAA" } });
        assert_eq!(messages[1]["content"], json!([{ "type": "text", "text": "p" }, picture]));
    }

    #[test]
    fn the_bytes_of_a_data_url() {
        for (url, want) in [
            ("data:image/png;base64,QUJD", Some("QUJD")),
            ("data:image/svg+xml;charset=utf-8;base64,QUJD", Some("QUJD")),
            ("data:image/svg+xml,<svg/>", None),
            ("https://elsewhere.example/;base64,QUJD", None),
            ("data:image/png;base64", None),
        ] {
            assert_eq!(base64_of(url), want, "{url}");
        }
    }

    #[test]
    fn an_input_without_pictures_is_not_copied() {
        let input = json!({ "notes": "x" });
        assert!(matches!(taken_out(&input), (Cow::Borrowed(_), pictures) if pictures.is_empty()));
    }
}
