//! A backend that stands in front of another one answers as that one does, in everything that is not its own.

use serde_json::json;

use super::*;
use crate::{
    model::facts::Ending,
    runtime::{promise::Promised, relay::RelayForm},
};

/// Answers everything in a way that is nobody's default.
struct Full;

impl Backend for Full {
    fn attempt<'a>(&'a self, _: &'a AttemptRequest, _: &'a Progress) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async { Ok(Reply::of(json!("done"))) })
    }

    fn relays(&self) -> bool {
        true
    }

    fn estimate(&self, _: &Asked, prompt: Option<&str>) -> Option<TokenEstimate> {
        let prompt = prompt.map_or(0, |text| text.len() as u64);
        Some(TokenEstimate { prompt, output_max: Some(7), counter: TokenCounter::Letters })
    }

    fn vendor_budget(&self) -> Option<VendorBudget> {
        Some(VendorBudget { remaining: 3, reset_in: Duration::from_secs(9) })
    }

    fn cold_start(&self) -> ColdStart {
        ColdStart::OnDemand { keeps_for: Some(Duration::from_secs(300)) }
    }

    fn warm_up(&self) -> BoxFuture<'_, Result<WarmUp, AttemptFailure>> {
        Box::pin(async { Ok(WarmUp::Loaded) })
    }

    fn health(&self) -> Option<BoxFuture<'_, Result<(), AttemptFailure>>> {
        Some(Box::pin(async { Err(AttemptFailure::new(Ending::status(503), "ill")) }))
    }
}

/// Nothing but a place in front of another one.
struct InFront<B>(B);

impl<B: Backend> Backend for InFront<B> {
    fn inner(&self) -> Option<&dyn Backend> {
        Some(&self.0)
    }

    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        self.0.attempt(request, progress)
    }
}

/// Does its work itself, and nothing else.
struct Plain;

impl Backend for Plain {
    fn attempt<'a>(&'a self, _: &'a AttemptRequest, _: &'a Progress) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async { Ok(Reply::of(json!("done"))) })
    }
}

/// Everything that a backend says, as text.
async fn said(backend: &dyn Backend) -> [String; 6] {
    let asked = Asked { input: Arc::new(json!({})), relay: None };
    let healthy = match backend.health() {
        Some(asking) => format!("{:?}", asking.await.map_err(|failure| failure.message)),
        None => "nobody to ask".to_owned(),
    };
    [
        format!("{}", backend.relays()),
        format!("{:?}", backend.estimate(&asked, Some("four"))),
        format!("{:?}", backend.vendor_budget()),
        format!("{:?}", backend.cold_start()),
        format!("{:?}", backend.warm_up().await.map_err(|failure| failure.message)),
        healthy,
    ]
}

#[tokio::test]
async fn whoever_stands_in_front_answers_as_the_one_behind() {
    let promised = |schema| Promised::try_new(Arc::new(Full), &schema).unwrap();
    let (of_full, of_plain) = (said(&Full).await, said(&Plain).await);
    assert!(of_full.iter().zip(&of_plain).all(|(full, plain)| full != plain), "{of_full:?} {of_plain:?}");
    assert_eq!(said(&InFront(Full)).await, of_full);
    assert_eq!(said(&InFront(InFront(Full))).await, of_full);
    assert_eq!(said(&promised(json!({"type": "object"}))).await, of_full);
    assert_eq!(said(&InFront(Plain)).await, of_plain);
}

fn request() -> AttemptRequest {
    AttemptRequest {
        agent: Name::try_new("draft").unwrap(),
        input: Arc::new(json!({})),
        call_id: "call-1".to_owned(),
        run_id: None,
        step: None,
        attempt: 1,
        idempotency_key: "once".to_owned(),
        traceparent: None,
        deadline: Duration::from_secs(1),
        tenant: None,
        feature: None,
        priority: None,
        prompt: None,
        timeouts: AttemptTimeouts { first_token: None, stall: None },
        hold: Hold::of(Arc::new(())),
        relay: None,
        capture: None,
    }
}

#[tokio::test]
async fn a_promise_is_about_the_agents_own_answers() {
    let promised = Promised::try_new(Arc::new(Full), &json!({"type": "object"})).unwrap();
    let progress = Progress::start(Arc::new(TokioClock::start()), None);
    let mut asked = request();
    let failure = promised.attempt(&asked, &progress).await.unwrap_err();
    assert_eq!(failure.ending, Ending::BadReply);
    asked.relay = Some(Relay {
        kind: RelayKind::Chat,
        form: RelayForm::Whole,
        body: Arc::new(RawObject::try_new(b"{}".to_vec()).unwrap()),
        out: mpsc::channel(1).0,
        fallback: None,
        degraded: None,
        earlier: 0,
    });
    assert_eq!(promised.attempt(&asked, &progress).await.unwrap().output, json!("done"));
}

/// Whoever adds a question to the port writes an answer for plain work, and must not forget those that stand in front of others.
#[test]
fn every_answer_that_is_given_for_all_asks_the_one_behind_first() {
    let source = include_str!("../ports.rs");
    let (_, of_trait) = source.split_once("pub trait Backend").unwrap();
    let (of_trait, _) = of_trait.split_once("\n}\n").unwrap();
    let methods: Vec<&str> = of_trait.split("\n    fn ").skip(1).collect();
    let bodies = methods.iter().filter(|method| method.contains("\n    }"));
    let forgotten: Vec<_> = bodies
        .filter(|method| !method.starts_with("inner(") && !method.contains("self.inner()"))
        .map(|method| method.split('(').next().unwrap())
        .collect();
    assert!(methods.len() >= 8 && forgotten.is_empty(), "{forgotten:?}");
}
