//! One `[providers.X]` table: what the runtime guards and what the transport needs to reach it.

use std::{path::Path, time::Duration};

use crate::{
    model::name::Name,
    policy::breaker::settings::BreakerSettings,
    runtime::settings::{ProviderSettings, SLOTS_MAX, WarmthSettings},
};

use super::{
    breaker::read_breaker,
    compartments::read_rates,
    endpoint::{
        Endpoint, ModelPaths, key_name, read_api_key, read_auth, read_base_url, read_base_url_or, read_headers,
        read_paths, read_query,
    },
    guards::read_adaptive,
    layers::merge,
    node::{Layer, Node, Table, Value, key_path},
    ollama::{BASE_URL, Context, OLLAMA_KEYS, ONLY_OLLAMA, read_context},
    problem::Origin,
    reader::{Fit, Reader},
    report::Report,
    warmth::{Askable, WARMTH_KEYS, fit_probe, read_models},
};

/// To a connection, unless configured.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Keys of providers that later versions know.
const LATER: [&str; 7] = ["keys", "max_wait", "price", "prices", "region", "regions", "targets"];

/// Keys that only mean something over a network.
const NETWORK_KEYS: [&str; 14] = [
    "api_key",
    "api_key_env",
    "api_key_file",
    "auth",
    "base_url",
    "connect_timeout",
    "flavor",
    "headers",
    "keep_alive",
    "model",
    "num_ctx",
    "paths",
    "query",
    "stream_upstream",
];

/// What kind of place a provider is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Inside this program.
    Embedded,
    /// A service of the user's.
    Http,
    /// An OpenAI-compatible server.
    OpenAi,
    /// Ollama, in its own protocol.
    Ollama,
}

impl Kind {
    /// The word in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Http => "http",
            Self::OpenAi => "openai",
            Self::Ollama => "ollama",
        }
    }

    /// Whether models work there, asked by prompts.
    pub fn has_models(self) -> bool {
        matches!(self, Self::OpenAi | Self::Ollama)
    }
}

/// Which program serves an OpenAI-compatible API, where that changes how it is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavor {
    /// Nothing is known of it.
    Any,
    /// llama.cpp: queues without bound, works on for plain requests whose caller left.
    LlamaCpp,
}

/// Whether the upstream request is a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamUpstream {
    /// Always, so that the server stops when the caller leaves.
    Always,
    /// As the caller asked.
    AsAsked,
}

/// What the transport is told about a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderBackend {
    /// Work inside this program.
    Embedded,
    /// A service of the user's.
    Http(Endpoint),
    /// An OpenAI-compatible server.
    OpenAi {
        /// How it is reached.
        endpoint: Endpoint,
        /// What serves it.
        flavor: Flavor,
        /// Whether requests to it stream.
        stream_upstream: StreamUpstream,
        /// Where it has what.
        paths: ModelPaths,
    },
    /// Ollama, in its own protocol.
    Ollama {
        /// How it is reached.
        endpoint: Endpoint,
        /// Whether requests to it stream.
        stream_upstream: StreamUpstream,
        /// How its models are kept.
        context: Context,
    },
}

impl ProviderBackend {
    /// How it is reached, if it is over a network.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        match self {
            Self::Embedded => None,
            Self::Http(endpoint) | Self::OpenAi { endpoint, .. } | Self::Ollama { endpoint, .. } => Some(endpoint),
        }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Embedded => Kind::Embedded,
            Self::Http(_) => Kind::Http,
            Self::OpenAi { .. } => Kind::OpenAi,
            Self::Ollama { .. } => Kind::Ollama,
        }
    }
}

/// A provider as configured.
#[derive(Debug, Clone, PartialEq)]
pub struct Provider {
    /// For the runtime.
    pub settings: ProviderSettings,
    /// For the transport.
    pub backend: ProviderBackend,
}

/// A provider with what its agents still need of it.
pub(super) struct ReadProvider {
    pub(super) provider: Provider,
    /// The model of its agents that name none.
    pub(super) model: Option<(String, Origin)>,
    pub(super) connect_timeout: Duration,
    /// How its agents' models are warmed up, where they do not say otherwise.
    pub(super) warmth: WarmthSettings,
    /// What it is, also where its backend could not be made; `None` where the configuration does not say.
    pub(super) kind: Option<Kind>,
    pub(super) flavor: Flavor,
}

