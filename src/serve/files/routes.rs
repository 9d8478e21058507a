//! The routes of files: `POST /v1/files`, `GET` and `DELETE /v1/files/{id}`. Somebody else's file is not there.

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::form::{FormFile, read_form};
use crate::{
    journal::{
        files::{store::FileDeletion, table::StoredFile},
        query::TenantScope,
    },
    model::envelope::ErrorCode,
    serve::{
        access::{caller::Caller, signature::Purpose},
        answer::{
            body::next_piece,
            failure::Failure,
            query::{Asked, InPath},
        },
        arriving::Arriving,
        listener::BodyBytesMax,
        state::AppState,
    },
};

/// The name of a file that is sent raw, percent-encoded where it is not ASCII.
pub const FILE_NAME: &str = "x-watertight-file-name";
/// Bytes that are read from the disk at once.
const PIECE_BYTES: usize = 64 * 1024;

/// A file as it is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FileView {
    /// Its id: what an input names.
    pub file_id: String,
    /// Its name, made fit to be shown.
    pub name: String,
    /// What its bytes are, by themselves.
    #[serde(rename = "type")]
    pub media_type: String,
    /// Their number.
    pub bytes: u64,
    /// Unix milliseconds.
    pub created_ms: u64,
}

/// What became of an upload: the first file, and all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Uploaded {
    /// The first file.
    #[serde(flatten)]
    pub first: FileView,
    /// All files, in the order in which they were sent.
    pub data: Vec<FileView>,
}

/// Files as a form sends them.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only described: a form is read piece by piece")]
struct FileForm {
    /// Under this or any other name, as often as there are files.
    #[schema(value_type = String, format = Binary)]
    file: Vec<u8>,
}

/// A signature instead of a key: what agents are given.
#[derive(Debug, Default, Deserialize)]
struct SignedQuery {
    signature: Option<String>,
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(upload)).routes(routes!(download, remove))
}

impl From<&StoredFile> for FileView {
    fn from(file: &StoredFile) -> Self {
        Self {
            file_id: file.id.clone(),
            name: file.name.clone(),
            media_type: file.media_type.clone(),
            bytes: file.bytes,
            created_ms: file.created_ms,
        }
    }
}

/// Takes files in: a multipart form, or the bytes of one file as they are.
#[utoipa::path(post, path = "/v1/files", tag = "files",
    request_body(content((FileForm = "multipart/form-data"), (Vec<u8> = "application/octet-stream")),
        description = "one part a file; or the bytes themselves under any other type"),
    responses((status = 201, body = Uploaded), (status = 400, description = "broken form"), (status = 413, description = "too large")))]
async fn upload(
    State(state): State<AppState>,
    caller: Caller,
    _arriving: Arriving,
    request: Request,
) -> Result<Response, Failure> {
    let _place = state.caps.upload(caller.key_name())?;
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let files = if kind.to_ascii_lowercase().starts_with("multipart/") {
        let form = read_form(&state, &caller, request).await?;
        form.files.into_iter().map(|FormFile { file, .. }| file).collect()
    } else {
        vec![take_raw(&state, &caller, request).await?]
    };
    let data: Vec<FileView> = files.iter().map(FileView::from).collect();
    let Some(first) = data.first().cloned() else { return Err(Failure::invalid("the form holds no file")) };
    Ok((StatusCode::CREATED, axum::Json(Uploaded { first, data })).into_response())
}

/// Files have bounds of their own, in the store: that of other bodies does not hold for them. In turn they must come faster.
pub(super) fn let_files_in(state: &AppState, request: &Request) {
    if let Some(bytes_max) = request.extensions().get::<BodyBytesMax>() {
        bytes_max.raise(u64::MAX);
        bytes_max.hurry(state.settings.upload_bytes_per_second_min);
    }
}

async fn take_raw(state: &AppState, caller: &Caller, request: Request) -> Result<StoredFile, Failure> {
    let_files_in(state, &request);
    let store = state.files().await?;
    let name = request.headers().get(FILE_NAME).map(|name| decoded(name.as_bytes())).unwrap_or_default();
    let mut upload = store.upload(caller.tenant.clone(), &name).await?;
    let mut pieces = request.into_body().into_data_stream();
    let mut any = false;
    while let Some(piece) = next_piece(&mut pieces).await? {
        any |= !piece.is_empty();
        upload.write(&piece).await?;
    }
    if !any {
        return Err(Failure::invalid("the body is empty; a file's bytes are wanted"));
    }
    Ok(upload.finish().await?)
}

