//! The loader as a whole: tables of configurations that are refused and accepted, layers, manifests, and texts made by chance.

use std::{collections::BTreeMap, path::Path, time::Duration};

use proptest::prelude::*;

use crate::{
    model::{language::Language, name::Name},
    policy::{breaker::settings::WindowKind, retry_settings::RetrySettings, slow::SlowBy},
};

use super::{
    agent_backend::AgentBackend,
    endpoint::{AuthStyle, ModelPaths, TextSource},
    folder::{AgentFolder, ConfigFile},
    general::PlaceSharing,
    load::{Settings, Sources, Wanted, explain, load},
    ollama::KeepAlive,
    problem::SettingsError,
    provider::{Flavor, ProviderBackend, StreamUpstream},
    secret::SecretPlace,
};

/// What a test hands in.
#[derive(Clone)]
pub(super) struct Given {
    config: Option<ConfigFile>,
    folders: Vec<AgentFolder>,
    environment: BTreeMap<String, String>,
    flags: Vec<String>,
    files: BTreeMap<String, Vec<u8>>,
    wanted: Wanted,
}

impl Given {
    pub(super) fn nothing() -> Self {
        Self {
            config: None,
            folders: ["draft", "review"].map(|name| folder(name, &[("agent.toml", "description = 'x'")])).to_vec(),
            environment: BTreeMap::new(),
            flags: Vec::new(),
            files: BTreeMap::new(),
            wanted: Wanted::All,
        }
    }

    pub(super) fn config(text: &str) -> Self {
        Self::bytes(text.as_bytes())
    }

    fn bytes(bytes: &[u8]) -> Self {
        let config = Some(ConfigFile { path: "w.toml".to_owned(), bytes: bytes.to_vec() });
        Self { config, ..Self::nothing() }
    }

    fn only(mut self, names: &[&str]) -> Self {
        self.wanted = Wanted::Named(names.iter().map(|name| Name::try_new(name).unwrap()).collect());
        self
    }

    fn folder(mut self, name: &str, files: &[(&str, &str)]) -> Self {
        self.folders.retain(|folder| folder.name.as_str() != name);
        self.folders.push(folder(name, files));
        self
    }

    fn file(mut self, name: &str, text: &str) -> Self {
        self.files.insert(name.to_owned(), text.as_bytes().to_vec());
        self
    }

    fn environment(mut self, name: &str, text: &str) -> Self {
        self.environment.insert(name.to_owned(), text.to_owned());
        self
    }

    fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    pub(super) fn load(&self) -> Result<Settings, SettingsError> {
        load(&Sources {
            config: self.config.as_ref(),
            folder: Path::new("etc"),
            agent_folders: &self.folders,
            environment: &self.environment,
            flags: &self.flags,
            embedded: &["draft", "review", "style"].map(|name| Name::try_new(name).unwrap()),
            wanted: self.wanted.clone(),
            read_file: &|name| self.files.get(name).cloned().ok_or_else(|| "cannot be read: not found".to_owned()),
        })
    }

    fn settings(&self) -> Settings {
        self.load().unwrap_or_else(|error| panic!("refused:\n{error}"))
    }

    /// Asserts that this is refused with exactly these lines.
    fn refused(&self, lines: &[&str]) {
        match self.load() {
            Ok(_) => panic!("accepted, though {lines:?}"),
            Err(error) => assert_eq!(error.to_string().lines().collect::<Vec<_>>(), lines),
        }
    }

    fn warned(&self, lines: &[&str]) {
        let warnings: Vec<String> = self.settings().warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings, lines);
    }
}

fn folder(name: &str, files: &[(&str, &str)]) -> AgentFolder {
    AgentFolder {
        name: Name::try_new(name).unwrap(),
        origin: format!("agents/{name}"),
        files: files.iter().map(|(file, text)| ((*file).to_owned(), text.as_bytes().to_vec())).collect(),
    }
}

const SECONDS: fn(u64) -> Duration = Duration::from_secs;

/// A configuration with something of everything.
const RICH: &str = r#"
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

#[test]
fn defaults_by_kind() {
    let config = "
[providers.e]\nkind = 'embedded'
[providers.h]\nkind = 'http'\nbase_url = 'http://h'
[providers.o]\nkind = 'openai'\nbase_url = 'http://o'\nmodel = 'm'
[agents.draft]\nprovider = 'e'\n[agents.web]\nprovider = 'h'\n[agents.chat]\nprovider = 'o'";
    let settings = Given::config(config).only(&[]).settings();
    for (agent, attempt, first_token, stall, slow_by) in [
        ("draft", Some(60), None, None, SlowBy::Total),
        ("web", Some(60), None, Some(20), SlowBy::Total),
        ("chat", None, Some(60), Some(20), SlowBy::FirstToken),
    ] {
        let agent = &settings.agent(agent).unwrap().settings;
        assert_eq!(agent.timeouts.attempt, attempt.map(SECONDS), "{agent:?}");
        assert_eq!(agent.timeouts.first_token, first_token.map(SECONDS), "{agent:?}");
        assert_eq!(agent.timeouts.stall, stall.map(SECONDS), "{agent:?}");
        assert_eq!((agent.timeouts.connect, agent.timeouts.call), (SECONDS(2), SECONDS(180)));
        assert_eq!((agent.slow_by, agent.slots), (slow_by, 10));
        assert_eq!(agent.retry, RetrySettings::default());
        assert_eq!(agent.breaker.consecutive_failures, Some(5));
        assert_eq!(agent.breaker.trial_timeout, Some(SECONDS(180)), "raised to the call's");
    }
    for provider in &settings.providers {
        assert_eq!(provider.settings.slots, None);
        assert_eq!(provider.settings.breaker.consecutive_failures, Some(3));
    }
    let ProviderBackend::OpenAi { stream_upstream, .. } = settings.provider("o").unwrap().backend else { panic!() };
    assert_eq!(stream_upstream, StreamUpstream::AsAsked);
    assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
}

#[test]
fn an_ollama_server_needs_little_said() {
    let config = "
[providers.o]\nkind = 'ollama'\nmodel = 'qwen'
[agents.chat]\nprovider = 'o'
[agents.long]\nprovider = 'o'\nmodel = 'llama'\nnum_ctx = 32768\nkeep_alive = 'forever'\nmax_output_tokens = 4000";
    let settings = Given::config(config).only(&[]).settings();
    let provider = settings.provider("o").unwrap();
    let ProviderBackend::Ollama { endpoint, stream_upstream, context } = &provider.backend else {
        panic!("{provider:?}")
    };
    assert_eq!((endpoint.base_url.as_str(), *stream_upstream), ("http://127.0.0.1:11434", StreamUpstream::Always));
    assert_eq!((context.num_ctx, context.keep_alive), (8_192, KeepAlive::For(SECONDS(300))));
    assert_eq!(provider.settings.slots, Some(1), "it queues without bound and says nothing");
    let kept = |name: &str| {
        let AgentBackend::Model(model) = settings.agent(name).unwrap().backend.clone() else { panic!("{name}") };
        model.context.over(*context)
    };
    assert_eq!(kept("chat"), *context);
    assert_eq!((kept("long").num_ctx, kept("long").keep_alive), (32_768, KeepAlive::Forever));
    let chat = &settings.agent("chat").unwrap().settings;
    assert_eq!((chat.timeouts.attempt, chat.slow_by, chat.model.as_deref()), (None, SlowBy::FirstToken, Some("qwen")));
    let rows = explain(&settings);
    let told = |key: &str| rows.iter().find(|row| row.key == key).map(|row| row.value.clone());
    for (key, value) in [
        ("providers.o.base_url", "http://127.0.0.1:11434"),
        ("providers.o.num_ctx", "8192"),
        ("agents.chat.num_ctx", "8192"),
        ("agents.chat.keep_alive", "5m"),
        ("agents.long.num_ctx", "32768"),
        ("agents.long.keep_alive", "forever"),
    ] {
        assert_eq!(told(key).as_deref(), Some(value), "{key}");
    }
}

