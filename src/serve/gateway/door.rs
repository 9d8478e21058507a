//! The gateway's routes in one router, to be plugged into the service's.

use std::sync::Arc;

use axum::{Extension, middleware, routing::any};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    models::{self, Gateway},
    pass, relay_routes, shape,
};
use crate::serve::state::AppState;

/// The routes. Errors of those in OpenAI's shape are written in its words.
pub fn routes(gateway: Gateway) -> OpenApiRouter<AppState> {
    let gateway = Extension(Arc::new(gateway));
    let relayed = OpenApiRouter::new()
        .routes(routes!(relay_routes::chat))
        .routes(routes!(relay_routes::embeddings))
        .routes(routes!(models::list_models))
        .routes(routes!(models::show_model))
        .layer(middleware::map_response(shape::mark))
        .layer(gateway.clone());
    let passed = OpenApiRouter::new().route("/agents/{name}/{*path}", any(pass::pass)).layer(gateway);
    relayed.merge(passed)
}
