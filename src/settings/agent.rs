//! One agent: its manifest, its `[agents.X]` table and the defaults of its kind, made into what the runtime and the transport need.

use std::time::Duration;

use crate::{
    model::{duration, name::Name, nearest::hint},
    policy::{breaker::settings::BreakerSettings, fallback::Rank, slow::SlowBy},
    runtime::settings::{AgentSettings, SLOTS_MAX, Timeouts, WarmthSettings},
};

use super::{
    agent_backend::{AgentBackend, Files, HTTP_KEYS, MODEL_KEYS, read_http, read_model},
    breaker::{attempt_bound, never_slow, read_breaker, read_restart, read_retry},
    ladder::{LadderOf, ReadLadder, read_ladder},
    layers::merge,
    node::{Layer, Table, Value, key_path},
    ollama::{OLLAMA_KEYS, ONLY_OLLAMA, ProviderContext},
    problem::{Origin, Problem},
    provider::{Flavor, Kind, ProviderBackend, ReadProvider},
    reader::{Fit, Reader},
    report::Report,
    targets::{ALONE, Target},
    warmth::{Askable, WARMTH_KEYS, fit_probe, read_warmth},
};

/// Calls in flight at once, unless configured.
const SLOTS: u32 = 10;
/// An attempt of an `http` or embedded agent.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);
/// To the first content of a model's stream.
const FIRST_TOKEN_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two pieces of content.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);
/// A call with all its attempts.
const CALL_TIMEOUT: Duration = Duration::from_secs(180);
/// Tokens a second under which `slow_by = "pace"` calls an answer slow.
const PACE_MIN: f64 = 5.0;
/// Names of models that an agent answers to.
pub(crate) const MODEL_NAMES_MAX: usize = 64;
/// The longest of them, in bytes.
pub(crate) const MODEL_NAME_BYTES_MAX: usize = 256;

/// Why another kind does not take the keys of models.
const ONLY_MODELS: &str = "is only for agents of a provider of kind \"openai\" or \"ollama\"";

/// Keys of agents that later versions know.
const LATER: [&str; 10] = [
    "adaptive",
    "budget",
    "effects",
    "fallback",
    "fallbacks",
    "max_wait",
    "price",
    "requests_per_minute",
    "tokens_per_minute",
    "volume_guard",
];

/// An agent as configured.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    /// For the runtime.
    pub settings: AgentSettings,
    /// For the transport.
    pub backend: AgentBackend,
    /// What it does, for people.
    pub description: Option<String>,
    /// When its first target is asked.
    pub rank: Rank,
    /// Its further targets.
    pub targets: Vec<Target>,
    /// Names that requests in OpenAI's shape may call it by, beside its own.
    pub model_names: Vec<String>,
    /// What its refused and failed calls try next.
    pub ladder: ReadLadder,
    /// The agent that it stands in for, if it is there for that alone.
    pub stands_in_for: Option<Name>,
}

/// What reading an agent needs beside its own table.
pub(super) struct Surroundings<'a> {
    pub(super) defaults: &'a Table,
    pub(super) provider: &'a ReadProvider,
    /// The provider's kind.
    pub(super) kind: Kind,
    /// Whether that is known; else it is a guess, and nothing is refused for its sake.
    pub(super) fit: Fit,
    pub(super) files: Files<'a>,
    /// The embedded agents that this program has.
    pub(super) twins: &'a [Name],
}

