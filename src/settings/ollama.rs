//! What only Ollama is told: how much context its models are loaded with, and how long they stay. A provider says it for all its agents,
//! an agent for itself. Nothing is contacted here.

use std::time::Duration;

use crate::model::duration;

use super::{
    node::{Value, key_path},
    problem::Problem,
    reader::Reader,
    report::Report,
};

/// Where Ollama listens on the same machine.
pub const BASE_URL: &str = "http://127.0.0.1:11434";
/// Tokens of context, unless configured.
pub const NUM_CTX: u32 = 8_192;
/// The fewest tokens of context.
pub const NUM_CTX_MIN: u32 = 128;
/// The most tokens of context.
pub const NUM_CTX_MAX: u32 = 100_000_000;
/// How long a model stays, unless configured.
pub const KEEP_ALIVE: KeepAlive = KeepAlive::For(Duration::from_secs(5 * 60));

/// Keys that only Ollama's providers and agents take.
pub(super) const OLLAMA_KEYS: [&str; 2] = ["num_ctx", "keep_alive"];
/// Why another kind does not take them.
pub(super) const ONLY_OLLAMA: &str = "is only for kind = \"ollama\"";

/// How long a model stays in the server's memory after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// So long; zero puts it away at once.
    For(Duration),
    /// Until the server ends or needs its memory.
    Forever,
}

impl KeepAlive {
    fn shown(self) -> String {
        match self {
            Self::For(time) => duration::format(time),
            Self::Forever => "forever".to_owned(),
        }
    }
}

/// How a model is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// Tokens that it is loaded with: prompt and answer together.
    pub num_ctx: u32,
    /// How long it stays.
    pub keep_alive: KeepAlive,
}

/// What an agent says of it for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnContext {
    /// In place of its provider's.
    pub num_ctx: Option<u32>,
    /// In place of its provider's.
    pub keep_alive: Option<KeepAlive>,
}

impl OwnContext {
    /// What holds at a provider.
    pub fn over(self, provider: Context) -> Context {
        Context {
            num_ctx: self.num_ctx.unwrap_or(provider.num_ctx),
            keep_alive: self.keep_alive.unwrap_or(provider.keep_alive),
        }
    }
}

/// What an agent's provider says, and where.
pub(super) struct ProviderContext {
    pub(super) context: Context,
    /// The path of the provider's table.
    pub(super) path: String,
}

/// Reads what a provider says.
pub(super) fn read_context(reader: &mut Reader<'_, '_>) -> Context {
    let context = read_own(reader).over(Context { num_ctx: NUM_CTX, keep_alive: KEEP_ALIVE });
    if !reader.is_given("num_ctx") {
        reader.explain("num_ctx", context.num_ctx.to_string());
    }
    if !reader.is_given("keep_alive") {
        reader.explain("keep_alive", context.keep_alive.shown());
    }
    context
}

/// Reads what an agent says.
pub(super) fn read_own_context(reader: &mut Reader<'_, '_>, provider: &ProviderContext) -> OwnContext {
    let own = read_own(reader);
    let held = own.over(provider.context);
    for (key, value) in [("num_ctx", held.num_ctx.to_string()), ("keep_alive", held.keep_alive.shown())] {
        if !reader.is_given(key) {
            let origin = reader.report.origin_of(&key_path(&provider.path, key));
            let key = key_path(&reader.path, key);
            reader.report.explain(key, value, origin);
        }
    }
    own
}

fn read_own(reader: &mut Reader<'_, '_>) -> OwnContext {
    let num_ctx = reader.whole("num_ctx", u64::from(NUM_CTX_MIN), u64::from(NUM_CTX_MAX));
    if let Some(tokens) = num_ctx {
        reader.explain("num_ctx", tokens.to_string());
    }
    OwnContext { num_ctx: num_ctx.and_then(|tokens| u32::try_from(tokens).ok()), keep_alive: read_keep_alive(reader) }
}

fn read_keep_alive(reader: &mut Reader<'_, '_>) -> Option<KeepAlive> {
    let node = reader.node("keep_alive")?;
    let read = match &node.value {
        Value::Text(word) if word == "forever" => Ok(KeepAlive::Forever),
        Value::Text(text) => duration::parse(text).map(KeepAlive::For).map_err(|error| error.rule()),
        _ => Err("must be a duration, as in \"5m\", or \"forever\""),
    };
    match read {
        Ok(keep_alive) => {
            if keep_alive == KeepAlive::For(Duration::ZERO) {
                reader.warn("keep_alive", "puts the model away after each request: each one loads it anew");
            }
            reader.explain("keep_alive", keep_alive.shown());
            Some(keep_alive)
        }
        Err(rule) => {
            reader.refuse("keep_alive", rule);
            None
        }
    }
}

/// One place where a model is used.
pub(super) struct Use<'a> {
    pub(super) agent: &'a str,
    pub(super) provider: &'a str,
    pub(super) model: &'a str,
    pub(super) num_ctx: u32,
    pub(super) max_output_tokens: Option<u32>,
}

/// Refuses answers that would leave their prompts no room, and warns of agents that make the server load a model again and again: it does
/// so when a model is asked for with another `num_ctx`.
pub(super) fn check_uses(uses: &[Use<'_>], report: &mut Report) {
    for (place, used) in uses.iter().enumerate() {
        let path = key_path("agents", used.agent);
        let num_ctx = used.num_ctx;
        if let Some(tokens) = used.max_output_tokens.filter(|tokens| *tokens >= num_ctx) {
            let key = key_path(&path, "max_output_tokens");
            let rule = format!(
                "leaves no room for a prompt at {}: num_ctx = {num_ctx} holds prompt and answer together",
                used.provider
            );
            let value = Some(tokens.to_string());
            report.tell(Problem { origin: report.origin_of(&key), key, value, rule });
        }
        let other = uses
            .iter()
            .take(place)
            .find(|other| other.provider == used.provider && other.model == used.model && other.num_ctx != num_ctx);
        let Some(other) = other else { continue };
        let key = key_path(&path, "num_ctx");
        let rule = format!(
            "is another one than that of agents.{} ({}) for the model {} at {}: the server loads it anew at each change",
            other.agent, other.num_ctx, used.model, used.provider
        );
        let value = Some(num_ctx.to_string());
        report.warnings.push(Problem { origin: report.origin_of(&key), key, value, rule });
    }
}
