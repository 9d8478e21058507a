//! Reading multipart forms: files go to the store piece by piece as they are sent, fields are kept within bounds. A form that breaks off
//! leaves no file behind that a run could name.

use std::sync::Arc;

use axum::{
    extract::{FromRequest as _, Multipart, Request, multipart::Field},
    http::HeaderMap,
};
use serde_json::{Map, Value, json};

use super::{
    form_pieces::{HeaderGauge, PART_HEADER_BYTES_MAX},
    routes::let_files_in,
};
use crate::{
    journal::files::{store::FileStore, table::StoredFile},
    model::{exact_json, file_id::FILE_ID},
    serve::{
        access::caller::{Caller, Named},
        answer::{
            body::{check_values, parse, too_large},
            failure::Failure,
            large,
        },
        caps::BodyRoom,
        state::AppState,
    },
};

/// Parts of one form.
pub const PARTS_MAX: usize = 2_000;
/// The part of a form that holds the rest of a run's request as JSON.
pub const REQUEST_PART: &str = "request";
/// The longest name of a part, in bytes.
const PART_NAME_BYTES_MAX: usize = 64;

/// A file of a form, and the part that it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormFile {
    /// The part's name.
    pub part: String,
    /// The file.
    pub file: StoredFile,
}

/// What a form held.
#[derive(Debug, Default)]
pub struct Form {
    /// Fields that are no files, by name.
    pub fields: Vec<(String, String)>,
    /// Files, in their order.
    pub files: Vec<FormFile>,
    /// What the fields hold of the memory for bodies, for as long as they are there.
    pub room: Option<BodyRoom>,
    /// The caller whose files they are, where `request` names another tenant.
    owner: Option<Caller>,
    /// Bytes of all fields together.
    text_bytes: u64,
}

impl Form {
    /// Bytes of all its fields together.
    pub fn text_bytes(&self) -> usize {
        usize::try_from(self.text_bytes).unwrap_or(usize::MAX)
    }
}

/// Reads a form of this caller.
pub async fn read_form(state: &AppState, caller: &Caller, request: Request) -> Result<Form, Failure> {
    // Each part has a bound of its own, its header has one, and so has the number of parts.
    let_files_in(state, &request);
    let store = state.files().await?;
    let gauge = HeaderGauge::default();
    let invalid = |error: String| {
        if gauge.is_beyond() {
            return long_header();
        }
        Failure::invalid(format!("the form cannot be read: {error}"))
    };
    let request = request.map(|body| gauge.measure(body));
    let mut parts = Multipart::from_request(request, state).await.map_err(|error| invalid(error.body_text()))?;
    let mut form = Form::default();
    let result = loop {
        gauge.open();
        let field = match parts.next_field().await {
            Err(error) => break Err(invalid(error.body_text())),
            Ok(None) => break Ok(()),
            Ok(Some(field)) => field,
        };
        gauge.close();
        // One that came in one piece was never open.
        if header_bytes(field.headers()) > PART_HEADER_BYTES_MAX {
            break Err(long_header());
        }
        if form.fields.len() + form.files.len() >= PARTS_MAX {
            break Err(Failure::invalid(format!("the form has more than {PARTS_MAX} parts")));
        }
        if let Err(failure) = read_part(state, caller, &store, &mut form, field).await {
            break Err(failure);
        }
    };
    if let Err(failure) = result {
        forget(&store, caller, &form).await;
        return Err(failure);
    }
    Ok(form)
}

fn long_header() -> Failure {
    Failure::invalid(format!("the header of a part of the form is longer than {PART_HEADER_BYTES_MAX} bytes"))
}

/// How long a header is, but for blanks that say nothing.
fn header_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + ": \r\n".len() + value.len()).sum()
}

/// Takes back the files of a form that came to nothing.
pub async fn forget(store: &Arc<FileStore>, caller: &Caller, form: &Form) {
    let caller = form.owner.as_ref().unwrap_or(caller);
    for FormFile { file, .. } in &form.files {
        // What cannot be deleted now is swept up later: no run names it.
        let _ = store.delete(caller.scope(), &file.id).await;
    }
}

async fn read_part(
    state: &AppState,
    caller: &Caller,
    store: &Arc<FileStore>,
    form: &mut Form,
    field: Field<'_>,
) -> Result<(), Failure> {
    let part = field.name().unwrap_or_default().to_owned();
    if part.is_empty() || part.len() > PART_NAME_BYTES_MAX {
        return Err(Failure::invalid(format!("a part of the form needs a name of 1 to {PART_NAME_BYTES_MAX} bytes")));
    }
    if let Some(name) = field.file_name().map(str::to_owned) {
        if form.files.len() >= state.limits.input_files_max as usize {
            let max = state.limits.input_files_max;
            return Err(Failure::invalid(format!("more files than limits.input_files_max = {max}")));
        }
        let owner = form.owner.as_ref().unwrap_or(caller);
        if let Some(file) = take_file(owner, store, &name, field).await? {
            form.files.push(FormFile { part, file });
        }
    } else {
        if part == REQUEST_PART && form.fields.iter().any(|(known, _)| *known == part) {
            return Err(Failure::invalid(format!("{part} is given twice")));
        }
        let mut text = take_text(state, form, &part, field).await?;
        if part == REQUEST_PART {
            let read = move || Ok((tenant_named(&text)?, text));
            let (tenant, read) = large::work(state, form.text_bytes(), read).await?;
            (text, form.owner) = (read, owner_named(caller, form, tenant)?);
        }
        form.fields.push((part, text));
    }
    Ok(())
}

