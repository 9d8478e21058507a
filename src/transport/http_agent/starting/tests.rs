//! When a starting service is asked, and what its callers hear meanwhile. Paused time; one test over a real socket.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::{
    model::name::Name,
    policy::{breaker::state::StateName, retry_settings::RetrySettings},
    runtime::{
        call::{CallError, CallReply, CallRequest},
        engine::Runtime,
        settings::{AgentSettings, ProviderSettings},
    },
    transport::{
        client::ProviderOptions,
        fake_server::{FakeServer, answer},
        http_agent::{backend::HttpAgent, mapping::HttpMapping},
        test_attempt::{request, unwatched},
    },
};

const OWN_REFUSAL: Result<Value, Ending> = Err(Ending::OwnRefusal);

/// Counts its calls and answers them.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Backend for Counting {
    fn attempt<'a>(
        &'a self,
        _request: &'a AttemptRequest,
        _progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Ok(Reply::of(json!("done"))) })
    }
}

/// A service that takes `thinks` for each answer and says yes once `up_after` has passed since the start.
struct Fake {
    agent: Arc<StartingHttpAgent>,
    asked: Arc<AtomicUsize>,
    called: Arc<Counting>,
}

impl Fake {
    fn start(up_after: Duration, thinks: Duration) -> Self {
        let (asked, called) = (Arc::new(AtomicUsize::new(0)), Arc::new(Counting::default()));
        let (count, started) = (Arc::clone(&asked), Instant::now());
        let ask: Ask = Box::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                tokio::time::sleep(thinks).await;
                let is_up = started.elapsed() >= up_after;
                is_up.then_some(()).ok_or_else(|| AttemptFailure::new(Ending::status(503), "warming up"))
            })
        });
        let agent = Arc::new(StartingHttpAgent::asking(Arc::clone(&called) as Arc<dyn Backend>, ask));
        Self { agent, asked, called }
    }

    async fn attempt(&self) -> Result<Value, Ending> {
        let done = unwatched(self.agent.as_ref(), &request(json!({}))).await;
        done.ended.map(|reply| reply.output).map_err(|failure| failure.ending)
    }

    fn counts(&self) -> (usize, usize) {
        (self.asked.load(Ordering::SeqCst), self.called.0.load(Ordering::SeqCst))
    }
}

#[tokio::test(start_paused = true)]
async fn asked_once_a_second_until_it_first_answers() {
    let fake = Fake::start(Duration::from_secs(3), Duration::ZERO);
    for (wait_ms, want, asked) in [
        (0, OWN_REFUSAL, 1),
        (0, OWN_REFUSAL, 1),
        (998, OWN_REFUSAL, 1),
        (2, OWN_REFUSAL, 2),
        (500, OWN_REFUSAL, 2),
        (2_000, Ok(json!("done")), 3),
        (0, Ok(json!("done")), 3),
        (60_000, Ok(json!("done")), 3),
    ] {
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        assert_eq!(fake.attempt().await, want, "after {wait_ms} ms more");
        assert_eq!(fake.counts().0, asked, "after {wait_ms} ms more");
    }
    assert_eq!(fake.counts(), (3, 3), "a refused attempt never reaches the service");
}

