//! The gateway's routes in one router, to be plugged into the service's.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::{extract::Request, middleware, routing::any};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    models::{self, Gateway},
    pass, pass_description, relay_routes, shape,
};
use crate::serve::state::AppState;

/// Where the present gateway is: each request goes by the one that it finds.
#[derive(Debug, Clone, Default)]
pub struct GatewayDoor(Arc<ArcSwap<Gateway>>);

impl From<Gateway> for GatewayDoor {
    fn from(gateway: Gateway) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(gateway)))
    }
}

impl GatewayDoor {
    /// Requests from now on go by this one.
    pub fn replace(&self, gateway: Gateway) {
        self.0.store(Arc::new(gateway));
    }
}

/// The routes. Errors of those in OpenAI's shape are written in its words.
pub fn routes(gateway: impl Into<GatewayDoor>) -> OpenApiRouter<AppState> {
    let door: GatewayDoor = gateway.into();
    let gateway = middleware::map_request(move |mut request: Request| {
        request.extensions_mut().insert(door.0.load_full());
        std::future::ready(request)
    });
    let relayed = OpenApiRouter::new()
        .routes(routes!(relay_routes::chat))
        .routes(routes!(relay_routes::embeddings))
        .routes(routes!(models::list_models))
        .routes(routes!(models::show_model))
        .layer((gateway.clone(), middleware::map_response(shape::mark)));
    let passed = OpenApiRouter::with_openapi(pass_description::description())
        // The root of a service has two names, and neither of them is a path behind it.
        .route("/agents/{name}", any(pass::pass))
        .route("/agents/{name}/", any(pass::pass))
        .route("/agents/{name}/{*path}", any(pass::pass))
        .layer(gateway);
    relayed.merge(passed)
}
