//! What happens when the disk, the file or another process refuses: clear errors, nothing lost that was kept, nothing said too early.

use std::{
    fs,
    io::{Seek as _, SeekFrom, Write as _},
    os::unix::fs::PermissionsExt as _,
    time::Duration,
};

use serde_json::json;

use super::support::*;
use crate::{
    journal::{
        files::{store::FileSettings, store::FileStore},
        health::Health,
        journal::{CheckDepth, SqliteJournal},
        query::{RunFilter, TenantScope},
        settings::{JournalSettings, Survives},
    },
    model::{event::EventType, run::RunStatus},
    runtime::journal::{Acceptance, Journal as _, JournalError},
};

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_second_process_is_refused_by_name_and_may_wait() {
    let place = Place::new();
    let journal = place.open();
    let Err(JournalError::Held(text)) = SqliteJournal::open(place.settings()) else { panic!("held twice") };
    assert!(text.contains(&format!("pid {} started_ms ", std::process::id())), "{text}");
    let settings = place.settings();
    let successor = tokio::task::spawn_blocking(move || SqliteJournal::open_after(settings, PATIENCE));
    accept(&journal, place.run("r")).await.unwrap();
    for name in ["journal.db", "journal.db-wal", "journal.db-shm"] {
        let mode = fs::metadata(place.folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    journal.close().await;
    let successor = successor.await.unwrap().unwrap();
    assert_eq!(successor.take_over().await.unwrap().len(), 1);
    // What was closed refuses, and never says that something is durable.
    assert_eq!(accept(&journal, place.run("late")).await, Err(JournalError::Closed));
    assert!(!append(&journal, "r", 0, vec![event("r", 1, EventType::RunStarted)]).await);
    assert_eq!(journal.health().health, Health::Closed);
}

#[tokio::test]
async fn files_of_others_and_of_the_future_are_refused() {
    let place = Place::new();
    // Whoever is about to take it over hears the same before.
    let ahead = || SqliteJournal::look_ahead(&place.settings());
    assert_eq!(ahead(), Ok(()), "nothing is there yet");
    fs::write(place.path(), "this is a text and no database, though it is long enough to be one".repeat(100)).unwrap();
    let refused = SqliteJournal::open(place.settings()).unwrap_err();
    assert!(matches!(&refused, JournalError::Corrupt(text) if text.contains("journal.db")), "{refused}");
    assert_eq!(ahead(), Err(refused));

    fs::remove_file(place.path()).unwrap();
    rusqlite::Connection::open(place.path()).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let refused = SqliteJournal::open(place.settings()).unwrap_err();
    assert!(matches!(&refused, JournalError::Corrupt(text) if text.contains("another program")), "{refused}");
    assert_eq!(ahead(), Err(refused));

    fs::remove_file(place.path()).unwrap();
    let held = place.open();
    assert_eq!(ahead(), Ok(()), "somebody still holds it");
    held.close().await;
    rusqlite::Connection::open(place.path()).unwrap().execute_batch("PRAGMA user_version = 999").unwrap();
    let refused = SqliteJournal::open(place.settings()).unwrap_err();
    assert!(
        matches!(&refused, JournalError::Failed(text) if text.contains("version 999 of a newer program")),
        "{refused}"
    );
    assert_eq!(ahead(), Err(refused));

    let nowhere = JournalSettings::at("/proc/none/journal.db");
    assert!(matches!(SqliteJournal::open(nowhere), Err(JournalError::Failed(_))));
}

/// A file that is full refuses new runs while those under way still end; room that is made is used.
#[tokio::test]
async fn a_full_file_refuses_clearly_and_recovers() {
    let place = Place::new();
    let settings = JournalSettings { size_max: Some(1024 * 1024), ..place.settings() };
    let journal = SqliteJournal::open(settings).unwrap();
    let noise = |seed: usize| {
        let text: Vec<String> = (0..200).map(|place| crate::model::hex::hex(&sha(&[seed, place]))).collect();
        json!(text.concat())
    };
    accept(&journal, place.run("live")).await.unwrap();
    let mut accepted = Vec::new();
    let refusal = loop {
        let run_id = format!("run-{}", accepted.len());
        let mut run = place.run(&run_id);
        run.input.insert("noise".into(), noise(accepted.len()));
        match accept(&journal, run).await {
            Ok(_) => accepted.push(run_id),
            Err(error) => break error,
        }
        assert!(accepted.len() < 1_000, "it never gets full");
    };
    assert!(matches!(refusal, JournalError::Full(_)), "{refusal}");
    assert_eq!((journal.health().is_nearly_full, journal.refuses()), (true, None), "it says why");
    // The run that is under way can still end: room was kept for it.
    assert!(append(&journal, "live", 0, vec![event("live", 1, EventType::RunStarted)]).await);

    // Until that is used up too: then entries wait, and nobody is told that they are durable.
    let mut written = 1;
    let waiting = loop {
        written += 1;
        let entries =
            vec![end_entry("draft", noise(10_000 + written)), event("live", written as u64, EventType::StepFinished)];
        let mut durable = append_later(&journal, "live", 0, entries);
        if tokio::time::timeout(Duration::from_millis(300), &mut durable).await.is_err() {
            break durable;
        }
        assert!(written < 1_000, "it never gets full");
    };
    let later = append_later(&journal, "live", 0, vec![event("live", written as u64 + 1, EventType::StepStarted)]);
    let health = journal.health();
    assert!(matches!(health.health, Health::Failing { error: JournalError::Full(_), .. }), "{health:?}");
    assert!(health.waiting_bytes > 0 && health.dropped == 0);
    assert!(journal.refuses().is_some_and(|why| why.starts_with("the journal is full")));
    assert!(matches!(accept(&journal, place.run("new")).await, Err(JournalError::Full(_))));
    // Queries answer meanwhile.
    assert_eq!(journal.runs(RunFilter::of(TenantScope::All)).await.unwrap().runs.len(), 100.min(accepted.len() + 1));

    // Runs that nobody needs end and go: the room is found by itself.
    let mut settings = place.settings();
    settings.path = journal.settings().path.clone();
    let side = rusqlite::Connection::open(&settings.path).unwrap();
    side.busy_timeout(PATIENCE).unwrap();
    side.execute_batch("DELETE FROM content WHERE content IN (SELECT content FROM content ORDER BY content LIMIT 20)")
        .unwrap();
    drop(side);
    tokio::time::timeout(PATIENCE, waiting).await.expect("tried again").unwrap();
    tokio::time::timeout(PATIENCE, later).await.expect("tried again").unwrap();
    assert_eq!(journal.health().health, Health::Good);
    let ids: Vec<u64> = journal.events_after("live", 0, 10_000).await.unwrap().iter().map(|event| event.id).collect();
    assert_eq!(ids, (1..=written as u64 + 1).collect::<Vec<_>>());
}

/// What was taken and what was made free shows when it is done, and not when something else is written.
#[tokio::test]
async fn room_shows_as_soon_as_it_changes() {
    let place = Place::new();
    let settings = JournalSettings { size_max: Some(1024 * 1024), ..place.settings() };
    let journal = SqliteJournal::open(settings).unwrap();
    let mut accepted = Vec::new();
    while !journal.health().is_nearly_full {
        let run_id = format!("run-{}", accepted.len());
        let mut run = place.run(&run_id);
        let text: Vec<String> = (0..200).map(|part| crate::model::hex::hex(&sha(&[accepted.len(), part]))).collect();
        run.input.insert("noise".into(), json!(text.concat()));
        accept(&journal, run).await.expect("what is told to be free is free");
        accepted.push(run_id);
        assert!(accepted.len() < 1_000, "it never gets full");
    }
    assert!(matches!(accept(&journal, place.run("one more")).await, Err(JournalError::Full(_))));
    for run_id in accepted.iter().take(10) {
        let record = record(run_id, RunStatus::Completed, Vec::new(), T0);
        assert!(append(&journal, run_id, 0, vec![event(run_id, 1, EventType::RunFinished), finished(record)]).await);
        journal.delete_run(TenantScope::All, run_id).await.unwrap();
    }
    assert!(!journal.health().is_nearly_full);
    accept(&journal, place.run("one more")).await.unwrap();
}

/// Nobody sends anything to a service that says it cannot write: that it can again is found without it.
#[tokio::test]
async fn a_disk_that_takes_writes_again_is_noticed_though_nobody_writes() {
    let place = Place::new();
    let journal = place.open();
    let away = place.folder.path().join("away.db");
    fs::rename(place.path(), &away).unwrap();
    assert!(accept(&journal, place.run("r")).await.is_err());
    let is_failing = || matches!(journal.health().health, Health::Failing { .. });
    assert!(is_failing());
    fs::rename(&away, place.path()).unwrap();
    let found = async {
        while is_failing() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("it is never looked");
    accept(&journal, place.run("r")).await.unwrap();
}

fn sha(numbers: &[usize]) -> [u8; 32] {
    use sha2::Digest as _;
    sha2::Sha256::digest(format!("{numbers:?}")).into()
}

#[tokio::test]
async fn a_file_that_is_taken_away_is_noticed_and_may_come_back() {
    let place = Place::new();
    let journal = place.open();
    accept(&journal, place.run("r")).await.unwrap();
    let away = place.folder.path().join("away.db");
    fs::rename(place.path(), &away).unwrap();
    let refused = accept(&journal, place.run("s")).await;
    assert!(
        matches!(&refused, Err(JournalError::Failed(text)) if text.contains("was removed or replaced")),
        "{refused:?}"
    );
    let mut durable = append_later(&journal, "r", 0, vec![event("r", 1, EventType::RunStarted)]);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut durable).await.is_err());
    fs::rename(&away, place.path()).unwrap();
    tokio::time::timeout(PATIENCE, durable).await.expect("tried again").unwrap();
    assert_eq!(accept(&journal, place.run("s")).await, Ok(Acceptance::New));
}

#[tokio::test]
async fn a_lock_of_somebody_else_is_waited_for() {
    let place = Place::new();
    let journal = place.open();
    accept(&journal, place.run("r")).await.unwrap();
    let other = rusqlite::Connection::open(place.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE; INSERT INTO name (text) VALUES ('held')").unwrap();
    let mut durable = append_later(&journal, "r", 0, vec![event("r", 1, EventType::RunStarted)]);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut durable).await.is_err());
    assert_eq!(journal.events_after("r", 0, 10).await, Ok(vec![]));
    other.execute_batch("ROLLBACK").unwrap();
    tokio::time::timeout(PATIENCE, durable).await.expect("tried again").unwrap();
}

