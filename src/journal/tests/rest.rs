//! Beside runs: dead letters, operator modes, captures, the ledger, retention, a tenant's data.

use std::sync::Arc;

use serde_json::{Value, json};

use super::support::*;
use crate::{
    journal::{
        captures::{Capture, CaptureReading},
        journal::SqliteJournal,
        ledger::FEATURES_SAID_MAX,
        operator_modes::OperatorMode,
        query::{RunFilter, TenantScope},
        settings::{JournalSettings, Retention},
        usage::{USAGE_LINES_MAX, UsageCursor, UsageGroup, UsageQuery},
    },
    model::{
        call_log::{CallRecord, Counted, CountedName},
        cost::Cost,
        event::EventType,
        reply::Usage,
        run::RunStatus,
    },
    policy::breaker::settings::Mode,
    runtime::{
        journal::{DeadCause, DeadLetter, Journal as _, RunOwner, ShutCaller},
        ports::CallLog as _,
    },
};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

fn of(tenant: &str) -> TenantScope {
    TenantScope::One(Some(tenant.to_owned()))
}

fn letter(id: &str, tenant: &str) -> DeadLetter {
    DeadLetter {
        id: id.into(),
        at_ms: T0,
        cause: DeadCause::KilledTwice,
        agent: "draft".into(),
        run_id: Some("r".into()),
        step: Some("draft/0/0".into()),
        owner: RunOwner { tenant: Some(tenant.into()), ..RunOwner::default() },
        idempotency_key: Some("k".into()),
        input: json!({ "notes": "x".repeat(500) }),
        message: "the actor died".into(),
    }
}

#[tokio::test]
async fn dead_letters() {
    let place = Place::new();
    let journal = place.open();
    for (id, tenant) in [("a", "acme"), ("b", "other"), ("c", "acme"), ("a", "acme")] {
        journal.put_aside(letter(id, tenant));
    }
    accept(&journal, place.run("r")).await.unwrap();
    let ids = |letters: Vec<DeadLetter>| letters.into_iter().map(|letter| letter.id).collect::<Vec<_>>().join(" ");
    assert_eq!(ids(journal.dead_letters(of("acme"), None, 10).await.unwrap().0), "a c");
    assert_eq!(ids(journal.dead_letters(TenantScope::All, None, 2).await.unwrap().0), "a c");
    let (_, next) = journal.dead_letters(TenantScope::All, None, 2).await.unwrap();
    assert_eq!(ids(journal.dead_letters(TenantScope::All, next, 2).await.unwrap().0), "b");
    // The letter there goes: the list goes on at its place, and neither begins anew nor ends.
    assert!(journal.take_dead_letter(TenantScope::All, "c").await.unwrap().is_some());
    assert_eq!(ids(journal.dead_letters(TenantScope::All, next, 2).await.unwrap().0), "b");
    assert_eq!(journal.dead_letter(of("acme"), "b").await, Ok(None));
    assert_eq!(journal.dead_letter(of("other"), "b").await, Ok(Some(letter("b", "other"))));
    assert_eq!(journal.take_dead_letter(of("acme"), "b").await, Ok(None));
    let takers = [(); 8].map(|()| journal.take_dead_letter(TenantScope::All, "b"));
    let taken = futures_util::future::join_all(takers).await;
    assert_eq!(taken.iter().filter(|taken| matches!(taken, Ok(Some(_)))).count(), 1, "of many who replay one gets it");
    place.pass_ms(91 * DAY_MS);
    journal.tidy().await.unwrap();
    assert!(journal.dead_letters(TenantScope::All, None, 10).await.unwrap().0.is_empty());
}

#[tokio::test]
async fn operator_modes_outlive_the_process() {
    let place = Place::new();
    let journal = place.open();
    let set = |breaker: &str, mode, reason: &str| OperatorMode {
        breaker: breaker.into(),
        mode,
        reason: reason.into(),
        set_ms: T0,
        set_by: Some("ops".into()),
    };
    for (breaker, mode) in [("b", Mode::Disabled), ("a", Mode::ForcedOpen), ("c", Mode::MetricsOnly), ("b", Mode::Auto)]
    {
        journal.set_operator_mode(set(breaker, mode, "drill")).await.unwrap();
    }
    journal.close().await;
    let wanted = vec![set("a", Mode::ForcedOpen, "drill"), set("c", Mode::MetricsOnly, "drill")];
    assert_eq!(place.open().operator_modes().await, Ok(wanted));
}

