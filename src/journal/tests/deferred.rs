//! The deferred queue in the file: its bounds, its one owner, its ends, and what a kill leaves of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use serde_json::json;

use super::support::*;
use crate::{
    journal::{
        deferred::look::{Cancelling, DeferredFilter},
        journal::{CheckDepth, SqliteJournal},
        query::TenantScope,
        remove::Deletion,
        settings::JournalSettings,
    },
    model::{
        envelope::{Envelope, ErrorCode},
        run::{Cause, RunStatus},
    },
    runtime::{
        deferred::store::{
            Again, DeferredCall, DeferredHead, DeferredResult, DeferredStatus, DeferredStore as _, DeferredWork,
            DeliveryStatus, Held, Lease, PushSettled, Put, QueueBounds, Settled, Taken,
        },
        journal::RunOwner,
    },
};

const BOUNDS: QueueBounds = QueueBounds { entries_max: 6, tenant_entries_max: 4 };
const MINUTE_MS: u64 = 60_000;

fn call(id: &str, tenant: &str) -> DeferredCall {
    let head = DeferredHead {
        id: id.to_owned(),
        agent: "draft".to_owned(),
        owner: RunOwner { tenant: Some(tenant.to_owned()), feature: Some("batch".to_owned()), ..RunOwner::default() },
        idempotency_key: format!("key-{id}"),
        request_hash: Some(format!("hash-{id}")),
        run_id: None,
        step: None,
        cause: Cause::Budget,
        error: Envelope::new(ErrorCode::TokenBudgetExhausted, "used up"),
        created_ms: T0,
        due_ms: T0 + 5 * MINUTE_MS,
        expires_ms: T0 + 60 * MINUTE_MS,
        pushed: false,
    };
    DeferredCall { head, work: DeferredWork::Input { input: json!({ "notes": id }), prompt: None } }
}

/// The same with another head.
fn with(call: DeferredCall, change: impl FnOnce(&mut DeferredHead)) -> DeferredCall {
    let mut call = call;
    change(&mut call.head);
    call
}

fn lease(owner: &str, now_ms: u64, count_max: usize) -> Lease {
    Lease { owner: owner.to_owned(), now_ms, until_ms: now_ms + MINUTE_MS, count_max, held: Held::default() }
}

fn done(output: serde_json::Value, at_ms: u64) -> Settled {
    let result = DeferredResult { output: Some(output), usage: None, target: Some("local".to_owned()), error: None };
    Settled::Ended { status: DeferredStatus::Done, sent: 1, result: Box::new(result), at_ms }
}

fn ids(taken: &[Taken]) -> Vec<&str> {
    taken.iter().map(|taken| taken.call.head.id.as_str()).collect()
}

fn of(tenant: &str) -> TenantScope {
    TenantScope::One(Some(tenant.to_owned()))
}

fn all_of(scope: TenantScope) -> DeferredFilter {
    DeferredFilter { scope, status: None, before: None, count_max: 100 }
}

#[tokio::test]
async fn bounds_hold_in_all_and_for_each_tenant() {
    let place = Place::new();
    let journal = place.open();
    for number in 0..4 {
        assert_eq!(journal.put(call(&format!("a{number}"), "acme"), BOUNDS).await, Ok(Put::New));
    }
    let full = Put::Full { bound: "deferred of this tenant" };
    assert_eq!(journal.put(call("a4", "acme"), BOUNDS).await, Ok(full));
    assert_eq!(journal.put(call("b0", "bolt"), BOUNDS).await, Ok(Put::New));
    assert_eq!(journal.put(call("b1", "bolt"), BOUNDS).await, Ok(Put::New));
    assert_eq!(journal.put(call("b2", "bolt"), BOUNDS).await, Ok(Put::Full { bound: "deferred" }));
    // Known ones come back even where nothing new fits; another request under their key does not.
    let Ok(Put::Known(ticket)) = journal.put(call("a1", "acme"), BOUNDS).await else { panic!() };
    assert_eq!((ticket.id.as_str(), ticket.due_ms), ("a1", T0 + 5 * MINUTE_MS));
    let other = with(call("a1", "acme"), |head| head.request_hash = Some("another".to_owned()));
    assert_eq!(journal.put(other, BOUNDS).await, Ok(Put::Conflict));
    assert_eq!(journal.deferred_waiting().await, Ok(6));
    // One that ends makes room.
    assert_eq!(journal.cancel_deferred(of("acme"), "a0").await, Ok(Cancelling::Done));
    assert_eq!(journal.put(call("b2", "bolt"), BOUNDS).await, Ok(Put::New));
}

