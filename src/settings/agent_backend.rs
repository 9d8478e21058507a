//! What the transport needs to know of an agent: the prompt and schema of a model's agent, the mapping of a service that speaks its own way.

use std::sync::Arc;

use serde_json::Value as Json;

use crate::{
    model::name::Name,
    workflow::{
        template_names::check_names,
        template_rules::{BrokenRule, check_bounds},
    },
};

use super::{
    endpoint::{TextSource, read_headers},
    folder::{AgentFolder, PROMPT, SCHEMA},
    node::{Layer, Value},
    ollama::{OLLAMA_KEYS, ONLY_OLLAMA, OwnContext, ProviderContext, read_own_context},
    problem::{Origin, Problem},
    reader::Reader,
};

/// The most tokens that an agent can be configured to ask for.
pub const OUTPUT_TOKENS_MAX: u64 = 10_000_000;
/// The longest path of a request, and the longest JSON Pointer, in bytes.
pub const PATH_BYTES_MAX: usize = 1_024;

/// What prompts and requests are filled from.
const TEMPLATE_NAMES: [&str; 1] = ["input"];

/// What the transport is told about an agent.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentBackend {
    /// Work inside this program.
    Embedded {
        /// The name of the computing twin, which is the agent's own unless configured.
        twin: Name,
    },
    /// A service of the user's.
    Http(Box<HttpAgent>),
    /// A model, asked in the way of its provider's kind.
    Model(Box<ModelAgent>),
}

/// How an `http` agent is called.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpAgent {
    /// Joined to the provider's `base_url`; empty = that address itself.
    pub path: String,
    /// `POST`, `PUT` or `PATCH`.
    pub method: &'static str,
    /// Headers beside the provider's, names in lower case.
    pub headers: Vec<(String, TextSource)>,
    /// A template of the body; `None` = our own `{"input": ...}`.
    pub request: Option<String>,
    /// Where things stand in its answers.
    pub mapping: Mapping,
    /// A path that answers once the service has started; `None` = it is taken to be up.
    pub health: Option<String>,
    /// The shape that its output promises.
    pub schema: Option<Json>,
}

/// JSON Pointers into a service's answers; `None` = as our own protocol has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each field points at what it is named after")]
pub struct Mapping {
    pub output: Option<String>,
    pub usage: Option<String>,
    pub prompt_tokens: Option<String>,
    pub output_tokens: Option<String>,
    pub error_code: Option<String>,
    pub message: Option<String>,
    pub retryable: Option<String>,
    pub retry_after: Option<String>,
}

/// How a model's agent is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelAgent {
    /// A template of the prompt; `None` = the agent passes its input through.
    pub prompt: Option<String>,
    /// The file that it stands in.
    pub prompt_file: Option<Arc<str>>,
    /// The system message.
    pub system: Option<String>,
    /// The shape that the answer promises.
    pub schema: Option<Json>,
    /// Of sampling; `None` = the server's.
    pub temperature: Option<f64>,
    /// Of sampling; `None` = the server's.
    pub seed: Option<u64>,
    /// The longest answer, in tokens; `None` = the server's.
    pub max_output_tokens: Option<u32>,
    /// In which form the model answers.
    pub answer: AnswerForm,
    /// How it gets the pictures that its input names.
    pub images: ImageForm,
    /// How its model is kept, at providers of kind `ollama`.
    pub context: OwnContext,
}

/// How a model gets the pictures that its input names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageForm {
    /// As names in its prompt: it does not see.
    Named,
    /// It sees: smaller copies without EXIF stand beside its prompt. Files must have come through the service.
    Attached,
}

/// In which form a model answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerForm {
    /// In JSON of the promised shape.
    Json,
    /// In plain text, which becomes `{"text": "..."}`: models write long texts better outside a JSON string.
    Text,
}

/// Keys that only an `http` agent takes.
pub(super) const HTTP_KEYS: [&str; 6] = ["path", "method", "headers", "request", "mapping", "health"];
/// Keys that only a model's agent takes.
pub(super) const MODEL_KEYS: [&str; 7] =
    ["prompt", "system", "temperature", "seed", "max_output_tokens", "answer", "images"];

/// Where files that an agent names are found.
pub(super) struct Files<'a> {
    /// The agent's folder, if it has one.
    pub(super) folder: Option<&'a AgentFolder>,
    /// Reads a file that the configuration names.
    pub(super) read: &'a dyn Fn(&str) -> Result<Vec<u8>, String>,
}

