//! What is wrong, and the one line that says so.

use super::given::Given;

#[test]
fn slowness_that_no_attempt_can_reach() {
    let check = |agent: &str, breaker: &str| {
        let config = format!("[agents.draft]\n{agent}\n[agents.draft.breaker]\n{breaker}\n");
        Given::config(&config).only(&[])
    };
    check("timeout = '60s'", "slow_call = '59.9s'").warned(&[]);
    let refused = check("timeout = '60s'", "slow_call = '60s'");
    refused.refused(&[
        "w.toml:4: agents.draft.breaker.slow_call = \"60s\": must be shorter than the 1m after which an attempt \
                       ends: no call could ever be seen to be slow (1m)",
    ]);
    let short = check("timeout = '20s'", "").settings().warnings;
    assert_eq!(short.len(), 1, "a short timeout alone is allowed, with a word: {short:?}");
    check("call_timeout = '20s'\ntimeout = 'off'", "slow_call = '25s'").load().unwrap_err();
}

/// What is wrong, and the one line that says so. The configuration stands behind `PROVIDERS`, in line 12 and on.
pub(super) const PROVIDERS: &str = "[providers.e]\nkind = 'embedded'\n[providers.h]\nkind = 'http'\nbase_url = 'http://h'\n\
                         [providers.o]\nkind = 'openai'\nbase_url = 'http://o'\nmodel = 'm'\n\n\n";

