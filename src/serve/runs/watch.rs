//! Who may watch a run: its caller with a key, or whoever holds a token that was given out for it. A token reads one run's events and
//! result for a quarter of an hour, and nothing else.

use axum::{
    Json as Answer,
    extract::{FromRequestParts, Path, Query, State},
    http::request::Parts,
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::find::Found;
use crate::serve::{
    access::{
        asker::{Asker, of_tenant},
        caller::Caller,
        watch_token::{TokenInQuery, WatchToken, may_watch},
    },
    answer::{failure::Failure, query::InPath},
    state::{AppState, Running},
};

/// Who watches.
#[derive(Debug, Clone)]
pub enum Watcher {
    /// A caller, who sees the runs of its own tenant.
    Caller(Box<Caller>),
    /// The holder of a token for the run of the path.
    Token(Asker),
}

impl Watcher {
    /// The run, if this watcher may see it.
    pub async fn find(&self, running: &Running, id: &str) -> Result<Found, Failure> {
        match self {
            Self::Caller(caller) => Found::of(running, caller, id).await,
            Self::Token(asker) => {
                let found = Found::with_token(running, id).await?;
                // What its holder does not read is its tenant's.
                asker.is(found.head.owner.tenant.as_deref().map(of_tenant));
                Ok(found)
            }
        }
    }

    /// Who it is where askers are counted apart, once it has found its run.
    pub fn asker(&self) -> Option<String> {
        match self {
            Self::Caller(caller) => caller.asker(),
            Self::Token(asker) => asker.name().map(str::to_owned),
        }
    }

    /// The name of the caller's key.
    pub fn key_name(&self) -> Option<&str> {
        match self {
            Self::Caller(caller) => caller.key_name(),
            Self::Token(_) => None,
        }
    }
}

impl FromRequestParts<AppState> for Watcher {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Failure> {
        let token = Query::<TokenInQuery>::try_from_uri(&parts.uri).unwrap_or_default();
        if let Ok(Path(id)) = Path::<String>::from_request_parts(parts, state).await
            && may_watch(&state.signer, &id, &token, &parts.headers, now_ms())
        {
            return Ok(Self::Token(parts.extensions.get::<Asker>().cloned().unwrap_or_default()));
        }
        Ok(Self::Caller(Box::new(Caller::from_request_parts(parts, state).await?)))
    }
}

fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(watch_token))
}

/// A token that lets a browser follow this one run for a quarter of an hour.
#[utoipa::path(post, path = "/v1/runs/{id}/watch-token", tag = "runs",
    responses((status = 200, body = WatchToken), (status = 404)))]
pub(crate) async fn watch_token(
    State(state): State<AppState>,
    caller: Caller,
    InPath(id): InPath<String>,
) -> Result<Answer<WatchToken>, Failure> {
    let _place = state.caps.query()?;
    let running = state.running().await?;
    Found::of(&running, &caller, &id).await?;
    Ok(Answer(WatchToken::issue(&state.signer, &id, now_ms())))
}
