//! Runs that outlive their process: nothing is built upon or shown before it is on the disk, nothing that ended is done again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Map, json};
use watertight::{
    model::{
        envelope::ErrorCode,
        event::EventType,
        run::{RerunOf, RunRecord, RunStatus, StepStatus},
    },
    policy::suspects::{BLAMES_MAX, SUSPECT_DEATHS, TRIAL_MAX},
    runtime::{
        accept::{Accepted, NewRun},
        engine::Runtime,
        journal::{DeadCause, Idempotency, Journal as _, OriginKind, RunOwner},
        ports::{Clock, TokioClock},
        run_handle::RunHandle,
        supervisor::BreakerAct,
    },
    workflow::{
        checked::Workflow,
        plan::why::{SUSPECT, Why},
    },
};

use crate::{
    fake_journal::{FakeJournal, Handle},
    kit::{Answer, Scripted, builder, provider, settle},
    support::{alone, chain, chain_text, ms, s, step, whole, workflow},
};

const AGENTS: [&str; 4] = ["a", "b", "c", "d"];

/// A node: its runtime and its way to the disk.
struct Node {
    runtime: Runtime,
    journal: Arc<FakeJournal>,
}

async fn node(journal: Arc<FakeJournal>, clock: Arc<dyn Clock>, backends: &[Arc<Scripted>]) -> Node {
    let mut builder = builder().clock(clock).journal(Arc::new(Handle(journal.clone())));
    for (of, backend) in AGENTS.iter().zip(backends) {
        builder = builder.provider(provider(&format!("{of}-host"))).agent(alone(of, 10), backend.clone());
    }
    Node { runtime: builder.start().await.unwrap(), journal }
}

fn backends(answer: &Answer) -> Vec<Arc<Scripted>> {
    AGENTS.iter().map(|_| Scripted::always(answer.clone())).collect()
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(TokioClock::start())
}

fn new(workflow: &Arc<Workflow>) -> NewRun {
    let (workflow, input, owner) = (workflow.clone(), Map::new(), RunOwner::default());
    NewRun { workflow, input, deadline: None, owner, idempotency: None }
}

impl Node {
    async fn accept(&self, workflow: &Arc<Workflow>) -> RunHandle {
        self.runtime.accept_run(new(workflow)).await.unwrap().handle.unwrap()
    }

    /// The process after this one, with every run that was not over.
    async fn restart(self, clock: Arc<dyn Clock>, backends: &[Arc<Scripted>]) -> (Node, Vec<RunHandle>) {
        let journal = self.journal.reopen();
        drop(self.runtime);
        settle().await;
        let next = node(journal.clone(), clock, backends).await;
        let stored = Handle(journal).take_over().await.unwrap();
        let runs = next.runtime.resume(stored);
        (next, runs)
    }
}

async fn end(run: &RunHandle) -> Arc<RunRecord> {
    let record = tokio::time::timeout(s(3_600), run.finished()).await.expect("a run that does not end");
    whole_but_again(run, &record);
    record
}

