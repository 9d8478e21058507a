//! `[volume_guard]`, and the adaptive limit of `[providers.X]`. Zero is refused where it would mean either nothing or everything: who wants
//! no guard leaves the table out, who wants to close something sets its slots to 0.

use crate::{
    policy::{
        adaptive::settings::AdaptiveSettings,
        crowd::CallerScope,
        volume::{CALLS_PER_HOUR_MAX, SHUT_FOR_DEFAULT, VolumeSettings},
    },
    runtime::{callers::CallerSettings, settings::ProviderSettings},
};

use super::{
    node::{Value, key_path},
    provider::Provider,
    reader::Reader,
    report::Report,
    whole::divided,
};

/// Reads `[volume_guard]`; without the table there is no guard.
pub(super) fn read_volume_guard(root: &mut Reader<'_, '_>) -> CallerSettings {
    let is_given = root.is_given("volume_guard");
    let mut reader = root.table("volume_guard");
    let most = u64::from(CALLS_PER_HOUR_MAX);
    if is_given && !reader.is_given("calls_per_hour") {
        reader.refuse_without(
            &["calls_per_hour"],
            "calls_per_hour",
            "must be set; without the table there is no guard",
        );
    }
    // A guard of 0 calls would refuse everything: whoever writes that means something else.
    let calls = reader.whole("calls_per_hour", 1, most).and_then(|calls| u32::try_from(calls).ok());
    let shut_for = reader.duration("shut_for", SHUT_FOR_DEFAULT);
    let words = [("caller", CallerScope::Caller), ("tenant", CallerScope::Tenant)];
    let scope = reader.choice("scope", CallerScope::Caller, &words, &[]);
    reader.explain("calls_per_hour", calls.map_or_else(|| "no guard".to_owned(), |calls| calls.to_string()));
    let volume = calls.map(|calls_per_hour| VolumeSettings { calls_per_hour, shut_for });
    if let Some(volume) = volume {
        reader.refuse_broken(&volume.check());
    }
    reader.finish(&[]);
    CallerSettings { volume, scope }
}

/// Reads a provider's `adaptive` under its slots; opt-in.
pub(super) fn read_adaptive(reader: &mut Reader<'_, '_>, slots: Option<u32>) -> Option<AdaptiveSettings> {
    if reader.is_word("adaptive", "off") || !reader.is_given("adaptive") {
        reader.know(&["adaptive"]);
        reader.explain("adaptive", "off");
        return None;
    }
    let is_table = reader.node("adaptive").is_some_and(|node| matches!(node.value, Value::Table(_)));
    if !is_table {
        reader.refuse("adaptive", "must be \"off\" or a table: {} for the defaults");
        return None;
    }
    let mut table = reader.table("adaptive");
    let usual = AdaptiveSettings::default();
    // A default gives way to the bounds that are given; what is given is checked as it stands.
    let max = table.count("max", usual.max);
    let min = table.count("min", usual.min.min(max));
    let settings = AdaptiveSettings {
        start: table.count("start", usual.start.min(max).max(min)),
        min,
        max,
        tolerance: table.number("tolerance", usual.tolerance),
        decrease: table.number("decrease", usual.decrease),
    };
    table.refuse_broken(&settings.check());
    if slots.is_some_and(|slots| table.is_given("max") && max > slots) {
        table.warn("max", "is more than the provider's slots, which are the most");
    }
    table.finish(&[]);
    Some(settings)
}

/// The most calls that a provider can ever get at once, with the key that says so; `None` = there is no cap.
pub(super) fn most_slots(settings: &ProviderSettings) -> Option<(u32, String)> {
    let path = key_path("providers", settings.name.as_str());
    match (settings.slots, settings.adaptive) {
        (Some(slots), Some(adaptive)) if adaptive.max >= slots => Some((slots, key_path(&path, "slots"))),
        (_, Some(adaptive)) => Some((adaptive.max, key_path(&key_path(&path, "adaptive"), "max"))),
        (Some(slots), None) => Some((slots, key_path(&path, "slots"))),
        (None, None) => None,
    }
}