#[test]
fn what_an_ollama_server_makes_of_odd_settings() {
    let config = "
[providers.o]\nkind = 'ollama'\nmodel = 'qwen'\nkeep_alive = '0s'
[agents.one]\nprovider = 'o'
[agents.two]\nprovider = 'o'\nnum_ctx = 4096
[agents.other]\nprovider = 'o'\nmodel = 'llama'\nnum_ctx = 4096";
    let warnings = Given::config(config).only(&[]).settings().warnings;
    let said: Vec<String> = warnings.iter().map(ToString::to_string).filter(|line| !line.contains("slots")).collect();
    assert_eq!(said.len(), 2, "{said:#?}");
    assert!(said[0].contains("keep_alive = \"0s\": puts the model away after each request"), "{said:#?}");
    assert!(said[1].contains("agents.two.num_ctx = 4096: is another one than that of agents.one (8192)"), "{said:#?}");
    let head = "[providers.o]\nkind = 'ollama'\nmodel = 'q'\n[agents.chat]\nprovider = 'o'\n";
    for (line, said) in [
        ("num_ctx = 100", "num_ctx = 100: must be a whole number from 128 to 100000000"),
        ("keep_alive = 5", "keep_alive = 5: must be a duration, as in \"5m\", or \"forever\""),
        ("keep_alive = '5'", "keep_alive = \"5\": must have a unit: ms, s, m or h, as in \"30s\""),
        (
            "max_output_tokens = 8192",
            "max_output_tokens = 8192: leaves no room for a prompt at o: num_ctx = 8192 holds prompt and answer together",
        ),
        ("mapping = {}", "mapping = {}: is only for agents of a provider of kind \"http\""),
    ] {
        Given::config(&format!("{head}{line}")).only(&[]).refused(&[&format!("w.toml:6: agents.chat.{said}")]);
    }
    // A vendor may stand in for a local server, and the other way round.
    let mixed = "
[providers.o]\nkind = 'ollama'\n[providers.v]\nkind = 'openai'\nbase_url = 'http://v'
[agents.a]\ntargets = [{ provider = 'o', model = 'qwen' }, { provider = 'v', model = 'gpt' }]";
    assert_eq!(Given::config(mixed).only(&[]).settings().agent("a").unwrap().targets.len(), 1);
}

#[test]
fn no_file_at_all_is_the_agents_built_in() {
    let settings = Given::nothing().settings();
    let names: Vec<&str> = settings.agents.iter().map(|agent| agent.settings.name.as_str()).collect();
    assert_eq!(names, ["draft", "review"]);
    assert_eq!(settings.providers.len(), 1);
    assert_eq!(settings.providers[0].backend, ProviderBackend::Embedded);
    assert_eq!(Given::nothing().settings(), Given::config("").settings());
    assert_eq!(Given::nothing().only(&["review"]).settings().agents.len(), 1);
}

#[test]
fn an_agent_finds_its_provider() {
    let check = |config: &str, manifest: &str, provider: &str| {
        let given = Given::config(config).folder("draft", &[("agent.toml", manifest)]).only(&["draft"]);
        assert_eq!(given.settings().agent("draft").unwrap().settings.provider.as_str(), provider, "{config}");
    };
    let one = "[providers.a]\nkind = 'embedded'\n";
    let two = "[providers.a]\nkind = 'embedded'\n[providers.b]\nkind = 'embedded'\n";
    check("", "", "embedded");
    check(one, "", "a");
    check(one, "provider = 'embedded'", "embedded");
    check(two, "", "embedded");
    check(two, "provider = 'b'", "b");
    check(&format!("{two}[agents.draft]\nprovider = 'a'"), "provider = 'b'", "a");
    Given::config(&format!("{two}[agents.draft]\nslots = 1"))
        .only(&[])
        .refused(&["w.toml:5: agents.draft.provider: must be set, as there are several providers: a, b"]);
    Given::config("[providers.local]\nkind = 'embedded'\n[agents.draft]\nprovider = 'locla'")
        .only(&[])
        .refused(&["w.toml:4: agents.draft.provider = \"locla\": there is no such provider, did you mean `local`?"]);
}

#[test]
fn manifests_lie_below_the_configuration_and_bring_only_what_fits() {
    let manifest = "description = 'Writes.'\nslots = 3\ntemperature = 0.5\nmodel = 'small'\nprompt = 'other.md'\n\
                    [breaker]\nopen = '10s'\ntrials = 4\n[mapping]\noutput = '/x'\n";
    let files = [("agent.toml", manifest), ("other.md", "Draft {{ input }}"), ("schema.json", "{\"type\":\"object\"}")];
    let config = "[defaults.breaker]\ntrials = 3\nopen = '20s'\nopen_growth = 2.0\n[providers.p]\nkind = 'KIND'\n\
                  URL\n[agents.draft.breaker]\nopen = '40s'\n";
    let with = |kind: &str, url: &str| {
        let config = config.replace("KIND", kind).replace("URL", url);
        Given::config(&config).folder("draft", &files).only(&["draft"]).settings().agent("draft").unwrap().clone()
    };
    let draft = with("openai", "base_url = 'http://h'\nmodel = 'large'");
    assert_eq!(draft.description.as_deref(), Some("Writes."));
    assert_eq!(draft.settings.slots, 3);
    assert_eq!(draft.settings.model.as_deref(), Some("large"), "the provider knows its server");
    assert_eq!(draft.settings.breaker.open, SECONDS(40));
    assert_eq!(draft.settings.breaker.trials, 4, "a manifest is more special than a default");
    assert!((draft.settings.breaker.open_growth - 2.0).abs() < f64::EPSILON);
    let AgentBackend::Model(model) = draft.backend else { panic!() };
    assert_eq!(model.prompt.as_deref(), Some("Draft {{ input }}"));
    assert_eq!(model.schema, Some(serde_json::json!({"type": "object"})));
    let draft = with("openai", "base_url = 'http://h'");
    assert_eq!(draft.settings.model.as_deref(), Some("small"));
    let draft = with("embedded", "");
    assert!(matches!(draft.backend, AgentBackend::Embedded { twin } if twin.as_str() == "draft"));
    let draft = with("http", "base_url = 'http://h'");
    let AgentBackend::Http(http) = draft.backend else { panic!() };
    assert_eq!(http.mapping.output.as_deref(), Some("/x"));
    assert!(http.schema.is_some());
}

