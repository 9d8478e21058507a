//! Whole numbers of a JSON text that no value of ours can hold: reading them would change them without a word. Finds the first one and
//! where it stands; what becomes of it is its reader's business. The text is valid JSON: it is asked about once it has been read.

use super::json_walk::{Path, end_of_number, end_of_text, is_name};

/// A number that would be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedNumber {
    /// Where it stands, as in `input.items[3].id`; empty if it is the whole text.
    pub path: String,
    /// As it was written.
    pub number: String,
}

impl std::fmt::Display for ChangedNumber {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // As much of it as fits on a line.
        let number: String = self.number.chars().take(64).collect();
        let place = if self.path.is_empty() { "the number" } else { self.path.as_str() };
        write!(
            formatter,
            "{place}: {number} would be changed on its way: whole numbers must be from {} to {}, and 0 has no sign; send it as a text",
            i64::MIN,
            u64::MAX
        )
    }
}

/// The first whole number of a JSON text that would be changed by reading it. Fractions and powers of ten are read as `f64` and are not
/// looked at.
pub fn first_changed(text: &str) -> Option<ChangedNumber> {
    let bytes = text.as_bytes();
    let mut place = 0;
    while place < bytes.len() {
        match bytes[place] {
            b'"' => place = end_of_text(bytes, place),
            b'-' | b'0'..=b'9' => {
                let end = end_of_number(bytes, place);
                let number = &text[place..end];
                if !is_kept(number) {
                    return Some(ChangedNumber { path: path_to(text, place), number: number.to_owned() });
                }
                place = end;
            }
            _ => place += 1,
        }
    }
    None
}

fn is_kept(number: &str) -> bool {
    if number.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
        return true;
    }
    let negative = number.starts_with('-');
    if number.len() <= 18 {
        return number != "-0";
    }
    if negative { number.parse::<i64>().is_ok() } else { number.parse::<u64>().is_ok() }
}

fn path_to(text: &str, goal: usize) -> String {
    let bytes = text.as_bytes();
    let (mut path, mut place) = (Path::default(), 0);
    while place < goal {
        if bytes[place] == b'"' {
            let end = end_of_text(bytes, place);
            if is_name(bytes, end) {
                path.name(text.get(place + 1..end - 1).unwrap_or_default());
            }
            place = end;
        } else {
            path.pass(bytes[place]);
            place += 1;
        }
    }
    path.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_changed_is_found_with_its_place() {
        for (text, want) in [
            ("0", None),
            ("-1", None),
            (r#"{"a":[1,-2.0,-0.0,1e400,18446744073709551615,-9223372036854775808]}"#, None),
            (r#"{"a":"12345678901234567890123 \" -0"}"#, None),
            ("-0", Some(("", "-0"))),
            ("18446744073709551616", Some(("", "18446744073709551616"))),
            ("[ -9223372036854775809 ]", Some(("[0]", "-9223372036854775809"))),
            (r#"{"x":{"y,":1},"input":{"items":[1,[],{"i\"d" : 12345678901234567890123}]}}"#, {
                Some((r#"input.items[2].i\"d"#, "12345678901234567890123"))
            }),
            (r#"{"a":"b","c":[{"d":[0,0]},"e:",-0]}"#, Some(("c[2]", "-0"))),
        ] {
            let found = first_changed(text).map(|found| (found.path, found.number));
            assert_eq!(found, want.map(|(path, number)| (path.to_owned(), number.to_owned())), "{text}");
        }
    }

    /// What is not found is read and written back as the same number.
    #[test]
    fn what_is_not_found_is_not_changed() {
        for number in ["0", "7", "-7", "999999999999999999", "-999999999999999999", "18446744073709551615"] {
            let value: serde_json::Value = serde_json::from_str(number).unwrap();
            assert_eq!((first_changed(number), value.to_string().as_str()), (None, number));
        }
        for number in ["-0", "18446744073709551616", "-9223372036854775809"] {
            let value: serde_json::Value = serde_json::from_str(number).unwrap();
            assert!(first_changed(number).is_some());
            assert_ne!(value.to_string(), number);
        }
    }
}
