//! Dependencies point down one way: a module names only lower floors, and neighbours on one floor are strangers. The pure floors name
//! no clock, chance, log or async runtime. Reads the source, so that no review has to.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

#[path = "kit/source.rs"]
mod source;

use source::{File, code, files, line, words};

/// Modules by floor, from the ground up.
const FLOORS: &[&[&str]] = &[
    &["model"],
    &["policy"],
    &["workflow"],
    &["runtime"],
    &["transport", "settings", "agents", "journal"],
    &["serve"],
    &["cli"],
];

/// Who is pure, and what they therefore never name.
const PURE: &[&str] = &["model", "policy", "workflow"];
const IMPURE: &[&str] =
    &["tokio", "tokio_util", "Instant", "SystemTime", "rand", "fastrand", "tracing", "metrics", "reqwest", "ractor"];

fn floor_of(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

/// The module that a file belongs to; `None` for the roots, which only list modules.
fn module_of(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("src/")?;
    let first = inside.split('/').next()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(name, "lib" | "main")).then_some(name)
}

/// The modules that a path beginning at `crate::` names: one, or those of its group.
fn named_after(code: &str, at: usize) -> Vec<(usize, String)> {
    let word = |at: usize| -> String {
        code[at..].chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
    };
    let mut at = at + code[at..].len() - code[at..].trim_start().len();
    if !code[at..].starts_with('{') {
        return vec![(at, word(at))];
    }
    let (mut depth, mut fresh, mut named) = (0, false, Vec::new());
    while let Some(letter) = code[at..].chars().next() {
        match letter {
            '{' => (depth, fresh) = (depth + 1, depth == 0),
            '}' => depth -= 1,
            ',' => fresh = depth == 1,
            _ if letter.is_whitespace() => {}
            _ if fresh => {
                named.push((at, word(at)));
                fresh = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
        at += letter.len_utf8();
    }
    named
}

/// Every breach in one file, as `path:line: what`.
fn breaches(path: &str, text: &str) -> Vec<String> {
    let Some(own) = module_of(path) else { return Vec::new() };
    let code = code(text);
    let mut breaches = Vec::new();
    let Some(own_floor) = floor_of(own) else {
        return vec![format!("{path}:1: module `{own}` stands on no floor; name it in tests/floors.rs")];
    };
    for at in words(&code, "crate") {
        let after = at + "crate".len();
        // `pub(crate)` is no path.
        let Some(path_begins) = code[after..].strip_prefix("::").map(|_| after + 2) else { continue };
        for (at, named) in named_after(&code, path_begins) {
            let lower = floor_of(&named).is_some_and(|floor| floor < own_floor);
            if named != own && !lower {
                breaches.push(format!("{path}:{}: `{own}` names `{named}`", line(&code, at)));
            }
        }
    }
    if PURE.contains(&own) {
        for word in IMPURE {
            for at in words(&code, word) {
                breaches.push(format!("{path}:{}: `{own}` is pure and names `{word}`", line(&code, at)));
            }
        }
    }
    breaches
}

#[test]
fn every_module_names_only_lower_floors() {
    let files = files(&["src"], &[".rs"]);
    assert!(files.len() > 30, "the source was not found");
    let breaches: Vec<String> = files.iter().flat_map(|File { path, text, .. }| breaches(path, text)).collect();
    assert!(breaches.is_empty(), "\n{}", breaches.join("\n"));
}

#[test]
fn made_up_offenders_are_caught() {
    for (path, text, caught) in [
        ("src/policy/a.rs", "use crate::model::name::Name;", None),
        ("src/policy/a.rs", "use crate::policy::chance::Chance;", None),
        ("src/policy/a.rs", "\nuse crate::runtime::gate::Gate;", Some("src/policy/a.rs:2: `policy` names `runtime`")),
        (
            "src/policy/a.rs",
            "use crate::{\n    model::{clock::Timestamp, name::Name},\n    workflow::plan::Plan,\n};",
            Some("src/policy/a.rs:3: `policy` names `workflow`"),
        ),
        (
            "src/transport/a.rs",
            "fn f() { crate::settings::load() }",
            Some("src/transport/a.rs:1: `transport` names `settings`"),
        ),
        (
            "src/cli/a.rs",
            "use crate::{model::x, policy::y, workflow, runtime::{a, b}, transport, settings, agents, serve};",
            None,
        ),
        ("src/model/a.rs", "// use crate::cli;\nconst X: &str = \"crate::cli\";", None),
        ("src/model/a.rs", "pub(crate) fn f() {}", None),
        (
            "src/workflow/a.rs",
            "async fn f() { tokio::spawn(g()) }",
            Some("src/workflow/a.rs:1: `workflow` is pure and names `tokio`"),
        ),
        (
            "src/policy/a.rs",
            "use std::time::{Duration, Instant};",
            Some("src/policy/a.rs:1: `policy` is pure and names `Instant`"),
        ),
        ("src/runtime/a.rs", "let now = tokio::time::Instant::now();", None),
        ("src/attic/a.rs", "", Some("src/attic/a.rs:1: module `attic` stands on no floor; name it in tests/floors.rs")),
        ("src/lib.rs", "pub mod cli;", None),
    ] {
        assert_eq!(breaches(path, text).first().map(String::as_str), caught, "{text}");
    }
}
