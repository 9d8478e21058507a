//! The configuration in force, for operators: its values without secrets, when it was loaded, what became of the last reload; and the
//! order to load it anew. Who loads it is whoever put the service together.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::{Json as Answer, extract::State};
use serde::{Deserialize, Serialize};
use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    model::envelope::ErrorCode,
    serve::{access::caller::Caller, answer::failure::Failure, state::AppState},
    settings::difference::{Change, ConfigRow},
};

/// Orders to reload that may wait; each of them is answered.
const ORDERS_MAX: usize = 16;

/// A configuration, and since when it holds.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct ConfigInForce {
    /// The SHA-256 of all values, in hexadecimal digits.
    pub hash: String,
    /// When it was loaded, in milliseconds since 1970.
    pub loaded_ms: u64,
    /// Every effective value with where it comes from, by key. No secrets.
    #[schema(value_type = Vec<Object>)]
    pub values: Vec<ConfigRow>,
    /// The last reload, if it was refused.
    pub last_refusal: Option<RefusedReload>,
}

/// A reload that changed nothing.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RefusedReload {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Everything that is wrong, a line each with file, line, key and value.
    pub problems: Vec<String>,
}

/// What a reload came to: its changes, or everything that is wrong.
pub type Reloaded = Result<Vec<Change>, Vec<String>>;

/// An order to reload, and where to say what became of it.
pub type Order = oneshot::Sender<Reloaded>;

/// Where the configuration in force is looked up, and a reload is ordered.
#[derive(Debug)]
pub struct ConfigDesk {
    in_force: ArcSwap<ConfigInForce>,
    orders: mpsc::Sender<Order>,
}

impl ConfigDesk {
    /// A desk, and where its orders come out. Where nobody takes them, none is taken in.
    pub fn new(in_force: ConfigInForce) -> (Self, mpsc::Receiver<Order>) {
        let (orders, taken) = mpsc::channel(ORDERS_MAX);
        (Self { in_force: ArcSwap::from_pointee(in_force), orders }, taken)
    }

    /// What holds now.
    pub fn in_force(&self) -> Arc<ConfigInForce> {
        self.in_force.load_full()
    }

    /// From now on this holds.
    pub fn put(&self, in_force: ConfigInForce) {
        self.in_force.store(Arc::new(in_force));
    }
}

/// What changed.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReloadAnswer {
    /// Values that are others now.
    #[schema(value_type = Vec<Object>)]
    pub changes: Vec<Change>,
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(config)).routes(routes!(reload))
}

/// The configuration in force, without secrets.
#[utoipa::path(get, path = "/v1/config", tag = "operator", responses((status = 200, body = ConfigInForce), (status = 403)))]
pub(crate) async fn config(State(state): State<AppState>, caller: Caller) -> Result<Answer<ConfigInForce>, Failure> {
    caller.must_be_operator()?;
    let _place = state.caps.query()?;
    Ok(Answer(ConfigInForce::clone(&state.config.in_force())))
}

/// Loads the configuration anew. If anything is wrong with it, nothing changes and all of it is said.
#[utoipa::path(post, path = "/v1/config/reload", tag = "operator",
    responses((status = 200, body = ReloadAnswer), (status = 400), (status = 403), (status = 404), (status = 503)))]
pub(crate) async fn reload(State(state): State<AppState>, caller: Caller) -> Result<Answer<ReloadAnswer>, Failure> {
    caller.must_be_operator()?;
    let _place = state.caps.query()?;
    let (order, became) = oneshot::channel();
    state.config.orders.try_send(order).map_err(|refused| match refused {
        // Somebody takes orders, and has more than enough of them.
        TrySendError::Full(_) => Failure::busy("orders to reload"),
        TrySendError::Closed(_) => Failure::not_found("reload to be ordered here now"),
    })?;
    match became.await {
        Ok(Ok(changes)) => Ok(Answer(ReloadAnswer { changes })),
        Ok(Err(problems)) => {
            let message = format!("the new configuration is refused, nothing has changed:\n{}", problems.join("\n"));
            Err(Failure::new(ErrorCode::InvalidRequest, message).with_detail("problems", problems))
        }
        Err(_) => Err(Failure::shutting_down()),
    }
}
