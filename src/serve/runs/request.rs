//! What a request for a run says, whether it comes as JSON or as a form with files. Starts nothing, and does not look whether the
//! workflow wants what it says.

use axum::{
    extract::Request,
    http::{HeaderMap, header},
};
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use crate::serve::{
    access::{caller::Caller, random::hex},
    answer::{
        body::{expect_json, parse, read_whole},
        failure::Failure,
    },
    files::form::{Form, as_run_request, forget, read_form},
    state::AppState,
};

/// A run that is asked for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunBody {
    /// The workflow; may be left out where there is only one.
    pub workflow: Option<String>,
    /// Its inputs by name. Files are `[{"file_id": "..."}]`.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub input: Map<String, Value>,
    /// Milliseconds after which its end is of no use.
    pub deadline_ms: Option<u64>,
    /// The class of priority.
    pub priority: Option<String>,
    /// The feature.
    pub feature: Option<String>,
    /// The tenant; only with a key that speaks for others.
    pub tenant: Option<String>,
    /// The caller's own user; only with a key that speaks for others.
    pub user: Option<String>,
}

/// The same as a form: `workflow`, `feature`, `priority`, `deadline_ms`, inputs by name, files under their input's name; or all but the
/// files as JSON in `request`.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "describes a form that is read part by part")]
pub struct RunForm {
    /// The workflow.
    workflow: Option<String>,
    /// The JSON body of a request without files.
    request: Option<String>,
}

/// A request for a run, read.
#[derive(Debug)]
pub(super) struct RunRequest {
    /// What it says.
    pub body: RunBody,
    /// Of what it says: the same request has the same again.
    pub hash: String,
    /// The form that it came as; its files are in the store.
    pub form: Option<Form>,
}

impl RunRequest {
    /// Reads a request of this caller. Where it cannot be read, none of its files stays.
    pub(super) async fn read(state: &AppState, caller: &Caller, request: Request) -> Result<Self, Failure> {
        if is_form(request.headers()) {
            return Self::of_form(state, caller, request).await;
        }
        expect_json(request.headers())?;
        let whole = read_whole(state, request.into_body(), state.settings.body_bytes_max).await?;
        Ok(Self { body: parse(&whole.bytes)?, hash: hex(&Sha256::digest(&whole.bytes)), form: None })
    }

    async fn of_form(state: &AppState, caller: &Caller, request: Request) -> Result<Self, Failure> {
        let _place = state.caps.upload()?;
        let form = read_form(state, caller, request).await?;
        match body_of(&form, caller) {
            Ok(body) => Ok(Self { body, hash: hash_of(&form), form: Some(form) }),
            Err(failure) => {
                forget(&state.files().await?, caller, &form).await;
                Err(failure)
            }
        }
    }
}

fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.to_ascii_lowercase().starts_with("multipart/form-data")
}

fn body_of(form: &Form, caller: &Caller) -> Result<RunBody, Failure> {
    let body: RunBody = serde_json::from_value(Value::Object(as_run_request(form)?))
        .map_err(|error| Failure::invalid(format!("the form does not fit: {error}")))?;
    if body.tenant.is_some() && body.tenant != caller.tenant {
        return Err(Failure::invalid("the files of a form are its sender's: name the tenant by x-watertight-tenant"));
    }
    Ok(body)
}

/// A form's boundary, and the ids of its files, are new each time; what it holds is not.
fn hash_of(form: &Form) -> String {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    add(&(form.fields.len() as u64).to_be_bytes());
    for (name, text) in &form.fields {
        add(name.as_bytes());
        add(text.as_bytes());
    }
    for sent in &form.files {
        add(sent.part.as_bytes());
        add(sent.file.name.as_bytes());
        add(&sent.file.hash);
    }
    hex(&hash.finalize())
}
