//! What a builder refuses, and that it names it.

use watertight::runtime::{
    builder::StartError,
    settings::{AgentSettings, ProviderSettings},
};

use crate::kit::{Answer, Scripted, agent, builder, name, provider};

async fn refused(provider: ProviderSettings, agents: Vec<AgentSettings>) -> String {
    let mut builder = builder().provider(provider);
    for agent in agents {
        builder = builder.agent(agent, Scripted::always(Answer::Good));
    }
    let error: StartError = builder.start().await.unwrap_err();
    error.to_string()
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_is_named() {
    let draft = || agent("draft", "local");
    let with = |change: fn(&mut AgentSettings)| {
        let mut settings = agent("draft", "local");
        change(&mut settings);
        vec![settings]
    };
    let four = || ProviderSettings { slots: Some(4), ..provider("local") };
    for (provider, agents, words) in [
        (provider("local"), vec![agent("draft", "elsewhere")], ["draft", "elsewhere"]),
        (provider("local"), vec![draft(), draft()], ["draft", "twice"]),
        (provider("local"), with(|draft| draft.slots = 100_001), ["slots", "100001"]),
        (provider("local"), with(|draft| draft.retry.attempts_max = 0), ["attempts_max", "0"]),
        (provider("local"), with(|draft| draft.breaker.trials = 0), ["trials", "0"]),
        (provider("local"), with(|draft| draft.timeouts.call = std::time::Duration::ZERO), ["call_timeout", "0s"]),
        (ProviderSettings { slots: Some(100_001), ..four() }, vec![draft()], ["slots", "100001"]),
        (ProviderSettings { guaranteed: vec![(name("draft"), 5)], ..four() }, vec![draft()], ["5", "4"]),
        (ProviderSettings { guaranteed: vec![(name("nobody"), 1)], ..four() }, vec![draft()], ["nobody", "local"]),
    ] {
        let error = refused(provider, agents).await;
        for word in words {
            assert!(error.contains(word), "{error:?} does not name {word}");
        }
    }
}
