//! The stops along the way: photos in the order of time, cut where the place changes or where much time passed.
//! Works on exact positions and tells rounded ones only.

use jiff::civil::DateTime;

use super::one_photo::{Photo, Position, rounded, written};
use crate::agents::shapes::Stop;

/// A photo further than this from the middle of its stop begins a new one. Within it one walks around one sight.
const STOP_METRES_MAX: f64 = 300.0;
/// Longer pauses begin a new stop at the same place too: one has been away, or did something else there.
const PAUSE_MINUTES_MAX: i64 = 120;
/// Without positions only time tells: a shorter pause begins a new stop.
const PAUSE_MINUTES_MAX_UNPLACED: i64 = 30;
/// Distances are told in steps of so many metres: finer ones would tell places again.
const METRES_STEP: f64 = 100.0;
/// The mean radius of the earth.
const EARTH_METRES: f64 = 6_371_000.0;

struct Group<'a> {
    photos: Vec<(&'a Photo, DateTime)>,
    positions: Vec<Position>,
}

/// Cuts the photos (those with a time, in its order) into stops.
pub(super) fn stops(photos: &[Photo]) -> Vec<Stop> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for photo in photos.iter().filter(|photo| photo.facts.usable) {
        let Some(taken) = photo.taken else { continue };
        let starts_new = groups.last().is_none_or(|group| begins_new_stop(group, photo, taken));
        if starts_new {
            groups.push(Group { photos: Vec::new(), positions: Vec::new() });
        }
        if let Some(group) = groups.last_mut() {
            group.photos.push((photo, taken));
            group.positions.extend(photo.position);
        }
    }
    let mut previous: Option<Position> = None;
    let mut found = Vec::with_capacity(groups.len());
    for (index, group) in groups.iter().enumerate() {
        let middle = middle_of(&group.positions);
        let metres = previous.zip(middle).map(|(from, to)| stepped(metres_between(from, to)));
        found.push(Stop {
            number: index + 1,
            first: group.photos.first().map(|(_, taken)| written(*taken)),
            last: group.photos.last().map(|(_, taken)| written(*taken)),
            place: middle.map(rounded),
            metres_from_previous: metres,
            photos: group.photos.iter().map(|(photo, _)| photo.facts.name.clone()).collect(),
        });
        previous = middle.or(previous);
    }
    found
}

fn begins_new_stop(group: &Group<'_>, photo: &Photo, taken: DateTime) -> bool {
    let Some((_, last)) = group.photos.last() else { return true };
    let pause_minutes = taken.duration_since(*last).as_mins();
    match (middle_of(&group.positions), photo.position) {
        (Some(middle), Some(here)) => {
            metres_between(middle, here) > STOP_METRES_MAX || pause_minutes > PAUSE_MINUTES_MAX
        }
        _ => pause_minutes > PAUSE_MINUTES_MAX_UNPLACED,
    }
}

fn middle_of(positions: &[Position]) -> Option<Position> {
    let first = positions.first()?;
    let count = positions.len() as f64;
    // Offsets from the first position, so that a stop on the date line has its middle there and not on the other side.
    let lat = positions.iter().map(|position| position.lat - first.lat).sum::<f64>() / count;
    let lon = positions.iter().map(|position| turned(position.lon - first.lon)).sum::<f64>() / count;
    Some(Position { lat: first.lat + lat, lon: turned(first.lon + lon) })
}

fn turned(degrees: f64) -> f64 {
    if degrees > 180.0 {
        degrees - 360.0
    } else if degrees < -180.0 {
        degrees + 360.0
    } else {
        degrees
    }
}

/// Along the great circle, by the haversine formula.
pub(super) fn metres_between(from: Position, to: Position) -> f64 {
    let half_lat = (to.lat - from.lat).to_radians() / 2.0;
    let half_lon = (to.lon - from.lon).to_radians() / 2.0;
    let chord =
        half_lat.sin().powi(2) + from.lat.to_radians().cos() * to.lat.to_radians().cos() * half_lon.sin().powi(2);
    2.0 * EARTH_METRES * chord.clamp(0.0, 1.0).sqrt().asin()
}

/// Metres in steps of 100; half the earth at most, so that the number always fits.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 20,016,000 by construction")]
fn stepped(metres: f64) -> u64 {
    ((metres / METRES_STEP).round() * METRES_STEP).clamp(0.0, 21_000_000.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::shapes::{PhotoFacts, moment};

    fn photo(name: &str, taken: &str, position: Option<(f64, f64)>) -> Photo {
        Photo {
            facts: PhotoFacts { name: name.into(), usable: true, ..PhotoFacts::default() },
            taken: moment(taken),
            position: position.map(|(lat, lon)| Position { lat, lon }),
        }
    }

    #[test]
    fn stops_are_cut_by_place_and_time() {
        let here = Some((35.838, 129.211));
        let near = Some((35.8385, 129.2112));
        let far = Some((35.829, 129.2147));
        let found = stops(&[
            photo("a", "2025-04-12T09:00:00", here),
            photo("b", "2025-04-12T09:30:00", near),
            photo("c", "2025-04-12T09:40:00", far),
            photo("d", "2025-04-12T12:00:00", far),
            photo("e", "2025-04-12T12:10:00", None),
            photo("f", "2025-04-12T12:50:00", None),
        ]);
        let names: Vec<_> = found.iter().map(|stop| stop.photos.join("")).collect();
        assert_eq!(names, ["ab", "c", "de", "f"]);
        assert_eq!(found[1].metres_from_previous, Some(1_100));
        assert_eq!(found[3].place, None);
    }

    #[test]
    fn great_circles() {
        for (from, to, want) in [
            ((0.0, 0.0), (0.0, 1.0), 111_195.0),
            ((43.467_45, 11.885_13), (43.467_45, 11.885_13), 0.0),
            ((0.0, 179.999), (0.0, -179.999), 222.4),
            ((90.0, 0.0), (-90.0, 0.0), 20_015_087.0),
        ] {
            let at = |(lat, lon)| Position { lat, lon };
            assert!((metres_between(at(from), at(to)) - want).abs() < 1.0, "{from:?} {to:?}");
        }
        let middle = middle_of(&[Position { lat: 0.0, lon: 179.99 }, Position { lat: 0.0, lon: -179.97 }]).unwrap();
        assert!((middle.lon - -179.99).abs() < 1e-9, "{middle:?}");
    }
}