#[test]
fn each_slip_is_named() {
    let draft = |line: &str| format!("[agents.draft]\nprovider = 'e'\n{line}");
    let web = |line: &str| format!("[agents.web]\nprovider = 'h'\n{line}");
    let chat = |line: &str| format!("[agents.chat]\nprovider = 'o'\n{line}");
    let breaker = |line: &str| format!("[agents.draft]\nprovider = 'e'\nbreaker = {{ {line} }}");
    let other = |line: &str| format!("[providers.x]\n\n{line}");
    for (config, said) in [
        // Types and units.
        (draft("slots = '3'"), "agents.draft.slots = \"3\": must be a whole number from 0 to 100000"),
        (draft("slots = 3.0"), "agents.draft.slots = 3.0: must be a whole number from 0 to 100000"),
        (draft("slots = 100001"), "agents.draft.slots = 100001: must be a whole number from 0 to 100000"),
        (
            draft("slots = 99999999999999999999"),
            "agents.draft.slots = 99999999999999999999: must be a whole number from 0 to 100000",
        ),
        (draft("slots = 1979-05-27"), "agents.draft.slots = 1979-05-27: must be a whole number from 0 to 100000"),
        (draft("timeout = 30"), "agents.draft.timeout = 30: must be a text of number and unit, as in \"30s\""),
        (draft("timeout = '30'"), "agents.draft.timeout = \"30\": must have a unit: ms, s, m or h, as in \"30s\""),
        (draft("timeout = '0s'"), "agents.draft.timeout = \"0s\": must be longer than 0"),
        (draft("timeout = '-1s'"), "agents.draft.timeout = \"-1s\": must not be negative"),
        (draft("timeout = '8000h'"), "agents.draft.timeout = \"8000h\": must be at most 7 days"),
        (draft("timeout = '1e30s'"), "agents.draft.timeout = \"1e30s\": must have the unit ms, s, m or h"),
        (
            draft("call_timeout = 'off'"),
            "agents.draft.call_timeout = \"off\": must be a number and a unit, as in \"500ms\", \"30s\", \"1m30s\"",
        ),
        (draft("retry = 3"), "agents.draft.retry = 3: must be a table"),
        (draft("description = 1"), "agents.draft.description = 1: must be a text in quotes"),
        (
            draft("stage = 'integratet'"),
            "agents.draft.stage = \"integratet\": must be one of integrated; did you mean \"integrated\"?",
        ),
        // Breakers, retries, restarts.
        (breaker("window_calls = 10001"), "agents.draft.breaker.window_calls = 10001: must be 1 to 10000"),
        (
            breaker("window_calls = 20, window = '60s'"),
            "agents.draft.breaker.window = \"60s\": must not be given together with window_calls",
        ),
        (breaker("window = '1500ms'"), "agents.draft.breaker.window = \"1500ms\": must be whole seconds from 1s to 1h"),
        (
            breaker("window_calls = 5, trials = 5"),
            "agents.draft.breaker.window_calls = 5: does not fit calls_min = 10 (default), which must not be larger than window_calls: it would never judge",
        ),
        (breaker("calls_min = 0"), "agents.draft.breaker.calls_min = 0: must be at least 1"),
        (
            breaker("slow_share = 70"),
            "agents.draft.breaker.slow_share = 70: must be a share over 0 and up to 1 (0.5 means half)",
        ),
        (breaker("slow_share = '70%'"), "agents.draft.breaker.slow_share = \"70%\": must be a number"),
        (
            breaker("failure_share = -inf"),
            "agents.draft.breaker.failure_share = -inf: must be a share over 0 and up to 1 (0.5 means half)",
        ),
        (breaker("open_jitter = 1.5"), "agents.draft.breaker.open_jitter = 1.5: must be a share from 0 to 1"),
        (breaker("open_growth = inf"), "agents.draft.breaker.open_growth = inf: must be a finite number of at least 1"),
        (
            breaker("open = '10m'"),
            "agents.draft.breaker.open = \"10m\": does not fit open_max = 300s (default), which must be at least as long as `open`",
        ),
        (
            breaker("open = 'off'"),
            "agents.draft.breaker.open = \"off\": must be a number and a unit, as in \"500ms\", \"30s\", \"1m30s\"",
        ),
        (
            breaker("consecutive_failures = 0"),
            "agents.draft.breaker.consecutive_failures = 0: must be 1 to 10000, or \"off\"",
        ),
        (
            breaker("trial_timeout = 'never'"),
            "agents.draft.breaker.trial_timeout = \"never\": must be a number and a unit, as in \"500ms\", \"30s\", \"1m30s\"",
        ),
        (
            breaker("mode = 'open'"),
            "agents.draft.breaker.mode = \"open\": must be one of auto, forced_open, disabled, metrics_only",
        ),
        (breaker("early_verdict = 'yes'"), "agents.draft.breaker.early_verdict = \"yes\": must be true or false"),
        (
            breaker("half_open_by = 'first'"),
            "agents.draft.breaker.half_open_by = \"first\": must be one of timer, first_call",
        ),
        (draft("retry = { attempts_max = 0 }"), "agents.draft.retry.attempts_max = 0: must be 1 to 20"),
        (draft("retry = { factor = 0.5 }"), "agents.draft.retry.factor = 0.5: must be a finite number of at least 1"),
        (
            draft("retry = { backoff_max = '10ms' }"),
            "agents.draft.retry.backoff_max = \"10ms\": must be at least `backoff` and 50ms",
        ),
        (draft("retry = { budget_share = 2 }"), "agents.draft.retry.budget_share = 2: must be a share from 0 to 1"),
        (draft("restart = { max = -1 }"), "agents.draft.restart.max = -1: must be a whole number from 0 to 1000"),
        (draft("restart = { with = '1s' }"), "agents.draft.restart.with = \"1s\": unknown key"),
        (
            draft("retry = { attempt_max = 3 }"),
            "agents.draft.retry.attempt_max = 3: unknown key, did you mean `attempts_max`?",
        ),
        // What does not fit the kind.
        (draft("path = '/x'"), "agents.draft.path = \"/x\": is only for agents of a provider of kind \"http\""),
        (
            draft("prompt = 'p.md'"),
            "agents.draft.prompt = \"p.md\": is only for agents of a provider of kind \"openai\" or \"ollama\"",
        ),
        (draft("model = 'm'"), "agents.draft.model = \"m\": is not for embedded agents"),
        (
            draft("first_token = '9s'"),
            "agents.draft.first_token = \"9s\": is not for embedded agents: they do not stream",
        ),
        (
            draft("slow_by = 'pace'"),
            "agents.draft.slow_by = \"pace\": must be \"total\" for embedded agents: they do not stream",
        ),
        (
            draft("embedded = 'nobody'"),
            "agents.draft.embedded = \"nobody\": there is no embedded agent `nobody`; there are: draft, review, style",
        ),
        (
            web("temperature = 1"),
            "agents.web.temperature = 1: is only for agents of a provider of kind \"openai\" or \"ollama\"",
        ),
        (web("path = 'x'"), "agents.web.path = \"x\": must begin with one /, as in \"/style/analyze\""),
        (
            web("path = '/x?a=1'"),
            "agents.web.path = \"/x?a=1\": must be a path alone: parameters belong to the provider's `query`",
        ),
        (
            web("path = '/가'"),
            "agents.web.path = \"/가\": must be at most 1024 visible ASCII characters, others percent-encoded",
        ),
        (web("method = 'GET'"), "agents.web.method = \"GET\": must be one of POST, PUT, PATCH"),
        (
            web("mapping = { output = 'data' }"),
            "agents.web.mapping.output = \"data\": must be a JSON Pointer, as in \"/data/text\"",
        ),
        (
            web("mapping = { outptu = '/data' }"),
            "agents.web.mapping.outptu = \"/data\": unknown key, did you mean `output`?",
        ),
        (web("headers = { Host = 'x' }"), "agents.web.headers.Host = \"x\": is set by HTTP or by the call itself"),
        (
            web("headers = { authorization = 'abc' }"),
            "agents.web.headers.authorization = \"(hidden)\": must not stand in the configuration, it may be a secret: use { env = \"NAME\" }",
        ),
        (
            web("headers = { x = { file = 'x' } }"),
            "agents.web.headers.x = { file = \"x\" }: must be a text, or { env = \"NAME\" }",
        ),
        (web("pace_min = 3"), "agents.web.pace_min = 3: is only used with slow_by = \"pace\""),
        (chat("temperature = 3"), "agents.chat.temperature = 3: must be a number from 0 to 2"),
        (chat("temperature = nan"), "agents.chat.temperature = nan: must be a number from 0 to 2"),
        (chat("seed = -1"), "agents.chat.seed = -1: must be a whole number from 0 to 9223372036854775807"),
        (chat("max_output_tokens = 0"), "agents.chat.max_output_tokens = 0: must be a whole number from 1 to 10000000"),
        (chat("mapping = {}"), "agents.chat.mapping = {}: is only for agents of a provider of kind \"http\""),
        (chat("num_ctx = 4096"), "agents.chat.num_ctx = 4096: is only for kind = \"ollama\""),
        (draft("keep_alive = '5m'"), "agents.draft.keep_alive = \"5m\": is only for kind = \"ollama\""),
        // Providers.
        (
            other("kind = 'opnai'"),
            "providers.x.kind = \"opnai\": must be one of embedded, http, openai, ollama; did you mean \"openai\"?",
        ),
        (
            other("kind = 'embedded'\nslots = -1").replace("\n\n", "\n"),
            "providers.x.slots = -1: must be a whole number from 0 to 100000",
        ),
        // What things cost.
        ("\n\n[prices.qwen]\ninput = 1".to_owned(), "prices.qwen: must be named \"provider/model\""),
        ("\n\n[prices.\"lcal/m\"]\ninput = 1".to_owned(), "prices.\"lcal/m\": there is no provider \"lcal\""),
        (
            "[prices.\"h/b\"]\n\ninput = -1".to_owned(),
            "prices.\"h/b\".input = -1: must be an amount of money from 0 to 1000000",
        ),
        ("[prices.\"h/b\"]\n\ninputs = 1".to_owned(), "prices.\"h/b\".inputs = 1: unknown key, did you mean `input`?"),
        (
            "[budgets]\n\noutput_tokens = 0".to_owned(),
            "budgets.output_tokens = 0: must be a whole number from 1 to 1099511627776",
        ),
        ("[run]\n\ncalls_max = 0".to_owned(), "run.calls_max = 0: must be a whole number from 1 to 1000000000000"),
        ("[run]\n\ncost_max = 0".to_owned(), "run.cost_max = 0: must be more than 0: no run could make a call"),
        // What later versions know.
        (draft("max_wait = '5s'"), "agents.draft.max_wait = \"5s\": is not built yet"),
        (draft("stage = 'alerts'"), "agents.draft.stage = \"alerts\": is not built yet; built: integrated"),
        // Cold models.
        (
            draft("warm_up = 'always'"),
            "agents.draft.warm_up = \"always\": is not for kind = \"embedded\": no model is loaded there",
        ),
        (
            draft("prewarm = true"),
            "agents.draft.prewarm = true: is not for kind = \"embedded\": no model is loaded there",
        ),
        (chat("warm_up = 'sometimes'"), "agents.chat.warm_up = \"sometimes\": must be one of auto, off, always"),
        (
            chat("prewarm = true\nwarm_up = 'off'"),
            "agents.chat.prewarm = true: must not be true where warm_up is \"off\"",
        ),
        (
            other("kind = 'http'\nmodels_max = 1\nbase_url = 'http://h'").replace("\n\n", "\n"),
            "providers.x.models_max = 1: is not for kind = \"http\": no model is loaded there",
        ),
        (
            other("kind = 'ollama'\nkeeps_warm = '5m'").replace("\n\n", "\n"),
            "providers.x.keeps_warm = \"5m\": is not for kind = \"ollama\": it is told how long by `keep_alive`",
        ),
        (
            breaker("probe = 'health'"),
            "agents.draft.breaker.probe = \"health\": must be \"off\": there is no `health` path to ask",
        ),
        (
            "[volume_guard]\n\ncalls_per_hour = 0".to_owned(),
            "volume_guard.calls_per_hour = 0: must be a whole number from 1 to 100000000",
        ),
        // The rest.
        ("[run]\n\ndeadlin = '1m'".to_owned(), "run.deadlin = \"1m\": unknown key, did you mean `deadline`?"),
        ("[run]\n\nlanguage = 'fr'".to_owned(), "run.language = \"fr\": must be one of en, ko"),
        ("[places]\n\nshare = 'always'".to_owned(), "places.share = \"always\": must be one of never, rounded"),
        ("[node]\n\ninstances = 0".to_owned(), "node.instances = 0: must be a whole number from 1 to 1000"),
        (
            "[limits]\n\nreply_bytes_max = 0".to_owned(),
            "limits.reply_bytes_max = 0: must be a whole number from 1 to 17179869184",
        ),
        ("[limits]\n\ninput_file_bytes = 1".to_owned(), "limits.input_file_bytes = 1: unknown key"),
        ("[defaults]\n\nslotz = 1".to_owned(), "defaults.slotz = 1: unknown key, did you mean `slots`?"),
        ("[defaults]\n\nprovider = 'e'".to_owned(), "defaults.provider = \"e\": unknown key"),
        (
            "[defaults.breaker]\n\ntrials = 0".to_owned(),
            "defaults.breaker.trials = 0: must be 1 to 10000: without a trial it could never close",
        ),
        ("\n\n[agent.draft]".to_owned(), "agent = { draft = {} }: unknown key, did you mean `agents`?"),
        (
            "\n\n[agents.'a b']".to_owned(),
            "agents.\"a b\" = {}: \"a b\" is no name: 1 to 64 letters, digits, '-', '_' or '.', the first a letter or digit",
        ),
    ] {
        Given::config(&format!("{PROVIDERS}{config}")).only(&[]).refused(&[&format!("w.toml:14: {said}")]);
    }
}