/// What holds of every run that is over; a call that was cut off starts twice.
fn whole_but_again(run: &RunHandle, record: &RunRecord) {
    if record.steps.iter().all(|step| step.status != StepStatus::Cancelled) {
        let again = run.events_after(0).iter().any(|event| event.data["again"] == true);
        if !again {
            whole(run, record);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_shown_is_what_is_written() {
    for delay in [0, 5] {
        let node = node(FakeJournal::new(ms(delay)), clock(), &backends(&Answer::Good.after(ms(20)))).await;
        let run = node.accept(&chain(&["a", "b"])).await;
        let record = end(&run).await;
        settle().await;
        assert_eq!(record.status, RunStatus::Completed);
        assert_eq!(node.journal.events(run.id()), run.events_after(0));
        assert_eq!(node.journal.finished(run.id()).as_ref(), Some(&*record));
        assert_eq!(node.journal.ended_calls().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_built_upon_what_is_not_written() {
    let backends = backends(&Answer::Good);
    let node = node(FakeJournal::new(ms(1)), clock(), &backends).await;
    let run = node.accept(&chain(&["a", "b"])).await;
    node.journal.stick();
    tokio::time::sleep(s(5)).await;
    assert_eq!((backends[0].count(), run.events_after(0).len()), (0, 0), "its start is not written");
    assert_eq!(run.why(), Some(Why::Journal), "and it says so");
    assert!(run.status().is_none());
    node.journal.heal();
    assert_eq!(end(&run).await.status, RunStatus::Completed);
    // Stuck in the middle: what the first step brought is not shown, the second is not called.
    backends[0].now(Answer::Good.after(s(10)));
    let run = node.accept(&chain(&["a", "b"])).await;
    tokio::time::sleep(s(1)).await;
    node.journal.stick();
    tokio::time::sleep(s(20)).await;
    assert_eq!((backends[0].count(), backends[1].count()), (2, 1));
    let record = run.record();
    assert_eq!((step(&record, "a").status, step(&record, "a").output.clone()), (StepStatus::Running, None));
    node.journal.heal();
    assert_eq!(end(&run).await.status, RunStatus::Completed);
}

#[tokio::test(start_paused = true)]
async fn cancel_and_deadline_work_while_the_journal_is_stuck() {
    let backends = backends(&Answer::Hang);
    let node = node(FakeJournal::new(ms(1)), clock(), &backends).await;
    let cancelled = node.accept(&chain(&["a"])).await;
    let late = NewRun { deadline: Some(s(30)), ..new(&chain(&["b"])) };
    let late = node.runtime.accept_run(late).await.unwrap().handle.unwrap();
    tokio::time::sleep(s(1)).await;
    node.journal.stick();
    cancelled.cancel();
    tokio::time::sleep(s(60)).await;
    for backend in &backends[..2] {
        assert_eq!(backend.running.load(std::sync::atomic::Ordering::SeqCst), 0, "work upstream ends at once");
    }
    for run in [&cancelled, &late] {
        assert!(run.status().is_none() && !run.record().status.is_terminal(), "its end is not written");
        assert_eq!(run.why(), Some(Why::Journal));
        assert!(run.events_after(0).iter().all(|event| event.kind != EventType::RunFinished));
    }
    node.journal.heal();
    assert_eq!(end(&cancelled).await.status, RunStatus::Cancelled);
    assert_eq!(end(&late).await.status, RunStatus::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn pieces_are_bounded_while_the_journal_is_stuck() {
    let talks =
        Scripted::new(|_, _| (0..3_000).fold(Answer::Good, |then, _| Answer::Content(Box::new(then.after(ms(250))))));
    let mut streams = alone("a", 10);
    streams.timeouts.first_token = Some(s(60));
    streams.timeouts.attempt = Some(s(3_000));
    streams.timeouts.call = s(3_000);
    let journal = FakeJournal::new(ms(1));
    let builder = builder().clock(clock()).journal(Arc::new(Handle(journal.clone())));
    let runtime = builder.provider(provider("a-host")).agent(streams, talks).start().await.unwrap();
    let text = workflow("deadline = \"1h\"", &chain_text(&["a"]));
    let run = runtime.accept_run(new(&text)).await.unwrap().handle.unwrap();
    tokio::time::sleep(s(10)).await;
    journal.stick();
    tokio::time::sleep(s(1_000)).await;
    journal.heal();
    assert_eq!(end(&run).await.status, RunStatus::Completed);
    let pieces = journal.events(run.id()).iter().filter(|event| event.kind == EventType::StepDelta).count();
    assert!((500..1_500).contains(&pieces), "{pieces}");
}

/// A list, a chain and a revision: 12 calls by four agents.
fn everything() -> Arc<Workflow> {
    workflow(
        "output = \"steps.draft.output\"",
        r#"[[step]]
id = "facts"
agent = "a"
in = "item"
map = { over = "range(5)", as = "item", parallel = 3 }
[[step]]
id = "draft"
agent = "b"
in = { facts = "steps.facts.output", before = "revision.candidate if revision else none" }
[[step]]
id = "review"
agent = "c"
in = "steps.draft.output"
revise = { step = "draft", until = "output.score >= 80", max = 2 }
[[step]]
id = "meta"
agent = "d"
needs = ["review"]
"#,
    )
}

fn four() -> Vec<Arc<Scripted>> {
    vec![
        Scripted::always(Answer::Good.after(ms(30))),
        Scripted::always(Answer::Good.after(ms(110))),
        Scripted::new(|request, _| {
            let score = if request.idempotency_key.ends_with("/1") { 90 } else { 50 };
            Answer::Say(json!({ "score": score })).after(ms(20))
        }),
        Scripted::always(Answer::Good.after(ms(40))),
    ]
}

/// The calls that were made, by idempotency key.
fn called(backends: &[Arc<Scripted>]) -> Vec<String> {
    let keys = |backend: &Arc<Scripted>| -> Vec<String> {
        backend.requests.lock().unwrap().iter().map(|request| request.idempotency_key.clone()).collect()
    };
    backends.iter().flat_map(keys).collect()
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_batch_loses_nothing_and_pays_nothing_twice() {
    for dies_after in 1..40 {
        let (backends, clock) = (four(), clock());
        let first = node(FakeJournal::new(ms(3)), clock.clone(), &backends).await;
        let runs = [first.accept(&everything()).await, first.accept(&chain(&["a", "b", "d"])).await];
        let ids = runs.each_ref().map(|run| run.id().to_owned());
        first.journal.dies_after(dies_after);
        for _ in 0..2_000 {
            if first.journal.is_dead() || runs.iter().all(|run| run.status().is_some()) {
                break;
            }
            tokio::time::sleep(ms(1)).await;
        }
        let paid = first.journal.ended_calls();
        let before = called(&backends).len();
        let (second, resumed) = first.restart(clock, &backends).await;
        for run in &resumed {
            assert_eq!(end(run).await.status, RunStatus::Completed, "died after {dies_after}");
        }
        settle().await;
        let again = called(&backends);
        for key in &paid {
            assert_eq!(again.iter().filter(|called| *called == key).count(), 1, "{key} was paid for twice");
        }
        assert!(again.len() >= before);
        for id in &ids {
            let record = second.journal.finished(id).unwrap();
            assert_eq!(record.status, RunStatus::Completed);
            let events = second.journal.events(id);
            assert_eq!(events.iter().filter(|event| event.kind == EventType::RunStarted).count(), 1);
            assert_eq!(events.last().unwrap().kind, EventType::RunFinished);
        }
        let draft = second.journal.finished(&ids[0]).unwrap();
        assert_eq!(draft.steps.iter().filter(|step| step.id == "review").count(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_promise_means_one_run_over_restarts_too() {
    let (backends, clock) = (backends(&Answer::Good.after(s(5))), clock());
    let promise = |hash: &str| Some(Idempotency { key: "k".into(), request_hash: hash.into() });
    let ask = |hash: &str| NewRun { idempotency: promise(hash), ..new(&chain(&["a"])) };
    let node = node(FakeJournal::new(ms(1)), clock.clone(), &backends).await;
    let Accepted { run_id, replayed, .. } = node.runtime.accept_run(ask("1")).await.unwrap();
    assert!(!replayed);
    let (node, _) = node.restart(clock, &backends).await;
    let second = node.runtime.accept_run(ask("1")).await.unwrap();
    assert_eq!((second.run_id.as_str(), second.replayed), (run_id.as_str(), true));
    assert_eq!(end(&second.handle.unwrap()).await.status, RunStatus::Completed);
    let refused = node.runtime.accept_run(ask("2")).await.unwrap_err();
    assert_eq!((refused.error_code, refused.http_status), (ErrorCode::InvalidRequest, 422));
}

#[tokio::test(start_paused = true)]
async fn a_full_journal_takes_no_run_and_says_so() {
    let backends = backends(&Answer::Good);
    let node = node(FakeJournal::new(ms(1)), clock(), &backends).await;
    node.journal.fill();
    let refused = node.runtime.accept_run(new(&chain(&["a"]))).await.unwrap_err();
    assert_eq!((refused.error_code, refused.http_status, refused.retryable), (ErrorCode::Internal, 503, true));
    assert_eq!(refused.details["reason"], "journal");
    settle().await;
    assert_eq!(backends[0].count(), 0, "nothing of it is there");
    node.journal.heal();
    assert_eq!(end(&node.accept(&chain(&["a"])).await).await.status, RunStatus::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stops_finishes_steps_and_ends_no_run() {
    let (backends, clock) = (backends(&Answer::Good.after(s(4))), clock());
    backends[1].now(Answer::Hang);
    let first = node(FakeJournal::new(ms(1)), clock.clone(), &backends).await;
    let short = first.accept(&chain(&["a", "c"])).await;
    let long = first.accept(&chain(&["b"])).await;
    tokio::time::sleep(s(1)).await;
    first.runtime.drain(s(10)).await;
    assert!(first.runtime.accept_run(new(&chain(&["a"]))).await.is_err());
    assert_eq!(first.journal.ended_calls().len(), 1, "the step under way was finished and written");
    assert_eq!(backends[2].count(), 0, "no new step began");
    for run in [&short, &long] {
        assert!(first.journal.finished(run.id()).is_none(), "no run was ended");
    }
    backends[1].now(Answer::Good);
    let (second, resumed) = first.restart(clock, &backends).await;
    assert!(!short.finished().await.status.is_terminal(), "who waited at the old node is let go");
    for run in &resumed {
        assert_eq!(end(run).await.status, RunStatus::Completed);
    }
    let begun: Vec<usize> = backends.iter().map(|backend| backend.count()).collect();
    assert_eq!((resumed.len(), begun), (2, vec![1, 2, 1, 0]));
    let events = second.journal.events(short.id());
    assert!(events.iter().any(|event| event.kind == EventType::RunResumed && event.data["reason"] == "restart"));
}

#[tokio::test(start_paused = true)]
async fn what_may_act_once_is_put_aside_and_released() {
    let (backends, clock) = (backends(&Answer::Hang), clock());
    let once = workflow("", &(chain_text(&["a"]) + "effects = \"once\"\n"));
    let first = node(FakeJournal::new(ms(1)), clock.clone(), &backends).await;
    first.accept(&once).await;
    tokio::time::sleep(s(1)).await;
    let (second, resumed) = first.restart(clock, &backends).await;
    tokio::time::sleep(s(1)).await;
    let run = &resumed[0];
    assert!(matches!(run.why(), Some(Why::Parked { reason, .. }) if reason == "in_doubt"));
    {
        let disk = second.journal.disk.lock().unwrap();
        assert_eq!((disk.letters.len(), disk.letters[0].cause), (1, DeadCause::InDoubt));
        assert_eq!(disk.letters[0].run_id.as_deref(), Some(run.id()));
        assert!(!disk.letters[0].id.contains('/'), "an id is one segment of a path");
    }
    assert_eq!(backends[0].count(), 1);
    backends[0].now(Answer::Good);
    for (step, index, iteration) in [("b", None, 0), ("a", None, 1), ("a", Some(1), 0)] {
        assert!(!run.release(step, index, iteration), "nothing waits there");
    }
    assert!(run.release("a", None, 0));
    assert_eq!(end(run).await.status, RunStatus::Completed);
    assert!(!run.release("a", None, 0), "of two operators one");
    assert_eq!(backends[0].count(), 2);
    let requests = backends[0].requests.lock().unwrap();
    assert_eq!(requests[0].idempotency_key, requests[1].idempotency_key);
}

#[tokio::test(start_paused = true)]
async fn what_was_not_sent_when_the_node_stopped_is_not_in_doubt() {
    let (backends, clock) = (backends(&Answer::Good), clock());
    let once = workflow("", &(chain_text(&["a"]) + "effects = \"once\"\n"));
    let first = node(FakeJournal::new(s(1)), clock.clone(), &backends).await;
    let run = first.accept(&once).await;
    settle().await;
    // Its start is on the way to the disk, and its call waits for that.
    first.runtime.drain(s(1)).await;
    let started = first.journal.events(run.id()).iter().filter(|event| event.kind == EventType::StepStarted).count();
    assert_eq!((started, backends[0].count()), (1, 0));
    let (second, resumed) = first.restart(clock, &backends).await;
    assert_eq!(end(&resumed[0]).await.status, RunStatus::Completed);
    assert_eq!((backends[0].count(), second.journal.disk.lock().unwrap().letters.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_stood_in_the_line_when_the_node_stopped_is_not_in_doubt() {
    let (backends, clock) = (backends(&Answer::Hang), clock());
    let once = workflow("", &(chain_text(&["a"]) + "effects = \"once\"\n"));
    let first = node(FakeJournal::new(ms(1)), clock.clone(), &backends).await;
    for _ in 0..10 {
        first.accept(&chain(&["a"])).await;
    }
    tokio::time::sleep(s(1)).await;
    let run = first.accept(&once).await;
    tokio::time::sleep(s(1)).await;
    assert!(matches!(run.why(), Some(Why::Line { .. })), "{:?}", run.why());
    first.runtime.drain(s(1)).await;
    assert_eq!(backends[0].count(), 10);
    backends[0].now(Answer::Good);
    let (second, resumed) = first.restart(clock, &backends).await;
    for run in &resumed {
        assert_eq!(end(run).await.status, RunStatus::Completed);
    }
    assert_eq!((resumed.len(), second.journal.disk.lock().unwrap().letters.len()), (11, 0));
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_plan_is_broken_fails_and_is_put_aside() {
    let (backends, clock) = (backends(&Answer::Good.after(s(2))), clock());
    let first = node(FakeJournal::new(ms(1)), clock.clone(), &backends).await;
    let run = first.accept(&chain(&["a", "b"])).await;
    tokio::time::sleep(s(3)).await;
    let journal = first.journal.reopen();
    drop(first.runtime);
    settle().await;
    let second = node(journal.clone(), clock, &backends).await;
    let mut stored = Handle(journal).take_over().await.unwrap();
    stored[0].ended[0].record.id = "nowhere".into();
    let resumed = second.runtime.resume(stored);
    let record = resumed[0].finished().await;
    assert_eq!((resumed[0].id(), record.status), (run.id(), RunStatus::Failed));
    assert_eq!(record.error.as_ref().unwrap().error_code, ErrorCode::Internal);
    settle().await;
    let disk = second.journal.disk.lock().unwrap();
    let letter = &disk.letters[0];
    assert_eq!(
        (disk.letters.len(), letter.cause, letter.run_id.as_deref()),
        (1, DeadCause::PlanPanicked, Some(run.id()))
    );
    assert!(letter.message.contains("nowhere"), "{}", letter.message);
    assert_eq!(backends[1].count(), 1, "nothing of it was called again");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_another_node_took_is_let_go() {
    let backends = backends(&Answer::Good.after(s(2)));
    let node = node(FakeJournal::new(ms(1)), clock(), &backends).await;
    let run = node.accept(&chain(&["a", "b"])).await;
    tokio::time::sleep(s(1)).await;
    let before = node.journal.events(run.id());
    // Another process on the same disk: this one may write no more, and does not know yet.
    assert_eq!(Handle(node.journal.clone()).take_over().await.unwrap().len(), 1);
    let record = tokio::time::timeout(s(60), run.finished()).await.expect("let go");
    assert!(!record.status.is_terminal(), "it goes on elsewhere");
    assert_eq!(node.journal.events(run.id()), before);
    assert!(node.runtime.run(run.id()).is_none());
    tokio::time::sleep(s(60)).await;
    assert_eq!(backends[1].count(), 0, "nothing is built upon what was not written");
}

#[tokio::test(start_paused = true)]
async fn a_repair_does_again_what_was_degraded_and_what_depends_on_it() {
    let backends = backends(&Answer::Good);
    backends[1].now(Answer::status(422));
    let text = chain_text(&["a"])
        + "[[step]]\nid = \"b\"\nagent = \"b\"\nneeds = [\"a\"]\noptional = true\n[[step]]\nid = \"c\"\nagent = \"c\"\nin = { b = \"steps.b.output\" }\n[[step]]\nid = \"d\"\nagent = \"d\"\nneeds = [\"a\"]\n";
    let text = workflow("output = \"steps.c.output\"", &text);
    let node = node(FakeJournal::new(ms(1)), clock(), &backends).await;
    let run = node.accept(&text).await;
    let old = node.journal.accepted(run.id());
    let live = node.runtime.repair(&old, &run.record(), RunOwner::default(), None).await.unwrap_err();
    assert_eq!(live.error_code, ErrorCode::Conflict);
    let record = end(&run).await;
    assert_eq!(record.status, RunStatus::CompletedDegraded);
    backends[1].now(Answer::Good);
    let repaired = node.runtime.repair(&old, &record, RunOwner::default(), None).await.unwrap();
    let repaired = repaired.handle.unwrap();
    let done = repaired.finished().await;
    assert_eq!((done.status, done.degraded.len()), (RunStatus::Completed, 0));
    assert_eq!(backends.iter().map(|backend| backend.count()).collect::<Vec<_>>(), [1, 2, 2, 1]);
    assert_ne!(repaired.id(), run.id());
    let origin = node.journal.accepted(repaired.id()).origin.clone().unwrap();
    assert_eq!((origin.kind, origin.run_id.as_str()), (OriginKind::Repair, run.id()));
    assert_eq!(origin.again.iter().map(String::as_str).collect::<Vec<_>>(), ["b", "c"]);
    let reused: Vec<String> = repaired
        .events_after(0)
        .into_iter()
        .filter(|event| event.kind == EventType::StepFinished && event.data["reused"] == true)
        .filter_map(|event| event.step)
        .collect();
    assert_eq!(reused, ["a", "d"]);
    let nothing = node.runtime.repair(&old, &done, RunOwner::default(), None).await.unwrap_err();
    assert_eq!(nothing.error_code, ErrorCode::Conflict);
}

#[tokio::test(start_paused = true)]
async fn a_rerun_takes_over_what_came_before_and_may_change_a_prompt() {
    let (backends, clock) = (backends(&Answer::Good.after(s(2))), clock());
    let node = node(FakeJournal::new(ms(1)), clock.clone(), &backends).await;
    let run = node.accept(&chain(&["a", "b", "c"])).await;
    let record = end(&run).await;
    let old = node.journal.accepted(run.id());
    let prompts = BTreeMap::from([("b".to_owned(), "shorter".to_owned())]);
    let ask = |from: &'static str| node.runtime.rerun(&old, &record, from, prompts.clone(), RunOwner::default(), None);
    assert_eq!(ask("z").await.unwrap_err().error_code, ErrorCode::InvalidRequest);
    ask("b").await.unwrap();
    tokio::time::sleep(s(1)).await;
    // Its prompt and what it took over are written with it.
    let (node, resumed) = node.restart(clock, &backends).await;
    let done = end(&resumed[0]).await;
    assert_eq!(done.status, RunStatus::Completed);
    let (rerun_of, again) = (done.rerun_of.clone().unwrap(), vec!["b".to_owned(), "c".to_owned()]);
    let want = RerunOf { run_id: record.run_id.clone(), kind: OriginKind::Rerun, from: Some("b".into()), again };
    assert_eq!((rerun_of, &record.rerun_of), (want, &None));
    assert_eq!(backends.iter().map(|backend| backend.count()).collect::<Vec<_>>(), [1, 3, 2, 0]);
    let prompts: Vec<Option<Arc<str>>> =
        backends[1].requests.lock().unwrap().iter().map(|request| request.prompt.clone()).collect();
    assert_eq!(prompts, [None, Some("shorter".into()), Some("shorter".into())]);
    drop(node);
}

/// What came before is not paid again, whatever it came to: a step that something stood in for, items that a list did without.
#[tokio::test(start_paused = true)]
async fn a_rerun_takes_over_what_was_done_instead() {
    let (backends, clock) = (backends(&Answer::Good), clock());
    backends[1].now(Answer::status(422));
    let node = node(FakeJournal::new(ms(1)), clock, &backends).await;
    let text = workflow(
        "output = \"steps.d.output\"",
        "[[step]]\nid = \"a\"\nagent = \"a\"\n\
         [[step]]\nid = \"b\"\nagent = \"b\"\nin = { a = \"steps.a.output\" }\non = { error = \"default\" }\ndefault = { x = 1 }\n\
         [[step]]\nid = \"s\"\nagent = \"b\"\nneeds = [\"a\"]\noptional = true\n\
         [[step]]\nid = \"c\"\nagent = \"c\"\nin = { b = \"steps.b.output\" }\nneeds = [\"s\"]\n\
         [[step]]\nid = \"d\"\nagent = \"d\"\nin = { c = \"steps.c.output\" }\n",
    );
    let run = node.accept(&text).await;
    let record = end(&run).await;
    assert_eq!((record.status, record.degraded.len()), (RunStatus::CompletedDegraded, 2), "{record:?}");
    let counts = || backends.iter().map(|backend| backend.count()).collect::<Vec<_>>();
    assert_eq!(counts(), [1, 2, 1, 1]);
    let old = node.journal.accepted(run.id());
    let rerun = node.runtime.rerun(&old, &record, "c", BTreeMap::new(), RunOwner::default(), None).await.unwrap();
    let done = rerun.handle.unwrap().finished().await;
    assert_eq!(counts(), [1, 2, 2, 2], "only c and what depends on it");
    assert_eq!((done.status, &done.degraded), (RunStatus::CompletedDegraded, &record.degraded));
    let output = |record: &RunRecord, id: &str| record.steps.iter().find(|step| step.id == id).unwrap().output.clone();
    assert_eq!(output(&done, "b"), output(&record, "b"));
    // A repair is there for just that.
    backends[1].now(Answer::Good);
    let repaired = node.runtime.repair(&old, &record, RunOwner::default(), None).await.unwrap();
    assert_eq!(repaired.handle.unwrap().finished().await.status, RunStatus::Completed);
    assert_eq!(counts(), [1, 4, 3, 3]);
}

#[tokio::test(start_paused = true)]
async fn whose_a_run_is_travels_with_every_call() {
    let backends = backends(&Answer::Good);
    let node = node(FakeJournal::new(Duration::ZERO), clock(), &backends).await;
    let owner = RunOwner {
        tenant: Some("acme".into()),
        feature: Some("blog".into()),
        priority: Some("batch".into()),
        ..RunOwner::default()
    };
    let run = node.runtime.accept_run(NewRun { owner, ..new(&chain(&["a"])) }).await.unwrap().handle.unwrap();
    end(&run).await;
    let requests = backends[0].requests.lock().unwrap();
    let seen = (requests[0].tenant.as_deref(), requests[0].feature.as_deref(), requests[0].priority.as_deref());
    assert_eq!(seen, (Some("acme"), Some("blog"), Some("batch")));
}

#[tokio::test(start_paused = true)]
async fn of_runs_that_are_over_few_stay_in_memory() {
    let node = node(FakeJournal::new(Duration::ZERO), clock(), &backends(&Answer::Good)).await;
    let first = node.accept(&chain(&["a"])).await;
    end(&first).await;
    for _ in 0..200 {
        end(&node.accept(&chain(&["a"])).await).await;
    }
    assert!(node.runtime.run(first.id()).is_none());
    assert!(Handle(node.journal.clone()).record(first.id()).await.unwrap().is_some());
}

/// Lets time pass until it holds; a test that waits in vain fails.
async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(ms(10)).await;
    }
    panic!("never: {what}");
}

/// A turn that asks for a call and says nothing waits for what was said before, and must hear of it.
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_an_earlier_batch_is_made_once_that_is_durable() {
    let (backends, clock) = (backends(&Answer::Good), clock());
    backends[0].now(Answer::Hang);
    let node = node(FakeJournal::new(s(1)), clock, &backends).await;
    let text = chain_text(&["a"]) + "[[step]]\nid = \"b\"\nagent = \"b\"\n";
    let run = node.accept(&workflow("", &text)).await;
    settle().await;
    // Both have begun and wait for the disk; the gate of one closes meanwhile.
    node.runtime.act("agent:b", BreakerAct::ForceOpen).unwrap();
    until("a is called", || backends[0].count() == 1).await;
    assert_eq!(backends[1].count(), 0);
    // Its refusal is on the way to the disk when its gate opens again.
    node.runtime.act("agent:b", BreakerAct::Reset).unwrap();
    tokio::time::sleep(s(20)).await;
    assert_eq!(backends[1].count(), 1, "{:?}", run.why());
}

/// The same where what was said before is a piece of another step's content.
#[tokio::test(start_paused = true)]
async fn a_step_joins_the_line_while_another_one_talks() {
    let talks = (0..200).fold(Answer::Good, |then, _| Answer::Content(Box::new(then.after(ms(500)))));
    let backends =
        [Scripted::always(talks), Scripted::always(Answer::Good.after(s(30))), Scripted::always(Answer::Good)];
    let mut streams = alone("a", 10);
    streams.timeouts.first_token = Some(s(60));
    streams.timeouts.attempt = Some(s(300));
    streams.timeouts.call = s(300);
    let journal = FakeJournal::new(s(1));
    let mut builder = builder().clock(clock()).journal(Arc::new(Handle(journal)));
    for (settings, backend) in [streams, alone("b", 1), alone("c", 1)].into_iter().zip(&backends) {
        builder = builder.provider(provider(settings.provider.as_str())).agent(settings, backend.clone());
    }
    let runtime = builder.start().await.unwrap();
    let first = runtime.accept_run(new(&chain(&["b"]))).await.unwrap().handle.unwrap();
    until("the slot is taken", || backends[1].count() == 1).await;
    let text = chain_text(&["a"])
        + "[[step]]\nid = \"c\"\nagent = \"c\"\n[[step]]\nid = \"b\"\nagent = \"b\"\nneeds = [\"c\"]\n";
    let second = runtime.accept_run(new(&workflow("", &text))).await.unwrap().handle.unwrap();
    assert_eq!(end(&first).await.status, RunStatus::Completed);
    tokio::time::sleep(s(1)).await;
    assert_eq!(backends[1].count(), 2, "{:?}", second.why());
}

/// Two lists of calls on one journal: of eight items one hangs as what kills the process would, the others are quick.
#[tokio::test(start_paused = true)]
async fn calls_that_were_under_way_at_several_deaths_are_begun_one_at_a_time() {
    let text = "[[step]]\nid = \"m\"\nagent = \"a\"\nin = \"item\"\nmap = { over = \"range(4)\", as = \"item\", parallel = 4 }\n";
    let (clock, journal) = (clock(), FakeJournal::new(ms(1)));
    journal.disk.lock().unwrap().clock = Some(clock.clone());
    let dying = backends(&Answer::Hang);
    let mut node = node(journal, clock.clone(), &dying).await;
    let workflow = workflow("output = \"1\"\ndeadline = \"20m\"", text);
    for _ in 0..2 {
        node.accept(&workflow).await;
    }
    tokio::time::sleep(s(1)).await;
    for death in 1..SUSPECT_DEATHS {
        let (next, _) = node.restart(clock.clone(), &dying).await;
        node = next;
        tokio::time::sleep(s(1)).await;
        assert_eq!(dying[0].count(), 8 * (death as usize + 1), "all at once");
    }
    // One at a time, each as soon as the one before is over.
    let (mut node, runs) = node.restart(clock.clone(), &dying).await;
    let before = dying[0].count();
    tokio::time::sleep(s(1)).await;
    assert_eq!(dying[0].count(), before + 1);
    let waits = runs.iter().filter(|run| matches!(run.why(), Some(Why::Parked { reason, .. }) if reason == SUSPECT));
    assert_eq!(waits.count(), 1, "the other one has the call that is tried");
    // What runs alone for longer than a trial is waited for no more.
    tokio::time::sleep(TRIAL_MAX).await;
    assert_eq!(dying[0].count(), before + 2);
    // The death takes place in the second trial: that one is blamed, and comes last after a while in which nothing is tried.
    let quick = backends(&Answer::Good.after(ms(100)));
    let (next, runs) = node.restart(clock.clone(), &quick).await;
    node = next;
    tokio::time::sleep(ms(350)).await;
    assert!(quick[0].count() <= 4, "one at a time: {}", quick[0].count());
    tokio::time::sleep(s(3)).await;
    assert_eq!(quick[0].count(), 7);
    for run in &runs {
        assert_eq!(end(run).await.status, RunStatus::Completed);
    }
    assert_eq!(quick[0].count(), 8);
    assert!(node.journal.disk.lock().unwrap().letters.is_empty());
}

/// The same call dies with the process again and again, alone: it is put aside, its neighbours end, and an operator lets it go on.
#[tokio::test(start_paused = true)]
async fn a_call_that_kills_the_process_is_put_aside_and_nobody_else_is() {
    let (clock, journal) = (clock(), FakeJournal::new(ms(1)));
    journal.disk.lock().unwrap().clock = Some(clock.clone());
    let all = backends(&Answer::Good.after(ms(50)));
    all[0].now(Answer::Hang);
    let mut node = node(journal, clock.clone(), &all).await;
    let killer = node.accept(&chain(&["a"])).await.id().to_owned();
    let (mut deaths, mut calls) = (0, 0);
    let mut others = Vec::new();
    let waits = loop {
        others.push(node.accept(&chain(&["b"])).await.id().to_owned());
        // Dies a second after the call begins, whenever that is: it may be before this node was seen to be there.
        let begins = async {
            while all[0].count() == calls {
                tokio::time::sleep(ms(100)).await;
            }
        };
        if tokio::time::timeout(s(300), begins).await.is_err() {
            break node;
        }
        tokio::time::sleep(s(1)).await;
        calls = all[0].count();
        (node, _) = node.restart(clock.clone(), &all).await;
        deaths += 1;
        assert!(deaths < 20, "it is never found");
    };
    assert_eq!(deaths, SUSPECT_DEATHS + BLAMES_MAX);
    let letters = waits.journal.disk.lock().unwrap().letters.clone();
    assert_eq!((letters.len(), letters[0].cause), (1, DeadCause::KilledProcess));
    assert!(letters[0].message.contains("4 times"), "{}", letters[0].message);
    assert_eq!(letters[0].run_id.as_ref(), Some(&killer));
    assert!(others.iter().all(|run| waits.journal.finished(run).is_some()));
}