/// The provider that is there without being configured.
pub(super) fn implicit_embedded(name: Name, defaults: &Table, report: &mut Report) -> ReadProvider {
    let table = Table::from([(
        "kind".to_owned(),
        Node { value: Value::Text("embedded".to_owned()), origin: Origin::Default, layer: Layer::Defaults },
    )]);
    read_provider(name, &table, Origin::Default, defaults, Path::new(""), report)
}

/// Reads the table of provider `name` over `[defaults]`; files are taken from `folder`.
pub(super) fn read_provider(
    name: Name,
    own: &Table,
    place: Origin,
    defaults: &Table,
    folder: &Path,
    report: &mut Report,
) -> ReadProvider {
    let path = key_path("providers", name.as_str());
    let table = over_defaults(own, defaults);
    let mut reader = Reader::new(&table, place, &path, "defaults", report);
    let known_kind = read_kind(&mut reader);
    let kind = known_kind.unwrap_or_else(|| likeliest_kind(&reader));
    let mut reader = reader.fitting(if known_kind.is_some() { Fit::Known } else { Fit::Unknown });
    let flavor = read_flavor(&mut reader, kind);
    if !reader.is_given("slots") && (known_kind.is_none() || !reader.is_sound("flavor")) {
        // What they are by default is not known.
        reader.report.doubt(key_path(&path, "slots"));
    }
    let slots = read_slots(&mut reader, kind, flavor);
    let guaranteed = read_guaranteed(&mut reader);
    let rates = read_rates(&mut reader);
    let adaptive = read_adaptive(&mut reader, slots);
    let breaker = read_own_breaker(&mut reader, known_kind);
    let (warmth, loaded_models) = read_models(&mut reader, kind, flavor);
    let connect_timeout = match kind {
        Kind::Embedded => CONNECT_TIMEOUT,
        Kind::Http | Kind::OpenAi | Kind::Ollama => reader.duration("connect_timeout", CONNECT_TIMEOUT),
    };
    let backend = read_backend(&mut reader, kind, flavor, connect_timeout, folder);
    let model = match kind {
        Kind::Embedded => None,
        Kind::Http | Kind::OpenAi | Kind::Ollama => {
            reader.text("model").map(|model| (model.to_owned(), reader.origin("model")))
        }
    };
    reader.finish(&LATER);
    let endpoint = backend.as_ref().and_then(ProviderBackend::endpoint);
    let key = endpoint.and_then(|endpoint| endpoint.api_key.as_ref());
    let key = key.and_then(|source| Name::try_new(&key_name(source)).ok());
    let settings = ProviderSettings { name, slots, guaranteed, rates, adaptive, breaker, key, loaded_models };
    let backend = backend.unwrap_or(ProviderBackend::Embedded);
    ReadProvider { provider: Provider { settings, backend }, model, connect_timeout, warmth, kind: known_kind, flavor }
}

/// What a provider is whose kind is not known: only what is wrong with its keys whatever it is, is told.
fn likeliest_kind(reader: &Reader<'_, '_>) -> Kind {
    if OLLAMA_KEYS.iter().any(|key| reader.is_given(key)) { Kind::Ollama } else { Kind::OpenAi }
}

fn read_kind(reader: &mut Reader<'_, '_>) -> Option<Kind> {
    let kinds =
        [("embedded", Kind::Embedded), ("http", Kind::Http), ("openai", Kind::OpenAi), ("ollama", Kind::Ollama)];
    if !reader.is_given("kind") {
        reader.refuse_without(&["kind"], "kind", "must be set: embedded, http, openai or ollama");
    }
    let kind = reader.choice_of("kind", &kinds, &[]);
    if let Some(kind) = kind {
        reader.explain("kind", kind.as_str());
    }
    kind
}

/// Reads the breaker of the provider as a whole. Without a kind nobody knows how it can be tried.
fn read_own_breaker(reader: &mut Reader<'_, '_>, kind: Option<Kind>) -> BreakerSettings {
    let mut table = reader.table("breaker");
    let mut breaker = read_breaker(table.reborrow(), &BreakerSettings::provider_default());
    if let Some(kind) = kind {
        fit_probe(&mut table, Askable::of_provider(kind), &mut breaker);
    }
    breaker
}

