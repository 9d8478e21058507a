//! The agent `photos` without a model: facts of every photo, in the order of time, and the stops along the way.
//! Keeps every photo it was given; reads nothing but the files that the input names.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    one_photo::{Photo, Places, read_photo, written},
    stops::stops,
};
use crate::{
    agents::{
        input::{check_photos, null_as_default, read, refused},
        shapes::BY_EMBEDDED,
    },
    model::{file_id::is_file_id, reply::AttemptFailure},
};

#[derive(Debug, Deserialize)]
struct Input {
    #[serde(default, deserialize_with = "null_as_default")]
    photos: Vec<PhotoFile>,
    #[serde(default, deserialize_with = "null_as_default")]
    places: Places,
}

#[derive(Debug, Deserialize)]
struct PhotoFile {
    name: String,
    path: PathBuf,
    file_id: String,
}

/// So many files are named when none can be used.
const NAMED_MAX: usize = 5;

fn none_usable(photos: &[Photo]) -> String {
    let named = photos
        .iter()
        .take(NAMED_MAX)
        .map(|photo| format!("{}: {}", photo.facts.name, photo.facts.problem.as_deref().unwrap_or("cannot be used")));
    format!("none of the {} files is a picture: {}", photos.len(), named.collect::<Vec<_>>().join("; "))
}

/// Reads the photos of `{"photos": [{"name", "path", "file_id"}], "places": "rounded" | "never"}`.
pub(in crate::agents) fn compute(input: &Value, left: &CancellationToken) -> Result<Value, AttemptFailure> {
    let input: Input = read("photos", input)?;
    check_photos("photos", input.photos.len())?;
    // Whoever hands files on sees to it that no other path stands beside an id of this form; one alone anybody may have written down.
    if let Some(at) = input.photos.iter().position(|photo| !is_file_id(&photo.file_id)) {
        return Err(refused("photos", &format!("photos[{at}].file_id is no file's: no path is read without one")));
    }
    let mut photos = Vec::with_capacity(input.photos.len());
    for file in &input.photos {
        if left.is_cancelled() {
            return Err(refused("photos", "the caller left while the files were being read"));
        }
        photos.push(read_photo(&file.name, &file.path, input.places));
    }
    if !photos.is_empty() && !photos.iter().any(|photo| photo.facts.usable) {
        // One bad file among others is kept with its problem; files of which none is a picture are a wrong input.
        return Err(refused("photos", &none_usable(&photos)));
    }
    Ok(told(photos, input.places))
}

fn told(mut photos: Vec<Photo>, places: Places) -> Value {
    // A stable sort: photos of one second, and those without a time at the end, stay as they came.
    photos.sort_by_key(|photo| (photo.taken.is_none(), photo.taken));
    let stops = stops(&photos);
    let moments: Vec<_> = photos.iter().filter_map(|photo| photo.taken).collect();
    let (first, last) = (moments.first().copied(), moments.last().copied());
    let span_minutes = first.zip(last).map(|(first, last)| last.duration_since(first).as_mins());
    let way: Vec<u64> = stops.iter().filter_map(|stop| stop.metres_from_previous).collect();
    let distance_metres = (!way.is_empty()).then(|| way.iter().sum::<u64>());
    json!({
        "photos": photos.iter().map(|photo| &photo.facts).collect::<Vec<_>>(),
        "stops": stops,
        "first": first.map(written),
        "last": last.map(written),
        "span_minutes": span_minutes,
        "distance_metres": distance_metres,
        "places": places,
        "by": BY_EMBEDDED,
        "model": Value::Null,
    })
}
