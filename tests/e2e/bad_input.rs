//! Whatever is wrong with what a person gives: one message that names file, line and key, exit 2 before anything ran.

use std::path::Path;

use crate::{
    process::{Ended, Running, command, watertight},
    project::{MOMENTLY, example, folder, put, text},
};

const WORKFLOW: &str = "\
[workflow]
name = \"w\"
output = \"steps.post.output\"
[inputs]
notes = \"text\"
[[step]]
id = \"post\"
agent = \"draft\"
in = { notes = \"input.notes\" }
";

struct Case {
    workflow: &'static str,
    config: &'static str,
    args: &'static [&'static str],
    want: &'static [&'static str],
}

const SOUND: Case = Case { workflow: WORKFLOW, config: "", args: &[], want: &[] };

fn run(folder: &Path, args: &[&str]) -> Ended {
    let mut all = vec!["run", text(folder)];
    all.extend(args);
    Running::start(command(&all)).end()
}

#[track_caller]
fn check(case: &Case) {
    let project =
        folder(&[("workflow.toml", case.workflow), ("input/notes.md", "Hello."), ("watertight.toml", case.config)]);
    let ended = run(project.path(), case.args).exits(2);
    assert_eq!(ended.out, "");
    for text in case.want {
        assert!(ended.err.contains(text), "{text:?} is missing:\n{}", ended.err);
    }
    assert!(!ended.err.contains("> post"), "it ran: {}", ended.err);
    let mut args = case.args.to_vec();
    args.push("--json");
    let json = run(project.path(), &args).exits(2).json();
    assert_eq!(
        (json["error"]["error_code"].as_str(), json["error"]["retryable"].as_bool()),
        (Some("INVALID_REQUEST"), Some(false))
    );
    assert!(json["error"]["message"].as_str().is_some_and(|message| message.contains(case.want[0])), "{json}");
}

#[test]
fn the_sound_project_runs() {
    let project = folder(&[("workflow.toml", WORKFLOW), ("input/notes.md", "Hello there.")]);
    run(project.path(), &[]).exits(0);
}

#[test]
fn workflows() {
    for (workflow, want) in [
        ("[workflow\nname = 1\n", &["workflow.toml:1"][..]),
        ("", &["workflow.toml", "workflow"]),
        ("[workflow]\nname = \"w\"\noutput = \"1\"\nnotes = 3\n", &["workflow.toml:4", "notes"]),
        (
            "[workflow]\nname = \"w\"\noutput = \"1\"\n[[step]]\nid = \"a\"\nagent = \"drift\"\n",
            &["workflow.toml:6", "drift", "draft"],
        ),
        (
            "[workflow]\nname = \"w\"\noutput = \"1\"\n[[step]]\nid = \"a\"\nagent = \"draft\"\nneeds = [\"b\"]\n[[step]]\nid = \"b\"\nagent = \"draft\"\nneeds = [\"a\"]\n",
            &["workflow.toml:", "a", "b", "cycle"],
        ),
        (
            "[workflow]\nname = \"w\"\noutput = \"1\"\n[[step]]\nid = \"a\"\nagent = \"draft\"\nin = { x = \"steps.nobody.output\" }\n",
            &["workflow.toml:7", "nobody"],
        ),
        (
            "[workflow]\nname = \"w\"\noutput = \"1\"\n[[step]]\nid = \"a\"\nagent = \"draft\"\nin = { x = \"input.none\" }\n",
            &["workflow.toml:7", "none"],
        ),
        (
            "[workflow]\nname = \"w\"\noutput = \"1 +\"\n[[step]]\nid = \"a\"\nagent = \"draft\"\n",
            &["workflow.toml:3", "output"],
        ),
        (
            "[workflow]\nname = \"w\"\noutput = \"1\"\ndeadline = \"forever\"\n[[step]]\nid = \"a\"\nagent = \"draft\"\n",
            &["workflow.toml:4", "deadline", "forever"],
        ),
        (
            "[workflow]\nname = \"w\"\noutput = \"1\"\n[[step]]\nid = \"a\"\nagent = \"draft\"\non = { error = \"wait\" }\n",
            &["workflow.toml:7", "wait"],
        ),
        (
            "[workflow]\nname = \"w\"\noutput = \"1\"\n[[step]]\nid = \"a\"\nagent = \"draft\"\non = { deadline = \"lighter\" }\n",
            &["workflow.toml:7", "lighter"],
        ),
    ] {
        check(&Case { workflow, want, ..SOUND });
    }
}