#[test]
fn prompts_and_schemas_are_looked_into() {
    let given = || {
        let provider = "[providers.p]\nkind = 'openai'\nbase_url = 'http://h'\nmodel = 'm'\n";
        Given::config(&format!("{provider}[agents.draft]\nprompt = 'p.md'\nschema = 's.json'")).only(&[])
    };
    let good = given().file("p.md", "Hello {{ input.text }}").file("s.json", "{}");
    let AgentBackend::Model(model) = &good.settings().agent("draft").unwrap().backend.clone() else { panic!() };
    assert_eq!(model.prompt.as_deref(), Some("Hello {{ input.text }}"));
    given().refused(&[
        "w.toml:6: agents.draft.prompt = \"p.md\": cannot be read: not found",
        "w.toml:7: agents.draft.schema = \"s.json\": cannot be read: not found",
    ]);
    let error = given().file("p.md", "a\n{% if %}").file("s.json", "{\n\"type\": }").load().unwrap_err().to_string();
    assert!(error.contains("p.md:2: agents.draft.prompt = \"p.md\": is no template: "), "{error}");
    assert!(error.contains("s.json:2: agents.draft.schema = \"s.json\": is no JSON: "), "{error}");
    let error = given().file("p.md", "").file("s.json", "{\"type\": 5}").load().unwrap_err().to_string();
    assert!(error.contains("s.json: agents.draft.schema = \"s.json\": is no JSON Schema: "), "{error}");
    Given::nothing().folder("draft", &[("agent.toml", "slots = 'x'\nprompt = '../p.md'\nslot = 1")]).refused(&[
        "agents/draft/agent.toml:1: agents.draft.slots = \"x\": must be a whole number from 0 to 100000",
        "agents/draft/agent.toml:3: agents.draft.slot = 1: unknown key, did you mean `slots`?",
    ]);
    let outside = [("agent.toml", "prompt = '../p.md'")];
    let openai = "[providers.p]\nkind = 'openai'\nbase_url = 'http://h'\nmodel = 'm'\n";
    Given::config(openai)
        .folder("draft", &outside)
        .only(&["draft"])
        .refused(&["agents/draft/agent.toml:1: agents.draft.prompt = \"../p.md\": is no file of the agent's folder"]);
}

#[test]
fn environment_and_flags_win_and_are_named() {
    let given = || Given::config("[agents.draft]\nslots = 1\nbreaker = { open = '40s', trials = 3 }").only(&[]);
    let draft = |given: &Given| given.settings().agent("draft").unwrap().settings.clone();
    assert_eq!(draft(&given()).slots, 1);
    let given = given().environment("WATERTIGHT_AGENTS__DRAFT__SLOTS", "2");
    assert_eq!(draft(&given).slots, 2);
    let given = given.environment("WATERTIGHT_AGENTS__DRAFT__BREAKER__OPEN", "50s");
    let given = given.flag("agents.draft.slots=3").flag("agents.draft.retry.attempts_max=1");
    let settings = draft(&given);
    assert_eq!((settings.slots, settings.breaker.open, settings.breaker.trials), (3, SECONDS(50), 3));
    assert_eq!(settings.retry.attempts_max, 1);
    let rows = explain(&given.settings());
    let row = |key: &str| {
        let row = rows.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("{key} of {rows:?}"));
        format!("{} ({})", row.value, row.origin)
    };
    assert_eq!(row("agents.draft.slots"), "3 (--set agents.draft.slots)");
    assert_eq!(row("agents.draft.breaker.open"), "50s (WATERTIGHT_AGENTS__DRAFT__BREAKER__OPEN)");
    assert_eq!(row("agents.draft.breaker.trials"), "3 (w.toml:3)");
    assert_eq!(row("agents.draft.breaker.slow_call"), "30s (default)");
    assert_eq!(row("agents.draft.timeout"), "1m (default)");
    assert_eq!(
        row("agents.draft.breaker.trial_timeout"),
        "3m (1m at default, raised to the longest attempt or call of its agents)"
    );
    given
        .clone()
        .flag("agents.draft.slots=-1")
        .refused(&["--set agents.draft.slots: agents.draft.slots = -1: must be a whole number from 0 to 100000"]);
    given
        .clone()
        .environment("WATERTIGHT_AGENTS__DRAFT__SLOTZ", "1")
        .refused(&["WATERTIGHT_AGENTS__DRAFT__SLOTZ: agents.draft.slotz = 1: unknown key, did you mean `slots`?"]);
    given
        .environment("WATERTIGHT_AGENTS_DRAFT_SLOTS", "1")
        .warned(&["WATERTIGHT_AGENTS_DRAFT_SLOTS: is not used: parts of a key are separated by two underscores"]);
}

#[test]
fn explain_has_every_key_of_the_breaker_once() {
    let rows = explain(&Given::config(RICH).settings());
    let mut keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
    let count = keys.len();
    keys.dedup();
    assert_eq!(keys.len(), count, "each key has one row");
    for key in ["agents.draft.breaker.window", "providers.local.breaker.half_open_by", "run.deadline", "node.instances"]
    {
        assert!(keys.contains(&key), "{key} of {keys:?}");
    }
    let shown = format!("{rows:?}");
    assert!(shown.contains("LOCAL_KEY") && shown.contains("env NOTE"));
}

#[test]
fn several_nodes_divide_what_is_configured() {
    let config = "[node]\ninstances = 2\n[providers.p]\nkind = 'embedded'\nslots = 5\nguaranteed = { draft = 2 }\n\
                  [agents.draft]\nslots = 0\n[agents.review.breaker]\ntrials = 3\n";
    let settings = Given::config(config).settings();
    assert_eq!(settings.instances, 2);
    let provider = &settings.provider("p").unwrap().settings;
    assert_eq!((provider.slots, provider.guaranteed[0].1, provider.breaker.trials), (Some(2), 1, 2));
    let (draft, review) = (settings.agent("draft").unwrap(), settings.agent("review").unwrap());
    assert_eq!((draft.settings.slots, draft.settings.breaker.trials), (0, 2), "closed stays closed");
    assert_eq!((review.settings.slots, review.settings.breaker.trials), (5, 1));
    let config = "[node]\ninstances = 4\n[providers.p]\nkind = 'openai'\nbase_url = 'http://h'\nflavor = 'llama_cpp'\n\
                  [agents.draft]\nslots = 3\n[agents.draft.breaker]\ntrials = 2\n";
    Given::config(config).only(&[]).refused(&[
        "w.toml:8: agents.draft.slots = 3: falls under 1 when divided by node.instances = 4",
        "w.toml:10: agents.draft.breaker.trials = 2: falls under 1 when divided by node.instances = 4",
        "default: providers.p.slots = 1: falls under 1 when divided by node.instances = 4",
    ]);
}

#[test]
fn guaranteed_shares_must_fit() {
    let check = |slots: &str, guaranteed: &str, lines: &[&str]| {
        let provider = format!("[providers.p]\nkind = 'embedded'\n{slots}\nguaranteed = {guaranteed}\n");
        let given = Given::config(&provider);
        if lines.is_empty() { assert_eq!(given.settings().warnings, []) } else { given.refused(lines) }
    };
    check("slots = 4", "{}", &[]);
    check("slots = 4", "{ draft = 2 }", &[]);
    check("slots = 4", "{ draft = 0 }", &[]);
    check("slots = 4", "{ draft = 3, review = 1 }", &[]);
    check(
        "slots = 4",
        "{ draft = 3 }",
        &[
            "w.toml:3: providers.p.slots = 4: is too few: guaranteed shares need 5 (3 configured, 1 agents with the usual share)",
        ],
    );
    check(
        "slots = 4",
        "{ draft = 3, nobody = 2 }",
        &[
            "w.toml:3: providers.p.slots = 4: is too few: guaranteed shares need 5 (5 configured, 0 agents with the usual share)",
            "w.toml:4: providers.p.guaranteed.nobody = 2: names no agent of this provider",
        ],
    );
    check(
        "",
        "{ draft = 3 }",
        &["w.toml:4: providers.p.guaranteed.draft = 3: means nothing without providers.p.slots"],
    );
    check(
        "slots = 4",
        "{ draft = -1 }",
        &["w.toml:4: providers.p.guaranteed.draft = -1: must be a whole number from 0 to 100000"],
    );
    Given::config("[providers.p]\nkind = 'embedded'\nslots = 1")
        .warned(&["w.toml:3: providers.p.slots = 1: is fewer than its 2 agents: none of them has a guaranteed share"]);
}