#[tokio::test]
async fn whatever_leads_to_a_journal_leads_to_its_lock() {
    let place = Place::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let at = |name: &str| JournalSettings::at(elsewhere.path().join(name));
    // The link leads nowhere yet: whoever opens it makes the file at its end.
    std::os::unix::fs::symlink(place.path(), elsewhere.path().join("link.db")).unwrap();
    let through_link = SqliteJournal::open(at("link.db")).unwrap();
    assert!(matches!(SqliteJournal::open(place.settings()), Err(JournalError::Held(_))));
    accept(&through_link, place.run("r")).await.unwrap();
    through_link.close().await;
    let journal = place.open();
    assert!(journal.accepted("r").await.unwrap().is_some(), "one file, whichever way");
    let second = SqliteJournal::open(at("link.db"));
    assert!(matches!(&second, Err(JournalError::Held(text)) if text.contains("pid ")), "{second:?}");
    fs::hard_link(place.path(), elsewhere.path().join("twin.db")).unwrap();
    let twin = SqliteJournal::open(at("twin.db"));
    assert!(matches!(&twin, Err(JournalError::Failed(text)) if text.contains("2 names")), "{twin:?}");
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_told() {
    let place = Place::new();
    place.open().close().await;
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o444)).unwrap();
    // Who may write everything is not refused by permissions; there the file is merely opened.
    match SqliteJournal::open(place.settings()) {
        Ok(journal) => journal.close().await,
        Err(error) => assert!(matches!(error, JournalError::Failed(_)), "{error}"),
    }
}

