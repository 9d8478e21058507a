//! Which layer wins, and what is said of where values come from.

use super::{
    given::{Given, SECONDS},
    rich::RICH,
};
use crate::settings::load::explain;

#[test]
fn environment_and_flags_win_and_are_named() {
    let given = || Given::config("[agents.draft]\nslots = 1\nbreaker = { open = '40s', trials = 3 }").only(&[]);
    let draft = |given: &Given| given.settings().agent("draft").unwrap().settings.clone();
    assert_eq!(draft(&given()).slots, 1);
    let given = given().environment("WATERTIGHT_AGENTS__DRAFT__SLOTS", "2");
    assert_eq!(draft(&given).slots, 2);
    let given = given.environment("WATERTIGHT_AGENTS__DRAFT__BREAKER__OPEN", "50s");
    let given = given.flag("agents.draft.slots=3").flag("agents.draft.retry.attempts_max=1");
    let settings = draft(&given);
    assert_eq!((settings.slots, settings.breaker.open, settings.breaker.trials), (3, SECONDS(50), 3));
    assert_eq!(settings.retry.attempts_max, 1);
    let rows = explain(&given.settings());
    let row = |key: &str| {
        let row = rows.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("{key} of {rows:?}"));
        format!("{} ({})", row.value, row.origin)
    };
    assert_eq!(row("agents.draft.slots"), "3 (--set agents.draft.slots)");
    assert_eq!(row("agents.draft.breaker.open"), "50s (WATERTIGHT_AGENTS__DRAFT__BREAKER__OPEN)");
    assert_eq!(row("agents.draft.breaker.trials"), "3 (w.toml:3)");
    assert_eq!(row("agents.draft.breaker.slow_call"), "30s (default)");
    assert_eq!(row("agents.draft.timeout"), "1m (default)");
    assert_eq!(
        row("agents.draft.breaker.trial_timeout"),
        "3m (1m at default, raised to the longest attempt or call of its agents)"
    );
    given
        .clone()
        .flag("agents.draft.slots=-1")
        .refused(&["--set agents.draft.slots: agents.draft.slots = -1: must be a whole number from 0 to 100000"]);
    given
        .clone()
        .environment("WATERTIGHT_AGENTS__DRAFT__SLOTZ", "1")
        .refused(&["WATERTIGHT_AGENTS__DRAFT__SLOTZ: agents.draft.slotz = 1: unknown key, did you mean `slots`?"]);
    given
        .environment("WATERTIGHT_AGENTS_DRAFT_SLOTS", "1")
        .warned(&["WATERTIGHT_AGENTS_DRAFT_SLOTS: is not used: parts of a key are separated by two underscores"]);
}

#[test]
fn explain_has_every_key_of_the_breaker_once() {
    let rows = explain(&Given::config(RICH).settings());
    let mut keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
    let count = keys.len();
    keys.dedup();
    assert_eq!(keys.len(), count, "each key has one row");
    for key in ["agents.draft.breaker.window", "providers.local.breaker.half_open_by", "run.deadline", "node.instances"]
    {
        assert!(keys.contains(&key), "{key} of {keys:?}");
    }
    let shown = format!("{rows:?}");
    assert!(shown.contains("LOCAL_KEY") && shown.contains("env NOTE"));
}
