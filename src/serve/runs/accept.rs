//! Asking for a run. It is answered for only when it is written down.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    find::{record_of, told},
    input,
    schema::Run,
};
use crate::{
    journal::query::TenantScope,
    model::{envelope::Envelope, exact_json, hex::hex},
    runtime::{
        accept::{Accepted, NewRun, key_was_used},
        journal::{Acceptance, Idempotency},
    },
    serve::{
        access::caller::{Caller, Named},
        answer::{
            body::{expect_json, parse, read_whole},
            failure::Failure,
            large,
            outgoing::REPLAYED,
            query::idempotency_key,
        },
        arriving::Arriving,
        caps::RunPlace,
        files::form::{Form, FormFile, as_run_request, forget, read_form},
        state::{AppState, Running},
    },
    settings::general::PlaceSharing,
    workflow::checked::Workflow,
};

/// A run that is asked for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunBody {
    /// The workflow; may be left out where there is only one.
    pub workflow: Option<String>,
    /// Its inputs by name. Files are `[{"file_id": "..."}]`.
    #[serde(default, deserialize_with = "exact_json::object")]
    #[schema(value_type = Object)]
    pub input: Map<String, Value>,
    /// Milliseconds after which its end is of no use.
    #[schema(minimum = 1, format = "uint64")]
    pub deadline_ms: Option<u64>,
    /// The class of priority.
    pub priority: Option<String>,
    /// The feature.
    pub feature: Option<String>,
    /// The tenant; only with a key that speaks for others.
    pub tenant: Option<String>,
    /// The caller's own user; only with a key that speaks for others.
    #[schema(min_length = 1, max_length = 256)]
    pub user: Option<String>,
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(start))
}

/// Starts a run, by JSON or by a multipart form that brings its files. It goes on whoever watches it. With `Idempotency-Key` a repeated request is answered with the run of the first one.
#[utoipa::path(post, path = "/v1/runs", tag = "runs",
    params(("idempotency-key" = Option<String>, Header, min_length = 1, max_length = 255)),
    request_body(content((RunBody = "application/json"), (Object = "multipart/form-data")),
        description = "as a form: each part with a file name is a file for the input of that name, `request` is the rest as JSON, and any other part an input of that name"),
    responses((status = 202, body = Run), (status = 400), (status = 404), (status = 422), (status = 503)))]
pub(crate) async fn start(
    State(state): State<AppState>,
    caller: Caller,
    _arriving: Arriving,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Failure> {
    let key = idempotency_key(&headers)?;
    if is_form(&headers) {
        return start_by_form(&state, caller, key, request).await;
    }
    expect_json(&headers)?;
    let whole = read_whole(&state, request.into_body(), state.settings.body_bytes_max).await?;
    let bytes = whole.bytes.clone();
    let read = move || Ok((hex(&Sha256::digest(&bytes)), parse::<RunBody>(&bytes)?));
    let (hash, body) = large::work(&state, whole.bytes.len(), read).await?;
    drop(whole);
    let running = state.running().await?;
    let idempotency = key.map(|key| Idempotency { key, request_hash: hash });
    let accepted = accept(&state, &running, caller, body, idempotency).await?;
    answer(&state, &running, accepted).await
}

/// The same with files in it. Whatever keeps the run from being started, files that came with it do not stay.
async fn start_by_form(
    state: &AppState,
    caller: Caller,
    key: Option<String>,
    request: Request,
) -> Result<Response, Failure> {
    let _place = state.caps.upload(caller.key_name())?;
    let form = Arc::new(read_form(state, &caller, request).await?);
    let running = state.running().await?;
    let read = Arc::clone(&form);
    let read = large::work(state, form.text_bytes(), move || Ok((hash_of(&read), body_of(&read)?))).await;
    let accepted = match read {
        Ok((request_hash, body)) => {
            let idempotency = key.map(|key| Idempotency { key, request_hash });
            accept(state, &running, caller.clone(), body, idempotency).await
        }
        Err(failure) => Err(failure),
    };
    if accepted.as_ref().map_or(true, |accepted| accepted.replayed) {
        forget(&running.files, &caller, &form).await;
    }
    answer(state, &running, accepted?).await
}

async fn accept(
    state: &AppState,
    running: &Running,
    caller: Caller,
    mut body: RunBody,
    idempotency: Option<Idempotency>,
) -> Result<Accepted, Failure> {
    let RunBody { tenant, feature, priority, user, .. } = &mut body;
    let named = Named { tenant: tenant.take(), feature: feature.take(), priority: priority.take(), user: user.take() };
    let caller = caller.naming(named)?;
    // Before anything that may refuse it: whoever lost the answer learns in any case that the run goes on.
    if let Some(accepted) = earlier(running, caller.tenant.as_deref(), idempotency.as_ref()).await? {
        return Ok(accepted);
    }
    let mut new = new_run(state, &caller, body, idempotency)?;
    // The files are those of the run's tenant, whoever starts it: its agents are given no others.
    let scope = TenantScope::One(new.owner.tenant.clone());
    input::resolve_files(&running.files, scope, state.limits, &mut new.input).await?;
    let bytes = input::bytes_of(&new.input);
    let place = state.caps.run(new.owner.tenant.as_deref(), bytes)?;
    let runtime = Arc::clone(&running.runtime);
    taken_on(state, (place, bytes), async move { runtime.accept_run(new).await }).await
}

/// The run of an earlier request under the same key, if there was one, however full the service is.
pub(super) async fn earlier(
    running: &Running,
    tenant: Option<&str>,
    promise: Option<&Idempotency>,
) -> Result<Option<Accepted>, Failure> {
    let Some(promise) = promise else { return Ok(None) };
    match running.journal.earlier(tenant.map(str::to_owned), promise.clone()).await? {
        Some(Acceptance::Replayed { run_id }) => Ok(Some(running.runtime.accepted_before(run_id))),
        Some(Acceptance::Conflict { .. }) => Err(key_was_used().into()),
        Some(Acceptance::New) | None => Ok(None),
    }
}

/// Waits until a run is accepted. It holds its place until it is over, whoever watches it, and whether or not whoever asked for it is still
/// there when it is accepted. Those that go on after a restart were let in before.
pub(super) async fn taken_on(
    state: &AppState,
    (place, bytes): (RunPlace, usize),
    accepting: impl Future<Output = Result<Accepted, Box<Envelope>>> + Send + 'static,
) -> Result<Accepted, Failure> {
    let state = state.clone();
    let accepting = tokio::spawn(async move {
        // What is laid out and packed for the journal grows with the input.
        let accepted = large::begin(&state, bytes, accepting).await.and_then(|accepted| Ok(accepted?));
        if let Ok(Accepted { handle: Some(handle), replayed: false, .. }) = &accepted {
            let handle = handle.clone();
            tokio::spawn(async move {
                handle.finished().await;
                drop(place);
            });
        }
        accepted
    });
    accepting.await.map_err(Failure::internal)?
}

fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.to_ascii_lowercase().starts_with(b"multipart/form-data")
}

