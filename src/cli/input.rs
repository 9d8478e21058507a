//! A run's inputs from a folder: `notes.md` is the text input `notes`, `photos/` is the files input `photos`, and files that nothing
//! else claims belong to the one files input that is still without any. What is read is bounded; what is given twice is an error.

use std::{
    cmp::Ordering,
    collections::BTreeSet,
    io::Read as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::exit::Stop;
use crate::{
    model::{
        exact_json,
        file_id::{FILE_ID, FILE_ID_PREFIX, FILE_PATH},
        hex::hex,
    },
    settings::general::{Limits, PlaceSharing},
    workflow::{
        checked::Workflow,
        definition::{InputKind, Presence},
    },
};

/// A text file among files brings its text along up to this size.
const FILE_TEXT_BYTES_MAX: u64 = 256 * 1024;
/// Names of files that are text.
const TEXT_EXTENSIONS: [&str; 3] = ["md", "txt", "markdown"];

/// Reads the inputs of `workflow` from `folder` (if there is one) and from `name=value` pairs, which win.
pub(super) fn read(
    workflow: &Workflow,
    folder: Option<&Path>,
    given: &[String],
    limits: Limits,
    places: PlaceSharing,
) -> Result<Map<String, Value>, Stop> {
    let mut input = read_given(workflow, given, limits)?;
    if let Some(folder) = folder {
        read_folder(workflow, folder, limits, &mut input)?;
    }
    if let Some(rule) = PlaceSharing::misspelt(workflow, &input) {
        return Err(Stop::Usage(rule));
    }
    places.bind(workflow, &mut input);
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    let no_files = |name: &str, kind| kind == InputKind::Files && input.get(name).is_some_and(is_empty);
    let missing: Vec<(&str, InputKind)> = workflow
        .inputs()
        .filter(|(_, wanted)| wanted.presence == Presence::Required)
        .filter(|(name, wanted)| !input.contains_key(*name) || no_files(name, wanted.kind))
        .map(|(name, wanted)| (name, wanted.kind))
        .collect();
    if missing.is_empty() { Ok(input) } else { Err(Stop::Usage(say_missing(workflow, folder, &missing))) }
}

/// What is missing, one line each, and where it can be put.
fn say_missing(workflow: &Workflow, folder: Option<&Path>, missing: &[(&str, InputKind)]) -> String {
    let place = folder.map_or_else(|| "no input folder".to_owned(), |folder| folder.display().to_string());
    let below = folder.map_or_else(|| "input".to_owned(), |folder| folder.display().to_string());
    let line = |(name, kind): &(&str, InputKind)| {
        let (put, given) = match kind {
            InputKind::Files => (format!("files into {below}/{name}/"), "FOLDER"),
            InputKind::Text => (format!("a text into {below}/{name}.md"), "TEXT (or @FILE)"),
            InputKind::Json => (format!("a value into {below}/{name}.json"), "JSON (or @FILE)"),
        };
        let workflow = workflow.name();
        format!(
            "{place}: input {name} of workflow {workflow} is missing: put {put}, or give it with --with {name}={given}"
        )
    };
    missing.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn read_given(workflow: &Workflow, given: &[String], limits: Limits) -> Result<Map<String, Value>, Stop> {
    let mut input = Map::new();
    for pair in given {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(Stop::Usage(format!("--with {pair}: must be NAME=VALUE")));
        };
        let Some((_, wanted)) = workflow.inputs().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = workflow.inputs().map(|(name, _)| name).collect();
            return Err(Stop::Usage(format!(
                "--with {pair}: the workflow has no input {name}; it has {}",
                known.join(", ")
            )));
        };
        let value = match (wanted.kind, value.strip_prefix('@')) {
            (InputKind::Text, None) => json!(value),
            (InputKind::Text, Some(path)) => json!(read_text(Path::new(path), limits)?),
            (InputKind::Json, None) => parse_json(value, &format!("--with {name}"))?,
            (InputKind::Json, Some(path)) => parse_json(&read_text(Path::new(path), limits)?, path)?,
            (InputKind::Files, path) => {
                let path = PathBuf::from(path.unwrap_or(value));
                let paths = match path.metadata() {
                    Ok(found) if found.is_dir() => list(&path)?,
                    Ok(_) => vec![path],
                    Err(error) => return Err(Stop::Usage(format!("--with {name}={}: {error}", path.display()))),
                };
                files(&paths, limits)?
            }
        };
        if input.insert(name.to_owned(), value).is_some() {
            return Err(Stop::Usage(format!("--with {name}: given twice")));
        }
    }
    Ok(input)
}

