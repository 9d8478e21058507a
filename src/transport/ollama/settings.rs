//! What an agent on an Ollama server is told beside what every model's agent is told, and the check of it. Nothing here is sent or read.

use std::time::Duration;

use serde_json::{Value, json};

use crate::transport::openai::settings::{CheckedSettings, InvalidOpenAi, OpenAiSettings};

/// Tokens of context that a model is loaded with, unless configured. Ollama's own default changes with the machine it runs on.
pub const NUM_CTX: u64 = 8_192;
/// The fewest tokens of context: less holds no prompt.
pub const NUM_CTX_MIN: u64 = 128;
/// The most tokens of context.
pub const NUM_CTX_MAX: u64 = 100_000_000;
/// How long a model stays loaded after its last request, unless configured.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5 * 60);

/// How long a model stays loaded after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// So long; zero puts it away at once.
    For(Duration),
    /// Until the server ends or needs its memory.
    Forever,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self::For(KEEP_ALIVE)
    }
}

impl KeepAlive {
    /// As it is sent: Go's notation of a duration, or a negative number for ever.
    pub fn on_the_wire(self) -> Value {
        match self {
            Self::For(time) if time.subsec_millis() == 0 => json!(format!("{}s", time.as_secs())),
            Self::For(time) => json!(format!("{}ms", time.as_millis())),
            Self::Forever => json!(-1),
        }
    }
}

/// An agent on an Ollama server, as configured.
#[derive(Debug, Clone, PartialEq)]
pub struct OllamaSettings {
    /// How its model is asked, as at any server; `extra` and `paths` mean nothing here.
    pub asked: OpenAiSettings,
    /// Tokens of context that the model is loaded with: prompt and answer together.
    pub num_ctx: u64,
    /// How long the model stays loaded after a request.
    pub keep_alive: KeepAlive,
}

impl Default for OllamaSettings {
    fn default() -> Self {
        Self { asked: OpenAiSettings::default(), num_ctx: NUM_CTX, keep_alive: KeepAlive::default() }
    }
}

/// Settings that were checked.
#[derive(Debug)]
pub(super) struct CheckedOllama {
    pub(super) asked: CheckedSettings,
    pub(super) num_ctx: u64,
    pub(super) keep_alive: KeepAlive,
}

impl CheckedOllama {
    pub(super) fn try_new(settings: OllamaSettings) -> Result<Self, InvalidOpenAi> {
        let OllamaSettings { asked, num_ctx, keep_alive } = settings;
        if !(NUM_CTX_MIN..=NUM_CTX_MAX).contains(&num_ctx) {
            return Err(InvalidOpenAi::new("num_ctx", num_ctx, format!("must be from {NUM_CTX_MIN} to {NUM_CTX_MAX}")));
        }
        if let Some(tokens) = asked.max_output_tokens.filter(|tokens| *tokens >= num_ctx) {
            let rule = format!("leaves no room for a prompt: num_ctx = {num_ctx} holds prompt and answer together");
            return Err(InvalidOpenAi::new("max_output_tokens", tokens, rule));
        }
        Ok(Self { asked: CheckedSettings::try_new(asked)?, num_ctx, keep_alive })
    }

    /// The model's name at the server.
    pub(super) fn model(&self) -> &str {
        &self.asked.settings.model
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(num_ctx: u64, max_output_tokens: Option<u64>) -> OllamaSettings {
        let asked = OpenAiSettings { model: "m".to_owned(), max_output_tokens, ..OpenAiSettings::default() };
        OllamaSettings { asked, num_ctx, ..OllamaSettings::default() }
    }

    #[test]
    fn refused() {
        for (settings, key) in [
            (with(8_192, None), None),
            (with(8_192, Some(8_191)), None),
            (with(8_192, Some(8_192)), Some("max_output_tokens")),
            (with(0, None), Some("num_ctx")),
            (with(NUM_CTX_MAX + 1, None), Some("num_ctx")),
            (OllamaSettings::default(), Some("model")),
        ] {
            let shown = format!("{settings:?}");
            assert_eq!(CheckedOllama::try_new(settings).err().map(|refused| refused.key()), key, "{shown}");
        }
    }

    #[test]
    fn keep_alive_as_the_server_reads_it() {
        for (keep_alive, want) in [
            (KeepAlive::default(), json!("300s")),
            (KeepAlive::For(Duration::ZERO), json!("0s")),
            (KeepAlive::For(Duration::from_millis(1_500)), json!("1500ms")),
            (KeepAlive::Forever, json!(-1)),
        ] {
            assert_eq!(keep_alive.on_the_wire(), want);
        }
    }
}