#[tokio::test]
async fn a_due_entry_has_one_owner_and_each_lease_a_generation() {
    let place = Place::new();
    let journal = place.open();
    for id in ["late", "soon"] {
        let due_ms = T0 + if id == "soon" { 1_000 } else { 9_000 };
        journal.put(with(call(id, "acme"), |head| head.due_ms = due_ms), BOUNDS).await.unwrap();
    }
    let early = journal.take_due(lease("one", T0, 10)).await.unwrap();
    assert!(early.taken.is_empty());
    assert_eq!((early.waiting, early.next_ms), (2, Some(T0 + 1_000)));
    let due = journal.take_due(lease("one", T0 + 10_000, 10)).await.unwrap();
    assert_eq!(ids(&due.taken), ["soon", "late"], "the longest due first");
    assert_eq!(due.taken[0].generation, 1);
    assert!(journal.take_due(lease("two", T0 + 10_000, 10)).await.unwrap().taken.is_empty());
    // When the lease is over another one takes it, and the first owner's end changes nothing.
    let again = journal.take_due(lease("two", T0 + 10_000 + MINUTE_MS, 1)).await.unwrap();
    assert_eq!((ids(&again.taken), again.taken[0].generation), (vec!["soon"], 2));
    assert_eq!(journal.settle("soon", 1, done(json!("old"), T0)).await, Ok(false));
    assert_eq!(journal.settle("soon", 2, done(json!("new"), T0 + 1)).await, Ok(true));
    assert_eq!(journal.settle("soon", 2, done(json!("twice"), T0 + 1)).await, Ok(false));
    let entry = journal.deferred(of("acme"), "soon").await.unwrap().unwrap();
    assert_eq!((entry.status, entry.attempts), (DeferredStatus::Done, 1));
    assert_eq!(entry.result.unwrap().output, Some(json!("new")));
    // A new life takes over what the old one had in hand, without waiting for its lease.
    assert_eq!(journal.take_over("three").await, Ok(1));
    let taken = journal.take_due(lease("three", T0 + 10_000, 10)).await.unwrap().taken;
    assert_eq!(ids(&taken), ["late"]);
    assert_eq!(journal.settle("late", 1, done(json!("ghost"), T0)).await, Ok(false));
}

/// Two thousand calls of one tenant: the other's are made in turn with them, however much later they were put off.
#[tokio::test]
async fn who_put_off_much_does_not_stand_before_who_put_off_little() {
    const MANY: u64 = 2_000;
    let place = Place::new();
    let journal = place.open();
    let bounds = QueueBounds { entries_max: 3 * MANY, tenant_entries_max: MANY };
    let puts = (0..MANY).map(|number| journal.put(call(&format!("a{number}"), "acme"), bounds));
    assert!(futures_util::future::join_all(puts).await.iter().all(|put| *put == Ok(Put::New)));
    assert_eq!(journal.put(call("one more", "acme"), bounds).await, Ok(Put::Full { bound: "deferred of this tenant" }));
    for (number, tenant) in [(0, "bolt"), (1, "bolt"), (0, "cord")] {
        let late = with(call(&format!("{tenant}{number}"), tenant), |head| head.due_ms += MINUTE_MS);
        assert_eq!(journal.put(late, bounds).await, Ok(Put::New));
    }
    let mut now_ms = T0 + 7 * MINUTE_MS;
    let mut made = Vec::new();
    // One at a time, as where there is room for one.
    for _ in 0..6 {
        let due = journal.take_due(lease("one", now_ms, 1)).await.unwrap();
        let taken = &due.taken[0];
        made.push(taken.call.head.owner.tenant.clone().unwrap());
        assert_eq!(journal.settle(&taken.call.head.id, taken.generation, done(json!(1), now_ms)).await, Ok(true));
        now_ms += 1;
    }
    assert_eq!(made, ["acme", "bolt", "cord", "acme", "bolt", "acme"]);
    // Many at once.
    journal.put(with(call("cord1", "cord"), |head| head.due_ms = now_ms), bounds).await.unwrap();
    let taken = journal.take_due(lease("one", now_ms, 4)).await.unwrap().taken;
    let tenants: Vec<_> = taken.iter().map(|taken| taken.call.head.owner.tenant.as_deref().unwrap()).collect();
    assert_eq!(tenants, ["cord", "acme", "acme", "acme"]);
}

