//! Requests of the supervisor's own are never made of a model that has a price: nobody asked for them, and nobody would see the bill
//! coming. A half-open breaker of such a model is tried by a call that somebody wants. `health` costs nothing and stays allowed.

use super::{
    agent::Agent, node::key_path, problem::Problem, provider::Provider, report::Report, roster::is_placed,
    spending::SpendingTable,
};
use crate::{model::name::Name, policy::breaker::settings::Probe};

/// Refuses `probe = "request"` where it would be paid for, also where the defaults ask for it.
pub(super) fn check_probes(providers: &[Provider], agents: &[Agent], spending: &SpendingTable, report: &mut Report) {
    let mut problems = Vec::new();
    let mut refuse = |path: &str, target: &str| {
        let key = key_path(&key_path(path, "breaker"), "probe");
        let rule = format!(
            "must be \"off\" or \"health\" here: {target} has a price (prices.\"{target}\"), and such a request of our own would be paid for"
        );
        problems.push(Problem { origin: report.origin_of(&key), key, value: Some("\"request\"".to_owned()), rule });
    };
    let asks = |agent: &&Agent| agent.settings.breaker.probe == Probe::Request && is_placed(agent, report);
    for agent in agents.iter().filter(asks) {
        if let Some(target) = priced(agent, None, spending) {
            refuse(&key_path("agents", agent.settings.name.as_str()), &target);
        }
    }
    for provider in providers.iter().filter(|provider| provider.settings.breaker.probe == Probe::Request) {
        let name = &provider.settings.name;
        if let Some(target) =
            agents.iter().filter(|agent| is_placed(agent, report)).find_map(|agent| priced(agent, Some(name), spending))
        {
            refuse(&key_path("providers", name.as_str()), &target);
        }
    }
    report.tell_all(problems);
}

/// The first target of an agent, at this provider if one is named, that has a price.
fn priced(agent: &Agent, at: Option<&Name>, spending: &SpendingTable) -> Option<String> {
    let first = (&agent.settings.provider, &agent.settings.model);
    let targets = std::iter::once(first).chain(agent.targets.iter().map(|target| (&target.provider, &target.model)));
    let here = targets.filter(|(provider, _)| at.is_none_or(|at| at == *provider));
    let mut names = here.filter_map(|(provider, model)| Some(format!("{provider}/{}", model.as_deref()?)));
    names.find(|name| spending.prices.contains_key(name))
}

#[cfg(test)]
mod tests {
    use crate::settings::tests::Given;

    const PLACES: &str = "[providers.o]\nkind = 'openai'\nbase_url = 'http://127.0.0.1:1/v1'\nmodel = 'm'\n[providers.p]\nkind = 'openai'\nbase_url = 'http://127.0.0.1:2/v1'\nmodel = 'n'\n";
    const PRICE: &str = "[prices.'o/m']\ninput = 1\n";

    #[test]
    fn what_is_priced_is_never_tried_by_ourselves() {
        let paid = "must be \"off\" or \"health\" here: o/m has a price (prices.\"o/m\"), and such a request of our own would be paid for";
        let probe = "breaker = { probe = 'request' }\n";
        for (text, lines) in [
            (
                format!("{PRICE}[agents.draft]\nprovider = 'o'\n{probe}"),
                vec!["w.toml:13: agents.draft.breaker.probe = \"request\": "],
            ),
            (
                format!(
                    "{PRICE}[agents.draft]\ntargets = [{{ provider = 'p', model = 'n' }}, {{ provider = 'o', model = 'm' }}]\n{probe}"
                ),
                vec!["w.toml:13: agents.draft.breaker.probe = \"request\": "],
            ),
            (
                format!("{PRICE}[agents.draft]\nprovider = 'o'\n[defaults.breaker]\nprobe = 'request'\n"),
                vec![
                    "w.toml:14: agents.draft.breaker.probe = \"request\": ",
                    "w.toml:14: providers.o.breaker.probe = \"request\": ",
                ],
            ),
        ] {
            let error = Given::config(&format!("{PLACES}{text}")).load().unwrap_err().to_string();
            let mut told: Vec<&str> = error.lines().collect();
            told.sort_unstable();
            let want: Vec<String> = lines.iter().map(|line| format!("{line}{paid}")).collect();
            assert_eq!(told, want, "{text}");
        }
        for text in [
            format!("[agents.draft]\nprovider = 'o'\n{probe}"),
            format!("{PRICE}[agents.draft]\nprovider = 'p'\n{probe}"),
            format!("{PRICE}[agents.draft]\nprovider = 'o'\nbreaker = {{ probe = 'health' }}\n"),
            format!("{PRICE}[agents.draft]\nprovider = 'o'\n"),
        ] {
            let loaded = Given::config(&format!("{PLACES}{text}")).load();
            assert!(loaded.is_ok(), "{text}: {:?}", loaded.err());
        }
    }
}
