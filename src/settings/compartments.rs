//! `[compartments]`, `[features.NAME]`, `[tiers.NAME]` and `[tenants.NAME]`: who is counted as whom, and how much each may take. Rules that
//! concern providers and keys are in `whole`.

use std::time::Duration;

use super::{
    node::{Node, Table, key_path},
    problem::Problem,
    reader::Reader,
    report::Report,
};
use crate::{
    model::name::Name,
    policy::compartment::{
        known_tenants::SHARED_TENANT,
        settings::{
            CompartmentSettings, CountedTokens, FEATURES_MAX, FeatureSettings, LINE_MAX, LINE_MAX_DEFAULT, Rates,
            TENANTS_MAX, TENANTS_MAX_DEFAULT, TIERS_MAX, TenantSettings, TierSettings, UnknownFeature, UnknownTenant,
            WAIT_MAX,
        },
    },
    runtime::settings::SLOTS_MAX,
};

/// No budget of tokens is larger.
const TOKENS_PER_MINUTE_MAX: u64 = 1_000_000_000_000;
/// No rate of requests is larger.
const REQUESTS_PER_MINUTE_MAX: u64 = 100_000_000;
/// The most tenants that a configuration names.
const TENANTS_NAMED_MAX: usize = 100_000;
/// Why nobody may bear the name of strangers.
pub(super) const STRANGERS_NAME: &str =
    "tenants that are not known are counted under this name (compartments.unknown_tenant)";
/// Tables of features that come later.
const FEATURE_LATER: [&str; 1] = ["stage"];

/// Reads all four tables; the classes are read elsewhere.
pub(super) fn read_compartments(root: &mut Reader<'_, '_>) -> CompartmentSettings {
    let features = read_each(root, "features", FEATURES_MAX, |name, reader| Some(read_feature(name, reader)));
    let tiers = read_each(root, "tiers", TIERS_MAX, |name, reader| Some(read_tier(name, reader)));
    let tenants = read_each(root, "tenants", TENANTS_NAMED_MAX, read_tenant);
    let settings = CompartmentSettings { features, tiers, tenants, ..CompartmentSettings::default() };
    read_rules(root, settings)
}

/// `[compartments]`: what becomes of strangers.
fn read_rules(root: &mut Reader<'_, '_>, mut settings: CompartmentSettings) -> CompartmentSettings {
    let mut reader = root.table("compartments");
    let known = |name: &str| settings.features.iter().find(|feature| feature.name.as_str() == name);
    match reader.text("unknown_feature") {
        None | Some("refuse") => reader.explain("unknown_feature", "refuse"),
        Some(name) => match known(name) {
            Some(feature) => {
                reader.explain("unknown_feature", name);
                settings.unknown_feature = UnknownFeature::Is(feature.name.clone());
            }
            None if reader.report.is_sound(&key_path("features", name)) => {
                reader.refuse("unknown_feature", "must be \"refuse\" or one of [features]");
            }
            None => reader.report.doubt(reader.full_key("unknown_feature")),
        },
    }
    let tier = reader.text("tier").map(str::to_owned);
    let tier = tier.and_then(|name| {
        let found = settings.tiers.iter().find(|tier| tier.name.as_str() == name).map(|tier| tier.name.clone());
        match &found {
            Some(_) => reader.explain("tier", name.as_str()),
            None if reader.report.is_sound(&key_path("tiers", &name)) => {
                reader.refuse("tier", "must be one of [tiers]");
            }
            None => {}
        }
        found
    });
    let words = [("refuse", 0_u8), ("shared", 1), ("own", 2)];
    settings.unknown_tenant = match (reader.choice("unknown_tenant", 0, &words, &[]), tier) {
        (1, Some(tier)) => UnknownTenant::Shared(tier),
        (2, Some(tier)) => UnknownTenant::Own(tier),
        (0, Some(_)) => {
            reader.warn("tier", "is not used: compartments.unknown_tenant is \"refuse\"");
            UnknownTenant::Refused
        }
        (0, None) => UnknownTenant::Refused,
        (_, _) => {
            if !reader.is_given("tier") {
                let rule = "needs compartments.tier: the tier of tenants that are not known";
                reader.refuse_without(&["tier"], "unknown_tenant", rule);
            }
            // Whom it would let in is not known.
            reader.report.doubt(reader.full_key("unknown_tenant"));
            UnknownTenant::Refused
        }
    };
    // proof of no loss: at most one million.
    let tenants_max = reader.whole("tenants_max", 1, u64::from(TENANTS_MAX));
    settings.tenants_max = tenants_max.and_then(|most| u32::try_from(most).ok()).unwrap_or(TENANTS_MAX_DEFAULT);
    reader.explain("tenants_max", settings.tenants_max.to_string());
    reader.finish(&[]);
    settings
}

