//! What holds by default for each kind of place, and how cold models are dealt with.

use super::given::{Given, SECONDS};
use crate::{
    policy::retry_settings::RetrySettings,
    policy::slow::SlowBy,
    settings::load::explain,
    settings::{
        agent_backend::AgentBackend,
        ollama::KeepAlive,
        provider::{ProviderBackend, StreamUpstream},
    },
};

#[test]
fn defaults_by_kind() {
    let config = "
[providers.e]\nkind = 'embedded'
[providers.h]\nkind = 'http'\nbase_url = 'http://h'
[providers.o]\nkind = 'openai'\nbase_url = 'http://o'\nmodel = 'm'
[agents.draft]\nprovider = 'e'\n[agents.web]\nprovider = 'h'\n[agents.chat]\nprovider = 'o'";
    let settings = Given::config(config).only(&[]).settings();
    for (agent, attempt, first_token, stall, slow_by) in [
        ("draft", Some(60), None, None, SlowBy::Total),
        ("web", Some(60), None, Some(20), SlowBy::Total),
        ("chat", None, Some(60), Some(20), SlowBy::FirstToken),
    ] {
        let agent = &settings.agent(agent).unwrap().settings;
        assert_eq!(agent.timeouts.attempt, attempt.map(SECONDS), "{agent:?}");
        assert_eq!(agent.timeouts.first_token, first_token.map(SECONDS), "{agent:?}");
        assert_eq!(agent.timeouts.stall, stall.map(SECONDS), "{agent:?}");
        assert_eq!((agent.timeouts.connect, agent.timeouts.call), (SECONDS(2), SECONDS(180)));
        assert_eq!((agent.slow_by, agent.slots), (slow_by, 10));
        assert_eq!(agent.retry, RetrySettings::default());
        assert_eq!(agent.breaker.consecutive_failures, Some(5));
        assert_eq!(agent.breaker.trial_timeout, Some(SECONDS(180)), "raised to the call's");
    }
    for provider in &settings.providers {
        assert_eq!(provider.settings.slots, None);
        assert_eq!(provider.settings.breaker.consecutive_failures, Some(3));
    }
    let ProviderBackend::OpenAi { stream_upstream, .. } = settings.provider("o").unwrap().backend else { panic!() };
    assert_eq!(stream_upstream, StreamUpstream::AsAsked);
    assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
}

#[test]
fn an_ollama_server_needs_little_said() {
    let config = "
[providers.o]\nkind = 'ollama'\nmodel = 'qwen'
[agents.chat]\nprovider = 'o'
[agents.long]\nprovider = 'o'\nmodel = 'llama'\nnum_ctx = 32768\nkeep_alive = 'forever'\nmax_output_tokens = 4000";
    let settings = Given::config(config).only(&[]).settings();
    let provider = settings.provider("o").unwrap();
    let ProviderBackend::Ollama { endpoint, stream_upstream, context } = &provider.backend else {
        panic!("{provider:?}")
    };
    assert_eq!((endpoint.base_url.as_str(), *stream_upstream), ("http://127.0.0.1:11434", StreamUpstream::Always));
    assert_eq!((context.num_ctx, context.keep_alive), (8_192, KeepAlive::For(SECONDS(300))));
    assert_eq!(provider.settings.slots, Some(1), "it queues without bound and says nothing");
    let kept = |name: &str| {
        let AgentBackend::Model(model) = settings.agent(name).unwrap().backend.clone() else { panic!("{name}") };
        model.context.over(*context)
    };
    assert_eq!(kept("chat"), *context);
    assert_eq!((kept("long").num_ctx, kept("long").keep_alive), (32_768, KeepAlive::Forever));
    let chat = &settings.agent("chat").unwrap().settings;
    assert_eq!((chat.timeouts.attempt, chat.slow_by, chat.model.as_deref()), (None, SlowBy::FirstToken, Some("qwen")));
    let rows = explain(&settings);
    let told = |key: &str| rows.iter().find(|row| row.key == key).map(|row| row.value.clone());
    for (key, value) in [
        ("providers.o.base_url", "http://127.0.0.1:11434"),
        ("providers.o.num_ctx", "8192"),
        ("agents.chat.num_ctx", "8192"),
        ("agents.chat.keep_alive", "5m"),
        ("agents.long.num_ctx", "32768"),
        ("agents.long.keep_alive", "forever"),
    ] {
        assert_eq!(told(key).as_deref(), Some(value), "{key}");
    }
}

