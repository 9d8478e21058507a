//! A served agent over real sockets, called by the very adapter that calls `http` agents: both ends of the contract.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::oneshot;

use super::*;
use crate::{
    model::reply::Usage,
    runtime::ports::BoxFuture,
    serve::script_file::read_script,
    transport::{
        client::{ProviderClient, ProviderOptions},
        http_agent::{backend::HttpAgent, mapping::HttpMapping},
        test_attempt::{request, unwatched, watched},
    },
};

/// An agent that does what its input says.
#[derive(Default)]
struct Obedient {
    running: Arc<AtomicUsize>,
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Backend for Obedient {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async move {
            self.running.fetch_add(1, Ordering::SeqCst);
            let _counted = Counted(Arc::clone(&self.running));
            for text in request.input["say"].as_array().into_iter().flatten() {
                progress.content(text.as_str().unwrap()).await;
            }
            match request.input["then"].as_str() {
                Some("fail") => Err(AttemptFailure {
                    upstream_code: Some("NO_INK".to_owned()),
                    user_message: Some("잉크가 없습니다".to_owned()),
                    retry_after: Some(Duration::from_millis(6_300)),
                    ..AttemptFailure::new(Ending::status(503), "no ink")
                }),
                Some("panic") => panic!("on demand"),
                Some("hang") => std::future::pending().await,
                _ => {
                    let usage = Usage { prompt_tokens: 3, output_tokens: 2, estimated: false, ..Usage::default() };
                    let seen = json!({
                        "call": request.call_id, "run": request.run_id, "attempt": request.attempt,
                        "key": request.idempotency_key, "trace": request.traceparent, "tenant": request.tenant,
                        "feature": request.feature, "priority": request.priority, "agent": request.agent.as_str(),
                    });
                    Ok(Reply { usage: Some(usage), ..Reply::of(seen) })
                }
            }
        })
    }
}

struct Served {
    agent: HttpAgent,
    base_url: String,
    running: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    ended: tokio::task::JoinHandle<std::io::Result<()>>,
}

async fn served(script: Option<&str>) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("http://{}", listener.local_addr().unwrap());
    let backend = Obedient::default();
    let running = Arc::clone(&backend.running);
    let script = script.map(|text| read_script("ill.toml", text).unwrap());
    let (stop, stopped) = oneshot::channel();
    let shutdown = async move {
        let _ = stopped.await;
    };
    let name = Name::try_new("draft").unwrap();
    let ended = tokio::spawn(serve_agent(listener, name, Arc::new(backend), script, shutdown));
    let client = Arc::new(ProviderClient::try_new(&ProviderOptions::at(&base_url)).unwrap());
    let mapping = HttpMapping { path: "/draft".to_owned(), ..HttpMapping::default() };
    Served { agent: HttpAgent::try_new(client, &mapping).unwrap(), base_url, running, stop: Some(stop), ended }
}

#[tokio::test]
async fn the_contract_from_both_ends() {
    let served = served(None).await;
    let want = json!({
        "call": "call-1", "run": "run-1", "attempt": 2, "key": "run-1/draft/0/0",
        "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tenant": "acme",
        "feature": "chat", "priority": "batch", "agent": "draft",
    });
    let whole = unwatched(&served.agent, &request(json!({"say": ["a"]}))).await;
    assert_eq!(whole.reply().output, want);
    assert_eq!(
        whole.reply().usage,
        Some(Usage { prompt_tokens: 3, output_tokens: 2, estimated: false, ..Usage::default() })
    );
    let streamed = watched(&served.agent, &request(json!({"say": ["좋은", " 글"]}))).await;
    assert_eq!(
        (streamed.reply().output.clone(), streamed.pieces),
        (want.clone(), vec!["좋은".to_owned(), " 글".to_owned()])
    );
    let silent = watched(&served.agent, &request(json!({}))).await;
    assert_eq!((silent.reply().output.clone(), silent.committed), (want, false));
}