#[test]
fn slowness_that_no_attempt_can_reach() {
    let check = |agent: &str, breaker: &str| {
        let config = format!("[agents.draft]\n{agent}\n[agents.draft.breaker]\n{breaker}\n");
        Given::config(&config).only(&[])
    };
    check("timeout = '60s'", "slow_call = '59.9s'").warned(&[]);
    let refused = check("timeout = '60s'", "slow_call = '60s'");
    refused.refused(&[
        "w.toml:4: agents.draft.breaker.slow_call = \"60s\": must be shorter than the 1m after which an attempt \
                       ends: no call could ever be seen to be slow (1m)",
    ]);
    let short = check("timeout = '20s'", "").settings().warnings;
    assert_eq!(short.len(), 1, "a short timeout alone is allowed, with a word: {short:?}");
    check("call_timeout = '20s'\ntimeout = 'off'", "slow_call = '25s'").load().unwrap_err();
}

/// What is wrong, and the one line that says so. The configuration stands behind `PROVIDERS`, in line 12 and on.
const PROVIDERS: &str = "[providers.e]\nkind = 'embedded'\n[providers.h]\nkind = 'http'\nbase_url = 'http://h'\n\
                         [providers.o]\nkind = 'openai'\nbase_url = 'http://o'\nmodel = 'm'\n\n\n";