#[test]
fn what_an_ollama_server_makes_of_odd_settings() {
    let config = "
[providers.o]\nkind = 'ollama'\nmodel = 'qwen'\nkeep_alive = '0s'
[agents.one]\nprovider = 'o'
[agents.two]\nprovider = 'o'\nnum_ctx = 4096
[agents.other]\nprovider = 'o'\nmodel = 'llama'\nnum_ctx = 4096";
    let warnings = Given::config(config).only(&[]).settings().warnings;
    let said: Vec<String> = warnings.iter().map(ToString::to_string).filter(|line| !line.contains("slots")).collect();
    assert_eq!(said.len(), 2, "{said:#?}");
    assert!(said[0].contains("keep_alive = \"0s\": puts the model away after each request"), "{said:#?}");
    assert!(said[1].contains("agents.two.num_ctx = 4096: is another one than that of agents.one (8192)"), "{said:#?}");
    let head = "[providers.o]\nkind = 'ollama'\nmodel = 'q'\n[agents.chat]\nprovider = 'o'\n";
    for (line, said) in [
        ("num_ctx = 100", "num_ctx = 100: must be a whole number from 128 to 100000000"),
        ("keep_alive = 5", "keep_alive = 5: must be a duration, as in \"5m\", or \"forever\""),
        ("keep_alive = '5'", "keep_alive = \"5\": must have a unit: ms, s, m or h, as in \"30s\""),
        (
            "max_output_tokens = 8192",
            "max_output_tokens = 8192: leaves no room for a prompt at o: num_ctx = 8192 holds prompt and answer together",
        ),
        ("mapping = {}", "mapping = {}: is only for agents of a provider of kind \"http\""),
    ] {
        Given::config(&format!("{head}{line}")).only(&[]).refused(&[&format!("w.toml:6: agents.chat.{said}")]);
    }
    // A vendor may stand in for a local server, and the other way round.
    let mixed = "
[providers.o]\nkind = 'ollama'\n[providers.v]\nkind = 'openai'\nbase_url = 'http://v'
[agents.a]\ntargets = [{ provider = 'o', model = 'qwen' }, { provider = 'v', model = 'gpt' }]";
    assert_eq!(Given::config(mixed).only(&[]).settings().agent("a").unwrap().targets.len(), 1);
}

#[test]
fn how_cold_models_are_dealt_with() {
    use crate::{
        policy::breaker::settings::Probe,
        runtime::settings::{LoadedModels, Prewarm, WarmUpWhen, WarmthSettings},
    };
    let config = "[defaults]\nwarm_up_timeout = '4m'\n\
                  [providers.l]\nkind = 'openai'\nflavor = 'llama_cpp'\nbase_url = 'http://l'\nmodel = 'm'\nkeeps_warm = '5m'\n\
                  [providers.o]\nkind = 'ollama'\nmodel = 'm'\nmodels_max = 2\nwarm_up_timeout = '90s'\n\
                  [providers.h]\nkind = 'openai'\nbase_url = 'http://h'\nmodel = 'm'\nwarm_up = 'off'\n\
                  breaker = { probe = 'health' }\n\
                  [agents.one]\nprovider = 'l'\n[agents.two]\nprovider = 'l'\nkeeps_warm = 'off'\nprewarm = true\n\
                  [agents.three]\nprovider = 'o'\n[agents.four]\nprovider = 'h'\n[agents.five]\nprovider = 'h'\nwarm_up = 'auto'\n\
                  breaker = { probe = 'request' }\n[agents.six]\nprovider = 'embedded'\nembedded = 'draft'\n";
    let settings = Given::config(config).only(&[]).settings();
    let of = |agent: &str| settings.agent(agent).unwrap().settings.warmth;
    let usual = WarmthSettings { timeout: SECONDS(240), ..WarmthSettings::default() };
    let one = WarmthSettings { keeps_for: Some(SECONDS(300)), ..usual };
    assert_eq!(of("one"), one);
    assert_eq!(of("two"), WarmthSettings { keeps_for: None, prewarm: Prewarm::AtRuns, ..one });
    assert_eq!(of("three"), WarmthSettings { timeout: SECONDS(90), ..usual }, "the provider's own word");
    assert_eq!((of("four").when, of("five").when), (WarmUpWhen::Off, WarmUpWhen::Auto));
    assert_eq!(of("six"), WarmthSettings::default());
    let models = |provider: &str| settings.provider(provider).unwrap().settings.loaded_models;
    assert_eq!(models("l"), LoadedModels::TheOneItHas);
    assert_eq!((models("o"), models("h")), (LoadedModels::AtMost(2), LoadedModels::Unknown));
    let probe = |breaker: &crate::policy::breaker::settings::BreakerSettings| breaker.probe;
    assert_eq!(probe(&settings.provider("h").unwrap().settings.breaker), Probe::Health);
    assert_eq!(probe(&settings.agent("five").unwrap().settings.breaker), Probe::Request);
    // What only the defaults ask for reaches whoever can be asked so.
    let config = "[defaults.breaker]\nprobe = 'request'\n[providers.o]\nkind = 'ollama'\nmodel = 'm'\n\
                  [agents.model]\nprovider = 'o'\n[agents.twin]\nprovider = 'embedded'\nembedded = 'draft'\n";
    let settings = Given::config(config).only(&[]).settings();
    let probe = |agent: &str| settings.agent(agent).unwrap().settings.breaker.probe;
    assert_eq!((probe("model"), probe("twin")), (Probe::Request, Probe::Off));
}
