//! Token budgets and the ledger behind the gateway, in front of a server in the test's hand: what streams without usage, cut answers and
//! callers that leave are charged, in whose minute, and that both books say the same in the end.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::Response,
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::support::{STOP, STREAM, WHOLE, accounted, agents_as, header, post, routes, serving, state, text};
use crate::{
    journal::{
        files::store::{FileSettings, FileStore},
        journal::SqliteJournal,
        settings::JournalSettings,
    },
    model::{cost::Cost, name::Name},
    policy::{
        breaker::settings::Mode,
        compartment::settings::{CompartmentSettings, FeatureSettings, Rates, UnknownFeature},
        price::Price,
        tokens::draw::{AccountId, Shown},
    },
    runtime::{
        engine::Runtime,
        settings::{AgentSettings, Timeouts},
        spending::SpendingSettings,
        tests::hand_clock::HandClock,
        token_count::Vocabulary,
    },
    serve::state::Running,
    transport::{
        fake_server::{FakeServer, Step, answer, stream, stream_head},
        shared_cases,
    },
};

/// A service whose feature `chat`, to which everything belongs, has a budget.
struct Budgeted {
    service: Router,
    runtime: Arc<Runtime>,
    clock: Arc<HandClock>,
    page: metrics_exporter_prometheus::PrometheusHandle,
    _folder: tempfile::TempDir,
    _recording: metrics::LocalRecorderGuard<'static>,
}

async fn budgeted(server: &FakeServer, tokens_per_minute: u64) -> Budgeted {
    shaped(server, tokens_per_minute, |agent| agent.retry.attempts_max = 1).await
}

async fn shaped(server: &FakeServer, tokens_per_minute: u64, shape: impl FnOnce(&mut AgentSettings)) -> Budgeted {
    let recorder = Box::leak(Box::new(metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder()));
    let page = recorder.handle();
    let recording = metrics::set_default_local_recorder(recorder);
    let folder = tempfile::tempdir().unwrap();
    let journal = SqliteJournal::open(JournalSettings::at(folder.path().join("journal.db"))).unwrap();
    let clock = Arc::new(HandClock::default());
    let name = |text: &str| Name::try_new(text).unwrap();
    let rates = Rates { tokens_per_minute: Some(tokens_per_minute), ..Rates::default() };
    let compartments = CompartmentSettings {
        features: vec![FeatureSettings { rates, ..FeatureSettings::new(name("chat")) }],
        unknown_feature: UnknownFeature::Is(name("chat")),
        ..CompartmentSettings::default()
    };
    let price = Price { input: Cost::from_nanos(1_000_000), output: Cost::from_nanos(2_000_000), ..Price::default() };
    let spending =
        SpendingSettings { prices: [("local/qwen".to_owned(), price)].into(), ..SpendingSettings::default() };
    let builder = Runtime::builder().seed(7).clock(clock.clone()).call_log(journal.usage_log(Some("KRW")));
    let builder = builder.compartments(compartments).spending(spending);
    let (agents, client) = agents_as(builder, server, |agent| {
        agent.model = Some("qwen".to_owned());
        shape(agent);
    });
    let runtime = Arc::new(agents.start().await.unwrap());
    let files = Arc::new(FileStore::new(Arc::clone(&journal), FileSettings::default()));
    let state = state();
    state.door.open(Arc::new(Running { runtime: Arc::clone(&runtime), journal, files }));
    Budgeted { service: routes(state, client), runtime, clock, page, _folder: folder, _recording: recording }
}

impl Budgeted {
    /// What the budget holds, and what of it is reserved.
    fn chat(&self) -> (u64, u64) {
        let account = AccountId::Feature(Name::try_new("chat").unwrap());
        let Shown { used, reserved, .. } = self.runtime.token_budget(&account).unwrap();
        (used, reserved)
    }

