//! Whole imports: realistic files with the very configuration and account that come of them, tables of single properties, and files made
//! by chance, of which none may panic and none may give what our own loader refuses.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::{
    command::accepted,
    finding::{Finding, Imported, Outcome},
    litellm,
    resilience4j::{self, Options},
};
use crate::cli::import::finding::{as_json, as_table, in_short};

const APPLICATION: &str = include_str!("../../../tests/import/application.yml");
const PROXY: &str = include_str!("../../../tests/import/litellm.yaml");
/// What must never come out, wherever it stood.
const SECRETS: [&str; 6] = [
    "do-not-show-me",
    "sk-this-is-a-real-looking-key",
    "hide-me",
    "sk-1234-master",
    "hunter2",
    "https://where.example",
];

fn spring(text: &str) -> Imported {
    resilience4j::import("application.yml", text.as_bytes(), &Options::default())
        .unwrap_or_else(|error| panic!("{error}"))
}

fn proxy(text: &str) -> Imported {
    litellm::import("config.yaml", text.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

/// The configuration as a tree, with our own loader's approval.
#[track_caller]
fn tree(imported: &Imported) -> toml::Table {
    accepted(&imported.config).unwrap_or_else(|error| panic!("{error}\n{}", imported.config));
    imported.config.parse().unwrap()
}

/// The value at a dotted path, as TOML.
fn at(tree: &toml::Table, path: &str) -> Option<String> {
    let mut parts = path.split('.');
    let mut value = tree.get(parts.next()?)?;
    for part in parts {
        value = value.get(part)?;
    }
    Some(value.to_string())
}

#[track_caller]
fn says(imported: &Imported, line: u64, outcome: Outcome, said: &str) {
    let of_line: Vec<&Finding> = imported.findings.iter().filter(|finding| finding.line == Some(line)).collect();
    let found = of_line.iter().any(|finding| finding.outcome == outcome && finding.said.contains(said));
    assert!(found, "line {line}: {said}: {of_line:#?}");
}

/// Every line of `text` that holds a key with a value has its finding.
#[track_caller]
fn nothing_is_left_out(text: &str, imported: &Imported, others: &[u64]) {
    for (index, line) in text.lines().enumerate() {
        let number = index as u64 + 1;
        let trimmed = line.trim().trim_start_matches("- ");
        let has_value = trimmed.split_once(": ").is_some_and(|(_, value)| !value.is_empty());
        if has_value && !trimmed.starts_with('#') && !others.contains(&number) {
            assert!(imported.findings.iter().any(|finding| finding.line == Some(number)), "line {number}: {line}");
        }
    }
}

#[test]
fn an_application_becomes_agents() {
    let imported = spring(APPLICATION);
    let tree = tree(&imported);
    for (path, want) in [
        ("providers.services.kind", "\"http\""),
        ("agents.draft.provider", "\"services\""),
        ("agents.draft.slots", "4"),
        ("agents.draft.timeout", "\"3m\""),
        ("agents.draft.call_timeout", "\"1h9m30s\""),
        ("agents.draft.breaker.window_calls", "10"),
        ("agents.draft.breaker.calls_min", "10"),
        ("agents.draft.breaker.failure_share", "0.5"),
        ("agents.draft.breaker.slow_share", "0.7"),
        ("agents.draft.breaker.slow_call", "\"1m30s\""),
        ("agents.draft.breaker.open", "\"30s\""),
        ("agents.draft.breaker.open_growth", "2.0"),
        ("agents.draft.breaker.open_max", "\"10m\""),
        ("agents.draft.breaker.half_open_max", "\"2m\""),
        ("agents.draft.breaker.half_open_from", "\"entry\""),
        ("agents.draft.breaker.half_open_by", "\"timer\""),
        ("agents.draft.breaker.trials", "5"),
        ("agents.draft.retry.attempts_max", "20"),
        ("agents.draft.retry.backoff", "\"1s\""),
        ("agents.draft.retry.factor", "2.0"),
        ("agents.review.slots", "6"),
        ("agents.review.breaker.window", "\"1m\""),
        ("agents.review.breaker.failure_share", "0.333"),
        ("agents.review.breaker.slow_call", "\"30s\""),
        ("agents.review.retry.backoff", "\"250ms\""),
        ("agents.style.slots", "8"),
        ("agents.style.timeout", "\"20s\""),
        ("agents.style.retry.attempts_max", "1"),
        ("agents.style.breaker.window_calls", "20"),
        ("agents.meta.breaker.mode", "\"metrics_only\""),
        ("agents.meta.breaker.trials", "50"),
    ] {
        assert_eq!(at(&tree, path).as_deref(), Some(want), "{path}\n{}", imported.config);
    }
    for (key, want) in [("slow_call", "\"19.8s\""), ("slow_share", "1.0")] {
        let path = format!("agents.style.breaker.{key}");
        let said = "an attempt of 20 s is over before it could be slow: only its end is";
        assert_eq!(at(&tree, &path).as_deref(), Some(want), "{said}");
    }
    assert_eq!(tree["agents"].as_table().unwrap().len(), 4);
}

#[test]
fn an_application_is_accounted_for() {
    let imported = spring(APPLICATION);
    // Of `spring` and `server` only the first line is told.
    nothing_is_left_out(APPLICATION, &imported, &[6]);
    for (line, outcome, said) in [
        (4, Outcome::NotSupported, "not Resilience4j's: 2 properties"),
        (14, Outcome::Taken, "draft: breaker.window_calls = 10 (count_based)"),
        (14, Outcome::NotTaken, "review: line 45 says otherwise"),
        (15, Outcome::NotTaken, "line 39 says otherwise"),
        (15, Outcome::Taken, "style: breaker.window_calls = 20"),
        (19, Outcome::NotTaken, "style: an attempt ends after 20s"),
        (23, Outcome::NotSupported, "without being registered"),
        (25, Outcome::NotSupported, "docs/adr/0007"),
        (35, Outcome::NotTaken, "no instance inherits it"),
        (38, Outcome::Taken, "draft: inherits from configs.slow"),
        (39, Outcome::Taken, "breaker.window_calls = 10"),
        (49, Outcome::NotTaken, "there is no configs.nobody"),
        (56, Outcome::NotTaken, "a run's step stands in a line"),
        (58, Outcome::Changed, "slots = 6, the default that stands beside REVIEW_SLOTS"),
        (63, Outcome::NotSupported, "no threads are kept"),
        (76, Outcome::Changed, "retry.attempts_max = 20: 1 to 20"),
        (78, Outcome::Changed, "retry.backoff = 250ms"),
        (82, Outcome::Taken, "draft: timeout = 3m"),
        (89, Outcome::NotSupported, "limits of requests are not carried over"),
        (92, Outcome::NotSupported, "the order of guards is fixed"),
        (96, Outcome::NotTaken, "--profile prod takes it over"),
    ] {
        says(&imported, line, outcome, said);
    }
    let table = as_table(&imported.findings);
    let json = as_json(&imported.findings).to_string();
    for secret in SECRETS {
        assert!(!table.contains(secret) && !json.contains(secret) && !imported.config.contains(secret), "{secret}");
    }
    assert!(in_short(&imported.findings).contains("not supported"));
}

/// The lines with the word `default`, as `key: what is said`, of some keys.
fn defaults(imported: &Imported, keys: &[&str]) -> Vec<String> {
    let of_default = |finding: &&Finding| finding.outcome == Outcome::Default && keys.contains(&finding.key.as_str());
    imported.findings.iter().filter(of_default).map(|finding| format!("{}: {}", finding.key, finding.said)).collect()
}

/// What one instance gives says nothing of another one.
#[test]
fn what_the_file_leaves_open_is_told_for_each_agent() {
    let full = "slidingWindowSize: 20, minimumNumberOfCalls: 10, waitDurationInOpenState: 10s, permittedNumberOfCallsInHalfOpenState: 4";
    let both = format!(
        "resilience4j:\n  circuitbreaker: {{instances: {{a: {{{full}}}, b: {{slidingWindowSize: 30}}, c: {{slidingWindowSize: 0}}}}}}\n  \
         bulkhead: {{instances: {{a: {{maxConcurrentCalls: 3}}, b: {{maxWaitDuration: 0}}, d: {{maxConcurrentCalls: 4}}}}}}\n  \
         timelimiter: {{instances: {{b: {{cancelRunningFuture: true}}, d: {{timeoutDuration: 50s}}}}}}\n"
    );
    let cases: [(&[&str], &[&str]); 7] = [
        (&["slidingWindowSize"], &[]),
        (
            &["waitDurationInOpenState"],
            &["waitDurationInOpenState: b, c: breaker.open = 30s; Resilience4j would take 60s"],
        ),
        (
            &["minimumNumberOfCalls"],
            &[
                "minimumNumberOfCalls: b: breaker.calls_min = 30, as Resilience4j works it out",
                "minimumNumberOfCalls: c: breaker.calls_min = 10; Resilience4j would take 100",
            ],
        ),
        (
            &["permittedNumberOfCallsInHalfOpenState"],
            &["permittedNumberOfCallsInHalfOpenState: b, c: breaker.trials = 5; Resilience4j would take 10"],
        ),
        (
            &["maxConcurrentCalls", "slots"],
            &[
                "maxConcurrentCalls: b: slots = 10; Resilience4j would take 25",
                "slots: c: slots = 10; Resilience4j has no cap without a bulkhead",
            ],
        ),
        (
            &["timeoutDuration", "timeout"],
            &[
                "timeout: a, c: timeout = 1m: of each attempt; Resilience4j ends none without a time limiter",
                "timeoutDuration: b: timeout = 1m: of each attempt; Resilience4j would take 1s",
            ],
        ),
        (&["(breaker)"], &["(breaker): d: has one with our defaults; Resilience4j has none without an instance"]),
    ];
    let imported = spring(&both);
    for (keys, want) in cases {
        let mut said = defaults(&imported, keys);
        said.sort();
        let mut want = want.to_vec();
        want.sort_unstable();
        assert_eq!(said, want, "{keys:?}");
    }
    // What is written because of another key is no default.
    let imported = spring("resilience4j.circuitbreaker.instances.a.minimumNumberOfCalls: 30\n");
    assert_eq!(defaults(&imported, &["slidingWindowSize"]), [""; 0], "window_calls = 100 is written");
    let imported = spring("resilience4j:\n  circuitbreaker: {instances: {a: {slidingWindowSize: 3}}}\n");
    assert_eq!(defaults(&imported, &["permittedNumberOfCallsInHalfOpenState"]).len(), 1, "trials = 3 is written");
}

/// What is said to hold is what our loader takes for it.
#[test]
fn the_defaults_that_are_told_are_ours() {
    use crate::policy::breaker::settings::{BreakerSettings, WindowKind};
    let ours = BreakerSettings::default();
    let numbers = (ours.window, ours.calls_min, ours.trials, ours.slow_share, ours.open_jitter);
    assert_eq!(numbers, (WindowKind::Calls(20), 10, 5, 0.7, 0.1));
    let times = [Some(ours.slow_call), Some(ours.open), ours.half_open_max].map(|time| time.map(|time| time.as_secs()));
    assert_eq!(times, [Some(30), Some(30), Some(300)]);
}

#[test]
fn a_profile_is_taken_over_when_asked_for() {
    let options = Options { profiles: vec!["prod".to_owned()], base_url: Some("https://agents.example/v1".to_owned()) };
    let imported = resilience4j::import("application.yml", APPLICATION.as_bytes(), &options).unwrap();
    let tree = tree(&imported);
    assert_eq!(at(&tree, "agents.draft.slots").as_deref(), Some("12"));
    assert_eq!(at(&tree, "providers.services.base_url").as_deref(), Some("\"https://agents.example/v1\""));
    says(&imported, 55, Outcome::NotTaken, "overridden by line 96");
}

#[test]
fn single_properties() {
    // (properties of circuitbreaker, of timelimiter, of retry), then what the agent must have.
    for (breaker, limit, retry, want) in [
        ("slidingWindowSize: 5", "", "", &[("breaker.window_calls", "5"), ("breaker.calls_min", "5")][..]),
        ("slidingWindowSize: 3", "", "", &[("breaker.trials", "3")]),
        ("minimumNumberOfCalls: 30", "", "", &[("breaker.window_calls", "100"), ("breaker.calls_min", "30")]),
        ("slidingWindowType: TIME_BASED", "", "", &[("breaker.window", "\"1m40s\""), ("breaker.calls_min", "100")]),
        ("slidingWindowType: time-based, slidingWindowSize: 9999", "", "", &[("breaker.window", "\"1h\"")]),
        ("slidingWindowSize: 99999999", "", "", &[("breaker.window_calls", "10000")]),
        ("slowCallDurationThreshold: 60s", "", "", &[("breaker.slow_call", "\"1m\""), ("timeout", "\"off\"")]),
        ("slowCallDurationThreshold: 5m", "", "", &[("breaker.slow_call", "\"5m\""), ("call_timeout", "\"10m\"")]),
        ("slowCallDurationThreshold: 7d", "", "", &[("breaker.slow_call", "\"84h\""), ("call_timeout", "\"168h\"")]),
        ("waitDurationInOpenState: 20m", "", "", &[("breaker.open", "\"20m\""), ("breaker.open_max", "\"20m\"")]),
        ("maxWaitDurationInHalfOpenState: 0", "", "", &[("breaker.half_open_max", "\"off\"")]),
        ("enableRandomizedWait: true", "", "", &[("breaker.open_jitter", "0.5")]),
        ("transitionToStateAfterWaitDuration: CLOSED", "", "", &[("breaker.half_open_end", "\"closed\"")]),
        ("failureRateThreshold: 12.5%", "", "", &[("breaker.failure_share", "0.125")]),
        ("", "timeoutDuration: 2000", "", &[("timeout", "\"2s\"")]),
        (
            "",
            "",
            "waitDuration: 0",
            &[("retry.backoff", "\"50ms\""), ("retry.factor", "1.0"), ("retry.attempts_max", "3")],
        ),
        ("", "", "waitDuration: 2m", &[("retry.backoff", "\"2m\""), ("retry.backoff_max", "\"2m\"")]),
        ("", "", "enableExponentialBackoff: true", &[("retry.factor", "1.5"), ("retry.backoff", "\"500ms\"")]),
    ] {
        let mut text = "resilience4j:\n".to_owned();
        for (module, properties) in [("circuitbreaker", breaker), ("timelimiter", limit), ("retry", retry)] {
            if !properties.is_empty() {
                let _ = writeln!(text, "  {module}: {{ instances: {{ a: {{ {properties} }} }} }}");
            }
        }
        let imported = spring(&text);
        let tree = tree(&imported);
        for (path, value) in want {
            assert_eq!(
                at(&tree, &format!("agents.a.{path}")).as_deref(),
                Some(*value),
                "{text}{path}\n{}",
                imported.config
            );
        }
    }
}

#[test]
fn a_proxy_becomes_providers_and_agents() {
    let imported = proxy(PROXY);
    let tree = tree(&imported);
    for (path, want) in [
        ("providers.azure.base_url", "\"https://team-eu.openai.azure.com/openai/deployments/gpt-4o-eu\""),
        ("providers.azure.api_key_env", "\"AZURE_API_KEY\""),
        ("providers.azure.auth.header", "\"api-key\""),
        ("providers.azure.query.api-version", "\"2024-10-21\""),
        ("providers.openai.base_url", "\"https://api.openai.com/v1\""),
        ("providers.openai.api_key_env", "\"OPENAI_KEY\""),
        ("providers.ollama.kind", "\"ollama\""),
        ("providers.ollama.base_url", "\"http://localhost:11434\""),
        ("providers.hosted_vllm.base_url", "\"http://127.0.0.1:8080/v1\""),
        ("agents.gpt-4o.model_names", "[\"gpt-4\"]"),
        ("agents.local-qwen.model_names", "[\"local/qwen\"]"),
        ("agents.gpt-4o.timeout", "\"1m\""),
        ("agents.gpt-4o.first_token", "\"10s\""),
        ("agents.gpt-4o.retry.attempts_max", "3"),
        ("agents.gpt-4o.retry.backoff", "\"5s\""),
        ("agents.gpt-4o.breaker.consecutive_failures", "4"),
        ("agents.gpt-4o.breaker.open", "\"30s\""),
        ("agents.local-qwen.model", "\"qwen2.5:3b\""),
        ("agents.local-qwen.slots", "2"),
        ("agents.local-qwen.timeout", "\"1m40s\""),
        ("agents.local-qwen.retry.attempts_max", "2"),
        ("agents.local-qwen.temperature", "0.2"),
        ("agents.local-qwen.max_output_tokens", "2000"),
    ] {
        assert_eq!(at(&tree, path).as_deref(), Some(want), "{path}\n{}", imported.config);
    }
    assert_eq!(tree["agents"].as_table().unwrap().len(), 3);
    assert!(at(&tree, "providers.hosted_vllm.api_key_env").is_none());
}

/// Each target of agent `name` as `provider/model order weight`, `-` for what is not written.
fn targets(imported: &Imported, name: &str) -> Vec<String> {
    let tree = tree(imported);
    let shown = |target: &toml::Value, key: &str| {
        target.get(key).map_or_else(|| "-".to_owned(), |value| value.to_string().trim_matches('"').to_owned())
    };
    let list = tree["agents"][name].get("targets").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    list.iter().map(|target| ["provider", "model", "order", "weight"].map(|key| shown(target, key)).join(" ")).collect()
}

#[test]
fn entries_of_one_name_become_targets() {
    let azure = "azure gpt-4o-eu - 3".to_owned();
    assert_eq!(targets(&proxy(PROXY), "gpt-4o"), [azure, "openai gpt-4o - 1".to_owned()]);
    // Each entry is `model: further parameters`, all of them of one name.
    let cases: [(&[&str], &[&str]); 11] = [
        (&["openai/a"], &[]),
        // Nothing said: LiteLLM draws, so they are equals.
        (&["openai/a", "groq/b"], &["openai a - 1", "groq b - 1"]),
        (&["openai/a, order: 2", "groq/b, order: 1"], &["groq b - -", "openai a - -"]),
        (&["openai/a", "groq/b, order: 7"], &["groq b - -", "openai a - -"]),
        (
            &["openai/a, order: 2", "groq/b, order: 1", "openai/c, order: 2"],
            &["groq b 1 1", "openai a 2 1", "openai c 2 1"],
        ),
        (&["openai/a, weight: 0.25", "groq/b, weight: 0.75"], &["openai a - 333", "groq b - 1000"]),
        (&["openai/a, weight: 5000", "groq/b, weight: 1"], &["openai a - 1000", "groq b - 1"]),
        // Without a share beside others it is only asked where those cannot answer.
        (
            &["openai/z, weight: 0", "openai/a, weight: 2", "groq/b, weight: 1"],
            &["openai a 1 2", "groq b 1 1", "openai z 2 1"],
        ),
        (&["openai/z", "openai/a, weight: 2"], &["openai a - -", "openai z - -"]),
        (&["openai/a, weight: 0", "groq/b, weight: 0"], &["openai a - 1", "groq b - 1"]),
        // The same place twice is one.
        (&["openai/a, weight: 2", "openai/a, weight: 3"], &[]),
    ];
    for (entries, want) in cases {
        let list: String = entries
            .iter()
            .map(|entry| format!("- {{model_name: m, litellm_params: {{model: {entry}}}}}\n"))
            .collect::<Vec<_>>()
            .concat();
        assert_eq!(targets(&proxy(&format!("model_list:\n{list}")), "m"), want, "{list}");
    }
    let many: String = (0..20)
        .map(|n| format!("- {{model_name: m, litellm_params: {{model: openai/m{n}}}}}\n"))
        .collect::<Vec<_>>()
        .concat();
    let imported = proxy(&format!("model_list:\n{many}"));
    assert_eq!(targets(&imported, "m").len(), 16);
    says(&imported, 18, Outcome::NotTaken, "at most 16 targets");
}

#[test]
fn what_targets_cannot_have_for_themselves_is_told() {
    let imported = proxy(
        "model_list:\n- model_name: m\n  litellm_params:\n    model: openai/a\n    timeout: 5\n    max_parallel_requests: 2\n\
         - model_name: m\n  litellm_params:\n    model: groq/b\n    timeout: 9\n    max_parallel_requests: 3\n\
         - model_name: m\n  litellm_params:\n    model: openai/a\n",
    );
    let tree = tree(&imported);
    assert_eq!(at(&tree, "agents.m.slots").as_deref(), Some("5"), "{}", imported.config);
    assert_eq!(at(&tree, "agents.m.timeout").as_deref(), Some("\"5s\""));
    says(&imported, 5, Outcome::Taken, "of each attempt");
    says(&imported, 9, Outcome::Taken, "model b of a provider groq");
    says(&imported, 10, Outcome::NotTaken, "agents.m: targets share their agent's settings, which are those of line 2");
    says(&imported, 11, Outcome::Taken, "slots");
    says(&imported, 14, Outcome::NotTaken, "the same provider and model as the entry of line 2");
}

#[test]
fn what_only_ollama_is_told_is_taken_where_it_is_one() {
    let text = "model_list:\n\
        - model_name: q\n  litellm_params:\n    model: ollama_chat/qwen2.5:3b\n    num_ctx: 16384\n    keep_alive: -1\n    num_predict: 900\n\
        - model_name: r\n  litellm_params:\n    model: ollama/llama\n    num_ctx: 4096\n    keep_alive: soon\n    max_tokens: 4096\n    num_predict: 9\n\
        - model_name: s\n  litellm_params:\n    model: openai/gpt\n    num_ctx: 16384\n\
        - model_name: q\n  litellm_params:\n    model: ollama/other\n    num_ctx: 2048\n\
        - model_name: t\n  litellm_params:\n    model: nobody/x\n    keep_alive: 5m\n";
    let imported = proxy(text);
    let tree = tree(&imported);
    for (path, want) in [
        ("agents.q.num_ctx", Some("16384")),
        ("agents.q.keep_alive", Some("\"forever\"")),
        ("agents.q.max_output_tokens", Some("900")),
        ("agents.r.num_ctx", None),
        ("agents.r.keep_alive", None),
        ("agents.r.max_output_tokens", Some("4096")),
        ("agents.s.num_ctx", None),
    ] {
        assert_eq!(at(&tree, path).as_deref(), want, "{path}\n{}", imported.config);
    }
    for (line, outcome, said) in [
        (5, Outcome::Taken, "num_ctx of the agent"),
        (6, Outcome::Taken, "keep_alive of the agent"),
        (7, Outcome::Taken, "max_output_tokens"),
        (11, Outcome::NotTaken, "no room beside an answer of max_output_tokens = 4096"),
        (12, Outcome::NotTaken, "is no duration"),
        (14, Outcome::NotTaken, "max_tokens says it"),
        (18, Outcome::NotSupported, "only Ollama is told this"),
        (22, Outcome::NotTaken, "targets share their agent's settings"),
        (26, Outcome::NotTaken, "its entry was left out"),
    ] {
        says(&imported, line, outcome, said);
    }
    assert_eq!(accepted(&imported.config), Ok(()), "{}", imported.config);
}

#[test]
fn names_that_clients_use_go_on_meaning_one_agent() {
    let imported = proxy(
        "model_list:\n- {model_name: a b, litellm_params: {model: openai/x}}\n- {model_name: a-b, litellm_params: {model: openai/y}}\n\
         router_settings:\n  model_group_alias:\n    short: a b\n    a-b: a b\n    nowhere: c\n    hidden: {model: a-b, hidden: true}\n\
         litellm_settings:\n  model_group_alias:\n    short: a-b\n",
    );
    let tree = tree(&imported);
    for (path, want) in [
        ("agents.a-b-2.model", "\"x\""),
        ("agents.a-b-2.model_names", "[\"a b\", \"short\"]"),
        ("agents.a-b.model", "\"y\""),
        ("agents.a-b.model_names", "[\"hidden\"]"),
    ] {
        assert_eq!(at(&tree, path).as_deref(), Some(want), "{path}\n{}", imported.config);
    }
    says(&imported, 6, Outcome::Taken, "agents.a-b-2.model_names");
    says(&imported, 7, Outcome::NotTaken, "is the name of a model already");
    says(&imported, 8, Outcome::NotTaken, "not in the list");
    says(&imported, 9, Outcome::Taken, "agents.a-b.model_names");
}

#[test]
fn a_proxy_is_accounted_for_and_no_secret_comes_out() {
    let imported = proxy(PROXY);
    nothing_is_left_out(PROXY, &imported, &[64]);
    for (line, outcome, said) in [
        (5, Outcome::Taken, "model gpt-4o-eu of a provider azure"),
        (7, Outcome::Taken, "api_key_env = AZURE_API_KEY"),
        (10, Outcome::NotSupported, "not carried over"),
        (19, Outcome::NotTaken, "never copied"),
        (20, Outcome::Taken, "the weight of its target"),
        (24, Outcome::Taken, "of a provider ollama"),
        (29, Outcome::Taken, "keep_alive of the agent"),
        (33, Outcome::Changed, "VLLM_BASE"),
        (34, Outcome::Taken, "stands for no key"),
        (35, Outcome::NotTaken, "its entry was left out"),
        (37, Outcome::NotSupported, "`bedrock` is not spoken here"),
        (38, Outcome::NotTaken, "never copied"),
        (41, Outcome::NotSupported, "wildcards"),
        (44, Outcome::Taken, "one more"),
        (43, Outcome::Taken, "drawn by weight"),
        (50, Outcome::Taken, "agents.gpt-4o.model_names"),
        (51, Outcome::NotSupported, "ladders"),
        (55, Outcome::NotTaken, "router_settings.num_retries goes first"),
        (56, Outcome::NotTaken, "router_settings.timeout goes first"),
        (59, Outcome::NotTaken, "[keys]"),
        (62, Outcome::NotTaken, "set it in the environment"),
        (63, Outcome::NotSupported, "no counterpart"),
    ] {
        says(&imported, line, outcome, said);
    }
    let table = as_table(&imported.findings);
    let json = as_json(&imported.findings).to_string();
    for secret in SECRETS {
        assert!(!table.contains(secret) && !json.contains(secret) && !imported.config.contains(secret), "{secret}");
    }
}

/// What is meant for a machine of one's own, and its key, must not go to a vendor because its address cannot be read.
#[test]
fn an_entry_whose_address_cannot_be_taken_goes_nowhere_else() {
    for (model, address) in [
        ("openai/llama", "\"https://llm.example/v1?tenant=do-not-show-me\""),
        ("openai/llama", "\"https://team:do-not-show-me@llm.example/v1\""),
        ("openai/llama", "llm.example/v1"),
        ("openai/llama", "\"${PRIVATE_BASE}\""),
        ("openai/llama", "\"\""),
        ("openai/llama", "5"),
        ("openai/llama", "[ https://llm.example/v1 ]"),
        ("openai/llama", "\"https://llm.example/v1\", base_url: \"llm.example\""),
        ("openai/llama", "\"llm.example\", base_url: \"https://llm.example/v1\""),
        ("anthropic/claude", "claude.example"),
        ("ollama/llama", "\"http://127.0.0.1:11434?api_key=do-not-show-me\""),
        ("azure/mine", "mine.example"),
    ] {
        let text = format!(
            "model_list:\n- model_name: open\n  litellm_params: {{ model: openai/gpt }}\n- model_name: private\n  litellm_params: {{ model: {model}, api_key: os.environ/PRIVATE_KEY, api_base: {address} }}\n",
        );
        let imported = proxy(&text);
        says(&imported, 5, Outcome::NotTaken, "left out");
        says(&imported, 5, Outcome::NotSupported, "goes nowhere else");
        let tree = tree(&imported);
        assert!(at(&tree, "agents.open").is_some() && at(&tree, "agents.private").is_none(), "{text}");
        assert!(!imported.config.contains("PRIVATE_KEY"), "{}", imported.config);
        let told = as_table(&imported.findings) + &as_json(&imported.findings).to_string();
        assert!(!told.contains("do-not-show-me"), "{told}");
    }
    // None at all is the vendor's own.
    let text = "model_list:\n- model_name: open\n  litellm_params: { model: openai/gpt, api_base: null }\n";
    let base = at(&tree(&proxy(text)), "providers.openai.base_url");
    assert_eq!(base.as_deref(), Some("\"https://api.openai.com/v1\""));
}

#[test]
fn files_without_anything_to_import_say_so() {
    let spring = |text: &str| resilience4j::import("a.yml", text.as_bytes(), &Options::default()).unwrap_err();
    let proxy = |text: &str| litellm::import("c.yaml", text.as_bytes()).unwrap_err();
    for (error, said) in [
        (spring(""), "a.yml: has no resilience4j instances: there is nothing to import"),
        (spring("server.port: 1"), "a.yml: has no resilience4j instances"),
        (spring("a: 1\n---\nb: 2"), "in no document that holds (see --profile)"),
        (spring("a: [\n"), "a.yml:"),
        (spring("- 1\n"), "a.yml: has no resilience4j instances"),
        (spring("resilience4j: {retry: {instances: {}}}"), "nothing to import"),
        (proxy(""), "c.yaml: must be one YAML document"),
        (proxy("a: 1\n---\nb: 1"), "c.yaml: must be one YAML document"),
        (proxy("model_list: 5"), "c.yaml:1: model_list must be a list"),
        (proxy("model_list: [5, {}]"), "nothing to import"),
        (proxy("x: 1\nx: 2"), "c.yaml:2: `x` stands twice"),
    ] {
        assert!(error.contains(said), "{said}: {error}");
    }
}

#[test]
fn names_that_are_none_of_ours_are_changed_and_told() {
    let imported = spring(
        "resilience4j.retry.instances:\n  '[나의 agent/1]': {maxAttempts: 2}\n  '[ agent/1]': {maxAttempts: 2}\n  \"[]\": {}\n",
    );
    let tree = tree(&imported);
    let names: Vec<&String> = tree["agents"].as_table().unwrap().keys().collect();
    assert_eq!(names, ["agent-1", "agent-1-2"], "{}", imported.config);
    assert!(imported.findings.iter().any(|finding| finding.said.contains("agents.agent-1-2: names have ASCII")));
}

/// A value that may stand anywhere.
fn any_value() -> impl Strategy<Value = String> {
    prop_oneof![
        (-5_i64..100_000).prop_map(|number| number.to_string()),
        (0_u64..1_000, "ms|s|m|h|d|x|%|").prop_map(|(number, unit)| format!("{number}{unit}")),
        any::<f64>().prop_map(|number| number.to_string()),
        "PT[0-9]{1,3}[SMH]",
        "\\$\\{[A-Z]{1,4}(:[0-9]{1,4}s?)?\\}",
        prop::sample::select(vec![
            "true",
            "false",
            "null",
            "COUNT_BASED",
            "TIME_BASED",
            "CLOSED",
            "OPEN",
            "METRICS_ONLY",
            "[]",
            "{}",
            "''",
            "default",
            "other",
            "a",
            "99999999999999999999",
            "os.environ/KEY",
            "openai/gpt",
            "ollama/x",
            "azure/x y",
            "https://h/v1",
            "http://",
            "sk-1",
        ])
        .prop_map(str::to_owned),
    ]
}

/// Keys and values, one a line.
fn lines(margin: &str, entries: std::collections::BTreeMap<&str, String>) -> String {
    entries.into_iter().fold(String::new(), |text, (key, value)| text + margin + key + ": " + &value + "\n")
}

fn any_properties() -> impl Strategy<Value = String> {
    let names: Vec<&'static str> = SPRING_NAMES.to_vec();
    prop::collection::btree_map(prop::sample::select(names), any_value(), 0..10)
        .prop_map(|properties| lines("        ", properties))
}

const SPRING_NAMES: [&str; 24] = [
    "baseConfig",
    "slidingWindowSize",
    "slidingWindowType",
    "minimumNumberOfCalls",
    "failureRateThreshold",
    "slowCallRateThreshold",
    "slowCallDurationThreshold",
    "waitDurationInOpenState",
    "enableExponentialBackoff",
    "exponentialBackoffMultiplier",
    "exponentialMaxWaitDurationInOpenState",
    "exponentialMaxWaitDuration",
    "enableRandomizedWait",
    "randomizedWaitFactor",
    "permittedNumberOfCallsInHalfOpenState",
    "maxWaitDurationInHalfOpenState",
    "automaticTransitionFromOpenToHalfOpenEnabled",
    "initialState",
    "maxConcurrentCalls",
    "maxWaitDuration",
    "maxThreadPoolSize",
    "maxAttempts",
    "waitDuration",
    "timeoutDuration",
];

fn any_application() -> impl Strategy<Value = String> {
    let module =
        prop::sample::select(vec!["circuitbreaker", "bulkhead", "thread-pool-bulkhead", "retry", "timelimiter"]);
    let part =
        (module, any_properties(), any_properties(), any_properties()).prop_map(|(module, shared, other, own)| {
            let table = |name: &str, text: String| {
                if text.is_empty() { format!("      {name}: {{}}\n") } else { format!("      {name}:\n{text}") }
            };
            let configs = table("default", shared) + &table("other", other);
            format!("---\nresilience4j:\n  {module}:\n    configs:\n{configs}    instances:\n{}", table("a", own))
        });
    prop::collection::vec(part, 1..6).prop_map(|parts| parts.concat())
}

fn any_proxy() -> impl Strategy<Value = String> {
    let parameter = prop::sample::select(vec![
        "api_base",
        "api_key",
        "api_version",
        "weight",
        "order",
        "timeout",
        "stream_timeout",
        "max_retries",
        "temperature",
        "seed",
        "max_tokens",
        "num_ctx",
        "keep_alive",
        "num_predict",
        "max_parallel_requests",
        "rpm",
        "unknown",
    ]);
    let parameters = prop::collection::btree_map(parameter, any_value(), 0..6);
    let model =
        prop::sample::select(vec!["openai/gpt", "azure/a b", "ollama/q:3b", "gpt", "groq/x", "nobody/x", "vllm/*"]);
    let entry = (any_value(), model, parameters).prop_map(|(name, model, parameters)| {
        let parameters: String = lines("      ", parameters);
        format!("  - model_name: {name}\n    litellm_params:\n      model: {model}\n{parameters}")
    });
    let setting = prop::sample::select(vec![
        "num_retries",
        "timeout",
        "stream_timeout",
        "cooldown_time",
        "retry_after",
        "allowed_fails",
        "routing_strategy",
        "model_group_alias",
        "fallbacks",
    ]);
    let settings = prop::collection::btree_map(setting, any_value(), 0..6);
    (prop::collection::vec(entry, 1..5), settings).prop_map(|(entries, settings)| {
        let settings: String = lines("  ", settings);
        format!("model_list:\n{}router_settings:\n{settings}", entries.concat())
    })
}

proptest! {
    #[test]
    fn whatever_comes_out_is_what_our_loader_takes(text in any_application()) {
        if let Ok(imported) = resilience4j::import("a.yml", text.as_bytes(), &Options::default()) {
            prop_assert_eq!(accepted(&imported.config), Ok(()), "{}\n{}", text, imported.config);
        }
    }

    #[test]
    fn whatever_comes_out_of_a_proxy_is_what_our_loader_takes(text in any_proxy()) {
        if let Ok(imported) = litellm::import("c.yaml", text.as_bytes()) {
            prop_assert_eq!(accepted(&imported.config), Ok(()), "{}\n{}", text, imported.config);
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[-a-z:{}\\[\\]&*!|>'\"\n #.0-9$]{0,120}") {
        for input in [bytes.as_slice(), text.as_bytes()] {
            let _ = resilience4j::import("a.yml", input, &Options::default());
            let _ = litellm::import("c.yaml", input);
        }
    }

    #[test]
    fn no_broken_file_panics(at in 0_usize..3_000, put in "[-:{}\\[\\]&*!|>'\"\n ~]{0,4}") {
        for whole in [APPLICATION, PROXY] {
            let at = at % whole.len();
            let broken = [&whole.as_bytes()[..at], put.as_bytes(), &whole.as_bytes()[at..]].concat();
            let _ = resilience4j::import("a.yml", &broken, &Options::default());
            let _ = litellm::import("c.yaml", &broken);
        }
    }
}