#[test]
fn each_slip_is_named() {
    let draft = |line: &str| format!("[agents.draft]\nprovider = 'e'\n{line}");
    let web = |line: &str| format!("[agents.web]\nprovider = 'h'\n{line}");
    let chat = |line: &str| format!("[agents.chat]\nprovider = 'o'\n{line}");
    let breaker = |line: &str| format!("[agents.draft]\nprovider = 'e'\nbreaker = {{ {line} }}");
    let other = |line: &str| format!("[providers.x]\n\n{line}");
    for (config, said) in [
        // Types and units.
        (draft("slots = '3'"), "agents.draft.slots = \"3\": must be a whole number from 0 to 100000"),
        (draft("slots = 3.0"), "agents.draft.slots = 3.0: must be a whole number from 0 to 100000"),
        (draft("slots = 100001"), "agents.draft.slots = 100001: must be a whole number from 0 to 100000"),
        (
            draft("slots = 99999999999999999999"),
            "agents.draft.slots = 99999999999999999999: must be a whole number from 0 to 100000",
        ),
        (draft("slots = 1979-05-27"), "agents.draft.slots = 1979-05-27: must be a whole number from 0 to 100000"),
        (draft("timeout = 30"), "agents.draft.timeout = 30: must be a text of number and unit, as in \"30s\""),
        (draft("timeout = '30'"), "agents.draft.timeout = \"30\": must have a unit: ms, s, m or h, as in \"30s\""),
        (draft("timeout = '0s'"), "agents.draft.timeout = \"0s\": must be longer than 0"),
        (draft("timeout = '-1s'"), "agents.draft.timeout = \"-1s\": must not be negative"),
        (draft("timeout = '8000h'"), "agents.draft.timeout = \"8000h\": must be at most 7 days"),
        (draft("timeout = '1e30s'"), "agents.draft.timeout = \"1e30s\": must have the unit ms, s, m or h"),
        (
            draft("call_timeout = 'off'"),
            "agents.draft.call_timeout = \"off\": must be a number and a unit, as in \"500ms\", \"30s\", \"1m30s\"",
        ),
        (draft("retry = 3"), "agents.draft.retry = 3: must be a table"),
        (draft("description = 1"), "agents.draft.description = 1: must be a text in quotes"),
        (draft("stage = 'integratet'"), "agents.draft.stage = \"integratet\": must be one of integrated"),
        // Breakers, retries, restarts.
        (breaker("window_calls = 10001"), "agents.draft.breaker.window_calls = 10001: must be 1 to 10000"),
        (
            breaker("window_calls = 20, window = '60s'"),
            "agents.draft.breaker.window = \"60s\": must not be given together with window_calls",
        ),
        (breaker("window = '1500ms'"), "agents.draft.breaker.window = \"1500ms\": must be whole seconds from 1s to 1h"),
        (
            breaker("window_calls = 5, trials = 5"),
            "agents.draft.breaker.window_calls = 5: does not fit calls_min = 10 (default), which must not be larger than window_calls: it would never judge",
        ),
        (breaker("calls_min = 0"), "agents.draft.breaker.calls_min = 0: must be at least 1"),
        (
            breaker("slow_share = 70"),
            "agents.draft.breaker.slow_share = 70: must be a share over 0 and up to 1 (0.5 means half)",
        ),
        (breaker("slow_share = '70%'"), "agents.draft.breaker.slow_share = \"70%\": must be a number"),
        (
            breaker("failure_share = -inf"),
            "agents.draft.breaker.failure_share = -inf: must be a share over 0 and up to 1 (0.5 means half)",
        ),
        (breaker("open_jitter = 1.5"), "agents.draft.breaker.open_jitter = 1.5: must be a share from 0 to 1"),
        (breaker("open_growth = inf"), "agents.draft.breaker.open_growth = inf: must be a finite number of at least 1"),
        (
            breaker("open = '10m'"),
            "agents.draft.breaker.open = \"10m\": does not fit open_max = 300s (default), which must be at least as long as `open`",
        ),
        (
            breaker("open = 'off'"),
            "agents.draft.breaker.open = \"off\": must be a number and a unit, as in \"500ms\", \"30s\", \"1m30s\"",
        ),
        (
            breaker("consecutive_failures = 0"),
            "agents.draft.breaker.consecutive_failures = 0: must be 1 to 10000, or \"off\"",
        ),
        (
            breaker("trial_timeout = 'never'"),
            "agents.draft.breaker.trial_timeout = \"never\": must be a number and a unit, as in \"500ms\", \"30s\", \"1m30s\"",
        ),
        (
            breaker("mode = 'open'"),
            "agents.draft.breaker.mode = \"open\": must be one of auto, forced_open, disabled, metrics_only",
        ),
        (breaker("early_verdict = 'yes'"), "agents.draft.breaker.early_verdict = \"yes\": must be true or false"),
        (
            breaker("half_open_by = 'first'"),
            "agents.draft.breaker.half_open_by = \"first\": must be one of timer, first_call",
        ),
        (draft("retry = { attempts_max = 0 }"), "agents.draft.retry.attempts_max = 0: must be 1 to 20"),
        (draft("retry = { factor = 0.5 }"), "agents.draft.retry.factor = 0.5: must be a finite number of at least 1"),
        (
            draft("retry = { backoff_max = '10ms' }"),
            "agents.draft.retry.backoff_max = \"10ms\": must be at least `backoff` and 50ms",
        ),
        (draft("retry = { budget_share = 2 }"), "agents.draft.retry.budget_share = 2: must be a share from 0 to 1"),
        (draft("restart = { max = -1 }"), "agents.draft.restart.max = -1: must be a whole number from 0 to 1000"),
        (draft("restart = { with = '1s' }"), "agents.draft.restart.with = \"1s\": unknown key"),
        (
            draft("retry = { attempt_max = 3 }"),
            "agents.draft.retry.attempt_max = 3: unknown key, did you mean `attempts_max`?",
        ),
        // What does not fit the kind.
        (draft("path = '/x'"), "agents.draft.path = \"/x\": is only for agents of a provider of kind \"http\""),
        (
            draft("prompt = 'p.md'"),
            "agents.draft.prompt = \"p.md\": is only for agents of a provider of kind \"openai\" or \"ollama\"",
        ),
        (draft("model = 'm'"), "agents.draft.model = \"m\": is not for embedded agents"),
        (
            draft("first_token = '9s'"),
            "agents.draft.first_token = \"9s\": is not for embedded agents: they do not stream",
        ),
        (
            draft("slow_by = 'pace'"),
            "agents.draft.slow_by = \"pace\": must be \"total\" for embedded agents: they do not stream",
        ),
        (
            draft("embedded = 'nobody'"),
            "agents.draft.embedded = \"nobody\": there is no embedded agent `nobody`; there are: draft, review, style",
        ),
        (
            web("temperature = 1"),
            "agents.web.temperature = 1: is only for agents of a provider of kind \"openai\" or \"ollama\"",
        ),
        (web("path = 'x'"), "agents.web.path = \"x\": must begin with one /, as in \"/style/analyze\""),
        (
            web("path = '/x?a=1'"),
            "agents.web.path = \"/x?a=1\": must be a path alone: parameters belong to the provider's `query`",
        ),
        (
            web("path = '/가'"),
            "agents.web.path = \"/가\": must be at most 1024 visible ASCII characters, others percent-encoded",
        ),
        (web("method = 'GET'"), "agents.web.method = \"GET\": must be one of POST, PUT, PATCH"),
        (
            web("mapping = { output = 'data' }"),
            "agents.web.mapping.output = \"data\": must be a JSON Pointer, as in \"/data/text\"",
        ),
        (
            web("mapping = { outptu = '/data' }"),
            "agents.web.mapping.outptu = \"/data\": unknown key, did you mean `output`?",
        ),
        (web("headers = { Host = 'x' }"), "agents.web.headers.Host = \"x\": is set by HTTP or by the call itself"),
        (
            web("headers = { authorization = 'abc' }"),
            "agents.web.headers.authorization = \"(hidden)\": must not stand in the configuration, it may be a secret: use { env = \"NAME\" }",
        ),
        (
            web("headers = { x = { file = 'x' } }"),
            "agents.web.headers.x = { file = \"x\" }: must be a text, or { env = \"NAME\" }",
        ),
        (web("pace_min = 3"), "agents.web.pace_min = 3: is only used with slow_by = \"pace\""),
        (chat("temperature = 3"), "agents.chat.temperature = 3: must be a number from 0 to 2"),
        (chat("temperature = nan"), "agents.chat.temperature = nan: must be a number from 0 to 2"),
        (chat("seed = -1"), "agents.chat.seed = -1: must be a whole number from 0 to 9223372036854775807"),
        (chat("max_output_tokens = 0"), "agents.chat.max_output_tokens = 0: must be a whole number from 1 to 10000000"),
        (chat("mapping = {}"), "agents.chat.mapping = {}: is only for agents of a provider of kind \"http\""),
        (chat("num_ctx = 4096"), "agents.chat.num_ctx = 4096: is only for kind = \"ollama\""),
        (draft("keep_alive = '5m'"), "agents.draft.keep_alive = \"5m\": is only for kind = \"ollama\""),
        // Providers.
        (other("kind = 'opnai'"), "providers.x.kind = \"opnai\": must be one of embedded, http, openai, ollama"),
        (
            other("kind = 'embedded'\nslots = -1").replace("\n\n", "\n"),
            "providers.x.slots = -1: must be a whole number from 0 to 100000",
        ),
        // What things cost.
        ("\n\n[prices.qwen]\ninput = 1".to_owned(), "prices.qwen: must be named \"provider/model\""),
        ("\n\n[prices.\"lcal/m\"]\ninput = 1".to_owned(), "prices.\"lcal/m\": there is no provider \"lcal\""),
        (
            "[prices.\"a/b\"]\n\ninput = -1".to_owned(),
            "prices.\"a/b\".input = -1: must be an amount of money from 0 to 1000000",
        ),
        ("[prices.\"a/b\"]\n\ninputs = 1".to_owned(), "prices.\"a/b\".inputs = 1: unknown key, did you mean `input`?"),
        (
            "[budgets]\n\noutput_tokens = 0".to_owned(),
            "budgets.output_tokens = 0: must be a whole number from 1 to 1099511627776",
        ),
        ("[run]\n\ncalls_max = 0".to_owned(), "run.calls_max = 0: must be a whole number from 1 to 1000000000000"),
        ("[run]\n\ncost_max = 0".to_owned(), "run.cost_max = 0: must be more than 0: no run could make a call"),
        // What later versions know.
        (draft("max_wait = '5s'"), "agents.draft.max_wait = \"5s\": is not built yet"),
        (draft("stage = 'alerts'"), "agents.draft.stage = \"alerts\": is not built yet; built: integrated"),
        // Cold models.
        (
            draft("warm_up = 'always'"),
            "agents.draft.warm_up = \"always\": is not for kind = \"embedded\": no model is loaded there",
        ),
        (
            draft("prewarm = true"),
            "agents.draft.prewarm = true: is not for kind = \"embedded\": no model is loaded there",
        ),
        (chat("warm_up = 'sometimes'"), "agents.chat.warm_up = \"sometimes\": must be one of auto, off, always"),
        (
            chat("prewarm = true\nwarm_up = 'off'"),
            "agents.chat.prewarm = true: must not be true where warm_up is \"off\"",
        ),
        (
            other("kind = 'http'\nmodels_max = 1\nbase_url = 'http://h'").replace("\n\n", "\n"),
            "providers.x.models_max = 1: is not for kind = \"http\": no model is loaded there",
        ),
        (
            other("kind = 'ollama'\nkeeps_warm = '5m'").replace("\n\n", "\n"),
            "providers.x.keeps_warm = \"5m\": is not for kind = \"ollama\": it is told how long by `keep_alive`",
        ),
        (
            breaker("probe = 'health'"),
            "agents.draft.breaker.probe = \"health\": must be \"off\": there is no `health` path to ask",
        ),
        (
            "[volume_guard]\n\ncalls_per_hour = 0".to_owned(),
            "volume_guard.calls_per_hour = 0: must be a whole number from 1 to 100000000",
        ),
        // The rest.
        ("[run]\n\ndeadlin = '1m'".to_owned(), "run.deadlin = \"1m\": unknown key, did you mean `deadline`?"),
        ("[run]\n\nlanguage = 'fr'".to_owned(), "run.language = \"fr\": must be one of en, ko"),
        ("[places]\n\nshare = 'always'".to_owned(), "places.share = \"always\": must be one of never, rounded"),
        ("[node]\n\ninstances = 0".to_owned(), "node.instances = 0: must be a whole number from 1 to 1000"),
        (
            "[limits]\n\nreply_bytes_max = 0".to_owned(),
            "limits.reply_bytes_max = 0: must be a whole number from 1 to 17179869184",
        ),
        ("[limits]\n\ninput_file_bytes = 1".to_owned(), "limits.input_file_bytes = 1: unknown key"),
        ("[defaults]\n\nslotz = 1".to_owned(), "defaults.slotz = 1: unknown key, did you mean `slots`?"),
        ("[defaults]\n\nprovider = 'e'".to_owned(), "defaults.provider = \"e\": unknown key"),
        (
            "[defaults.breaker]\n\ntrials = 0".to_owned(),
            "defaults.breaker.trials = 0: must be 1 to 10000: without a trial it could never close",
        ),
        ("\n\n[agent.draft]".to_owned(), "agent = { draft = {} }: unknown key, did you mean `agents`?"),
        (
            "\n\n[agents.'a b']".to_owned(),
            "agents.\"a b\" = {}: \"a b\" is no name: 1 to 64 letters, digits, '-', '_' or '.', the first a letter or digit",
        ),
    ] {
        Given::config(&format!("{PROVIDERS}{config}")).only(&[]).refused(&[&format!("w.toml:14: {said}")]);
    }
}

