//! How cold models are dealt with: read for a provider, and for an agent over its provider; and whether a breaker can be tried in the way
//! that it asks for.

use crate::{
    policy::breaker::settings::{BreakerSettings, Probe},
    runtime::settings::{LoadedModels, Prewarm, WarmUpWhen, WarmthSettings},
};

use super::{
    provider::{Flavor, Kind},
    reader::Reader,
};

/// The most models that a server can be said to keep loaded.
const MODELS_MAX: u64 = 1_000;
/// The keys that providers and agents have alike.
pub(super) const WARMTH_KEYS: [&str; 4] = ["warm_up", "warm_up_timeout", "keeps_warm", "prewarm"];

/// Reads the keys over `defaults`.
pub(super) fn read_warmth(reader: &mut Reader<'_, '_>, kind: Kind, defaults: WarmthSettings) -> WarmthSettings {
    if !kind.has_models() {
        reader.unfit(&WARMTH_KEYS, &format!("is not for kind = \"{}\": no model is loaded there", kind.as_str()));
        return WarmthSettings::default();
    }
    if kind == Kind::Ollama {
        reader.unfit(&["keeps_warm"], "is not for kind = \"ollama\": it is told how long by `keep_alive`");
    }
    let words = [("auto", WarmUpWhen::Auto), ("off", WarmUpWhen::Off), ("always", WarmUpWhen::Always)];
    let when = reader.choice("warm_up", defaults.when, &words, &[]);
    let prewarm = reader.truth("prewarm", defaults.prewarm == Prewarm::AtRuns);
    if prewarm && when == WarmUpWhen::Off && reader.is_sound("prewarm") {
        reader.refuse("prewarm", "must not be true where warm_up is \"off\"");
    }
    WarmthSettings {
        when,
        timeout: reader.duration("warm_up_timeout", defaults.timeout),
        keeps_for: if kind == Kind::Ollama { None } else { reader.duration_or_off("keeps_warm", defaults.keeps_for) },
        prewarm: if prewarm { Prewarm::AtRuns } else { Prewarm::No },
    }
}

/// Reads both for a provider.
pub(super) fn read_models(reader: &mut Reader<'_, '_>, kind: Kind, flavor: Flavor) -> (WarmthSettings, LoadedModels) {
    (read_warmth(reader, kind, WarmthSettings::default()), read_loaded_models(reader, kind, flavor))
}

/// Reads how many models a provider keeps loaded.
fn read_loaded_models(reader: &mut Reader<'_, '_>, kind: Kind, flavor: Flavor) -> LoadedModels {
    if !kind.has_models() {
        reader.unfit(&["models_max"], &format!("is not for kind = \"{}\": no model is loaded there", kind.as_str()));
        return LoadedModels::Unknown;
    }
    let configured = reader.whole("models_max", 1, MODELS_MAX).and_then(|models| u32::try_from(models).ok());
    let models = match (configured, flavor) {
        (Some(models), _) => LoadedModels::AtMost(models),
        (None, Flavor::LlamaCpp) => LoadedModels::TheOneItHas,
        (None, Flavor::Any) => LoadedModels::Unknown,
    };
    let shown = models.at_most().map_or("not known".to_owned(), |models| models.to_string());
    reader.explain("models_max", shown);
    models
}

/// Whether anybody can be asked how an agent, or what it leans on, is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Askable {
    /// Nobody.
    No,
    /// A health path.
    Health,
    /// A health path, and a model.
    HealthAndModel,
}

impl Askable {
    /// What a provider's breaker can be tried with: its agents have the health paths.
    pub(super) fn of_provider(kind: Kind) -> Self {
        match kind {
            Kind::Embedded => Self::No,
            Kind::Http => Self::Health,
            Kind::OpenAi | Kind::Ollama => Self::HealthAndModel,
        }
    }
}

/// Refuses a way of trying that the table at `reader` asks for itself and that cannot be; what only the defaults ask for is left out.
pub(super) fn fit_probe(reader: &mut Reader<'_, '_>, askable: Askable, breaker: &mut BreakerSettings) {
    let rule = match (breaker.probe, askable) {
        (Probe::Off, _) | (Probe::Health, Askable::Health) | (_, Askable::HealthAndModel) => return,
        (Probe::Health, Askable::No) => "must be \"off\": there is no `health` path to ask",
        (Probe::Request, _) => "must be \"off\" or \"health\": only a model can be asked for a little",
    };
    if reader.is_own("probe") {
        reader.refuse("probe", rule);
    }
    breaker.probe = Probe::Off;
}