#[tokio::test]
async fn callers_who_are_shut_outlive_the_process_and_go_in_time() {
    let place = Place::new();
    let journal = place.open();
    let caller = |name: &str, since_ms, calls| ShutCaller {
        name: name.into(),
        since_ms,
        seconds: (0..3_600).map(|second| (since_ms - (3_600 - second) * 1_000, calls)).collect(),
    };
    for shut in
        [caller("key:a", T0, 1), caller("tenant:acme", T0, 2), caller("local", T0, 3), caller("key:a", T0 + 1, 4)]
    {
        journal.keep_shut(shut);
    }
    journal.forget_shut("tenant:acme");
    journal.forget_shut("tenant:nobody");
    journal.close().await;
    let journal = place.open();
    let mut kept = journal.shut_callers().await.unwrap();
    kept.sort_by(|one, other| one.name.cmp(&other.name));
    assert_eq!(kept, [caller("key:a", T0 + 1, 4), caller("local", T0, 3)]);
    // A day and an hour later none can be shut any more, whatever is configured.
    place.pass_ms(25 * 3_600 * 1_000);
    journal.tidy().await.unwrap();
    assert_eq!(journal.shut_callers().await.unwrap().len(), 2);
    place.pass_ms(2);
    journal.tidy().await.unwrap();
    assert_eq!(journal.shut_callers().await, Ok(Vec::new()));
}

/// What is damaged of one caller holds nobody else up.
#[tokio::test]
async fn a_damaged_caller_begins_anew() {
    let place = Place::new();
    let journal = place.open();
    for name in ["key:a", "key:b"] {
        journal.keep_shut(ShutCaller { name: name.into(), since_ms: T0, seconds: vec![(T0, 1); 100] });
    }
    journal.close().await;
    let damage = "UPDATE shut_caller SET seconds = x'01ff' WHERE caller = 'key:a'";
    rusqlite::Connection::open(place.path()).unwrap().execute_batch(damage).unwrap();
    let kept = place.open().shut_callers().await.unwrap();
    assert_eq!(kept.iter().map(|caller| caller.name.as_str()).collect::<Vec<_>>(), ["key:b"]);
}

#[tokio::test]
async fn captures_are_read_with_a_note_and_go_in_time() {
    let place = Place::new();
    let journal = place.open();
    let capture = |run_id: Option<&str>, attempt| Capture {
        tenant: Some("acme".into()),
        run_id: run_id.map(ToOwned::to_owned),
        step: Some("draft".into()),
        agent: "draft".into(),
        target: None,
        call_id: "call".into(),
        attempt,
        at_ms: T0,
        expires_ms: T0 + 72 * HOUR_MS,
        prompt: json!([{ "role": "user", "content": "a walk" }]),
        answer: Some("{".into()),
        text: None,
        parsed: json!({ "error": "cut" }),
    };
    for run_id in ["r", "s"] {
        whole_run(&place, &journal, place.run(run_id), RunStatus::Failed).await;
    }
    for (run_id, attempt) in [(Some("r"), 1), (Some("r"), 2), (None, 1), (Some("s"), 1)] {
        journal.put_capture(capture(run_id, attempt));
    }
    assert_eq!(journal.read_captures(of("other"), "r", "eve").await, Ok(vec![]));
    let read = journal.read_captures(of("acme"), "r", "kim").await;
    assert_eq!(read, Ok(vec![capture(Some("r"), 1), capture(Some("r"), 2)]));
    let note = CaptureReading { reader: "kim".into(), at_ms: T0, captures: 2 };
    assert_eq!(journal.capture_readings(of("acme"), "r").await, Ok(vec![note]));
    assert_eq!(journal.capture_readings(of("other"), "r").await, Ok(vec![]));
    journal.delete_run(of("acme"), "r").await.unwrap();
    // What is written later than that is not kept either.
    journal.put_capture(capture(Some("r"), 3));
    assert_eq!(journal.read_captures(TenantScope::All, "r", "kim").await, Ok(vec![]));
    assert_eq!(journal.capture_readings(TenantScope::All, "r").await, Ok(vec![]));
    place.pass_ms(72 * HOUR_MS);
    assert_eq!(journal.read_captures(TenantScope::All, "s", "kim").await, Ok(vec![]));
    journal.tidy().await.unwrap();
    let left = journal
        .ask(|connection| Ok(connection.query_row("SELECT count(*) FROM capture", [], |row| row.get::<_, i64>(0))?));
    assert_eq!(left.await, Ok(0));
}

