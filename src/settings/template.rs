//! The configuration text that `watertight init` writes: short, commented, and read by this very loader in a test. It detects nothing.

use std::fmt::Write as _;

use crate::model::name::Name;

/// What was found on the machine, and so what the first configuration is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InitCase {
    /// Nothing: the agents that compute inside the program.
    Embedded,
    /// A server that speaks OpenAI's API.
    OpenAiServer {
        /// Its address up to `/v1`.
        base_url: String,
        /// The models that it lists; the first is used.
        models: Vec<String>,
        /// What it is, as far as that could be told.
        flavor: super::provider::Flavor,
        /// Requests that it works on at once, as far as it tells.
        slots: Option<u32>,
    },
    /// An Ollama server.
    OllamaServer {
        /// Its address.
        base_url: String,
        /// The models that it has; the first is used.
        models: Vec<String>,
    },
    /// Services of the user's own.
    HttpAgents {
        /// The address that their paths are joined to.
        base_url: String,
        /// Agents and their paths.
        agents: Vec<(Name, String)>,
    },
}

/// The text of a first `watertight.toml`.
pub fn config_text(case: &InitCase) -> String {
    let mut text = String::from(HEAD);
    match case {
        InitCase::Embedded => text.push_str(EMBEDDED),
        InitCase::OpenAiServer { base_url, models, flavor, slots } => {
            push(&mut text, &open_ai_server(base_url, models, *flavor, *slots));
        }
        InitCase::OllamaServer { base_url, models } => push(&mut text, &ollama_server(base_url, models)),
        InitCase::HttpAgents { base_url, agents } => push(&mut text, &http_agents(base_url, agents)),
    }
    text.push_str(DEFAULTS);
    text
}

fn push(text: &mut String, lines: &[String]) {
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
}

fn open_ai_server(
    base_url: &str,
    models: &[String],
    flavor: super::provider::Flavor,
    slots: Option<u32>,
) -> Vec<String> {
    let mut lines = vec![
        "# The model server that was found. All agents use it: it is the only provider.".to_owned(),
        "[providers.local]".to_owned(),
        "kind = \"openai\"".to_owned(),
        format!("base_url = {}", quoted(base_url)),
    ];
    lines.extend(model_lines(models));
    match flavor {
        super::provider::Flavor::LlamaCpp => {
            lines.push(
                "flavor = \"llama_cpp\"                     # queues without bound, so it gets 1 slot unless told"
                    .to_owned(),
            );
            let slots = format!("slots = {}", slots.unwrap_or(1));
            lines.push(format!("{slots:<40} # as many as the server was started with"));
        }
        super::provider::Flavor::Any => {
            lines.push(
                "# slots = 2                              # without it the server's agents have no common cap"
                    .to_owned(),
            );
        }
    }
    lines.push(
        "# api_key_env = \"LOCAL_KEY\"                # the variable that holds the key, never the key".to_owned(),
    );
    lines
}

/// The first model, and what else there is.
fn model_lines(models: &[String]) -> Vec<String> {
    let Some((first, others)) = models.split_first() else {
        return vec![
            "model = \"default\"                        # the server listed no models: name one here".to_owned(),
        ];
    };
    let mut lines = vec![format!("model = {}", quoted(first))];
    if !others.is_empty() {
        let others: Vec<String> = others.iter().take(MODELS_SHOWN_MAX).map(|model| quoted(model)).collect();
        lines.push(format!("# It also has {}.", others.join(", ")));
    }
    lines
}

fn ollama_server(base_url: &str, models: &[String]) -> Vec<String> {
    let mut lines = vec![
        "# The Ollama that was found. All agents use it: it is the only provider.".to_owned(),
        "[providers.local]".to_owned(),
        "kind = \"ollama\"".to_owned(),
        format!("base_url = {}", quoted(base_url)),
    ];
    lines.extend(model_lines(models));
    lines.extend(
        [
            "slots = 1                                # it queues without bound; more with OLLAMA_NUM_PARALLEL",
            "num_ctx = 8192                           # tokens of prompt and answer together; longer ones are refused, never cut",
            "# keep_alive = \"5m\"                      # how long the model stays loaded; \"forever\"",
        ]
        .map(str::to_owned),
    );
    lines
}

fn http_agents(base_url: &str, agents: &[(Name, String)]) -> Vec<String> {
    let mut lines = vec![
        "# Your services. Each agent is one path below this address.".to_owned(),
        "[providers.services]".to_owned(),
        "kind = \"http\"".to_owned(),
        format!("base_url = {}", quoted(base_url)),
    ];
    for (name, path) in agents {
        lines.push(String::new());
        lines.push(format!("[agents.{}]", super::node::key_segment(name.as_str())));
        lines.push("provider = \"services\"".to_owned());
        lines.push(format!("path = {}", quoted(path)));
    }
    lines.push(String::new());
    lines.push("# A service that speaks its own way is mapped without code, for example:".to_owned());
    lines.push("# [agents.NAME.mapping]".to_owned());
    lines.push("# output = \"/result/text\"                  # JSON Pointers into its answers".to_owned());
    lines.push("# error_code = \"/code\"".to_owned());
    lines
}

/// Further models that are worth a line.
const MODELS_SHOWN_MAX: usize = 10;

/// `text` as a basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(character);
            }
            // proof of `let _`: writing to a String cannot fail.
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(control));
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

const HEAD: &str = "\
# Watertight. Every key that is left out has a default; `watertight check --explain` prints all values and where they come from.
# Layers: an agent's agent.toml < this file < WATERTIGHT_AGENTS__DRAFT__SLOTS=3 < --set agents.draft.slots=3.
# Durations are texts with a unit (\"500ms\", \"30s\", \"2m\", \"1h\"), shares are numbers from 0 to 1.