fn read_folder(workflow: &Workflow, folder: &Path, limits: Limits, input: &mut Map<String, Value>) -> Result<(), Stop> {
    if !folder.is_dir() {
        return Err(Stop::Usage(format!("{} is no folder", folder.display())));
    }
    let entries = list(folder)?;
    let mut claimed: BTreeSet<&PathBuf> = BTreeSet::new();
    for (name, wanted) in workflow.inputs() {
        let of_name: Vec<&PathBuf> = entries.iter().filter(|path| stem(path) == name).collect();
        let found = match wanted.kind {
            InputKind::Files => of_name.iter().find(|path| path.is_dir()).copied(),
            InputKind::Text => one_file(&of_name, &TEXT_EXTENSIONS)?,
            InputKind::Json => one_file(&of_name, &["json"])?,
        };
        let Some(path) = found else { continue };
        claimed.insert(path);
        if input.contains_key(name) {
            continue;
        }
        let value = match wanted.kind {
            InputKind::Files => files(&list(path)?, limits)?,
            InputKind::Text => json!(read_text(path, limits)?),
            InputKind::Json => parse_json(&read_text(path, limits)?, &path.display().to_string())?,
        };
        input.insert(name.to_owned(), value);
    }
    let left: Vec<PathBuf> = entries.iter().filter(|path| path.is_file() && !claimed.contains(path)).cloned().collect();
    let mut open = workflow.inputs().filter(|(name, wanted)| {
        wanted.kind == InputKind::Files && wanted.presence == Presence::Required && !input.contains_key(*name)
    });
    if let (Some((name, _)), None) = (open.next(), open.next())
        && !left.is_empty()
    {
        let files = files(&left, limits)?;
        input.insert(name.to_owned(), files);
    }
    Ok(())
}

/// The one file of a name; two of them (`notes.md` and `notes.txt`) are a question that only the user can answer.
fn one_file<'a>(of_name: &[&'a PathBuf], extensions: &[&str]) -> Result<Option<&'a PathBuf>, Stop> {
    let fits = |path: &Path| {
        path.is_file()
            && path
                .extension()
                .and_then(|e| e.to_str())
                .is_some_and(|e| extensions.contains(&e.to_ascii_lowercase().as_str()))
    };
    let found: Vec<&'a PathBuf> = of_name.iter().copied().filter(|path| fits(path)).collect();
    match found[..] {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        [one, other, ..] => {
            Err(Stop::Usage(format!("{} and {} are the same input; keep one", one.display(), other.display())))
        }
    }
}

/// The files and folders of a folder that are not hidden, by name, numbers in their order.
fn list(folder: &Path) -> Result<Vec<PathBuf>, Stop> {
    let unreadable = |error: std::io::Error| Stop::Usage(format!("{}: {error}", folder.display()));
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort_by(|a, b| by_number(&a.to_string_lossy(), &b.to_string_lossy()));
    Ok(paths)
}

/// `photo2` before `photo10`: rows of digits compare as numbers, everything else by its characters.
fn by_number(one: &str, other: &str) -> Ordering {
    let digits = |text: &str| text.len() - text.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    let (mut one_left, mut other_left) = (one, other);
    loop {
        let (one_digits, other_digits) = (digits(one_left), digits(other_left));
        let order = if one_digits > 0 && other_digits > 0 {
            let (one_number, one_rest) = one_left.split_at(one_digits);
            let (other_number, other_rest) = other_left.split_at(other_digits);
            (one_left, other_left) = (one_rest, other_rest);
            let value = |number: &str| number.trim_start_matches('0').to_owned();
            let (one_value, other_value) = (value(one_number), value(other_number));
            one_value.len().cmp(&other_value.len()).then(one_value.cmp(&other_value))
        } else {
            let (mut one_letters, mut other_letters) = (one_left.chars(), other_left.chars());
            match (one_letters.next(), other_letters.next()) {
                // Equal but for leading zeros: the plain order decides, so that the order is total.
                (None, None) => return one.cmp(other),
                (one_letter, other_letter) => {
                    (one_left, other_left) = (one_letters.as_str(), other_letters.as_str());
                    one_letter.cmp(&other_letter)
                }
            }
        };
        if order.is_ne() {
            return order;
        }
    }
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
}

