//! The composer's own English sentences. Says only what the facts say; frames change from stop to stop so that a row of stops
//! does not sound like a list.

use jiff::civil::{Date, DateTime};

use super::{
    pictures::degrees,
    speech::{DayFacts, Rhythm, Speech, StopFacts, far},
};
use crate::agents::{shapes::Place, text::plain_name};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// `22 October 2008`.
pub(in crate::agents) fn date(day: Date) -> String {
    format!("{} {} {}", day.day(), month(day), day.year())
}

/// `12 April 2025`, `12 to 14 April 2025`; `word` stands between two days.
pub(in crate::agents) fn days(first: Date, last: Date, word: &str) -> String {
    if first == last {
        return date(first);
    }
    let from = match (first.year() == last.year(), first.month() == last.month()) {
        (true, true) => first.day().to_string(),
        (true, false) => format!("{} {}", first.day(), month(first)),
        (false, _) => date(first),
    };
    format!("{from} {word} {}", date(last))
}

/// `October`.
pub(in crate::agents) fn month(day: Date) -> &'static str {
    usize::try_from(day.month()).ok().and_then(|month| MONTHS.get(month.checked_sub(1)?)).copied().unwrap_or_default()
}

/// `16:28`.
pub(in crate::agents) fn time(moment: DateTime) -> String {
    format!("{:02}:{:02}", moment.hour(), moment.minute())
}

/// `one`, `nine`, `11`.
pub(in crate::agents) fn number(count: usize) -> String {
    const WORDS: [&str; 11] = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
    WORDS.get(count).map_or_else(|| count.to_string(), |word| (*word).to_owned())
}

