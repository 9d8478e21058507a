//! How a service that does not speak the contract is spoken to, without code: checked once, when the agent is built.

use reqwest::{Method, header::HeaderMap};

use crate::transport::{
    client::header_of,
    error_body::ErrorPointers,
    json_pointer::JsonPointer,
    secret::Secret,
    template::{Filling, Template},
};

/// How a service is called, as configured. The default is the contract itself, at the provider's `base_url`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HttpMapping {
    /// HTTP method; `POST` unless set.
    pub method: Option<String>,
    /// Joined to the provider's `base_url`.
    pub path: String,
    /// Sent with every request of this agent.
    pub headers: Vec<(String, Secret)>,
    /// A template over `input` that gives the JSON to send; without it `{"input": ...}` is sent.
    pub request: Option<String>,
    /// JSON Pointer to the output; without it the answer is read as the contract says.
    pub output: Option<String>,
    /// JSON Pointer to what was used as a whole, in the words of the contract or of OpenAI.
    pub usage: Option<String>,
    /// JSON Pointer to the tokens of the prompt.
    pub usage_prompt: Option<String>,
    /// JSON Pointer to the tokens of the answer.
    pub usage_output: Option<String>,
    /// JSON Pointer to the code of an error.
    pub error_code: Option<String>,
    /// JSON Pointer to its message.
    pub message: Option<String>,
    /// JSON Pointer to whether a later call can succeed.
    pub retryable: Option<String>,
    /// JSON Pointer to the seconds until one makes sense.
    pub retry_after: Option<String>,
}

/// A mapping that cannot be: the key, its value and the rule that it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value:?}: {rule}")]
pub struct InvalidMapping {
    key: &'static str,
    value: String,
    rule: String,
}

impl InvalidMapping {
    fn new(key: &'static str, value: &str, rule: impl std::fmt::Display) -> Self {
        Self { key, value: value.to_owned(), rule: rule.to_string() }
    }

    /// The key as in the configuration.
    pub fn key(&self) -> &'static str {
        self.key
    }
}

/// A mapping that was checked.
#[derive(Debug)]
pub(super) struct CheckedMapping {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) secrets: Vec<Secret>,
    pub(super) request: Option<Template>,
    pub(super) output: Option<JsonPointer>,
    pub(super) usage: Option<JsonPointer>,
    pub(super) usage_prompt: Option<JsonPointer>,
    pub(super) usage_output: Option<JsonPointer>,
    pub(super) errors: ErrorPointers,
}

impl CheckedMapping {
    pub(super) fn try_new(mapping: &HttpMapping) -> Result<Self, InvalidMapping> {
        let method = mapping.method.as_deref().unwrap_or("POST");
        let mut headers = HeaderMap::new();
        for (name, value) in &mapping.headers {
            let (name, value) =
                header_of(name, value.expose()).map_err(|rule| InvalidMapping::new("headers", name, rule))?;
            headers.insert(name, value);
        }
        let request = mapping.request.as_deref().map(|source| {
            Template::try_new(source, Filling::Json).map_err(|error| InvalidMapping::new("request", source, error))
        });
        Ok(Self {
            method: checked_method(method)?,
            path: mapping.path.clone(),
            headers,
            secrets: mapping.headers.iter().map(|(_, value)| value.clone()).collect(),
            request: request.transpose()?,
            output: pointer("output", mapping.output.as_deref())?,
            usage: pointer("usage", mapping.usage.as_deref())?,
            usage_prompt: pointer("usage_prompt", mapping.usage_prompt.as_deref())?,
            usage_output: pointer("usage_output", mapping.usage_output.as_deref())?,
            errors: ErrorPointers {
                error_code: pointer("error_code", mapping.error_code.as_deref())?,
                message: pointer("message", mapping.message.as_deref())?,
                retryable: pointer("retryable", mapping.retryable.as_deref())?,
                retry_after: pointer("retry_after", mapping.retry_after.as_deref())?,
            },
        })
    }
}

fn checked_method(text: &str) -> Result<Method, InvalidMapping> {
    match text {
        "POST" => Ok(Method::POST),
        "PUT" => Ok(Method::PUT),
        "PATCH" => Ok(Method::PATCH),
        _ => {
            Err(InvalidMapping::new("method", text, "must be POST, PUT or PATCH: an agent is sent its input as a body"))
        }
    }
}

fn pointer(key: &'static str, text: Option<&str>) -> Result<Option<JsonPointer>, InvalidMapping> {
    let Some(text) = text else { return Ok(None) };
    JsonPointer::try_new(text).map(Some).map_err(|error| InvalidMapping::new(key, text, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused() {
        let text = |text: &str| Some(text.to_owned());
        let none = HttpMapping::default;
        for (mapping, key) in [
            (none(), None),
            (HttpMapping { method: text("PUT"), ..none() }, None),
            (HttpMapping { method: text("GET"), ..none() }, Some("method")),
            (HttpMapping { method: text("post"), ..none() }, Some("method")),
            (HttpMapping { output: text("result"), ..none() }, Some("output")),
            (HttpMapping { output: text(""), ..none() }, None),
            (HttpMapping { usage_prompt: text("/a~"), ..none() }, Some("usage_prompt")),
            (HttpMapping { request: text("{{ input. }}"), ..none() }, Some("request")),
            (HttpMapping { headers: vec![("a b".to_owned(), Secret::new("c"))], ..none() }, Some("headers")),
        ] {
            let refused = CheckedMapping::try_new(&mapping).err();
            assert_eq!(refused.as_ref().map(InvalidMapping::key), key, "{mapping:?}");
        }
    }
}
