//! What stands in a configuration and can have no effect: names that nobody bears, prices of models that nobody asks, caps that nothing is
//! held against. Where it was meant to protect or to answer, it is refused; where it only says nothing, that is told. It looks at the
//! configuration as a whole, whichever agents are wanted of it.

use std::collections::BTreeSet;

use super::{
    deferred::DeferredTable,
    general::RunSettings,
    keys::{Acting, KeySettings},
    load::Sources,
    node::{Node, Table, Value, key_path},
    problem::{Origin, Problem},
    report::Report,
    spending::SpendingTable,
};
use crate::{
    model::{name::Name, nearest::hint},
    policy::{
        compartment::settings::{CompartmentSettings, UnknownTenant},
        ladder::Rung,
    },
    runtime::ladders::Ladders,
};

/// The parts that were read.
type Parts<'a> =
    (&'a CompartmentSettings, &'a [KeySettings], &'a DeferredTable, &'a Ladders, &'a SpendingTable, &'a RunSettings);

/// What is looked at.
struct Whole<'a> {
    root: &'a Table,
    /// The manifests of all agents that have a folder. What is wrong with one is told where its agent is wanted.
    manifests: Vec<Table>,
    compartments: &'a CompartmentSettings,
    keys: &'a [KeySettings],
    deferred: &'a DeferredTable,
    ladders: &'a Ladders,
    spending: &'a SpendingTable,
    run: &'a RunSettings,
}

/// Applies every rule to what stands in `root` and was read as these parts.
pub(super) fn check_effects(root: &Table, parts: Parts<'_>, sources: &Sources<'_>, report: &mut Report) {
    let (compartments, keys, deferred, ladders, spending, run) = parts;
    let manifests = sources.agent_folders.iter().filter_map(|folder| folder.manifest().ok()).collect();
    let whole = Whole { root, manifests, compartments, keys, deferred, ladders, spending, run };
    check_webhook(&whole, report);
    check_feature_rungs(&whole, report);
    check_cost_cap(&whole, report);
    check_priced_models(&whole, report);
    check_tiers(&whole, report);
}

/// News of a feature or tenant that nobody can be would go to nobody.
fn check_webhook(whole: &Whole<'_>, report: &mut Report) {
    let Some(webhook) = &whole.deferred.webhook else { return };
    let Whole { compartments, keys, .. } = whole;
    let mut strange = Vec::new();
    // Where nobody is counted by feature, each name is somebody's.
    if !compartments.features.is_empty() {
        let known: BTreeSet<&str> = compartments.features.iter().map(|feature| feature.name.as_str()).collect();
        strange.extend(strangers(webhook.features.keys(), &known, "features", "[features]"));
    }
    let tenants_are_known = compartments.unknown_tenant == UnknownTenant::Refused
        && report.is_sound("compartments.unknown_tenant")
        && names_below(whole.root, "keys").all(|name| report.is_sound(&key_path(&key_path("keys", name), "tenant")))
        && !compartments.tiers.is_empty();
    if tenants_are_known {
        let known = compartments.tenants.iter().map(|tenant| tenant.name.as_str());
        let known: BTreeSet<&str> =
            known.chain(keys.iter().filter_map(|key| key.tenant.as_ref().map(Name::as_str))).collect();
        strange.extend(strangers(webhook.tenants.keys(), &known, "tenants", "[tenants], or a key's tenant"));
    }
    strange.retain(|(section, name, _)| report.is_sound(&key_path(section, name)));
    for (section, name, rule) in strange {
        let key = key_path(&key_path("deferred.webhook", section), &name);
        report.tell(problem_at(whole.root, key, rule));
    }
}

/// Which of `names` are none of those known, each with its section and what is said of it.
fn strangers<'n>(
    names: impl Iterator<Item = &'n Name>,
    known: &BTreeSet<&str>,
    section: &'static str,
    among: &str,
) -> Vec<(&'static str, String, String)> {
    let strange = names.map(Name::as_str).filter(|name| !known.contains(name));
    let told = strange.map(|name| {
        let near = hint(name, known.iter().copied());
        let rule = format!("must be one of {among}: nobody else's calls are put off{near}");
        (section, name.to_owned(), rule)
    });
    told.collect()
}

