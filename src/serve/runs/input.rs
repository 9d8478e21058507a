//! A run's inputs as a request gives them, checked against the workflow before anything is written down. Files are named by id only: a
//! path that a request could name would let its sender read this machine.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::{
    journal::{files::store::FileStore, query::TenantScope},
    model::weight,
    serve::{
        answer::failure::Failure,
        files::input::{FILE_ID, as_value, id_of, ids_within, with_files},
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
    let whole = Value::Object(std::mem::take(input));
    let ids = ids_within(&whole);
    let max = limits.input_files_max as usize;
    if ids.len() > max {
        return Err(Failure::invalid(format!("input: {} files; limits.input_files_max is {max}", ids.len())));
    }
    let mut found = HashMap::new();
    for id in ids {
        let file = store.file(scope.clone(), &id).await?;
        let file = file.ok_or_else(|| Failure::not_found(format_args!("file {id:?}")))?;
        found.insert(id, as_value(&file));
    }
    let filled = with_files(&whole, &|file| {
        if let Some(Value::Object(known)) = id_of(file).and_then(|id| found.get(id)) {
            file.clone_from(known);
        }
    });
    if let Value::Object(filled) = filled {
        *input = filled;
    }
    Ok(())
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
    match file.as_object() {
        Some(object) if object.get(FILE_ID).is_some_and(Value::is_string) && only_known(object) => Ok(()),
        _ => {
            Err(Failure::invalid(format!("{place} must be {{\"{FILE_ID}\": \"...\"}}, of a file that was sent before")))
        }
    }
}