/// `one picture`, `nine pictures`.
pub(in crate::agents) fn pictures(count: usize) -> String {
    format!("{} {}", number(count), if count == 1 { "picture" } else { "pictures" })
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

fn weekday(day: Date) -> String {
    capital(&format!("{:?}", day.weekday()).to_lowercase())
}

fn minutes_said(minutes: i64) -> String {
    match minutes {
        0 => "moments".to_owned(),
        1 => "a minute".to_owned(),
        60 => "an hour".to_owned(),
        61.. => format!("{} h {} min", minutes / 60, minutes % 60).replace(" 0 min", ""),
        _ => format!("{} minutes", usize::try_from(minutes).map_or_else(|_| minutes.to_string(), number)),
    }
}

/// Two facts: one sentence, or two where the author's are short.
fn joined(speech: &Speech, first: &str, second: &str) -> Vec<String> {
    match speech.rhythm {
        Rhythm::Long => vec![format!("{first}, and {second}.")],
        Rhythm::Short => vec![format!("{first}."), format!("{}.", capital(second))],
    }
}

pub(super) fn opening(speech: &Speech, facts: &DayFacts, has_notes: bool) -> Vec<String> {
    let shown = pictures(facts.photos);
    let (Some(first), Some(last), Some((from, to))) = (facts.days.first(), facts.days.last(), facts.span) else {
        return if facts.photos == 0 { Vec::new() } else { vec![format!("Here are {shown}.")] };
    };
    let when = if first == last {
        format!("on {}, {}", weekday(*first), date(*first))
    } else {
        format!("between {}", days(*first, *last, "and"))
    };
    let are = if facts.photos == 1 { "is" } else { "are" };
    if has_notes {
        return vec![format!("Here {are} {shown} taken {when}, with the notes made at the time.")];
    }
    let hours = match (first == last, from == to) {
        (true, true) => format!(", at {}", time(from)),
        (true, false) => format!(", between {} and {}", time(from), time(to)),
        (false, _) => String::new(),
    };
    let mut sentences = vec![format!("Here {are} {shown} taken {when}{hours}.")];
    if facts.stops > 1 {
        let spots = format!("They come from {} spots", number(facts.stops));
        match facts.metres.filter(|metres| *metres > 0) {
            Some(metres) => {
                let way = format!("going from one to the next comes to about {}", far(metres, " "));
                sentences.extend(joined(speech, &spots, &way));
            }
            None => sentences.push(format!("{spots}.")),
        }
    }
    sentences
}

pub(super) fn stop_heading(facts: &StopFacts, label: Option<&str>) -> String {
    let day = match facts.span {
        Some((first, _)) if facts.is_new_day => format!("{} {}: ", first.day(), month(first.date())),
        _ => String::new(),
    };
    match label {
        Some(label) => format!("## {day}{}", capital(label)),
        None => format!("## {day}Stop {}", facts.index + 1),
    }
}

pub(super) fn stop(speech: &Speech, facts: &StopFacts) -> Vec<String> {
    let shown = pictures(facts.photos);
    let Some((first, last)) = facts.span else {
        return vec![format!("This spot has {shown}.")];
    };
    let at = time(first);
    let minutes = last.duration_since(first).as_mins();
    if facts.index == 0 {
        if facts.photos == 1 {
            return vec![format!("The first picture was taken at {at}.")];
        }
        let within = format!("{} were taken here within {}", number(facts.photos), minutes_said(minutes));
        return joined(speech, &format!("The first picture was taken at {at}"), &within);
    }
    let away = facts.metres.filter(|metres| *metres > 0).map(|metres| far(metres, " "));
    if facts.is_last {
        return match away {
            Some(away) => {
                let place = format!("The last stop lies about {away} from there");
                joined(
                    speech,
                    &place,
                    &format!("{shown} {} taken at {at}", if facts.photos == 1 { "was" } else { "were" }),
                )
            }
            None => vec![format!(
                "The last {} at {at}.",
                if facts.photos == 1 { "picture was taken".into() } else { format!("{shown} were taken") }
            )],
        };
    }
    let over =
        if facts.photos > 1 && minutes > 0 { format!(" within {}", minutes_said(minutes)) } else { String::new() };
    let was = if facts.photos == 1 { "was" } else { "were" };
    let more = number(facts.photos);
    vec![match (away, facts.index % 4) {
        (Some(away), 1) => format!("About {away} further on, at {at}, {more} more {was} taken{over}."),
        (Some(away), 2) => format!("By {at} the camera was about {away} away and took {shown}{over}."),
        (Some(away), 3) => format!("Another {away} or so, and {shown} {was} taken at {at}{over}."),
        (Some(away), _) => format!("The next {shown} {was} taken about {away} from there, at {at}{over}.")
            .replace("next one picture", "next picture"),
        (None, 1) => format!("A little later, at {at}, {more} more {was} taken{over}."),
        (None, 2) => format!("At {at} there {was} {shown}{over}."),
        (None, _) => format!("After that, at {at}, {more} more {was} taken{over}."),
    }]
}

pub(super) fn several(facts: &StopFacts) -> Option<String> {
    let (first, last) = facts.span.filter(|_| facts.photos > 1)?;
    let minutes = last.duration_since(first).as_mins();
    let shown = capital(&pictures(facts.photos));
    Some(match facts.photos {
        2 if minutes > 0 => format!("{shown} were taken here, {} apart.", minutes_said(minutes)),
        _ => format!("{shown} were taken here within {}.", minutes_said(minutes)),
    })
}

pub(super) fn caption(taken: Option<DateTime>, day: Option<Date>, place: Option<Place>) -> Vec<String> {
    let mut details = Vec::new();
    if let Some(taken) = taken {
        let day = day.map(|day| format!("{}, ", date(day))).unwrap_or_default();
        details.push(format!("{day}{}", time(taken)));
    }
    details.extend(place.map(|place| format!("near {}", degrees(place))));
    details
}

pub(super) fn undated(photos: usize) -> (String, String) {
    let text = match photos {
        1 => "One picture does not say when it was taken, so it stands apart.".to_owned(),
        _ => format!("{} do not say when they were taken, so they stand apart.", capital(&pictures(photos))),
    };
    ("## Without a time".to_owned(), text)
}

pub(super) fn unusable(names: &[String]) -> String {
    let listed = names.iter().map(|name| plain_name(name)).collect::<Vec<_>>().join(", ");
    format!("Not shown, because they could not be opened as pictures: {listed}")
}

pub(super) fn distance(metres: u64) -> String {
    format!("From the first spot to the last it is about {}, going from one to the next.", far(metres, " "))
}

pub(super) fn closing(tells_places: bool) -> String {
    let what = if tells_places { "when and roughly where they were taken" } else { "when they were taken" };
    format!("There were no notes, so this says only what the pictures record themselves: {what}.")
}

/// `the bridge, the pond and Arezzo`.
pub(in crate::agents) fn listed(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}