/// A rung of a feature that answers by what agents have needs one that has it.
fn check_feature_rungs(whole: &Whole<'_>, report: &mut Report) {
    let has = |key: &str| {
        let agents = whole.root.get("agents").and_then(Node::as_table).into_iter().flat_map(Table::values);
        let configured = agents.filter_map(Node::as_table).any(|agent| ladder_has(agent, key));
        configured || whole.manifests.iter().any(|manifest| ladder_has(manifest, key))
    };
    let mut features: Vec<_> = whole.ladders.features.iter().collect();
    features.sort_by(|one, other| one.0.cmp(other.0));
    for (feature, ladder) in features {
        for (rung, key, own) in
            [(Rung::Default, "default", ladder.default.is_some()), (Rung::Lighter, "lighter", false)]
        {
            let ladder_path = key_path(&key_path("features", feature.as_str()), "ladder");
            // One that is misspelt, or wrong, is one.
            let agents_may_have = names_below(whole.root, "agents").any(|name| {
                let path = key_path(&key_path(&key_path("agents", name), "ladder"), key);
                !report.is_whole(&path)
            });
            let may_have = agents_may_have || !report.is_whole(&key_path(&ladder_path, key));
            if ladder.rungs.iter().any(|rule| rule.rung == rung) && !own && !has(key) && !may_have {
                let path = key_path(&ladder_path, "rungs");
                let rule =
                    format!("has \"{key}\", but no agent has one (agents.X.ladder.{key}): it would never answer");
                report.tell(problem_at(whole.root, path, rule));
            }
        }
    }
}

fn ladder_has(agent: &Table, key: &str) -> bool {
    agent.get("ladder").and_then(Node::as_table).is_some_and(|ladder| ladder.contains_key(key))
}

/// A cap on money that nothing costs is no cap.
fn check_cost_cap(whole: &Whole<'_>, report: &mut Report) {
    let may_be_priced = names_below(whole.root, "prices").any(|name| name != "currency") || !report.is_sound("prices");
    if whole.run.caps.cost_max.is_some() && !may_be_priced && report.is_sound("run.cost_max") {
        let rule = "means nothing without [prices]: no call would ever cost anything".to_owned();
        report.tell(problem_at(whole.root, "run.cost_max".to_owned(), rule));
    }
}

/// A model that is named nowhere is asked by nobody, whatever it costs.
fn check_priced_models(whole: &Whole<'_>, report: &mut Report) {
    let mut named = BTreeSet::new();
    for section in ["agents", "providers", "defaults"] {
        whole.root.get(section).into_iter().for_each(|node| texts(node, &mut named));
    }
    for node in whole.manifests.iter().flat_map(Table::values) {
        texts(node, &mut named);
    }
    let mut targets: Vec<&String> = whole.spending.prices.keys().collect();
    targets.sort_unstable();
    for target in targets {
        let Some((_, model)) = target.split_once('/') else { continue };
        if !named.contains(model) && !named.contains(target.as_str()) {
            let rule = format!("is the price of a model that nobody asks{}", hint(model, named.iter().copied()));
            report.warnings.push(problem_at(whole.root, key_path("prices", target), rule));
        }
    }
}

/// The names in a table of the tree.
fn names_below<'t>(root: &'t Table, section: &str) -> impl Iterator<Item = &'t str> {
    root.get(section).and_then(Node::as_table).into_iter().flat_map(Table::keys).map(String::as_str)
}

