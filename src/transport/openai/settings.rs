//! What an agent on an OpenAI-compatible server is told, and the check of it. Nothing here is sent or read.

use serde_json::{Map, Value};

use super::probe::MODELS_PATH;
use crate::transport::template::{Filling, Template};

/// The most output tokens that an agent can ask for.
pub const OUTPUT_TOKENS_MAX: u64 = 1_000_000;

/// Fields of the request that are this adapter's own and cannot come from configuration.
const OWN_FIELDS: &[&str] = &["model", "messages", "stream", "stream_options"];

/// Whether the upstream is asked for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamUpstream {
    /// Always: such servers stop at once when a stream's client leaves, but go on with a plain request. For llama.cpp and Ollama.
    #[default]
    Always,
    /// Only where somebody wants the pieces as they come. For hosted vendors.
    AsAsked,
}

/// A path at the server, in which `{model}` stands for the model's name (a deployment's, at Azure).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelPath(String);

impl ModelPath {
    /// A path that begins with a slash; it may hold `{model}`.
    pub fn new(path: &str) -> Self {
        Self(path.to_owned())
    }

    /// The path for this model. Its name is one segment, whatever signs it holds.
    pub fn for_model(&self, model: &str) -> String {
        if self.0.contains(MODEL_MARK) { self.0.replace(MODEL_MARK, &one_segment(model)) } else { self.0.clone() }
    }
}

/// What stands for the model's name in a path.
pub const MODEL_MARK: &str = "{model}";

/// Percent-encodes everything that could end a segment.
fn one_segment(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            segment.push(char::from(byte));
        } else {
            segment.push_str(&format!("%{byte:02X}"));
        }
    }
    segment
}

/// Where a server has what, joined to the provider's `base_url`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenAiPaths {
    /// Chat completions.
    pub chat: ModelPath,
    /// Embeddings.
    pub embeddings: ModelPath,
    /// The list of models, by which it is seen whether the server is well.
    pub models: ModelPath,
}

impl Default for OpenAiPaths {
    fn default() -> Self {
        Self {
            chat: ModelPath::new("/chat/completions"),
            embeddings: ModelPath::new("/embeddings"),
            models: ModelPath::new(MODELS_PATH),
        }
    }
}

/// In which form the model answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Answer {
    /// In JSON of the promised shape, if one is promised.
    #[default]
    Json,
    /// In plain text: the output is `{"text": "..."}`, which the promised shape must allow. For long texts, which models write better
    /// outside a JSON string.
    Text,
}

/// An agent on an OpenAI-compatible server, as configured.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OpenAiSettings {
    /// The model's name at the server.
    pub model: String,
    /// The system message, as it is.
    pub system: Option<String>,
    /// The user message: a template over `input`.
    pub prompt: String,
    /// The file that the prompt stands in, as its mistakes name it.
    pub prompt_file: Option<String>,
    /// The JSON Schema that the output is asked for and checked by; without it the output is `{"text": "..."}`.
    pub schema: Option<Value>,
    /// Whether the model answers in JSON or in plain text.
    pub answer: Answer,
    /// The most tokens of an answer.
    pub max_output_tokens: Option<u64>,
    /// From 0 to 2.
    pub temperature: Option<f64>,
    /// For servers that can repeat themselves.
    pub seed: Option<u64>,
    /// Whether the upstream is asked for a stream.
    pub stream_upstream: StreamUpstream,
    /// More fields of the request, as they are.
    pub extra: Map<String, Value>,
    /// Where the server has what.
    pub paths: OpenAiPaths,
}

/// Settings that cannot be: the key, its value and the rule that it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {rule}")]
pub struct InvalidOpenAi {
    key: &'static str,
    value: String,
    rule: String,
}

impl InvalidOpenAi {
    pub(in crate::transport) fn new(
        key: &'static str,
        value: impl std::fmt::Display,
        rule: impl std::fmt::Display,
    ) -> Self {
        Self { key, value: value.to_string(), rule: rule.to_string() }
    }

    /// The key as in the configuration.
    pub fn key(&self) -> &'static str {
        self.key
    }
}