/// Reads agent `name` from `own`, its manifest and its table laid over each other.
pub(super) fn read_agent(
    name: &Name,
    own: &Table,
    place: Origin,
    around: &Surroundings<'_>,
    report: &mut Report,
) -> Agent {
    let kind = around.kind;
    let table = over_defaults(own, around.defaults, kind);
    let mut reader =
        Reader::new(&table, place, &key_path("agents", name.as_str()), "defaults", report).fitting(around.fit);
    let provider = around.provider.provider.settings.name.clone();
    reader.node("provider");
    reader.explain("provider", provider.as_str());
    let description = reader.text("description").map(str::to_owned);
    reader.choice("stage", (), &[("integrated", ())], &["deps-only", "alerts"]);
    let slots = reader.whole("slots", 0, u64::from(SLOTS_MAX)).and_then(|slots| u32::try_from(slots).ok());
    let slots = slots.unwrap_or(SLOTS);
    reader.explain("slots", slots.to_string());
    let timeouts = read_timeouts(&mut reader, kind, around.provider.connect_timeout);
    let slow_by = read_slow_by(&mut reader, kind);
    let askable = if around.fit == Fit::Known { askable(&reader, kind) } else { Askable::HealthAndModel };
    let breaker = read_agent_breaker(&mut reader, slow_by, &timeouts, askable);
    let retry = read_retry(reader.table("retry"));
    let restart = read_restart(reader.table("restart"));
    let model = read_model_name(&mut reader, kind, around);
    let backend = match kind {
        Kind::Embedded => AgentBackend::Embedded { twin: read_twin(&mut reader, name, around.twins) },
        Kind::Http => {
            reader.unfit(&MODEL_KEYS, ONLY_MODELS);
            reader.unfit(&OLLAMA_KEYS, ONLY_OLLAMA);
            reader.unfit(&["embedded"], "is only for agents of a provider of kind \"embedded\"");
            AgentBackend::Http(Box::new(read_http(&mut reader, &around.files)))
        }
        Kind::OpenAi | Kind::Ollama => {
            reader.unfit(&HTTP_KEYS, "is only for agents of a provider of kind \"http\"");
            reader.unfit(&["embedded"], "is only for agents of a provider of kind \"embedded\"");
            let kept = match &around.provider.provider.backend {
                ProviderBackend::Ollama { context, .. } => {
                    Some(ProviderContext { context: *context, path: key_path("providers", provider.as_str()) })
                }
                _ => None,
            };
            AgentBackend::Model(Box::new(read_model(&mut reader, &around.files, kept)))
        }
    };
    let model_names = read_model_names(&mut reader, kind);
    let warmth = read_warmth(&mut reader, kind, around.provider.warmth);
    let given = reader.is_given("ladder");
    let ladder = read_ladder(reader.table("ladder"), LadderOf::Agent, given);
    reader.finish(&LATER);
    let name = name.clone();
    let settings = AgentSettings { name, provider, model, slots, timeouts, slow_by, breaker, retry, restart, warmth };
    Agent { settings, backend, description, rank: ALONE, targets: Vec::new(), model_names, ladder, stands_in_for: None }
}

/// The keys of `[defaults]` that reach an agent of this kind: the rest means others.
fn over_defaults(own: &Table, defaults: &Table, kind: Kind) -> Table {
    let mut table = defaults.clone();
    table.remove("connect_timeout");
    // Those of the provider count, which has them from the same place.
    for key in WARMTH_KEYS {
        table.remove(key);
    }
    if kind == Kind::Embedded {
        for key in ["first_token", "stall", "slow_by", "pace_min"] {
            table.remove(key);
        }
    }
    merge(&mut table, own.clone());
    table
}

/// Reads `[defaults]` for itself, so that a slip in it is told even where no agent would meet it.
pub(super) fn read_defaults(defaults: &Table, place: Origin, report: &mut Report) {
    // The effective values are noted where they take effect.
    let mut aside = Report::default();
    let mut reader = Reader::new(defaults, place, "defaults", "defaults", &mut aside);
    reader.duration("connect_timeout", ATTEMPT_TIMEOUT);
    reader.whole("slots", 0, u64::from(SLOTS_MAX));
    reader.duration_or_off("timeout", None);
    for key in ["first_token", "stall", "call_timeout"] {
        reader.duration(key, CALL_TIMEOUT);
    }
    slow_word(&mut reader, SlowBy::Total);
    pace_min(&mut reader);
    read_breaker(reader.table("breaker"), &BreakerSettings::default());
    read_retry(reader.table("retry"));
    read_restart(reader.table("restart"));
    read_warmth(&mut reader, Kind::OpenAi, WarmthSettings::default());
    reader.finish(&LATER);
    report.tell_all(aside.take_problems().0);
}

