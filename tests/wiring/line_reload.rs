//! Callers in line while a reload moves their agent, takes it away or brings it back: they stand on for what there is, as old and as patient
//! as they were.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use watertight::{
    policy::compartment::settings::{CompartmentSettings, FeatureSettings},
    runtime::{
        call::{CallContext, CallError, CallReply, CallRequest},
        engine::Runtime,
        parts::Parts,
        ports::{AttemptRequest, Backend, BoxFuture, Progress},
        settings::ProviderSettings,
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, code, name, pass, provider, settle},
    support::{ms, s},
};

type Calling = tokio::task::JoinHandle<Result<CallReply, CallError>>;

/// An agent whose answers take 10 s, and which notes whom it answered.
#[derive(Clone)]
struct World {
    backend: Arc<Scripted>,
}

impl World {
    /// `draft` with so many slots, on this provider with so many.
    fn parts(&self, on: &str, (slots, of_provider): (u32, Option<u32>)) -> Parts {
        let mut draft = agent("draft", on);
        draft.slots = slots;
        let chat = FeatureSettings { max_wait: s(30), ..FeatureSettings::new(name("chat")) };
        Parts::new()
            .provider(ProviderSettings { slots: of_provider, ..provider(on) })
            .agent(draft, self.backend.clone())
            .compartments(CompartmentSettings { features: vec![chat], ..CompartmentSettings::default() })
    }

    /// The same without the agent.
    fn without(&self) -> Parts {
        let chat = FeatureSettings { max_wait: s(30), ..FeatureSettings::new(name("chat")) };
        Parts::new()
            .provider(provider("else"))
            .agent(agent("review", "else"), self.backend.clone())
            .compartments(CompartmentSettings { features: vec![chat], ..CompartmentSettings::default() })
    }

    async fn start(of: (u32, Option<u32>)) -> (Self, Runtime) {
        let world = Self { backend: Scripted::always(Answer::Good.after(s(10))) };
        let runtime = builder().parts(world.parts("p", of)).start().await.unwrap();
        (world, runtime)
    }

    /// Who was asked for, in order.
    fn asked(&self) -> Vec<u64> {
        let requests = self.backend.requests.lock().unwrap();
        requests.iter().map(|request| request.input["who"].as_u64().unwrap()).collect()
    }
}

fn calling(runtime: &Runtime, who: u64) -> Calling {
    let handle = runtime.agent("draft").unwrap();
    let context = CallContext { feature: Some("chat".to_owned()), ..CallContext::default() };
    let request = CallRequest { context, ..CallRequest::of(serde_json::json!({ "who": who })) };
    tokio::spawn(async move { handle.call(request).await })
}

async fn callings(runtime: &Runtime, who: std::ops::Range<u64>) -> Vec<Calling> {
    let mut calls = Vec::new();
    for who in who {
        calls.push(calling(runtime, who));
        pass(ms(1)).await;
    }
    calls
}

async fn codes(calls: Vec<Calling>) -> Vec<String> {
    let mut codes = Vec::new();
    for call in calls {
        codes.push(code(&call.await.unwrap()));
    }
    codes
}

/// Two run, four wait; the agent moves to another provider, back, and to another one again. Nobody is refused, and nobody overtakes.
#[tokio::test(start_paused = true)]
async fn who_waits_for_an_agent_that_moves_waits_on() {
    let (world, runtime) = World::start((2, None)).await;
    let mut calls = callings(&runtime, 0..6).await;
    for on in ["q", "p", "q"] {
        runtime.reload(world.parts(on, (2, None))).await.unwrap();
        pass(s(1)).await;
    }
    // They came after those who wait, whatever they find.
    calls.extend(callings(&runtime, 6..8).await);
    assert_eq!(codes(calls).await, ["OK"; 8]);
    assert_eq!(world.asked(), (0..8).collect::<Vec<_>>());
    settle().await;
    assert_eq!(runtime.agent("draft").unwrap().in_flight(), 0);
}

/// What they wait for is held for long, and where the agent is now there is room: they need not wait any more.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_provider_finds_room_at_the_next() {
    let (world, runtime) = World::start((10, Some(1))).await;
    world.backend.now(Answer::Good.after(s(50)));
    let mut calls = callings(&runtime, 0..4).await;
    assert_eq!(world.asked(), [0]);
    world.backend.now(Answer::Good.after(s(1)));
    let began = Instant::now();
    runtime.reload(world.parts("q", (10, Some(5)))).await.unwrap();
    assert_eq!(codes(calls.split_off(1)).await, ["OK"; 3]);
    assert_eq!(began.elapsed(), s(1));
    assert_eq!((codes(calls).await, world.asked()), (vec!["OK".to_owned()], vec![0, 1, 2, 3]));
}

