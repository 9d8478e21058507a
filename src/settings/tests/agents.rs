//! Agents, their folders and their providers.

use super::given::{Given, SECONDS};
use crate::settings::{agent_backend::AgentBackend, provider::ProviderBackend};

#[test]
fn no_file_at_all_is_the_agents_built_in() {
    let settings = Given::nothing().settings();
    let names: Vec<&str> = settings.agents.iter().map(|agent| agent.settings.name.as_str()).collect();
    assert_eq!(names, ["draft", "review"]);
    assert_eq!(settings.providers.len(), 1);
    assert_eq!(settings.providers[0].backend, ProviderBackend::Embedded);
    assert_eq!(Given::nothing().settings(), Given::config("").settings());
    assert_eq!(Given::nothing().only(&["review"]).settings().agents.len(), 1);
}

#[test]
fn an_agent_finds_its_provider() {
    let check = |config: &str, manifest: &str, provider: &str| {
        let given = Given::config(config).folder("draft", &[("agent.toml", manifest)]).only(&["draft"]);
        assert_eq!(given.settings().agent("draft").unwrap().settings.provider.as_str(), provider, "{config}");
    };
    let one = "[providers.a]\nkind = 'embedded'\n";
    let two = "[providers.a]\nkind = 'embedded'\n[providers.b]\nkind = 'embedded'\n";
    check("", "", "embedded");
    check(one, "", "a");
    check(one, "provider = 'embedded'", "embedded");
    check(two, "", "embedded");
    check(two, "provider = 'b'", "b");
    check(&format!("{two}[agents.draft]\nprovider = 'a'"), "provider = 'b'", "a");
    Given::config(&format!("{two}[agents.draft]\nslots = 1"))
        .only(&[])
        .refused(&["w.toml:5: agents.draft.provider: must be set, as there are several providers: a, b"]);
    Given::config("[providers.local]\nkind = 'embedded'\n[agents.draft]\nprovider = 'locla'")
        .only(&[])
        .refused(&["w.toml:4: agents.draft.provider = \"locla\": there is no such provider, did you mean `local`?"]);
}

#[test]
fn manifests_lie_below_the_configuration_and_bring_only_what_fits() {
    let manifest = "description = 'Writes.'\nslots = 3\ntemperature = 0.5\nmodel = 'small'\nprompt = 'other.md'\n\
                    [breaker]\nopen = '10s'\ntrials = 4\n[mapping]\noutput = '/x'\n";
    let files = [("agent.toml", manifest), ("other.md", "Draft {{ input }}"), ("schema.json", "{\"type\":\"object\"}")];
    let config = "[defaults.breaker]\ntrials = 3\nopen = '20s'\nopen_growth = 2.0\n[providers.p]\nkind = 'KIND'\n\
                  URL\n[agents.draft.breaker]\nopen = '40s'\n";
    let with = |kind: &str, url: &str| {
        let config = config.replace("KIND", kind).replace("URL", url);
        Given::config(&config).folder("draft", &files).only(&["draft"]).settings().agent("draft").unwrap().clone()
    };
    let draft = with("openai", "base_url = 'http://h'\nmodel = 'large'");
    assert_eq!(draft.description.as_deref(), Some("Writes."));
    assert_eq!(draft.settings.slots, 3);
    assert_eq!(draft.settings.model.as_deref(), Some("large"), "the provider knows its server");
    assert_eq!(draft.settings.breaker.open, SECONDS(40));
    assert_eq!(draft.settings.breaker.trials, 4, "a manifest is more special than a default");
    assert!((draft.settings.breaker.open_growth - 2.0).abs() < f64::EPSILON);
    let AgentBackend::Model(model) = draft.backend else { panic!() };
    assert_eq!(model.prompt.as_deref(), Some("Draft {{ input }}"));
    assert_eq!(model.schema, Some(serde_json::json!({"type": "object"})));
    let draft = with("openai", "base_url = 'http://h'");
    assert_eq!(draft.settings.model.as_deref(), Some("small"));
    let draft = with("embedded", "");
    assert!(matches!(draft.backend, AgentBackend::Embedded { twin } if twin.as_str() == "draft"));
    let draft = with("http", "base_url = 'http://h'");
    let AgentBackend::Http(http) = draft.backend else { panic!() };
    assert_eq!(http.mapping.output.as_deref(), Some("/x"));
    assert!(http.schema.is_some());
}

#[test]
fn prompts_and_schemas_are_looked_into() {
    let given = || {
        let provider = "[providers.p]\nkind = 'openai'\nbase_url = 'http://h'\nmodel = 'm'\n";
        Given::config(&format!("{provider}[agents.draft]\nprompt = 'p.md'\nschema = 's.json'")).only(&[])
    };
    let good = given().file("p.md", "Hello {{ input.text }}").file("s.json", "{}");
    let AgentBackend::Model(model) = &good.settings().agent("draft").unwrap().backend.clone() else { panic!() };
    assert_eq!(model.prompt.as_deref(), Some("Hello {{ input.text }}"));
    given().refused(&[
        "w.toml:6: agents.draft.prompt = \"p.md\": cannot be read: not found",
        "w.toml:7: agents.draft.schema = \"s.json\": cannot be read: not found",
    ]);
    let error = given().file("p.md", "a\n{% if %}").file("s.json", "{\n\"type\": }").load().unwrap_err().to_string();
    assert!(error.contains("p.md:2: agents.draft.prompt = \"p.md\": is no template: "), "{error}");
    assert!(error.contains("s.json:2: agents.draft.schema = \"s.json\": is no JSON: "), "{error}");
    let error = given().file("p.md", "").file("s.json", "{\"type\": 5}").load().unwrap_err().to_string();
    assert!(error.contains("s.json: agents.draft.schema = \"s.json\": is no JSON Schema: "), "{error}");
    Given::nothing().folder("draft", &[("agent.toml", "slots = 'x'\nprompt = '../p.md'\nslot = 1")]).refused(&[
        "agents/draft/agent.toml:1: agents.draft.slots = \"x\": must be a whole number from 0 to 100000",
        "agents/draft/agent.toml:3: agents.draft.slot = 1: unknown key, did you mean `slots`?",
    ]);
    let outside = [("agent.toml", "prompt = '../p.md'")];
    let openai = "[providers.p]\nkind = 'openai'\nbase_url = 'http://h'\nmodel = 'm'\n";
    Given::config(openai)
        .folder("draft", &outside)
        .only(&["draft"])
        .refused(&["agents/draft/agent.toml:1: agents.draft.prompt = \"../p.md\": is no file of the agent's folder"]);
}

#[test]
fn an_agent_that_leans_on_the_embedded_provider_makes_no_second_one_for_the_others() {
    // `draft` is read before `style` and brings the embedded provider with it.
    let given = Given::config(
        "[providers.p]\nkind = 'http'\nbase_url = 'http://127.0.0.1:1'\n[agents.alpha]\n[agents.style]\n",
    )
    .folder("draft", &[("agent.toml", "provider = 'embedded'\nembedded = 'draft'")]);
    let settings = given.load().unwrap_or_else(|error| panic!("{error}"));
    for (agent, provider) in [("alpha", "p"), ("draft", "embedded"), ("style", "p")] {
        assert_eq!(settings.agent(agent).map(|agent| agent.settings.provider.as_str()), Some(provider), "{agent}");
    }
}