/// `[defaults]` reach a provider through its breaker, `connect_timeout` and how cold models are dealt with. Three failures in a row stay a provider's own rule:
/// the default there is meant for targets.
fn over_defaults(own: &Table, defaults: &Table) -> Table {
    let mut table = Table::new();
    let is_embedded = own.get("kind").is_some_and(|node| node.value == Value::Text("embedded".to_owned()));
    for key in ["breaker", "connect_timeout"].into_iter().chain(WARMTH_KEYS) {
        let fits = key == "breaker" || !is_embedded;
        if let Some(node) = defaults.get(key).filter(|_| fits) {
            table.insert(key.to_owned(), node.clone());
        }
    }
    if let Some(Value::Table(breaker)) = table.get_mut("breaker").map(|node| &mut node.value) {
        breaker.remove("consecutive_failures");
    }
    merge(&mut table, own.clone());
    table
}

fn read_flavor(reader: &mut Reader<'_, '_>, kind: Kind) -> Flavor {
    match kind {
        Kind::OpenAi => {
            reader.choice("flavor", Flavor::Any, &[("any", Flavor::Any), ("llama_cpp", Flavor::LlamaCpp)], &[])
        }
        Kind::Http => {
            reader.unfit(&["flavor", "paths"], "is only for kind = \"openai\"");
            reader.unfit(&["stream_upstream"], "is only for kind = \"openai\" or \"ollama\"");
            Flavor::Any
        }
        Kind::Ollama => {
            reader.unfit(&["flavor", "paths"], "is only for kind = \"openai\"");
            Flavor::Any
        }
        Kind::Embedded => Flavor::Any,
    }
}

/// Ollama and llama.cpp queue without bound and do not say busy: they get one slot unless told otherwise.
fn read_slots(reader: &mut Reader<'_, '_>, kind: Kind, flavor: Flavor) -> Option<u32> {
    let configured = reader.whole("slots", 0, u64::from(SLOTS_MAX)).and_then(|slots| u32::try_from(slots).ok());
    let queues_silently = kind == Kind::Ollama || flavor == Flavor::LlamaCpp;
    let slots = configured.or(queues_silently.then_some(1));
    reader.explain("slots", slots.map_or("no cap".to_owned(), |slots| slots.to_string()));
    slots
}

fn read_guaranteed(reader: &mut Reader<'_, '_>) -> Vec<(Name, u32)> {
    let mut table = reader.table("guaranteed");
    let mut guaranteed = Vec::new();
    for (agent, number) in table.open_entries(0, u64::from(SLOTS_MAX)) {
        match (Name::try_new(&agent), u32::try_from(number)) {
            (Ok(name), Ok(slots)) => guaranteed.push((name, slots)),
            _ => table.refuse(&agent, "must be an agent's name and its slots"),
        }
    }
    guaranteed
}

fn read_backend(
    reader: &mut Reader<'_, '_>,
    kind: Kind,
    flavor: Flavor,
    connect_timeout: Duration,
    folder: &Path,
) -> Option<ProviderBackend> {
    if kind == Kind::Embedded {
        reader.unfit(&NETWORK_KEYS, "is not for kind = \"embedded\": its agents work inside this program");
        return Some(ProviderBackend::Embedded);
    }
    let base_url = match kind {
        Kind::Ollama => read_base_url_or(reader, BASE_URL),
        Kind::Embedded | Kind::Http | Kind::OpenAi => read_base_url(reader),
    };
    if kind != Kind::Ollama {
        reader.unfit(&OLLAMA_KEYS, ONLY_OLLAMA);
    }
    let api_key = read_api_key(reader, folder);
    let auth = read_auth(reader);
    let headers = read_headers(reader);
    let query = read_query(reader);
    if api_key.is_some() && headers.iter().any(|(name, _)| name == "authorization") {
        reader.refuse("headers", "must not hold `authorization` together with api_key_env or api_key_file");
    }
    let endpoint = base_url.map(|base_url| Endpoint { base_url, api_key, auth, headers, query, connect_timeout });
    if kind == Kind::Http {
        return endpoint.map(ProviderBackend::Http);
    }
    let default = match flavor {
        Flavor::Any if kind == Kind::OpenAi => StreamUpstream::AsAsked,
        Flavor::LlamaCpp | Flavor::Any => StreamUpstream::Always,
    };
    let words = [("always", StreamUpstream::Always), ("as_asked", StreamUpstream::AsAsked)];
    let stream_upstream = reader.choice("stream_upstream", default, &words, &[]);
    if kind == Kind::Ollama {
        let context = read_context(reader);
        return endpoint.map(|endpoint| ProviderBackend::Ollama { endpoint, stream_upstream, context });
    }
    let paths = read_paths(reader);
    endpoint.map(|endpoint| ProviderBackend::OpenAi { endpoint, flavor, stream_upstream, paths })
}
