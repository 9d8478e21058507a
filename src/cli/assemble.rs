//! From checked settings to a running runtime: each agent gets the backend that its settings name. The one place that knows both
//! settings and transport.

use std::{collections::HashMap, sync::Arc};

use serde_json::{Map, Value};

use super::{exit::Stop, project::Project};
use crate::{
    agents::{bundled, embedded},
    model::name::Name,
    runtime::{
        builder::RuntimeBuilder,
        engine::Runtime,
        parts::Parts,
        ports::{Backend, CallLog},
        promise::Promised,
        settings::TargetSettings,
        spending::SpendingSettings,
        token_count::Vocabulary,
    },
    serve::gateway::models::Gateway,
    settings::{
        self,
        agent::Agent,
        agent_backend::{AgentBackend, AnswerForm, HttpAgent as HttpSettings, ModelAgent},
        endpoint::{AuthStyle, Endpoint, TextSource},
        general::Limits,
        load::Settings,
        ollama::Context,
        provider::{Provider, ProviderBackend, StreamUpstream as StreamSetting},
        secret::resolve_secret,
    },
    transport::{
        client::{KeyPlace, ProviderClient, ProviderOptions},
        http_agent::{backend::HttpAgent, mapping::HttpMapping, starting::StartingHttpAgent},
        ollama::{
            backend::OllamaAgent,
            settings::{KeepAlive, OllamaSettings},
        },
        openai::{
            backend::OpenAiAgent,
            settings::{Answer, ModelPath, OpenAiPaths, OpenAiSettings, StreamUpstream},
        },
        secret::Secret,
    },
};

/// A prompt for agents that have none of their own: the input as it is.
const PASS_THROUGH_PROMPT: &str = "{{ input | tojson }}";

/// Backends by agent, as settings say.
pub(super) struct Backends {
    clients: HashMap<Name, Arc<ProviderClient>>,
}

impl Backends {
    /// Makes one client a provider. Secrets are fetched here, once.
    pub(super) fn connect(project: &Project, settings: &Settings) -> Result<Self, Stop> {
        let mut clients = HashMap::new();
        for provider in &settings.providers {
            let Some(endpoint) = provider.backend.endpoint() else { continue };
            let options = options_of(project, endpoint, settings.limits)?;
            let client = ProviderClient::try_new(&options)
                .map_err(|error| Stop::Usage(format!("providers.{}: {error}", provider.settings.name)))?;
            clients.insert(provider.settings.name.clone(), Arc::new(client));
        }
        Ok(Self { clients })
    }

    /// The client of a provider that is reached over HTTP.
    pub(super) fn client(&self, provider: &Name) -> Option<&Arc<ProviderClient>> {
        self.clients.get(provider)
    }

    /// The backend of an agent.
    pub(super) fn of(&self, project: &Project, settings: &Settings, agent: &Agent) -> Result<Arc<dyn Backend>, Stop> {
        let name = &agent.settings.name;
        let wrong = |error: &dyn std::fmt::Display| Stop::Usage(format!("agents.{name}: {error}"));
        match &agent.backend {
            AgentBackend::Embedded { twin } => {
                let backend = embedded::by_name(twin.as_str())
                    .ok_or_else(|| wrong(&format_args!("there is no embedded agent {twin}")))?;
                let backend: Arc<dyn Backend> = Arc::new(backend);
                let schema = bundled::by_name(twin.as_str()).and_then(|agent| agent.text("schema.json"));
                match schema.and_then(|text| serde_json::from_str::<Value>(text).ok()) {
                    Some(schema) => Ok(Arc::new(Promised::try_new(backend, &schema).map_err(|error| wrong(&error))?)),
                    None => Ok(backend),
                }
            }
            AgentBackend::Http(http) => {
                let client = self.required(name, &agent.settings.provider)?;
                let mapping = mapping_of(project, http)?;
                let agent = HttpAgent::try_new(Arc::clone(&client), &mapping).map_err(|error| wrong(&error))?;
                let mut backend: Arc<dyn Backend> = Arc::new(agent);
                if let Some(path) = &http.health {
                    backend = Arc::new(StartingHttpAgent::new(backend, client, path));
                }
                if let Some(schema) = &http.schema {
                    backend = Arc::new(Promised::try_new(backend, schema).map_err(|error| wrong(&error))?);
                }
                Ok(backend)
            }
            AgentBackend::Model(model) => {
                let client = self.required(name, &agent.settings.provider)?;
                let provider = settings.provider(agent.settings.provider.as_str()).map(|provider| &provider.backend);
                let asked = asked_of(model, agent, provider);
                let Some(ProviderBackend::Ollama { context, .. }) = provider else {
                    return Ok(Arc::new(OpenAiAgent::try_new(client, asked).map_err(|error| wrong(&error))?));
                };
                let ollama = ollama_of(asked, model.context.over(*context));
                Ok(Arc::new(OllamaAgent::try_new(client, ollama).map_err(|error| wrong(&error))?))
            }
        }
    }