/// Every text of a tree.
fn texts<'t>(node: &'t Node, found: &mut BTreeSet<&'t str>) {
    match &node.value {
        Value::Text(text) => _ = found.insert(text),
        Value::List(list) => list.iter().for_each(|entry| texts(entry, found)),
        Value::Table(table) => table.values().for_each(|entry| texts(entry, found)),
        Value::Integer(_) | Value::Number(_) | Value::Boolean(_) | Value::Other(_) => {}
    }
}

/// Tiers that nobody is of, and what is said of tiers where there are none.
fn check_tiers(whole: &Whole<'_>, report: &mut Report) {
    let Whole { compartments, keys, .. } = whole;
    let unknown = match &compartments.unknown_tenant {
        UnknownTenant::Refused => None,
        UnknownTenant::Shared(tier) | UnknownTenant::Own(tier) => Some(tier),
    };
    for tier in &compartments.tiers {
        let is_used = unknown == Some(&tier.name) || compartments.tenants.iter().any(|tenant| tenant.tier == tier.name);
        if !is_used {
            let rule = "is the tier of nobody: no key, tenant or compartments.tier names it".to_owned();
            let key = key_path("tiers", tier.name.as_str());
            report.warnings.push(problem_at(whole.root, key, rule));
        }
    }
    if compartments.tiers.is_empty() {
        for feature in compartments.features.iter().filter(|feature| feature.ratio.is_some()) {
            let key = key_path(&key_path("features", feature.name.as_str()), "ratio");
            let rule = "means nothing without [tiers]: it is a part of what a tier's tenants have".to_owned();
            report.warnings.push(problem_at(whole.root, key, rule));
        }
    }
    for key in keys.iter().filter(|key| key.tier.is_some() && key.tenant.is_none() && key.acting == Acting::ForItself) {
        let path = key_path(&key_path("keys", key.name.as_str()), "tier");
        let rule = "says nothing without `tenant`: it is the tier of that".to_owned();
        report.warnings.push(problem_at(whole.root, path, rule));
    }
}

/// A problem with the value at `key`, where it stands.
pub(super) fn problem_at(root: &Table, key: String, rule: String) -> Problem {
    let node = find(root, &key);
    let origin = node.map_or(Origin::Default, |node| node.origin.clone());
    let value = node.filter(|node| node.as_table().is_none()).map(|node| node.shown(&key));
    Problem { origin, key, value, rule }
}