/// The tenant that `request` names, if it does.
fn tenant_named(request: &str) -> Result<Option<String>, Failure> {
    #[derive(serde::Deserialize)]
    struct Request {
        tenant: Option<Value>,
    }
    // What else it says, and whether it fits, is looked at once all of the form is there.
    let request: Request = parse(request.as_bytes())?;
    Ok(request.tenant.as_ref().and_then(Value::as_str).map(str::to_owned))
}

/// Whose the form's files are, where `request` names another tenant than the headers do. It must come before them: they are stored as
/// they come.
fn owner_named(caller: &Caller, form: &Form, tenant: Option<String>) -> Result<Option<Caller>, Failure> {
    let Some(tenant) = tenant else { return Ok(None) };
    let owner = caller.clone().naming(Named { tenant: Some(tenant.clone()), ..Named::default() })?;
    if owner.tenant == caller.tenant {
        return Ok(None);
    }
    if !form.files.is_empty() {
        let message = format!(
            "part {REQUEST_PART} names tenant {tenant:?} after files of the form were stored: send it before them, or name the tenant in a header"
        );
        return Err(Failure::invalid(message));
    }
    Ok(Some(owner))
}

/// `None` for a part without a name and without a byte: what a browser sends for a field in which nobody chose a file.
async fn take_file(
    caller: &Caller,
    store: &Arc<FileStore>,
    name: &str,
    mut field: Field<'_>,
) -> Result<Option<StoredFile>, Failure> {
    let mut next = next_chunk(&mut field).await?;
    while matches!(&next, Some(piece) if piece.is_empty()) {
        next = next_chunk(&mut field).await?;
    }
    if name.is_empty() && next.is_none() {
        return Ok(None);
    }
    let mut upload = store.upload(caller.tenant.clone(), name).await?;
    while let Some(piece) = next {
        upload.write(&piece).await?;
        next = next_chunk(&mut field).await?;
    }
    Ok(Some(upload.finish().await?))
}

/// The fields of a form are together no more than a body without a form could be, and each of them no more than its input may be.
async fn take_text(state: &AppState, form: &mut Form, part: &str, mut field: Field<'_>) -> Result<String, Failure> {
    let body_max = state.settings.body_bytes_max;
    let max = if part == REQUEST_PART { body_max } else { state.limits.input_text_bytes_max };
    let mut bytes = Vec::new();
    while let Some(piece) = next_chunk(&mut field).await? {
        if (bytes.len() + piece.len()) as u64 > max {
            return Err(too_large(max).with_detail("part", part));
        }
        form.text_bytes += piece.len() as u64;
        if form.text_bytes > body_max {
            return Err(too_large(body_max).with_detail("part", part));
        }
        form.room.get_or_insert_with(|| state.caps.body()).grow(piece.len())?;
        bytes.extend_from_slice(&piece);
    }
    let fault = |error: std::string::FromUtf8Error| {
        Failure::invalid(format!("part {part:?} is not UTF-8 (byte {})", error.utf8_error().valid_up_to()))
    };
    String::from_utf8(bytes).map_err(fault)
}

async fn next_chunk(field: &mut Field<'_>) -> Result<Option<axum::body::Bytes>, Failure> {
    field.chunk().await.map_err(|error| Failure::invalid(format!("the form breaks off: {}", error.body_text())))
}

/// A form that asks for a run, as the JSON that would ask for the same: `request` holds the whole or a part of it, `input` the inputs or
/// some of them, other fields are inputs of their name (`workflow`, `feature`, `priority` and `deadline_ms` beside them), files are lists
/// of their part's name.
pub fn as_run_request(form: &Form) -> Result<Map<String, Value>, Failure> {
    // All parts together are bounded as a body is, before any is laid out.
    let is_json = |name: &str| matches!(name, REQUEST_PART | "input" | "deadline_ms");
    check_values("form", form.fields.iter().filter(|(name, _)| is_json(name)).map(|(_, text)| text.as_str()))?;
    let mut request = match form.fields.iter().find(|(name, _)| name == REQUEST_PART) {
        Some((_, text)) => members_of(text)?,
        None => Map::new(),
    };
    let mut input = match request.remove("input") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(input)) => input,
        Some(_) => return Err(Failure::invalid("input must be an object")),
    };
    for (name, text) in form.fields.iter().filter(|(name, _)| name != REQUEST_PART) {
        let (place, value) = match name.as_str() {
            "workflow" | "feature" | "priority" => (&mut request, Value::from(text.as_str())),
            "deadline_ms" => {
                let wrong = |error| Failure::invalid(format!("deadline_ms: {error}"));
                (&mut request, exact_json::read(text).map_err(wrong)?)
            }
            "input" => {
                for (name, value) in members_of(text)? {
                    if input.insert(name.clone(), value).is_some() {
                        return Err(Failure::invalid(format!("{name} is given twice")));
                    }
                }
                continue;
            }
            _ => (&mut input, Value::from(text.as_str())),
        };
        if place.insert(name.clone(), value).is_some() {
            return Err(Failure::invalid(format!("{name} is given twice")));
        }
    }
    for FormFile { part, file } in &form.files {
        let list = input.entry(part.clone()).or_insert_with(|| Value::Array(Vec::new()));
        let Value::Array(list) = list else {
            return Err(Failure::invalid(format!("{part} is given as text and as files")));
        };
        // The rest of what is known of it is put there where all files of an input are looked up.
        list.push(json!({ FILE_ID: file.id }));
    }
    request.insert("input".to_owned(), Value::Object(input));
    Ok(request)
}