#[test]
fn providers_that_cannot_be() {
    let check =
        |table: &str, lines: &[&str]| Given::config(&format!("[providers.x]\n{table}")).only(&[]).refused(lines);
    check("slots = 1", &["w.toml:1: providers.x.kind: must be set: embedded, http, openai or ollama"]);
    check(
        "kind = 'http'",
        &["w.toml:1: providers.x.base_url: must be set for this kind, as in \"http://127.0.0.1:8081/v1\""],
    );
    check(
        "kind = 'embedded'\nbase_url = 'http://h'",
        &[
            "w.toml:3: providers.x.base_url = \"http://h\": is not for kind = \"embedded\": its agents work inside this program",
        ],
    );
    check(
        "kind = 'http'\nbase_url = 'http://user:abc@h'",
        &["w.toml:3: providers.x.base_url = \"(hidden)\": must not hold credentials: use api_key_env or api_key_file"],
    );
    check(
        "kind = 'http'\nbase_url = 'http://h'\napi_key = 'abc'",
        &[
            "w.toml:4: providers.x.api_key = \"(hidden)\": must not stand in the configuration: use api_key_env or api_key_file",
        ],
    );
    check(
        "kind = 'http'\nbase_url = 'http://h'\napi_key_env = 'a-b'",
        &[
            "w.toml:4: providers.x.api_key_env = \"(hidden)\": must be the name of an environment variable, not the key itself",
        ],
    );
    check(
        "kind = 'http'\nbase_url = 'http://h'\napi_key_env = 'A'\napi_key_file = 'f'",
        &["w.toml:5: providers.x.api_key_file = \"(hidden)\": must not be given together with api_key_env"],
    );
    check(
        "kind = 'http'\nbase_url = 'http://h'\nflavor = 'llama_cpp'",
        &["w.toml:4: providers.x.flavor = \"llama_cpp\": is only for kind = \"openai\""],
    );
    check(
        "kind = 'http'\nbase_url = 'http://h'\napi_key_env = 'A'\nheaders = { Authorization = { env = 'B' } }",
        &[
            "w.toml:5: providers.x.headers = { Authorization = { env = \"B\" } }: must not hold `authorization` together with \
         api_key_env or api_key_file",
        ],
    );
    check(
        "kind = 'openai'\nbase_url = 'http://h'\n[agents.chat]",
        &["w.toml:4: agents.chat.model: must be set, here or as providers.x.model"],
    );
    check(
        "kind = 'openai'\n[agents.chat]\nslotz = 1",
        &[
            "w.toml:1: providers.x.base_url: must be set for this kind, as in \"http://127.0.0.1:8081/v1\"",
            "w.toml:3: agents.chat.model: must be set, here or as providers.x.model",
            "w.toml:4: agents.chat.slotz = 1: unknown key, did you mean `slots`?",
        ],
    );
    Given::config("providers = 1").refused(&["w.toml:1: providers = 1: must be a table"]);
    Given::config("providers.x = 1").refused(&["w.toml:1: providers.x = 1: must be a table"]);
}
