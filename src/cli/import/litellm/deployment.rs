//! One entry of `model_list`: which provider it leans on, and what of its parameters an agent can take. A key that stands in the file is
//! never copied.

use std::time::Duration;

use super::{
    account::{Account, join},
    address::{Address, Text, VARIABLE, address},
    ollama::{self, OfOllama},
    vendor::{Style, Vendor, vendor_of},
};
use crate::{
    cli::import::{
        finding::{Outcome, is_secret},
        scalar::{BareUnit, duration, number, text, whole},
        yaml::{Entry, Node, Value},
    },
    settings::{endpoint::check_base_url, secret::is_variable_name},
};

/// Stands where an address is only known in the environment.
const UNKNOWN_ADDRESS: &str = "http://127.0.0.1:8080/v1";
/// What people write where a server wants no key.
const NO_KEYS: [&str; 12] = [
    "",
    "none",
    "null",
    "dummy",
    "fake",
    "fake-key",
    "empty",
    "anything",
    "not-needed",
    "no-key",
    "ollama",
    "lm-studio",
];

/// One deployment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Deployment {
    pub(super) line: u64,
    /// Its findings, as places in the account.
    pub(super) findings: std::ops::Range<usize>,
    /// What clients ask for.
    pub(super) model_name: String,
    /// The model's name at its server.
    pub(super) model: String,
    pub(super) place: Place,
    pub(super) weight: Option<f64>,
    pub(super) order: Option<u64>,
    pub(super) timeout: Option<Duration>,
    pub(super) stream_timeout: Option<Duration>,
    pub(super) retries: Option<u64>,
    pub(super) slots: Option<u64>,
    pub(super) temperature: Option<f64>,
    pub(super) seed: Option<u64>,
    pub(super) max_output_tokens: Option<u64>,
    pub(super) of_ollama: OfOllama,
}

/// What makes two deployments lean on one provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) vendor: &'static str,
    /// Our word for how it is spoken to.
    pub(super) kind: &'static str,
    pub(super) base_url: String,
    /// A variable whose value is the address: it has to be set as one of ours.
    pub(super) base_url_variable: Option<String>,
    pub(super) key: Key,
    /// The key goes into a header of this name instead of a bearer token.
    pub(super) key_header: Option<&'static str>,
    pub(super) api_version: Option<Text>,
}

/// Where a key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    /// None is sent.
    None,
    /// In this variable.
    Variable(String),
    /// In the file: it has to be moved into a variable.
    Literal,
}

/// What of an entry has to be known before its place is.
#[derive(Default)]
struct Raw {
    model: Option<(u64, String)>,
    api_base: Address,
    api_version: Option<String>,
    key: Option<Key>,
    /// What only Ollama is told.
    of_ollama: Vec<Entry>,
}

/// Reads an entry at `path`. What cannot become a deployment is noted.
pub(super) fn read(path: &str, node: &Node, account: &mut Account) -> Option<Deployment> {
    let began = account.mark();
    let mut raw = Raw::default();
    let mut read = Deployment {
        line: node.line,
        findings: 0..0,
        model_name: String::new(),
        model: String::new(),
        place: Place {
            vendor: "",
            kind: "openai",
            base_url: String::new(),
            base_url_variable: None,
            key: Key::None,
            key_header: None,
            api_version: None,
        },
        weight: None,
        order: None,
        timeout: None,
        stream_timeout: None,
        retries: None,
        slots: None,
        temperature: None,
        seed: None,
        max_output_tokens: None,
        of_ollama: OfOllama::default(),
    };
    for entry in node.entries() {
        match entry.key.as_str() {
            "model_name" => {
                if let Some(name) = account.read(path, entry, text) {
                    account.note(path, entry, Outcome::Taken, format!("what clients ask for: `{name}`"));
                    read.model_name = name;
                }
            }
            "litellm_params" => {
                let path = join(path, "litellm_params");
                entry.node.entries().iter().for_each(|inner| parameter(&path, inner, &mut raw, &mut read, account));
            }
            "model_info" => {
                for inner in entry.node.entries() {
                    let said = "not carried over: prices are written by hand under [prices], see README.md; capabilities the model's server knows itself";
                    account.note(&join(path, "model_info"), inner, Outcome::NotSupported, said);
                }
            }
            "rpm" | "tpm" => account.note(path, entry, Outcome::NotSupported, NO_RATES),
            _ => account.note(path, entry, Outcome::NotSupported, "nothing here is known by this name"),
        }
    }
    let of_ollama = std::mem::take(&mut raw.of_ollama);
    let mut placed = place(path, raw, read, account);
    ollama::take(&join(path, "litellm_params"), &of_ollama, placed.as_mut(), account);
    let findings = began..account.mark();
    if placed.is_none() {
        account.take_back(findings.clone(), &[], LEFT_OUT);
    }
    placed.map(|placed| Deployment { findings, ..placed })
}