fn called(tenant: &str, model: &str, day: u64, usage: Option<Usage>) -> CallRecord {
    CallRecord {
        ts_ms: day * DAY_MS + 5,
        agent: "draft".into(),
        call_id: Some("c".into()),
        tenant: Some(tenant.into()),
        model: Some(model.into()),
        usage,
        ..CallRecord::default()
    }
}

#[tokio::test]
async fn a_letter_stays_for_as_long_as_its_run_waits_for_it() {
    let uuid = "0198c5a1-0000-7000-8000-000000000001";
    for run_id in ["r1", uuid] {
        let place = Place::new();
        let journal = place.open();
        accept(&journal, place.run(run_id)).await.unwrap();
        let waits = format!("{run_id}:pay:-:0");
        for id in [waits.as_str(), "other"] {
            journal.put_aside(letter(id, "acme"));
        }
        let ids = async || {
            let letters = journal.dead_letters(TenantScope::All, None, 10).await.unwrap().0;
            letters.into_iter().map(|letter| letter.id).collect::<Vec<_>>()
        };
        journal.delete_tenant(Some("acme")).await.unwrap();
        assert_eq!(ids().await, std::slice::from_ref(&waits));
        place.pass_ms(400 * DAY_MS);
        journal.tidy().await.unwrap();
        assert_eq!(ids().await, [waits], "nobody else could let it go on");
        let record = record(run_id, RunStatus::Completed, vec![step("draft", json!(1))], T0);
        assert!(append(&journal, run_id, 0, vec![finished(record)]).await);
        journal.delete_tenant(Some("acme")).await.unwrap();
        assert!(ids().await.is_empty());
    }
}

#[tokio::test]
async fn what_waits_in_a_run_ends_with_it_and_the_rest_goes_when_it_is_deleted() {
    let uuid = "0198c5a1-0000-7000-8000-000000000001";
    for (run_id, near) in [("r", "r2"), (uuid, "0198c5a1-0000-7000-8000-000000000002")] {
        for status in [RunStatus::Cancelled, RunStatus::TimedOut, RunStatus::Failed, RunStatus::Completed] {
            let place = Place::new();
            let journal = place.open();
            for run_id in [run_id, near] {
                accept(&journal, place.run(run_id)).await.unwrap();
                for (id, cause) in [
                    (format!("{run_id}:pay:-:0"), DeadCause::InDoubt),
                    (format!("{run_id}:post:3:1"), DeadCause::KilledProcess),
                    (format!("killed-in-{run_id}"), DeadCause::KilledTwice),
                ] {
                    journal.put_aside(DeadLetter { run_id: Some(run_id.into()), cause, ..letter(&id, "acme") });
                }
            }
            // Written in the order in which it is asked for.
            assert_eq!(journal.take_dead_letter(TenantScope::All, "none").await, Ok(None));
            let causes = async || {
                let letters = journal.dead_letters(TenantScope::All, None, 10).await.unwrap().0;
                let of = |run: &str| letters.iter().filter(|letter| letter.run_id.as_deref() == Some(run)).count();
                (of(run_id), of(near))
            };
            assert_eq!(causes().await, (3, 3));
            let record = record(run_id, status, vec![step("draft", json!(1))], T0);
            let entries = vec![event(run_id, 1, EventType::RunFinished), finished(record)];
            assert!(append(&journal, run_id, 0, entries).await);
            assert_eq!(causes().await, (1, 3), "{run_id} {status:?}");
            journal.delete_run(of("acme"), run_id).await.unwrap();
            assert_eq!(causes().await, (0, 3));
        }
    }
}

