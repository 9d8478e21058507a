//! Several places of one agent, and ways of providers.

use super::given::Given;
use crate::settings::{endpoint::AuthStyle, load::explain, provider::ProviderBackend};

#[test]
fn targets_and_the_ways_of_providers() {
    let config = |agent: &str| {
        format!(
            "[providers.a]\nkind = 'openai'\nbase_url = 'http://a'\n[providers.b]\nkind = 'openai'\nbase_url = 'http://b'\nmodel = 'y'\n\
             api_key_env = 'KEY'\nauth = {{ header = 'API-Key' }}\npaths = {{ chat = '/d/{{model}}/chat' }}\n[agents.w]\n{agent}"
        )
    };
    for (targets, ranks) in [
        ("{ provider = 'a', model = 'x' }, { provider = 'b' }", [(0, 1), (1, 1)]),
        ("{ provider = 'a', model = 'x', weight = 3 }, { provider = 'b' }", [(0, 3), (0, 1)]),
        ("{ provider = 'a', model = 'x', weight = 3, order = 2 }, { provider = 'b', order = 1 }", [(2, 3), (1, 1)]),
    ] {
        let settings = Given::config(&config(&format!("targets = [{targets}]\nmodel_names = ['gpt']"))).settings();
        let agent = settings.agent("w").unwrap();
        let first = (agent.settings.provider.as_str(), agent.settings.model.as_deref());
        assert_eq!((first, agent.model_names.as_slice()), (("a", Some("x")), ["gpt".to_owned()].as_slice()));
        let further = &agent.targets[0];
        assert_eq!((further.provider.as_str(), further.model.as_deref()), ("b", Some("y")));
        assert_eq!([agent.rank, further.rank].map(|rank| (rank.order, rank.weight)), ranks, "{targets}");
        let ProviderBackend::OpenAi { endpoint, paths, .. } = &settings.provider("b").unwrap().backend else {
            panic!()
        };
        assert_eq!(endpoint.auth, AuthStyle::Header("api-key".to_owned()));
        assert_eq!(paths.chat.as_deref(), Some("/d/{model}/chat"));
    }
    let many = (0..17).map(|number| format!("{{ provider = 'a', model = '{number}' }}")).collect::<Vec<_>>().join(", ");
    // Line 11 is the agent's table, 12 its first line.
    for (agent, said) in [
        (
            "targets = [{ provider = 'a', model = 'x' }, { provider = 'a', model = 'x' }]",
            "w.toml:12: agents.w.targets[1].provider = \"a\": is the same provider and model as agents.w.targets[0] (w.toml:12)",
        ),
        (
            "targets = [\n{ provider = 'b' },\n{ provider = 'b', model = 'y' }]",
            "w.toml:14: agents.w.targets[1].provider = \"b\": is the same provider and model as agents.w.targets[0] (w.toml:13)",
        ),
        (
            "targets = [{ provider = 'a', model = 'x' },\n{ provider = 'c' }]",
            "w.toml:13: agents.w.targets[1].provider = \"c\": there is no such provider",
        ),
        (
            "targets = [{ provider = 'c' }]",
            "w.toml:12: agents.w.targets[0].provider = \"c\": there is no such provider",
        ),
        (
            "targets = [{ provider = 'b' }, { provider = 'a' }]",
            "agents.w.targets[1].provider = \"a\": needs a model, here or as the provider's own",
        ),
        (
            "targets = [{ provider = 'a', model = 'x', weight = 0 }]",
            "w.toml:12: agents.w.targets[0].weight = 0: must be a whole number from 1 to 1000",
        ),
        (
            "targets = [{ provider = 'a', model = 'x', order = -1 }]",
            "agents.w.targets[0].order = -1: must be a whole number from 0 to 1000",
        ),
        (
            "targets = [{ provider = 'a', model = 5 }]",
            "agents.w.targets[0].model = 5: must be a text in quotes, not empty",
        ),
        (
            "targets = [{ provider = 'a', model = 'x', x = 1 }]",
            "w.toml:12: agents.w.targets[0] = { model = \"x\", provider = \"a\", x = 1 }: knows only provider, model, order and weight",
        ),
        (
            "targets = ['a']",
            "w.toml:12: agents.w.targets[0] = \"a\": must be a table, as in { provider = \"a\", model = \"x\" }",
        ),
        ("targets = []", "w.toml:12: agents.w.targets = []: must have 1 to 16 entries, not 0"),
        (&format!("targets = [{many}]"), "must have 1 to 16 entries, not 17"),
        (
            "targets = [{ provider = 'a', model = 'x' }]\nmodel = 'm'\nprovider = 'b'",
            "w.toml:13: agents.w.model = \"m\": stands beside targets (w.toml:12): keep the list or this, not both\n\
             w.toml:14: agents.w.provider = \"b\": stands beside targets (w.toml:12): keep the list or this, not both",
        ),
        // One name, one agent.
        (
            "provider = 'b'\nmodel_names = ['gpt']\n[agents.v]\nprovider = 'b'\nmodel_names = ['x',\n'gpt']",
            "w.toml:13: agents.w.model_names = \"gpt\": means another agent already: agents.v.model_names (w.toml:16)",
        ),
        (
            "provider = 'b'\nmodel_names = ['v']\n[agents.v]\nprovider = 'b'",
            "w.toml:13: agents.w.model_names = \"v\": means another agent already: agents.v (w.toml:15)",
        ),
        ("provider = 'b'\nmodel_names = ['w']", "agents.w.model_names = \"w\": is the agent's own name"),
        ("provider = 'b'\nmodel_names = ['g', 'g']", "agents.w.model_names = \"g\": stands there twice"),
    ] {
        let error = Given::config(&config(agent)).load().unwrap_err();
        assert!(error.to_string().contains(said), "{agent}:\n{error}\nwanted: {said}");
    }
    // The configuration's list goes before what a manifest names.
    let given = Given::config(&config("targets = [{ provider = 'a', model = 'x' }, { provider = 'b' }]"))
        .folder("w", &[("agent.toml", "description = 'x'\nmodel = 'mine'")]);
    let explained = explain(&given.settings());
    for (key, want) in [("targets[0]", "a/x order 0 weight 1"), ("targets[1]", "b/y order 1 weight 1"), ("model", "x")]
    {
        let row = explained.iter().find(|row| row.key == format!("agents.w.{key}")).unwrap();
        assert_eq!((row.value.as_str(), row.origin.to_string().as_str()), (want, "w.toml:12"), "{key}");
    }
}
