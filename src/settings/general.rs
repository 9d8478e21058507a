//! The small tables that concern the program as a whole: `[run]`, `[places]`, `[limits]`, `[node]`.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::{
    model::{cost::Cost, language::Language, nearest::hint},
    policy::run_caps::RunCaps,
    workflow::checked::Workflow,
};

use super::{reader::Reader, spending::amount};

/// The most nodes that share one configuration.
pub const INSTANCES_MAX: u64 = 1_000;
/// No run can be allowed more calls or tokens.
const CAP_MAX: u64 = 1_000_000_000_000;
/// No byte limit can be set higher.
pub const LIMIT_BYTES_MAX: u64 = 16 * 1024 * 1024 * 1024;

/// How runs go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunSettings {
    /// No run takes longer, whatever its workflow says; `None` = only the workflow's own deadline holds.
    pub deadline: Option<Duration>,
    /// Language of texts for people.
    pub language: Language,
    /// Where photos were taken.
    pub places: PlaceSharing,
    /// What one run may use in all.
    pub caps: RunCaps,
}

/// Whether agents may be told the places of photos, wherever they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceSharing {
    /// They are not told.
    Never,
    /// Rounded, so that a town can be told but no house.
    Rounded,
}

/// The input of a workflow that says how far the places of photos may go.
const PLACES: &str = "places";
/// What it says, and the setting too.
const PLACE_WORDS: [(&str, PlaceSharing); 2] = [("never", PlaceSharing::Never), ("rounded", PlaceSharing::Rounded)];

impl PlaceSharing {
    /// What is said of a run's input that nearly says how far places may go: its agents would refuse it in the middle of the run.
    pub fn misspelt(workflow: &Workflow, input: &Map<String, Value>) -> Option<String> {
        workflow.inputs().find(|(name, _)| *name == PLACES)?;
        let said = input.get(PLACES)?.as_str()?.trim();
        let words = PLACE_WORDS.map(|(word, _)| word);
        let near = hint(said, words);
        (!near.is_empty()).then(|| format!("input {PLACES} = {said:?}: must be one of {}{near}", words.join(", ")))
    }

    /// Sees to it that a run's inputs let places go no further than this, whatever they say.
    pub fn bind(self, workflow: &Workflow, input: &mut Map<String, Value>) {
        if self == Self::Never && workflow.inputs().any(|(name, _)| name == PLACES) {
            input.insert(PLACES.to_owned(), Value::from("never"));
        }
    }
}

/// What is accepted at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Files of one run.
    pub input_files_max: u32,
    /// One text input, in bytes.
    pub input_text_bytes_max: u64,
    /// One answer of an agent, in bytes.
    pub reply_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { input_files_max: 500, input_text_bytes_max: 1024 * 1024, reply_bytes_max: 16 * 1024 * 1024 }
    }
}

/// Reads `[run]` and `[places]`.
pub(super) fn read_run(root: &mut Reader<'_, '_>) -> RunSettings {
    let mut run = root.table("run");
    let deadline = run.duration_or_off("deadline", None);
    let language = run.choice("language", Language::En, &[("en", Language::En), ("ko", Language::Ko)], &[]);
    let mut most = |key: &'static str| {
        let value = run.whole(key, 1, CAP_MAX);
        run.explain(key, value.map_or_else(|| "off".to_owned(), |value| value.to_string()));
        value
    };
    let (calls_max, tokens_max) = (most("calls_max"), most("tokens_max"));
    let cost_max = amount(&mut run, "cost_max");
    if cost_max.is_some_and(|cost| cost == Cost::ZERO) {
        run.refuse("cost_max", "must be more than 0: no run could make a call");
    }
    if cost_max.is_none() {
        run.explain("cost_max", "off");
    }
    let caps = RunCaps { calls_max, tokens_max, cost_max };
    run.finish(&[]);
    let mut places = root.table("places");
    let sharing = places.choice("share", PlaceSharing::Never, &PLACE_WORDS, &[]);
    places.finish(&[]);
    RunSettings { deadline, language, places: sharing, caps }
}

/// Reads `[limits]`.
pub(super) fn read_limits(root: &mut Reader<'_, '_>) -> Limits {
    let defaults = Limits::default();
    let mut reader = root.table("limits");
    let mut bytes = |key: &'static str, default: u64| {
        let value = reader.whole(key, 1, LIMIT_BYTES_MAX).unwrap_or(default);
        reader.explain(key, value.to_string());
        value
    };
    let mut limits = Limits {
        input_text_bytes_max: bytes("input_text_bytes_max", defaults.input_text_bytes_max),
        reply_bytes_max: bytes("reply_bytes_max", defaults.reply_bytes_max),
        ..defaults
    };
    let files = reader.whole("input_files_max", 1, 100_000).and_then(|files| u32::try_from(files).ok());
    limits.input_files_max = files.unwrap_or(defaults.input_files_max);
    reader.explain("input_files_max", limits.input_files_max.to_string());
    reader.finish(&["in_flight_max"]);
    limits
}

/// Reads `[node]`: how many nodes share what is configured.
pub(super) fn read_instances(root: &mut Reader<'_, '_>) -> u32 {
    let mut node = root.table("node");
    let instances =
        node.whole("instances", 1, INSTANCES_MAX).and_then(|number| u32::try_from(number).ok()).unwrap_or(1);
    node.explain("instances", instances.to_string());
    node.finish(&["name", "cluster"]);
    instances
}