    /// What the budget holds once nothing is reserved any more.
    async fn settled(&self) -> u64 {
        for _ in 0..2_000 {
            if let (used, 0) = self.chat() {
                return used;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{:?} are never settled", self.chat())
    }

    /// How many charges were our own count for this reason.
    fn guessed(&self, reason: &str) -> u64 {
        let name = format!("watertight_tokens_guessed_total{{agent=\"fast\",reason=\"{reason}\"}} ");
        self.page.render().lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
    }

    async fn asked(&self, body: &str) -> Response<Body> {
        self.service.clone().oneshot(post("/v1/chat/completions", body)).await.unwrap()
    }
}

/// A request whose prompt has 1,200 tokens and whose answer may have 1,800.
fn of_3000(form: &str) -> String {
    let prompt = "word".to_owned() + &" word".repeat(1_195);
    assert_eq!(Vocabulary::Qwen.count(&prompt), 1_196, "and 4 for the message");
    let messages = json!([{ "role": "user", "content": prompt }]);
    format!(r#"{{"model":"gpt","messages":{messages},"max_tokens":1800{form}}}"#)
}

fn said(text: &str) -> String {
    format!("data: {}\n\n", json!({ "choices": [{ "index": 0, "delta": { "content": text } }] }))
}

/// A stream in which the rest comes a while after the first event.
fn slowly(text: &str) -> Vec<Step> {
    let (first, rest) = text.split_once("\n\n").unwrap();
    let first = format!("{first}\n\n").into_bytes();
    vec![
        stream_head(),
        Step::Send(first),
        Step::Pause(Duration::from_millis(200)),
        Step::Send(rest.as_bytes().to_vec()),
    ]
}

/// TRAPS B20, through a budget: 3,000 are held, the server tells nothing, the charge is our count of prompt and answer.
#[tokio::test]
async fn a_stream_without_usage_takes_its_estimate_from_the_budget() {
    let ours: String = ["안녕", "하세요", ", ", "사진 ", "초안"].map(said).concat() + STOP + "data: [DONE]\n\n";
    for text in [Some(ours), shared_cases::text("cases/B20/stream.sse")].into_iter().flatten() {
        let server = FakeServer::start(vec![slowly(&text)]).await;
        let budgeted = budgeted(&server, 3_000).await;
        let answer = budgeted.asked(&of_3000(STREAM)).await;
        assert_eq!((answer.status().as_u16(), budgeted.chat()), (200, (3_000, 3_000)), "held while it streams");
        let _ = self::text(answer).await;
        let used = budgeted.settled().await;
        let output = Vocabulary::Qwen.count("안녕하세요, 사진 초안");
        assert_eq!(used, 1_200 + output, "by the vocabulary of its family");
        assert!((1_205..=3_000).contains(&used), "as the case has it");
        assert_eq!((budgeted.guessed("no_usage"), budgeted.guessed("cancelled")), (1, 0));
        let sum = accounted(&budgeted.service, 1).await;
        assert_eq!((&sum["prompt_tokens"], &sum["output_tokens"]), (&json!(1_200), &json!(output)));
        assert_eq!((&sum["estimated"], &sum["currency"]), (&json!(true), &json!("KRW")));
        assert!((sum["cost"].as_f64().unwrap() * 1e9 - (1_200 + 2 * output) as f64).abs() < 0.5, "{sum}");
        assert_eq!(server.bodies()[0]["stream_options"]["include_usage"], true);
        // The budget is not evaded: what it holds is missing for the next one, until its minute is over.
        budgeted.clock.set_ms(10_000);
        let refused = budgeted.asked(&of_3000(STREAM)).await;
        assert_eq!((refused.status().as_u16(), header(&refused, "retry-after")), (429, "50"));
        let body: Value = serde_json::from_str(&self::text(refused).await).unwrap();
        let envelope = &body["error"]["watertight"];
        assert_eq!(envelope["error_code"], "TOKEN_BUDGET_EXHAUSTED");
        assert_eq!(envelope["details"]["compartment"], "feature:chat");
        budgeted.clock.set_ms(60_000);
        assert_eq!(budgeted.chat(), (0, 0));
        let answer = budgeted.asked(&of_3000(STREAM)).await;
        assert_eq!(answer.status().as_u16(), 200);
        let _ = self::text(answer).await;
        assert_eq!(budgeted.settled().await, used);
    }
}

/// TRAPS B21, through a budget: running totals are charged once, as told.
#[tokio::test]
async fn running_totals_take_what_was_told_last_from_the_budget() {
    let usage = |output: u64| {
        format!("data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":25,\"completion_tokens\":{output}}}}}\n\n")
    };
    let ours = [usage(1), said("초안"), usage(10), usage(15), STOP.to_owned(), "data: [DONE]\n\n".to_owned()].concat();
    for text in [Some(ours), shared_cases::text("cases/B21/stream.sse")].into_iter().flatten() {
        let server = FakeServer::start(vec![stream(&text)]).await;
        let budgeted = budgeted(&server, 3_000).await;
        let _ = self::text(budgeted.asked(&of_3000(STREAM)).await).await;
        assert_eq!(budgeted.settled().await, 40);
        let sum = accounted(&budgeted.service, 1).await;
        assert_eq!((&sum["prompt_tokens"], &sum["output_tokens"]), (&json!(25), &json!(15)));
        assert_eq!((&sum["estimated"], budgeted.guessed("no_usage")), (&json!(false), 0));
    }
}

/// What passes through to a model is held to the same budget as what is relayed, and both books know of it.
#[tokio::test]
async fn what_passes_through_is_reserved_by_its_body_and_settled_by_its_answer() {
    let json = "content-type: application/json\r\n";
    let told = r#"{"choices":[],"usage":{"prompt_tokens":1200,"completion_tokens":300}}"#;
    let server = FakeServer::start(vec![answer(200, json, told), answer(200, json, r#"{"choices":[]}"#)]).await;
    let budgeted = budgeted(&server, 4_500).await;
    let pass = async |body: &str| {
        let request = post("/agents/fast/chat/completions", body);
        budgeted.service.clone().oneshot(request).await.unwrap()
    };
    let never = pass(&of_3000("").replace("1800", "4000")).await;
    assert_eq!(never.status().as_u16(), 413);
    assert_eq!(header(&never, "x-should-retry"), "false");
    assert_eq!(text(pass(&of_3000("")).await).await, told);
    assert_eq!(budgeted.settled().await, 1_500, "by its word");
    text(pass(&of_3000("")).await).await;
    assert_eq!(budgeted.settled().await, 4_500, "as it was reserved");
    assert_eq!((pass(&of_3000("")).await.status().as_u16(), budgeted.guessed("lost")), (429, 1));
    let sum = accounted(&budgeted.service, 2).await;
    let want = (json!(2_400), json!(2_100), json!(true));
    assert_eq!((&sum["prompt_tokens"], &sum["output_tokens"], &sum["estimated"]), (&want.0, &want.1, &want.2), "{sum}");
    assert_eq!(server.requests().len(), 2, "what is refused never leaves");
}

/// What passes through and tells nothing: an error costs nothing, as of any call; a stream costs what came where that is more than was
/// reserved; pictures and the like are not read for tokens.
#[tokio::test]
async fn what_passes_through_without_a_word_of_its_use() {
    let json = "content-type: application/json\r\n";
    let long = (0..1_400).map(|_| said("a")).collect::<String>() + "data: [DONE]\n\n";
    let told = said("a")
        + "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
    let picture = answer(200, "content-type: image/png\r\n", "usage");
    let body = r#"{"messages":[{"role":"user","content":"word"}]"#;
    for (what, upstream, form, want, reason) in [
        ("an error", answer(500, json, "{}"), "}", (0, 0), ""),
        ("a 429", answer(429, json, "{}"), "}", (0, 0), ""),
        (
            "an error that tells its use",
            answer(500, json, r#"{"usage":{"prompt_tokens":9,"completion_tokens":1}}"#),
            "}",
            (9, 1),
            "",
        ),
        ("a stream that tells it", stream(&told), r#","max_tokens":50,"stream":true}"#, (7, 2), ""),
        ("a long stream", stream(&long), r#","stream":true}"#, (5, 1_400), "lost"),
        ("a short stream", stream(&said("a")), r#","max_tokens":50,"stream":true}"#, (5, 50), "lost"),
        ("a picture", picture, r#","max_tokens":50}"#, (5, 50), "lost"),
    ] {
        let server = FakeServer::start(vec![upstream]).await;
        let budgeted = budgeted(&server, 1_000_000).await;
        let request = post("/agents/fast/chat/completions", &format!("{body}{form}"));
        let _ = text(budgeted.service.clone().oneshot(request).await.unwrap()).await;
        assert_eq!(budgeted.settled().await, want.0 + want.1, "{what}");
        let sum = accounted(&budgeted.service, 1).await;
        let in_ledger = (sum["prompt_tokens"].as_u64().unwrap(), sum["output_tokens"].as_u64().unwrap());
        assert_eq!((in_ledger, &sum["estimated"]), (want, &json!(!reason.is_empty())), "{what}");
        assert_eq!(budgeted.guessed("lost"), u64::from(reason == "lost"), "{what}");
    }
}

/// Who leaves in the middle has used the prompt and what came, in the minute in which it was reserved.
#[tokio::test]
async fn who_leaves_a_stream_pays_for_what_came_in_the_minute_of_its_reservation() {
    let came = ["안녕하세요", ", ", "사진 "].map(said).concat();
    let mut server =
        FakeServer::start(vec![vec![stream_head(), Step::Send(came.into_bytes()), Step::UntilClosed]]).await;
    let budgeted = budgeted(&server, 3_000).await;
    budgeted.clock.set_ms(5_000);
    let answer = budgeted.asked(&of_3000(STREAM)).await;
    let mut body = answer.into_body().into_data_stream();
    let mut heard = String::new();
    while !heard.contains("사진") {
        let frame = futures_util::StreamExt::next(&mut body).await.unwrap().unwrap();
        heard.push_str(std::str::from_utf8(&frame).unwrap());
    }
    budgeted.clock.set_ms(55_000);
    assert_eq!(budgeted.chat(), (3_000, 3_000));
    drop(body);
    assert!(server.sees_client_leave().await);
    let used = budgeted.settled().await;
    assert_eq!(used, 1_200 + Vocabulary::Qwen.count("안녕하세요, 사진 ").max(3));
    assert_eq!((budgeted.guessed("cancelled"), budgeted.guessed("no_usage")), (1, 0));
    let sum = accounted(&budgeted.service, 1).await;
    assert_eq!((&sum["prompt_tokens"], &sum["estimated"]), (&json!(1_200), &json!(true)));
    assert_eq!(sum["output_tokens"].as_u64().unwrap() + 1_200, used);
    budgeted.clock.set_ms(64_000);
    assert_eq!(budgeted.chat().0, used);
    budgeted.clock.set_ms(65_000);
    assert_eq!(budgeted.chat().0, 0, "a minute after it was reserved, not after it ended");
}

#[tokio::test]
async fn what_other_ends_take_from_the_budget() {
    let json = "content-type: application/json\r\n";
    let whole = |usage: &str| {
        let body =
            format!(r#"{{"choices":[{{"message":{{"content":"ok ok ok ok"}},"finish_reason":"stop"}}]{usage}}}"#);
        answer(200, json, &body)
    };
    let cut = vec![stream_head(), Step::Send(said("ok").repeat(7).into_bytes())];
    let begun = format!(
        "data: {{\"type\":\"message_start\",\"message\":{{\"usage\":{{\"input_tokens\":25,\"output_tokens\":1}}}}}}\n\n{}",
        "data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"ok\"}}\n\n".repeat(9)
    );
    let cut_after_usage = vec![stream_head(), Step::Send(begun.into_bytes())];
    let huge = r#","usage":{"prompt_tokens":18446744073709551615,"completion_tokens":18446744073709551615}"#;
    for (what, upstream, form, want, reason) in [
        ("nothing told", whole(""), "", 1_204, "no_usage"),
        ("zeros told", whole(r#","usage":{"prompt_tokens":0,"completion_tokens":0}"#), "", 1_204, "no_usage"),
        ("negative numbers", whole(r#","usage":{"prompt_tokens":-5,"completion_tokens":-1}"#), "", 1_204, "no_usage"),
        ("a sum told", whole(r#","usage":{"total_tokens":900}"#), "", 900, "no_usage"),
        ("less than held", whole(r#","usage":{"prompt_tokens":1100,"completion_tokens":4}"#), "", 1_104, ""),
        ("more than held", whole(r#","usage":{"prompt_tokens":1100,"completion_tokens":4000}"#), "", 5_100, ""),
        ("more than there can be", whole(huge), "", 1_204, "no_usage"),
        ("an error", answer(500, json, "{}"), "", 0, ""),
        ("a cut stream", cut, STREAM, 1_207, "cut"),
        ("a stream cut after a first number", cut_after_usage, STREAM, 34, "cut"),
    ] {
        let server = FakeServer::start(vec![upstream]).await;
        let budgeted = budgeted(&server, 3_000).await;
        let _ = self::text(budgeted.asked(&of_3000(form)).await).await;
        assert_eq!(budgeted.settled().await, want, "{what}");
        let sum = accounted(&budgeted.service, 1).await;
        let in_ledger = sum["prompt_tokens"].as_u64().unwrap() + sum["output_tokens"].as_u64().unwrap();
        assert_eq!((in_ledger, &sum["estimated"]), (want, &json!(!reason.is_empty())), "{what}");
        for guess in ["no_usage", "cut", "cancelled", "lost"] {
            assert_eq!(budgeted.guessed(guess), u64::from(guess == reason), "{what}: {guess}");
        }
    }
}

/// A provider without a budget of ours is held to what its vendor says is left, and no longer than it says.
#[tokio::test]
async fn a_vendors_headers_hold_back_what_it_would_refuse() {
    let told = |headers: &str| answer(200, &format!("content-type: application/json\r\n{headers}"), WHOLE);
    let year = "31536000s";
    for (headers, sent, wait) in [
        ("", 2, ""),
        ("x-ratelimit-remaining-tokens: 100000\r\nx-ratelimit-reset-tokens: 30s\r\n", 2, ""),
        ("x-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: 30s\r\n", 1, "30"),
        ("x-ratelimit-remaining-tokens: 2\r\nx-ratelimit-reset-tokens: 30s\r\n", 1, "30"),
        ("x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: 12s\r\n", 1, "12"),
        ("anthropic-ratelimit-output-tokens-remaining: 0\r\nretry-after: 7\r\n", 1, "7"),
        (&format!("x-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: {year}\r\n"), 1, "60"),
        ("x-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: 0s\r\n", 2, ""),
        ("x-ratelimit-remaining-tokens: -1\r\nx-ratelimit-reset-tokens: 30s\r\n", 2, ""),
    ] {
        let server = FakeServer::start(vec![told(headers)]).await;
        let service = serving(&server, 1).await;
        let body = r#"{"model":"gpt","messages":[{"role":"user","content":"a text of some length"}]}"#;
        let asked = || service.clone().oneshot(post("/v1/chat/completions", body));
        assert_eq!(asked().await.unwrap().status().as_u16(), 200);
        let second = asked().await.unwrap();
        let status = if sent == 2 { 200 } else { 429 };
        assert_eq!(second.status().as_u16(), status, "{headers}");
        let (told, wait) = (header(&second, "retry-after").parse().unwrap_or(0_u64), wait.parse().unwrap_or(0_u64));
        assert!((wait.saturating_sub(3)..=wait).contains(&told), "{headers}: {told}");
        assert_eq!(server.requests().len(), sent, "{headers}");
    }
}

/// Whatever becomes of calls, in the end nothing is reserved, and the budget holds what the ledger says.
#[tokio::test(flavor = "current_thread")]
async fn a_mix_of_all_ends_is_the_same_in_budget_and_ledger() {
    const CALLS: u64 = 96;
    let json = "content-type: application/json\r\n";
    let words = |count: usize| said("ok ").repeat(count);
    let told = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":9}}\n\ndata: [DONE]\n\n";
    let late = Step::Pause(Duration::from_millis(700));
    let with_usage = r#"{"choices":[{"message":{"content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":33,"completion_tokens":5}}"#;
    let upstream = vec![
        stream(&format!("{}{STOP}{told}", words(9))),
        stream(&format!("{}{STOP}data: [DONE]\n\n", words(5))),
        stream(&words(3)),
        vec![stream_head(), Step::Send(words(4).into_bytes()), Step::UntilClosed],
        vec![stream_head(), late.clone()],
        vec![late],
        answer(500, json, "{}"),
        answer(429, "retry-after: 30\r\n", "{}"),
        answer(200, json, "no json"),
        answer(200, json, with_usage),
        answer(200, json, r#"{"choices":[{"message":{"content":"ok ok"},"finish_reason":"stop"}]}"#),
        Vec::new(),
    ];
    let chance = crate::policy::chance::Chance::from_seed(20);
    let pick = |of: u64, until: usize| usize::try_from(chance.fork(of).seed() % until as u64).unwrap();
    let answers = (0..3 * CALLS).map(|number| upstream[pick(number, upstream.len())].clone()).collect();
    let server = FakeServer::start(answers).await;
    let budgeted = shaped(&server, 1_000_000, |agent| {
        (agent.slots, agent.breaker.mode) = (200, Mode::Disabled);
        agent.retry.attempts_max = 2;
        let waits = Some(Duration::from_millis(500));
        agent.timeouts = Timeouts { first_token: waits, stall: waits, ..agent.timeouts };
    })
    .await;
    let calls: Vec<_> = (0..CALLS)
        .map(|number| {
            let form = if pick(1_000 + number, 3) == 0 { "" } else { STREAM };
            let patience = [20, 100, 400, 5_000][pick(2_000 + number, 4)];
            let body = format!(
                r#"{{"model":"gpt","messages":[{{"role":"user","content":"word"}}],"max_tokens":{}{form}}}"#,
                1 + pick(3_000 + number, 900)
            );
            let service = budgeted.service.clone();
            tokio::spawn(async move {
                let asking = async {
                    let answer = service.oneshot(post("/v1/chat/completions", &body)).await.unwrap();
                    let status = answer.status().as_u16();
                    let _ = to_bytes(answer.into_body(), usize::MAX).await;
                    status
                };
                tokio::time::timeout(Duration::from_millis(patience), asking).await.ok()
            })
        })
        .collect();
    let mut ends = std::collections::BTreeMap::new();
    for call in calls {
        *ends.entry(call.await.unwrap()).or_insert(0) += 1;
    }
    assert!(ends.len() >= 4, "{ends:?}: the mix is one");
    let used = budgeted.settled().await;
    let sum = accounted(&budgeted.service, CALLS).await;
    let (prompt, output) = (sum["prompt_tokens"].as_u64().unwrap(), sum["output_tokens"].as_u64().unwrap());
    assert_eq!(used, prompt + output, "{ends:?}: {sum}");
    assert_eq!((sum["refusals"].as_u64(), &sum["estimated"]), (Some(0), &json!(true)));
    let nanos = prompt + output * 2;
    assert!((sum["cost"].as_f64().unwrap() * 1e9 - nanos as f64).abs() < 0.5, "{sum}: {nanos}");
}
