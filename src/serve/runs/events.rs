//! `GET /v1/runs/{id}/events`: a run's events as they come, from any place on, over reconnects and restarts.

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};
use futures_util::stream;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{follow::Follower, screen::event_in, watch::Watcher};
use crate::{
    model::{event::Event, language::Language},
    runtime::run_handle::RunHandle,
    serve::{
        answer::{
            failure::Failure,
            outgoing::{UNCOUNTED_BYTES_MAX, held},
            query::{Asked, InPath},
            sse,
            trace::Screen,
        },
        caps::StreamPlace,
        state::AppState,
    },
};

/// What a browser sends when it connects again.
const LAST_EVENT_ID: &str = "last-event-id";
/// How long a reader waits before it connects again.
const RETRY: &str = "retry: 2000\n\n";

/// From where on.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Events after the one with this id; all without. `Last-Event-ID` wins.
    #[param(format = "uint64")]
    pub after: Option<u64>,
    /// A watch token, instead of a key: browsers' event sources send no headers of their own.
    pub token: Option<String>,
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(events))
}

/// The events of a run as a stream that ends after `run.finished`. 204 if all were had, 400 if more were had than there are: of
/// another run, or of this one before its journal was put back from a backup. A browser then stops asking. Where it ends because this
/// node stops, an event `node.stopping` is the last; it has no id, for it is none of the run's own.
#[utoipa::path(get, path = "/v1/runs/{id}/events", tag = "runs", params(EventsQuery),
    responses((status = 200, content_type = "text/event-stream"), (status = 204), (status = 400), (status = 404), (status = 503)))]
pub(crate) async fn events(
    State(state): State<AppState>,
    watcher: Watcher,
    InPath(id): InPath<String>,
    Asked(query): Asked<EventsQuery>,
    Screen(language): Screen,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let after = after_of(&headers)?.or(query.after).unwrap_or(0);
    let running = state.running_at_leisure().await?;
    let found = {
        let _place = state.caps.opening().await?;
        watcher.find(&running, &id).await?
    };
    let handle = found.handle.clone();
    let place = state.caps.stream(&id, watcher.key_name())?;
    let is_over = found.head.summary.status.is_terminal();
    let mut follower = Follower::new(running, id, found.handle, after);
    let first = if is_over { follower.next().await? } else { Vec::new() };
    if first.is_empty() && after > 0 {
        let shown = handle.as_ref().map_or(0, RunHandle::last_event_id);
        if after > shown {
            // A run that somebody else has taken over has gone on without this handle.
            refuse_unknown(after, shown.max(follower.last_kept().await?), is_over)?;
        }
    }
    if is_over && first.is_empty() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let closing = state.ending.closing_streams.clone();
    let asker = watcher.asker();
    let beginning = [RETRY.into(), room_for(&state, asker.as_deref(), frames(first, language))?];
    let watching = Watching { follower, language, closing, state, asker, place };
    let rest = stream::unfold(Some(watching), Watching::next);
    Ok(sse::answer(futures_util::StreamExt::chain(stream::iter(beginning), rest)))
}

fn after_of(headers: &HeaderMap) -> Result<Option<u64>, Failure> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.map(Some).ok_or_else(|| Failure::invalid("Last-Event-ID must be the id of an event of this run"))
}

/// No event goes out before it is written down, so nobody can have had one of this run that is not there.
fn refuse_unknown(after: u64, last: u64, is_over: bool) -> Result<(), Failure> {
    // Of a run that is over and whose events were cleared away nobody knows how many there were.
    let is_cleared = is_over && last == 0;
    if after <= last || is_cleared {
        return Ok(());
    }
    let message = format!(
        "event {after} is none of this run, whose last one is {last}: the id is another run's, or the journal was put back from a backup; \
         ask without one for all events"
    );
    Err(Failure::invalid(message).with_detail("after", after).with_detail("last", last))
}

fn frames(events: Vec<Event>, language: Language) -> String {
    let shown = events.into_iter().map(|event| event_in(event, language));
    shown.map(|event| sse::numbered(event.id, event.kind.as_str(), &event)).collect()
}

/// A page that holds its room among answers that are not read yet, if it is larger than a connection's own buffers.
fn room_for(state: &AppState, asker: Option<&str>, page: String) -> Result<Bytes, Failure> {
    if page.len() <= 2 * UNCOUNTED_BYTES_MAX {
        return Ok(page.into());
    }
    let place = state.caps.answers.question(asker, page.len())?;
    Ok(held(page.into(), Arc::new(place)))
}

/// One reader of a run's events.
struct Watching {
    follower: Follower,
    language: Language,
    closing: CancellationToken,
    state: AppState,
    asker: Option<String>,
    #[allow(dead_code, reason = "held for its drop")]
    place: StreamPlace,
}

impl Watching {
    async fn next(held: Option<Self>) -> Option<(Bytes, Option<Self>)> {
        let mut watching = held?;
        let page = tokio::select! {
            biased;
            () = watching.closing.cancelled() => {
                return Some((sse::node_stopping(watching.follower.run_id()).into(), None));
            }
            page = tokio::time::timeout(watching.state.settings.ping, watching.follower.next()) => page,
        };
        let page = match page {
            Err(_) => return Some((sse::PING.into(), Some(watching))),
            Ok(Ok(events)) if events.is_empty() => return None,
            Ok(page) => page.map(|events| frames(events, watching.language)),
        };
        match page.and_then(|page| room_for(&watching.state, watching.asker.as_deref(), page)) {
            Ok(piece) => Some((piece, Some(watching))),
            // The reader connects again from where it is.
            Err(failure) => {
                tracing::debug!(error = failure.envelope.message, "a stream of events is cut");
                Some((sse::CUT.into(), None))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_not_there_was_had_by_nobody() {
        for (after, last, is_over, is_refused) in [
            (1, 0, false, true),
            (5, 5, false, false),
            (6, 5, false, true),
            (u64::MAX, 5, true, true),
            (5, 5, true, false),
            (3, 0, true, false),
        ] {
            let refused = refuse_unknown(after, last, is_over).err();
            let told = refused.map(|failure| {
                let details = failure.envelope.details;
                (failure.envelope.http_status, details.get("after").cloned(), details.get("last").cloned())
            });
            let want = is_refused.then(|| (400, Some(after.into()), Some(last.into())));
            assert_eq!(told, want, "{after} {last} {is_over}");
        }
    }
}
