//! Budgets that let nothing through: the least that any agent asks for is more than all that a minute has. What an agent asks for at
//! least is the most that its answer may have, where it says so; where one of them does not, nothing is known and nothing is refused.

use super::{
    agent::Agent, agent_backend::AgentBackend, node::key_path, problem::Problem, provider::Provider, report::Report,
    roster::is_placed,
};
use crate::{
    model::name::Name,
    policy::compartment::settings::{CompartmentSettings, CountedTokens, Rates},
};

/// Applies the rule to every budget.
pub(super) fn check_budgets(
    settings: &CompartmentSettings,
    providers: &[Provider],
    agents: &[Agent],
    report: &mut Report,
) {
    let mut problems = Vec::new();
    let everywhere = least_of(agents.iter(), report);
    for provider in providers {
        let name = &provider.settings.name;
        let path = key_path("providers", name.as_str());
        let may_lean = |agent: &&Agent| leans_on(agent, name) || !is_placed(agent, report);
        let least = least_of(agents.iter().filter(may_lean), report);
        problems.extend(too_small(&path, provider.settings.rates, least, "", report));
    }
    for feature in &settings.features {
        let path = key_path("features", feature.name.as_str());
        problems.extend(too_small(&path, feature.rates, everywhere, "", report));
    }
    for tier in &settings.tiers {
        let path = key_path("tiers", tier.name.as_str());
        let whole = too_small(&path, tier.rates, everywhere, "", report);
        if whole.is_some() {
            problems.extend(whole);
            continue;
        }
        for feature in &settings.features {
            let Some(ratio) = feature.ratio else { continue };
            let cell = Rates { tokens_per_minute: tier.cell_tokens(ratio), ..tier.rates };
            let times = format!(" times features.{}.ratio", feature.name);
            problems.extend(too_small(&path, cell, everywhere, &times, report));
        }
    }
    report.tell_all(problems);
}

/// The least that any of these agents asks for, with its name; `None` if that is not known of all that use a model, or none does.
fn least_of<'a>(agents: impl Iterator<Item = &'a Agent>, report: &Report) -> Option<(&'a Name, u64)> {
    let mut least: Option<(&Name, u64)> = None;
    for agent in agents {
        let path = key_path("agents", agent.settings.name.as_str());
        let is_http = matches!(agent.backend, AgentBackend::Http(_));
        if !report.is_sound(&key_path(&path, "max_output_tokens")) || (is_http && !is_placed(agent, report)) {
            return None;
        }
        let AgentBackend::Model(model) = &agent.backend else { continue };
        let tokens = u64::from(model.max_output_tokens?);
        if least.is_none_or(|(_, known)| tokens < known) {
            least = Some((&agent.settings.name, tokens));
        }
    }
    least
}

fn leans_on(agent: &Agent, provider: &Name) -> bool {
    agent.settings.provider == *provider || agent.targets.iter().any(|target| target.provider == *provider)
}

fn too_small(path: &str, rates: Rates, least: Option<(&Name, u64)>, times: &str, report: &Report) -> Option<Problem> {
    let (agent, asked) = least?;
    let tokens = rates.tokens_per_minute.filter(|tokens| *tokens < asked && rates.tokens != CountedTokens::Input)?;
    let key = key_path(path, "tokens_per_minute");
    if !report.is_sound(&key_path(path, "tokens")) {
        return None;
    }
    let rule = format!(
        "{times} is less than one answer may have (agents.{agent}.max_output_tokens = {asked}): nothing would pass"
    );
    let rule = rule.trim_start().to_owned();
    Some(Problem { origin: report.origin_of(&key), key, value: Some(tokens.to_string()), rule })
}

#[cfg(test)]
mod tests {
    use crate::settings::tests::Given;

    const AGENT: &str = "[providers.o]\nkind = 'openai'\nbase_url = 'http://127.0.0.1:1/v1'\nmodel = 'm'\n[agents.draft]\nprovider = 'o'\nmax_output_tokens = 5000\n[agents.review]\nmax_output_tokens = 6000\n";

    #[test]
    fn a_budget_smaller_than_one_request_is_refused() {
        let refused = "is less than one answer may have (agents.draft.max_output_tokens = 5000): nothing would pass";
        for (text, key) in [
            ("[features.batch]\ntokens_per_minute = 4999", "features.batch.tokens_per_minute = 4999: "),
            ("[tiers.free]\ntokens_per_minute = 3000", "tiers.free.tokens_per_minute = 3000: "),
            (
                "[tiers.free]\ntokens_per_minute = 20000\n[features.batch]\nratio = 0.15",
                "tiers.free.tokens_per_minute = 3000: times features.batch.ratio ",
            ),
        ] {
            let error = Given::config(&format!("{AGENT}{text}\n")).load().unwrap_err().to_string();
            assert_eq!(error, format!("w.toml:11: {key}{refused}"), "{text}");
        }
        for text in [
            "[features.batch]\ntokens_per_minute = 5000",
            "[features.batch]\ntokens_per_minute = 100\ntokens = 'input'",
            "[features.batch]\ntokens_per_minute = 100\n[agents.chat]\nprovider = 'o'\nmodel = 'n'",
            "[features.batch]\ntokens_per_minute = 100\n[agents.chat]\nprovider = 'o'\nmax_output_tokens = 100",
        ] {
            assert!(Given::config(&format!("{AGENT}{text}\n")).load().is_ok(), "{text}");
        }
        let own = AGENT.replace("model = 'm'\n", "model = 'm'\ntokens_per_minute = 10\n");
        let error = Given::config(&own).load().unwrap_err().to_string();
        assert_eq!(error, format!("w.toml:5: providers.o.tokens_per_minute = 10: {refused}"));
    }
}
