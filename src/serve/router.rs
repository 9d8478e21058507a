//! All routes in one router, with the layers that every request passes. What is not there is answered with an envelope too.

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request},
    http::{Method, StatusCode},
    middleware,
    response::{IntoResponse as _, Response},
};
use utoipa_axum::router::OpenApiRouter;

use super::{
    agents,
    answer::{dress::dress, failure::Failure, outgoing::count_outgoing},
    cors::cors,
    deferred, description, files, health, metrics, operator,
    reserve::keep_reserve,
    runs,
    state::AppState,
};
use crate::model::envelope::ErrorCode;

/// The service's router. `plugged` are the routes of surfaces that bring their own: the gateway.
pub fn router(state: AppState, plugged: OpenApiRouter<AppState>) -> Router {
    // On the heap: each is some kilobytes.
    let own = vec![
        health::routes(),
        metrics::routes(),
        runs::accept::routes(),
        runs::linked::routes(),
        runs::list::routes(),
        runs::find::routes(),
        runs::events::routes(),
        runs::delete::routes(),
        runs::captures::routes(),
        runs::watch::routes(),
        agents::list::routes(),
        agents::call::routes(),
        agents::acts::routes(),
        operator::callers::routes(),
        deferred::routes::routes(),
        operator::dead_letters::routes(),
        operator::usage::routes(),
        operator::config::routes(),
        files::routes::routes(),
    ];
    let all = own.into_iter().fold(plugged, OpenApiRouter::merge);
    let (routes, described) = all.split_for_parts();
    let routes = routes
        .merge(description::routes(described))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        // In one layer, the first outermost: each layer of a router costs every request two boxes.
        .layer((
            middleware::from_fn_with_state(state.clone(), dress),
            middleware::from_fn(keep_reserve),
            middleware::from_fn_with_state(state.clone(), count_outgoing),
            // Bodies are bounded by the listener and by whoever reads them.
            DefaultBodyLimit::disable(),
        ));
    // Outermost: a browser may read errors too.
    let routes = match cors(&state.settings.cors_origins) {
        Some(cors) => routes.layer(cors),
        None => routes,
    };
    routes.with_state(state)
}

async fn no_such_path(request: Request) -> Failure {
    let path: String = request.uri().path().chars().take(200).collect();
    Failure::not_found(format_args!("path {path}"))
}

async fn no_such_method(request: Request) -> Response {
    if request.method() == Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    let message = format!("this path is not asked with {}", request.method());
    Failure::with_status(ErrorCode::InvalidRequest, StatusCode::METHOD_NOT_ALLOWED, message).into_response()
}