/// What an answer is read as, and what the output must be.
#[derive(Debug, Clone, Copy)]
pub(in crate::transport) enum Promise<'a> {
    /// Text; the object around it may have a shape.
    Text(Option<&'a Shape>),
    /// JSON of this shape.
    Json(&'a Shape),
}

/// A promised shape, ready to check by.
#[derive(Debug)]
pub struct Shape {
    pub(in crate::transport) schema: Value,
    pub(in crate::transport) validator: jsonschema::Validator,
}

/// Settings that were checked.
#[derive(Debug)]
pub(in crate::transport) struct CheckedSettings {
    pub(in crate::transport) settings: OpenAiSettings,
    pub(in crate::transport) prompt: Template,
    pub(in crate::transport) shape: Option<Shape>,
}

impl CheckedSettings {
    pub(in crate::transport) fn try_new(settings: OpenAiSettings) -> Result<Self, InvalidOpenAi> {
        if settings.model.is_empty() {
            return Err(InvalidOpenAi::new("model", "\"\"", "must name a model"));
        }
        if let Some(tokens) = settings.max_output_tokens.filter(|tokens| !(1..=OUTPUT_TOKENS_MAX).contains(tokens)) {
            return Err(InvalidOpenAi::new("max_output_tokens", tokens, "must be from 1 to 1000000"));
        }
        if let Some(degree) = settings.temperature.filter(|degree| !(0.0..=2.0).contains(degree)) {
            return Err(InvalidOpenAi::new("temperature", degree, "must be from 0 to 2"));
        }
        if let Some(field) = OWN_FIELDS.iter().find(|field| settings.extra.contains_key(**field)) {
            return Err(InvalidOpenAi::new("extra", field, "is a field of the request that is set elsewhere"));
        }
        let prompt = Template::try_new(&settings.prompt, Filling::Text)
            .map_err(|error| InvalidOpenAi::new("prompt", "(a template)", error))?;
        let shape = settings.schema.clone().map(Shape::try_new).transpose()?;
        Ok(Self { settings, prompt, shape })
    }
}

impl CheckedSettings {
    /// What its output must be.
    pub(in crate::transport) fn promise(&self) -> Promise<'_> {
        match (&self.shape, self.settings.answer) {
            (None, _) => Promise::Text(None),
            (Some(shape), Answer::Text) => Promise::Text(Some(shape)),
            (Some(shape), Answer::Json) => Promise::Json(shape),
        }
    }

    /// The shape that the model itself is asked for.
    pub(in crate::transport) fn json_shape(&self) -> Option<&Shape> {
        self.shape.as_ref().filter(|_| self.settings.answer == Answer::Json)
    }
}

impl Shape {
    fn try_new(schema: Value) -> Result<Self, InvalidOpenAi> {
        if !schema.is_object() {
            return Err(InvalidOpenAi::new("schema", &schema, "must be an object"));
        }
        let validator = jsonschema::validator_for(&schema)
            .map_err(|error| InvalidOpenAi::new("schema", error.instance_path(), error.masked()))?;
        Ok(Self { schema, validator })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn refused() {
        let fine = || OpenAiSettings {
            model: "m".to_owned(),
            prompt: "{{ input.a }}".to_owned(),
            ..OpenAiSettings::default()
        };
        let extra = |key: &str| Map::from_iter([(key.to_owned(), json!(1))]);
        for (settings, key) in [
            (fine(), None),
            (OpenAiSettings { model: String::new(), ..fine() }, Some("model")),
            (OpenAiSettings { prompt: "{% if %}".to_owned(), ..fine() }, Some("prompt")),
            (OpenAiSettings { max_output_tokens: Some(0), ..fine() }, Some("max_output_tokens")),
            (OpenAiSettings { temperature: Some(f64::NAN), ..fine() }, Some("temperature")),
            (OpenAiSettings { temperature: Some(0.0), ..fine() }, None),
            (OpenAiSettings { schema: Some(json!({"type": "object"})), ..fine() }, None),
            (OpenAiSettings { schema: Some(json!({"type": "banana"})), ..fine() }, Some("schema")),
            (OpenAiSettings { schema: Some(json!({"$ref": "http://h.example/s.json"})), ..fine() }, Some("schema")),
            (OpenAiSettings { schema: Some(json!(true)), ..fine() }, Some("schema")),
            (OpenAiSettings { extra: extra("top_p"), ..fine() }, None),
            (OpenAiSettings { extra: extra("messages"), ..fine() }, Some("extra")),
        ] {
            let shown = format!("{settings:?}");
            assert_eq!(CheckedSettings::try_new(settings).err().map(|refused| refused.key()), key, "{shown}");
        }
    }
}
