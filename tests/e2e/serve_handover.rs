//! Successors that die or hang in each state of the exchange of the listening socket: their predecessor serves on, and never do two
//! processes have one journal.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::{net::UnixStream, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use watertight::{
    journal::{journal::SqliteJournal, settings::JournalSettings},
    serve::handover::take::take_over,
};

use crate::{
    process::BOUND,
    project::{folder, text},
    serve_end::{agents, quick_and, successor, wait_until},
    service::{ask, json_of, serve},
};

/// Whoever is silent for so long hangs.
const SILENCE: &str = "[serve]\nhandover_silence_max = \"1s\"\n";
/// Where the child finds the folder of the journal, and what it does once it has that.
const CHILD_FOLDER: &str = "WATERTIGHT_TEST_HANDOVER_FOLDER";
const CHILD_ACT: &str = "WATERTIGHT_TEST_HANDOVER_ACT";

/// It is stopped while it waits for the journal. Its predecessor serves again, and once it wakes it ends.
#[test]
fn a_successor_that_hangs_loses_the_service_and_ends_when_it_wakes() {
    let (agents, _) = agents();
    let project = folder(&[("watertight.toml", &(quick_and("slow", agents) + SILENCE))]);
    let (first, address) = serve(text(project.path()));
    // The journal is the first one's until this is sent.
    let mut sending = TcpStream::connect(address).unwrap();
    sending.set_read_timeout(Some(BOUND)).unwrap();
    let head = "POST /v1/files HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/octet-stream";
    write!(sending, "{head}\r\ncontent-length: 4\r\n\r\n12").unwrap();
    let second = successor(text(project.path()));
    second.signal("STOP");
    sending.write_all(b"34").unwrap();
    let mut sent = String::new();
    sending.read_to_string(&mut sent).unwrap();
    assert!(sent.starts_with("HTTP/1.1 201 "), "{sent}");
    let file = format!("/v1/files/{}", json_of(&sent)["file_id"].as_str().unwrap());
    let read = || ask(address, "GET", &file, "");
    assert!(read().ends_with("1234"));
    assert!(first.said().contains("the successor hangs") && !first.said().contains("killed"), "{}", first.said());
    second.signal("CONT");
    let ended = second.end().exits(2);
    assert!(ended.err.contains("has taken the service back"), "{}", ended.err);
    assert!(read().ends_with("1234"));
    let mut third = successor(text(project.path()));
    third.wait_for("journal: ");
    first.end().exits(0);
    third.signal("TERM");
    third.end().exits(0);
}

/// It has the journal and dies, or is silent: then it is killed, since nobody could serve as long as it holds that.
#[test]
fn a_successor_that_has_the_journal_does_not_keep_it_from_who_serves() {
    for (act, said) in [("dies", "is gone before it served"), ("hangs", "it was killed")] {
        let (agents, _) = agents();
        let config = quick_and("slow", agents) + SILENCE;
        let project = folder(&[("watertight.toml", &config)]);
        let (first, address) = serve(text(project.path()));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serve_handover::child_that_never_serves", "--nocapture"])
            .env(CHILD_FOLDER, project.path().join(".watertight"))
            .env(CHILD_ACT, act)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("it is back", || first.said().contains("this process goes on"));
        let listed = ask(address, "GET", "/v1/runs", "");
        assert!(listed.starts_with("HTTP/1.1 200 "), "{act}: {listed}");
        assert!(first.said().contains(said), "{act}: {}", first.said());
        let ended = child.wait().unwrap();
        assert_eq!(ended.signal(), (act == "hangs").then_some(9), "{act}: {ended:?}");
        first.signal("TERM");
        first.end().exits(0);
    }
}

/// The body of the process of the test above; without its environment there is nothing to do.
#[test]
fn child_that_never_serves() {
    let (Ok(folder), Ok(act)) = (std::env::var(CHILD_FOLDER), std::env::var(CHILD_ACT)) else { return };
    let folder = PathBuf::from(folder);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let journal = runtime.block_on(async {
        let address = "127.0.0.1:0".parse().unwrap();
        let mut taken = take_over(&folder.join("handover.sock"), address, BOUND).await.expect("it is handed over");
        assert!(taken.farewell.released(BOUND, std::future::ready(())).await);
        let journal = SqliteJournal::open_after(JournalSettings::at(folder.join("journal.db")), BOUND).unwrap();
        (journal, taken)
    });
    if act == "hangs" {
        // The only thread that could say that it lives.
        std::thread::sleep(BOUND);
    }
    drop(journal);
}

/// Before the socket is taken nothing has happened, whether it dies or hangs.
#[test]
fn a_successor_that_does_not_take_the_socket_changes_nothing() {
    let (agents, _) = agents();
    let project = folder(&[("watertight.toml", &quick_and("slow", agents))]);
    let (first, address) = serve(text(project.path()));
    let socket = project.path().join(".watertight/handover.sock");
    let asks = |words: &[u8], answer_bytes: usize| {
        let mut stream = connected(&socket);
        stream.write_all(words).unwrap();
        stream.read_exact(&mut vec![0; answer_bytes]).unwrap();
        let listed = ask(address, "GET", "/v1/runs", "");
        assert!(listed.starts_with("HTTP/1.1 200 "), "{listed}");
        stream
    };
    // Each waits for the one before it: the offer is one.
    drop(asks(b"", 0));
    drop(asks(b"\x03A\x0b127.0.0.1", 0));
    drop(asks(b"\x03A\x0b127.0.0.1:0", 2));
    let hangs = asks(b"\x03A\x0b127.0.0.1:0", 2);
    assert!(!first.said().contains("successor has taken over"), "{}", first.said());
    first.signal("TERM");
    first.end().exits(0);
    drop(hangs);
}

#[track_caller]
fn connected(socket: &Path) -> UnixStream {
    let began = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => {
                stream.set_read_timeout(Some(BOUND)).unwrap();
                return stream;
            }
            Err(error) => assert!(began.elapsed() < BOUND, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
