//! House rules that a machine can check: heads, sizes, tables of contents, panics with proofs, metric names, loose ends, words that say
//! where this was written. Each rule is tried on made-up offenders too.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

#[path = "kit/source.rs"]
mod source;

use source::{File, code, comments, files, is_word, line, lines_without_tests, words};

/// Lines of a file before its tests.
const FILE_LINES_MAX: usize = 400;
/// Lines of a function, from its `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 60;
/// Functions that may be longer, and how long: tables that read better in one piece. May shrink, never grow.
const LONGER_FUNCTIONS: &[(&str, &str, usize)] = &[("src/policy/breaker/settings.rs", "check_workable", 71)];

type Rule = fn(&File) -> Vec<String>;

fn opens_with_a_head(File { path, text, .. }: &File) -> Vec<String> {
    let head =
        text.lines().next().and_then(|first| first.strip_prefix("//!")).is_some_and(|head| !head.trim().is_empty());
    if head { Vec::new() } else { vec![format!("{path}:1: does not open with `//!` and what it is for")] }
}

fn is_short(File { path, text, tests }: &File) -> Vec<String> {
    let lines = lines_without_tests(text);
    if *tests || lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    vec![format!("{path}:{}: {lines} lines without tests, {FILE_LINES_MAX} are allowed", FILE_LINES_MAX + 1)]
}

fn has_short_functions(File { path, text, tests }: &File) -> Vec<String> {
    if *tests {
        return Vec::new();
    }
    let tests_begin = lines_without_tests(text);
    let mut long = Vec::new();
    for (name, first, lines) in functions(&code(text)) {
        let listed = LONGER_FUNCTIONS.iter().find(|(file, function, _)| *file == path.as_str() && *function == name);
        let max = listed.map_or(FUNCTION_LINES_MAX, |(_, _, max)| *max);
        if first <= tests_begin && lines > max {
            long.push(format!("{path}:{first}: `{name}` has {lines} lines, {max} are allowed"));
        }
    }
    long
}

/// Name, first line and number of lines of every function with a body.
fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let mut functions = Vec::new();
    for at in words(code, "fn") {
        let name: String =
            code[at + 2..].trim_start().chars().take_while(|letter| is_word(u8::try_from(*letter).ok())).collect();
        if name.is_empty() {
            continue;
        }
        let (mut depth, mut round) = (0_i32, 0_i32);
        for (offset, letter) in code[at..].char_indices() {
            match letter {
                '(' | '[' => round += 1,
                ')' | ']' => round -= 1,
                ';' if depth == 0 && round == 0 => break,
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => continue,
            }
            if letter == '}' && depth == 0 {
                let lines = code[at..at + offset].matches('\n').count() + 1;
                functions.push((name, line(code, at), lines));
                break;
            }
        }
    }
    functions
}

/// `mod.rs` and `lib.rs` are tables of contents: docs, attributes, `mod` and `use`.
fn is_a_table_of_contents(File { path, text, .. }: &File) -> Vec<String> {
    if !path.starts_with("src/") || !(path.ends_with("/mod.rs") || path.ends_with("/lib.rs")) {
        return Vec::new();
    }
    let code = code(text);
    let mut strange = Vec::new();
    let mut at = 0;
    for statement in code.split(';') {
        let mut rest = statement.trim_start();
        while let Some(attribute) = rest.strip_prefix("#[").or_else(|| rest.strip_prefix("#![")) {
            let mut depth = 1;
            let end = attribute.find(|letter| {
                depth += match letter {
                    '[' => 1,
                    ']' => -1,
                    _ => 0,
                };
                depth == 0
            });
            rest = end.map_or("", |end| attribute[end + 1..].trim_start());
        }
        let item = rest.trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ").trim_start_matches("pub ");
        let fits = rest.is_empty() || ((item.starts_with("mod ") && !item.contains('{')) || item.starts_with("use "));
        if !fits {
            let begins = at + statement.len() - rest.len();
            strange.push(format!("{path}:{}: more than a table of contents", line(&code, begins)));
        }
        at += statement.len() + 1;
    }
    strange
}