/// What a server told without shame, and what an older version wrote of it: everything else can still be asked for.
#[tokio::test]
async fn no_figure_breaks_the_ledger() {
    let place = Place::new();
    let today = T0 / DAY_MS;
    let huge = Some(Usage { prompt_tokens: i64::MAX as u64, output_tokens: u64::MAX, ..Usage::default() });
    let ask = async |journal: &Arc<SqliteJournal>| {
        let query =
            UsageQuery { scope: TenantScope::All, from_day: today, to_day: today, groups: Vec::new(), after: None };
        let lines = journal.usage(query).await.unwrap().lines;
        lines
            .iter()
            .map(|line| (line.counts.calls, line.counts.prompt_tokens, line.counts.output_tokens))
            .collect::<Vec<_>>()
    };
    let most = 1 << 53;
    for calls in 1..4 {
        // Each time into the line of the time before.
        let journal = place.open();
        journal.usage_log(None).finished(called("acme", "qwen", today, huge));
        journal.usage_log(None).finished(called("other", "qwen", today, huge));
        journal.close().await;
        let journal = place.open();
        assert_eq!(ask(&journal).await, [(2 * calls, most, most)]);
        let torn = journal.write(|within| {
            Ok(within
                .connection
                .execute("UPDATE usage SET prompt_tokens = 1.8446744073709552e19, output_tokens = 9e300", [])?)
        });
        assert_eq!(torn.await, Ok(2));
        assert_eq!(ask(&journal).await, [(2 * calls, most, most)]);
        journal.close().await;
    }
}

#[tokio::test]
async fn the_ledger_adds_up_and_stays() {
    let place = Place::new();
    let journal = place.open();
    let today = T0 / DAY_MS;
    let log = journal.usage_log(None);
    let usage = |prompt_tokens, output_tokens, estimated| {
        Some(Usage { prompt_tokens, output_tokens, estimated, ..Usage::default() })
    };
    for _ in 0..10 {
        log.finished(called("acme", "qwen", today, usage(10, 2, false)));
    }
    log.finished(CallRecord { error_code: Some("AGENT_ERROR".into()), ..called("acme", "qwen", today, None) });
    log.finished(CallRecord {
        error_code: Some("AGENT_CIRCUIT_OPEN".into()),
        call_id: None,
        ..called("acme", "qwen", today, None)
    });
    log.finished(called("other", "smol", today - 1, usage(1, 1, true)));
    // Closing writes what was added up.
    journal.close().await;
    let journal = place.open();
    let ask = |scope: TenantScope, groups: &[UsageGroup], from_day: u64| {
        let query = UsageQuery { scope, from_day, to_day: today, groups: groups.to_vec(), after: None };
        let journal = Arc::clone(&journal);
        async move { journal.usage(query).await.unwrap().lines }
    };
    let lines = ask(of("acme"), &[], 0).await;
    let sums = |line: &crate::journal::usage::UsageLine| {
        (
            line.counts.calls,
            line.counts.failures,
            line.counts.refusals,
            line.counts.prompt_tokens,
            line.counts.output_tokens,
            line.counts.estimated,
        )
    };
    assert_eq!(lines.iter().map(sums).collect::<Vec<_>>(), [(11, 1, 1, 100, 20, false)]);
    assert_eq!(lines[0].cost, None);
    let lines = ask(TenantScope::All, &[UsageGroup::Tenant, UsageGroup::Model], 0).await;
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().any(|line| line.tenant.as_deref() == Some("other")
        && line.model.as_deref() == Some("smol")
        && line.counts.estimated));
    assert_eq!(ask(TenantScope::All, &[UsageGroup::Day], today).await.len(), 1);
    assert!(ask(of("nobody"), &[], 0).await.is_empty());
    // Runs and tenants go, their lines stay, for their own time.
    journal.delete_tenant(Some("acme")).await.unwrap();
    assert_eq!(ask(of("acme"), &[], 0).await.len(), 1);
    place.pass_ms(401 * DAY_MS);
    journal.tidy().await.unwrap();
    assert!(ask(TenantScope::All, &[], 0).await.is_empty());
}

