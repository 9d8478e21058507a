//! The composer's own Korean sentences. All of them end in a past stem with ㅆ, so that the author's ending always fits.
//! Says only what the facts say; frames change from stop to stop so that a row of stops does not sound like a list.

use jiff::civil::{Date, DateTime, Weekday};

use super::{
    pictures::degrees,
    speech::{DayFacts, Rhythm, Speech, StopFacts, far},
};
use crate::agents::{
    korean::{ordinal, past, photos_counted, places_counted, with_and},
    shapes::Place,
    text::plain_name,
};

/// `2025년 4월 12일`.
pub(in crate::agents) fn date(day: Date) -> String {
    format!("{}년 {}월 {}일", day.year(), day.month(), day.day())
}

/// `2025년 4월 12일`, `2025년 4월 12일부터 14일까지`.
pub(in crate::agents) fn days(first: Date, last: Date) -> String {
    if first == last {
        return date(first);
    }
    let until = match (first.year() == last.year(), first.month() == last.month()) {
        (true, true) => format!("{}일", last.day()),
        (true, false) => format!("{}월 {}일", last.month(), last.day()),
        (false, _) => date(last),
    };
    format!("{}부터 {until}까지", date(first))
}

/// `9분`, `1시간 10분`.
fn lasting(minutes: i64) -> String {
    match (minutes / 60, minutes % 60) {
        (0, rest) => format!("{rest}분"),
        (hours, 0) => format!("{hours}시간"),
        (hours, rest) => format!("{hours}시간 {rest}분"),
    }
}

fn weekday(day: Date) -> &'static str {
    match day.weekday() {
        Weekday::Monday => "월요일",
        Weekday::Tuesday => "화요일",
        Weekday::Wednesday => "수요일",
        Weekday::Thursday => "목요일",
        Weekday::Friday => "금요일",
        Weekday::Saturday => "토요일",
        Weekday::Sunday => "일요일",
    }
}

/// `오후 4시 28분`, `오후 5시`.
pub(in crate::agents) fn time(moment: DateTime) -> String {
    let half = if moment.hour() < 12 { "오전" } else { "오후" };
    let hour = match moment.hour() % 12 {
        0 => 12,
        hour => hour,
    };
    if moment.minute() == 0 { format!("{half} {hour}시") } else { format!("{half} {hour}시 {}분", moment.minute()) }
}

/// `오후 4시 28분부터 5시까지`.
pub(in crate::agents) fn between(from: DateTime, to: DateTime) -> String {
    let until = time(to);
    let same_half = (from.hour() < 12) == (to.hour() < 12) && from.date() == to.date();
    let until = if same_half { until.split_once(' ').map_or(until.as_str(), |(_, rest)| rest) } else { &until };
    format!("{}부터 {until}까지", time(from))
}

fn said(speech: &Speech, stem: &str) -> String {
    format!("{}.", past(stem, speech.ending))
}

/// Two facts: one sentence, or two where the author's are short.
fn joined(speech: &Speech, first: &str, second: &str) -> Vec<String> {
    match speech.rhythm {
        Rhythm::Long => vec![said(speech, &format!("{first}고, {second}"))],
        Rhythm::Short => vec![said(speech, first), said(speech, second)],
    }
}

pub(super) fn opening(speech: &Speech, facts: &DayFacts, has_notes: bool) -> Vec<String> {
    let photos = photos_counted(facts.photos);
    let (Some(first), Some(last), Some((from, to))) = (facts.days.first(), facts.days.last(), facts.span) else {
        return if facts.photos == 0 { Vec::new() } else { vec![said(speech, &format!("사진 {photos}을 모았"))] };
    };
    let when = if first == last { format!("{} {}", date(*first), weekday(*first)) } else { days(*first, *last) };
    if has_notes {
        let tie = if first == last { "에 찍은" } else { " 찍은" };
        return vec![said(speech, &format!("{when}{tie} 사진 {photos}을 그때 적어 둔 메모와 함께 정리했"))];
    }
    let taken = match (first == last, from == to) {
        (true, true) => format!("{when}, {}에 사진 {photos}을 찍었", time(from)),
        (true, false) => format!("{when}, {} 사진 {photos}을 찍었", between(from, to)),
        (false, _) => format!("{when} 사진 {photos}을 찍었"),
    };
    let mut sentences = vec![said(speech, &taken)];
    if facts.stops > 1 {
        let spots = format!("사진에 남은 자리는 모두 {}이었", places_counted(facts.stops));
        match facts.metres.filter(|metres| *metres > 0) {
            Some(metres) => {
                sentences.extend(joined(speech, &spots, &format!("차례로 이으니 {}쯤이었", far(metres, ""))));
            }
            None => sentences.push(said(speech, &spots)),
        }
    }
    sentences
}

pub(super) fn stop_heading(facts: &StopFacts, label: Option<&str>) -> String {
    let day = match facts.span {
        Some((first, _)) if facts.is_new_day => format!("{}월 {}일, ", first.month(), first.day()),
        _ => String::new(),
    };
    match label {
        Some(label) => format!("## {day}{label}"),
        None => format!("## {day}{} 자리", ordinal(facts.index + 1)),
    }
}

