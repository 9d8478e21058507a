//! Token budgets around real calls: what is reserved, that every way out settles it once, and what a refusal leaves behind.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use watertight::{
    model::{
        call_log::CallRecord,
        cost::Cost,
        facts::{Ending, TimeoutKind},
        reply::{AttemptFailure, Reply, Usage},
    },
    policy::{
        breaker::window::Counts,
        compartment::settings::{CompartmentSettings, FeatureSettings, Rates, TierSettings, UnknownTenant},
        fallback::Rank,
        price::Price,
        retry_settings::RetrySettings,
        tokens::draw::{AccountId, Shown},
    },
    runtime::{
        call::{CallContext, CallError, CallReply, CallRequest},
        engine::{Part, Runtime},
        parts::Parts,
        ports::{Asked, AttemptRequest, Backend, BoxFuture, CallLog, Left, Progress, TokenEstimate, VendorBudget},
        settings::{AgentSettings, ProviderSettings, TargetSettings},
        spending::SpendingSettings,
        token_count::TokenCounter,
    },
};

use crate::{
    kit::{Answer, Scripted, agent, builder, call, call_later, code, name, pass, provider, settle},
    support::{Call, detail, s},
};

/// A scripted agent that says how many tokens it may need: 100 for the prompt, 200 for the answer.
pub struct Metered {
    scripted: Arc<Scripted>,
    /// What a good answer says it used.
    usage: Mutex<Option<Usage>>,
    vendor: Mutex<Option<VendorBudget>>,
}

impl Metered {
    pub fn of(scripted: Arc<Scripted>) -> Arc<Self> {
        Arc::new(Self { scripted, usage: Mutex::default(), vendor: Mutex::default() })
    }

    /// How many attempts came.
    pub fn count(&self) -> usize {
        self.scripted.count()
    }

    fn used(&self, prompt_tokens: u64, output_tokens: u64) {
        *self.usage.lock().unwrap() = Some(Usage { prompt_tokens, output_tokens, ..Usage::default() });
    }
}

impl Backend for Metered {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async move {
            let reply = self.scripted.attempt(request, progress).await?;
            Ok(Reply { usage: *self.usage.lock().unwrap(), ..reply })
        })
    }

    fn estimate(&self, _: &Asked, _: Option<&str>) -> Option<TokenEstimate> {
        Some(TokenEstimate { prompt: 100, output_max: Some(200), counter: TokenCounter::Letters })
    }

    fn output_max(&self, _: &Asked) -> Option<u64> {
        Some(200)
    }

    fn vendor_budget(&self) -> Option<VendorBudget> {
        self.vendor.lock().unwrap().take()
    }
}

fn rates(tokens: u64) -> Rates {
    Rates { tokens_per_minute: Some(tokens), ..Rates::default() }
}

fn budgeted(tokens: u64) -> ProviderSettings {
    ProviderSettings { rates: rates(tokens), ..provider("local") }
}

async fn runtime_of(settings: AgentSettings, provider: ProviderSettings, backend: &Arc<Metered>) -> Runtime {
    builder().provider(provider).agent(settings, backend.clone()).start().await.unwrap()
}

/// One agent on a provider with a budget of 1,000 tokens.
async fn one(answer: Answer) -> (Runtime, Arc<Metered>) {
    let backend = Metered::of(Scripted::always(answer));
    let mut settings = agent("draft", "local");
    settings.timeouts.attempt = Some(s(30));
    (runtime_of(settings, budgeted(1_000), &backend).await, backend)
}

fn shown(runtime: &Runtime, account: &AccountId) -> (u64, u64) {
    runtime.token_budget(account).map_or((0, 0), |Shown { used, reserved, .. }| (used, reserved))
}

/// What the provider's budget holds, and what of it is reserved.
fn local(runtime: &Runtime) -> (u64, u64) {
    shown(runtime, &AccountId::Provider(name("local")))
}

fn retry_after(result: &Result<CallReply, CallError>) -> Option<f64> {
    result.as_ref().unwrap_err().envelope.retry_after
}