/// Costs of different money are never added up, also where the file is from a time that knew of none.
#[tokio::test]
async fn the_ledger_keeps_costs_of_different_money_apart() {
    let place = Place::new();
    let journal = place.open();
    let today = T0 / DAY_MS;
    let paid = |units| CallRecord {
        cost: Cost::from_units(units),
        ..called("acme", "qwen", today, Some(Usage { prompt_tokens: 10, output_tokens: 2, ..Usage::default() }))
    };
    journal.usage_log(Some("USD")).finished(paid(0.5));
    journal.usage_log(Some("USD")).finished(paid(0.25));
    journal.usage_log(Some("USD")).finished(called("acme", "free", today, None));
    journal.close().await;
    let path = place.path();
    // As version 3 of the file had it.
    let old =
        "CREATE TABLE before AS SELECT day, tenant, feature, agent, model, calls, failures, refusals, prompt_tokens,
        output_tokens, estimated, cost FROM usage; DROP TABLE usage; ALTER TABLE before RENAME TO usage; DROP TABLE shut_caller;
        DROP INDEX deferred_run; ALTER TABLE deferred DROP COLUMN run_id; DROP INDEX dead_letter_run; ALTER TABLE dead_letter DROP COLUMN run_id;
        PRAGMA user_version = 3;";
    rusqlite::Connection::open(&path).unwrap().execute_batch(old).unwrap();
    let journal = place.open();
    let ask = async |journal: &SqliteJournal, groups: &[UsageGroup]| {
        let query = UsageQuery {
            scope: TenantScope::All,
            from_day: today,
            to_day: today,
            groups: groups.to_vec(),
            after: None,
        };
        journal.usage(query).await.unwrap().lines
    };
    let sum = ask(&journal, &[]).await;
    assert_eq!(
        (sum.len(), sum[0].counts.calls, sum[0].cost, sum[0].currency.as_deref()),
        (1, 3, Cost::from_units(0.75), None)
    );
    journal.usage_log(Some("KRW")).finished(paid(900.0));
    journal.usage_log(Some("USD")).finished(paid(1.0));
    journal.close().await;
    let journal = place.open();
    let sums = ask(&journal, &[]).await;
    assert_eq!(
        (sums.len(), sums[0].counts.calls, sums[0].counts.prompt_tokens),
        (1, 5, 40),
        "everything else is one sum"
    );
    assert_eq!((sums[0].cost, sums[0].currency.as_deref()), (None, None), "no sum of different money");
    let mut costs: Vec<_> = sums[0].costs.iter().map(|cost| (cost.currency.as_deref(), cost.cost.units())).collect();
    costs.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(costs, [(None, 0.75), (Some("KRW"), 900.0), (Some("USD"), 1.0)]);
    let models = ask(&journal, &[UsageGroup::Model]).await;
    assert_eq!(models.len(), 2);
    let free = models.iter().find(|line| line.model.as_deref() == Some("free")).unwrap();
    assert_eq!((free.counts.calls, free.cost, free.costs.len()), (1, None, 0), "no price is no cost");
    // A call that used something without a price: what the others cost is not what all of them cost.
    let unpriced = Some(Usage { prompt_tokens: 7, output_tokens: 1, ..Usage::default() });
    for currency in [None, Some("USD")] {
        journal.usage_log(currency).finished(called("acme", "free", today, unpriced));
    }
    journal.usage_log(None).finished(CallRecord { model: Some("free".to_owned()), ..paid(2.0) });
    journal.close().await;
    let models = ask(&place.open(), &[UsageGroup::Model]).await;
    let free = models.iter().find(|line| line.model.as_deref() == Some("free")).unwrap();
    assert_eq!((free.counts.calls, free.counts.unpriced, free.cost), (4, 2, None), "{free:?}");
    assert_eq!(
        free.costs.iter().map(|known| known.cost.units()).collect::<Vec<_>>(),
        [2.0],
        "what is known is told apart"
    );
}

