//! Runs: what is accepted is given back, once, to one owner; what is over is packed and complete; lists and scopes.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::*;
use crate::{
    journal::{
        journal::{CheckDepth, SqliteJournal},
        query::{RunFilter, TenantScope},
        remove::Deletion,
        row_cursor::{List, RowCursor},
    },
    model::{depth::VALUE_DEPTH_MAX, event::EventType, run::RunStatus},
    runtime::journal::{Acceptance, Journal as _, Origin, OriginKind},
};

fn acme() -> TenantScope {
    TenantScope::One(Some("acme".into()))
}

fn large(letter: &str) -> Value {
    json!({ "text": letter.repeat(5_000), "odd": ["\u{0}", "ß", null, 1.5, { "c": "v" }] })
}

#[tokio::test]
async fn what_is_accepted_is_given_back_after_a_restart() {
    let place = Place::new();
    let mut run = place.run("0196f7a0-0000-7000-8000-000000000001");
    run.input.insert("long".into(), large("x"));
    run.owner.user = Some("u".into());
    run.origin = Some(Origin {
        kind: OriginKind::Repair,
        run_id: "old".into(),
        from: None,
        again: ["draft".into()].into(),
        prompts: [("draft".into(), "shorter".into())].into(),
    });
    run.seeds = vec![ended("draft", large("y")), ended("review", json!(null))];
    run.idempotency = promise("key", "hash");
    let journal = place.open();
    assert_eq!(accept(&journal, run.clone()).await, Ok(Acceptance::New));
    let entries = vec![event(&run.run_id, 1, EventType::RunStarted), event(&run.run_id, 2, EventType::StepStarted)];
    assert!(append(&journal, &run.run_id, 0, entries).await);
    let entries = vec![end_entry("draft", large("z")), event(&run.run_id, 3, EventType::StepFinished)];
    assert!(append(&journal, &run.run_id, 0, entries).await);
    journal.close().await;

    let journal = place.open();
    let stored = journal.take_over().await.unwrap().pop().unwrap();
    let given = &stored.accepted;
    assert_eq!(given.run_id, run.run_id);
    assert_eq!((given.number, given.created_ms, given.deadline_ms), (run.number, run.created_ms, run.deadline_ms));
    assert_eq!((&given.owner, &given.input, &given.origin), (&run.owner, &run.input, &run.origin));
    assert_eq!((&given.seeds, &given.idempotency), (&run.seeds, &run.idempotency));
    assert_eq!(given.workflow.hash(), run.workflow.hash());
    assert_eq!((stored.generation, stored.started_ms), (1, Some(T0 + 2)));
    assert_eq!(stored.ended, [ended("draft", large("z"))]);
    assert_eq!(stored.events.iter().map(|event| event.id).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(journal.accepted(&run.run_id).await.unwrap().unwrap().input, run.input);
    assert_eq!(journal.check(CheckDepth::Full).await, Ok(vec![]));
}

/// Whatever is as deep as it may be is read again, with all that is written around it.
#[tokio::test]
async fn the_deepest_values_are_given_back() {
    // A list of outputs is one deeper than they are.
    let deepest = (0..VALUE_DEPTH_MAX).fold(json!(1), |inner, _| json!([inner]));
    let place = Place::new();
    let mut run = place.run("0196f7a0-0000-7000-8000-000000000001");
    run.input.insert("deep".into(), deepest.clone());
    run.seeds = vec![ended("draft", deepest.clone())];
    let journal = place.open();
    assert_eq!(accept(&journal, run.clone()).await, Ok(Acceptance::New));
    assert!(append(&journal, &run.run_id, 0, vec![end_entry("draft", deepest.clone())]).await);
    journal.close().await;

    let journal = place.open();
    let stored = journal.take_over().await.unwrap().pop().unwrap();
    assert_eq!((&stored.accepted.input, &stored.accepted.seeds), (&run.input, &run.seeds));
    assert_eq!(stored.ended, [ended("draft", deepest.clone())]);
    let record = record(&run.run_id, RunStatus::Completed, vec![step("draft", deepest)], T0 + 99);
    assert!(append(&journal, &run.run_id, 1, vec![finished(record.clone())]).await);
    assert_eq!(journal.record(&run.run_id).await, Ok(Some(record)));
}

#[tokio::test]
async fn an_earlier_owner_can_write_no_more() {
    let place = Place::new();
    let journal = place.open();
    accept(&journal, place.run("r")).await.unwrap();
    assert!(append(&journal, "r", 0, vec![event("r", 1, EventType::RunStarted)]).await);
    for generation in 1..4 {
        let stored = journal.take_over().await.unwrap();
        assert_eq!(stored[0].generation, generation);
        assert!(!append(&journal, "r", generation - 1, vec![event("r", 2, EventType::RunResumed)]).await);
    }
    assert!(append(&journal, "r", 3, vec![event("r", 2, EventType::RunResumed)]).await);
    assert_eq!(journal.events_after("r", 0, 10).await.unwrap().len(), 2);
    assert_eq!((journal.last_event("r").await, journal.last_event("none").await), (Ok(2), Ok(0)));
    assert!(!append(&journal, "nobody", 0, vec![event("nobody", 1, EventType::RunStarted)]).await);
}

#[tokio::test]
async fn a_run_that_is_over_is_packed_and_complete() {
    let place = Place::new();
    let journal = place.open();
    let mut run = place.run("r");
    run.input.insert("long".into(), large("i"));
    accept(&journal, run).await.unwrap();
    for id in 1..=5 {
        let output = end_entry("draft", large(&format!("{id}")));
        assert!(append(&journal, "r", 0, vec![output, event("r", id, EventType::StepStarted)]).await);
    }
    let record =
        record("r", RunStatus::Completed, vec![step("draft", large("1")), step("review", large("5"))], T0 + 99);
    assert_eq!(journal.record("r").await, Ok(None));
    let entries = vec![event("r", 6, EventType::RunFinished), finished(record.clone())];
    assert!(append(&journal, "r", 0, entries).await);
    assert_eq!(journal.record("r").await, Ok(Some(record)));
    for (after, max, ids) in [(0, 10, vec![1, 2, 3, 4, 5, 6]), (4, 10, vec![5, 6]), (2, 2, vec![3, 4]), (6, 10, vec![])]
    {
        let events = journal.events_after("r", after, max).await.unwrap();
        assert_eq!(events.iter().map(|event| event.id).collect::<Vec<_>>(), ids);
    }
    assert_eq!(journal.last_event("r").await, Ok(6));
    // Nothing is stored twice, and what only ends named is gone: outputs 1 and 5, and the input.
    let count = |sql: &'static str| {
        journal.ask(move |connection| Ok(connection.query_row(sql, [], |row| row.get::<_, i64>(0))?))
    };
    assert_eq!(count("SELECT count(*) FROM content").await, Ok(3));
    assert_eq!(count("SELECT count(*) FROM entry").await, Ok(0));
    // Over is over.
    assert!(!append(&journal, "r", 0, vec![event("r", 7, EventType::StepStarted)]).await);
    assert!(journal.take_over().await.unwrap().is_empty());
    assert_eq!(journal.delete_run(acme(), "r").await, Ok(Deletion::Done));
    assert_eq!(count("SELECT count(*) FROM content").await, Ok(0));
    assert_eq!(count("SELECT count(*) FROM run_content").await, Ok(0));
    assert_eq!(journal.events_after("r", 0, 10).await, Ok(vec![]));
}

