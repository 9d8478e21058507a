//! Where a provider is reached and what goes along with each request: address, key, headers, query. Nothing is contacted here.

use std::{path::Path, time::Duration};

use super::{
    node::{Node, Table, Value, looks_secret},
    problem::Problem,
    reader::{Fit, Reader},
    secret::{SecretPlace, SecretSource, is_variable_name},
};

/// The longest address, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 2_048;
/// The most headers, and the most query parameters, of a provider or agent.
pub const EXTRAS_MAX: usize = 64;

/// Headers that belong to HTTP itself or to our own protocol.
const RESERVED_HEADERS: [&str; 11] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "idempotency-key",
    "te",
    "traceparent",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// How a provider is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `http` or `https`, without credentials, query or fragment, without a slash at its end.
    pub base_url: String,
    /// The key.
    pub api_key: Option<SecretSource>,
    /// Where the key goes.
    pub auth: AuthStyle,
    /// Headers of every request, names in lower case.
    pub headers: Vec<(String, TextSource)>,
    /// Query parameters of every request.
    pub query: Vec<(String, TextSource)>,
    /// How long a connection may take to come to be.
    pub connect_timeout: Duration,
}

/// Where a provider's key goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthStyle {
    /// `authorization: Bearer ...`.
    Bearer,
    /// Alone in the header of this name.
    Header(String),
    /// In the query parameter of this name.
    Query(String),
}

/// Where a model's server has what; `None` = where OpenAI has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelPaths {
    /// Chat completions; may hold `{model}`.
    pub chat: Option<String>,
    /// Embeddings; may hold `{model}`.
    pub embeddings: Option<String>,
    /// The list of its models.
    pub models: Option<String>,
}

/// A text that stands in the configuration, or elsewhere because it is a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextSource {
    /// The text itself.
    Text(String),
    /// Where it is.
    Secret(SecretSource),
}

/// Reads `base_url`, which must be there.
pub(super) fn read_base_url(reader: &mut Reader<'_, '_>) -> Option<String> {
    if !reader.is_given("base_url") {
        reader.node("base_url");
        if reader.fit() == Fit::Unknown {
            return None;
        }
        reader.refuse_without(
            &["base_url"],
            "base_url",
            "must be set for this kind, as in \"http://127.0.0.1:8081/v1\"",
        );
        return None;
    }
    read_given_base_url(reader)
}

/// Reads `base_url`, which may be left out for a kind whose usual place is known.
pub(super) fn read_base_url_or(reader: &mut Reader<'_, '_>, usual: &str) -> Option<String> {
    if reader.is_given("base_url") {
        return read_given_base_url(reader);
    }
    reader.node("base_url");
    reader.explain("base_url", usual);
    Some(usual.to_owned())
}

fn read_given_base_url(reader: &mut Reader<'_, '_>) -> Option<String> {
    let text = reader.text("base_url")?;
    match check_base_url(text) {
        Ok(()) => {
            reader.explain("base_url", text);
            Some(text.trim_end_matches('/').to_owned())
        }
        Err(rule) => {
            reader.refuse("base_url", rule);
            None
        }
    }
}

/// What is wrong with an address, as a sentence's end.
pub(crate) fn check_base_url(text: &str) -> Result<(), &'static str> {
    if text.len() > ADDRESS_BYTES_MAX {
        return Err("must have at most 2048 bytes");
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte)) {
        return Err("must be an address of visible ASCII characters");
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err("must begin with http:// or https://");
    };
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err("must begin with http:// or https://");
    }
    if rest.contains(['?', '#']) {
        return Err("must end with its path: parameters belong to `query`");
    }
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return Err("must not hold credentials: use api_key_env or api_key_file");
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(bracketed) => {
            let Some((host, after)) = bracketed.split_once(']') else { return Err("must close its [ bracket") };
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err("must hold an IPv6 address in its brackets");
            }
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err("must have a port, a path or nothing after its host"),
            }
        }
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    let host_fits = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte));
    if host.is_empty() || !host_fits {
        return Err("must name a host");
    }
    let port_fits =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    if port.is_some_and(|port| !port_fits(port)) {
        return Err("must have a port from 1 to 65535");
    }
    Ok(())
}

/// Reads `api_key_env` or `api_key_file`; a file's path is taken from `folder`.
pub(super) fn read_api_key(reader: &mut Reader<'_, '_>, folder: &Path) -> Option<SecretSource> {
    read_secret(reader, folder, ["api_key", "api_key_env", "api_key_file"])
}

