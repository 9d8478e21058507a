//! Reads Rust source as the structure tests need it: files of the package, code without comments and literals, where tests begin.
#![allow(dead_code, unreachable_pub, reason = "each structure test uses its own part")]

use std::path::{Path, PathBuf};

/// A text file of the package: its path from the package's root, with forward slashes, and its text.
pub struct File {
    /// `src/policy/retry.rs`.
    pub path: String,
    /// As it stands on disk.
    pub text: String,
    /// Whether it is tests and nothing else.
    pub tests: bool,
}

impl File {
    /// A file by its path and text.
    pub fn of(path: &str, text: &str) -> Self {
        let tests = path.starts_with("tests/")
            || path.starts_with("benches/")
            || path.ends_with("/tests.rs")
            || path.contains("/tests/");
        Self { path: path.to_owned(), text: text.to_owned(), tests }
    }
}

/// Every file below `folders` whose name ends in one of `endings`, in the order of their paths.
pub fn files(folders: &[&str], endings: &[&str]) -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    for folder in folders {
        walk(&root.join(folder), &mut paths);
    }
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        let name = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
        if endings.iter().any(|ending| name.ends_with(ending)) {
            files.push(File::of(&name, &std::fs::read_to_string(&path).unwrap()));
        }
    }
    let declared: Vec<String> = files.iter().flat_map(test_modules).collect();
    for file in &mut files {
        file.tests |= declared.contains(&file.path);
    }
    files
}

/// The files of the modules that `file` declares for tests only.
fn test_modules(file: &File) -> Vec<String> {
    let folder = match file.path.strip_suffix("/mod.rs").or_else(|| file.path.strip_suffix("/lib.rs")) {
        Some(folder) => folder,
        None => file.path.trim_end_matches(".rs"),
    };
    let mut names = Vec::new();
    for after in file.text.split("#[cfg(test)]").skip(1) {
        let mut words = after.split_whitespace().skip_while(|word| word.starts_with("pub"));
        if let (Some("mod"), Some(name)) = (words.next(), words.next())
            && let Some(name) = name.strip_suffix(';')
        {
            names.push(format!("{folder}/{name}.rs"));
        }
    }
    names
}

fn walk(path: &Path, into: &mut Vec<PathBuf>) {
    if path.is_file() {
        into.push(path.to_owned());
        return;
    }
    let Ok(entries) = std::fs::read_dir(path) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // What is built and what is hidden is not written by us.
        if !name.starts_with('.') && name != "target" {
            walk(&path, into);
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Code,
    Comment,
    Literal,
}

/// The code alone: comments and literals blanked out; every line keeps its number and every character its column.
pub fn code(text: &str) -> String {
    only(text, Part::Code)
}

/// The comments alone.
pub fn comments(text: &str) -> String {
    only(text, Part::Comment)
}

fn only(text: &str, wanted: Part) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let (part, end) = part_at(bytes, at);
        if part != wanted {
            for byte in out[at..end].iter_mut().filter(|byte| **byte != b'\n') {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// What begins at `at`, and where it ends.
fn part_at(bytes: &[u8], at: usize) -> (Part, usize) {
    let begins = |what: &[u8]| bytes[at..].starts_with(what);
    let inside_word = is_word(at.checked_sub(1).map(|before| bytes[before]));
    let literal = match bytes[at] {
        b'/' if begins(b"//") => return (Part::Comment, line_end(bytes, at)),
        b'/' if begins(b"/*") => return (Part::Comment, block_end(bytes, at)),
        b'"' => Some(string_end(bytes, at)),
        b'r' | b'b' if !inside_word => raw_end(bytes, at),
        b'\'' => char_end(bytes, at),
        _ => None,
    };
    literal.map_or((Part::Code, at + 1), |end| (Part::Literal, end))
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |length| at + length)
}

fn block_end(bytes: &[u8], at: usize) -> usize {
    let (mut depth, mut end) = (0, at);
    while end < bytes.len() {
        if bytes[end..].starts_with(b"/*") {
            (depth, end) = (depth + 1, end + 2);
        } else if bytes[end..].starts_with(b"*/") {
            (depth, end) = (depth - 1, end + 2);
            if depth == 0 {
                break;
            }
        } else {
            end += 1;
        }
    }
    end
}

fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while end < bytes.len() && bytes[end] != b'"' {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    (end + 1).min(bytes.len())
}

/// The end of `r"..."`, `r#"..."#`, `br"..."`; `None` where none begins.
fn raw_end(bytes: &[u8], at: usize) -> Option<usize> {
    let mut start = at + usize::from(bytes[at] == b'b');
    if bytes.get(start) != Some(&b'r') {
        return None;
    }
    start += 1;
    let hashes = bytes[start..].iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(start + hashes) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let body = start + hashes + 1;
    let length = bytes[body..].windows(close.len()).position(|window| window == close)?;
    Some(body + length + close.len())
}

/// The end of a character literal; `None` for a lifetime.
fn char_end(bytes: &[u8], at: usize) -> Option<usize> {
    let close = if bytes.get(at + 1) == Some(&b'\\') {
        (at + 3..bytes.len()).take(10).find(|end| bytes[*end] == b'\'')?
    } else {
        (at + 2..bytes.len()).take(4).find(|end| bytes[*end] == b'\'').filter(|end| {
            // One character only: `'a, 'b` is two lifetimes.
            std::str::from_utf8(&bytes[at + 1..*end]).is_ok_and(|inner| inner.chars().count() == 1)
        })?
    };
    Some(close + 1)
}

/// Whether a byte belongs to an identifier.
pub fn is_word(byte: Option<u8>) -> bool {
    byte.is_some_and(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

/// Where `word` stands in `code` as a whole word: byte offsets.
pub fn words(code: &str, word: &str) -> Vec<usize> {
    let bytes = code.as_bytes();
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(|at| {
            let before = at.checked_sub(1).map(|before| bytes[before]);
            let after = bytes.get(at + word.len()).copied();
            !is_word(before) && !is_word(after)
        })
        .collect()
}

/// The number of the line, from 1, that offset `at` is on.
pub fn line(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// How many lines stand before the file's tests.
pub fn lines_without_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().position(|line| line.trim_start().starts_with("#[cfg(test)]")).unwrap_or(lines.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank_and_lines_stay() {
        for (given, want) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */\n d */ e", "a             \n      e"),
            ("x(\"a // {\\\" b\") y", "x(            ) y"),
            ("x(r#\"{ \" \"#) y", "x(         ) y"),
            ("'{' 'a: &'a T '\\n'", "    'a: &'a T     "),
            ("b\"{\" br\"}\" bird", "b          bird"),
        ] {
            assert_eq!(code(given), want, "{given}");
        }
    }

    #[test]
    fn comments_alone() {
        assert_eq!(comments("a \"// b\" // c\nd"), "         // c\n ");
    }

    #[test]
    fn modules_for_tests_only() {
        let declared = |path, text| test_modules(&File::of(path, text));
        assert_eq!(declared("src/a/mod.rs", "#[cfg(test)]\npub(crate) mod b;\nmod c;"), ["src/a/b.rs"]);
        assert_eq!(declared("src/a.rs", "#[cfg(test)]\nmod b;"), ["src/a/b.rs"]);
        assert_eq!(declared("src/a.rs", "#[cfg(test)]\nmod tests {}"), Vec::<String>::new());
    }

    #[test]
    fn whole_words() {
        assert_eq!(words("tokio::x my_tokio tokio2 tokio", "tokio"), [0, 25]);
        assert_eq!(line("a\nb\nc", 4), 3);
    }
}