#[test]
fn configurations() {
    for (config, want) in [
        ("[agents.draft\n", &["watertight.toml:1"][..]),
        ("[agents.draft]\nslotz = 3\n", &["watertight.toml:2", "slotz", "slots"]),
        ("[agents.draft]\nslots = -1\n", &["watertight.toml:2", "slots", "-1"]),
        ("[agents.draft]\nslots = 99999999999\n", &["watertight.toml:2", "slots", "99999999999"]),
        ("[agents.draft]\ntimeout = \"ten\"\n", &["watertight.toml:2", "timeout", "ten"]),
        ("[defaults.breaker]\nfailure_share = 50\n", &["watertight.toml:2", "failure_share", "50"]),
        ("[defaults.breaker]\nwindow_calls = 5\ncalls_min = 10\n", &["watertight.toml:", "calls_min"]),
        ("[agents.draft]\nprovider = \"nowhere\"\n", &["watertight.toml:2", "nowhere"]),
        ("[providers.x]\nkind = \"telnet\"\n", &["watertight.toml:2", "telnet"]),
        ("[providers.x]\nkind = \"ollama\"\nnum_ctx = 0\n", &["watertight.toml:3", "num_ctx", "from 128 to 100000000"]),
        (
            "[providers.x]\nkind = \"http\"\nbase_url = \"ftp://127.0.0.1\"\n",
            &["watertight.toml:3", "base_url", "http"],
        ),
        (
            "[providers.x]\nkind = \"http\"\nbase_url = \"http://127.0.0.1:1\"\napi_key = \"sk-12345678901234567890\"\n",
            &["watertight.toml:4", "api_key_env"],
        ),
        (
            "[providers.x]\nkind = \"http\"\nbase_url = \"http://127.0.0.1:1\"\napi_key_env = \"NO_SUCH_KEY_HERE\"\n[agents.draft]\nprovider = \"x\"\n",
            &["NO_SUCH_KEY_HERE"],
        ),
        ("[quotas.acme]\ntokens_per_day = 3\n", &["watertight.toml:2", "quotas", "not built yet"]),
    ] {
        check(&Case { config, want, ..SOUND });
    }
    let secret = "sk-12345678901234567890";
    let config = format!("[providers.x]\nkind = \"http\"\nbase_url = \"http://127.0.0.1:1\"\napi_key = \"{secret}\"\n");
    let project = folder(&[("workflow.toml", WORKFLOW), ("watertight.toml", &config)]);
    assert!(!run(project.path(), &[]).exits(2).err.contains(secret), "a key in a message is a key in a log");
}

#[test]
fn arguments() {
    for (args, want) in [
        (&["--input", "nowhere"][..], &["nowhere", "is no folder"][..]),
        (&["--with", "notes"], &["--with notes", "NAME=VALUE"]),
        (&["--with", "note=x"], &["--with note=x", "no input note", "notes"]),
        (&["--with", "notes=a", "--with", "notes=b"], &["--with notes", "twice"]),
        (&["--with", "notes=@nowhere.md"], &["nowhere.md"]),
        (&["--set", "agents.draft.slots"], &["--set", "key=value"]),
        (&["--set", "agents.draft.slotz=3"], &["--set", "slotz", "slots"]),
        (&["--set", "agents.draft.slots=many"], &["--set", "slots", "many"]),
        (&["--deadline", "5"], &["--deadline 5"]),
        (&["--deadline", "0s"], &["--deadline 0s"]),
        (&["--config", "nowhere.toml"], &["nowhere.toml"]),
        (&["--workflow", "nowhere.toml"], &["nowhere.toml"]),
    ] {
        // What clap itself refuses has no envelope, but all of these are ours.
        let project = folder(&[("workflow.toml", WORKFLOW), ("input/notes.md", "Hello.")]);
        let ended = run(project.path(), args).exits(2);
        for text in want {
            assert!(ended.err.contains(text), "{args:?}: {text:?} is missing:\n{}", ended.err);
        }
        assert_eq!(ended.out, "");
    }
}

#[test]
fn inputs() {
    let missing = folder(&[("workflow.toml", WORKFLOW)]);
    let ended = run(missing.path(), &[]).exits(2);
    for text in ["notes", "is missing", "a text into input/notes.md", "--with notes="] {
        assert!(ended.err.contains(text), "{text:?}: {}", ended.err);
    }
    let no_text = folder(&[("workflow.toml", WORKFLOW)]);
    put(no_text.path(), "input/notes.md", b"abc\xff\xfe");
    let ended = run(no_text.path(), &[]).exits(2);
    assert!(ended.err.contains("notes.md") && ended.err.contains("UTF-8"), "{}", ended.err);
    let twice = folder(&[("workflow.toml", WORKFLOW), ("input/notes.md", "a"), ("input/notes.txt", "b")]);
    let ended = run(twice.path(), &[]).exits(2);
    assert!(ended.err.contains("notes.md") && ended.err.contains("notes.txt"), "{}", ended.err);
    let ended =
        run(no_text.path(), &["--set", "limits.input_text_bytes_max=3", "--with", "notes=@Cargo.toml"]).exits(2);
    assert!(ended.err.contains("input_text_bytes_max"), "{}", ended.err);
    // A folder of photos without photos, and one that is not there.
    let photos = std::fs::read_to_string(example("workflow.toml")).unwrap();
    let empty = folder(&[("workflow.toml", &photos), ("input/notes.md", "Hello.")]);
    std::fs::create_dir_all(empty.path().join("input/photos")).unwrap();
    let ended = run(empty.path(), &[]).exits(2);
    assert!(ended.err.contains("photos"), "{}", ended.err);
    let ended = run(empty.path(), &["--with", "photos=nowhere.jpg"]).exits(2);
    assert!(ended.err.contains("nowhere.jpg"), "{}", ended.err);
}

#[test]
fn folders() {
    let ended = Running::start(command(&["run", "nowhere"])).end().exits(2);
    assert!(ended.err.contains("nowhere is no folder"), "{}", ended.err);
    let empty = folder(&[]);
    let ended = run(empty.path(), &[]).exits(2);
    assert!(ended.err.contains("workflow.toml") && ended.err.contains("init"), "{}", ended.err);
    let ended = Running::start(command(&["run", "Cargo.toml"])).end().exits(2);
    assert!(ended.err.contains("is no folder"), "{}", ended.err);
}

/// A word that nearly says how far places may go is refused before the run, not by the agent in the middle of it.
#[test]
fn a_misspelt_word_for_places() {
    for (said, exit) in [("nevr", 2), ("roundd", 2), ("never", 0), ("rounded", 0)] {
        let ended = watertight(&["run", MOMENTLY, "--quiet", "--with", &format!("places={said}")]).exits(exit);
        let is_told =
            ended.err.contains(&format!("input places = {said:?}: must be one of never, rounded; did you mean"));
        assert_eq!(is_told, exit == 2, "{said}: {}", ended.err);
    }
}
