//! A run's inputs as a request gives them, checked against the workflow before anything is written down. Files are named by id only: a
//! path that a request could name would let its sender read this machine.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::{
    journal::{
        files::{store::FileStore, table::StoredFile},
        query::TenantScope,
    },
    model::{
        file_id::{FILE_ID, is_file_id},
        weight,
    },
    serve::{
        answer::failure::Failure,
        files::input::{Named, as_value, change_files},
    },
    settings::general::Limits,
    workflow::{
        checked::Workflow,
        definition::{InputKind, Presence},
    },
};

/// Puts what is known of each file in its place. A file that is not there, or is somebody else's, is none.
pub async fn resolve_files(
    store: &FileStore,
    scope: TenantScope,
    limits: Limits,
    input: &mut Map<String, Value>,
) -> Result<(), Failure> {
    let mut whole = Value::Object(std::mem::take(input));
    let named = Named::within(&whole);
    let found = files_of(store, &scope, limits, &named).await?;
    change_files(&mut whole, &mut |id, file| {
        if let Some(Value::Object(known)) = found.get(id).map(as_value) {
            file.extend(known);
        }
    });
    if let Value::Object(filled) = whole {
        *input = filled;
    }
    Ok(())
}

/// The files that an input names: all of them are there, and not more of them than may be, each as often as it stands there.
pub async fn files_of(
    store: &FileStore,
    scope: &TenantScope,
    limits: Limits,
    named: &Named,
) -> Result<HashMap<String, StoredFile>, Failure> {
    if named.ids.is_empty() {
        return Ok(HashMap::new());
    }
    let max = limits.input_files_max as usize;
    if named.all() > max {
        return Err(Failure::invalid(format!("input: {} files; limits.input_files_max is {max}", named.all())));
    }
    let found = store.files(scope, &named.ids).await?;
    match named.ids.iter().find(|id| !found.contains_key(*id)) {
        Some(missing) => Err(no_file(missing)),
        None => Ok(found),
    }
}

fn no_file(id: &str) -> Failure {
    Failure::not_found(format_args!("file {id:?}"))
}

/// About the memory that an input takes while its run goes on.
pub fn bytes_of(input: &Map<String, Value>) -> usize {
    weight::of_fields(input)
}

/// The same for one value.
pub fn bytes_of_value(value: &Value) -> usize {
    weight::of_value(value)
}

/// Checks inputs: names, kinds, sizes. Whether files are there is asked later.
pub fn check(workflow: &Workflow, input: &Map<String, Value>, limits: Limits) -> Result<(), Failure> {
    let known: Vec<&str> = workflow.inputs().map(|(name, _)| name).collect();
    if let Some(unknown) = input.keys().find(|name| !known.contains(&name.as_str())) {
        let list = known.join(", ");
        return Err(Failure::invalid(format!("input.{unknown}: the workflow has no such input; it has {list}")));
    }
    for (name, wanted) in workflow.inputs() {
        match input.get(name) {
            None | Some(Value::Null) if wanted.presence == Presence::Required => {
                return Err(Failure::invalid(format!("input.{name} is missing")));
            }
            None | Some(Value::Null) => {}
            Some(value) => check_one(name, wanted.kind, value, limits)?,
        }
    }
    Ok(())
}

fn check_one(name: &str, kind: InputKind, value: &Value, limits: Limits) -> Result<(), Failure> {
    match (kind, value) {
        (InputKind::Text, Value::String(text)) => {
            let max = limits.input_text_bytes_max;
            if text.len() as u64 > max {
                let message = format!("input.{name} has {} bytes; limits.input_text_bytes_max is {max}", text.len());
                return Err(Failure::invalid(message));
            }
            Ok(())
        }
        (InputKind::Text, _) => Err(Failure::invalid(format!("input.{name} must be a text"))),
        (InputKind::Files, Value::Array(files)) => {
            let max = limits.input_files_max as usize;
            if files.len() > max {
                let message = format!("input.{name}: {} files; limits.input_files_max is {max}", files.len());
                return Err(Failure::invalid(message));
            }
            files.iter().enumerate().try_for_each(|(index, file)| check_file(&format!("input.{name}[{index}]"), file))
        }
        (InputKind::Files, _) => Err(Failure::invalid(format!("input.{name} must be a list of files"))),
        (InputKind::Json, _) => Ok(()),
    }
}

fn check_file(place: &str, file: &Value) -> Result<(), Failure> {
    let only_known = |file: &Map<String, Value>| file.keys().all(|key| key == FILE_ID || key == "name");
    let object = file.as_object().filter(|file| only_known(file));
    match object.and_then(|file| file.get(FILE_ID)).and_then(Value::as_str) {
        Some(id) if is_file_id(id) => Ok(()),
        // There is no file of such a name.
        Some(id) => Err(no_file(id)),
        None => {
            Err(Failure::invalid(format!("{place} must be {{\"{FILE_ID}\": \"...\"}}, of a file that was sent before")))
        }
    }
}
