//! `init`: a first configuration that works as it is.

use std::{
    fs::copy,
    io::{Read as _, Write as _},
    net::TcpListener,
};

use crate::{
    process::watertight,
    project::{PHOTOS, assert_shows, example, put, text},
};

#[test]
fn embedded_into_an_empty_folder() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("new");
    let at = text(&folder);
    let ended = watertight(&["init", at, "--embedded"]).exits(0);
    assert!(ended.out.contains(&format!("watertight run {at}")) && ended.err.contains("wrote "), "{ended:#?}");
    watertight(&["check", at]).exits(0);
    let nothing = watertight(&["run", at]).exits(2);
    assert!(nothing.err.contains("photos") && nothing.err.contains("is missing"), "{}", nothing.err);
    // Just as it was told: photos and notes.
    put(&folder, "input/notes.md", "A morning among the tombs.".as_bytes());
    std::fs::create_dir_all(folder.join("input/photos")).unwrap();
    copy(example("input/photos").join(PHOTOS[0]), folder.join("input/photos").join(PHOTOS[0])).unwrap();
    let run = watertight(&["run", at]).exits(0);
    assert_shows(&run.out, &PHOTOS[..1]);
    let again = watertight(&["init", at, "--embedded"]).exits(2);
    assert!(again.err.contains("is there already; --force overwrites it"), "{}", again.err);
    watertight(&["init", at, "--embedded", "--force"]).exits(0);
}

/// A server that lists these models and answers nothing else.
fn serve_models(models: &'static str) -> String {
    serve(vec![("/v1/models", models)])
}

/// A server that answers these paths and nothing else.
fn serve(paths: Vec<(&'static str, &'static str)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut buffer = [0; 4_096];
            let read = socket.read(&mut buffer).unwrap_or_default();
            let asked = String::from_utf8_lossy(&buffer[..read]).into_owned();
            let path = asked.split(' ').nth(1).unwrap_or_default().to_owned();
            let found = paths.iter().find(|(known, _)| *known == path);
            let (status, body) = found.map_or(("404 Not Found", "{}"), |(_, body)| ("200 OK", *body));
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n");
            let _ = socket.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes());
        }
    });
    format!("http://{address}/v1")
}

#[test]
fn for_a_model_server() {
    let home = tempfile::tempdir().unwrap();
    let at = text(home.path());
    let url = serve_models(r#"{"object": "list", "data": [{"id": "small-one"}, {"id": "large-one"}]}"#);
    let ended = watertight(&["init", at, "--server", &url]).exits(0);
    assert!(ended.err.contains("small-one, large-one"), "{}", ended.err);
    let config = std::fs::read_to_string(home.path().join("watertight.toml")).unwrap();
    assert!(config.contains(&format!("base_url = \"{url}\"")) && config.contains("model = \"small-one\""), "{config}");
    let checked = watertight(&["check", at, "--explain"]).exits(0);
    let photos = checked.out.lines().find(|line| line.starts_with("agents.photos.provider ")).unwrap();
    assert!(photos.contains("embedded"), "photos need no model and must not leave the machine: {photos}");
}

/// llama.cpp tells its slots, its `/v1` may be left out, and the fresh file is in order.
#[test]
fn for_a_server_that_tells_its_slots() {
    let list = r#"{"object": "list", "data": [{"id": "small-one"}]}"#;
    let url = serve(vec![("/v1/models", list), ("/props", r#"{"total_slots": 2}"#)]);
    let root = url.trim_end_matches("/v1");
    for (address, fresh) in [(url.as_str(), "a"), (root, "b"), (&format!("{root}/"), "c")] {
        let home = tempfile::tempdir().unwrap();
        let at = home.path().join(fresh);
        let json = watertight(&["init", text(&at), "--server", address, "--json"]).exits(0).json();
        assert_eq!((&json["found"]["base_url"], &json["found"]["slots"]), (&url.as_str().into(), &2.into()), "{json}");
        assert_eq!(json["written"].as_array().map(Vec::len), Some(2), "{json}");
        let config = std::fs::read_to_string(at.join("watertight.toml")).unwrap();
        assert!(config.contains("slots = 2 ") && config.contains("llama_cpp"), "{config}");
        let checked = watertight(&["check", text(&at)]).exits(0);
        assert!(!checked.err.contains("warning"), "{}", checked.err);
    }
    let bare = url.trim_end_matches("/v1").to_owned() + "/other";
    let home = tempfile::tempdir().unwrap();
    let refused = watertight(&["init", text(home.path()), "--server", &bare, "--json"]).exits(2);
    assert!(refused.err.contains("name the address up to /v1"), "{}", refused.err);
    assert_eq!(refused.json()["error"]["error_code"], "INVALID_REQUEST");
}

/// A key for programs: one object, whose `config` makes the key known.
#[test]
fn a_key_as_json() {
    let ended = watertight(&["key", "new", "app.one", "--tenant", "acme", "--json"]).exits(0);
    let made = ended.json();
    assert_eq!((ended.err.as_str(), &made["role"], &made["tenant"]), ("", &"caller".into(), &"acme".into()));
    let config = made["config"].as_str().unwrap();
    assert!(config.contains("[keys.\"app.one\"]") && config.contains(made["sha256"].as_str().unwrap()), "{config}");
    assert!(!config.contains(made["key"].as_str().unwrap()), "only its hash");
    let refused = watertight(&["key", "new", "not a name", "--json"]).exits(2);
    assert_eq!(refused.json()["error"]["error_code"], "INVALID_REQUEST");
}

#[test]
fn for_a_server_that_is_none() {
    let home = tempfile::tempdir().unwrap();
    let at = text(home.path());
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let no_list = serve_models("<html>hello</html>");
    for url in [format!("http://{closed}/v1"), no_list, "nonsense".to_owned()] {
        let ended = watertight(&["init", at, "--server", &url]).exits(2);
        assert!(ended.err.contains(&format!("--server {url}: ")), "{}", ended.err);
        assert!(!home.path().join("watertight.toml").exists(), "nothing half done");
    }
}
