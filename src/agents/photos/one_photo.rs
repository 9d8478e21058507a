//! The facts of one photo file. Reads a bounded head of it, keeps every file in the list whatever it holds, and says in words
//! what could not be learnt. A place is read only where places are allowed.

use std::{
    fs::File,
    io::{Cursor, Read},
    path::Path,
};

use exif::{Exif, In, Tag, Value};
use jiff::civil::DateTime;

use super::image_size::{Kind, kind_of};
use crate::agents::shapes::PhotoFacts;

/// Larger files are not opened: no camera makes such photos, and a post cannot show them.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// EXIF stands within these first bytes (a JPEG's in its first 64 KiB, a phone's HEIF within its few megabytes).
const HEAD_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// A block of EXIF larger than this is not looked into: one JPEG segment cannot hold more than 64 KiB, and values of a
/// hostile block grow in memory when they are read.
const EXIF_BYTES_MAX: usize = 128 * 1024;
/// Longer names of cameras are cut.
const CAMERA_CHARS_MAX: usize = 64;
/// A degree has two decimals in everything that leaves this file: about 1 km.
const PLACE_STEPS_PER_DEGREE: f64 = 100.0;

/// Whether places may be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Places {
    /// Rounded to about 1 km.
    #[default]
    Rounded,
    /// Not at all: positions are not even read.
    Never,
}

/// An exact position; never leaves this process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Position {
    /// Degrees north, -90 to 90.
    pub(super) lat: f64,
    /// Degrees east, -180 to 180.
    pub(super) lon: f64,
}

/// A photo with what is known inside only.
#[derive(Debug, Clone)]
pub(super) struct Photo {
    /// What is told.
    pub(super) facts: PhotoFacts,
    /// When it was taken.
    pub(super) taken: Option<DateTime>,
    /// Where exactly.
    pub(super) position: Option<Position>,
}

/// Reads one photo.
pub(super) fn read_photo(name: &str, path: &Path, places: Places) -> Photo {
    let mut photo =
        Photo { facts: PhotoFacts { name: name.to_owned(), ..PhotoFacts::default() }, taken: None, position: None };
    let head = match read_head(path) {
        Ok((head, bytes)) => {
            photo.facts.bytes = Some(bytes);
            head
        }
        Err((problem, bytes)) => {
            photo.facts.bytes = bytes;
            photo.facts.problem = Some(problem);
            return photo;
        }
    };
    read_bytes(&mut photo, head, places);
    photo
}

/// Fills in what the head of the file says.
fn read_bytes(photo: &mut Photo, head: Vec<u8>, places: Places) {
    match kind_of(&head) {
        Kind::Sized { width, height } => (photo.facts.width, photo.facts.height) = (Some(width), Some(height)),
        Kind::Unsized => {}
        Kind::NoPicture => {
            photo.facts.problem = Some("the file is no picture".to_owned());
            return;
        }
    }
    photo.facts.usable = true;
    match read_exif(head) {
        Ok(exif) => fill(photo, &exif, places),
        Err(problem) => photo.facts.problem = Some(problem),
    }
    if photo.facts.problem.is_none() && photo.taken.is_none() {
        photo.facts.problem = Some("the EXIF data has no readable time".to_owned());
    }
}

fn read_head(path: &Path) -> Result<(Vec<u8>, u64), (String, Option<u64>)> {
    let cannot = |error: &std::io::Error| (format!("the file cannot be read: {}", error.kind()), None);
    let metadata = std::fs::metadata(path).map_err(|error| cannot(&error))?;
    if !metadata.is_file() {
        return Err(("the path names no file".to_owned(), None));
    }
    let bytes = metadata.len();
    if bytes == 0 {
        return Err(("the file is empty".to_owned(), Some(0)));
    }
    if bytes > FILE_BYTES_MAX {
        let text = format!("the file is too large: {} MiB, {} MiB are read", bytes >> 20, FILE_BYTES_MAX >> 20);
        return Err((text, Some(bytes)));
    }
    let mut head = Vec::new();
    let file = File::open(path).map_err(|error| cannot(&error))?;
    file.take(HEAD_BYTES_MAX).read_to_end(&mut head).map_err(|error| cannot(&error))?;
    Ok((head, bytes))
}

