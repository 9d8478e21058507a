//! A volume guard that is shut outlives its process, where there is a journal.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use watertight::{
    model::{clock::Timestamp, event::Event, run::RunRecord},
    policy::{crowd::CallerScope, volume::VolumeSettings},
    runtime::{
        call::CallContext,
        callers::CallerSettings,
        engine::Runtime,
        journal::{
            Acceptance, Batch, DeadLetter, Journal, JournalError, RunAccepted, ShutCaller, StoredRun, WhenAccepted,
            WhenDurable,
        },
        ports::{BoxFuture, Clock},
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, call, code, pass, provider, settle},
    support::{call_with, hold, s},
};

/// A journal that keeps callers, and nothing of runs.
#[derive(Default)]
struct Disk {
    shut: Mutex<BTreeMap<String, ShutCaller>>,
}

/// What the trait is implemented on.
struct Handle(Arc<Disk>);

impl Journal for Handle {
    fn accept(&self, _: Arc<RunAccepted>, accepted: WhenAccepted) {
        accepted(Ok(Acceptance::New));
    }

    fn append(&self, _: Batch, durable: WhenDurable) {
        durable();
    }

    fn put_aside(&self, _: DeadLetter) {}

    fn keep_shut(&self, caller: ShutCaller) {
        self.0.shut.lock().unwrap().insert(caller.name.clone(), caller);
    }

    fn forget_shut(&self, name: &str) {
        self.0.shut.lock().unwrap().remove(name);
    }

    fn shut_callers(&self) -> BoxFuture<'_, Result<Vec<ShutCaller>, JournalError>> {
        Box::pin(async { Ok(self.0.shut.lock().unwrap().values().cloned().collect()) })
    }

    fn note_alive(&self) {}

    fn last_alive_ms(&self) -> Option<u64> {
        None
    }

    fn take_over(&self) -> BoxFuture<'_, Result<Vec<StoredRun>, JournalError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn events_after(&self, _: &str, _: u64, _: usize) -> BoxFuture<'_, Result<Vec<Event>, JournalError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn record(&self, _: &str) -> BoxFuture<'_, Result<Option<RunRecord>, JournalError>> {
        Box::pin(async { Ok(None) })
    }
}

/// Moments of one process; Unix time goes on over all of them.
struct OfProcess {
    unix_began: tokio::time::Instant,
    began: tokio::time::Instant,
}

impl Clock for OfProcess {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(10_000_123).after(self.began.elapsed())
    }

    fn unix_ms(&self, at: Timestamp) -> u64 {
        let since_zero = (self.began - self.unix_began).as_millis();
        1_796_000_000_000 + u64::try_from(since_zero).unwrap() + at.millis() - 10_000_123
    }
}

struct World {
    disk: Arc<Disk>,
    began: tokio::time::Instant,
}

impl World {
    fn new() -> Self {
        Self { disk: Arc::default(), began: tokio::time::Instant::now() }
    }

    /// Another process on the same disk, and how many guards it found shut.
    async fn start(&self, volume: Option<VolumeSettings>, slots: u32) -> (Runtime, Arc<Scripted>, usize) {
        let backend = Scripted::always(Answer::Good);
        let mut draft = agent("draft", "local");
        draft.slots = slots;
        let clock = OfProcess { unix_began: self.began, began: tokio::time::Instant::now() };
        let builder = builder()
            .clock(Arc::new(clock))
            .journal(Arc::new(Handle(self.disk.clone())))
            .callers(CallerSettings { volume, scope: CallerScope::Caller })
            .provider(provider("local"))
            .agent(draft, backend.clone());
        let runtime = builder.start().await.unwrap();
        let shut = runtime.restore_callers().await.unwrap();
        (runtime, backend, shut)
    }
}

fn three() -> VolumeSettings {
    VolumeSettings::of_calls(3)
}

fn key(name: &str) -> CallContext {
    CallContext { key_id: Some(name.to_owned()), ..CallContext::default() }
}