#[test]
fn providers_that_cannot_be() {
    let check =
        |table: &str, lines: &[&str]| Given::config(&format!("[providers.x]\n{table}")).only(&[]).refused(lines);
    check("slots = 1", &["w.toml:1: providers.x.kind: must be set: embedded, http, openai or ollama"]);
    check(
        "kind = 'http'",
        &["w.toml:1: providers.x.base_url: must be set for this kind, as in \"http://127.0.0.1:8081/v1\""],
    );
    check(
        "kind = 'embedded'\nbase_url = 'http://h'",
        &[
            "w.toml:3: providers.x.base_url = \"http://h\": is not for kind = \"embedded\": its agents work inside this program",
        ],
    );
    check(
        "kind = 'http'\nbase_url = 'http://user:abc@h'",
        &["w.toml:3: providers.x.base_url = \"(hidden)\": must not hold credentials: use api_key_env or api_key_file"],
    );
    check(
        "kind = 'http'\nbase_url = 'http://h'\napi_key = 'abc'",
        &[
            "w.toml:4: providers.x.api_key = \"(hidden)\": must not stand in the configuration: use api_key_env or api_key_file",
        ],
    );
    check(
        "kind = 'http'\nbase_url = 'http://h'\napi_key_env = 'a-b'",
        &[
            "w.toml:4: providers.x.api_key_env = \"(hidden)\": must be the name of an environment variable, not the key itself",
        ],
    );
    check(
        "kind = 'http'\nbase_url = 'http://h'\napi_key_env = 'A'\napi_key_file = 'f'",
        &["w.toml:5: providers.x.api_key_file = \"(hidden)\": must not be given together with api_key_env"],
    );
    check(
        "kind = 'http'\nbase_url = 'http://h'\nflavor = 'llama_cpp'",
        &["w.toml:4: providers.x.flavor = \"llama_cpp\": is only for kind = \"openai\""],
    );
    check(
        "kind = 'http'\nbase_url = 'http://h'\napi_key_env = 'A'\nheaders = { Authorization = { env = 'B' } }",
        &[
            "w.toml:5: providers.x.headers = { Authorization = { env = \"B\" } }: must not hold `authorization` together with \
         api_key_env or api_key_file",
        ],
    );
    check(
        "kind = 'openai'\nbase_url = 'http://h'\n[agents.chat]",
        &["w.toml:4: agents.chat.model: must be set, here or as providers.x.model"],
    );
    check(
        "kind = 'openai'\n[agents.chat]\nslotz = 1",
        &[
            "w.toml:1: providers.x.base_url: must be set for this kind, as in \"http://127.0.0.1:8081/v1\"",
            "w.toml:4: agents.chat.slotz = 1: unknown key, did you mean `slots`?",
        ],
    );
    Given::config("providers = 1").refused(&["w.toml:1: providers = 1: must be a table"]);
    Given::config("providers.x = 1").refused(&["w.toml:1: providers.x = 1: must be a table"]);
}

#[test]
fn all_slips_are_told_in_one_go() {
    let config = "[run]\nlanguage = 'fr'\n[providers.p]\nkind = 'embedded'\nbase_url = 'x'\n[agents.draft]\nslots = -1\n\
                  timeout = '5'\n[agents.draft.breaker]\nwindwo = '60s'\ntrials = 0\n[quotas]\na = 1\n[agents.'']\n";
    Given::config(config).only(&[]).refused(&[
        "w.toml:2: run.language = \"fr\": must be one of en, ko",
        "w.toml:5: providers.p.base_url = \"x\": is not for kind = \"embedded\": its agents work inside this program",
        "w.toml:7: agents.draft.slots = -1: must be a whole number from 0 to 100000",
        "w.toml:8: agents.draft.timeout = \"5\": must have a unit: ms, s, m or h, as in \"30s\"",
        "w.toml:10: agents.draft.breaker.windwo = \"60s\": unknown key, did you mean `window`?",
        "w.toml:11: agents.draft.breaker.trials = 0: must be 1 to 10000: without a trial it could never close",
        "w.toml:13: quotas.a = 1: is not built yet",
        "w.toml:14: agents.\"\" = {}: \"\" is no name: 1 to 64 letters, digits, '-', '_' or '.', the first a letter or digit",
    ]);
    let many = (0..500).map(|number| format!("key_{number} = 1")).collect::<Vec<_>>().join("\n");
    let error = Given::config(&many).load().unwrap_err();
    assert_eq!(error.problems().len(), 500);
    assert!(error.to_string().ends_with("and 300 more problems"));
}

#[test]
fn files_that_are_no_toml() {
    for (bytes, line) in [
        (&b"[a"[..], "w.toml:1: is no TOML: "),
        (b"a = 1\n\xff", "w.toml: is not UTF-8 (at byte 6)"),
        (b"a = 1\na = 2\n", "w.toml:2: is no TOML: "),
    ] {
        let error = Given::bytes(bytes).load().unwrap_err().to_string();
        assert!(error.lines().any(|said| said.starts_with(line)), "{line}: {error}");
    }
    let error = Given::bytes(&vec![b'#'; 5 * 1024 * 1024]).load().unwrap_err().to_string();
    assert_eq!(error, "w.toml: has 5242880 bytes, at most 4194304 are allowed");
    assert!(Given::config("\u{feff}[run]\n").load().is_ok());
    assert!(Given::config("[run]\r\nlanguage = 'ko'\r\n").load().is_ok());
}

/// The folder of cases that lies beside the repository, where it does.
fn shared_cases(case: &str) -> Option<std::path::PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared").to_owned();
    let root = std::env::var("WATERTIGHT_SHARED").unwrap_or(beside);
    let folder = Path::new(&root).join("cases").join(case);
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: there are no cases at {}", folder.display());
    None
}

#[test]
fn absurd_configurations_of_the_case_collection() {
    let Some(folder) = shared_cases("B46") else { return };
    let expected: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let cases = expected["assert"].as_array().unwrap();
    assert_eq!(cases.len(), 18);
    // Where either answer is allowed, ours is to refuse. Each message names file, line, key and value.
    let named = [
        ("c01.toml", "c01.toml:8: agents.draft.breaker.window_calls = 0: "),
        ("c02.toml", "c02.toml:9: agents.draft.breaker.calls_min = 21: "),
        ("c03.toml", "c03.toml:8: agents.draft.breaker.failure_share = 0.0: "),
        ("c04.toml", "c04.toml:8: agents.draft.breaker.failure_share = 1.01: "),
        ("c05.toml", "c05.toml:8: agents.draft.breaker.failure_share = nan: "),
        ("c06.toml", "c06.toml:8: agents.draft.breaker.open = \"0s\": "),
        ("c07.toml", "c07.toml:8: agents.draft.breaker.open = \"-1s\": "),
        ("c08.toml", "c08.toml:8: agents.draft.breaker.trials = 0: "),
        ("c10.toml", "c10.toml:6: agents.draft.slots = -1: "),
        ("c11.toml", "c11.toml:8: features.chat.tokens_per_minute = 0: must be a whole number from 1"),
        ("c12.toml", "c12.toml:9: agents.draft.breaker.slow_call = \"61s\": "),
        ("c13.toml", "c13.toml:8: agents.draft.breaker.open = \"1e30s\": "),
        ("c14.toml", "c14.toml:8: agents.draft.breaker.failure_share = 50: "),
        ("c15.toml", "c15.toml:8: agents.draft.breaker.windwo_calls = 20: unknown key, did you mean `window_calls`?"),
        ("c16.toml", "c16.toml:8: volume_guard.calls_per_hour = 0: must be a whole number from 1"),
        ("c17.toml", "c17.toml:9: agents.draft.breaker.trials = 25: "),
        ("c18.toml", "c18.toml:4: agents.\"\" = { provider = \"local\" }: "),
    ];
    for case in cases {
        let (file, answer) = (case["file"].as_str().unwrap(), case["answer"].as_str().unwrap());
        let bytes = std::fs::read(folder.join(file)).unwrap();
        let mut given = Given::bytes(&bytes).only(&["draft"]);
        given.config = Some(ConfigFile { path: file.to_owned(), bytes });
        match (given.load(), named.iter().find(|(name, _)| *name == file)) {
            (Err(error), Some((_, beginning))) => {
                let said = error.to_string();
                assert!(answer.contains("refuse"), "{file}: {answer}");
                assert_eq!(said.lines().count(), 1, "{file}: {said}");
                assert!(said.starts_with(beginning), "{file}: {said}");
            }
            (Ok(settings), None) => {
                assert!(answer.starts_with("accept"), "{file}: {answer}");
                assert_eq!(settings.agent("draft").unwrap().settings.slots, 0, "{file}");
            }
            (result, _) => panic!("{file}: {answer}, but {result:?}"),
        }
    }
}