fn body_of(form: &Form) -> Result<RunBody, Failure> {
    let request = Value::Object(as_run_request(form)?);
    serde_json::from_value(request).map_err(|error| Failure::invalid(format!("the form does not fit: {error}")))
}

/// Of what a form says: ids of files differ each time that the same form is sent, their bytes do not.
fn hash_of(form: &Form) -> String {
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    for (name, text) in &form.fields {
        add(name.as_bytes());
        add(text.as_bytes());
    }
    for FormFile { part, file } in &form.files {
        add(part.as_bytes());
        add(file.name.as_bytes());
        add(&file.hash);
    }
    hex(&hash.finalize())
}

fn new_run(
    state: &AppState,
    caller: &Caller,
    body: RunBody,
    idempotency: Option<Idempotency>,
) -> Result<NewRun, Failure> {
    let RunBody { workflow, mut input, deadline_ms, .. } = body;
    let workflow = workflow_of(state, workflow.as_deref())?;
    input::check(&workflow, &input, state.limits)?;
    if let Some(rule) = PlaceSharing::misspelt(&workflow, &input) {
        return Err(Failure::invalid(rule));
    }
    state.places.bind(&workflow, &mut input);
    let deadline = match deadline_ms {
        Some(0) => return Err(Failure::invalid("deadline_ms must be at least 1")),
        Some(milliseconds) => Some(Duration::from_millis(milliseconds)),
        None => caller.deadline,
    };
    let deadline = deadline.into_iter().chain(state.run_deadline).min();
    Ok(NewRun { workflow, input, deadline, owner: caller.owner(), idempotency })
}

/// The workflow of this name, or the only one.
fn workflow_of(state: &AppState, name: Option<&str>) -> Result<Arc<Workflow>, Failure> {
    let known = || state.workflows.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    if let Some(name) = name {
        state
            .workflows
            .get(name)
            .cloned()
            .ok_or_else(|| Failure::not_found(format_args!("workflow {name:?}; there are {}", known())))
    } else {
        let mut all = state.workflows.values();
        match (all.next(), all.next()) {
            (Some(only), None) => Ok(Arc::clone(only)),
            (None, _) => Err(Failure::not_found("workflow here")),
            _ => Err(Failure::invalid(format!("workflow must be one of {}", known()))),
        }
    }
}

/// 202 with the run as it stands, and where it is to be found.
pub(super) async fn answer(state: &AppState, running: &Running, accepted: Accepted) -> Result<Response, Failure> {
    let record = record_of(state, running, (accepted.handle.as_ref(), &accepted.run_id)).await?;
    let mut answer = told(state, StatusCode::ACCEPTED, record, None).await?;
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/runs/{}", accepted.run_id)) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    if accepted.replayed {
        answer.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(answer)
}