#[tokio::test(start_paused = true)]
async fn a_restart_does_not_let_a_loop_go_on() {
    let world = World::new();
    let (runtime, _, shut) = world.start(Some(three()), 10).await;
    assert_eq!(shut, 0);
    for want in ["OK", "OK", "OK", "CALL_VOLUME_EXCEEDED", "CALL_VOLUME_EXCEEDED"] {
        assert_eq!(code(&call_with(&runtime, "draft", key("loop")).await), want);
        pass(s(100)).await;
    }
    assert_eq!(code(&call_with(&runtime, "draft", key("other")).await), "OK");
    drop(runtime);
    // Shut at 300 s, for the rest of the hour of the first call, which leaves at 3,601 s: that is later than half an hour.
    for down in [0, 600, 1_000] {
        pass(s(down)).await;
        let (runtime, backend, shut) = world.start(Some(three()), 10).await;
        assert_eq!(shut, 1);
        let refused = call_with(&runtime, "draft", key("loop")).await;
        assert_eq!(code(&refused), "CALL_VOLUME_EXCEEDED", "after {down} s more");
        let opens_in = Duration::from_secs_f64(refused.unwrap_err().envelope.retry_after.unwrap());
        let opens_at = world.began.elapsed() + opens_in;
        assert!((s(3_600)..=s(3_602)).contains(&opens_at), "{opens_at:?}");
        let view = runtime.callers();
        assert_eq!((view.len(), view[0].name.as_str(), view[0].volume.admitted), (1, "key:loop", 3));
        assert_eq!(code(&call_with(&runtime, "draft", key("other")).await), "OK", "others feel nothing");
        assert_eq!(backend.count(), 1);
    }
    // Past its time it is open, and not written down any more.
    pass(s(1_600)).await;
    let (runtime, _, shut) = world.start(Some(three()), 10).await;
    assert_eq!((shut, world.disk.shut.lock().unwrap().len()), (0, 0));
    assert_eq!(code(&call_with(&runtime, "draft", key("loop")).await), "OK");
}

#[tokio::test(start_paused = true)]
async fn who_is_let_go_is_not_shut_again_by_a_restart() {
    let world = World::new();
    let (runtime, backend, _) = world.start(Some(three()), 3).await;
    for _ in 0..4 {
        drop(call(&runtime, "draft").await);
    }
    assert_eq!(world.disk.shut.lock().unwrap().keys().collect::<Vec<_>>(), ["local"]);
    // By an operator.
    assert!(runtime.lift_caller("local").unwrap());
    assert!(world.disk.shut.lock().unwrap().is_empty());
    let (again, _, shut) = world.start(Some(three()), 3).await;
    assert_eq!((shut, code(&call(&again, "draft").await)), (0, "OK".to_owned()));
    // Since the process before it was shut, lifted, and restored shut: also there.
    let (_, held) = hold(&runtime, "draft", &backend, 3).await;
    assert_eq!(code(&call(&runtime, "draft").await), "CALL_VOLUME_EXCEEDED");
    drop(held);
    settle().await;
    let (again, _, shut) = world.start(Some(three()), 3).await;
    assert_eq!(shut, 1);
    assert!(again.lift_caller("local").unwrap());
    assert!(world.disk.shut.lock().unwrap().is_empty());
    assert_eq!(code(&call(&again, "draft").await), "OK");
}

#[tokio::test(start_paused = true)]
async fn without_a_guard_nobody_is_restored_and_nothing_is_kept_for_ever() {
    let world = World::new();
    let (runtime, _, _) = world.start(Some(three()), 3).await;
    for _ in 0..4 {
        drop(call(&runtime, "draft").await);
    }
    let (runtime, _, shut) = world.start(None, 3).await;
    assert_eq!((shut, world.disk.shut.lock().unwrap().len()), (0, 0));
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    // A name of another program's, or none at all.
    let nobody =
        ShutCaller { name: "what:ever".into(), since_ms: u64::MAX, seconds: vec![(0, u32::MAX), (u64::MAX, u32::MAX)] };
    world.disk.shut.lock().unwrap().insert("what:ever".into(), nobody.clone());
    world.disk.shut.lock().unwrap().insert("local".into(), ShutCaller { name: "local".into(), ..nobody });
    let (runtime, _, shut) = world.start(Some(three()), 3).await;
    assert_eq!(shut, 1, "a moment that is still to come is now");
    let refused = call(&runtime, "draft").await.unwrap_err();
    assert!(refused.envelope.retry_after.unwrap() <= 3_602.0);
}
