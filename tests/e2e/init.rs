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
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut buffer = [0; 4_096];
            let read = socket.read(&mut buffer).unwrap_or_default();
            let asked = String::from_utf8_lossy(&buffer[..read]).into_owned();
            let (status, body) =
                if asked.starts_with("GET /v1/models ") { ("200 OK", models) } else { ("404 Not Found", "{}") };
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