/// What is said of an entry's keys that came to nothing with it.
pub(super) const LEFT_OUT: &str = "its entry was left out";
const NO_RATES: &str = "not carried over: requests_per_minute and tokens_per_minute, see docs/compartments.md";

fn parameter(path: &str, entry: &Entry, raw: &mut Raw, read: &mut Deployment, account: &mut Account) {
    let seconds = |node: &Node| duration(node, BareUnit::Seconds).and_then(over_zero);
    match entry.key.as_str() {
        // These four are told once the place is known.
        "model" => raw.model = account.read(path, entry, text).map(|model| (entry.line, model)),
        "api_base" | "base_url" => {
            let read = address(path, entry, account);
            // Of two names for the same thing one that cannot be taken is enough.
            if read != Address::Vendors && raw.api_base != Address::Refused {
                raw.api_base = read;
            }
        }
        "api_version" => {
            raw.api_version = account.read(path, entry, text);
            account.note(path, entry, Outcome::Taken, "providers.*.query.api-version");
        }
        "api_key" => raw.key = key(path, entry, account),
        "weight" => read.weight = taken(path, entry, account, number, "the weight of its target"),
        "order" => read.order = taken(path, entry, account, whole, "the place of its target"),
        "timeout" | "request_timeout" => {
            read.timeout = taken(path, entry, account, seconds, "timeout: of each attempt");
        }
        "stream_timeout" => {
            read.stream_timeout = account.read(path, entry, seconds);
            if read.stream_timeout.is_some() {
                account.note(
                    path,
                    entry,
                    Outcome::Changed,
                    "first_token: to the first content; `stall` bounds the rest",
                );
            }
        }
        "max_retries" | "num_retries" => {
            read.retries = account.read(path, entry, whole);
            if read.retries.is_some() {
                account.note(path, entry, Outcome::Taken, "retry.attempts_max: one more, as the first attempt counts");
            }
        }
        "max_parallel_requests" => read.slots = taken(path, entry, account, whole, "slots of the agent"),
        "temperature" => read.temperature = taken(path, entry, account, degrees, "temperature"),
        "seed" => read.seed = taken(path, entry, account, seed, "seed"),
        "max_tokens" | "max_completion_tokens" => {
            read.max_output_tokens = taken(path, entry, account, tokens, "max_output_tokens");
        }
        // These are told once the place is known, too.
        key if ollama::is_key(key) => raw.of_ollama.push(entry.clone()),
        _ => unused(path, entry, account),
    }
}

/// A parameter that no agent takes.
fn unused(path: &str, entry: &Entry, account: &mut Account) {
    match entry.key.as_str() {
        "rpm" | "tpm" => account.note(path, entry, Outcome::NotSupported, NO_RATES),
        "extra_headers" | "headers" | "organization" => {
            let said = "providers.*.headers can hold them; a secret among them as { env = \"NAME\" }";
            account.note_hidden(path, entry, Outcome::NotTaken, said);
        }
        "input_cost_per_token" | "output_cost_per_token" => {
            account.note(path, entry, Outcome::NotSupported, "prices are written by hand, under [prices]");
        }
        key if is_secret(key, "") || key.starts_with("aws_") || key.starts_with("vertex_") => {
            account.note_hidden(path, entry, Outcome::NotTaken, "secrets are never copied; this one has no use here");
        }
        _ => account.note(
            path,
            entry,
            Outcome::NotSupported,
            "clients send it with each request, or it has no counterpart",
        ),
    }
}

fn over_zero(time: Duration) -> Result<Duration, String> {
    if time.is_zero() { Err("must be longer than 0".to_owned()) } else { Ok(time) }
}

fn degrees(node: &Node) -> Result<f64, String> {
    number(node).and_then(|degrees| {
        if (0.0..=2.0).contains(&degrees) { Ok(degrees) } else { Err("must be from 0 to 2".to_owned()) }
    })
}

fn seed(node: &Node) -> Result<u64, String> {
    whole(node).and_then(|seed| if i64::try_from(seed).is_ok() { Ok(seed) } else { Err("is too large".to_owned()) })
}

/// The tokens of an answer.
pub(super) fn tokens(node: &Node) -> Result<u64, String> {
    let max = crate::settings::agent_backend::OUTPUT_TOKENS_MAX;
    whole(node).and_then(
        |tokens| {
            if (1..=max).contains(&tokens) { Ok(tokens) } else { Err(format!("must be from 1 to {max}")) }
        },
    )
}