/// Every table of one kind, by its name.
fn read_each<T>(
    root: &mut Reader<'_, '_>,
    kind: &'static str,
    most: usize,
    read: fn(Name, Reader<'_, '_>) -> Option<T>,
) -> Vec<T> {
    let tables: &Table = root.entries(kind);
    if tables.len() > most {
        root.refuse(kind, format!("has {} entries, at most {most} are allowed", tables.len()));
    }
    let mut found = Vec::new();
    for (name, node) in tables.iter().take(most) {
        let path = key_path(kind, name);
        match named_table(name, node, &path) {
            Ok((name, table)) => {
                found.extend(read(name, Reader::new(table, node.origin.clone(), &path, "", root.report)));
            }
            Err(problem) => root.report.tell(problem),
        }
    }
    found
}

fn named_table<'t>(name: &str, node: &'t Node, path: &str) -> Result<(Name, &'t Table), Problem> {
    let problem = |rule: String| Problem { origin: node.origin.clone(), key: path.to_owned(), value: None, rule };
    let name = Name::try_new(name).map_err(|error| problem(error.to_string()))?;
    let table = node.as_table().ok_or_else(|| problem("must be a table".to_owned()))?;
    Ok((name, table))
}

fn read_feature(name: Name, mut reader: Reader<'_, '_>) -> FeatureSettings {
    let mut feature = FeatureSettings::new(name);
    feature.slots = read_slots(&mut reader);
    feature.rates = read_rates(&mut reader);
    feature.max_wait = read_max_wait(&mut reader);
    let line_max = reader.whole("line_max", 0, u64::from(LINE_MAX));
    feature.line_max = line_max.and_then(|most| u32::try_from(most).ok()).unwrap_or(LINE_MAX_DEFAULT);
    reader.explain("line_max", feature.line_max.to_string());
    if reader.is_given("ratio") {
        let ratio = reader.number("ratio", 1.0);
        if ratio > 0.0 && ratio <= 1.0 {
            feature.ratio = Some(ratio);
        } else {
            reader.refuse("ratio", "must be a share above 0, at most 1");
        }
    } else {
        reader.know(&["ratio"]);
        reader.explain("ratio", "none");
    }
    let mut table = reader.table("guaranteed");
    for (provider, slots) in table.open_entries(0, u64::from(SLOTS_MAX)) {
        match (Name::try_new(&provider), u32::try_from(slots)) {
            (Ok(name), Ok(slots)) => feature.guaranteed.push((name, slots)),
            _ => table.refuse(&provider, "must be a provider's name and slots of it"),
        }
    }
    // Read with those of agents.
    reader.know(&["ladder"]);
    reader.finish(&FEATURE_LATER);
    feature
}

fn read_tier(name: Name, mut reader: Reader<'_, '_>) -> TierSettings {
    let mut tier = TierSettings::new(name);
    tier.slots = read_slots(&mut reader);
    tier.rates = read_rates(&mut reader);
    tier.max_wait = read_max_wait(&mut reader);
    reader.finish(&[]);
    tier
}

/// Whether its tier is there is asked when all tiers are read.
fn read_tenant(name: Name, mut reader: Reader<'_, '_>) -> Option<TenantSettings> {
    let text = reader.text("tier");
    let tier = match text.map(Name::try_new) {
        Some(Ok(tier)) => {
            reader.explain("tier", tier.as_str());
            Some(tier)
        }
        Some(Err(error)) => {
            reader.refuse("tier", error.to_string());
            None
        }
        None => {
            if !reader.is_given("tier") {
                reader.refuse_without(&["tier"], "tier", "must be set: one of [tiers]");
            }
            None
        }
    };
    reader.finish(&[]);
    Some(TenantSettings { name, tier: tier? })
}

fn read_slots(reader: &mut Reader<'_, '_>) -> Option<u32> {
    let slots = reader.whole("slots", 0, u64::from(SLOTS_MAX)).and_then(|slots| u32::try_from(slots).ok());
    reader.explain("slots", slots.map_or_else(|| "no cap".to_owned(), |slots| slots.to_string()));
    slots
}