/// Calls that hang keep their places for long: one agent or one tenant is not given all of them.
#[tokio::test]
async fn one_place_stays_free_for_another_agent_and_another_tenant() {
    let place = Place::new();
    let journal = place.open();
    let bounds = QueueBounds { entries_max: 100, tenant_entries_max: 100 };
    let entries = [
        ("x0", "acme", "bad"),
        ("x1", "acme", "bad"),
        ("x2", "acme", "bad"),
        ("x3", "acme", "bad"),
        ("y0", "acme", "good"),
        ("y1", "acme", "good"),
        ("z0", "bolt", "bad"),
        ("z1", "bolt", "good"),
    ];
    for (number, (id, tenant, agent)) in (0..).zip(entries) {
        let call = with(call(id, tenant), |head| {
            head.agent = agent.to_owned();
            head.due_ms = T0 + number;
        });
        assert_eq!(journal.put(call, bounds).await, Ok(Put::New));
    }
    let take = async |held: &[(&str, &str)], count_max: usize| {
        let calls = held.iter().map(|(agent, tenant)| ((*agent).to_owned(), Some((*tenant).to_owned()))).collect();
        let held = Held { calls, of_one_max: 3 };
        let due = journal.take_due(Lease { held, ..lease("one", T0 + MINUTE_MS, count_max) }).await.unwrap();
        (ids(&due.taken).join(" "), due.next_ms)
    };
    assert_eq!(take(&[], 4).await, ("x0 z0 x1 z1".to_owned(), Some(T0 + 4)), "turns, and room for no more");
    // The last one has ended.
    let mut hand = vec![("bad", "acme"), ("bad", "bolt"), ("bad", "acme")];
    let next = take(&hand, 1).await;
    assert_eq!(next, ("y0".to_owned(), None), "whoever has three is passed over, and no reason to look again at once");
    hand.push(("good", "acme"));
    assert_eq!(take(&hand, 5).await, (String::new(), None), "the tenant has three, and so has the agent");
    // One of them ends.
    hand.remove(0);
    assert_eq!(take(&hand, 1).await.0, "x2");
}

