//! Reads JSON that is kept as a value: what the value would hold differently than it was written is refused instead of changed without a
//! word. Whole numbers beyond 64 bits, `-0`, two members of one name, of which only one would be left, and names that the reader of what
//! was written down takes for its own.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value, map::Entry};

use super::exact_numbers::{ChangedNumber, first_changed};

/// A value with a member of such a name is read as another one by `serde_json`.
const READERS_OWN: &str = "$serde_json::private::";

/// Why a text has no value that is the same.
#[derive(Debug, thiserror::Error)]
pub enum Inexact {
    /// It cannot be read: no JSON, or something that no value can hold.
    #[error("{0}")]
    Unreadable(serde_json::Error),
    /// A member that would not be kept: one of two of its name, or one of a name that is the reader's own.
    #[error("{0}")]
    Member(serde_json::Error),
    /// A whole number that would be changed.
    #[error("{0}")]
    Changed(ChangedNumber),
}

impl Inexact {
    /// The line where it stands, if that is known.
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::Unreadable(error) | Self::Member(error) => Some(error.line()),
            Self::Changed(_) => None,
        }
    }
}

/// Reads one JSON text.
pub fn read(text: &str) -> Result<Value, Inexact> {
    let Once(value) = serde_json::from_str(text).map_err(|error: serde_json::Error| {
        // Any value will do, so nothing else is wrong with what is JSON.
        if error.is_data() { Inexact::Member(error) } else { Inexact::Unreadable(error) }
    })?;
    first_changed(text).map_or(Ok(value), |changed| Err(Inexact::Changed(changed)))
}

/// Reads a member of a request that is kept as an object: `#[serde(deserialize_with = "exact_json::object")]`. Its numbers are looked at
/// where its text is.
pub fn object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map<String, Value>, D::Error> {
    struct Reader;
    impl<'de> Visitor<'de> for Reader {
        type Value = Map<String, Value>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Self::Value, A::Error> {
            read_members(members)
        }
    }
    deserializer.deserialize_map(Reader)
}

/// The same for a member that may be any value.
pub fn value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    Once::deserialize(deserializer).map(|Once(value)| value)
}

fn read_members<'de, A: MapAccess<'de>>(mut members: A) -> Result<Map<String, Value>, A::Error> {
    let mut object = Map::new();
    while let Some((name, Once(value))) = members.next_entry::<String, Once>()? {
        let refuse = |name: &str, why: &str| {
            let name: String = name.chars().take(64).collect();
            A::Error::custom(format_args!("the member {name:?} {why}"))
        };
        if name.starts_with(READERS_OWN) {
            return Err(refuse(&name, "cannot be kept"));
        }
        match object.entry(name) {
            Entry::Vacant(place) => place.insert(value),
            Entry::Occupied(taken) => return Err(refuse(taken.key(), "stands twice")),
        };
    }
    Ok(object)
}

/// A value all of whose members have names of their own.
struct Once(Value);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Once;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON value")
            }

            fn visit_unit<E>(self) -> Result<Once, E> {
                Ok(Once(Value::Null))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Once, E> {
                Ok(Once(Value::Bool(value)))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Once, E> {
                Ok(Once(number.into()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Once, E> {
                Ok(Once(number.into()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Once, E> {
                Ok(Once(Number::from_f64(number).map_or(Value::Null, Value::Number)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Once, E> {
                Ok(Once(text.into()))
            }

            fn visit_string<E>(self, text: String) -> Result<Once, E> {
                Ok(Once(text.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Once, A::Error> {
                let mut list = Vec::new();
                while let Some(Once(item)) = items.next_element()? {
                    list.push(item);
                }
                Ok(Once(Value::Array(list)))
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Once, A::Error> {
                read_members(members).map(|object| Once(Value::Object(object)))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_would_be_changed_is_refused_and_said() {
        for (text, want) in [
            (r#"{"a":[12345678901234567890123]}"#, "a[0]: 12345678901234567890123 would be changed"),
            ("-0", "the number: -0 would be changed"),
            (r#"[{"a":1,"b":{"c":1,"\u0063":2}}]"#, r#"the member "c" stands twice at line 1 column 30"#),
            (r#"{"a":[{"$serde_json::private::RawValue":"[1]"}]}"#, r#"RawValue" cannot be kept at line 1 column 46"#),
            (r#"{"a":1e999}"#, "number out of range"),
            (r#"{"a":"\ud83d"}"#, "unexpected end of hex escape"),
            ("[1,]", "trailing comma"),
            (r#"{"a":1} x"#, "trailing characters"),
        ] {
            let wrong = read(text).unwrap_err().to_string();
            assert!(wrong.contains(want), "{text}: {wrong}");
        }
        assert!(read(&format!("{}1{}", "[".repeat(200), "]".repeat(200))).is_err());
    }

    #[test]
    fn members_of_a_request_are_read_the_same_way() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Body {
            #[serde(default, deserialize_with = "object")]
            object: Map<String, Value>,
            #[serde(default, deserialize_with = "value")]
            value: Value,
        }
        let inner = r#"{"b":[1,-2,3.5,{}],"a":"x\ny"}"#;
        let Value::Object(want) = serde_json::from_str(inner).unwrap() else { panic!() };
        let read: Body = serde_json::from_str(&format!(r#"{{"value":{inner},"object":{inner}}}"#)).unwrap();
        assert_eq!(read, Body { value: Value::Object(want.clone()), object: want });
        let empty = Body { object: Map::new(), value: Value::Null };
        assert_eq!(serde_json::from_str::<Body>("{}").unwrap(), empty);
        for (text, want) in [
            (r#"{"object":[]}"#, "invalid type: sequence, expected an object at line 1 column 10"),
            (r#"{"object":null}"#, "invalid type: null, expected an object"),
            (r#"{"object":{"a":1,"a":1}}"#, r#"the member "a" stands twice at line 1 column 23"#),
            (r#"{"value":[{"a":{"b":1,"b":2}}]}"#, r#"the member "b" stands twice at line 1 column 28"#),
        ] {
            let wrong = serde_json::from_str::<Body>(text).unwrap_err().to_string();
            assert!(wrong.starts_with(want), "{text}: {wrong}");
        }
    }

    fn json_text() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            any::<bool>().prop_map(|value| value.to_string()),
            any::<i64>().prop_map(|number| number.to_string()),
            any::<u64>().prop_map(|number| number.to_string()),
            (-1e300_f64..1e300).prop_map(|number| Value::from(number).to_string()),
            ".{0,8}".prop_map(|text| Value::from(text).to_string()),
        ];
        leaf.prop_recursive(4, 30, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(","))),
                prop::collection::vec(("[a-e]", inner), 0..3).prop_map(|members| {
                    let members: Vec<String> =
                        members.into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
                    format!("{{{}}}", members.join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(text in json_text()) {
            let value: Value = serde_json::from_str(&text).unwrap();
            if let Ok(read) = read(&text) {
                prop_assert_eq!((&read, read.to_string()), (&value, text));
            } else {
                // Only a name that stands twice can be wrong here.
                prop_assert_ne!(value.to_string(), text);
            }
        }
    }
}
