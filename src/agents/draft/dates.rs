//! The ways in which a post may write a day or a time: what a review looks for.

use jiff::civil::{Date, DateTime};

use super::{english, korean};

/// Every usual form of a day, with its year or without.
pub(in crate::agents) fn date_forms(day: Date) -> Vec<String> {
    let (year, month, number) = (day.year(), day.month(), day.day());
    let name = english::month(day);
    let short: String = name.chars().take(3).collect();
    vec![
        korean::date(day),
        format!("{month}월 {number}일"),
        format!("{year}-{month:02}-{number:02}"),
        format!("{year}.{month}.{number}"),
        format!("{year}. {month}. {number}"),
        format!("{year}.{month:02}.{number:02}"),
        format!("{year}/{month:02}/{number:02}"),
        format!("{number} {name}"),
        format!("{name} {number}"),
        format!("{number} {short}"),
        format!("{short} {number}"),
        format!("{number}th of {name}"),
    ]
}

/// Every usual form of a time.
pub(in crate::agents) fn time_forms(moment: DateTime) -> Vec<String> {
    let hour = match moment.hour() % 12 {
        0 => 12,
        hour => hour,
    };
    vec![english::time(moment), korean::time(moment), format!("{hour}:{:02}", moment.minute())]
}
