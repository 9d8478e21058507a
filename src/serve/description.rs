//! `/openapi.json`, made of the handlers themselves, and the plain page at `/`. What holds of every operation is written down here, once:
//! what stands in its path, and how its errors look.

use axum::{
    Json, Router,
    http::header,
    response::{IntoResponse as _, Response},
    routing::get,
};
use utoipa::openapi::{
    Components, ContentBuilder, ObjectBuilder, OpenApi, PathItem, Ref, RefOr, Required, ResponseBuilder, Schema, Type,
    path::{Operation, Parameter, ParameterBuilder, ParameterIn},
    security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
};

use super::state::AppState;
use crate::model::envelope::ErrorCode;

const PAGE: &str = include_str!("description.html");
/// Errors as every surface of ours tells them, and as OpenAI's clients read them.
const ERROR: &str = "Error";
const OPENAI_ERROR: &str = "OpenAiError";
/// The tag of the routes that speak OpenAI's words.
const GATEWAY: &str = "gateway";

/// The routes that describe all others.
pub fn routes(mut description: OpenApi) -> Router<AppState> {
    description.info = utoipa::openapi::Info::new("Watertight", env!("CARGO_PKG_VERSION"));
    description.info.description = Some(
        "Supervised pipelines of LLM agents. Every error is an envelope: {\"error\": {\"error_code\", \"message\", ...}}.".to_owned(),
    );
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    let components = description.components.get_or_insert_with(Components::new);
    components.add_security_scheme("key", bearer);
    components.schemas.insert(ERROR.to_owned(), wire(envelope()).into());
    components.schemas.insert(OPENAI_ERROR.to_owned(), wire(openai_error()).into());
    description.security = Some(vec![SecurityRequirement::new::<_, [String; 0], String>("key", [])]);
    for (path, item) in &mut description.paths.paths {
        for operation in operations(item) {
            name_path_parameters(path, operation);
            tell_errors(operation);
        }
    }
    Router::new().route("/openapi.json", get(move || async move { Json(description) })).route("/", get(page))
}

async fn page() -> Response {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], PAGE).into_response()
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, patch, head, options, trace, .. } = item;
    [get, put, post, delete, patch, head, options, trace].into_iter().flatten()
}

fn name_path_parameters(path: &str, operation: &mut Operation) {
    let parameters = operation.parameters.get_or_insert_with(Vec::new);
    for name in path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
        let is_it = |known: &Parameter| known.name == name && matches!(known.parameter_in, ParameterIn::Path);
        if !parameters.iter().any(|known| matches!(known, RefOr::T(known) if is_it(known))) {
            let text = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).build();
            let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path);
            parameters.push(RefOr::T(parameter.required(Required::True).schema(Some(text)).build()));
        }
    }
}

/// Every operation may fail in ways that are no operation's own: a key, a body, a cap, a node that stops.
fn tell_errors(operation: &mut Operation) {
    let is_gateway = operation.tags.iter().flatten().any(|tag| tag == GATEWAY);
    let schema = Ref::from_schema_name(if is_gateway { OPENAI_ERROR } else { ERROR });
    let content = ContentBuilder::new().schema(Some(schema)).build();
    let responses = &mut operation.responses.responses;
    responses
        .entry("default".to_owned())
        .or_insert_with(|| ResponseBuilder::new().description("an error").build().into());
    for (status, response) in responses {
        if let RefOr::T(response) = response
            && (status == "default" || status.starts_with(['4', '5']))
            && response.content.is_empty()
        {
            response.content.insert("application/json".to_owned(), RefOr::T(content.clone()));
        }
    }
}

/// `{"error": {...}}`.
fn wire(inner: Schema) -> Schema {
    ObjectBuilder::new().property("error", inner).required("error").build().into()
}

fn envelope() -> Schema {
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let codes = ErrorCode::ALL.iter().map(|code| code.as_str());
    ObjectBuilder::new()
        .property("error_code", text().enum_values(Some(codes)).description(Some("stable")))
        .property("message", text().description(Some("for developers")))
        .property("user_message", text().description(Some("for a screen")))
        .property("agent", text())
        .property("http_status", ObjectBuilder::new().schema_type(Type::Integer))
        .property("retryable", ObjectBuilder::new().schema_type(Type::Boolean))
        .property("retry_after", ObjectBuilder::new().schema_type(Type::Number).description(Some("seconds")))
        .property("run_id", text())
        .property("trace_id", text().description(Some("for finding it in traces and logs")))
        .property("details", ObjectBuilder::new())
        .required("error_code")
        .required("message")
        .required("user_message")
        .required("http_status")
        .required("retryable")
        .build()
        .into()
}

fn openai_error() -> Schema {
    let text = || ObjectBuilder::new().schema_type(Type::String);
    ObjectBuilder::new()
        .property("message", text())
        .property("type", text())
        .property("watertight", envelope())
        .required("message")
        .required("type")
        .required("watertight")
        .build()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::envelope::Envelope;

    /// The schema and the envelope are written apart; they name the same keys.
    #[test]
    fn the_schema_is_the_envelopes() {
        let mut full = Envelope::new(ErrorCode::AgentError, "x").with_agent("a").with_retry_after(1.0);
        (full.run_id, full.trace_id) = (Some("r".into()), Some("t".into()));
        let full = serde_json::to_value(full.with_detail("k", 1)).unwrap();
        let schema = serde_json::to_value(envelope()).unwrap();
        let names = |of: &serde_json::Value| -> std::collections::BTreeSet<String> {
            of.as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(names(&schema["properties"]), names(&full));
    }

    #[test]
    fn what_stands_in_a_path_is_named() {
        let mut operation = Operation::default();
        name_path_parameters("/v1/{a}/x/{b}", &mut operation);
        name_path_parameters("/v1/{a}/x/{b}", &mut operation);
        let parameters = serde_json::to_value(operation.parameters).unwrap();
        let names: Vec<_> = parameters.as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
