//! A picture in a post: its Markdown and the line under it. Names the file only, never a folder of the author's machine.

use crate::agents::{shapes::Place, text::plain_name};

/// The file's name as the target of a link.
fn target(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for character in name.chars() {
        let is_plain = character.is_alphanumeric() || matches!(character, '-' | '.' | '_' | '~' | '/');
        if is_plain {
            encoded.push(character);
            continue;
        }
        let bytes = character.to_string().into_bytes();
        encoded.extend(bytes.iter().map(|byte| format!("%{byte:02X}")));
    }
    encoded
}

/// The picture with a line under it.
pub(super) fn picture(name: &str, details: &[String]) -> String {
    let shown = plain_name(name);
    let mut line = vec![shown.clone()];
    line.extend(details.iter().cloned());
    format!("![{shown}]({})\n\n*{}*", target(name), line.join(" · "))
}

/// `35.84°N 129.21°E`.
pub(super) fn degrees(place: Place) -> String {
    let side = |degrees: f64, positive: char, negative: char| {
        format!("{:.2}°{}", degrees.abs(), if degrees < 0.0 { negative } else { positive })
    };
    format!("{} {}", side(place.lat, 'N', 'S'), side(place.lon, 'E', 'W'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_the_markdown() {
        assert_eq!(
            picture("a (1) [x].jpg", &["9:00".into()]),
            "![a (1) (x).jpg](a%20%281%29%20%5Bx%5D.jpg)\n\n*a (1) (x).jpg · 9:00*"
        );
        assert_eq!(picture("<b>`a`*\\\n.jpg", &[]), "![(b)-a--- .jpg](%3Cb%3E%60a%60%2A%5C%0A.jpg)\n\n*(b)-a--- .jpg*");
        assert_eq!(degrees(Place { lat: -1.5, lon: 129.209 }), "1.50°S 129.21°E");
    }
}