fn read_timeouts(reader: &mut Reader<'_, '_>, kind: Kind, connect: Duration) -> Timeouts {
    let attempt_default = match kind {
        Kind::Embedded | Kind::Http => Some(ATTEMPT_TIMEOUT),
        Kind::OpenAi | Kind::Ollama => None,
    };
    let attempt = reader.duration_or_off("timeout", attempt_default);
    let call = reader.duration("call_timeout", CALL_TIMEOUT);
    let (first_token, stall) = match kind {
        Kind::Embedded => {
            reader.unfit(&["first_token", "stall"], "is not for embedded agents: they do not stream");
            (None, None)
        }
        // A plain answer has no first token, and whether it will be plain is not known beforehand: the attempt bounds it.
        Kind::Http => (reader.duration_or_off("first_token", None), Some(reader.duration("stall", STALL_TIMEOUT))),
        Kind::OpenAi | Kind::Ollama => {
            (Some(reader.duration("first_token", FIRST_TOKEN_TIMEOUT)), Some(reader.duration("stall", STALL_TIMEOUT)))
        }
    };
    if reader.is_own("timeout") && attempt.is_some_and(|attempt| attempt > call) {
        reader
            .warn("timeout", format!("never runs out: call_timeout = {} ends the call before", duration::format(call)));
    }
    Timeouts { connect, first_token, stall, attempt, call }
}

fn read_slow_by(reader: &mut Reader<'_, '_>, kind: Kind) -> SlowBy {
    if kind == Kind::Embedded {
        if reader.node("slow_by").is_some_and(|node| node.value != Value::Text("total".to_owned())) {
            reader.unfit(&["slow_by"], "must be \"total\" for embedded agents: they do not stream");
        }
        reader.unfit(&["pace_min"], "is not for embedded agents: they do not stream");
        reader.explain("slow_by", "total");
        return SlowBy::Total;
    }
    let default = if kind.has_models() { SlowBy::FirstToken } else { SlowBy::Total };
    match slow_word(reader, default) {
        SlowBy::Pace(_) => SlowBy::Pace(pace_min(reader)),
        other => {
            reader.unfit(&["pace_min"], "is only used with slow_by = \"pace\"");
            other
        }
    }
}

fn slow_word(reader: &mut Reader<'_, '_>, default: SlowBy) -> SlowBy {
    let words = [("total", SlowBy::Total), ("first_token", SlowBy::FirstToken), ("pace", SlowBy::Pace(PACE_MIN))];
    reader.choice("slow_by", default, &words, &[])
}

fn pace_min(reader: &mut Reader<'_, '_>) -> f64 {
    let pace = reader.number("pace_min", PACE_MIN);
    if pace.is_finite() && pace > 0.0 {
        return pace;
    }
    reader.refuse("pace_min", "must be over 0, in tokens a second");
    PACE_MIN
}

/// How an agent can be tried while it is half-open: a service only where its `health` path is known.
fn askable(reader: &Reader<'_, '_>, kind: Kind) -> Askable {
    match Askable::of_provider(kind) {
        Askable::Health if !reader.is_given("health") => Askable::No,
        askable => askable,
    }
}

/// Reads the breaker, and refuses a threshold of slowness that no attempt could ever reach.
fn read_agent_breaker(
    reader: &mut Reader<'_, '_>,
    slow_by: SlowBy,
    timeouts: &Timeouts,
    askable: Askable,
) -> BreakerSettings {
    let fit = reader.fit();
    let bound_is_sound = ["timeout", "call_timeout", "first_token"].iter().all(|key| reader.is_sound(key));
    let mut table = reader.table("breaker");
    let is_written = table.is_given("slow_call");
    let slow_call = table.problem("slow_call", "");
    let mut breaker = read_breaker(table.reborrow(), &BreakerSettings::default());
    fit_probe(&mut table, askable, &mut breaker);
    let bound = match slow_by {
        SlowBy::Total => attempt_bound(timeouts),
        SlowBy::FirstToken | SlowBy::Pace(_) => {
            attempt_bound(timeouts).min(timeouts.first_token.unwrap_or(Duration::MAX))
        }
    };
    let is_judged = fit == Fit::Known && bound_is_sound && table.is_sound("slow_call");
    if breaker.slow_call < bound || !is_judged {
        return breaker;
    }
    let rule = never_slow(breaker.slow_call, bound);
    match slow_by {
        SlowBy::Total if is_written => reader.report.tell(Problem { rule, ..slow_call }),
        // The threshold was nobody's choice: the short timeout may well be meant.
        _ => reader.report.warnings.push(Problem { rule, ..slow_call }),
    }
    breaker
}