    fn required(&self, agent: &Name, provider: &Name) -> Result<Arc<ProviderClient>, Stop> {
        let client = self.clients.get(provider).map(Arc::clone);
        client.ok_or_else(|| Stop::Usage(format!("agents.{agent}: provider {provider} is not reached over HTTP")))
    }
}

/// Prices, and how answers are guessed. Where tokens are counted, the vocabularies are loaded now and not by the first call.
fn spending_of(settings: &Settings) -> SpendingSettings {
    let table = &settings.spending;
    let spending = SpendingSettings {
        output_tokens_assumed: table.output_tokens,
        prices: table.prices.clone(),
        currency: table.currency.as_deref().map(Arc::from),
    };
    if settings.counts_tokens() {
        let models = settings.agents.iter().filter_map(|agent| agent.settings.model.as_deref());
        models.map(Vocabulary::of_model).for_each(Vocabulary::load);
    }
    spending
}

/// What is put around an agent's backend; the agent names the provider that the backend leans on.
pub(super) type Around<'a> = &'a dyn Fn(&Agent, Arc<dyn Backend>) -> Arc<dyn Backend>;

/// Backends as they are.
pub(super) fn bare(_: &Agent, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
    backend
}

/// What a runtime is made of by the settings, at its start and by a reload; `around` is put around the backend of each agent.
pub(super) fn parts(project: &Project, settings: &Settings, around: Around<'_>) -> Result<Parts, Stop> {
    let backends = Backends::connect(project, settings)?;
    let mut parts = Parts::new()
        .callers(settings.callers)
        .compartments(settings.compartments.clone())
        .spending(spending_of(settings))
        .run_caps(settings.run.caps)
        .ladders(settings.ladders.clone())
        .deferred(settings.deferred.settings.clone());
    for Provider { settings: provider, .. } in &settings.providers {
        parts = parts.provider(provider.clone());
    }
    for agent in &settings.agents {
        let further = further_of(project, settings, agent, &backends, around)?;
        let backend = around(agent, backends.of(project, settings, agent)?);
        parts = parts.agent_with_targets(agent.settings.clone(), agent.rank, backend, further);
    }
    Ok(parts)
}

/// A runtime's builder with all agents of the settings.
pub(super) fn builder(
    project: &Project,
    settings: &Settings,
    call_log: Option<Arc<dyn CallLog>>,
    around: Around<'_>,
) -> Result<RuntimeBuilder, Stop> {
    let builder = Runtime::builder().parts(parts(project, settings, around)?);
    let builder = match call_log {
        Some(call_log) => builder.call_log(call_log),
        None => builder,
    };
    // Whoever has a journal to keep calls in takes whole ladders instead.
    Ok(builder.ladders(settings.ladders.clone().without_deferred()))
}

/// Starts a runtime with all agents of the settings.
pub(super) async fn runtime(
    project: &Project,
    settings: &Settings,
    call_log: Option<Arc<dyn CallLog>>,
) -> Result<Runtime, Stop> {
    builder(project, settings, call_log, &bare)?.start().await.map_err(Stop::usage)
}

/// A further target and who works there.
type Further = (TargetSettings, Arc<dyn Backend>);

/// The backends of an agent's further targets.
pub(super) fn further_of(
    project: &Project,
    settings: &Settings,
    agent: &Agent,
    backends: &Backends,
    around: Around<'_>,
) -> Result<Vec<Further>, Stop> {
    let mut further = Vec::new();
    for target in &agent.targets {
        let mut there = agent.clone();
        there.settings.provider = target.provider.clone();
        there.settings.model.clone_from(&target.model);
        let backend = around(&there, backends.of(project, settings, &there)?);
        let (provider, model) = (target.provider.clone(), target.model.clone());
        further.push((TargetSettings { provider, model, rank: target.rank }, backend));
    }
    Ok(further)
}

/// The gateway: model names of agents, and the services behind agents for what passes through.
pub(super) fn gateway(project: &Project, settings: &Settings) -> Result<Gateway, Stop> {
    let backends = Backends::connect(project, settings)?;
    let mut gateway = Gateway::default();
    // Who only stands in for another one is asked by its ladder, not by name.
    let relays = |agent: &&Agent| matches!(agent.backend, AgentBackend::Model(_)) && agent.stands_in_for.is_none();
    // An agent's own name comes before what others call themselves.
    for agent in settings.agents.iter().filter(relays) {
        gateway.add_model(agent.settings.name.as_str(), &agent.settings.name);
    }
    for agent in &settings.agents {
        for name in &agent.model_names {
            gateway.add_model(name, &agent.settings.name);
        }
        if let Some(client) = backends.client(&agent.settings.provider) {
            gateway.add_service(&agent.settings.name, Arc::clone(client));
        }
    }
    Ok(gateway)
}

