//! A JSON object as it came: its text, and where each of its members stands. Members can be replaced or left out; everything else
//! keeps its very bytes (order, unknown fields, the spelling of numbers). It never makes a value of what nobody asks for.

use std::{collections::HashSet, fmt, ops::Range};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// The most members of an object that is passed on. Requests have some dozens.
pub const MEMBERS_MAX: usize = 10_000;

/// Why a text is no object that can be passed on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoObject {
    /// Bytes that are no UTF-8.
    #[error("the body is not UTF-8 (at byte {0})")]
    NotUtf8(usize),
    /// No JSON, or JSON that is no object.
    #[error("the body is no JSON object: {0}")]
    NotJson(String),
    /// Two members of one name: readers would differ in which of them counts.
    #[error("the member {0:?} stands twice in the body")]
    Twice(String),
}

/// A JSON object as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawObject {
    text: String,
    members: Vec<(String, Range<usize>)>,
}

impl RawObject {
    /// Takes the bytes of an object.
    pub fn try_new(bytes: Vec<u8>) -> Result<Self, NoObject> {
        let text = String::from_utf8(bytes).map_err(|error| NoObject::NotUtf8(error.utf8_error().valid_up_to()))?;
        let members = {
            let read: Members<'_> =
                serde_json::from_str(&text).map_err(|error| NoObject::NotJson(error.to_string()))?;
            let start = text.as_ptr() as usize;
            let mut seen = HashSet::new();
            let mut members = Vec::with_capacity(read.0.len());
            for (key, value) in read.0 {
                if !seen.insert(key.clone()) {
                    return Err(NoObject::Twice(key));
                }
                // Raw values are parts of the text they were read from.
                let from = value.get().as_ptr() as usize - start;
                members.push((key, from..from + value.get().len()));
            }
            members
        };
        Ok(Self { text, members })
    }

    /// The text of a member's value.
    pub fn get(&self, key: &str) -> Option<&str> {
        let (_, place) = self.members.iter().find(|(name, _)| name == key)?;
        self.text.get(place.clone())
    }

    /// A member that is a text.
    pub fn text(&self, key: &str) -> Option<String> {
        self.get(key).and_then(|value| serde_json::from_str(value).ok())
    }

    /// The whole text, as it came.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The object with `changes`: a member that is named takes the given JSON text, or goes where there is none; members that are
    /// not there yet come last.
    pub fn with(&self, changes: &[(&str, Option<&str>)]) -> String {
        let mut out = String::with_capacity(self.text.len() + 64);
        out.push('{');
        for (key, place) in &self.members {
            let change = changes.iter().find(|(name, _)| name == key);
            let value = match change {
                Some((_, Some(text))) => text,
                Some((_, None)) => continue,
                None => self.text.get(place.clone()).unwrap_or("null"),
            };
            push_member(&mut out, key, value);
        }
        for (key, value) in changes {
            let is_new = !self.members.iter().any(|(name, _)| name == key);
            if let Some(value) = value.filter(|_| is_new) {
                push_member(&mut out, key, value);
            }
        }
        out.push('}');
        out
    }
}

fn push_member(out: &mut String, key: &str, value: &str) {
    if out.len() > 1 {
        out.push(',');
    }
    out.push_str(&serde_json::Value::from(key).to_string());
    out.push(':');
    out.push_str(value);
}

struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<String, &'de RawValue>()? {
                    if members.len() >= MEMBERS_MAX {
                        let message = format!("it has more than {MEMBERS_MAX} members");
                        return Err(serde::de::Error::custom(message));
                    }
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn object(text: &str) -> RawObject {
        RawObject::try_new(text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn what_is_not_named_keeps_its_bytes() {
        let body = r#" { "model" : "a", "big": 123456789012345678901234567890, "f": 1.10e+2, "x": {"b": 1, "a": [ ] }, "\u0061b": "\u00e9" } "#;
        for (changes, want) in [
            (
                &[("model", Some("\"b\""))][..],
                r#"{"model":"b","big":123456789012345678901234567890,"f":1.10e+2,"x":{"b": 1, "a": [ ] },"ab":"\u00e9"}"#,
            ),
            (
                &[("model", None), ("x", None), ("stream", Some("true"))],
                r#"{"big":123456789012345678901234567890,"f":1.10e+2,"ab":"\u00e9","stream":true}"#,
            ),
        ] {
            assert_eq!(object(body).with(changes), want);
        }
        assert_eq!(object("{}").with(&[("a", Some("1")), ("b", None)]), r#"{"a":1}"#);
        assert_eq!(object(body).text("model").as_deref(), Some("a"));
        assert_eq!(object(body).get("f"), Some("1.10e+2"));
        assert_eq!((object(body).text("big"), object(body).get("none")), (None, None));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        let kind = |bytes: &[u8]| RawObject::try_new(bytes.to_vec()).err();
        for bad in
            [&b""[..], b"[]", b"null", b"1", b"{", b"{\"a\":}", b"{\"a\":1,}", b"{} {}", b"{\"a\":NaN}", b"\"{}\""]
        {
            assert!(matches!(kind(bad), Some(NoObject::NotJson(_))), "{}", String::from_utf8_lossy(bad));
        }
        assert_eq!(kind(b"{\"a\":\"\xff\"}"), Some(NoObject::NotUtf8(6)));
        assert_eq!(kind(b"{\"a\":1,\"\\u0061\":2}"), Some(NoObject::Twice("a".to_owned())));
        let many = |count: usize| {
            format!("{{{}}}", (0..count).map(|key| format!("\"{key}\":1")).collect::<Vec<_>>().join(","))
        };
        assert!(RawObject::try_new(many(MEMBERS_MAX).into_bytes()).is_ok());
        assert!(
            matches!(kind(many(MEMBERS_MAX + 1).as_bytes()), Some(NoObject::NotJson(why)) if why.contains("members"))
        );
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(RawObject::try_new(deep.into_bytes()).is_ok(), "depth that nobody reads costs nothing");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = RawObject::try_new(bytes);
        }

        #[test]
        fn a_change_changes_nothing_else(keys in prop::collection::btree_set("[a-z]{1,3}", 0..6), number in any::<i64>()) {
            let text = format!("{{{}}}", keys.iter().map(|key| format!("\"{key}\":{number}")).collect::<Vec<_>>().join(","));
            let changed = object(&text).with(&[("model", Some("\"m\""))]);
            let value: serde_json::Value = serde_json::from_str(&changed).unwrap();
            prop_assert_eq!(&value["model"], "m");
            prop_assert!(keys.iter().all(|key| value[key.as_str()] == number));
        }
    }
}