fn read_exif(head: Vec<u8>) -> Result<Exif, String> {
    let broken = |error: &exif::Error| match error {
        exif::Error::NotFound(_) => "the picture has no EXIF data".to_owned(),
        exif::Error::InvalidFormat(what) => format!("the EXIF data is broken: {what}"),
        exif::Error::Io(_) => "the EXIF data is cut off".to_owned(),
        _ => "the EXIF data cannot be read".to_owned(),
    };
    let exif = exif::Reader::new()
        .continue_on_error(true)
        .read_from_container(&mut Cursor::new(head))
        .or_else(|error| error.distill_partial_result(|_| {}))
        .map_err(|error| broken(&error))?;
    if exif.buf().len() > EXIF_BYTES_MAX {
        return Err(format!("the EXIF data has {} bytes, {EXIF_BYTES_MAX} are read", exif.buf().len()));
    }
    Ok(exif)
}

fn fill(photo: &mut Photo, exif: &Exif, places: Places) {
    photo.taken =
        [Tag::DateTimeOriginal, Tag::DateTimeDigitized, Tag::DateTime].into_iter().find_map(|tag| moment_of(exif, tag));
    photo.facts.taken = photo.taken.map(written);
    photo.facts.camera = camera(exif);
    photo.facts.orientation = orientation(exif).map(str::to_owned);
    if places == Places::Rounded {
        photo.position = position(exif);
        photo.facts.place = photo.position.map(rounded);
    }
}

fn ascii(exif: &Exif, tag: Tag) -> Option<&[u8]> {
    match &exif.get_field(tag, In::PRIMARY)?.value {
        Value::Ascii(texts) => texts.first().map(Vec::as_slice),
        _ => None,
    }
}

fn moment_of(exif: &Exif, tag: Tag) -> Option<DateTime> {
    let read = exif::DateTime::from_ascii(ascii(exif, tag)?).ok()?;
    let year = i16::try_from(read.year).ok()?;
    let small = |number: u8| i8::try_from(number).ok();
    // A camera whose clock was never set says 0000-00-00 or 1980; the first is no date at all.
    let (month, day) = (small(read.month)?, small(read.day)?);
    DateTime::new(year, month, day, small(read.hour)?, small(read.minute)?, small(read.second)?, 0)
        .ok()
        .filter(|_| year > 0)
}

/// A local time as everybody else reads it.
pub(super) fn written(moment: DateTime) -> String {
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
        moment.year(),
        moment.month(),
        moment.day(),
        moment.hour(),
        moment.minute(),
        moment.second()
    )
}

fn camera(exif: &Exif) -> Option<String> {
    let text = |tag| {
        let bytes = ascii(exif, tag)?;
        let plain: String = String::from_utf8_lossy(bytes)
            .chars()
            .filter(|character| !character.is_control() && *character != char::REPLACEMENT_CHARACTER)
            .take(CAMERA_CHARS_MAX)
            .collect();
        Some(plain.trim().to_owned()).filter(|plain| !plain.is_empty())
    };
    match (text(Tag::Make), text(Tag::Model)) {
        (Some(make), Some(model)) if model.to_lowercase().starts_with(&make.to_lowercase()) => Some(model),
        (Some(make), Some(model)) => Some(format!("{make} {model}")),
        (make, model) => model.or(make),
    }
}

fn orientation(exif: &Exif) -> Option<&'static str> {
    match exif.get_field(Tag::Orientation, In::PRIMARY)?.value.get_uint(0)? {
        1 => Some("upright"),
        3 => Some("upside_down"),
        6 => Some("turned_left"),
        8 => Some("turned_right"),
        2 | 4 | 5 | 7 => Some("mirrored"),
        _ => None,
    }
}

fn position(exif: &Exif) -> Option<Position> {
    let lat = degrees(exif, Tag::GPSLatitude, Tag::GPSLatitudeRef, *b"NS", 90.0)?;
    let lon = degrees(exif, Tag::GPSLongitude, Tag::GPSLongitudeRef, *b"EW", 180.0)?;
    // Receivers without a fix write 0, 0: a point in the sea where nobody takes photos.
    (lat != 0.0 || lon != 0.0).then_some(Position { lat, lon })
}

