//! A service without sockets: agents that echo or hang, two tenants and an operator, a journal in a folder that goes with the test.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Request, StatusCode},
};
use serde_json::Value;
use tower::ServiceExt as _;
use utoipa_axum::router::OpenApiRouter;

use crate::{
    journal::{
        files::store::{FileSettings, FileStore},
        journal::SqliteJournal,
        settings::JournalSettings,
    },
    model::{language::Language, name::Name},
    policy::compartment::settings::HighestClass,
    runtime::{
        callers::CallerSettings,
        engine::Runtime,
        function_agent::{AgentFailure, CallInfo, FunctionAgent},
        ports::TokioClock,
        settings::{AgentSettings, ProviderSettings},
    },
    serve::{
        access::{
            keys::{KeyRing, hash_of},
            signature::Signer,
        },
        caps::Caps,
        operator::config::{ConfigDesk, ConfigInForce},
        router::router,
        state::{AppState, Door, Ending, Running, Service},
    },
    settings::{
        general::{Limits, PlaceSharing},
        keys::{Acting, KeyProof, KeySettings, OpenAiNames, Role},
        serve::ServeSettings,
    },
    workflow::{check, checked::Workflow},
};

const WORKFLOW: &str = r#"
[workflow]
name = "one"
output = "steps.echo.output"
[inputs]
text = "text"
photos = "files?"
places = "text?"
[[step]]
id = "echo"
agent = "echo"
in = { text = "input.text", photos = "input.photos", places = "input.places" }
"#;
const HANGING: &str = r#"
[workflow]
name = "hanging"
output = "steps.hang.output"
[[step]]
id = "hang"
agent = "hang"
in = {}
"#;

/// The service.
pub(super) struct World {
    pub(super) state: AppState,
    routes: Router,
    #[allow(dead_code, reason = "held for its drop")]
    folder: tempfile::TempDir,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

impl Got {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// Fails unless it is the envelope of this code with this status.
    #[track_caller]
    pub(super) fn fails(&self, status: u16, code: &str) -> &Self {
        let body = self.json();
        assert_eq!((self.status.as_u16(), body["error"]["error_code"].as_str()), (status, Some(code)), "{self:#?}");
        assert_eq!(body["error"]["http_status"], status);
        assert_eq!(body["error"]["trace_id"].as_str().map(str::len), Some(32));
        self
    }

    #[track_caller]
    pub(super) fn is(&self, status: u16) -> &Self {
        assert_eq!(self.status.as_u16(), status, "{self:#?}");
        self
    }
}

/// Settings of a key whose text is its name.
pub(super) fn key(name: &str, tenant: Option<&str>) -> KeySettings {
    KeySettings {
        name: Name::try_new(name).unwrap(),
        proof: KeyProof::Hash(hash_of(name)),
        tenant: tenant.map(|tenant| Name::try_new(tenant).unwrap()),
        tier: None,
        role: Role::Caller,
        feature: None,
        features: None,
        priority_max: HighestClass::of("interactive"),
        acting: Acting::ForItself,
        openai_names: OpenAiNames::Taken,
    }
}

/// Ann and Bob of two tenants, an operator, and an application that speaks for others.
pub(in crate::serve) fn keys() -> Vec<KeySettings> {
    vec![
        key("ann", Some("acme")),
        key("bob", Some("brick")),
        KeySettings { role: Role::Operator, ..key("olga", None) },
        KeySettings { acting: Acting::ForOthers, ..key("app", None) },
        KeySettings { openai_names: OpenAiNames::PassedOn, ..key("hint", Some("acme")) },
        KeySettings {
            features: Some(vec![Name::try_new("chat").unwrap()]),
            priority_max: HighestClass::of("batch"),
            ..key("low", Some("acme"))
        },
    ]
}

impl World {
    pub(super) async fn with(keys: &[KeySettings], settings: ServeSettings) -> Self {
        Self::guarding(CallerSettings::default(), keys, settings).await
    }