/// What may be used in a minute. 0 is refused: who wants to close something sets its slots to 0.
pub(super) fn read_rates(reader: &mut Reader<'_, '_>) -> Rates {
    let tokens_per_minute = reader.whole("tokens_per_minute", 1, TOKENS_PER_MINUTE_MAX);
    reader.explain("tokens_per_minute", tokens_per_minute.map_or_else(|| "no cap".to_owned(), |most| most.to_string()));
    let requests = reader.whole("requests_per_minute", 1, REQUESTS_PER_MINUTE_MAX);
    reader.explain("requests_per_minute", requests.map_or_else(|| "no cap".to_owned(), |most| most.to_string()));
    let words = [("both", CountedTokens::Both), ("input", CountedTokens::Input), ("output", CountedTokens::Output)];
    let tokens = reader.choice("tokens", CountedTokens::Both, &words, &[]);
    if reader.is_given("tokens") && tokens_per_minute.is_none() {
        reader.warn("tokens", "is not used: tokens_per_minute is not set");
    }
    let requests_per_minute = requests.and_then(|requests| u32::try_from(requests).ok());
    Rates { tokens_per_minute, tokens, requests_per_minute }
}

fn read_max_wait(reader: &mut Reader<'_, '_>) -> Duration {
    let wait = reader.duration_from_zero("max_wait", Duration::ZERO);
    if wait > WAIT_MAX {
        reader.refuse("max_wait", "must be at most 1h");
    }
    wait
}