fn panics_only_with_a_proof(File { path, text, tests }: &File) -> Vec<String> {
    if !path.starts_with("src/") || *tests {
        return Vec::new();
    }
    let (code, lines) = (code(text), text.lines().collect::<Vec<_>>());
    let tests_begin = lines_without_tests(text);
    let mut bare = Vec::new();
    for call in [".unwrap()", ".expect(", "panic!(", "unreachable!("] {
        for (at, _) in code.match_indices(call) {
            let number = line(&code, at);
            // The proof stands on the line or on the four before it: a statement may be broken over lines.
            let proven = lines[number.saturating_sub(5)..number].iter().any(|line| line.contains("// proof"));
            if number <= tests_begin && !proven {
                bare.push(format!("{path}:{number}: `{call}` without `// proof:`"));
            }
        }
    }
    bare
}

fn metric_names_stand_in_one_list(File { path, text, tests }: &File) -> Vec<String> {
    if !path.starts_with("src/") || *tests || path == "src/runtime/metric.rs" {
        return Vec::new();
    }
    let raw = text.match_indices("\"watertight_");
    raw.map(|(at, _)| format!("{path}:{}: a metric's name outside runtime/metric.rs", line(text, at))).collect()
}

/// A loose end says what is loose.
fn loose_ends_have_a_text(File { path, text, .. }: &File) -> Vec<String> {
    let mut bare = Vec::new();
    for mark in [["TO", "DO"].concat(), ["FIX", "ME"].concat()] {
        for at in words(&comments(text), &mark) {
            let rest = text[at + mark.len()..].lines().next().unwrap_or_default();
            let said = rest.strip_prefix(':').is_some_and(|said| said.trim().len() >= 10);
            if !said {
                bare.push(format!("{path}:{}: `{mark}` without `: ` and what is to be done", line(text, at)));
            }
        }
    }
    bare
}

/// Nothing tells of the place or the way in which this was written. The words are put together here, so that this file has none.
fn says_nothing_of_its_workshop(File { path, text, .. }: &File) -> Vec<String> {
    let forbidden = [
        ["/wo", "rk/"],
        ["/tm", "p/"],
        ["/ro", "ot/"],
        ["/ho", "me/"],
        ["crates", ".io"],
        ["this ses", "sion"],
        ["helper ses", "sion"],
        ["work", "tree"],
        ["co-auth", "ored-by"],
        ["as an", " ai "],
    ];
    let lower = text.to_lowercase();
    let mut told = Vec::new();
    for word in forbidden.map(|parts| parts.concat()) {
        for (at, _) in lower.match_indices(&word) {
            told.push(format!("{path}:{}: says {word:?}", line(&lower, at)));
        }
    }
    told
}

const RUST_RULES: &[Rule] = &[
    opens_with_a_head,
    is_short,
    has_short_functions,
    is_a_table_of_contents,
    panics_only_with_a_proof,
    metric_names_stand_in_one_list,
    loose_ends_have_a_text,
    says_nothing_of_its_workshop,
];

#[test]
fn the_source_is_tidy() {
    let files = files(&["src", "tests", "benches", "examples"], &[".rs"]);
    assert!(files.len() > 30, "the source was not found");
    let breaches: Vec<String> =
        files.iter().flat_map(|file| RUST_RULES.iter().flat_map(move |rule| rule(file))).collect();
    assert!(breaches.is_empty(), "\n{}", breaches.join("\n"));
}

#[test]
fn other_texts_are_tidy() {
    let endings = [
        ".toml",
        ".md",
        ".json",
        ".jsonl",
        ".yml",
        ".yaml",
        ".sh",
        ".txt",
        ".py",
        ".mjs",
        ".html",
        "Dockerfile",
        "justfile",
    ];
    let folders =
        ["Cargo.toml", "clippy.toml", "README.md", "docs", "agents", "deploy", "examples", "tests", "justfile"];
    let files = files(&folders, &endings);
    assert!(!files.is_empty());
    let breaches: Vec<String> = files.iter().flat_map(says_nothing_of_its_workshop).collect();
    assert!(breaches.is_empty(), "\n{}", breaches.join("\n"));
}