/// Several nodes divide what is told for all of them.
pub(super) fn divide_guards(
    providers: &mut [Provider],
    callers: &mut CallerSettings,
    instances: u32,
    report: &mut Report,
) {
    for provider in providers {
        let path = key_path("providers", provider.settings.name.as_str());
        if let Some(adaptive) = &mut provider.settings.adaptive {
            let path = key_path(&path, "adaptive");
            for (key, value) in [("min", &mut adaptive.min), ("max", &mut adaptive.max), ("start", &mut adaptive.start)]
            {
                *value = divided(*value, &key_path(&path, key), instances, report);
            }
        }
    }
    if let Some(volume) = &mut callers.volume {
        volume.calls_per_hour = divided(volume.calls_per_hour, "volume_guard.calls_per_hour", instances, report);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{model::duration, settings::tests::Given};

    #[test]
    fn defaults_and_every_key() {
        let plain = Given::config("").load().unwrap();
        assert_eq!(plain.callers, CallerSettings::default());
        let text = "[volume_guard]\ncalls_per_hour = 1000\nshut_for = '10m'\nscope = 'tenant'\n[providers.local]\nkind = 'embedded'\nrequests_per_minute = 600\nadaptive = { max = 40 }\n";
        let settings = Given::config(text).load().unwrap();
        let volume = VolumeSettings { calls_per_hour: 1_000, shut_for: Duration::from_secs(600) };
        assert_eq!(settings.callers, CallerSettings { volume: Some(volume), scope: CallerScope::Tenant });
        let provider = &settings.provider("local").unwrap().settings;
        assert_eq!(provider.rates.requests_per_minute, Some(600));
        assert_eq!(provider.adaptive, Some(AdaptiveSettings { start: 40, max: 40, ..AdaptiveSettings::default() }));
        let empty = "[providers.local]\nkind = 'embedded'\nadaptive = {}\n";
        let provider = Given::config(empty).load().unwrap().provider("local").unwrap().settings.clone();
        assert_eq!((provider.adaptive, provider.rates.requests_per_minute), (Some(AdaptiveSettings::default()), None));
        let off = "[providers.local]\nkind = 'embedded'\nadaptive = 'off'\n";
        assert_eq!(Given::config(off).load().unwrap().provider("local").unwrap().settings.adaptive, None);
        assert_eq!(duration::format(SHUT_FOR_DEFAULT), "30m");
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_place() {
        let of_provider = |line: &str| format!("[providers.local]\nkind = 'embedded'\n{line}\n");
        for (text, want) in [
            (
                "[volume_guard]\ncalls_per_hour = 0\n".to_owned(),
                "w.toml:2: volume_guard.calls_per_hour = 0: must be a whole number from 1 to 100000000",
            ),
            ("[volume_guard]\ncalls_per_hour = -5\n".to_owned(), "w.toml:2: volume_guard.calls_per_hour = -5: must be"),
            (
                "[volume_guard]\nshut_for = '30m'\n".to_owned(),
                "w.toml:1: volume_guard.calls_per_hour: must be set; without the table there is no guard",
            ),
            (
                "[volume_guard]\ncalls_per_hour = 5\nshut_for = '0s'\n".to_owned(),
                "w.toml:3: volume_guard.shut_for = \"0s\": must be longer than 0",
            ),
            ("[volume_guard]\ncalls_per_hour = 5\nshut_for = '2d'\n".to_owned(), "w.toml:3: volume_guard.shut_for"),
            (
                "[volume_guard]\ncalls_per_hour = 5\nscope = 'user'\n".to_owned(),
                "w.toml:3: volume_guard.scope = \"user\": must be one of caller, tenant",
            ),
            (
                "[volume_guard]\ncalls_per_huor = 5\n".to_owned(),
                "w.toml:2: volume_guard.calls_per_huor = 5: unknown key, did you mean `calls_per_hour`?",
            ),
            (
                of_provider("requests_per_minute = 0"),
                "w.toml:3: providers.local.requests_per_minute = 0: must be a whole number from 1 to 100000000",
            ),
            (of_provider("adaptive = 5"), "w.toml:3: providers.local.adaptive = 5: must be \"off\" or a table"),
            (of_provider("adaptive = { min = 0 }"), "w.toml:3: providers.local.adaptive.min = 0: must be 1 to 100000"),
            (
                of_provider("adaptive = { start = 501 }"),
                "w.toml:3: providers.local.adaptive.start = 501: must be from min (5) to max (500)",
            ),
            (
                of_provider("adaptive = { tolerance = nan }"),
                "w.toml:3: providers.local.adaptive.tolerance = nan: must be over 1",
            ),
            (of_provider("adaptive = { decrease = 1.0 }"), "w.toml:3: providers.local.adaptive.decrease = 1"),
            (of_provider("adaptive = { maks = 1 }"), "w.toml:3: providers.local.adaptive.maks = 1: unknown key"),
        ] {
            let error = Given::config(&text).load().unwrap_err().to_string();
            assert!(error.starts_with(want), "{text}: {error}");
        }
    }

    #[test]
    fn nodes_divide_them() {
        let text = "[volume_guard]\ncalls_per_hour = 1000\n[providers.local]\nkind = 'embedded'\nrequests_per_minute = 600\nadaptive = {}\n";
        let settings = Given::config(&format!("{text}[node]\ninstances = 5\n")).load().unwrap();
        let provider = &settings.provider("local").unwrap().settings;
        let adaptive = provider.adaptive.unwrap();
        assert_eq!(
            (adaptive.min, adaptive.start, adaptive.max, provider.rates.requests_per_minute),
            (1, 10, 100, Some(120))
        );
        assert_eq!(settings.callers.volume.unwrap().calls_per_hour, 200);
        let error = Given::config(&format!("{text}[node]\ninstances = 6\n")).load().unwrap_err().to_string();
        assert!(
            error.contains("providers.local.adaptive.min = 5: falls under 1 when divided by node.instances = 6"),
            "{error}"
        );
    }
}