pub(super) fn stop(speech: &Speech, facts: &StopFacts) -> Vec<String> {
    let photos = photos_counted(facts.photos);
    let Some((first, last)) = facts.span else {
        return vec![said(speech, &format!("여기서는 {photos}을 찍었"))];
    };
    let at = time(first);
    let minutes = last.duration_since(first).as_mins();
    if facts.index == 0 {
        let start = format!("{at}에 첫 사진을 찍었");
        return match (facts.photos, minutes) {
            (1, _) => vec![said(speech, &start)],
            (_, 0) => joined(speech, &start, &format!("곧바로 이어서 모두 {photos}을 남겼")),
            _ => joined(speech, &start, &format!("{} 사이에 모두 {photos}을 남겼", lasting(minutes))),
        };
    }
    let away = facts.metres.filter(|metres| *metres > 0).map(|metres| format!("{}쯤", far(metres, "")));
    if facts.is_last {
        return match away {
            Some(away) => {
                let place = format!("마지막 자리는 거기서 {away} 떨어져 있었");
                joined(speech, &place, &format!("{at}에 {photos}을 찍었"))
            }
            None => vec![said(speech, &format!("마지막으로 {at}에 {photos}을 찍었"))],
        };
    }
    let within = match (facts.photos, minutes) {
        (1, _) | (_, 0) => String::new(),
        _ => format!("{} 동안 ", lasting(minutes)),
    };
    let stem = match (away, facts.index % 4) {
        (Some(away), 1) => format!("{away} 자리를 옮겨 {at}부터 {within}{photos}을 더 찍었"),
        (Some(away), 2) => format!("{at}에는 {away} 떨어진 곳에서 {within}{photos}을 남겼"),
        (Some(away), 3) => format!("다시 {away} 움직인 뒤, {at} 무렵 {within}{photos}을 찍었"),
        (Some(away), _) => format!("다음 {photos}은 {away} 더 간 자리에서 {at}에 찍었"),
        (None, 1) => format!("시간이 조금 지나 {at}부터 {within}{photos}을 더 찍었"),
        (None, 2) => format!("{at}에는 {within}{photos}을 남겼"),
        (None, _) => format!("그 뒤 {at}에 {within}{photos}을 더 찍었"),
    };
    // "부터" wants a stretch of time after it.
    let stem = if within.is_empty() { stem.replacen(&format!("{at}부터 "), &format!("{at}에 "), 1) } else { stem };
    vec![said(speech, &stem)]
}

pub(super) fn several(speech: &Speech, facts: &StopFacts) -> Option<String> {
    let (first, last) = facts.span.filter(|_| facts.photos > 1)?;
    let minutes = last.duration_since(first).as_mins();
    let photos = photos_counted(facts.photos);
    let stem = match (minutes, facts.index % 2) {
        (0, _) => format!("여기서는 잇달아 {photos}을 찍었"),
        (_, 0) => format!("이 자리에서는 {} 사이에 {photos}을 찍었", lasting(minutes)),
        _ => format!("여기서는 {} 사이에 {photos}을 남겼", lasting(minutes)),
    };
    Some(said(speech, &stem))
}

pub(super) fn caption(taken: Option<DateTime>, day: Option<Date>, place: Option<Place>) -> Vec<String> {
    let mut details = Vec::new();
    if let Some(taken) = taken {
        let day = day.map(|day| format!("{} ", date(day))).unwrap_or_default();
        details.push(format!("{day}{}", time(taken)));
    }
    details.extend(place.map(|place| format!("{} 부근", degrees(place))));
    details
}

pub(super) fn undated(speech: &Speech, photos: usize) -> (String, String) {
    let text = format!("찍은 시각이 남아 있지 않은 사진 {}은 따로 모았", photos_counted(photos));
    ("## 시각을 모르는 사진".to_owned(), said(speech, &text))
}

pub(super) fn unusable(speech: &Speech, names: &[String]) -> String {
    let listed = names.iter().map(|name| plain_name(name)).collect::<Vec<_>>().join(", ");
    format!("{}: {listed}", past("사진으로 열 수 없어 싣지 못한 파일이 있었", speech.ending))
}

pub(super) fn distance(speech: &Speech, metres: u64, stops: usize) -> String {
    said(speech, &format!("사진을 찍은 {}을 차례로 이어 보니 {}쯤이었", places_counted(stops), far(metres, "")))
}

pub(super) fn closing(speech: &Speech, tells_places: bool) -> String {
    let what = if tells_places { "시각과 대략의 위치" } else { "시각" };
    said(speech, &format!("따로 적어 둔 메모가 없어서 사진에 남은 {what}만 옮겨 적었"))
}

/// `대릉원, 첨성대와 월정교`.
pub(in crate::agents) fn listed(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [head @ .., last] => {
            format!("{} {last}", with_and(&head.join(", ")))
        }
    }
}