/// The members of a part that is an object.
fn members_of(text: &str) -> Result<Map<String, Value>, Failure> {
    #[derive(serde::Deserialize)]
    struct Members(#[serde(deserialize_with = "exact_json::object")] Map<String, Value>);
    parse(text.as_bytes()).map(|Members(members)| members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::answer::body::VALUES_MAX;

    fn file(part: &str, id: &str) -> FormFile {
        let file = StoredFile {
            id: id.to_owned(),
            tenant: None,
            name: format!("{id}.jpg"),
            media_type: "image/jpeg".to_owned(),
            bytes: 3,
            hash: [0; 32],
            created_ms: 0,
            runs: 0,
        };
        FormFile { part: part.to_owned(), file }
    }

    fn form(fields: &[(&str, &str)], files: &[FormFile]) -> Form {
        let fields = fields.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Form { fields, files: files.to_vec(), ..Form::default() }
    }

    #[test]
    fn values_of_all_parts_count_together() {
        let many = format!("{{\"a\":[{}]}}", "0,".repeat(VALUES_MAX / 2) + "0");
        assert!(as_run_request(&form(&[("input", &many)], &[])).is_ok());
        let refused = as_run_request(&form(&[("input", &many), ("input", &many)], &[])).unwrap_err();
        assert!(refused.envelope.message.contains("values"), "{}", refused.envelope.message);
        let text = ",".repeat(VALUES_MAX);
        assert!(as_run_request(&form(&[("notes", &text)], &[])).is_ok(), "a text is one value");
    }

    #[test]
    fn a_form_asks_for_the_same_as_json() {
        let photo = |id: &str| json!({ "file_id": id });
        for (fields, files, want) in [
            (
                vec![("notes", "바다")],
                vec![file("photos", "a"), file("photos", "b")],
                json!({ "input": { "notes": "바다", "photos": [photo("a"), photo("b")] } }),
            ),
            (
                vec![("request", r#"{"workflow":"w","input":{"notes":"x"}}"#), ("deadline_ms", "5000")],
                vec![file("photos", "a")],
                json!({ "workflow": "w", "deadline_ms": 5000, "input": { "notes": "x", "photos": [photo("a")] } }),
            ),
            (vec![("workflow", "w")], vec![], json!({ "workflow": "w", "input": {} })),
            (
                vec![("workflow", "w"), ("input", r#"{"notes":"x"}"#)],
                vec![file("photos", "a")],
                json!({ "workflow": "w", "input": { "notes": "x", "photos": [photo("a")] } }),
            ),
        ] {
            assert_eq!(Value::Object(as_run_request(&form(&fields, &files)).unwrap()), want);
        }
        for (fields, files, want) in [
            (vec![("notes", "x"), ("notes", "y")], vec![], "notes is given twice"),
            (vec![("photos", "x")], vec![file("photos", "a")], "photos is given as text and as files"),
            (vec![("request", "[]")], vec![], "the body begins with '['; a JSON object is wanted"),
            (vec![("input", "[]")], vec![], "the body begins with '['; a JSON object is wanted"),
            (
                vec![("request", r#"{"input":{"a":{"b":1,"b":1}}}"#)],
                vec![],
                r#"the body does not fit: the member "b" stands"#,
            ),
            (vec![("input", r#"{"a":[{"b":1,"b":1}]}"#)], vec![], r#"the body does not fit: the member "b" stands"#),
            (vec![("input", r#"{"a":[-0]}"#)], vec![], "a[0]: -0 would be changed"),
            (vec![("deadline_ms", "-0")], vec![], "deadline_ms: the number: -0 would be changed"),
            (vec![("deadline_ms", "soon")], vec![], "deadline_ms: expected value at line 1 column 1"),
            (vec![("request", r#"{"input":1}"#)], vec![], "input must be an object"),
        ] {
            let failure = as_run_request(&form(&fields, &files)).unwrap_err();
            assert!(failure.envelope.message.starts_with(want), "{}", failure.envelope.message);
        }
    }
}