fn options_of(project: &Project, endpoint: &Endpoint, limits: Limits) -> Result<ProviderOptions, Stop> {
    let key = endpoint
        .api_key
        .as_ref()
        .map(|source| resolve_secret(source, &|name| project.environment(name)).map(|text| Secret::new(text.expose())));
    let mut options = ProviderOptions::at(&endpoint.base_url);
    options.key = key.transpose().map_err(Stop::usage)?;
    options.key_place = match &endpoint.auth {
        AuthStyle::Bearer => KeyPlace::Bearer,
        AuthStyle::Header(name) => KeyPlace::Header(name.clone()),
        AuthStyle::Query(name) => KeyPlace::Query(name.clone()),
    };
    options.headers = texts(project, &endpoint.headers)?;
    options.query = texts(project, &endpoint.query)?;
    options.connect_timeout = endpoint.connect_timeout;
    options.body_bytes_max = usize::try_from(limits.reply_bytes_max).unwrap_or(usize::MAX);
    Ok(options)
}

fn texts(project: &Project, pairs: &[(String, TextSource)]) -> Result<Vec<(String, Secret)>, Stop> {
    let text = |source: &TextSource| match source {
        TextSource::Text(text) => Ok(Secret::new(text)),
        TextSource::Secret(source) => resolve_secret(source, &|name| project.environment(name))
            .map(|text| Secret::new(text.expose()))
            .map_err(Stop::usage),
    };
    pairs.iter().map(|(name, source)| Ok((name.clone(), text(source)?))).collect()
}

fn mapping_of(project: &Project, http: &HttpSettings) -> Result<HttpMapping, Stop> {
    let pointers = http.mapping.clone();
    Ok(HttpMapping {
        method: Some(http.method.to_owned()),
        path: http.path.clone(),
        headers: texts(project, &http.headers)?,
        request: http.request.clone(),
        output: pointers.output,
        usage: pointers.usage,
        usage_prompt: pointers.prompt_tokens,
        usage_output: pointers.output_tokens,
        error_code: pointers.error_code,
        message: pointers.message,
        retryable: pointers.retryable,
        retry_after: pointers.retry_after,
    })
}

fn paths_of(provider: Option<&ProviderBackend>) -> OpenAiPaths {
    let usual = OpenAiPaths::default();
    let Some(ProviderBackend::OpenAi { paths, .. }) = provider else { return usual };
    let path = |own: &Option<String>, usual: ModelPath| own.as_deref().map_or(usual, ModelPath::new);
    OpenAiPaths {
        chat: path(&paths.chat, usual.chat),
        embeddings: path(&paths.embeddings, usual.embeddings),
        models: path(&paths.models, usual.models),
    }
}

fn asked_of(model: &ModelAgent, agent: &Agent, provider: Option<&ProviderBackend>) -> OpenAiSettings {
    let stream_upstream = match provider {
        Some(
            ProviderBackend::OpenAi { stream_upstream: StreamSetting::AsAsked, .. }
            | ProviderBackend::Ollama { stream_upstream: StreamSetting::AsAsked, .. },
        ) => StreamUpstream::AsAsked,
        _ => StreamUpstream::Always,
    };
    OpenAiSettings {
        // Settings insist on a model except for servers that serve just one and ignore the name.
        model: agent.settings.model.clone().unwrap_or_else(|| "default".to_owned()),
        system: model.system.clone(),
        prompt: model.prompt.clone().unwrap_or_else(|| PASS_THROUGH_PROMPT.to_owned()),
        prompt_file: model.prompt_file.as_deref().map(shown_file),
        schema: model.schema.clone(),
        answer: match model.answer {
            AnswerForm::Json => Answer::Json,
            AnswerForm::Text => Answer::Text,
        },
        max_output_tokens: model.max_output_tokens.map(u64::from),
        temperature: model.temperature,
        seed: model.seed,
        stream_upstream,
        extra: Map::new(),
        paths: paths_of(provider),
    }
}

/// The file by its name and its folder's: whoever reads the error of a call is no business of where all lies.
fn shown_file(path: &str) -> String {
    let mut parts: Vec<&str> = path.rsplit(['/', '\\']).take(2).collect();
    parts.reverse();
    parts.join("/")
}

fn ollama_of(asked: OpenAiSettings, context: Context) -> OllamaSettings {
    let keep_alive = match context.keep_alive {
        settings::ollama::KeepAlive::For(time) => KeepAlive::For(time),
        settings::ollama::KeepAlive::Forever => KeepAlive::Forever,
    };
    OllamaSettings { asked, num_ctx: u64::from(context.num_ctx), keep_alive }
}