fn files(paths: &[PathBuf], limits: Limits) -> Result<Value, Stop> {
    let paths: Vec<&PathBuf> = paths.iter().filter(|path| path.is_file()).collect();
    if paths.len() > limits.input_files_max as usize {
        return Err(Stop::Usage(format!(
            "{} files; limits.input_files_max is {}",
            paths.len(),
            limits.input_files_max
        )));
    }
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        let shown = path.display().to_string();
        let absolute = std::path::absolute(path).map_err(|error| Stop::Usage(format!("{shown}: {error}")))?;
        let bytes = std::fs::metadata(path).map_err(|error| Stop::Usage(format!("{shown}: {error}")))?.len();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // A file over the limit is the agent's to report: one such photo must not lose the others.
        let mut file =
            json!({ FILE_ID: file_id(&absolute), "name": name, FILE_PATH: absolute.to_string_lossy(), "bytes": bytes });
        let is_text = path
            .extension()
            .and_then(|e| e.to_str())
            .is_some_and(|e| TEXT_EXTENSIONS.contains(&e.to_ascii_lowercase().as_str()));
        if is_text
            && bytes <= FILE_TEXT_BYTES_MAX
            && let Ok(text) = std::fs::read_to_string(path)
        {
            file["text"] = json!(text);
        }
        files.push(file);
    }
    Ok(Value::Array(files))
}

/// An id of the same form as a service's: agents read no path that stands without one.
fn file_id(path: &Path) -> String {
    let hash = Sha256::digest(path.as_os_str().as_encoded_bytes());
    format!("{FILE_ID_PREFIX}{}", hex(&hash[..16]))
}

fn read_text(path: &Path, limits: Limits) -> Result<String, Stop> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let max = limits.input_text_bytes_max;
    let file = std::fs::File::open(path).map_err(|error| Stop::Usage(format!("{shown}: {error}")))?;
    file.take(max + 1).read_to_end(&mut bytes).map_err(|error| Stop::Usage(format!("{shown}: {error}")))?;
    if bytes.len() as u64 > max {
        return Err(Stop::Usage(format!("{shown}: larger than limits.input_text_bytes_max = {max}")));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        Stop::Usage(format!("{shown}: is not UTF-8 text (byte {})", error.utf8_error().valid_up_to()))
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Reads a JSON value that was found at `place`.
pub(super) fn parse_json(text: &str, place: &str) -> Result<Value, Stop> {
    exact_json::read(text).map_err(|wrong| {
        let line = wrong.line().map(|line| format!(":{line}")).unwrap_or_default();
        Stop::Usage(format!("{place}{line}: {wrong}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_as_it_was_written_or_refused_with_its_place() {
        assert_eq!(parse_json("{\"a\":[1]}\n", "x").unwrap(), json!({ "a": [1] }));
        for (text, want) in [
            ("{\n\"a\": {\"b\":1,\n\"b\":2}}", "x.json:3: the member \"b\" stands twice"),
            ("[\n1,]", "x.json:2: trailing comma"),
            ("{\"a\":\n-0}", "x.json: a: -0 would be changed"),
        ] {
            let Stop::Usage(said) = parse_json(text, "x.json").unwrap_err() else { panic!() };
            assert!(said.starts_with(want), "{said}");
        }
    }

    #[test]
    fn rows_of_digits_compare_as_numbers() {
        for (sorted, why) in [
            (vec!["photo1", "photo2", "photo10"], "numbers"),
            (vec!["a", "a1", "a1b", "a2", "b"], "a beginning comes first"),
            (vec!["01", "1", "02", "2"], "leading zeros"),
            (vec!["1-2", "1-10", "2-1"], "several rows"),
            (vec!["사진 2", "사진 10"], "any script"),
            (vec!["9", "99999999999999999999999", "100000000000000000000000"], "longer than any integer"),
        ] {
            for one in 0..sorted.len() {
                for other in 0..sorted.len() {
                    assert_eq!(by_number(sorted[one], sorted[other]), one.cmp(&other), "{why}: {one} {other}");
                }
            }
        }
    }
}