/// Whatever is given, the answer is settings that explain themselves or problems that say something.
fn survives(given: &Given) {
    match given.load() {
        Ok(settings) => assert!(!explain(&settings).is_empty()),
        Err(error) => assert!(!error.to_string().is_empty() && !error.problems().is_empty()),
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        survives(&Given::bytes(&bytes));
        survives(&Given::nothing().folder("draft", &[("agent.toml", &String::from_utf8_lossy(&bytes))]));
    }

    #[test]
    fn no_text_panics(text in "[\\[\\]{}=\"'.,#a-z0-9 \n-]{0,200}") {
        survives(&Given::config(&text));
    }

    #[test]
    fn no_value_panics(
        key in prop::sample::select(vec!["slots", "timeout", "retry", "breaker", "headers", "schema", "stage", "restart", "mapping"]),
        value in prop::sample::select(vec!["-1", "1e400", "nan", "''", "'\u{0}'", "[]", "{}", "{ a = {} }", "1979-05-27", "'99999999h'",
            "9223372036854775808", "0x7fffffffffffffff", "true", "[[[[[]]]]]", "'{{'", "'sk-abc'"]),
        kind in prop::sample::select(vec!["e", "h", "o"]),
    ) {
        survives(&Given::config(&format!("{PROVIDERS}[agents.x]\nprovider = '{kind}'\n{key} = {value}\n")));
        survives(&Given::config(PROVIDERS).flag(&format!("agents.x.{key}={value}")));
        survives(&Given::config(&format!("{PROVIDERS}[defaults]\n{key} = {value}\n[providers.x]\n{key} = {value}\n")));
    }

    #[test]
    fn no_mutation_of_a_good_file_panics(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..12)) {
        let mut bytes = RICH.as_bytes().to_vec();
        for (index, byte, kind) in changes {
            if bytes.is_empty() { break }
            let at = index.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                _ => bytes.insert(at, byte),
            }
        }
        survives(&Given::bytes(&bytes));
    }

    #[test]
    fn no_line_lost_or_doubled_panics(lost in any::<prop::sample::Index>(), doubled in any::<prop::sample::Index>()) {
        let mut lines: Vec<&str> = RICH.lines().collect();
        lines.remove(lost.index(lines.len()));
        let at = doubled.index(lines.len());
        lines.insert(at, lines[at]);
        survives(&Given::config(&lines.join("\n")));
    }

    #[test]
    fn no_variable_or_flag_panics(name in "[A-Z_0-9.]{0,60}", text in ".{0,40}", flag in ".{0,60}") {
        survives(&Given::config(RICH).environment(&format!("WATERTIGHT_{name}"), &text));
        survives(&Given::config(RICH).environment("WATERTIGHT_AGENTS__DRAFT__MODEL", &text));
        survives(&Given::config(RICH).flag(&flag).flag(&format!("agents.draft={text}")));
    }
}

#[test]
fn deep_and_wide_inputs_are_bounded() {
    survives(&Given::config(&format!("a = {}{}", "[".repeat(50_000), "]".repeat(50_000))));
    survives(&Given::config(&format!("{} = 1", vec!["a"; 50_000].join("."))));
    survives(&Given::nothing().environment(&format!("WATERTIGHT_{}", vec!["A"; 50_000].join("__")), "1"));
    survives(&Given::nothing().flag(&format!("{}=1", vec!["a"; 50_000].join("."))));
    let wide = (0..20_000).map(|number| format!("[agents.a{number}]")).collect::<Vec<_>>().join("\n");
    survives(&Given::config(&wide));
}

#[test]
fn an_agent_that_leans_on_the_embedded_provider_makes_no_second_one_for_the_others() {
    // `draft` is read before `style` and brings the embedded provider with it.
    let given = Given::config(
        "[providers.p]\nkind = 'http'\nbase_url = 'http://127.0.0.1:1'\n[agents.alpha]\n[agents.style]\n",
    )
    .folder("draft", &[("agent.toml", "provider = 'embedded'\nembedded = 'draft'")]);
    let settings = given.load().unwrap_or_else(|error| panic!("{error}"));
    for (agent, provider) in [("alpha", "p"), ("draft", "embedded"), ("style", "p")] {
        assert_eq!(settings.agent(agent).map(|agent| agent.settings.provider.as_str()), Some(provider), "{agent}");
    }
}