#[tokio::test]
async fn damage_is_found_and_never_panics() {
    let place = Place::new();
    let journal = place.open();
    for number in 0..50 {
        let mut run = place.run(&format!("run-{number}"));
        run.input.insert("long".into(), json!("x".repeat(3_000)));
        whole_run(&place, &journal, run, RunStatus::Completed).await;
    }
    accept(&journal, place.run("live")).await.unwrap();
    journal.close().await;
    let whole = fs::read(place.path()).unwrap();
    let mut found = 0;
    for place_of_damage in (0..whole.len()).step_by(whole.len() / 60) {
        let mut file = fs::OpenOptions::new().write(true).open(place.path()).unwrap();
        file.write_all(&whole).unwrap();
        file.seek(SeekFrom::Start(place_of_damage as u64)).unwrap();
        file.write_all(&[0xA5; 64][..64.min(whole.len() - place_of_damage)]).unwrap();
        drop(file);
        let Ok(journal) = SqliteJournal::open(place.settings()) else {
            found += 1;
            continue;
        };
        let checked = journal.check(CheckDepth::Full).await;
        let is_clean = matches!(&checked, Ok(lines) if lines.is_empty());
        let mut is_found = !is_clean;
        // Whatever is answered, it is an answer; and a record that is given is the one that was written.
        let _ = (journal.take_over().await, accept(&journal, place.run("new")).await);
        for number in 0..50 {
            let run_id = format!("run-{number}");
            let written = record(&run_id, RunStatus::Completed, vec![step("draft", json!("text"))], T0);
            match journal.record(&run_id).await {
                Ok(Some(record)) => assert_eq!(record, written),
                Ok(None) => assert!(!is_clean, "{run_id} is gone and nothing is said of it"),
                Err(_) => is_found = true,
            }
        }
        found += usize::from(is_found);
        journal.close().await;
    }
    assert!(found >= 5, "{found}");
    for bytes in [0, 1, 100, 4_096, whole.len() / 2] {
        fs::write(place.path(), &whole[..bytes]).unwrap();
        if let Ok(journal) = SqliteJournal::open(place.settings()) {
            let _ = (
                journal.take_over().await,
                accept(&journal, place.run("new")).await,
                journal.check(CheckDepth::Quick).await,
            );
            journal.close().await;
        }
    }
}