#[tokio::test]
async fn an_input_is_kept_as_it_was_written_or_refused() {
    let read = async |text: &str| read_input(Body::from(text.to_owned())).await.map_err(|envelope| envelope.message);
    assert_eq!(read(r#"{"input":{"a":[1]},"other":1}"#).await, Ok(Arc::new(json!({ "a": [1] }))));
    for (text, want) in [
        (r#"[{"a":1}]"#, "the body begins with '['; a JSON object is wanted"),
        (r#"{"input":{"a":{"b":1,"b":2}}}"#, r#"the body does not fit: the member "b" stands twice"#),
        (r#"{"input":[-0]}"#, "input[0]: -0 would be changed"),
        ("{}", "the body does not fit: missing field `input`"),
    ] {
        let said = read(text).await.unwrap_err();
        assert!(said.starts_with(want), "{text}: {said}");
    }
}

#[tokio::test]
async fn failures_are_envelopes() {
    let served = served(None).await;
    let whole = unwatched(&served.agent, &request(json!({"then": "fail"}))).await;
    let before_content = watched(&served.agent, &request(json!({"then": "fail"}))).await;
    for failed in [&whole, &before_content] {
        let failure = failed.failure();
        let Ending::Status { status, retryable, .. } = failure.ending else { panic!("{failure:?}") };
        assert_eq!((status, retryable, failure.status), (503, Some(true), Some(503)));
        assert_eq!(failure.retry_after, Some(Duration::from_secs(7)), "the header rounds up");
        assert_eq!((failure.message.as_str(), failure.user_message.as_deref()), ("no ink", Some("잉크가 없습니다")));
    }
    let after_content = watched(&served.agent, &request(json!({"say": ["a"], "then": "fail"}))).await;
    let Ending::Status { status, .. } = after_content.failure().ending else { panic!("{after_content:?}") };
    assert_eq!((status, after_content.pieces.len()), (503, 1));
    let panicked = unwatched(&served.agent, &request(json!({"then": "panic"}))).await;
    assert_eq!(panicked.failure().upstream_code.as_deref(), Some("AGENT_RESTARTED"));
    let late = AttemptRequest { deadline: Duration::from_millis(50), ..request(json!({"then": "hang"})) };
    assert_eq!(unwatched(&served.agent, &late).await.failure().upstream_code.as_deref(), Some("DEADLINE_EXCEEDED"));
    assert_eq!(served.running.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn requests_that_are_none() {
    let served = served(None).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    for (request, status) in [
        (http.get(format!("{}/healthz", served.base_url)), 200),
        (http.get(format!("{}/draft", served.base_url)), 404),
        (http.post(format!("{}/draft", served.base_url)).body("no json"), 400),
        (http.post(format!("{}/draft", served.base_url)).body("{\"inputs\": 1}"), 400),
        (http.post(format!("{}/draft", served.base_url)).body(vec![b' '; REQUEST_BYTES_MAX + 1]), 400),
    ] {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status);
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["http_status"].as_u64().unwrap_or(200), u64::from(status), "{body}");
    }
}

#[tokio::test]
async fn a_caller_that_leaves_stops_the_work() {
    let served = served(None).await;
    for (input, is_watched) in [
        (json!({"then": "hang"}), false),
        (json!({"then": "hang"}), true),
        (json!({"say": ["a"], "then": "hang"}), true),
    ] {
        let client = Arc::new(ProviderClient::try_new(&ProviderOptions::at(&served.base_url)).unwrap());
        let agent = HttpAgent::try_new(client, &HttpMapping::default()).unwrap();
        let attempt = tokio::spawn(async move {
            let request = request(input);
            if is_watched { watched(&agent, &request).await } else { unwatched(&agent, &request).await }
        });
        reaches(&served.running, 1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        attempt.abort();
        reaches(&served.running, 0).await;
    }
}

async fn reaches(running: &AtomicUsize, count: usize) {
    let seen = async {
        while running.load(Ordering::SeqCst) != count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(1), seen).await.unwrap();
}

#[tokio::test]
async fn every_illness() {
    for (script, want) in [
        (
            "error_share = 1",
            Some((
                "AGENT_ERROR",
                Ending::Status {
                    status: 503,
                    retryable: Some(true),
                    content_filter: false,
                    context_too_long: false,
                    quota_spent: None,
                },
            )),
        ),
        (
            "error_share = 1\nerror_status = 529",
            Some((
                "AGENT_ERROR",
                Ending::Status {
                    status: 529,
                    retryable: Some(true),
                    content_filter: false,
                    context_too_long: false,
                    quota_spent: None,
                },
            )),
        ),
        (
            "client_error_share = 1\nclient_error_status = 422",
            Some((
                "AGENT_ERROR",
                Ending::Status {
                    status: 422,
                    retryable: Some(false),
                    content_filter: false,
                    context_too_long: false,
                    quota_spent: None,
                },
            )),
        ),
        (
            "rate_limit_share = 1\nretry_after = 3",
            Some((
                "RATE_LIMITED",
                Ending::Status {
                    status: 429,
                    retryable: Some(true),
                    content_filter: false,
                    context_too_long: false,
                    quota_spent: None,
                },
            )),
        ),
        ("garbage_share = 1", Some(("", Ending::BadReply))),
        ("cut_share = 1", Some(("", Ending::Network { connected: true }))),
        ("hang_share = 1", None),
    ] {
        let served = served(Some(&format!("[[phase]]\n{script}"))).await;
        let request = request(json!({"say": ["a"]}));
        let patience = Duration::from_millis(if want.is_some() { 10_000 } else { 150 });
        let done = tokio::time::timeout(patience, unwatched(&served.agent, &request)).await;
        let Some((code, ending)) = want else {
            assert!(done.is_err(), "{script}: {done:?}");
            continue;
        };
        let failed = done.unwrap();
        let failure = failed.failure();
        assert_eq!(
            (failure.upstream_code.as_deref().unwrap_or_default(), &failure.ending),
            (code, &ending),
            "{script}"
        );
        let waits = script.contains("retry_after").then_some(Duration::from_secs(3));
        assert_eq!(failure.retry_after, waits, "{script}");
        let no_retry = script.contains("client_error").then_some(false);
        assert_eq!(failure.should_retry, no_retry, "{script}");
    }
    let served = served(Some("[[phase]]\ncut_share = 1")).await;
    let streamed = watched(&served.agent, &request(json!({}))).await;
    assert_eq!(streamed.failure().ending, Ending::StreamCut);
}

#[tokio::test]
async fn phases_and_latency() {
    let served = served(Some("[[phase]]\ncalls = 2\nlatency = \"60ms\"\n[[phase]]\nerror_share = 1")).await;
    let mut ended = Vec::new();
    for _ in 0..3 {
        let started = Instant::now();
        let done = unwatched(&served.agent, &request(json!({}))).await;
        ended.push((done.ended.is_ok(), started.elapsed() >= Duration::from_millis(60)));
    }
    assert_eq!(ended, [(true, true), (true, true), (false, false)]);
}

#[tokio::test]
async fn stopping_ends_hanging_calls() {
    let mut served = served(Some("[[phase]]\nhang_share = 1")).await;
    let stop = served.stop.take().unwrap();
    let ended = served.ended;
    let agent = served.agent;
    let attempt = tokio::spawn(async move { unwatched(&agent, &request(json!({}))).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    stop.send(()).unwrap();
    let done = tokio::time::timeout(Duration::from_secs(2), attempt).await.unwrap().unwrap();
    assert_eq!(done.failure().upstream_code.as_deref(), Some("SHUTTING_DOWN"));
    tokio::time::timeout(Duration::from_secs(2), ended).await.unwrap().unwrap().unwrap();
}