/// Tenants must be of a tier that is there, and none may have the name under which strangers are counted: it would be one of them.
pub(super) fn check_tenants(settings: &CompartmentSettings, report: &Report, problems: &mut Vec<Problem>) {
    let counts_strangers = settings.unknown_tenant != UnknownTenant::Refused;
    for tenant in &settings.tenants {
        if counts_strangers && tenant.name.as_str() == SHARED_TENANT {
            let (key, value) = (key_path("tenants", tenant.name.as_str()), None);
            let rule = STRANGERS_NAME.to_owned();
            problems.push(Problem { origin: report.origin_of(&key_path(&key, "tier")), key, value, rule });
        }
        let is_known = settings.tiers.iter().any(|tier| tier.name == tenant.tier);
        if !is_known && report.is_sound(&key_path("tiers", tenant.tier.as_str())) {
            let key = key_path(&key_path("tenants", tenant.name.as_str()), "tier");
            let value = Some(format!("{:?}", tenant.tier.as_str()));
            problems.push(Problem {
                origin: report.origin_of(&key),
                key,
                value,
                rule: "must be one of [tiers]".to_owned(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::Given;

    const EXAMPLE: &str = "
[features.chat]
slots = 20
tokens_per_minute = 200_000
max_wait = '5s'
ratio = 0.4
[features.batch]
slots = 5
line_max = 0
tokens_per_minute = 50_000
tokens = 'output'
[tiers.free]
slots = 5
max_wait = '2s'
tokens_per_minute = 20_000
requests_per_minute = 60
[tenants.acme]
tier = 'free'
[compartments]
unknown_feature = 'batch'
unknown_tenant = 'shared'
tier = 'free'
tenants_max = 500
";

    #[test]
    fn every_key_is_read() {
        let settings = Given::config(EXAMPLE).load().unwrap().compartments;
        let chat = settings.features.iter().find(|feature| feature.name.as_str() == "chat").unwrap();
        assert_eq!(
            (chat.slots, chat.rates.tokens_per_minute, chat.max_wait, chat.ratio, chat.line_max),
            (Some(20), Some(200_000), Duration::from_secs(5), Some(0.4), 100)
        );
        let batch = settings.features.iter().find(|feature| feature.name.as_str() == "batch").unwrap();
        assert_eq!((batch.rates.tokens, batch.line_max, batch.max_wait), (CountedTokens::Output, 0, Duration::ZERO));
        let free = &settings.tiers[0];
        assert_eq!(
            (free.slots, free.rates.requests_per_minute, free.max_wait),
            (Some(5), Some(60), Duration::from_secs(2))
        );
        assert_eq!(settings.tenants[0].tier, free.name);
        assert_eq!(settings.unknown_feature, UnknownFeature::Is(batch.name.clone()));
        assert_eq!(settings.unknown_tenant, UnknownTenant::Shared(free.name.clone()));
        assert_eq!(settings.tenants_max, 500);
        assert_eq!(Given::config("").load().unwrap().compartments, CompartmentSettings::default());
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_place() {
        for (text, want) in [
            (
                "[features.chat]\ntokens_per_minute = 0",
                "w.toml:2: features.chat.tokens_per_minute = 0: must be a whole number from 1 to 1000000000000",
            ),
            (
                "[features.chat]\nslots = -1",
                "w.toml:2: features.chat.slots = -1: must be a whole number from 0 to 100000",
            ),
            ("[features.chat]\nratio = 0.0", "w.toml:2: features.chat.ratio = 0.0: must be a share above 0, at most 1"),
            ("[features.chat]\nratio = nan", "w.toml:2: features.chat.ratio = nan: must be a share above 0, at most 1"),
            ("[features.chat]\nslost = 1", "w.toml:2: features.chat.slost = 1: unknown key, did you mean `slots`?"),
            (
                "[features.chat]\nguaranteed = { nowhere = 2 }",
                "w.toml:2: features.chat.guaranteed.nowhere = 2: names no provider",
            ),
            (
                "[features.'a b']\nslots = 1",
                "w.toml:1: features.\"a b\": \"a b\" is no name: 1 to 64 letters, digits, '-', '_' or '.', the first a letter or digit",
            ),
            (
                "[compartments]\nunknown_tenant = 'shared'\ntier = 'free'\n[tiers.free]\n[tenants.other]\ntier = 'free'",
                "w.toml:6: tenants.other: tenants that are not known are counted under this name (compartments.unknown_tenant)",
            ),
            ("[tenants.acme]\ntier = 'gold'", "w.toml:2: tenants.acme.tier = \"gold\": must be one of [tiers]"),
            ("[tenants.acme]", "w.toml:1: tenants.acme.tier: must be set: one of [tiers]"),
            (
                "[compartments]\nunknown_feature = 'chat'",
                "w.toml:2: compartments.unknown_feature = \"chat\": must be \"refuse\" or one of [features]",
            ),
            (
                "[compartments]\nunknown_tenant = 'own'",
                "w.toml:2: compartments.unknown_tenant = \"own\": needs compartments.tier: the tier of tenants that are not known",
            ),
            (
                "[compartments]\ntier = 'free'\nunknown_tenant = 'own'",
                "w.toml:2: compartments.tier = \"free\": must be one of [tiers]",
            ),
            ("[tiers.free]\nmax_wait = '2h'", "w.toml:2: tiers.free.max_wait = \"2h\": must be at most 1h"),
        ] {
            let error = Given::config(&format!("{text}\n")).load().unwrap_err().to_string();
            assert_eq!(error, want, "{text}");
        }
    }

    #[test]
    fn shares_of_features_must_fit_into_their_provider() {
        let config = |slots: &str, chat: u32, batch: u32| {
            format!(
                "[providers.local]\nkind = 'embedded'\n{slots}\n[features.chat]\nguaranteed = {{ local = {chat} }}\n[features.batch]\nguaranteed = {{ local = {batch} }}\n"
            )
        };
        assert!(Given::config(&config("slots = 10", 6, 4)).load().is_ok());
        let error = Given::config(&config("slots = 10", 7, 4)).load().unwrap_err().to_string();
        assert_eq!(
            error,
            "w.toml:3: providers.local.slots = 10: is too few: 11 of them are kept (0 for agents, 11 for features, 0 for classes)"
        );
        let error = Given::config(&config("", 1, 1)).load().unwrap_err().to_string();
        assert_eq!(
            error,
            "w.toml:5: features.chat.guaranteed.local = 1: means nothing without providers.local.slots or providers.local.adaptive\nw.toml:7: features.batch.guaranteed.local = 1: means nothing without providers.local.slots or providers.local.adaptive"
        );
    }

    #[test]
    fn nodes_divide_what_features_and_tiers_have() {
        let settings = Given::config(&format!("{EXAMPLE}[node]\ninstances = 5\n")).load().unwrap().compartments;
        let slots: Vec<_> =
            settings.features.iter().map(|feature| (feature.slots, feature.rates.tokens_per_minute)).collect();
        assert!(slots.contains(&(Some(4), Some(40_000))) && slots.contains(&(Some(1), Some(10_000))));
        assert_eq!((settings.tiers[0].slots, settings.tiers[0].rates.requests_per_minute), (Some(1), Some(12)));
        let error = Given::config(&format!("{EXAMPLE}[node]\ninstances = 6\n")).load().unwrap_err().to_string();
        assert!(
            error.contains("features.batch.slots = 5: falls under 1 when divided by node.instances = 6"),
            "{error}"
        );
    }
}
