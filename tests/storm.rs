//! The storm of the example in virtual time, with fewer documents: chats beside a bulk export are as fast as without it where both have
//! compartments, the export gets what is its own, and without compartments both are as they were on that afternoon.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

#[path = "../examples/bulk_export_storm/storm.rs"]
mod storm;

use std::{sync::OnceLock, time::Duration};

use storm::{PLAN, Storm, callers::Seen, in_virtual_time, samples::Samples, sides::EXPORT_SLOTS};

/// Twenty minutes' worth with compartments and more: samples enough for a p99 that is not the largest of them.
const DOCUMENTS: u64 = 700;

/// Played once for all tests.
fn played() -> &'static Storm {
    static PLAYED: OnceLock<Storm> = OnceLock::new();
    PLAYED.get_or_init(|| in_virtual_time(PLAN, DOCUMENTS).unwrap())
}

fn p(samples: &Samples, percent: u32) -> f64 {
    samples.percentile(percent).unwrap()
}

#[test]
fn chats_are_as_fast_beside_an_export_as_without_it() {
    let Storm { quiet, kept_apart, .. } = played();
    let own = |seen: &Seen| [seen.chat.clone(), seen.neighbours.clone()];
    for (quiet, beside) in own(quiet).iter().zip(&own(kept_apart)) {
        assert!(quiet.took_ms.len() >= 1_500 && beside.took_ms.len() >= 1_500);
        for percent in [50, 90, 99] {
            let ratio = p(beside, percent) / p(quiet, percent);
            assert!(ratio <= 1.05, "p{percent}: {ratio}");
        }
        assert_eq!((beside.refused_sum(), beside.given_up), (0, 0), "{:?}", beside.refused);
    }
}

#[test]
fn the_export_has_its_own_share_and_loses_no_document() {
    let Storm { kept_apart: Seen { export, span, .. }, servers, .. } = played();
    assert_eq!((export.took_ms.len() as u64, export.given_up), (DOCUMENTS, 0));
    let held = export.held.as_secs_f64() / span.as_secs_f64();
    let own = f64::from(EXPORT_SLOTS);
    assert!((0.95 * own..=own).contains(&held), "{held}");
    // Its workers came back when they were told to: sixty of them, each refused every few seconds at most.
    let refused_a_second = export.refused_sum() as f64 / span.as_secs_f64();
    assert!(refused_a_second > 1.0 && refused_a_second < 60.0, "{refused_a_second}");
    assert_eq!(servers[1].queue_max, 0, "nobody waits at the server itself");
    assert_eq!(servers[1].answered, DOCUMENTS + played().kept_apart.chat.took_ms.len() as u64);
}

#[test]
fn without_compartments_everybody_waits_behind_the_export() {
    let Storm { quiet, open, servers, .. } = played();
    let (middle, tail) = (p(&open.chat, 50) / p(&quiet.chat, 50), p(&open.chat, 99) / p(&quiet.chat, 99));
    assert!(open.chat.took_ms.len() >= 200);
    assert!(middle > 5.0 && tail > 2.0, "{middle} {tail}");
    assert!(servers[2].queue_max >= 40, "{}", servers[2].queue_max);
    assert_eq!(open.export.took_ms.len() as u64, DOCUMENTS);
    assert!(open.span < Duration::from_secs(900), "the export had everything: {:?}", open.span);
}

#[test]
fn a_percentile_is_a_sample_that_was_seen() {
    let mut samples = Samples::default();
    for ms in 1..=200_u64 {
        samples.answered(Duration::from_millis(ms), Duration::ZERO, 0);
    }
    assert_eq!(
        [50, 90, 99, 100].map(|percent| samples.percentile(percent)),
        [Some(100.0), Some(180.0), Some(198.0), None]
    );
    samples.took_ms.truncate(30);
    assert_eq!(samples.percentile(99), None, "thirty samples say nothing of one in a hundred");
}