#[tokio::test]
async fn what_was_kept_long_enough_goes() {
    let place = Place::new();
    let journal = place.open();
    let states = [
        RunStatus::Completed,
        RunStatus::CompletedDegraded,
        RunStatus::Failed,
        RunStatus::TimedOut,
        RunStatus::Cancelled,
    ];
    for (number, status) in states.iter().cycle().take(200).enumerate() {
        whole_run(&place, &journal, place.run(&format!("run-{number}")), *status).await;
    }
    accept(&journal, place.run("live")).await.unwrap();
    let count = || async {
        journal.runs(RunFilter { count_max: 1_000, ..RunFilter::of(TenantScope::All) }).await.unwrap().runs.len()
    };
    for (days, left) in [(0, 201), (6, 201), (2, 161), (21, 161), (2, 1)] {
        place.pass_ms(days * DAY_MS);
        journal.tidy().await.unwrap();
        assert_eq!(count().await, left);
    }
}

#[tokio::test]
async fn a_size_budget_lets_the_oldest_go_first() {
    let place = Place::new();
    let retention = Retention { size_budget: Some(400_000), ..Retention::default() };
    let journal = SqliteJournal::open(JournalSettings { retention, ..place.settings() }).unwrap();
    for number in 0..200 {
        let mut run = place.run(&format!("run-{number}"));
        let noise: Vec<String> = (0..1_500_u32)
            .map(|place| format!("{:x}", (place + 1).wrapping_mul(2_654_435_761_u32.wrapping_mul(number + 1))))
            .collect();
        run.input.insert("noise".into(), json!(noise.concat()));
        run.input.insert("number".into(), Value::from(format!("{number}").repeat(700)));
        whole_run(&place, &journal, run, RunStatus::Completed).await;
    }
    journal.tidy().await.unwrap();
    let page = journal.runs(RunFilter { count_max: 1_000, ..RunFilter::of(TenantScope::All) }).await.unwrap();
    let left = page.runs.len();
    assert!(left < 200 && left > 5, "{left}");
    let newest: Vec<String> = (0..200).rev().take(left).map(|number| format!("run-{number}")).collect();
    assert_eq!(page.runs.into_iter().map(|run| run.run_id).collect::<Vec<_>>(), newest);
}

#[tokio::test]
async fn a_tenants_data_goes_and_nobody_elses() {
    let place = Place::new();
    let journal = place.open();
    for number in 0..150 {
        let mut run = place.run(&format!("run-{number}"));
        run.owner.tenant = Some(if number < 140 { "acme" } else { "other" }.to_owned());
        run.idempotency = promise(&format!("k{number}"), "x");
        whole_run(&place, &journal, run, RunStatus::Completed).await;
    }
    accept(&journal, place.run("live")).await.unwrap();
    journal.put_aside(letter("a", "acme"));
    journal.put_aside(letter("b", "other"));
    assert_eq!(journal.delete_tenant(Some("acme")).await, Ok(140));
    assert_eq!(journal.delete_tenant(Some("nobody")).await, Ok(0));
    let runs = |scope| async { journal.runs(RunFilter::of(scope)).await.unwrap().runs.len() };
    assert_eq!((runs(of("acme")).await, runs(of("other")).await), (1, 10));
    let letters = journal.dead_letters(TenantScope::All, None, 10).await.unwrap().0;
    assert_eq!(letters.iter().map(|letter| letter.id.as_str()).collect::<Vec<_>>(), ["b"]);
    let keys = journal.ask(|connection| {
        Ok(connection.query_row("SELECT count(*) FROM idempotency", [], |row| row.get::<_, i64>(0))?)
    });
    assert_eq!(keys.await, Ok(10));
}