/// What a run put off goes with it, when somebody wants the run gone.
#[tokio::test]
async fn what_a_deleted_run_put_off_is_not_made_and_not_told() {
    let place = Place::new();
    let journal = place.open();
    for run_id in ["r1", "r2"] {
        accept(&journal, place.run(run_id)).await.unwrap();
        let record = record(run_id, RunStatus::CompletedDegraded, vec![step("draft", json!(1))], T0);
        assert!(append(&journal, run_id, 0, vec![finished(record)]).await);
    }
    let of_run = |id: &str, run_id: Option<&str>| {
        with(call(id, "acme"), |head| {
            (head.run_id, head.pushed, head.due_ms) = (run_id.map(str::to_owned), true, T0);
        })
    };
    for (id, run_id) in [("done", Some("r1")), ("in-hand", Some("r1")), ("waits", Some("r1")), ("other", None)] {
        assert_eq!(journal.put(of_run(id, run_id), BOUNDS).await, Ok(Put::New));
    }
    let taken = journal.take_due(lease("one", T0 + 1, 2)).await.unwrap().taken;
    assert_eq!(ids(&taken), ["done", "in-hand"]);
    assert_eq!(journal.settle("done", taken[0].generation, done(json!("told"), T0 + 2)).await, Ok(true));
    assert_eq!(journal.delete_run(of("bolt"), "r1").await, Ok(Deletion::NotFound));
    assert_eq!(journal.deferred_entries(all_of(TenantScope::All)).await.unwrap().entries.len(), 4);
    assert_eq!(journal.delete_run(of("acme"), "r2").await, Ok(Deletion::Done));
    assert_eq!(journal.deferred_entries(all_of(TenantScope::All)).await.unwrap().entries.len(), 4);
    assert_eq!(journal.delete_run(of("acme"), "r1").await, Ok(Deletion::Done));
    let left = journal.deferred_entries(all_of(TenantScope::All)).await.unwrap().entries;
    assert_eq!(left.iter().map(|entry| entry.head.id.as_str()).collect::<Vec<_>>(), ["other"]);
    // Whoever had it in hand writes nothing any more, and nobody is told.
    assert_eq!(journal.settle("in-hand", taken[1].generation, done(json!("late"), T0 + 3)).await, Ok(false));
    assert_eq!(journal.take_pushes(lease("one", T0 + 3, 9)).await, Ok((vec![], None)));
    assert_eq!(ids(&journal.take_due(lease("one", T0 + 3, 9)).await.unwrap().taken), ["other"]);
}

#[tokio::test]
async fn a_refusal_is_no_attempt_and_age_is_an_end() {
    let place = Place::new();
    let journal = place.open();
    journal.put(call("a", "acme"), BOUNDS).await.unwrap();
    let mut now_ms = T0 + 5 * MINUTE_MS;
    for why in [Again::Refused, Again::Failed, Again::LetGo, Again::Refused] {
        let taken = journal.take_due(lease("one", now_ms, 10)).await.unwrap().taken;
        now_ms += MINUTE_MS;
        let settled = Settled::Again { due_ms: now_ms, why };
        assert_eq!(journal.settle("a", taken[0].generation, settled).await, Ok(true));
    }
    let entry = journal.deferred(TenantScope::All, "a").await.unwrap().unwrap();
    assert_eq!((entry.attempts, entry.refusals, entry.due_ms, entry.leased), (1, 2, now_ms, false));
    let over = journal.take_due(lease("one", T0 + 60 * MINUTE_MS, 10)).await.unwrap();
    assert_eq!((over.taken.len(), over.expired, over.waiting, over.next_ms), (0, 1, 0, None));
    let entry = journal.deferred(TenantScope::All, "a").await.unwrap().unwrap();
    assert_eq!(entry.status, DeferredStatus::Expired);
    assert_eq!(entry.result.unwrap().error.unwrap().error_code, ErrorCode::TokenBudgetExhausted);
}