/// The node that bears a whole key; names with dots stand in quotes there.
fn find<'t>(table: &'t Table, key: &str) -> Option<&'t Node> {
    table.iter().find_map(|(name, node)| {
        let path = key_path("", name);
        let rest = key.strip_prefix(&*path)?;
        match rest.strip_prefix('.') {
            None if rest.is_empty() => Some(node),
            Some(rest) => find(node.as_table()?, rest),
            None => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::settings::tests::Given;

    const AGENT: &str = "[providers.o]\nkind = 'openai'\nbase_url = 'http://127.0.0.1:1/v1'\nmodel = 'm'\n[agents.draft]\nprovider = 'o'\n";
    const HOOK: &str = "[deferred.webhook]\nsecret_env = 'HOOK'\n";

    fn refused(text: &str) -> String {
        Given::config(&format!("{AGENT}{text}")).load().unwrap_err().to_string()
    }

    fn warned(text: &str) -> Vec<String> {
        let settings = Given::config(&format!("{AGENT}{text}")).load().unwrap();
        settings.warnings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_that_nobody_bears_are_refused_where_they_stand() {
        let featured =
            format!("[features.batch]\nslots = 2\n{HOOK}[deferred.webhook.features]\nbathc = 'https://a.example/'\n");
        assert_eq!(
            refused(&featured),
            "w.toml:12: deferred.webhook.features.bathc = \"https://a.example/\": must be one of [features]: nobody else's calls are put off; did you mean \"batch\"?"
        );
        // A stranger's calls are told of as those of the feature that takes it in.
        let taken_in = format!("{featured}[compartments]\nunknown_feature = 'batch'\n");
        assert!(refused(&taken_in).starts_with("w.toml:12: deferred.webhook.features.bathc = "));
        let tenants =
            format!("[tiers.free]\nslots = 2\n[tenants.acme]\ntier = 'free'\n{HOOK}[deferred.webhook.tenants]\n");
        let wrong = format!("{tenants}acmee = 'https://a.example/'\n");
        assert!(refused(&wrong).starts_with("w.toml:14: deferred.webhook.tenants.acmee = "), "{}", refused(&wrong));
        for right in [
            format!("{tenants}acme = 'https://a.example/'\n"),
            format!(
                "[keys.a]\nsha256 = '{}'\ntenant = 'bolt'\ntier = 'free'\n{tenants}bolt = 'https://a.example/'\n",
                "a".repeat(64)
            ),
            format!("[compartments]\nunknown_tenant = 'own'\ntier = 'free'\n{wrong}"),
            // Nobody is counted by feature or tenant.
            format!(
                "{HOOK}[deferred.webhook.features]\nany = 'https://a.example/'\n[deferred.webhook.tenants]\nany = 'https://a.example/'\n"
            ),
        ] {
            assert!(Given::config(&format!("{AGENT}{right}")).load().is_ok(), "{right}");
        }
    }

    #[test]
    fn a_rung_that_never_answers_and_a_cap_on_nothing_are_refused() {
        let ladder = "[features.chat.ladder]\nrungs = ['default', 'notice']\n";
        let why = "has \"default\", but no agent has one (agents.X.ladder.default): it would never answer";
        assert_eq!(refused(ladder).split(": ").last(), why.split(": ").last());
        assert!(refused(ladder).starts_with("w.toml:8: features.chat.ladder.rungs = "), "{}", refused(ladder));
        assert!(refused(&ladder.replace("default", "lighter")).contains("agents.X.ladder.lighter"));
        for more in [
            "default = 'later'\n",
            "[agents.other]\nprovider = 'o'\nmodel = 'n'\nladder = { rungs = ['default'], default = 'x' }\n",
        ] {
            assert!(Given::config(&format!("{AGENT}{ladder}{more}")).load().is_ok(), "{more}");
        }
        let cap = "[run]\ncost_max = 1.5\n";
        assert_eq!(
            refused(cap),
            "w.toml:8: run.cost_max = 1.5: means nothing without [prices]: no call would ever cost anything"
        );
        assert!(warned(&format!("{cap}[prices.'o/m']\ninput = 1\n")).is_empty());
    }

    #[test]
    fn what_only_says_nothing_is_told() {
        let key = format!("[keys.a]\nsha256 = '{}'\ntier = 'free'\n", "a".repeat(64));
        for (text, want) in [
            (
                "[prices.'o/mm']\ninput = 1\n".to_owned(),
                "w.toml:7: prices.\"o/mm\": is the price of a model that nobody asks",
            ),
            (
                "[tiers.free]\nslots = 1\n".to_owned(),
                "w.toml:7: tiers.free: is the tier of nobody: no key, tenant or compartments.tier names it",
            ),
            (
                "[features.chat]\nratio = 0.5\n".to_owned(),
                "w.toml:8: features.chat.ratio = 0.5: means nothing without [tiers]: it is a part of what a tier's tenants have",
            ),
            (key, "w.toml:9: keys.a.tier = \"free\": says nothing without `tenant`: it is the tier of that"),
        ] {
            let told = warned(&text);
            assert!(told.len() == 1 && told[0].starts_with(want), "{told:?}");
        }
        for right in [
            "[prices.'o/n']\ninput = 1\n[agents.other]\nprovider = 'o'\nmodel = 'n'\n",
            "[prices.'o/small']\ninput = 1\n[agents.draft.ladder]\nrungs = ['lighter']\nlighter = 'o/small'\n",
            "[tiers.free]\nslots = 1\n[compartments]\nunknown_tenant = 'own'\ntier = 'free'\n",
        ] {
            assert_eq!(warned(right), Vec::<String>::new(), "{right}");
        }
    }
}