/// Reads where a secret is: never under `plain`, but named by a variable or a file. A file's path is taken from `folder`.
pub(super) fn read_secret(
    reader: &mut Reader<'_, '_>,
    folder: &Path,
    [plain, by_variable, by_file]: [&'static str; 3],
) -> Option<SecretSource> {
    let variable = reader.text(by_variable);
    let file = reader.text(by_file);
    reader.unfit(&[plain], &format!("must not stand in the configuration: use {by_variable} or {by_file}"));
    if variable.is_some() && file.is_some() {
        reader.refuse(by_file, format!("must not be given together with {by_variable}"));
    }
    let source = |reader: &mut Reader<'_, '_>, key: &str, place| {
        let source = SecretSource { place, key: reader.full_key(key), origin: reader.origin(key) };
        reader.report.secrets.push(source.clone());
        source
    };
    if let Some(name) = variable {
        if !is_variable_name(name) {
            reader.refuse(by_variable, "must be the name of an environment variable, not the key itself");
            return None;
        }
        reader.explain(by_variable, name);
        return Some(source(reader, by_variable, SecretPlace::Environment(name.to_owned())));
    }
    let file = file?;
    if file.is_empty() {
        reader.refuse(by_file, "must be the path of a file");
        return None;
    }
    reader.explain(by_file, file);
    let path = folder.join(file);
    reader.report.secret_files.insert(path.clone());
    Some(source(reader, by_file, SecretPlace::File(path)))
}

/// Reads `auth`: `"bearer"`, `{ header = "api-key" }` or `{ query = "key" }`.
pub(super) fn read_auth(reader: &mut Reader<'_, '_>) -> AuthStyle {
    let Some(node) = reader.node("auth") else { return AuthStyle::Bearer };
    let named = |table: &Table, key: &str| match table.get(key).map(|node| &node.value) {
        Some(Value::Text(name)) if table.len() == 1 && is_token(name) => Some(name.clone()),
        _ => None,
    };
    let style = match &node.value {
        Value::Text(word) if word == "bearer" => Some(AuthStyle::Bearer),
        Value::Table(table) => named(table, "header")
            .map(|name| AuthStyle::Header(name.to_ascii_lowercase()))
            .filter(|style| !matches!(style, AuthStyle::Header(name) if RESERVED_HEADERS.contains(&name.as_str())))
            .or_else(|| named(table, "query").map(AuthStyle::Query)),
        _ => None,
    };
    if let Some(style) = &style {
        let shown = match style {
            AuthStyle::Bearer => "bearer".to_owned(),
            AuthStyle::Header(name) => format!("header {name}"),
            AuthStyle::Query(name) => format!("query {name}"),
        };
        reader.explain("auth", shown);
    } else {
        reader.refuse("auth", "must be \"bearer\", { header = \"api-key\" } or { query = \"key\" }");
    }
    style.unwrap_or(AuthStyle::Bearer)
}

/// Reads `paths`.
pub(super) fn read_paths(reader: &mut Reader<'_, '_>) -> ModelPaths {
    let mut table = reader.table("paths");
    let mut path = |key: &'static str| {
        let path = table.text(key)?;
        let plain = path.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`|?#".contains(&byte));
        let without_marks = path.replace("{model}", "");
        let climbs = path.split('/').any(|segment| segment == "." || segment == "..");
        if !plain || climbs || !path.starts_with('/') || path.len() > 1_024 || without_marks.contains(['{', '}']) {
            table.refuse(key, "must be a path as in \"/openai/deployments/{model}/chat/completions\", {model} being all that is filled in");
            return None;
        }
        table.explain(key, path);
        Some(path.to_owned())
    };
    let paths = ModelPaths { chat: path("chat"), embeddings: path("embeddings"), models: path("models") };
    table.finish(&[]);
    paths
}

fn is_token(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=128).contains(&name.len()) && name.bytes().all(fits)
}

/// The name of a key, for its breaker and for logs: the variable's, or the file's.
pub(super) fn key_name(source: &SecretSource) -> String {
    let name = match &source.place {
        SecretPlace::Environment(name) => name.clone(),
        SecretPlace::File(path) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
    };
    let fitting: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(64).collect();
    let fitting = fitting.trim_start_matches(['-', '_', '.']);
    if fitting.is_empty() { "key".to_owned() } else { fitting.to_owned() }
}

/// Reads `headers`.
pub(super) fn read_headers(reader: &mut Reader<'_, '_>) -> Vec<(String, TextSource)> {
    read_extras(reader, "headers", |name| {
        let token = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
        if name.is_empty() || name.len() > 128 || !token {
            return Err("is no name of a header");
        }
        if RESERVED_HEADERS.contains(&name) || name.starts_with("x-watertight-") {
            return Err("is set by HTTP or by the call itself");
        }
        Ok(())
    })
}

/// Reads `query`.
pub(super) fn read_query(reader: &mut Reader<'_, '_>) -> Vec<(String, TextSource)> {
    read_extras(reader, "query", |name| {
        if name.is_empty() || name.len() > 128 { Err("is no name of a parameter") } else { Ok(()) }
    })
}

/// Reads a table of names and texts, where a text may be `{ env = "NAME" }`.
fn read_extras(
    reader: &mut Reader<'_, '_>,
    key: &'static str,
    check_name: impl Fn(&str) -> Result<(), &'static str>,
) -> Vec<(String, TextSource)> {
    let entries = reader.entries(key);
    if entries.len() > EXTRAS_MAX {
        reader.refuse(key, format!("has {} entries, at most {EXTRAS_MAX} are allowed", entries.len()));
        return Vec::new();
    }
    let mut extras: Vec<(String, TextSource)> = Vec::new();
    for (written, node) in entries {
        // Headers are one whatever their case; parameters are not.
        let name = if key == "headers" { written.to_ascii_lowercase() } else { written.clone() };
        let full_key = super::node::key_path(&reader.full_key(key), written);
        let checked = check_name(&name).map_err(str::to_owned).and_then(|()| {
            if extras.iter().any(|(other, _)| *other == name) {
                return Err("is given twice".to_owned());
            }
            text_source(&full_key, &name, node)
        });
        match checked {
            Ok(source) => {
                let shown = match &source {
                    TextSource::Text(text) => text.clone(),
                    TextSource::Secret(SecretSource { place: SecretPlace::Environment(name), .. }) => {
                        format!("env {name}")
                    }
                    TextSource::Secret(_) => "a file".to_owned(),
                };
                reader.report.explain(full_key, shown, node.origin.clone());
                if let TextSource::Secret(source) = &source {
                    reader.report.secrets.push(source.clone());
                }
                extras.push((name, source));
            }
            Err(rule) => {
                let value = Some(node.shown(&name));
                reader.report.tell(Problem { origin: node.origin.clone(), key: full_key, value, rule });
            }
        }
    }
    extras
}

fn text_source(full_key: &str, name: &str, node: &Node) -> Result<TextSource, String> {
    match &node.value {
        Value::Text(_) if looks_secret(name) => {
            Err("must not stand in the configuration, it may be a secret: use { env = \"NAME\" }".to_owned())
        }
        Value::Text(text) if text.len() <= 8_192 && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) => {
            Ok(TextSource::Text(text.clone()))
        }
        Value::Text(_) => Err("must be at most 8192 visible ASCII characters".to_owned()),
        Value::Table(table) if table.len() == 1 => match table.get("env").map(|inner| &inner.value) {
            Some(Value::Text(variable)) if is_variable_name(variable) => Ok(TextSource::Secret(SecretSource {
                place: SecretPlace::Environment(variable.clone()),
                key: full_key.to_owned(),
                origin: node.origin.clone(),
            })),
            _ => Err("must be a text, or { env = \"NAME\" }".to_owned()),
        },
        _ => Err("must be a text, or { env = \"NAME\" }".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, fits) in [
            ("http://127.0.0.1:8081/v1", true),
            ("https://api.example.com", true),
            ("HTTP://host/", true),
            ("http://ollama:11434", true),
            ("http://my_service:80/a/b", true),
            ("http://[::1]:8080/v1", true),
            ("http://[::1]", true),
            ("http://", false),
            ("http:///v1", false),
            ("http://:80", false),
            ("host:80", false),
            ("ftp://host", false),
            ("http://user:pw@host", false),
            ("http://user@host/v1", false),
            ("http://host/v1?key=1", false),
            ("http://host/#x", false),
            ("http://host:0", false),
            ("http://host:65536", false),
            ("http://host:+80", false),
            ("http://host:", false),
            ("http://[::1", false),
            ("http://[x]:80", false),
            ("http://[::1]x", false),
            ("http://a b", false),
            ("http://호스트", false),
            ("", false),
        ] {
            assert_eq!(check_base_url(text).is_ok(), fits, "{text}");
        }
        assert!(check_base_url(&format!("http://host/{}", "x".repeat(3_000))).is_err());
    }
}