#[tokio::test]
async fn somebody_elses_entry_is_not_there() {
    let place = Place::new();
    let journal = place.open();
    for (id, tenant) in [("a1", "acme"), ("b1", "bolt"), ("a2", "acme")] {
        journal.put(call(id, tenant), BOUNDS).await.unwrap();
    }
    let listed = async |filter| {
        let entries = journal.deferred_entries(filter).await.unwrap().entries;
        entries.into_iter().map(|entry| entry.head.id).collect::<Vec<_>>()
    };
    assert_eq!(listed(all_of(of("acme"))).await, ["a2", "a1"]);
    assert_eq!(listed(all_of(TenantScope::All)).await, ["a2", "b1", "a1"]);
    let first = journal.deferred_entries(DeferredFilter { count_max: 1, ..all_of(of("acme")) }).await.unwrap();
    let before = first.next;
    assert!(before.is_some());
    assert_eq!(listed(DeferredFilter { before, ..all_of(of("acme")) }).await, ["a1"]);
    assert_eq!(
        listed(DeferredFilter { before, ..all_of(of("bolt")) }).await,
        ["b1"],
        "a place shows nothing of others"
    );
    assert_eq!(journal.deferred(of("acme"), "b1").await, Ok(None));
    assert_eq!(journal.cancel_deferred(of("acme"), "b1").await, Ok(Cancelling::NotFound));
    assert_eq!(journal.cancel_deferred(of("bolt"), "b1").await, Ok(Cancelling::Done));
    let over = Cancelling::Over(DeferredStatus::Cancelled);
    assert_eq!(journal.cancel_deferred(of("bolt"), "b1").await, Ok(over));
    let waiting = DeferredFilter { status: Some(DeferredStatus::Waiting), ..all_of(TenantScope::All) };
    assert_eq!(listed(waiting).await, ["a2", "a1"]);
    let place =
        journal.deferred_entries(DeferredFilter { count_max: 1, ..all_of(TenantScope::All) }).await.unwrap().next;
    journal.delete_tenant(Some("acme")).await.unwrap();
    assert_eq!(listed(all_of(TenantScope::All)).await, ["b1"]);
    let behind = DeferredFilter { before: place, ..all_of(TenantScope::All) };
    assert_eq!(listed(behind).await, ["b1"], "the entry that stood there is gone, what follows it is not");
}

#[tokio::test]
async fn an_end_is_told_until_it_is_taken() {
    let place = Place::new();
    let journal = place.open();
    journal.put(with(call("told", "acme"), |head| head.pushed = true), BOUNDS).await.unwrap();
    journal.put(call("quiet", "acme"), BOUNDS).await.unwrap();
    let now_ms = T0 + 5 * MINUTE_MS;
    for taken in journal.take_due(lease("one", now_ms, 10)).await.unwrap().taken {
        let settled = done(json!("text"), now_ms);
        assert_eq!(journal.settle(&taken.call.head.id, taken.generation, settled).await, Ok(true));
    }
    let (due, next_ms) = journal.take_pushes(lease("one", now_ms, 10)).await.unwrap();
    assert_eq!((due.len(), due[0].entry.head.id.as_str(), due[0].attempts, next_ms), (1, "told", 0, None));
    assert_eq!(journal.take_pushes(lease("two", now_ms, 10)).await.unwrap().0.len(), 0);
    let failed = PushSettled {
        status: DeliveryStatus::Waiting,
        due_ms: now_ms + 10_000,
        http_status: Some(503),
        error: Some("busy".to_owned()),
        at_ms: now_ms,
    };
    assert_eq!(journal.settle_push("told", 9, failed.clone()).await, Ok(false));
    assert_eq!(journal.settle_push("told", 1, failed.clone()).await, Ok(true));
    let (due, next_ms) = journal.take_pushes(lease("one", now_ms, 10)).await.unwrap();
    assert_eq!((due.len(), next_ms), (0, Some(now_ms + 10_000)));
    // An entry that somebody is still to be told of is kept.
    place.now.store(now_ms + 30 * 24 * 3_600_000, Ordering::Relaxed);
    journal.tidy().await.unwrap();
    assert!(journal.deferred(of("acme"), "quiet").await.unwrap().is_none());
    let (due, _) = journal.take_pushes(lease("one", now_ms + 10_000, 10)).await.unwrap();
    assert_eq!((due[0].attempts, due[0].generation), (1, 2));
    let taken = PushSettled { status: DeliveryStatus::Delivered, http_status: Some(204), error: None, ..failed };
    assert_eq!(journal.settle_push("told", 2, taken).await, Ok(true));
    let delivery = journal.deferred(of("acme"), "told").await.unwrap().unwrap().delivery.unwrap();
    assert_eq!((delivery.status, delivery.attempts, delivery.http_status), (DeliveryStatus::Delivered, 2, Some(204)));
    journal.tidy().await.unwrap();
    assert!(journal.deferred(of("acme"), "told").await.unwrap().is_none());
}