/// The agent's own model, else its provider's, which knows its server better than a manifest does.
fn read_model_name(reader: &mut Reader<'_, '_>, kind: Kind, around: &Surroundings<'_>) -> Option<String> {
    let provider = around.provider;
    if kind == Kind::Embedded {
        reader.unfit(&["model"], "is not for embedded agents");
        return None;
    }
    let own = reader.text("model");
    let from_manifest = reader.node("model").is_some_and(|node| node.layer == Layer::Manifest);
    if let Some((model, origin)) = provider.model.as_ref().filter(|_| own.is_none() || from_manifest) {
        let key = key_path(&reader.path, "model");
        reader.report.explain(key, model.clone(), origin.clone());
        return Some(model.clone());
    }
    match own {
        Some("") => reader.refuse("model", "must not be empty"),
        Some(model) => reader.explain("model", model),
        None => {
            let needs_model = kind.has_models() && provider.flavor != Flavor::LlamaCpp;
            let path = key_path("providers", provider.provider.settings.name.as_str());
            let may_be_there = ["model", "flavor"].iter().any(|key| !reader.report.is_sound(&key_path(&path, key)));
            if needs_model && around.fit == Fit::Known && !may_be_there && !reader.is_given("model") {
                reader.refuse_without(
                    &["model"],
                    "model",
                    format!("must be set, here or as {}", key_path(&path, "model")),
                );
            }
        }
    }
    own.map(str::to_owned)
}

/// Names of models that mean this agent.
fn read_model_names(reader: &mut Reader<'_, '_>, kind: Kind) -> Vec<String> {
    if !kind.has_models() {
        reader.unfit(&["model_names"], ONLY_MODELS);
        return Vec::new();
    }
    let Some(node) = reader.node("model_names") else { return Vec::new() };
    let list = match &node.value {
        Value::List(list) if list.len() <= MODEL_NAMES_MAX => list,
        _ => {
            reader.refuse("model_names", "must be a list of at most 64 texts of 1 to 256 bytes");
            return Vec::new();
        }
    };
    let mut names = Vec::new();
    for (at, node) in list.iter().enumerate() {
        match &node.value {
            Value::Text(text) if (1..=MODEL_NAME_BYTES_MAX).contains(&text.len()) => names.push(text.clone()),
            _ => reader.refuse_entry("model_names", at, node, "must be a text of 1 to 256 bytes"),
        }
    }
    reader.explain("model_names", names.join(", "));
    names
}

fn read_twin(reader: &mut Reader<'_, '_>, name: &Name, twins: &[Name]) -> Name {
    reader.unfit(&HTTP_KEYS, "is only for agents of a provider of kind \"http\"");
    reader.unfit(&MODEL_KEYS, ONLY_MODELS);
    reader.unfit(&OLLAMA_KEYS, ONLY_OLLAMA);
    reader.unfit(&["schema"], "is not for embedded agents: they bring their own shape");
    let named = reader.text("embedded").unwrap_or(name.as_str());
    let known = || twins.iter().map(Name::as_str).collect::<Vec<_>>().join(", ");
    if let Some(twin) = twins.iter().find(|twin| twin.as_str() == named) {
        reader.explain("embedded", named);
        return twin.clone();
    }
    let key = if reader.is_given("embedded") { "embedded" } else { "provider" };
    if !reader.is_sound("embedded") {
        return name.clone();
    }
    let near = hint(named, twins.iter().map(Name::as_str));
    reader.refuse(key, format!("there is no embedded agent `{named}`{near}; there are: {}", known()));
    name.clone()
}
