//! `/openapi.json`, made of the handlers themselves, and the plain page at `/`.

use axum::{
    Json, Router,
    http::header,
    response::{IntoResponse as _, Response},
    routing::get,
};
use utoipa::openapi::{
    Components, OpenApi,
    security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
};

use super::state::AppState;

const PAGE: &str = include_str!("description.html");

/// The routes that describe all others.
pub fn routes(mut description: OpenApi) -> Router<AppState> {
    description.info = utoipa::openapi::Info::new("Watertight", env!("CARGO_PKG_VERSION"));
    description.info.description = Some(
        "Supervised pipelines of LLM agents. Every error is an envelope: {\"error\": {\"error_code\", \"message\", ...}}.".to_owned(),
    );
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    description.components.get_or_insert_with(Components::new).add_security_scheme("key", bearer);
    description.security = Some(vec![SecurityRequirement::new::<_, [String; 0], String>("key", [])]);
    Router::new().route("/openapi.json", get(move || async move { Json(description) })).route("/", get(page))
}

async fn page() -> Response {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], PAGE).into_response()
}