/// A header's text, percent-decoded; what is broken stays as it is.
fn decoded(text: &[u8]) -> String {
    let hex = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let pair = after.first().zip(after.get(1)).and_then(|(high, low)| Some(hex(*high)? << 4 | hex(*low)?));
        if let Some(byte) = pair.filter(|_| *first == b'%') {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Gives a file's bytes to its tenant, or to whoever holds a signed URL.
#[utoipa::path(get, path = "/v1/files/{id}", tag = "files", params(("id" = String, Path), ("signature" = Option<String>, Query)), security((), ("key" = [])),
    responses((status = 200, description = "the bytes", body = Vec<u8>, content_type = "*/*"), (status = 404, description = "no such file here")))]
async fn download(
    State(state): State<AppState>,
    InPath(id): InPath<String>,
    Asked(signed): Asked<SignedQuery>,
    request: Request,
) -> Result<Response, Failure> {
    let _place = state.caps.query()?;
    let scope = match &signed.signature {
        Some(signature) if state.signer.allows(Purpose::ReadFile, &id, signature, unix_ms()) => TenantScope::All,
        Some(_) => return Err(Failure::new(ErrorCode::Forbidden, "this URL is not good, or no longer")),
        None => {
            let (mut parts, _) = request.into_parts();
            let caller = <Caller as axum::extract::FromRequestParts<AppState>>::from_request_parts(&mut parts, &state);
            caller.await?.scope()
        }
    };
    let store = state.files().await?;
    let Some((file, bytes)) = store.open(scope, &id).await? else {
        return Err(Failure::not_found(format_args!("file {id:?}")));
    };
    let pieces = stream::try_unfold(bytes, |mut bytes| async move {
        let mut piece = vec![0; PIECE_BYTES];
        let read = bytes.read(&mut piece).await?;
        piece.truncate(read);
        Ok::<_, std::io::Error>((read > 0).then_some((axum::body::Bytes::from(piece), bytes)))
    });
    let mut answer = Response::new(Body::from_stream(pieces));
    head_of(answer.headers_mut(), &file);
    Ok(answer)
}

/// A browser shows none of it as a page of ours, whatever the bytes say.
fn head_of(headers: &mut HeaderMap, file: &StoredFile) {
    let mut set = |name: header::HeaderName, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    };
    set(header::CONTENT_TYPE, file.media_type.clone());
    set(header::CONTENT_LENGTH, file.bytes.to_string());
    set(header::CONTENT_DISPOSITION, format!("attachment; filename*=UTF-8''{}", encoded(&file.name)));
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned());
    set(header::CACHE_CONTROL, "private, max-age=300".to_owned());
}

/// As RFC 8187 wants names in headers.
fn encoded(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Deletes a file that no run names.
#[utoipa::path(delete, path = "/v1/files/{id}", tag = "files", params(("id" = String, Path)),
    responses((status = 204), (status = 404, description = "no such file here"), (status = 409, description = "a run names it")))]
async fn remove(
    State(state): State<AppState>,
    caller: Caller,
    InPath(id): InPath<String>,
) -> Result<StatusCode, Failure> {
    let _place = state.caps.query()?;
    match state.files().await?.delete(caller.scope(), &id).await? {
        FileDeletion::Done => Ok(StatusCode::NO_CONTENT),
        FileDeletion::NotFound => Err(Failure::not_found(format_args!("file {id:?}"))),
        FileDeletion::InUse => {
            let message = format!(
                "file {id:?} is named by a run: it goes by itself when the last run that names it is deleted (DELETE /v1/runs/{{id}})"
            );
            Err(Failure::new(ErrorCode::Conflict, message))
        }
    }
}

pub(super) fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_headers() {
        for name in ["a.jpg", "사진 1.jpg", "50%.txt", "a\"b;c.txt", "%zz"] {
            assert_eq!(decoded(encoded(name).as_bytes()), name);
        }
        assert_eq!(decoded(b"%zz%2"), "%zz%2");
        assert!(encoded("a\r\nset-cookie: x").bytes().all(|byte| byte.is_ascii_graphic()));
    }
}