#[tokio::test(start_paused = true)]
async fn patience_is_what_it_was_and_ends_with_the_right_word() {
    let (world, runtime) = World::start((1, None)).await;
    world.backend.now(Answer::Good.after(s(1_000)));
    let mut calls = callings(&runtime, 0..2).await;
    let began = Instant::now();
    for on in ["q", "p", "q"] {
        pass(s(7)).await;
        runtime.reload(world.parts(on, (1, None))).await.unwrap();
    }
    let refused = calls.pop().unwrap().await.unwrap();
    assert_eq!(code(&refused), "AGENT_BULKHEAD_FULL");
    assert!(began.elapsed() >= ms(29_990) && began.elapsed() <= s(30), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_comes_back_soon_finds_who_waited_for_it() {
    let (world, runtime) = World::start((1, None)).await;
    let calls = callings(&runtime, 0..4).await;
    for _ in 0..2 {
        runtime.reload(world.without()).await.unwrap();
        pass(s(3)).await;
        runtime.reload(world.parts("p", (2, None))).await.unwrap();
        settle().await;
    }
    assert_eq!(codes(calls).await, ["OK"; 4]);
    assert_eq!(world.asked(), [0, 1, 2, 3]);
    // One that stays away is not there: who waited hears so after some seconds, or when its patience ends.
    let calls = callings(&runtime, 4..8).await;
    pass(s(1)).await;
    let began = Instant::now();
    runtime.reload(world.without()).await.unwrap();
    assert_eq!(codes(calls).await, ["OK", "OK", "NOT_FOUND", "NOT_FOUND"]);
    assert!((s(5)..=s(10)).contains(&began.elapsed()), "{:?}", began.elapsed());
}

/// Answers at once on a thread of its own runtime; counts who is in at the same time.
struct Counting(Mutex<(u32, u32)>);

impl Backend for Counting {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        _: &'a Progress,
    ) -> BoxFuture<'a, Result<watertight::model::reply::Reply, watertight::model::reply::AttemptFailure>> {
        Box::pin(async move {
            {
                let mut counts = self.0.lock().unwrap();
                counts.0 += 1;
                counts.1 = counts.1.max(counts.0);
            }
            tokio::time::sleep(ms(2)).await;
            self.0.lock().unwrap().0 -= 1;
            Ok(watertight::model::reply::Reply::of((*request.input).clone()))
        })
    }
}

/// On real threads: an agent that moves all the time, and patient callers. None is refused, and never more are in than it has slots.
#[test]
fn patient_callers_survive_reloads_on_real_threads() {
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    threads.block_on(async {
        let backend = Arc::new(Counting(Mutex::new((0, 0))));
        let parts = |on: &str| {
            let mut draft = agent("draft", on);
            draft.slots = 2;
            let chat = FeatureSettings { max_wait: s(60), line_max: 1_000, ..FeatureSettings::new(name("chat")) };
            Parts::new()
                .provider(provider(on))
                .agent(draft, backend.clone())
                .compartments(CompartmentSettings { features: vec![chat], ..CompartmentSettings::default() })
        };
        let runtime = Arc::new(builder().parts(parts("p")).start().await.unwrap());
        let callers: Vec<_> = (0..20)
            .map(|who| {
                let runtime = Arc::clone(&runtime);
                tokio::spawn(async move {
                    for _ in 0..15 {
                        assert_eq!(code(&calling(&runtime, who).await.unwrap()), "OK");
                    }
                })
            })
            .collect();
        for turn in 0..60 {
            runtime.reload(parts(["q", "p"][turn % 2])).await.unwrap();
            tokio::time::sleep(ms(5)).await;
        }
        for caller in callers {
            caller.await.unwrap();
        }
        assert!(backend.0.lock().unwrap().1 <= 2, "{:?}", backend.0.lock().unwrap());
        // The last slot is given back a moment after its answer.
        let until = tokio::time::Instant::now() + s(30);
        while runtime.agent("draft").unwrap().in_flight() > 0 {
            assert!(tokio::time::Instant::now() < until, "a slot is never given back");
            tokio::time::sleep(ms(1)).await;
        }
    });
}
