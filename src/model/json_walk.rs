//! Walks along the text of a JSON value that is known to be valid: where its texts and numbers end, and where one stands. Makes no values.

use std::fmt;

/// One level of nesting on the way to a value.
#[derive(Debug, Clone, Copy)]
enum Level<'a> {
    /// The index of the present item.
    List(usize),
    /// The name of the present member, as it is written.
    Object(&'a str),
}

/// The way to the value that the walk has come to, shown as in `items[3].id`; nothing at the top.
#[derive(Debug, Clone, Default)]
pub struct Path<'a>(Vec<Level<'a>>);

impl<'a> Path<'a> {
    /// Goes over a sign that stands outside of texts.
    pub fn pass(&mut self, sign: u8) {
        match sign {
            b'{' => self.0.push(Level::Object("")),
            b'[' => self.0.push(Level::List(0)),
            b'}' | b']' => drop(self.0.pop()),
            b',' => {
                if let Some(Level::List(index)) = self.0.last_mut() {
                    *index += 1;
                }
            }
            _ => {}
        }
    }

    /// Goes over the name of a member.
    pub fn name(&mut self, written: &'a str) {
        if let Some(Level::Object(name)) = self.0.last_mut() {
            *name = written;
        }
    }

    /// How many lists and objects are around.
    pub fn levels(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, level) in self.0.iter().enumerate() {
            match level {
                Level::Object(name) if place == 0 => formatter.write_str(name)?,
                Level::Object(name) => write!(formatter, ".{name}")?,
                Level::List(index) => write!(formatter, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Behind the text that begins at `from`.
pub fn end_of_text(bytes: &[u8], from: usize) -> usize {
    let mut place = from + 1;
    while place < bytes.len() {
        match bytes[place] {
            b'\\' => place += 2,
            b'"' => return place + 1,
            _ => place += 1,
        }
    }
    bytes.len()
}

/// Behind the number that begins at `from`.
pub fn end_of_number(bytes: &[u8], from: usize) -> usize {
    let is_of_number = |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
    bytes[from..].iter().position(|byte| !is_of_number(byte)).map_or(bytes.len(), |length| from + length)
}

/// Behind the list or object that begins at `from`.
pub fn end_of_nested(bytes: &[u8], from: usize) -> usize {
    let (mut place, mut levels) = (from, 0_usize);
    while place < bytes.len() {
        match bytes[place] {
            b'"' => {
                place = end_of_text(bytes, place);
                continue;
            }
            b'{' | b'[' => levels += 1,
            b'}' | b']' => levels -= 1,
            _ => {}
        }
        place += 1;
        if levels == 0 {
            return place;
        }
    }
    bytes.len()
}

/// Whether the text that ends at `end` is the name of a member.
pub fn is_name(bytes: &[u8], end: usize) -> bool {
    bytes[end.min(bytes.len())..].iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_things_end() {
        for (text, end, want) in [
            (r#""a\"b", 1"#, end_of_text as fn(&[u8], usize) -> usize, r#""a\"b""#),
            (r#""\\""#, end_of_text, r#""\\""#),
            ("-1.5e+7]", end_of_number, "-1.5e+7"),
            ("12", end_of_number, "12"),
            (r#"[{"]":[1]},2] x"#, end_of_nested, r#"[{"]":[1]},2]"#),
            ("{}", end_of_nested, "{}"),
            // What is no valid JSON is walked through all the same.
            ("[[1", end_of_nested, "[[1"),
            ("\"a\\", end_of_text, "\"a\\"),
        ] {
            assert_eq!(&text[..end(text.as_bytes(), 0)], want, "{text}");
        }
    }

    #[test]
    fn names_and_ways() {
        assert!(is_name(br#""a" : 1"#, 3) && !is_name(br#""a", 1"#, 3) && !is_name(br#""a""#, 3));
        let mut path = Path::default();
        assert_eq!((path.to_string(), path.levels()), (String::new(), 0));
        path.pass(b'{');
        path.name("items");
        path.pass(b'[');
        path.pass(b',');
        path.pass(b'{');
        path.name("id");
        assert_eq!((path.to_string(), path.levels()), ("items[1].id".to_owned(), 3));
        path.pass(b'}');
        path.pass(b']');
        path.name("x");
        assert_eq!(path.to_string(), "x");
    }
}