#[tokio::test]
async fn a_run_that_cannot_be_read_ends_and_holds_nobody_up() {
    let place = Place::new();
    let journal = place.open();
    for run_id in ["bad", "good"] {
        accept(&journal, place.run(run_id)).await.unwrap();
        assert!(append(&journal, run_id, 0, vec![event(run_id, 1, EventType::RunStarted)]).await);
    }
    journal.close().await;
    let side = rusqlite::Connection::open(place.path()).unwrap();
    side.execute_batch("UPDATE story SET accepted = x'00FF' WHERE run = 1").unwrap();
    drop(side);
    let journal = place.open();
    let stored = journal.take_over().await.unwrap();
    assert_eq!(stored.iter().map(|run| run.accepted.run_id.as_str()).collect::<Vec<_>>(), ["good"]);
    let record = journal.record("bad").await.unwrap().unwrap();
    assert_eq!((record.status, record.error.unwrap().http_status), (RunStatus::Failed, 500));
    let events = journal.events_after("bad", 0, 10).await.unwrap();
    assert_eq!(
        events.iter().map(|event| (event.id, event.kind)).collect::<Vec<_>>(),
        [(1, EventType::RunStarted), (2, EventType::RunFinished)]
    );
}

#[tokio::test]
async fn one_entry_that_can_never_be_written_does_not_hold_up_the_others() {
    let place = Place::new();
    let journal = place.open();
    // Two runs with one id: the second breaks a rule of the file.
    let answers =
        futures_util::future::join_all(["a", "b", "a", "c"].map(|run_id| accept(&journal, place.run(run_id)))).await;
    assert_eq!(answers.iter().filter(|answer| **answer == Ok(Acceptance::New)).count(), 3, "{answers:?}");
    assert!(matches!(&answers[2], Err(JournalError::Failed(text)) if text.contains("UNIQUE")), "{answers:?}");
    assert_eq!(journal.health().health, Health::Good);
}

#[tokio::test]
async fn the_log_stays_bounded_and_power_can_be_asked_for() {
    let place = Place::new();
    let journal = SqliteJournal::open(JournalSettings { survives: Survives::Power, ..place.settings() }).unwrap();
    let store = FileStore::new(journal.clone(), FileSettings::default());
    let mut upload = store.upload(None, "a").await.unwrap();
    upload.write(b"safe").await.unwrap();
    upload.finish().await.unwrap();
    for number in 0..300 {
        let mut run = place.run(&format!("run-{number}"));
        let text: Vec<String> = (0..2_000).map(|place| crate::model::hex::hex(&sha(&[number, place]))).collect();
        run.input.insert("noise".into(), json!(text.concat()));
        accept(&journal, run).await.unwrap();
    }
    let log = fs::metadata(place.folder.path().join("journal.db-wal")).unwrap().len();
    assert!(log < 20 * 1024 * 1024, "{log}");
}