/// Reads an entry's value and notes what it became, or why it could not be read.
pub(super) fn taken<T>(
    path: &str,
    entry: &Entry,
    account: &mut Account,
    read: impl Fn(&Node) -> Result<T, String>,
    said: &str,
) -> Option<T> {
    let value = account.read(path, entry, read)?;
    account.note(path, entry, Outcome::Taken, said);
    Some(value)
}

/// Where the key is. Its text is looked at only to see whether it is one.
fn key(path: &str, entry: &Entry, account: &mut Account) -> Option<Key> {
    let literal = account.read(path, entry, text)?;
    if let Some(name) = literal.strip_prefix(VARIABLE) {
        if is_variable_name(name) {
            account.note(path, entry, Outcome::Taken, format!("providers.*.api_key_env = {name}"));
            return Some(Key::Variable(name.to_owned()));
        }
        account.note_hidden(path, entry, Outcome::NotTaken, "names no variable of the environment");
        return Some(Key::Literal);
    }
    if NO_KEYS.contains(&literal.to_ascii_lowercase().as_str()) {
        account.note_hidden(path, entry, Outcome::Taken, "stands for no key: none is sent");
        return Some(Key::None);
    }
    let said = "a key is never copied: put it into the variable that the provider's api_key_env names";
    account.note_hidden(path, entry, Outcome::NotTaken, said);
    Some(Key::Literal)
}

/// Finds the vendor and with it all that the entry did not say.
fn place(path: &str, raw: Raw, mut read: Deployment, account: &mut Account) -> Option<Deployment> {
    let (line, model) = raw.model.clone().unwrap_or((read.line, String::new()));
    let entry = Entry { key: "model".to_owned(), line, node: Node { value: Value::Text(model.clone()), line } };
    let parameters = join(path, "litellm_params");
    let mut refuse = |said: String| {
        account.note(&parameters, &entry, Outcome::NotSupported, said);
        None
    };
    if model.is_empty() || read.model_name.is_empty() {
        return refuse("an entry needs model_name and litellm_params.model: it was left out".to_owned());
    }
    if model.contains('*') || read.model_name.contains('*') {
        return refuse("wildcards are not known here: name each model".to_owned());
    }
    let (vendor, name) = match vendor_of(&model) {
        Ok(found) => found,
        Err(prefix) => {
            let prefix: String = prefix.chars().take(40).collect();
            return refuse(format!("`{prefix}` is not spoken here: only OpenAI-compatible servers are"));
        }
    };
    if raw.api_base == Address::Refused {
        return refuse(
            "its api_base is not taken, and what is meant for it goes nowhere else: it was left out".to_owned(),
        );
    }
    name.clone_into(&mut read.model);
    let Some(place) = place_of(vendor, &read.model, raw) else {
        return refuse(format!("`{}` has no address of its own: give api_base", vendor.prefix));
    };
    let spoken = match vendor.style {
        Style::Plain if matches!(vendor.prefix, "anthropic" | "gemini") => ", by its OpenAI-compatible API",
        Style::Plain | Style::Azure | Style::Ollama => "",
    };
    let outcome = if spoken.is_empty() { Outcome::Taken } else { Outcome::Changed };
    account.note(&parameters, &entry, outcome, format!("model {} of a provider {}{spoken}", read.model, vendor.prefix));
    read.place = place;
    Some(read)
}

fn place_of(vendor: &'static Vendor, model: &str, raw: Raw) -> Option<Place> {
    let (given, variable) = match raw.api_base {
        Address::Given(Text::Plain(text)) => (Some(text), None),
        Address::Given(Text::Variable(name)) => (Some(UNKNOWN_ADDRESS.to_owned()), Some(name)),
        Address::Vendors => (None, None),
        Address::Refused => return None,
    };
    let is_given = given.is_some();
    let base = given.or_else(|| vendor.base_url.map(str::to_owned))?;
    let base = base.trim_end_matches('/');
    let base_url = match vendor.style {
        Style::Ollama => base.strip_suffix("/v1").unwrap_or(base).to_owned(),
        Style::Azure if variable.is_none() => format!("{base}/openai/deployments/{}", percent_encoded(model)),
        _ => base.to_owned(),
    };
    check_base_url(&base_url).ok()?;
    let of_vendor = vendor.key_variable.filter(|_| !is_given || vendor.style == Style::Azure);
    let key = raw.key.unwrap_or_else(|| of_vendor.map_or(Key::None, |name| Key::Variable(name.to_owned())));
    Some(Place {
        vendor: vendor.prefix,
        kind: if vendor.style == Style::Ollama { "ollama" } else { "openai" },
        base_url,
        base_url_variable: variable,
        key,
        key_header: (vendor.style == Style::Azure).then_some("api-key"),
        api_version: raw.api_version.as_deref().filter(|_| vendor.style == Style::Azure).map(Text::of),
    })
}

/// A part of a path.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