fn degrees(exif: &Exif, tag: Tag, reference: Tag, signs: [u8; 2], limit: f64) -> Option<f64> {
    let Value::Rational(parts) = &exif.get_field(tag, In::PRIMARY)?.value else { return None };
    let mut sum = 0.0;
    for (part, unit) in parts.iter().take(3).zip([1.0, 60.0, 3600.0]) {
        if part.denom == 0 {
            return None;
        }
        sum += part.to_f64() / unit;
    }
    let sign = match ascii(exif, reference)?.first()?.to_ascii_uppercase() {
        letter if letter == signs[0] => 1.0,
        letter if letter == signs[1] => -1.0,
        _ => return None,
    };
    (!parts.is_empty() && sum.is_finite() && sum <= limit).then_some(sign * sum)
}

/// The position as it may be told.
pub(super) fn rounded(position: Position) -> crate::agents::shapes::Place {
    // Adding 0.0 turns -0.0 into 0.0.
    let round = |degrees: f64| (degrees * PLACE_STEPS_PER_DEGREE).round() / PLACE_STEPS_PER_DEGREE + 0.0;
    crate::agents::shapes::Place { lat: round(position.lat), lon: round(position.lon) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of_bytes(bytes: Vec<u8>) -> Photo {
        let mut photo = Photo { facts: PhotoFacts::default(), taken: None, position: None };
        read_bytes(&mut photo, bytes, Places::Rounded);
        photo
    }

    fn jpeg_with_exif(tiff: &[u8]) -> Vec<u8> {
        let length = u16::try_from(tiff.len() + 8).unwrap();
        let mut bytes = vec![0xFF, 0xD8, 0xFF, 0xE1];
        bytes.extend(length.to_be_bytes());
        bytes.extend(b"Exif\0\0");
        bytes.extend(tiff);
        bytes.extend([0xFF, 0xD9]);
        bytes
    }

    #[test]
    fn what_is_no_photo_is_kept_with_its_problem() {
        for (bytes, usable, problem) in [
            (b"just a text".to_vec(), false, "the file is no picture"),
            (vec![0xFF, 0xD8, 0xFF, 0xD9], true, "the picture has no EXIF data"),
            (jpeg_with_exif(b"garbage here"), true, "the EXIF data is broken: Invalid TIFF byte order"),
            (jpeg_with_exif(b"MM\0\x2a\0\0\0\x08\0\0"), true, "the EXIF data has no readable time"),
        ] {
            let photo = of_bytes(bytes.clone());
            assert_eq!(photo.facts.usable, usable, "{bytes:?}");
            assert_eq!(photo.facts.problem.as_deref(), Some(problem), "{bytes:?}");
        }
    }

    #[test]
    fn places_are_rounded() {
        for (lat, lon, want) in [(43.467_448, 11.885_126, (43.47, 11.89)), (-0.001, 0.004, (0.0, 0.0))] {
            let place = rounded(Position { lat, lon });
            assert_eq!((place.lat, place.lon), want);
            assert!(place.lat.is_sign_positive());
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            of_bytes(bytes);
        }

        #[test]
        fn arbitrary_exif_never_panics(tiff in proptest::collection::vec(any::<u8>(), 0..400), little in any::<bool>()) {
            let mut block = if little { b"II\x2a\0\x08\0\0\0".to_vec() } else { b"MM\0\x2a\0\0\0\x08".to_vec() };
            block.extend(tiff);
            let photo = of_bytes(jpeg_with_exif(&block));
            prop_assert!(photo.facts.usable);
        }

        #[test]
        fn containers_with_wild_lengths_never_panic(
            kind in 0_usize..4,
            tail in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let heads: [&[u8]; 4] = [
                b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
                b"\x89PNG\r\n\x1a\n\xff\xff\xff\xffeXIf",
                b"RIFF\xff\xff\xff\xffWEBPEXIF\xff\xff\xff\xff",
                b"II\x2a\0\x08\0\0\0\xff\xff",
            ];
            let mut bytes = heads[kind].to_vec();
            bytes.extend(tail);
            of_bytes(bytes);
        }
    }
}