#[tokio::test]
async fn names_that_callers_make_up_are_bounded_by_key_and_day() {
    let place = Place::new();
    let journal = place.open();
    let log = journal.usage_log(None);
    let said = |feature: String, key: &str, day: u64| CallRecord {
        feature: Some(feature),
        caller: Some(key.to_owned()),
        ..called("acme", "qwen", day, None)
    };
    let today = T0 / DAY_MS;
    for number in 0..FEATURES_SAID_MAX + 50 {
        log.finished(said(format!("feat{number}"), "flood", today));
    }
    // Another key's allowance is its own, names that are known need none, and those of before are known again.
    log.finished(said("chat".to_owned(), "calm", today));
    let known = Counted { feature: Some(CountedName::Known("search".to_owned())), tenant: None };
    log.finished(CallRecord { counted: Some(known), ..said("made up".to_owned(), "flood", today) });
    log.finished(said("feat0".to_owned(), "flood", today));
    log.finished(said("feat240".to_owned(), "flood", today + 1));
    journal.close().await;
    let journal = place.open();
    let query = UsageQuery {
        scope: TenantScope::All,
        from_day: today,
        to_day: today,
        groups: vec![UsageGroup::Feature],
        after: None,
    };
    let lines = journal.usage(query.clone()).await.unwrap().lines;
    let calls = |name: &str| {
        lines
            .iter()
            .filter(|line| line.feature.as_deref() == Some(name))
            .map(|line| line.counts.calls)
            .collect::<Vec<_>>()
    };
    assert_eq!(lines.len(), FEATURES_SAID_MAX + 3, "with other, chat and search");
    assert_eq!((calls("other"), calls("chat"), calls("search")), (vec![50], vec![1], vec![1]));
    assert_eq!((calls("feat0"), calls("feat240"), calls("made up")), (vec![2], vec![], vec![]));
    let tomorrow = UsageQuery { from_day: today + 1, to_day: today + 1, ..query };
    assert_eq!(journal.usage(tomorrow).await.unwrap().lines[0].feature.as_deref(), Some("feat240"));
}

#[tokio::test]
async fn sums_beyond_one_page_are_told_and_follow() {
    let place = Place::new();
    let journal = place.open();
    let log = |currency| journal.usage_log(currency);
    let today = T0 / DAY_MS;
    // More lines than a page, of fewer names than pages: days times models. Some have costs in two currencies.
    for number in 0..USAGE_LINES_MAX + 250 {
        let call = called("acme", &format!("m{}", number % 100), today + number as u64 / 100, None);
        let call = CallRecord { cost: Cost::from_units(1.0), ..call };
        log(Some("KRW")).finished(call.clone());
        if number % 7 == 0 {
            log(Some("EUR")).finished(call);
        }
    }
    journal.close().await;
    let journal = place.open();
    let groups = vec![UsageGroup::Day, UsageGroup::Model];
    let query = UsageQuery { scope: of("acme"), from_day: 0, to_day: today + 200, groups: groups.clone(), after: None };
    let first = journal.usage(query.clone()).await.unwrap();
    assert_eq!(first.lines.len(), USAGE_LINES_MAX);
    let cursor = first.next.unwrap().to_string();
    for broken in ["", "x", "1", "1-2-3", "1-"] {
        assert_eq!(UsageCursor::parse(broken, &groups), None, "{broken:?}");
    }
    assert_eq!(UsageCursor::parse("1", &[]), None);
    let after = UsageCursor::parse(&cursor, &groups);
    let rest = journal.usage(UsageQuery { after, ..query.clone() }).await.unwrap();
    assert_eq!((rest.lines.len(), &rest.next), (250, &None));
    assert!(rest.lines.iter().all(|line| !first.lines.contains(line)));
    let all: u64 = first.lines.iter().chain(&rest.lines).map(|line| line.counts.calls).sum();
    let one = journal.usage(UsageQuery { groups: Vec::new(), ..query }).await.unwrap();
    assert_eq!((one.lines[0].counts.calls, one.next), (all, None));
}