/// Something that is done to the queue.
#[derive(Debug, Clone)]
enum Act {
    Put(u8),
    Take { owner: u8, max: usize },
    End { owner: u8 },
    Again { owner: u8, refused: bool },
    Cancel(u8),
    TakeOver(u8),
    Pass(u64),
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..12_u8).prop_map(Act::Put),
        (0..2_u8, 1..4_usize).prop_map(|(owner, max)| Act::Take { owner, max }),
        (0..2_u8).prop_map(|owner| Act::End { owner }),
        (0..2_u8, any::<bool>()).prop_map(|(owner, refused)| Act::Again { owner, refused }),
        (0..12_u8).prop_map(Act::Cancel),
        (0..2_u8).prop_map(Act::TakeOver),
        (0..3 * MINUTE_MS).prop_map(Act::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever is done in whatever order: the bounds hold, an entry is in one hand at a time, ends once, and never comes back.
    #[test]
    fn the_queue_keeps_its_rules(acts in prop::collection::vec(any_act(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let place = Place::new();
            let journal = place.open();
            let mut now_ms = T0;
            // What each owner holds: id and generation, until when.
            let mut held: BTreeMap<u8, Vec<(String, u64, u64)>> = BTreeMap::new();
            let mut ended: BTreeSet<String> = BTreeSet::new();
            for act in acts {
                match act {
                    Act::Put(number) => {
                        let tenant = if number % 2 == 0 { "acme" } else { "bolt" };
                        let put = with(call(&format!("c{number}"), tenant), |head| (head.created_ms, head.due_ms) = (now_ms, now_ms + MINUTE_MS));
                        journal.put(put, BOUNDS).await.unwrap();
                    }
                    Act::Take { owner, max } => {
                        let due = journal.take_due(lease(&format!("o{owner}"), now_ms, max)).await.unwrap();
                        assert!(due.taken.len() <= max);
                        for taken in due.taken {
                            let id = taken.call.head.id;
                            assert!(!ended.contains(&id), "{id} came back after its end");
                            for mine in held.values() {
                                assert!(!mine.iter().any(|(other, _, until)| *other == id && *until > now_ms), "{id} is in two hands");
                            }
                            held.entry(owner).or_default().push((id, taken.generation, now_ms + MINUTE_MS));
                        }
                    }
                    Act::End { owner } => {
                        if let Some((id, generation, _)) = held.entry(owner).or_default().pop()
                            && journal.settle(&id, generation, done(json!(1), now_ms)).await.unwrap()
                        {
                            assert!(ended.insert(id.clone()), "{id} ended twice");
                        }
                    }
                    Act::Again { owner, refused } => {
                        if let Some((id, generation, _)) = held.entry(owner).or_default().pop() {
                            let why = if refused { Again::Refused } else { Again::Failed };
                            let settled = Settled::Again { due_ms: now_ms + MINUTE_MS, why };
                            journal.settle(&id, generation, settled).await.unwrap();
                        }
                    }
                    Act::Cancel(number) => {
                        let id = format!("c{number}");
                        if journal.cancel_deferred(TenantScope::All, &id).await.unwrap() == Cancelling::Done {
                            assert!(ended.insert(id.clone()), "{id} ended twice");
                        }
                    }
                    Act::TakeOver(owner) => {
                        journal.take_over(&format!("o{owner}")).await.unwrap();
                        held.retain(|other, _| *other == owner);
                    }
                    Act::Pass(milliseconds) => now_ms += milliseconds,
                }
                let entries = journal.deferred_entries(all_of(TenantScope::All)).await.unwrap().entries;
                for entry in &entries {
                    if entry.status == DeferredStatus::Expired {
                        ended.insert(entry.head.id.clone());
                    }
                }
                let waiting: Vec<_> = entries.iter().filter(|entry| entry.status == DeferredStatus::Waiting).collect();
                assert!(waiting.len() as u64 <= BOUNDS.entries_max);
                for tenant in ["acme", "bolt"] {
                    let own = waiting.iter().filter(|entry| entry.head.owner.tenant.as_deref() == Some(tenant)).count();
                    assert!(own as u64 <= BOUNDS.tenant_entries_max);
                }
            }
            journal.close().await;
        });
    }
}

