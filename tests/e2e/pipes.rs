//! Pipes whose other end has gone.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use crate::{
    process::{Running, command, watertight},
    project::MOMENTLY,
};

#[test]
fn a_reader_of_the_result_that_leaves_is_no_error() {
    for args in
        [&["run", MOMENTLY, "--quiet"][..], &["check", MOMENTLY, "--explain"], &["run", MOMENTLY, "--json", "-q"]]
    {
        let mut child = command(args).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty());
        let ended = child.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn a_reader_of_the_progress_that_leaves_is_no_error() {
    let mut child = command(&["run", MOMENTLY]).spawn().unwrap();
    // Gone before the first line.
    drop(child.stderr.take());
    let ended = child.wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.code() == Some(0) && out.starts_with("# "), "{:?}: {out}", ended.status);
    // Also where there is something to complain about.
    let mut child = command(&["run", "nowhere"]).stdout(Stdio::null()).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

#[test]
fn usage() {
    for (args, code, text) in [
        (&["--help"][..], 0, "Usage: watertight"),
        (&["run", "--help"], 0, "--with"),
        (&["--version"], 0, env!("CARGO_PKG_VERSION")),
        (&[], 2, "Usage: watertight"),
        (&["runn"], 2, "'run'"),
        (&["run", "--jsn"], 2, "'--json'"),
        (&["run", MOMENTLY, "--deadline", "soon"], 2, "--deadline soon"),
        (&["run", MOMENTLY, "--log", "=,="], 2, "--log"),
        (&["agent"], 2, "<NAME>"),
        (&["agent", "draft", "--listen", "here"], 2, "--listen"),
        (&["check", MOMENTLY, "--call", "draft"], 2, "--input"),
        (&["serve", "nowhere"], 2, "nowhere is no folder"),
        (&["rerun"], 2, "Usage: watertight rerun"),
        (&["replay", "log.jsonl", "--decisions"], 2, "`replay` is not built yet"),
        (&["drill"], 2, "not built yet"),
    ] {
        let ended = watertight(args).exits(code);
        let said = if code == 0 { &ended.out } else { &ended.err };
        assert!(said.contains(text), "{args:?}: {text:?}: {ended:#?}");
        assert!(code == 0 || ended.out.is_empty(), "{args:?}");
    }
    let none = Running::start(command(&["run", "--json", "nowhere"])).end().exits(2);
    assert_eq!(none.json()["error"]["error_code"], "INVALID_REQUEST");
}