#[tokio::test(start_paused = true)]
async fn reserved_before_and_settled_to_what_was_used() {
    let (runtime, backend) = one(Answer::Good.after(s(5))).await;
    backend.used(90, 20);
    let under_way = Call(call_later(&runtime, "draft"));
    settle().await;
    assert_eq!(local(&runtime), (300, 300));
    let reply = under_way.end().await.unwrap();
    assert_eq!(local(&runtime), (110, 0), "settled before the caller hears of it");
    assert_eq!(reply.usage.unwrap().cost, None, "no price is no cost");
    backend.used(900, 20);
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    assert_eq!(local(&runtime), (1_030, 0), "what was used beyond is owed");
    pass(s(51)).await;
    assert_eq!(local(&runtime), (920, 0), "each leaves a minute after it was reserved");
    pass(s(5)).await;
    assert_eq!(local(&runtime), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_leaves_nothing_behind() {
    let (runtime, backend) = one(Answer::Hang).await;
    let held: Vec<Call> = (0..3).map(|_| Call(call_later(&runtime, "draft"))).collect();
    pass(s(10)).await;
    for _ in 0..50 {
        let refused = call(&runtime, "draft").await;
        assert_eq!(code(&refused), "TOKEN_BUDGET_EXHAUSTED");
        assert_eq!((detail(&refused, "compartment"), retry_after(&refused)), ("provider:local".into(), Some(50.0)));
        assert!(refused.unwrap_err().nothing_sent);
    }
    assert_eq!((local(&runtime), backend.scripted.count()), ((900, 900), 3), "refusals are charged nothing");
    let handle = runtime.agent("draft").unwrap();
    assert_eq!((handle.in_flight(), handle.mailbox_depth()), (3, 0), "their slots came back");
    let breaker = runtime.breaker("agent:draft").unwrap();
    assert_eq!(breaker.counts, Counts::default(), "no breaker judges a refusal of ours");
    drop(held);
    settle().await;
    assert_eq!(local(&runtime), (900, 0), "they were sent, and what was made of them nobody knows");
    pass(s(51)).await;
    assert_eq!(code(&call_now(&runtime, &backend).await), "OK");
}

async fn call_now(runtime: &Runtime, backend: &Metered) -> Result<CallReply, CallError> {
    backend.scripted.now(Answer::Good);
    call(runtime, "draft").await
}

#[tokio::test(start_paused = true)]
async fn a_request_larger_than_the_budget_is_refused_for_good() {
    let backend = Metered::of(Scripted::always(Answer::Good));
    let runtime = runtime_of(agent("draft", "local"), budgeted(299), &backend).await;
    let refused = call(&runtime, "draft").await;
    assert_eq!(code(&refused), "TOKEN_REQUEST_TOO_LARGE");
    let error = refused.unwrap_err();
    assert_eq!((error.envelope.http_status, error.envelope.retryable, error.exhausted), (413, false, true));
    assert_eq!((error.envelope.retry_after, &error.envelope.details["limit"]), (None, &299.into()));
    assert_eq!((backend.scripted.count(), local(&runtime)), (0, (0, 0)));
    assert_eq!(runtime.agent("draft").unwrap().in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn every_way_out_settles_once() {
    let told = Usage { prompt_tokens: 80, output_tokens: 7, ..Usage::default() };
    let failed_after_use = AttemptFailure { usage: Some(told), ..AttemptFailure::new(Ending::StreamCut, "cut") };
    let timeout = |timeout| Answer::ending(Ending::Timeout { timeout });
    for (what, answer, want) in [
        ("refused connection", Answer::ending(Ending::Network { connected: false }), 0),
        ("no connection in time", timeout(TimeoutKind::Connect), 0),
        ("not up yet", Answer::ending(Ending::OwnRefusal), 0),
        ("an error status", Answer::status(503), 0),
        ("a refusal of theirs", Answer::status(429), 0),
        ("no first token", timeout(TimeoutKind::FirstToken), 100),
        ("a stall", timeout(TimeoutKind::Stall), 100),
        ("a broken connection", Answer::ending(Ending::Network { connected: true }), 300),
        (
            "one that had said something",
            Answer::Content(Box::new(Answer::ending(Ending::Network { connected: true }))),
            101,
        ),
        ("a cut stream", Answer::Content(Box::new(Answer::ending(Ending::StreamCut))), 101),
        ("a cut stream that told", Answer::Fail(failed_after_use), 87),
        ("a bad reply", Answer::ending(Ending::BadReply), 300),
        ("no draft", Answer::ending(Ending::NoDraft), 100),
        ("our own timeout", Answer::Hang, 300),
        ("our own timeout of a stream", Answer::Content(Box::new(Answer::Hang)), 101),
        ("a panic", Answer::Panic, 300),
        ("a good answer that tells nothing", Answer::Say(json!({"text": "12345678"})), 103),
    ] {
        let (runtime, _) = one(answer).await;
        let _ = call(&runtime, "draft").await;
        assert_eq!(local(&runtime), (want, 0), "{what}");
        runtime.stop(Duration::ZERO).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_settles_wherever_it_leaves() {
    let answers = [
        (Answer::Hang, 300),
        (Answer::Content(Box::new(Answer::Content(Box::new(Answer::Hang)))), 102),
        (Answer::Good.after(s(1)), 300),
    ];
    for (answer, want) in answers {
        let (runtime, _) = one(answer).await;
        let calling = Call(call_later(&runtime, "draft"));
        settle().await;
        assert_eq!(local(&runtime), (300, 300));
        drop(calling);
        settle().await;
        assert_eq!(local(&runtime), (want, 0));
    }
    // Before the first poll nothing is reserved; after it, the call may be in its actor's mailbox.
    let (runtime, _) = one(Answer::Good).await;
    let handle = runtime.agent("draft").unwrap();
    drop(handle.call(CallRequest::of(Value::Null)));
    assert_eq!(local(&runtime), (0, 0));
    for polls in 1..20 {
        let mut calling = Box::pin(handle.call(CallRequest::of(Value::Null)));
        for _ in 0..polls {
            if futures_util::FutureExt::now_or_never(&mut calling).is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(calling);
        settle().await;
        assert_eq!(local(&runtime).1, 0, "after {polls} polls");
        pass(s(61)).await;
        assert_eq!(local(&runtime), (0, 0), "after {polls} polls");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_dies_with_its_actor_gets_everything_back() {
    let (runtime, _) = one(Answer::Hang).await;
    runtime.crash(Part::Agent("draft")).unwrap();
    let queued = Call(call_later(&runtime, "draft"));
    settle().await;
    let _ = code(&queued.end().await);
    settle().await;
    assert_eq!(local(&runtime).1, 0);
}

#[tokio::test(start_paused = true)]
async fn each_attempt_has_a_reservation_of_its_own() {
    let mut settings = agent("draft", "local");
    settings.retry = RetrySettings { attempts_max: 3, ..RetrySettings::default() };
    // An error status costs nothing, so all attempts fit into a budget for one.
    let backend = Metered::of(Scripted::always(Answer::status(503)));
    let runtime = runtime_of(settings.clone(), budgeted(300), &backend).await;
    assert_eq!(call(&runtime, "draft").await.unwrap_err().attempts.len(), 3);
    assert_eq!(local(&runtime), (0, 0));
    // What the first one used is not there for the second, which is not made; its error is what the caller hears.
    let used = Usage { prompt_tokens: 100, output_tokens: 100, ..Usage::default() };
    let mut failure = AttemptFailure::new(Ending::status(503), "busy");
    (failure.status, failure.usage) = (Some(503), Some(used));
    backend.scripted.now(Answer::Fail(failure));
    let failed = call(&runtime, "draft").await;
    assert_eq!((code(&failed), failed.unwrap_err().attempts.len()), ("AGENT_ERROR".into(), 1));
    assert_eq!(local(&runtime), (200, 0));
}

/// Feature chat has 600 a minute, each tenant 400, chat's cell half of it.
fn compartments() -> CompartmentSettings {
    let chat = FeatureSettings { rates: rates(600), ratio: Some(0.5), ..FeatureSettings::new(name("chat")) };
    CompartmentSettings {
        features: vec![chat, FeatureSettings::new(name("batch"))],
        tiers: vec![TierSettings { rates: rates(1_000), ..TierSettings::new(name("free")) }],
        unknown_tenant: UnknownTenant::Own(name("free")),
        ..CompartmentSettings::default()
    }
}

async fn call_for(runtime: &Runtime, feature: &str, tenant: &str) -> Result<CallReply, CallError> {
    let context = CallContext { feature: Some(feature.into()), tenant: Some(tenant.into()), ..CallContext::default() };
    let request = CallRequest { context, ..CallRequest::of(json!({})) };
    runtime.agent("draft").unwrap().call(request).await
}

#[tokio::test(start_paused = true)]
async fn all_budgets_of_a_call_or_none() {
    let backend = Metered::of(Scripted::always(Answer::Good));
    backend.used(100, 200);
    let builder = builder().compartments(compartments()).provider(budgeted(2_000));
    let runtime = builder.agent(agent("draft", "local"), backend.clone()).start().await.unwrap();
    let accounts = [
        AccountId::Feature(name("chat")),
        AccountId::Tenant("acme".into()),
        AccountId::Cell(name("chat"), "acme".into()),
    ];
    assert_eq!(code(&call_for(&runtime, "chat", "acme").await), "OK");
    assert_eq!(accounts.each_ref().map(|account| shown(&runtime, account)), [(300, 0); 3]);
    let refused = call_for(&runtime, "chat", "acme").await;
    assert_eq!(detail(&refused, "compartment"), "cell:chat/acme");
    assert_eq!(local(&runtime), (300, 0), "the provider's was not touched");
    assert_eq!(code(&call_for(&runtime, "batch", "acme").await), "OK", "another feature of the tenant");
    assert_eq!(code(&call_for(&runtime, "chat", "other").await), "OK", "another tenant of the feature");
    assert_eq!(detail(&call_for(&runtime, "chat", "third").await, "compartment"), "feature:chat");
    assert_eq!(local(&runtime), (900, 0));
}

fn tokens_left(remaining: u64, reset_in: Duration) -> VendorBudget {
    VendorBudget { tokens: Some(Left { remaining, reset_in }), requests: None }
}

/// Vendors count by model (or deployment): what one model has used up is no reason to shut another, least of all a ladder's lighter one.
#[tokio::test(start_paused = true)]
async fn a_vendors_word_is_of_the_model_that_it_came_with() {
    for limit in [None, Some(100_000)] {
        let (big, small) = (Metered::of(Scripted::always(Answer::Good)), Metered::of(Scripted::always(Answer::Good)));
        let of_model = |name, model: &str| AgentSettings { model: Some(model.into()), ..agent(name, "local") };
        let provider = limit.map_or_else(|| provider("local"), budgeted);
        let builder = builder().provider(provider).agent(of_model("draft", "big"), big.clone());
        // Another agent of the same model has the same budget with the vendor.
        let (twin, light) = (of_model("twin", "big"), of_model("light", "small"));
        let runtime = builder.agent(twin, big.clone()).agent(light, small.clone()).start().await.unwrap();
        *big.vendor.lock().unwrap() = Some(tokens_left(0, s(30)));
        for name in ["draft", "twin"] {
            let refused = call(&runtime, name).await;
            let shown = (code(&refused), detail(&refused, "compartment"), retry_after(&refused));
            assert_eq!(shown, ("TOKEN_BUDGET_EXHAUSTED".into(), "target:local/big".into(), Some(30.0)), "{limit:?}");
        }
        assert_eq!(code(&call(&runtime, "light").await), "OK", "{limit:?}");
        pass(s(30)).await;
        assert_eq!(code(&call(&runtime, "draft").await), "OK", "{limit:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_vendors_word_of_requests_holds_a_flood() {
    let backend = Metered::of(Scripted::always(Answer::Good.after(s(1))));
    let runtime = runtime_of(agent("draft", "local"), provider("local"), &backend).await;
    *backend.vendor.lock().unwrap() =
        Some(VendorBudget { tokens: None, requests: Some(Left { remaining: 3, reset_in: s(50) }) });
    let asked: Vec<Call> = (0..20).map(|_| Call(call_later(&runtime, "draft"))).collect();
    let mut good = 0;
    for call in asked {
        good += usize::from(code(&call.end().await) == "OK");
    }
    assert_eq!((good, backend.count()), (3, 3));
    pass(s(50)).await;
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
}

#[tokio::test(start_paused = true)]
async fn a_vendor_narrows_its_own_budget() {
    let (runtime, backend) = one(Answer::Good).await;
    backend.used(10, 10);
    *backend.vendor.lock().unwrap() = Some(tokens_left(250, s(20)));
    let refused = call(&runtime, "draft").await;
    assert_eq!((code(&refused), retry_after(&refused)), ("TOKEN_BUDGET_EXHAUSTED".into(), Some(20.0)));
    pass(s(20)).await;
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
}

/// The same where nothing is configured: what the vendor says holds while it is fresh, and is forgotten then.
#[tokio::test(start_paused = true)]
async fn a_vendors_word_holds_a_provider_that_has_no_budget() {
    const YEAR: u64 = 365 * 24 * 3_600;
    for (remaining, reset, wait) in [
        (0, 20, Some(20)),
        // A date out of all bounds holds for a minute; then one call asks anew.
        (0, YEAR, Some(60)),
        (0, 0, None),
        (1, 20, None),
        (u64::MAX, YEAR, None),
    ] {
        let backend = Metered::of(Scripted::always(Answer::Good));
        let runtime = runtime_of(agent("draft", "local"), provider("local"), &backend).await;
        *backend.vendor.lock().unwrap() = Some(tokens_left(remaining, s(reset)));
        let first = call(&runtime, "draft").await;
        if let Some(wait) = wait {
            assert_eq!(code(&first), "TOKEN_BUDGET_EXHAUSTED", "{remaining} {reset}");
            assert_eq!(
                (detail(&first, "compartment"), retry_after(&first)),
                ("target:local".into(), Some(wait as f64))
            );
            assert_eq!(backend.scripted.count(), 0, "nothing was sent");
            pass(s(wait - 1)).await;
            assert_eq!(code(&call(&runtime, "draft").await), "TOKEN_BUDGET_EXHAUSTED", "{remaining} {reset}");
            pass(s(1)).await;
            assert_eq!(code(&call(&runtime, "draft").await), "OK", "{remaining} {reset}");
        } else {
            assert_eq!(code(&first), "OK", "{remaining} {reset}");
        }
        assert_eq!(runtime.token_budget(&AccountId::Provider(name("local"))), None, "it is no budget of ours");
        assert_eq!(runtime.agent("draft").unwrap().in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_vendor_has_left_is_taken_until_its_next_word() {
    let backend = Metered::of(Scripted::always(Answer::Good));
    let runtime = runtime_of(agent("draft", "local"), provider("local"), &backend).await;
    let word = |remaining| *backend.vendor.lock().unwrap() = Some(tokens_left(remaining, s(20)));
    word(1_500);
    assert_eq!(code(&call(&runtime, "draft").await), "OK", "1,024 of them are taken for its answer");
    assert_eq!(code(&call(&runtime, "draft").await), "OK", "and the rest for this one's");
    assert_eq!(code(&call(&runtime, "draft").await), "TOKEN_BUDGET_EXHAUSTED");
    word(1_490);
    assert_eq!(code(&call(&runtime, "draft").await), "OK", "the latest word holds");
    // A budget of ours takes the word's place, and is narrowed as ever.
    reload(&runtime, budgeted(1_000), &backend).await;
    word(0);
    assert_eq!(code(&call(&runtime, "draft").await), "TOKEN_BUDGET_EXHAUSTED");
    pass(s(20)).await;
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    word(u64::MAX);
    let asked: Vec<Call> = (0..5).map(|_| Call(call_later(&runtime, "draft"))).collect();
    let mut codes = Vec::new();
    for call in asked {
        codes.push(code(&call.end().await));
    }
    assert!(codes.contains(&"TOKEN_BUDGET_EXHAUSTED".to_owned()), "no word widens: {codes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_is_used_up_sends_a_call_to_the_next_target() {
    let (near, far) = (Metered::of(Scripted::always(Answer::Good)), Metered::of(Scripted::always(Answer::Good)));
    near.used(100, 200);
    let target = TargetSettings { provider: name("far"), model: None, rank: Rank { order: 1, weight: 1 } };
    let builder = builder().provider(budgeted(400)).provider(provider("far"));
    let further: Vec<(TargetSettings, Arc<dyn Backend>)> = vec![(target, far.clone())];
    let rank = Rank { order: 0, weight: 1 };
    let builder = builder.agent_with_targets(agent("draft", "local"), rank, near.clone(), further);
    let runtime = builder.start().await.unwrap();
    assert_eq!(call(&runtime, "draft").await.unwrap().fallback, None);
    let second = call(&runtime, "draft").await.unwrap();
    assert!(second.fallback.is_some());
    assert_eq!(second.tries[0].error_code.as_str(), "TOKEN_BUDGET_EXHAUSTED");
    assert_eq!((near.scripted.count(), far.scripted.count(), local(&runtime)), (1, 1, (300, 0)));
}

/// The agent `draft` on a provider of other settings.
async fn reload(runtime: &Runtime, local: ProviderSettings, backend: &Arc<Metered>) {
    let parts = Parts::new().provider(local).agent(agent("draft", "local"), backend.clone());
    runtime.reload(parts).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn other_settings_take_hold_while_calls_run() {
    let (runtime, backend) = one(Answer::Good.after(s(5))).await;
    backend.used(100, 50);
    let held: Vec<Call> = (0..3).map(|_| Call(call_later(&runtime, "draft"))).collect();
    settle().await;
    for tokens in (300..1_300).step_by(7).chain((300..1_300).rev().step_by(11)) {
        reload(&runtime, budgeted(tokens), &backend).await;
        assert_eq!(local(&runtime), (900, 900));
    }
    assert_eq!(code(&call(&runtime, "draft").await), "TOKEN_BUDGET_EXHAUSTED");
    for call in held {
        assert!(call.end().await.is_ok());
    }
    assert_eq!(local(&runtime), (450, 0));
    reload(&runtime, budgeted(750), &backend).await;
    assert_eq!(code(&call(&runtime, "draft").await), "OK");
    reload(&runtime, provider("local"), &backend).await;
    assert_eq!(
        (runtime.token_budget(&AccountId::Provider(name("local"))), code(&call(&runtime, "draft").await)),
        (None, "OK".into())
    );
}

/// Keeps what was logged.
#[derive(Default)]
struct Kept(Mutex<Vec<CallRecord>>);

impl CallLog for Kept {
    fn finished(&self, record: CallRecord) {
        self.0.lock().unwrap().push(record);
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_a_price_costs() {
    let backend = Metered::of(Scripted::always(Answer::Good.after(s(2))));
    backend.used(1_000, 100);
    let units = |units| Cost::from_units(units).unwrap();
    let price = Price { input: units(2.0), output: units(8.0), second: units(0.001), cached_input: None };
    let prices = [("local/qwen".to_owned(), price)].into();
    let log = Arc::new(Kept::default());
    let mut settings = agent("draft", "local");
    settings.model = Some("qwen".into());
    let builder = builder().provider(provider("local")).agent(settings, backend.clone()).call_log(log.clone());
    let runtime = builder.spending(SpendingSettings { prices, ..SpendingSettings::default() }).start().await.unwrap();
    let reply = call(&runtime, "draft").await.unwrap();
    let want = Some(units(0.002 + 0.0008 + 0.002));
    assert_eq!((reply.usage.unwrap().cost, log.0.lock().unwrap()[0].cost), (want, want));
    // A caller that leaves has been charged for what may have been made, by our own counting.
    backend.scripted.now(Answer::Hang);
    let calling = Call(call_later(&runtime, "draft"));
    pass(s(1)).await;
    drop(calling);
    settle().await;
    let last = log.0.lock().unwrap().pop().unwrap();
    let usage = last.usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.output_tokens, usage.estimated), (100, 200, true));
    assert_eq!(last.cost, Some(units(0.0002 + 0.0016 + 0.001)));
}

/// Where neither a budget nor a price asks beforehand, runs still count what was used.
#[tokio::test(start_paused = true)]
async fn what_nobody_has_heard_counts_without_a_budget_too() {
    for (model, want) in [(Some("qwen".into()), Some((200, true))), (None, None)] {
        let backend = Metered::of(Scripted::always(Answer::Hang));
        let log = Arc::new(Kept::default());
        let settings = AgentSettings { model, ..agent("draft", "local") };
        let builder = builder().provider(provider("local")).agent(settings, backend.clone()).call_log(log.clone());
        let runtime = builder.start().await.unwrap();
        let calling = Call(call_later(&runtime, "draft"));
        pass(s(1)).await;
        drop(calling);
        settle().await;
        let usage = log.0.lock().unwrap().pop().unwrap().usage;
        assert_eq!(usage.map(|usage| (usage.output_tokens, usage.estimated)), want);
    }
}

/// What an attempt used that ended where nobody could look stands in the log as it does in the budget.
#[tokio::test(start_paused = true)]
async fn what_a_panic_used_is_charged_and_logged_as_reserved() {
    let backend = Metered::of(Scripted::always(Answer::Panic));
    let log = Arc::new(Kept::default());
    let mut settings = agent("draft", "local");
    settings.model = Some("qwen".into());
    let units = |units| Cost::from_units(units).unwrap();
    let price = Price { input: units(2.0), output: units(8.0), ..Price::default() };
    let spending =
        SpendingSettings { prices: [("local/qwen".to_owned(), price)].into(), ..SpendingSettings::default() };
    let builder = builder().provider(budgeted(1_000)).agent(settings, backend.clone()).call_log(log.clone());
    let runtime = builder.spending(spending).start().await.unwrap();
    let usage = call(&runtime, "draft").await.unwrap_err().usage.unwrap();
    settle().await;
    assert_eq!((usage.prompt_tokens, usage.output_tokens, usage.estimated), (100, 200, true));
    assert_eq!(usage.cost, Some(units(0.0018)));
    let logged = log.0.lock().unwrap().pop().unwrap();
    assert_eq!((logged.tokens, logged.cost, local(&runtime)), (Some(300), usage.cost, (300, 0)));
}

#[test]
fn threads_never_overdraw_and_leave_nothing_reserved() {
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    threads.block_on(async {
        let backend = Metered::of(Scripted::new(|_, number| match number % 6 {
            0 => Answer::Good,
            1 => Answer::status(503),
            2 => Answer::Panic,
            3 => Answer::Content(Box::new(Answer::ending(Ending::StreamCut))),
            4 => Answer::Good.after(Duration::from_millis(1)),
            _ => Answer::ending(Ending::Network { connected: false }),
        }));
        backend.used(1, 1);
        let mut settings = agent("draft", "local");
        settings.slots = 64;
        settings.breaker.mode = watertight::policy::breaker::settings::Mode::Disabled;
        settings.restart.max = 100_000;
        let provider = ProviderSettings { breaker: settings.breaker.clone(), ..budgeted(5_000) };
        let runtime = Arc::new(runtime_of(settings, provider, &backend).await);
        let callers: Vec<_> = (0..8)
            .map(|caller| {
                let runtime = Arc::clone(&runtime);
                tokio::spawn(async move {
                    for turn in 0..100 {
                        let handle = runtime.agent("draft").unwrap();
                        let call = handle.call(CallRequest::of(Value::Null));
                        if (caller + turn) % 7 == 0 {
                            let _ = tokio::time::timeout(Duration::from_micros(50), call).await;
                        } else {
                            let _ = call.await;
                        }
                        let (used, reserved) = local(&runtime);
                        assert!(used <= 5_000 && reserved <= used, "{used} {reserved}");
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        for _ in 0..1_000 {
            if local(&runtime).1 == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{} tokens are still reserved", local(&runtime).1);
    });
}