#[tokio::test(start_paused = true)]
async fn what_a_refusal_says() {
    let fake = Fake::start(Duration::MAX, Duration::ZERO);
    for _ in 0..2 {
        let done = unwatched(fake.agent.as_ref(), &request(json!({}))).await;
        let failure = done.failure();
        assert_eq!(failure.retry_after, Some(ASK_AGAIN_AFTER));
        assert_eq!(failure.message, "the service is starting, its health path says no: warming up");
        assert_eq!(failure.status, None, "the status of the health path is none of the agent's");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_asks_once_and_shares_the_answer() {
    for (up_after, want) in [(Duration::ZERO, Ok(json!("done"))), (Duration::MAX, OWN_REFUSAL)] {
        let fake = Arc::new(Fake::start(up_after, Duration::from_millis(300)));
        let crowd: Vec<_> = (0..50)
            .map(|_| {
                let fake = Arc::clone(&fake);
                tokio::spawn(async move { fake.attempt().await })
            })
            .collect();
        for one in crowd {
            assert_eq!(one.await.unwrap(), want);
        }
        assert_eq!(fake.counts().0, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn who_leaves_while_asking_neither_blocks_nor_floods() {
    let fake = Arc::new(Fake::start(Duration::ZERO, Duration::from_millis(300)));
    for _ in 0..5 {
        let left = tokio::time::timeout(Duration::from_millis(100), fake.attempt()).await;
        assert!(left.is_err() || left == Ok(OWN_REFUSAL));
    }
    assert_eq!(fake.counts(), (1, 0));
    tokio::time::sleep(ASK_AGAIN_AFTER).await;
    assert_eq!(fake.attempt().await, Ok(json!("done")));
    assert_eq!(fake.counts(), (2, 1));
}

async fn runtime_with(fake: &Fake, attempts_max: u32) -> Runtime {
    let name = |text| Name::try_new(text).unwrap();
    let provider = ProviderSettings::new(name("local"));
    let agent = AgentSettings {
        slots: 100,
        retry: RetrySettings { attempts_max, ..RetrySettings::default() },
        ..AgentSettings::new(name("draft"), name("local"))
    };
    let backend = Arc::clone(&fake.agent) as Arc<dyn Backend>;
    Runtime::builder().seed(7).provider(provider).agent(agent, backend).start().await.unwrap()
}

async fn call(runtime: &Runtime) -> Result<CallReply, CallError> {
    runtime.agent("draft").unwrap().call(CallRequest::of(json!({}))).await
}

#[tokio::test(start_paused = true)]
async fn a_call_outlasts_a_short_start() {
    let fake = Fake::start(Duration::from_millis(1_500), Duration::ZERO);
    let reply = call(&runtime_with(&fake, 3).await).await.unwrap();
    let codes: Vec<_> = reply.attempts.iter().map(|attempt| attempt.error_code.as_deref()).collect();
    assert_eq!(codes, [Some("AGENT_WARMING"), Some("AGENT_WARMING"), None]);
    assert_eq!(fake.counts(), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn a_long_start_opens_nothing_and_may_be_asked_again() {
    let fake = Fake::start(Duration::from_secs(100), Duration::ZERO);
    let runtime = runtime_with(&fake, 3).await;
    for _ in 0..20 {
        let refused = call(&runtime).await.unwrap_err();
        assert_eq!(refused.envelope.error_code.as_str(), "AGENT_WARMING");
        assert_eq!((refused.nothing_sent, refused.exhausted), (true, false));
    }
    assert_eq!(runtime.breaker("agent:draft").unwrap().state, StateName::Closed);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(call(&runtime).await.unwrap().output, json!("done"));
}

#[tokio::test]
async fn over_a_socket() {
    for (status, paths, want) in [
        (503, &["GET /healthz "][..], OWN_REFUSAL),
        (404, &["GET /healthz "], OWN_REFUSAL),
        (204, &["GET /healthz ", "POST /draft ", "POST /draft "], Ok(json!("글"))),
    ] {
        let server = FakeServer::start(vec![answer(status, "", ""), answer(200, "", r#"{"output": "글"}"#)]).await;
        let client = Arc::new(ProviderClient::try_new(&ProviderOptions::at(&server.base_url)).unwrap());
        let mapping = HttpMapping { path: "/draft".to_owned(), ..HttpMapping::default() };
        let backend = Arc::new(HttpAgent::try_new(Arc::clone(&client), &mapping).unwrap());
        let agent = StartingHttpAgent::new(backend, client, "/healthz");
        for _ in 0..paths.len().min(2) {
            let done = unwatched(&agent, &request(json!({}))).await;
            assert_eq!(done.ended.map(|reply| reply.output).map_err(|failure| failure.ending), want, "{status}");
        }
        let requests = server.requests();
        assert_eq!(requests.len(), paths.len(), "{requests:?}");
        assert!(requests.iter().zip(paths).all(|(sent, path)| sent.starts_with(path)), "{requests:?}");
    }
}
