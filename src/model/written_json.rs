//! One level of a JSON text: the members of an object and the items of a list as they were written. Makes no values.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Error, value::RawValue};

use super::loose_json::text_of;

/// Members by name, each with its text.
pub type Members<'a> = Vec<(String, &'a str)>;

/// The members of an object, in order, also those that stand twice; none of another value.
pub fn members_of(text: &str) -> Result<Members<'_>, Error> {
    if text.trim_start().starts_with('{') {
        serde_json::from_str::<ReadMembers<'_>>(text).map(|members| members.0)
    } else {
        serde_json::from_str::<&RawValue>(text).map(|_| Vec::new())
    }
}

/// The items of a list; none of another value.
pub fn items_of(text: &str) -> Vec<&str> {
    let items: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
    items.into_iter().map(RawValue::get).collect()
}

struct ReadMembers<'a>(Members<'a>);

impl<'de> Deserialize<'de> for ReadMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = ReadMembers<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((name, value)) = map.next_entry::<&'de RawValue, &'de RawValue>()? {
                    members.push((text_of(name.get()).unwrap_or_default().into_owned(), value.get()));
                }
                Ok(ReadMembers(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_level_as_it_was_written() {
        let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
        let object = format!(r#" {{"a" : 1.50, "\u0061":{{ "b":1e999}},"\ud83d":"\ud83d","d":{deep}}} "#);
        let members = members_of(&object).unwrap();
        let members: Vec<(&str, &str)> = members.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let want = [("a", "1.50"), ("a", r#"{ "b":1e999}"#), ("\u{fffd}", r#""\ud83d""#), ("d", deep.as_str())];
        assert_eq!(members, want);
        assert_eq!(items_of("[ -0 , [1, 2],\"]\"]"), ["-0", "[1, 2]", "\"]\""]);
        for (text, is_json) in [("[1]", true), ("7", true), ("", false), ("{", false), ("{1:2}", false), ("x", false)] {
            assert_eq!(members_of(text).map(|members| members.len()).ok(), is_json.then_some(0), "{text}");
        }
        assert!(items_of("{}").is_empty() && items_of("[1").is_empty());
    }
}