/// Tells the child where to write.
const PLACE: &str = "WATERTIGHT_TEST_DEFERRED";
/// Marks a line of the child that is meant for the parent.
const MARK: &str = "deferred:";

/// In the usual run of all tests nobody says where, and this one has nothing to do.
#[tokio::test]
async fn child_that_defers_and_is_killed() {
    let Ok(path) = std::env::var(PLACE) else { return };
    let journal = SqliteJournal::open_after(JournalSettings::at(path), Duration::from_secs(10)).unwrap();
    let bounds = QueueBounds { entries_max: 1_000_000, tenant_entries_max: 1_000_000 };
    let owner = std::process::id().to_string();
    let say = |word: &str, id: &str| {
        let line = format!("\n{MARK} {word} {id}\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
    };
    for number in 0.. {
        let id = format!("{owner}-{number}");
        let put = with(call(&id, "acme"), |head| head.due_ms = T0);
        assert_eq!(journal.put(put, bounds).await, Ok(Put::New));
        say("kept", &id);
        if number % 2 == 1 {
            for taken in journal.take_due(lease(&owner, T0, 2)).await.unwrap().taken {
                // Every third stays in this life's hand.
                if number % 3 != 0 {
                    assert_eq!(
                        journal.settle(&taken.call.head.id, taken.generation, done(json!(number), T0)).await,
                        Ok(true)
                    );
                    say("over", &taken.call.head.id);
                }
            }
        }
    }
}

fn defer_and_die(path: &std::path::Path, life: Duration) -> Vec<(String, String)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "journal::tests::deferred::child_that_defers_and_is_killed",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(PLACE, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        let said = lines.filter_map(|line| {
            let rest = line.strip_prefix(MARK)?.trim();
            rest.split_once(' ').map(|(word, id)| (word.to_owned(), id.to_owned()))
        });
        said.collect::<Vec<_>>()
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
async fn a_kill_loses_no_entry_and_no_end() {
    let place = Place::new();
    let mut chance = fastrand::Rng::with_seed(11);
    let (mut kept, mut in_hand) = (0, 0);
    for kill in 0..6 {
        let said = defer_and_die(&place.path(), Duration::from_millis(chance.u64(100..400)));
        let journal = place.open();
        assert_eq!(journal.check(CheckDepth::Full).await, Ok(vec![]), "kill {kill}");
        for (word, id) in &said {
            let entry = journal.deferred(TenantScope::All, id).await.unwrap();
            let Some(entry) = entry else { panic!("kill {kill}: {id} is lost") };
            assert!(word != "over" || entry.status == DeferredStatus::Done, "kill {kill}: the end of {id} is lost");
            assert_eq!(entry.head.idempotency_key, format!("key-{id}"), "the same key in every life");
        }
        kept += said.iter().filter(|(word, _)| word == "kept").count();
        // What the dead one had in hand is taken up again at once, by the next life and with a generation of its own.
        let released = journal.take_over("next").await.unwrap();
        in_hand += released;
        let due = journal.take_due(lease("next", T0, 1_000_000)).await.unwrap();
        assert!(due.taken.len() as u64 >= released, "kill {kill}");
        for taken in due.taken {
            assert_eq!(journal.settle(&taken.call.head.id, taken.generation, done(json!("next"), T0)).await, Ok(true));
        }
        assert_eq!(journal.deferred_waiting().await, Ok(0));
        journal.close().await;
    }
    assert!(kept > 0 && in_hand > 0, "no child wrote anything, or none held anything: {kept} {in_hand}");
}
