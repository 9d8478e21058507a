//! Any sequence of acts on a journal gives what a naive list in memory gives, also when the file is closed and opened in between.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::support::*;
use crate::{
    journal::{
        journal::CheckDepth,
        query::{RunFilter, TenantScope},
        remove::Deletion,
    },
    model::{event::EventType, run::RunStatus},
    runtime::journal::{Acceptance, Ended, Journal as _},
};

#[derive(Debug, Clone)]
enum Act {
    Accept { run: u8, key: Option<u8>, request: u8 },
    Append { run: u8, lag: u8, size: u16 },
    Finish { run: u8 },
    TakeOver,
    Reopen,
    Delete { run: u8 },
}

fn act() -> impl Strategy<Value = Act> {
    let run = 0_u8..6;
    prop_oneof![
        3 => (run.clone(), prop::option::of(0_u8..3), 0_u8..2).prop_map(|(run, key, request)| Act::Accept { run, key, request }),
        6 => (run.clone(), prop_oneof![5 => Just(0_u8), 1 => 1_u8..3], 0_u16..3_000)
            .prop_map(|(run, lag, size)| Act::Append { run, lag, size }),
        2 => run.clone().prop_map(|run| Act::Finish { run }),
        1 => Just(Act::TakeOver),
        1 => Just(Act::Reopen),
        1 => run.prop_map(|run| Act::Delete { run }),
    ]
}

#[derive(Debug, Default)]
struct NaiveRun {
    generation: u64,
    events: u64,
    ended: Vec<Ended>,
    is_over: bool,
    key: Option<String>,
}

/// The journal as a list in memory.
#[derive(Debug, Default)]
struct Naive {
    runs: BTreeMap<String, NaiveRun>,
    keys: BTreeMap<String, (String, String)>,
}

async fn play(acts: Vec<Act>) {
    let place = Place::new();
    let mut journal = place.open();
    let mut naive = Naive::default();
    for act in acts {
        match act {
            Act::Accept { run, key, request } => {
                let run_id = format!("run-{run}");
                let (key, request) = (key.map(|key| format!("key-{key}")), format!("request-{request}"));
                let earlier = key.as_ref().and_then(|key| naive.keys.get(key));
                let wanted = match earlier {
                    Some((run_id, hash)) if *hash == request => Some(Acceptance::Replayed { run_id: run_id.clone() }),
                    Some((run_id, _)) => Some(Acceptance::Conflict { run_id: run_id.clone() }),
                    None if naive.runs.contains_key(&run_id) => None,
                    None => Some(Acceptance::New),
                };
                let mut accepted = place.run(&run_id);
                accepted.idempotency = key.as_ref().and_then(|key| promise(key, &request));
                assert_eq!(accept(&journal, accepted).await.ok(), wanted);
                if wanted == Some(Acceptance::New) {
                    if let Some(key) = &key {
                        naive.keys.insert(key.clone(), (run_id.clone(), request));
                    }
                    naive.runs.insert(run_id, NaiveRun { key, ..NaiveRun::default() });
                }
            }
            Act::Append { run, lag, size } => append_one(&journal, &mut naive, run, lag, size).await,
            Act::Finish { run } => finish_one(&journal, &mut naive, run).await,
            Act::TakeOver => take_over(&journal, &mut naive).await,
            Act::Reopen => {
                journal.close().await;
                journal = place.open();
            }
            Act::Delete { run } => {
                let run_id = format!("run-{run}");
                let deleted = journal.delete_run(TenantScope::All, &run_id).await.unwrap();
                match naive.runs.get(&run_id) {
                    None => assert_eq!(deleted, Deletion::NotFound),
                    Some(run) if !run.is_over => assert!(matches!(deleted, Deletion::NotOver(_)), "{deleted:?}"),
                    Some(_) => assert_eq!(deleted, Deletion::Done),
                }
                if deleted == Deletion::Done
                    && let Some(key) = naive.runs.remove(&run_id).unwrap().key
                {
                    naive.keys.remove(&key);
                }
            }
        }
    }
    take_over(&journal, &mut naive).await;
    for (run_id, run) in &naive.runs {
        let events = journal.events_after(run_id, 0, 1_000).await.unwrap();
        assert_eq!(events.iter().map(|event| event.id).collect::<Vec<_>>(), (1..=run.events).collect::<Vec<_>>());
        let record = journal.record(run_id).await.unwrap();
        let steps = record.map(|record| record.steps);
        let wanted = run.is_over.then(|| run.ended.iter().map(|ended| ended.record.clone()).collect::<Vec<_>>());
        assert_eq!(steps, wanted);
    }
    assert_eq!(journal.runs(RunFilter::of(TenantScope::All)).await.unwrap().runs.len(), naive.runs.len());
    assert_eq!(journal.check(CheckDepth::Full).await, Ok(vec![]));
}

async fn append_one(journal: &crate::journal::journal::SqliteJournal, naive: &mut Naive, run: u8, lag: u8, size: u16) {
    let run_id = format!("run-{run}");
    let Some(naive_run) = naive.runs.get_mut(&run_id) else {
        assert!(!append(journal, &run_id, 0, vec![event(&run_id, 1, EventType::RunStarted)]).await);
        return;
    };
    let generation = naive_run.generation.wrapping_sub(u64::from(lag));
    let ended = ended("draft", json!("x".repeat(size.into())));
    let entries = vec![
        end_entry("draft", json!("x".repeat(size.into()))),
        event(&run_id, naive_run.events + 1, EventType::StepFinished),
    ];
    let is_durable = append(journal, &run_id, generation, entries).await;
    assert_eq!(is_durable, lag == 0 && !naive_run.is_over);
    if is_durable {
        naive_run.events += 1;
        naive_run.ended.push(ended);
    }
}

async fn finish_one(journal: &crate::journal::journal::SqliteJournal, naive: &mut Naive, run: u8) {
    let run_id = format!("run-{run}");
    let Some(naive_run) = naive.runs.get_mut(&run_id).filter(|run| !run.is_over) else { return };
    let steps = naive_run.ended.iter().map(|ended| ended.record.clone()).collect();
    let entries = vec![
        event(&run_id, naive_run.events + 1, EventType::RunFinished),
        finished(record(&run_id, RunStatus::Completed, steps, T0)),
    ];
    assert!(append(journal, &run_id, naive_run.generation, entries).await);
    naive_run.events += 1;
    naive_run.is_over = true;
}

async fn take_over(journal: &crate::journal::journal::SqliteJournal, naive: &mut Naive) {
    let stored = journal.take_over().await.unwrap();
    let mut live: Vec<_> = naive.runs.iter_mut().filter(|(_, run)| !run.is_over).collect();
    assert_eq!(stored.len(), live.len());
    for (run_id, run) in &mut live {
        run.generation += 1;
        let given = stored.iter().find(|stored| stored.accepted.run_id == **run_id).unwrap();
        assert_eq!((given.generation, &given.ended), (run.generation, &run.ended));
        assert_eq!(given.events.len() as u64, run.events);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn a_journal_is_a_list_that_survives(acts in prop::collection::vec(act(), 1..60)) {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(play(acts));
    }
}
