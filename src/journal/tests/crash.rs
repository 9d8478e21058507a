//! `kill -9` at random moments: a child process writes as fast as it can and says what it was told is durable; the parent kills it and
//! looks. The child is this very test program, called again for the one test that writes when it is told where.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::json;

use super::support::*;
use crate::{
    journal::{
        journal::{CheckDepth, SqliteJournal},
        settings::JournalSettings,
    },
    model::{event::EventType, run::RunStatus},
    runtime::journal::Journal as _,
};

const KILLS: u64 = 12;
/// Tells the child where to write.
const PLACE: &str = "WATERTIGHT_TEST_JOURNAL";
/// Marks a line of the child that is meant for the parent.
const MARK: &str = "durable:";
const WRITERS: usize = 8;
const STEPS: u64 = 6;

/// In the usual run of all tests nobody says where, and this one has nothing to do.
#[tokio::test]
async fn child_that_is_killed() {
    let Ok(path) = std::env::var(PLACE) else { return };
    let wait = Duration::from_secs(10);
    let journal = SqliteJournal::open_after(JournalSettings::at(path), wait).unwrap();
    let began = std::process::id();
    let writers = (0..WRITERS).map(|writer| {
        let journal = &journal;
        async move {
            let place = Place::new();
            for round in 0.. {
                let run_id = format!("{began}-{writer}-{round}");
                accept(journal, place.run(&run_id)).await.unwrap();
                say(&run_id, 0);
                for id in 1..=STEPS {
                    let output = json!("x".repeat(usize::try_from(id * 400).unwrap()));
                    let entries = vec![end_entry("draft", output), event(&run_id, id, EventType::StepFinished)];
                    assert!(append(journal, &run_id, 0, entries).await);
                    say(&run_id, id);
                }
                let over = record(&run_id, RunStatus::Completed, vec![step("draft", json!(1))], T0);
                let entries = vec![event(&run_id, STEPS + 1, EventType::RunFinished), finished(over)];
                assert!(append(journal, &run_id, 0, entries).await);
                say(&run_id, STEPS + 1);
            }
        }
    });
    futures_util::future::join_all(writers).await;
}

/// One write, so that a line is there as a whole or not at all.
fn say(run_id: &str, id: u64) {
    let line = format!("\n{MARK} {run_id} {id}\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// Lets a child write for `life`, kills it, and gives back what it said is durable: the last event of each run.
fn write_and_die(path: &Path, life: Duration) -> BTreeMap<String, u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "journal::tests::crash::child_that_is_killed", "--nocapture", "--test-threads=1"])
        .env(PLACE, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut durable = BTreeMap::new();
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let Some(rest) = line.strip_prefix(MARK) else { continue };
            // The last line may have been cut by the kill.
            if let Some((run_id, id)) = rest.trim().split_once(' ')
                && let Ok(id) = id.parse::<u64>()
            {
                durable.insert(run_id.to_owned(), id);
            }
        }
        durable
    });
    let until = Instant::now() + life;
    while Instant::now() < until {
        assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

#[tokio::test]
async fn nothing_that_was_called_durable_is_lost_by_a_kill() {
    let place = Place::new();
    let mut chance = fastrand::Rng::with_seed(7);
    let mut total = 0;
    for kill in 0..KILLS {
        let life = Duration::from_millis(chance.u64(60..400));
        let durable = write_and_die(&place.path(), life);
        let journal = place.open();
        assert_eq!(journal.check(CheckDepth::Full).await, Ok(vec![]), "kill {kill}");
        for (run_id, said) in &durable {
            let events = journal.events_after(run_id, 0, 100).await.unwrap();
            let ids: Vec<u64> = events.iter().map(|event| event.id).collect();
            let last = ids.last().copied().unwrap_or(0);
            assert!(last >= *said, "kill {kill}: {run_id} lost events: {last} of {said}");
            assert_eq!(ids, (1..=last).collect::<Vec<_>>(), "kill {kill}: {run_id}");
            assert_eq!(journal.record(run_id).await.unwrap().is_some(), last == STEPS + 1);
        }
        for stored in journal.take_over().await.unwrap() {
            assert_eq!(stored.ended.len(), stored.events.len(), "what became durable together is there together");
        }
        total += durable.len();
        journal.close().await;
    }
    assert!(total > 0, "no child wrote anything");
}