";

const EMBEDDED: &str = "\
# The agents that compute inside the program: no model, no network, no key.
[providers.embedded]
kind = \"embedded\"

# With a model server, use this instead:
# [providers.local]
# kind = \"openai\"
# base_url = \"http://127.0.0.1:8081/v1\"
# model = \"name-of-the-model\"
";

const DEFAULTS: &str = "
[run]
# deadline = \"off\"                         # \"30m\": no run takes longer, whatever its workflow says
# language = \"en\"                          # ko

[places]
# share = \"never\"                          # rounded: agents may be told them, to about 1 km

# For every agent, unless its own table says otherwise.
[defaults]
# slots = 10                               # calls in flight at once; more are refused at once
# call_timeout = \"180s\"                    # with all attempts and waits

[defaults.retry]
# attempts_max = 3
# backoff = \"500ms\"
# factor = 2.0
# backoff_max = \"30s\"
# retry_wait_max = \"10s\"                   # a longer wait is not slept while holding a slot
# retry_below = \"5s\"                       # what ran longer is not repeated

[defaults.breaker]
# window_calls = 20                        # or window = \"60s\"
# calls_min = 10
# max_age = \"10m\"
# failure_share = 0.5                      # opens at half of the outcomes failed ...
# slow_share = 0.7                         # ... or this share of them slow ...
# slow_call = \"30s\"
# consecutive_failures = 5                 # ... or so many failures in a row (providers: 3)
# open = \"30s\"
# trials = 5

# Where the service writes runs down, and how long it keeps them (\"off\" = for ever).
[journal]
# path = \".watertight/journal.db\"
# survives = \"process\"                    # power: every commit waits for the disk

[journal.retention]
# completed = \"30d\"
# failed = \"30d\"
# cancelled = \"7d\"

# Prompts and answers word for word, for looking into what went wrong: off, errors, sample, all.
[capture]
# mode = \"off\"
# keep = \"72h\"
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{provider::Flavor, tests::Given};

    fn cases() -> Vec<InitCase> {
        let server = |base_url: &str, models: &[&str], flavor, slots| InitCase::OpenAiServer {
            slots,
            base_url: base_url.to_owned(),
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            flavor,
        };
        let agent = |name: &str, path: &str| (Name::try_new(name).unwrap(), path.to_owned());
        vec![
            InitCase::Embedded,
            server("http://127.0.0.1:8081/v1", &["qwen", "smol\"\\\nlm"], Flavor::Any, None),
            server("http://127.0.0.1:8080/v1", &["a\"b\\c\u{7}"], Flavor::LlamaCpp, None),
            server("http://127.0.0.1:8080/v1", &["a"], Flavor::LlamaCpp, Some(2)),
            server("http://[::1]:1/v1", &[], Flavor::Any, None),
            InitCase::OllamaServer {
                base_url: "http://127.0.0.1:11434".to_owned(),
                models: vec!["qwen2.5:3b".to_owned(), "a\"b".to_owned()],
            },
            InitCase::HttpAgents {
                base_url: "http://127.0.0.1:9000".to_owned(),
                agents: vec![agent("style", "/style/analyze"), agent("v1.draft", "/draft")],
            },
            InitCase::HttpAgents { base_url: "http://127.0.0.1:9000".to_owned(), agents: vec![] },
        ]
    }

    #[test]
    fn every_text_is_read_by_the_loader() {
        for case in cases() {
            let text = config_text(&case);
            let settings = Given::config(&text).load().unwrap_or_else(|error| panic!("{case:?}\n{error}\n{text}"));
            assert!(!settings.providers.is_empty(), "{case:?}");
            assert!(settings.warnings.is_empty(), "a fresh file is in order: {:?}", settings.warnings);
            if let InitCase::OpenAiServer { flavor: Flavor::LlamaCpp, slots, .. } = &case {
                assert_eq!(settings.provider("local").unwrap().settings.slots, Some(slots.unwrap_or(1)));
            }
            match case {
                InitCase::OpenAiServer { models, .. } | InitCase::OllamaServer { models, .. } => {
                    let model = models.first().map_or("default", String::as_str);
                    assert!(settings.agents.iter().all(|agent| agent.settings.model.as_deref() == Some(model)));
                }
                InitCase::HttpAgents { agents, .. } => {
                    assert!(agents.iter().all(|(name, _)| settings.agent(name.as_str()).is_some()));
                }
                InitCase::Embedded => {}
            }
        }
    }

    #[test]
    fn the_defaults_that_it_shows_are_the_defaults() {
        for case in cases() {
            let text = config_text(&case);
            let (before, defaults) = text.split_at(text.find("\n[run]").unwrap());
            let is_setting = |line: &str| {
                let key = line.strip_prefix("# ").and_then(|rest| rest.split_once(" = ")).map(|(key, _)| key);
                key.is_some_and(|key| key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
            };
            assert!(defaults.lines().filter(|line| is_setting(line)).count() >= 20, "{defaults}");
            let lines = defaults.lines().map(|line| if is_setting(line) { &line[2..] } else { line });
            let uncommented = format!("{before}{}", lines.collect::<Vec<_>>().join("\n"));
            let (shown, plain) = (Given::config(&uncommented).load().unwrap(), Given::config(&text).load().unwrap());
            assert_eq!((shown.agents, shown.providers), (plain.agents, plain.providers));
            assert_eq!((shown.run, shown.limits), (plain.run, plain.limits));
            assert_eq!((shown.journal, shown.files, shown.capture), (plain.journal, plain.files, plain.capture));
        }
    }
}
