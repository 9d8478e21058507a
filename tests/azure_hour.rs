//! One real hour of two LLM services through the compartments, in virtual time: no rolling minute is over its budget, conversations are not
//! held up by code, and code gets through. The traces are read where they lie; without them there is nothing to play.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

#[path = "../examples/azure_hour/hour.rs"]
mod hour;

use std::{env, path::PathBuf, time::Duration};

use hour::{
    BASE, CODE_TOKENS, CONVERSATION_TOKENS, OUTPUT_TOKEN, PROMPT_TOKEN, Seen, WAIT_MAX, play,
    trace::{Arrival, Service, read},
};

fn arrivals() -> Option<Vec<Arrival>> {
    let folder =
        env::var("WATERTIGHT_SHARED").unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../shared").into());
    let folder = PathBuf::from(folder).join("data/azure-llm-2023");
    if !folder.exists() {
        println!("skipped: {} is not there", folder.display());
        return None;
    }
    Some(read(&folder).unwrap())
}

#[test]
fn no_rolling_minute_of_a_real_hour_is_over_its_budget() {
    let Some(arrivals) = arrivals() else { return };
    let of = |service| arrivals.iter().filter(move |arrival| arrival.service == service);
    let offered = |service| of(service).count() as u64;
    let (conversations, code) = (offered(Service::Conversation), offered(Service::Code));
    // What a conversation takes by itself, at the 99th of a hundred.
    let mut alone: Vec<Duration> = of(Service::Conversation)
        .map(|call| {
            let times = |each: Duration, count: u64| each * u32::try_from(count).unwrap();
            BASE + times(PROMPT_TOKEN, call.prompt_tokens) + times(OUTPUT_TOKEN, call.output_tokens)
        })
        .collect();
    alone.sort_unstable();
    let alone = alone[alone.len() * 99 / 100];
    let all = play(arrivals.clone()).unwrap();
    for (service, cap, offered) in
        [(Service::Conversation, CONVERSATION_TOKENS, conversations), (Service::Code, CODE_TOKENS, code)]
    {
        let seen = &all[&service];
        let minute = seen.minute_max();
        assert!(minute <= cap, "{service:?}: {minute} of {cap}");
        assert!(minute * 10 > cap * 7, "{service:?}: the budget was nowhere near: {minute} of {cap}");
        assert_eq!(seen.took_ms.len() as u64 + seen.lost, offered, "{service:?}: each had an end");
        assert_eq!(seen.used.len(), seen.took_ms.len(), "{service:?}: each answer is one attempt");
        assert!(seen.refused.contains_key("TOKEN_BUDGET_EXHAUSTED"), "{service:?}: {:?}", seen.refused);
    }
    let conversation = &all[&Service::Conversation];
    let p99 = Duration::from_secs_f64(conversation.percentile_ms(99).unwrap() / 1_000.0);
    assert!(p99 <= alone + WAIT_MAX, "{p99:?} beside {alone:?} alone");
    assert!(conversation.lost * 20 < conversations, "{} of {conversations}", conversation.lost);
    assert_eq!(all[&Service::Code].lost, 0, "code that was told to come back got through");
}

#[test]
fn the_fullest_minute_is_found_wherever_it_begins() {
    let at = |seconds: u64, tokens| (Duration::from_secs(seconds), tokens);
    let seen = Seen { used: vec![at(70, 5), at(0, 10), at(59, 7), at(60, 20), at(130, 1)], ..Seen::default() };
    // From just after 0 to 60 and from 59 to 70: the call at 0 has left when the one at 60 comes.
    assert_eq!(seen.minute_max(), 7 + 20 + 5);
}