/// The ratchet: what was shortened may not grow again.
#[test]
fn longer_functions_are_as_long_as_the_list_says() {
    let files = files(&["src"], &[".rs"]);
    for (path, function, max) in LONGER_FUNCTIONS {
        let file = files.iter().find(|file| file.path == *path).unwrap_or_else(|| panic!("{path} is gone: strike it"));
        let longest =
            functions(&code(&file.text)).into_iter().filter(|(name, ..)| name == function).map(|found| found.2).max();
        assert_eq!(longest, Some(*max), "{path}: `{function}`: bring the list down to what it is");
    }
}

#[test]
fn made_up_offenders_are_caught() {
    let long_function = format!("//! x\nfn long() {{\n{}}}\n", "    step();\n".repeat(FUNCTION_LINES_MAX));
    let long_file = format!("//! x\n{}", "const X: u8 = 1;\n".repeat(FILE_LINES_MAX));
    let long_tests = format!("//! x\n#[cfg(test)]\nmod tests {{\n{}}}\n", "fn f() {}\n".repeat(FILE_LINES_MAX));
    let loose = format!("// {}{}", "TO", "DO");
    let told = format!("// see {}{}", "/wo", "rk/notes");
    let check = |rule: Rule, path: &str, text: &str, caught: Option<usize>| {
        let found = rule(&File::of(path, text));
        let got = found.first().and_then(|found| found.split(':').nth(1)).map(|line| line.parse().unwrap());
        assert_eq!(got, caught, "{text}: {found:?}");
    };
    check(opens_with_a_head, "src/a.rs", "//! Decides.", None);
    check(opens_with_a_head, "src/a.rs", "use x;", Some(1));
    check(opens_with_a_head, "src/a.rs", "//!", Some(1));
    check(is_short, "src/a.rs", &long_file, Some(FILE_LINES_MAX + 1));
    check(is_short, "src/a.rs", &long_tests, None);
    check(is_short, "src/a/tests.rs", &long_file, None);
    check(has_short_functions, "src/a.rs", &long_function, Some(2));
    check(
        has_short_functions,
        "src/a.rs",
        "//! x\nfn short() -> [u8; 2] {\n    \"}\";\n}\ntrait T { fn f(); }\n",
        None,
    );
    check(is_a_table_of_contents, "src/a/mod.rs", "//! x\n#[cfg(feature = \"y\")]\npub mod b;\npub use b::C;\n", None);
    check(is_a_table_of_contents, "src/a/mod.rs", "//! x\nmod b;\n\nfn f() {}\n", Some(4));
    check(is_a_table_of_contents, "src/a/mod.rs", "//! x\nmod b { }\n", Some(2));
    check(panics_only_with_a_proof, "src/a.rs", "fn f() {\n    x.unwrap();\n}", Some(2));
    check(panics_only_with_a_proof, "src/a.rs", "// proof: it is there.\nx.expect(\"there\");", None);
    check(panics_only_with_a_proof, "src/a.rs", "#[cfg(test)]\nmod tests { fn f() { x.unwrap(); } }", None);
    check(panics_only_with_a_proof, "src/a.rs", "/// x.unwrap()\nfn f() {}", None);
    check(metric_names_stand_in_one_list, "src/a.rs", "\ncounter!(\"watertight_x_total\")", Some(2));
    check(metric_names_stand_in_one_list, "src/runtime/metric.rs", "\"watertight_x_total\"", None);
    check(loose_ends_have_a_text, "src/a.rs", &loose, Some(1));
    check(loose_ends_have_a_text, "src/a.rs", &format!("{loose}: say when this may go"), None);
    check(says_nothing_of_its_workshop, "docs/a.md", &told, Some(1));
}