/// Reads what an `http` agent takes.
pub(super) fn read_http(reader: &mut Reader<'_, '_>, files: &Files<'_>) -> HttpAgent {
    HttpAgent {
        path: read_path(reader, "path").unwrap_or_default(),
        method: reader.choice("method", "POST", &[("POST", "POST"), ("PUT", "PUT"), ("PATCH", "PATCH")], &[]),
        headers: read_headers(reader),
        request: read_request(reader),
        mapping: read_mapping(reader.table("mapping")),
        health: read_path(reader, "health"),
        schema: read_schema(reader, files),
    }
}

/// Reads what a model's agent takes. `kept` is how an Ollama provider keeps its models, if it is one.
pub(super) fn read_model(reader: &mut Reader<'_, '_>, files: &Files<'_>, kept: Option<ProviderContext>) -> ModelAgent {
    let mut prompt_file = None;
    let prompt = read_file(reader, "prompt", PROMPT, files).and_then(|file| {
        prompt_file = Some(Arc::clone(&file.path));
        let (text, problem) = file.text();
        let problem = problem.or_else(|| template_problem(&file, &text));
        reader.report.tell_all(problem);
        Some(text).filter(|text| !text.is_empty())
    });
    let system = reader.text("system").map(str::to_owned);
    if system.is_some() {
        reader.explain("system", "(text)");
    }
    let temperature = reader.node("temperature").is_some().then(|| reader.number("temperature", 0.0));
    if temperature.is_some_and(|degrees| !(0.0..=2.0).contains(&degrees)) {
        reader.refuse("temperature", "must be a number from 0 to 2");
    }
    let seed = reader.whole("seed", 0, u64::MAX >> 1);
    let max_output_tokens = reader.whole("max_output_tokens", 1, OUTPUT_TOKENS_MAX);
    for (key, number) in [("seed", seed), ("max_output_tokens", max_output_tokens)] {
        if let Some(number) = number {
            reader.explain(key, number.to_string());
        }
    }
    let max_output_tokens = max_output_tokens.and_then(|tokens| u32::try_from(tokens).ok());
    let answer = match reader.choice("answer", "json", &[("json", "json"), ("text", "text")], &[]) {
        "text" => AnswerForm::Text,
        _ => AnswerForm::Json,
    };
    let images = match reader.choice("images", "named", &[("named", "named"), ("attached", "attached")], &[]) {
        "attached" => ImageForm::Attached,
        _ => ImageForm::Named,
    };
    let schema = read_schema(reader, files);
    let context = if let Some(provider) = kept {
        read_own_context(reader, &provider)
    } else {
        reader.unfit(&OLLAMA_KEYS, ONLY_OLLAMA);
        OwnContext::default()
    };
    ModelAgent { prompt, prompt_file, system, schema, temperature, seed, max_output_tokens, answer, images, context }
}

fn read_path(reader: &mut Reader<'_, '_>, key: &'static str) -> Option<String> {
    let path = reader.text(key)?;
    let plain = path.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte));
    let rule = if path.contains(['?', '#']) {
        "must be a path alone: parameters belong to the provider's `query`"
    } else if !path.starts_with('/') || path.starts_with("//") {
        "must begin with one /, as in \"/style/analyze\""
    } else if !plain || path.len() > PATH_BYTES_MAX {
        "must be at most 1024 visible ASCII characters, others percent-encoded"
    } else {
        reader.explain(key, path);
        return Some(path.to_owned());
    };
    reader.refuse(key, rule);
    None
}

fn read_request(reader: &mut Reader<'_, '_>) -> Option<String> {
    let text = reader.text("request")?;
    reader.explain("request", "(template)");
    if let Err(BrokenRule { line, rule }) = check_bounds(text) {
        reader.refuse("request", format!("{rule} (its line {line})"));
    } else if let Err(error) = minijinja::Environment::new().template_from_str(text) {
        reader.refuse("request", format!("is no template: {error}"));
    } else if let Err(BrokenRule { line, rule }) = check_names(text, &TEMPLATE_NAMES) {
        reader.refuse("request", format!("{rule} (its line {line})"));
    }
    Some(text.to_owned())
}

fn read_mapping(mut reader: Reader<'_, '_>) -> Mapping {
    let mut pointer = |key: &'static str| {
        let pointer = reader.text(key)?;
        if !is_json_pointer(pointer) {
            reader.refuse(key, "must be a JSON Pointer, as in \"/data/text\"");
            return None;
        }
        reader.explain(key, pointer);
        Some(pointer.to_owned())
    };
    let mapping = Mapping {
        output: pointer("output"),
        usage: pointer("usage"),
        prompt_tokens: pointer("prompt_tokens"),
        output_tokens: pointer("output_tokens"),
        error_code: pointer("error_code"),
        message: pointer("message"),
        retryable: pointer("retryable"),
        retry_after: pointer("retry_after"),
    };
    if mapping.usage.is_some() && (mapping.prompt_tokens.is_some() || mapping.output_tokens.is_some()) {
        reader.refuse("usage", "must not be given together with prompt_tokens or output_tokens");
    }
    reader.finish(&[]);
    mapping
}