/// What was deleted is said by no page of the file and by no line of its log, a moment later.
#[tokio::test]
async fn what_was_deleted_does_not_stay_in_the_file() {
    let place = Place::new();
    let journal = place.open();
    let stands = |bytes: &[u8]| {
        let files = std::fs::read_dir(place.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut texts = files.filter(|path| path.is_file()).map(|path| std::fs::read(path).unwrap_or_default());
        texts.any(|text| text.windows(bytes.len()).any(|part| part == bytes))
    };
    for run_id in ["a", "b"] {
        accept(&journal, place.run(run_id)).await.unwrap();
        let record = record(run_id, RunStatus::Completed, vec![step("draft", large(run_id))], T0);
        assert!(append(&journal, run_id, 0, vec![finished(record)]).await);
    }
    // As they lie there: packed, and whatever is long in pages of its own.
    let lying = async |sql: &'static str| {
        let rows = journal.ask(move |connection| {
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map([], |row| row.get::<_, Vec<u8>>(0))?.collect::<Result<Vec<_>, _>>()?;
            Ok(rows.into_iter().map(|bytes| bytes[8..bytes.len().min(200)].to_vec()).collect::<Vec<_>>())
        });
        rows.await.unwrap()
    };
    let (records, outputs) =
        (lying("SELECT record FROM story ORDER BY run").await, lying("SELECT body FROM content").await);
    assert_eq!((records.len(), outputs.len()), (2, 2));
    assert!(records.iter().chain(&outputs).all(|bytes| stands(bytes)), "they were written");
    assert_eq!(journal.delete_run(TenantScope::All, "a").await, Ok(Deletion::Done));
    let kept = lying("SELECT body FROM content").await;
    let began = std::time::Instant::now();
    let gone = outputs.iter().filter(|bytes| !kept.contains(bytes)).chain(&records[..1]);
    for bytes in gone {
        while stands(bytes) {
            assert!(began.elapsed().as_secs() < 60, "it still stands there");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    assert!(kept.len() == 1 && stands(&kept[0]) && stands(&records[1]), "the other one is nobody's to remove");
    journal.close().await;
}

#[tokio::test]
async fn the_same_output_of_many_runs_lies_there_once() {
    let place = Place::new();
    let journal = place.open();
    for run_id in ["a", "b"] {
        accept(&journal, place.run(run_id)).await.unwrap();
        let record = record(run_id, RunStatus::Completed, vec![step("draft", large("same"))], T0);
        assert!(append(&journal, run_id, 0, vec![finished(record)]).await);
    }
    let contents = || {
        journal
            .ask(|connection| Ok(connection.query_row("SELECT count(*) FROM content", [], |row| row.get::<_, i64>(0))?))
    };
    assert_eq!(contents().await, Ok(1));
    journal.delete_run(TenantScope::All, "a").await.unwrap();
    assert_eq!(journal.record("b").await.unwrap().unwrap().output, Some(large("same")));
    journal.delete_run(TenantScope::All, "b").await.unwrap();
    assert_eq!(contents().await, Ok(0));
}

#[tokio::test]
async fn a_promise_is_kept_for_its_time_and_within_its_tenant() {
    let place = Place::new();
    let journal = place.open();
    let asked = |run_id: &str, key: &str, request: &str, tenant: Option<&str>| {
        let mut run = place.run(run_id);
        run.idempotency = promise(key, request);
        run.owner.tenant = tenant.map(ToOwned::to_owned);
        run
    };
    let replayed = |run_id: &str| Ok(Acceptance::Replayed { run_id: run_id.to_owned() });
    assert_eq!(accept(&journal, asked("r1", "k", "x", Some("acme"))).await, Ok(Acceptance::New));
    assert_eq!(accept(&journal, asked("r2", "k", "x", Some("acme"))).await, replayed("r1"));
    assert_eq!(
        accept(&journal, asked("r2", "k", "y", Some("acme"))).await,
        Ok(Acceptance::Conflict { run_id: "r1".into() })
    );
    assert_eq!(accept(&journal, asked("r3", "k", "x", Some("other"))).await, Ok(Acceptance::New));
    assert_eq!(accept(&journal, asked("r4", "k", "x", None)).await, Ok(Acceptance::New));
    journal.close().await;
    let journal = place.open();
    assert_eq!(accept(&journal, asked("r5", "k", "x", Some("acme"))).await, replayed("r1"));
    place.pass_ms(24 * 3_600 * 1_000 + 1);
    assert_eq!(accept(&journal, asked("r5", "k", "x", Some("acme"))).await, Ok(Acceptance::New));
    journal.tidy().await.unwrap();
    assert_eq!(accept(&journal, asked("r6", "k", "x", Some("acme"))).await, replayed("r5"));
}

/// A run may go before the time of its key is over; the same request is still the same run, so that nobody pays for it twice.
#[tokio::test]
async fn a_promise_outlives_a_run_that_is_kept_shorter() {
    let place = Place::new();
    let mut settings = place.settings();
    settings.retention.completed = Some(Duration::from_secs(1));
    let journal = SqliteJournal::open(settings).unwrap();
    let asked = |run_id: &str| {
        let mut run = place.run(run_id);
        run.idempotency = promise("k", "x");
        run
    };
    whole_run(&place, &journal, asked("r1"), RunStatus::Completed).await;
    place.pass_ms(2_000);
    journal.tidy().await.unwrap();
    assert_eq!(journal.record("r1").await, Ok(None));
    assert_eq!(accept(&journal, asked("r2")).await, Ok(Acceptance::Replayed { run_id: "r1".to_owned() }));
    place.pass_ms(24 * 3_600 * 1_000);
    whole_run(&place, &journal, asked("r3"), RunStatus::Completed).await;
    // One that somebody deletes takes its promise with it.
    assert_eq!(journal.delete_run(acme(), "r3").await, Ok(Deletion::Done));
    assert_eq!(accept(&journal, asked("r4")).await, Ok(Acceptance::New));
}

#[tokio::test]
async fn many_at_once_with_one_key_are_one_run() {
    let place = Place::new();
    let journal = place.open();
    let asked = (0..32).map(|number| {
        let mut run = place.run(&format!("r{number}"));
        run.idempotency = promise("k", "x");
        accept(&journal, run)
    });
    let answers = futures_util::future::join_all(asked).await;
    let new = answers.iter().filter(|answer| **answer == Ok(Acceptance::New)).count();
    assert_eq!(new, 1, "{answers:?}");
}

#[tokio::test]
async fn lists_are_paged_and_stay_within_their_scope() {
    let place = Place::new();
    let journal = place.open();
    for number in 0..25 {
        let mut run = place.run(&format!("run-{number}"));
        run.owner.tenant = Some(if number % 5 == 0 { "other" } else { "acme" }.to_owned());
        run.owner.feature = Some(if number % 2 == 0 { "chat" } else { "mail" }.to_owned());
        let status = if number % 3 == 0 { RunStatus::Failed } else { RunStatus::Completed };
        whole_run(&place, &journal, run, status).await;
        place.pass_ms(1_000);
    }
    let mut filter = RunFilter { count_max: 6, ..RunFilter::of(acme()) };
    let mut seen = Vec::new();
    loop {
        let page = journal.runs(filter.clone()).await.unwrap();
        assert!(page.runs.len() <= 6 && page.runs.iter().all(|run| run.tenant.as_deref() == Some("acme")));
        seen.extend(page.runs.into_iter().map(|run| run.run_id));
        let Some(next) = page.next else { break };
        filter.cursor = Some(RowCursor::parse(List::Runs, &next.to_string()).unwrap());
    }
    let wanted: Vec<String> =
        (0..25).rev().filter(|number| number % 5 != 0).map(|number| format!("run-{number}")).collect();
    assert_eq!(seen, wanted);

    let count = |filter: RunFilter| async { journal.runs(filter).await.unwrap().runs.len() };
    let all = || RunFilter::of(TenantScope::All);
    assert_eq!(count(all()).await, 25);
    assert_eq!(count(RunFilter::of(TenantScope::One(None))).await, 0);
    assert_eq!(count(RunFilter { statuses: vec![RunStatus::Failed], ..all() }).await, 9);
    assert_eq!(count(RunFilter { feature: Some("mail".into()), ..all() }).await, 12);
    assert_eq!(count(RunFilter { feature: Some("nobody".into()), ..all() }).await, 0);
    assert_eq!(count(RunFilter { workflow: Some("line".into()), ..all() }).await, 25);
    assert_eq!(count(RunFilter { workflow: Some("chat".into()), ..all() }).await, 0);
    assert_eq!(count(RunFilter { since_ms: Some(T0 + 20_000), ..all() }).await, 5);
    assert_eq!(count(RunFilter { until_ms: Some(T0 + 20_000), ..all() }).await, 20);
    for text in ["", "r1-", "r1-0", "r1-zz", "r1--1", "r1-01", "r1-ffffffffffffffffffff"] {
        assert_eq!(RowCursor::parse(List::Runs, text), None, "{text}");
    }

    let head = journal.head(acme(), "run-1").await.unwrap().unwrap();
    assert_eq!((head.summary.status, head.summary.workflow.as_str()), (RunStatus::Completed, "line"));
    assert_eq!(journal.head(TenantScope::One(Some("other".into())), "run-1").await, Ok(None));
    assert_eq!(journal.head(TenantScope::One(None), "run-1").await, Ok(None));
    assert_eq!(journal.head(acme(), "run-99").await, Ok(None));
}

#[tokio::test]
async fn a_live_runs_state_is_told_by_its_events() {
    let place = Place::new();
    let journal = place.open();
    accept(&journal, place.run("r")).await.unwrap();
    let mut id = 0;
    for (kind, status) in [
        (None, RunStatus::Queued),
        (Some(EventType::RunStarted), RunStatus::Running),
        (Some(EventType::RunParked), RunStatus::Parked),
        (Some(EventType::StepRefused), RunStatus::Parked),
        (Some(EventType::RunResumed), RunStatus::Running),
    ] {
        if let Some(kind) = kind {
            id += 1;
            assert!(append(&journal, "r", 0, vec![event("r", id, kind)]).await);
        }
        assert_eq!(journal.head(acme(), "r").await.unwrap().unwrap().summary.status, status);
    }
    assert_eq!(journal.delete_run(acme(), "r").await, Ok(Deletion::NotOver(RunStatus::Running)));
    assert_eq!(journal.delete_run(TenantScope::One(None), "r").await, Ok(Deletion::NotFound));
}
