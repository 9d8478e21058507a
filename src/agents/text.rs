//! Texts for people taken apart: Markdown to plain paragraphs, paragraphs to sentences, sentences to a bounded summary.
//! Never changes a word; only names of files are changed where Markdown would read more into them.

/// The name of a file as it can stand in a line of Markdown. Characters that would begin a link, a tag, code or emphasis are replaced.
pub(super) fn plain_name(name: &str) -> String {
    name.chars()
        .map(|character| match character {
            '[' | '<' => '(',
            ']' | '>' => ')',
            '`' | '*' | '\\' => '-',
            control if control.is_control() => ' ',
            other => other,
        })
        .collect()
}

/// The paragraphs of a Markdown text as plain text: no headings, pictures, code, quotes or list marks.
pub(super) fn plain_paragraphs(markdown: &str) -> Vec<String> {
    let mut paragraphs = Vec::new();
    let mut current = String::new();
    let mut in_code = false;
    for line in markdown.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with("```") {
            in_code = !in_code;
            continue;
        }
        let plain =
            if in_code || is_heading(trimmed) || is_rule(trimmed) { String::new() } else { plain_line(trimmed) };
        if plain.is_empty() {
            if !current.is_empty() {
                paragraphs.push(std::mem::take(&mut current));
            }
            continue;
        }
        if !current.is_empty() {
            current.push(' ');
        }
        current.push_str(&plain);
    }
    if !current.is_empty() {
        paragraphs.push(current);
    }
    paragraphs
}

/// The paragraphs of a post that are prose: without the lines in italics that stand under pictures.
pub(super) fn prose(markdown: &str) -> Vec<String> {
    let is_caption =
        |line: &str| line.len() > 2 && line.starts_with('*') && line.ends_with('*') && !line.starts_with("**");
    let without: Vec<&str> = markdown.lines().map(|line| if is_caption(line.trim()) { "" } else { line }).collect();
    plain_paragraphs(&without.join("\n"))
}

/// True for `# Title`.
pub(super) fn is_heading(line: &str) -> bool {
    let rest = line.trim_start_matches('#');
    rest.len() < line.len() && (rest.is_empty() || rest.starts_with(' '))
}

fn is_rule(line: &str) -> bool {
    line.len() >= 3
        && (line.chars().all(|character| character == '-') || line.chars().all(|character| character == '*'))
}

/// One line without its Markdown.
pub(super) fn plain_line(line: &str) -> String {
    let unlisted = line.trim_start_matches(['>', ' ']);
    let unlisted = ["- [ ] ", "- [x] ", "- ", "* ", "+ ", "• "]
        .iter()
        .find_map(|mark| unlisted.strip_prefix(mark))
        .unwrap_or(unlisted);
    let mut plain = String::with_capacity(unlisted.len());
    let mut rest = unlisted;
    while let Some(at) = rest.find(['!', '[']) {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some((label, after, is_picture)) = link(rest) {
            if !is_picture {
                plain.push_str(label);
            }
            rest = after;
        } else {
            // proof: `find` stopped at a character of one byte.
            plain.push_str(&rest[..1]);
            rest = &rest[1..];
        }
    }
    plain.push_str(rest);
    plain.replace("**", "").replace(['`', '*'], "").trim().to_owned()
}

/// `[label](target)` or `![label](target)` at the start of the text: label, what follows, whether it is a picture.
fn link(text: &str) -> Option<(&str, &str, bool)> {
    let (body, is_picture) = match text.strip_prefix('!') {
        Some(body) => (body, true),
        None => (text, false),
    };
    let (label, after) = body.strip_prefix('[')?.split_once(']')?;
    let after = match after.strip_prefix("(<") {
        Some(target) => target.split_once(">)")?.1,
        None => after.strip_prefix('(')?.split_once(')')?.1,
    };
    Some((label, after, is_picture))
}

/// The sentences of a plain text: cut after `.`, `!`, `?`, `…` and their like where a space or the end follows.
pub(super) fn sentences(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut current = String::new();
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        current.push(character);
        let closes = matches!(character, '.' | '!' | '?' | '…' | '。' | '！' | '？')
            || (matches!(character, '"' | '”' | '\'' | '’' | ')') && ends_with_mark(&current));
        let at_edge = characters.peek().is_none_or(|next| next.is_whitespace());
        if closes && at_edge {
            push_sentence(&mut found, &mut current);
        }
    }
    push_sentence(&mut found, &mut current);
    found
}

fn ends_with_mark(text: &str) -> bool {
    text.trim_end_matches(['"', '”', '\'', '’', ')']).ends_with(['.', '!', '?', '…'])
}

fn push_sentence(found: &mut Vec<String>, current: &mut String) {
    let sentence = current.trim();
    if sentence.chars().any(char::is_alphanumeric) {
        found.push(sentence.to_owned());
    } else if let Some(last) = found.last_mut() {
        // Emoji and marks on their own belong to the sentence before them.
        if !sentence.is_empty() {
            last.push(' ');
            last.push_str(sentence);
        }
    }
    current.clear();
}

/// The sentence with a full stop, if it has no mark of its end.
pub(super) fn closed(sentence: &str) -> String {
    let trimmed = sentence.trim_end();
    match trimmed.chars().next_back() {
        Some(last) if last.is_alphanumeric() || matches!(last, ')' | '"' | '”' | '\'' | '’' | '%') => {
            if ends_with_mark(trimmed) {
                trimmed.to_owned()
            } else {
                format!("{trimmed}.")
            }
        }
        Some(',' | ';' | ':' | '-') => format!("{}.", trimmed.trim_end_matches([',', ';', ':', '-', ' '])),
        _ => trimmed.to_owned(),
    }
}

/// At most `chars_max` characters, cut at the last space before, with an ellipsis where something was cut.
pub(super) fn shortened(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let head: String = text.chars().take(chars_max.saturating_sub(1)).collect();
    let cut = match head.rfind(' ') {
        Some(at) if at > head.len() / 2 => &head[..at],
        _ => head.as_str(),
    };
    format!("{}…", cut.trim_end_matches([',', '.', ' ']))
}

/// True for pictographs; digits and marks that can be made into one are not meant.
pub(super) fn is_emoji(character: char) -> bool {
    matches!(u32::from(character), 0x1F300..=0x1FAFF | 0x2600..=0x27BF | 0x2B50 | 0x2B55)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_becomes_plain() {
        let text = "# Title\n\nA **bold** [link](http://x) and\nmore.\n\n![p](<a b.jpg>)\n*caption*\n\n```\ncode\n```\n- item!\n---\nend [open";
        assert_eq!(plain_paragraphs(text), ["A bold link and more.", "caption", "item!", "end [open"]);
    }

    #[test]
    fn sentences_are_cut_at_marks() {
        for (text, want) in [
            ("One. Two! Three", vec!["One.", "Two!", "Three"]),
            ("3.5 km away. \"Yes.\" she said", vec!["3.5 km away.", "\"Yes.\"", "she said"]),
            ("좋았어요! 😊 다음에 또.", vec!["좋았어요!", "😊 다음에 또."]),
            ("끝… 😊", vec!["끝… 😊"]),
            ("...", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(sentences(text), want, "{text}");
        }
    }

    #[test]
    fn shortening_keeps_words() {
        assert_eq!(shortened("one two three", 20), "one two three");
        assert_eq!(shortened("one two three", 11), "one two…");
        assert_eq!(shortened("가나다라마바사", 4), "가나다…");
    }
}