    /// The same with guards of its callers.
    pub(super) async fn guarding(callers: CallerSettings, keys: &[KeySettings], settings: ServeSettings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let journal = SqliteJournal::open(JournalSettings::at(folder.path().join("journal.db"))).unwrap();
        let name = |text: &str| Name::try_new(text).unwrap();
        let echo = |input: Value, _: CallInfo| async move { Ok::<_, AgentFailure>(input) };
        let hang = |_: Value, _: CallInfo| std::future::pending::<Result<Value, AgentFailure>>();
        let runtime = Runtime::builder()
            .clock(Arc::new(TokioClock::since_unix_epoch()))
            .callers(callers)
            .journal(Arc::clone(&journal) as Arc<dyn crate::runtime::journal::Journal>)
            .provider(ProviderSettings::new(name("here")))
            .agent(AgentSettings::new(name("echo"), name("here")), Arc::new(FunctionAgent::new(echo)))
            .agent(AgentSettings::new(name("hang"), name("here")), Arc::new(FunctionAgent::new(hang)))
            .start()
            .await
            .unwrap();
        let known: BTreeSet<Name> = ["echo", "hang"].map(name).into();
        let workflows = [("one", WORKFLOW), ("hanging", HANGING)]
            .map(|(name, text)| (name.to_owned(), Arc::new(check::load(name, text.as_bytes(), &known).unwrap())));
        let state = state_of(settings, KeyRing::of(keys, &|_| None).unwrap(), workflows.into());
        let files = Arc::new(FileStore::new(Arc::clone(&journal), FileSettings::default()));
        state.door.open(Arc::new(Running { runtime: Arc::new(runtime), journal, files }));
        Self { routes: router(state.clone(), OpenApiRouter::new()), state, folder }
    }

    pub(super) async fn usual() -> Self {
        Self::with(&keys(), ServeSettings::default()).await
    }

    /// Sends a request and reads the answer's head.
    pub(super) async fn send(&self, request: Request<Body>) -> axum::response::Response {
        self.routes.clone().oneshot(request).await.unwrap()
    }

    /// Sends a request and reads its answer to the end.
    pub(super) async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Got {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if !body.is_empty() && headers.iter().all(|(name, _)| *name != "content-type") {
            request = request.header("content-type", "application/json");
        }
        let answer = self.send(request.body(Body::from(body.to_owned())).unwrap()).await;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        Got { status, headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
    }

    /// The same with a key.
    pub(super) async fn with_key(&self, key: &str, method: &str, path: &str, body: &str) -> Got {
        self.ask(method, path, &[("authorization", &format!("Bearer {key}"))], body).await
    }

    /// A run of `key` that is over.
    pub(super) async fn ended_run(&self, key: &str) -> String {
        let got = self.with_key(key, "POST", "/v1/runs", r#"{"workflow":"one","input":{"text":"x"}}"#).await;
        let id = got.is(202).json()["run_id"].as_str().unwrap().to_owned();
        self.with_key(key, "GET", &format!("/v1/runs/{id}/result?wait=30"), "").await.is(200);
        // The record is told as soon as it is durable.
        id
    }
}

/// A service that has no runtime yet.
pub(in crate::serve) fn state_of(
    settings: ServeSettings,
    keys: KeyRing,
    workflows: BTreeMap<String, Arc<Workflow>>,
) -> AppState {
    AppState::new(Service {
        caps: Caps::new(&settings),
        settings,
        keys,
        language: Language::En,
        limits: Limits::default(),
        run_deadline: None,
        places: PlaceSharing::Never,
        workflows,
        door: Door::default(),
        signer: Signer::of_chance().unwrap(),
        ending: Ending::default(),
        config: ConfigDesk::new(ConfigInForce::default()).0,
        metrics: None,
    })
}

/// A runtime that is asked for no runs: its journal is gone with this function.
pub(in crate::serve) fn without_runs(runtime: Runtime) -> Arc<Running> {
    let folder = tempfile::tempdir().unwrap();
    let journal = SqliteJournal::open(JournalSettings::at(folder.path().join("journal.db"))).unwrap();
    let files = Arc::new(FileStore::new(Arc::clone(&journal), FileSettings::default()));
    Arc::new(Running { runtime: Arc::new(runtime), journal, files })
}

/// Waits until something is so; a test that waits in vain fails.
pub(in crate::serve) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