/// RFC 6901: empty, or parts that each begin with a slash; a tilde is followed by 0 or 1.
fn is_json_pointer(text: &str) -> bool {
    let starts = text.is_empty() || text.starts_with('/');
    let mut tildes = text.split('~').skip(1);
    starts && text.len() <= PATH_BYTES_MAX && tildes.all(|after| after.starts_with(['0', '1']))
}

fn read_schema(reader: &mut Reader<'_, '_>, files: &Files<'_>) -> Option<Json> {
    let file = read_file(reader, "schema", SCHEMA, files)?;
    let problem = |line: u32, rule: String| Problem { origin: file.at(line), ..file.problem.clone() }.with_rule(rule);
    match serde_json::from_slice::<Json>(&file.bytes) {
        Ok(schema) => {
            if let Err(error) = jsonschema::validator_for(&schema) {
                let said: String = error.to_string().chars().take(300).collect();
                reader.report.tell(problem(0, format!("is no JSON Schema: {said}")));
            }
            Some(schema)
        }
        Err(error) => {
            let line = u32::try_from(error.line()).unwrap_or(0);
            reader.report.tell(problem(line, format!("is no JSON: {error}")));
            None
        }
    }
}

/// A file that was found, and how a problem with it begins.
struct FoundFile {
    bytes: Vec<u8>,
    path: Arc<str>,
    problem: Problem,
}

impl FoundFile {
    fn at(&self, line: u32) -> Origin {
        Origin::File { path: self.path.clone(), line }
    }

    fn text(&self) -> (String, Option<Problem>) {
        match std::str::from_utf8(&self.bytes) {
            Ok(text) => (text.to_owned(), None),
            Err(error) => {
                let rule = format!("is not UTF-8 (at byte {})", error.valid_up_to());
                (String::new(), Some(self.problem.clone().with_rule(rule)))
            }
        }
    }
}

impl Problem {
    fn with_rule(mut self, rule: String) -> Self {
        self.rule = rule;
        self
    }
}

/// Finds the file that `key` names, or the folder's own `default_name`. A manifest names files of its folder, the configuration
/// names paths.
fn read_file(
    reader: &mut Reader<'_, '_>,
    key: &'static str,
    default_name: &str,
    files: &Files<'_>,
) -> Option<FoundFile> {
    let Some(node) = reader.node(key) else {
        let folder = files.folder?;
        let bytes = folder.files.get(default_name)?.clone();
        let path = folder.file_path(default_name);
        let origin = Origin::File { path: path.clone(), line: 0 };
        let full_key = reader.full_key(key);
        reader.report.explain(full_key.clone(), default_name.to_owned(), origin.clone());
        return Some(FoundFile {
            bytes,
            path,
            problem: Problem { origin, key: full_key, value: None, rule: String::new() },
        });
    };
    let Value::Text(name) = &node.value else {
        reader.refuse(key, "must be the path of a file, in quotes");
        return None;
    };
    let (found, path) = match files.folder {
        Some(folder) if node.layer == Layer::Manifest => {
            let missing = || "is no file of the agent's folder".to_owned();
            (folder.files.get(name.as_str()).cloned().ok_or_else(missing), folder.file_path(name))
        }
        _ => ((files.read)(name), Arc::from(name.as_str())),
    };
    match found {
        Ok(bytes) => {
            reader.explain(key, name.as_str());
            Some(FoundFile { bytes, path, problem: reader.problem(key, "") })
        }
        Err(rule) => {
            reader.refuse(key, rule);
            None
        }
    }
}

fn template_problem(file: &FoundFile, text: &str) -> Option<Problem> {
    if let Err(BrokenRule { line, rule }) = check_bounds(text) {
        return Some(Problem { origin: file.at(line), ..file.problem.clone() }.with_rule(rule));
    }
    let Err(error) = minijinja::Environment::new().template_from_str(text) else {
        let BrokenRule { line, rule } = check_names(text, &TEMPLATE_NAMES).err()?;
        return Some(Problem { origin: file.at(line), ..file.problem.clone() }.with_rule(rule));
    };
    let line = error.line().and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
    let said = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    Some(Problem { origin: file.at(line), ..file.problem.clone() }.with_rule(format!("is no template: {said}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_pointers() {
        for (text, fits) in [
            ("", true),
            ("/", true),
            ("/a/b", true),
            ("/a~1b/~0", true),
            ("a", false),
            ("/~", false),
            ("/~2", false),
            ("/a~", false),
        ] {
            assert_eq!(is_json_pointer(text), fits, "{text:?}");
        }
    }
}