#[test]
fn targets_and_the_ways_of_providers() {
    let config = |agent: &str| {
        format!(
            "[providers.a]\nkind = 'openai'\nbase_url = 'http://a'\n[providers.b]\nkind = 'openai'\nbase_url = 'http://b'\nmodel = 'y'\n\
             api_key_env = 'KEY'\nauth = {{ header = 'API-Key' }}\npaths = {{ chat = '/d/{{model}}/chat' }}\n[agents.w]\n{agent}"
        )
    };
    for (targets, ranks) in [
        ("{ provider = 'a', model = 'x' }, { provider = 'b' }", [(0, 1), (1, 1)]),
        ("{ provider = 'a', model = 'x', weight = 3 }, { provider = 'b' }", [(0, 3), (0, 1)]),
        ("{ provider = 'a', model = 'x', weight = 3, order = 2 }, { provider = 'b', order = 1 }", [(2, 3), (1, 1)]),
    ] {
        let settings = Given::config(&config(&format!("targets = [{targets}]\nmodel_names = ['gpt']"))).settings();
        let agent = settings.agent("w").unwrap();
        let first = (agent.settings.provider.as_str(), agent.settings.model.as_deref());
        assert_eq!((first, agent.model_names.as_slice()), (("a", Some("x")), ["gpt".to_owned()].as_slice()));
        let further = &agent.targets[0];
        assert_eq!((further.provider.as_str(), further.model.as_deref()), ("b", Some("y")));
        assert_eq!([agent.rank, further.rank].map(|rank| (rank.order, rank.weight)), ranks, "{targets}");
        let ProviderBackend::OpenAi { endpoint, paths, .. } = &settings.provider("b").unwrap().backend else {
            panic!()
        };
        assert_eq!(endpoint.auth, AuthStyle::Header("api-key".to_owned()));
        assert_eq!(paths.chat.as_deref(), Some("/d/{model}/chat"));
    }
    let many = (0..17).map(|number| format!("{{ provider = 'a', model = '{number}' }}")).collect::<Vec<_>>().join(", ");
    // Line 11 is the agent's table, 12 its first line.
    for (agent, said) in [
        (
            "targets = [{ provider = 'a', model = 'x' }, { provider = 'a', model = 'x' }]",
            "w.toml:12: agents.w.targets[1].provider = \"a\": is the same provider and model as agents.w.targets[0] (w.toml:12)",
        ),
        (
            "targets = [\n{ provider = 'b' },\n{ provider = 'b', model = 'y' }]",
            "w.toml:14: agents.w.targets[1].provider = \"b\": is the same provider and model as agents.w.targets[0] (w.toml:13)",
        ),
        (
            "targets = [{ provider = 'a', model = 'x' },\n{ provider = 'c' }]",
            "w.toml:13: agents.w.targets[1].provider = \"c\": there is no such provider",
        ),
        (
            "targets = [{ provider = 'c' }]",
            "w.toml:12: agents.w.targets[0].provider = \"c\": there is no such provider",
        ),
        (
            "targets = [{ provider = 'b' }, { provider = 'a' }]",
            "agents.w.targets[1].provider = \"a\": needs a model, here or as the provider's own",
        ),
        (
            "targets = [{ provider = 'a', model = 'x', weight = 0 }]",
            "w.toml:12: agents.w.targets[0].weight = 0: must be a whole number from 1 to 1000",
        ),
        (
            "targets = [{ provider = 'a', model = 'x', order = -1 }]",
            "agents.w.targets[0].order = -1: must be a whole number from 0 to 1000",
        ),
        (
            "targets = [{ provider = 'a', model = 5 }]",
            "agents.w.targets[0].model = 5: must be a text in quotes, not empty",
        ),
        (
            "targets = [{ provider = 'a', model = 'x', x = 1 }]",
            "w.toml:12: agents.w.targets[0] = { model = \"x\", provider = \"a\", x = 1 }: knows only provider, model, order and weight",
        ),
        (
            "targets = ['a']",
            "w.toml:12: agents.w.targets[0] = \"a\": must be a table, as in { provider = \"a\", model = \"x\" }",
        ),
        ("targets = []", "w.toml:12: agents.w.targets = []: must have 1 to 16 entries, not 0"),
        (&format!("targets = [{many}]"), "must have 1 to 16 entries, not 17"),
        (
            "targets = [{ provider = 'a', model = 'x' }]\nmodel = 'm'\nprovider = 'b'",
            "w.toml:13: agents.w.model = \"m\": stands beside targets (w.toml:12): keep the list or this, not both\n\
             w.toml:14: agents.w.provider = \"b\": stands beside targets (w.toml:12): keep the list or this, not both",
        ),
        // One name, one agent.
        (
            "provider = 'b'\nmodel_names = ['gpt']\n[agents.v]\nprovider = 'b'\nmodel_names = ['x',\n'gpt']",
            "w.toml:13: agents.w.model_names = \"gpt\": means another agent already: agents.v.model_names (w.toml:16)",
        ),
        (
            "provider = 'b'\nmodel_names = ['v']\n[agents.v]\nprovider = 'b'",
            "w.toml:13: agents.w.model_names = \"v\": means another agent already: agents.v (w.toml:15)",
        ),
        ("provider = 'b'\nmodel_names = ['w']", "agents.w.model_names = \"w\": is the agent's own name"),
        ("provider = 'b'\nmodel_names = ['g', 'g']", "agents.w.model_names = \"g\": stands there twice"),
    ] {
        let error = Given::config(&config(agent)).load().unwrap_err();
        assert!(error.to_string().contains(said), "{agent}:\n{error}\nwanted: {said}");
    }
    // The configuration's list goes before what a manifest names.
    let given = Given::config(&config("targets = [{ provider = 'a', model = 'x' }, { provider = 'b' }]"))
        .folder("w", &[("agent.toml", "description = 'x'\nmodel = 'mine'")]);
    let explained = explain(&given.settings());
    for (key, want) in [("targets[0]", "a/x order 0 weight 1"), ("targets[1]", "b/y order 1 weight 1"), ("model", "x")]
    {
        let row = explained.iter().find(|row| row.key == format!("agents.w.{key}")).unwrap();
        assert_eq!((row.value.as_str(), row.origin.to_string().as_str()), (want, "w.toml:12"), "{key}");
    }
}

#[test]
fn how_cold_models_are_dealt_with() {
    use crate::{
        policy::breaker::settings::Probe,
        runtime::settings::{LoadedModels, Prewarm, WarmUpWhen, WarmthSettings},
    };
    let config = "[defaults]\nwarm_up_timeout = '4m'\n\
                  [providers.l]\nkind = 'openai'\nflavor = 'llama_cpp'\nbase_url = 'http://l'\nmodel = 'm'\nkeeps_warm = '5m'\n\
                  [providers.o]\nkind = 'ollama'\nmodel = 'm'\nmodels_max = 2\nwarm_up_timeout = '90s'\n\
                  [providers.h]\nkind = 'openai'\nbase_url = 'http://h'\nmodel = 'm'\nwarm_up = 'off'\n\
                  breaker = { probe = 'health' }\n\
                  [agents.one]\nprovider = 'l'\n[agents.two]\nprovider = 'l'\nkeeps_warm = 'off'\nprewarm = true\n\
                  [agents.three]\nprovider = 'o'\n[agents.four]\nprovider = 'h'\n[agents.five]\nprovider = 'h'\nwarm_up = 'auto'\n\
                  breaker = { probe = 'request' }\n[agents.six]\nprovider = 'embedded'\nembedded = 'draft'\n";
    let settings = Given::config(config).only(&[]).settings();
    let of = |agent: &str| settings.agent(agent).unwrap().settings.warmth;
    let usual = WarmthSettings { timeout: SECONDS(240), ..WarmthSettings::default() };
    let one = WarmthSettings { keeps_for: Some(SECONDS(300)), ..usual };
    assert_eq!(of("one"), one);
    assert_eq!(of("two"), WarmthSettings { keeps_for: None, prewarm: Prewarm::AtRuns, ..one });
    assert_eq!(of("three"), WarmthSettings { timeout: SECONDS(90), ..usual }, "the provider's own word");
    assert_eq!((of("four").when, of("five").when), (WarmUpWhen::Off, WarmUpWhen::Auto));
    assert_eq!(of("six"), WarmthSettings::default());
    let models = |provider: &str| settings.provider(provider).unwrap().settings.loaded_models;
    assert_eq!(models("l"), LoadedModels::TheOneItHas);
    assert_eq!((models("o"), models("h")), (LoadedModels::AtMost(2), LoadedModels::Unknown));
    let probe = |breaker: &crate::policy::breaker::settings::BreakerSettings| breaker.probe;
    assert_eq!(probe(&settings.provider("h").unwrap().settings.breaker), Probe::Health);
    assert_eq!(probe(&settings.agent("five").unwrap().settings.breaker), Probe::Request);
    // What only the defaults ask for reaches whoever can be asked so.
    let config = "[defaults.breaker]\nprobe = 'request'\n[providers.o]\nkind = 'ollama'\nmodel = 'm'\n\
                  [agents.model]\nprovider = 'o'\n[agents.twin]\nprovider = 'embedded'\nembedded = 'draft'\n";
    let settings = Given::config(config).only(&[]).settings();
    let probe = |agent: &str| settings.agent(agent).unwrap().settings.breaker.probe;
    assert_eq!((probe("model"), probe("twin")), (Probe::Request, Probe::Off));
}
