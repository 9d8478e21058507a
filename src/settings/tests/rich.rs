//! A configuration with something of everything: each value arrives where it is used.

use std::path::Path;

use super::given::{Given, SECONDS};
use crate::{
    model::language::Language,
    policy::{breaker::settings::WindowKind, slow::SlowBy},
    settings::{
        agent_backend::AgentBackend,
        endpoint::{AuthStyle, ModelPaths, TextSource},
        general::PlaceSharing,
        provider::{Flavor, ProviderBackend, StreamUpstream},
        secret::SecretPlace,
    },
};

/// A configuration with something of everything.
pub(super) const RICH: &str = r#"
[run]
deadline = "10m"
language = "ko"

[places]
share = "rounded"

[limits]
reply_bytes_max = 1_000_000

[defaults]
slots = 7
call_timeout = "150s"
retry = { attempts_max = 2 }

[defaults.breaker]
slow_call = "20s"
consecutive_failures = 4

[providers.local]
kind = "openai"
base_url = "http://127.0.0.1:8081/v1/"
model = "qwen"
flavor = "llama_cpp"
slots = 4
api_key_env = "LOCAL_KEY"
connect_timeout = "1s"
headers = { x-team = "blog", authorization-note = { env = "NOTE" } }
query = { version = "1" }
guaranteed = { draft = 2 }

[providers.local.breaker]
open = "15s"

[providers.services]
kind = "http"
base_url = "https://services.example.com/api"
api_key_file = "keys/services"

[agents.draft]
provider = "local"
slots = 3
first_token = "45s"
slow_by = "pace"
pace_min = 8
temperature = 0.2
seed = 7
max_output_tokens = 900
system = "Write."
restart = { max = 2, within = "30s" }
stage = "integrated"

[agents.draft.breaker]
window = "60s"
max_age = "off"
consecutive_failures = "off"
half_open_from = "entry"

[agents.review]
provider = "local"

[agents.style]
provider = "services"
path = "/style/analyze"
method = "PUT"
timeout = "40s"
health = "/health"
request = '{"text": {{ input.text | tojson }}}'
headers = { X-Style = "1" }

[agents.style.mapping]
output = "/data"
retryable = "/can~1retry"
"#;

#[test]
fn everything_that_is_set_arrives() {
    let settings = Given::config(RICH).settings();
    assert_eq!(settings.run.deadline, Some(SECONDS(600)));
    assert_eq!((settings.run.language, settings.run.places), (Language::Ko, PlaceSharing::Rounded));
    assert_eq!(settings.limits.reply_bytes_max, 1_000_000);
    let local = settings.provider("local").unwrap();
    let ProviderBackend::OpenAi { endpoint, flavor, stream_upstream, paths } = &local.backend else {
        panic!("{local:?}")
    };
    assert_eq!(endpoint.base_url, "http://127.0.0.1:8081/v1");
    assert_eq!((paths, &endpoint.auth), (&ModelPaths::default(), &AuthStyle::Bearer));
    assert_eq!((*flavor, *stream_upstream), (Flavor::LlamaCpp, StreamUpstream::Always));
    assert_eq!(endpoint.connect_timeout, SECONDS(1));
    assert_eq!(endpoint.headers.len(), 2);
    assert!(matches!(&endpoint.headers[0], (name, TextSource::Secret(source))
        if name == "authorization-note" && source.place == SecretPlace::Environment("NOTE".to_owned())));
    assert_eq!(endpoint.query, [("version".to_owned(), TextSource::Text("1".to_owned()))]);
    assert_eq!(local.settings.key.as_ref().unwrap().as_str(), "LOCAL_KEY");
    assert_eq!(local.settings.slots, Some(4));
    assert_eq!(local.settings.breaker.open, SECONDS(15));
    assert_eq!(local.settings.breaker.slow_call, SECONDS(20), "defaults reach providers");
    assert_eq!(local.settings.breaker.consecutive_failures, Some(3), "but for this one");
    let services = settings.provider("services").unwrap();
    assert_eq!(services.settings.key.as_ref().unwrap().as_str(), "services");
    let ProviderBackend::Http(endpoint) = &services.backend else { panic!("{services:?}") };
    let key_file = &endpoint.api_key.as_ref().unwrap().place;
    assert_eq!(*key_file, SecretPlace::File(Path::new("etc/keys/services").to_owned()));

    let draft = settings.agent("draft").unwrap();
    assert_eq!(draft.settings.model.as_deref(), Some("qwen"));
    assert_eq!(draft.settings.slots, 3);
    assert_eq!(draft.settings.slow_by, SlowBy::Pace(8.0));
    assert_eq!(draft.settings.timeouts.first_token, Some(SECONDS(45)));
    assert_eq!(draft.settings.timeouts.attempt, None);
    assert_eq!(draft.settings.timeouts.call, SECONDS(150));
    assert_eq!(draft.settings.timeouts.connect, SECONDS(1));
    assert_eq!(draft.settings.breaker.window, WindowKind::Time(SECONDS(60)));
    assert_eq!(draft.settings.breaker.max_age, None);
    assert_eq!(draft.settings.breaker.consecutive_failures, None);
    assert_eq!(draft.settings.retry.attempts_max, 2);
    assert_eq!((draft.settings.restart.max, draft.settings.restart.within), (2, SECONDS(30)));
    let AgentBackend::Model(model) = &draft.backend else { panic!("{draft:?}") };
    assert_eq!((model.temperature, model.seed, model.max_output_tokens), (Some(0.2), Some(7), Some(900)));
    assert_eq!(model.system.as_deref(), Some("Write."));
    let style = settings.agent("style").unwrap();
    assert_eq!(style.settings.slots, 7);
    assert_eq!(style.settings.breaker.consecutive_failures, Some(4));
    let AgentBackend::Http(http) = &style.backend else { panic!("{style:?}") };
    assert_eq!((http.path.as_str(), http.method), ("/style/analyze", "PUT"));
    assert_eq!(http.health.as_deref(), Some("/health"));
    assert_eq!(http.mapping.retryable.as_deref(), Some("/can~1retry"));
    assert_eq!(http.headers[0].0, "x-style");
    assert!(http.request.as_deref().unwrap().contains("tojson"));
}
