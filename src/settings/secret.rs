//! Secrets stand in the environment or in files, never in the configuration. Settings keep only where; the text is fetched
//! in one function and hides itself from every log.

use std::{fmt, io::Read as _, path::PathBuf};

use super::problem::{Origin, Problem};

/// The longest secret, in bytes.
pub const SECRET_BYTES_MAX: usize = 16 * 1024;

/// Where a secret is to be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretSource {
    /// The place.
    pub place: SecretPlace,
    /// The configuration's key that names it.
    pub key: String,
    /// Where that key stands.
    pub origin: Origin,
}

/// The kind of place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretPlace {
    /// An environment variable.
    Environment(String),
    /// A file; one line break at its end is not part of the secret.
    File(PathBuf),
}

/// A secret's text. It does not print itself.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    /// The text, for the one header it is meant for.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SecretText(hidden)")
    }
}

impl SecretSource {
    /// What is wrong with it, where it was given. `rule` never holds the secret.
    pub fn problem(&self, rule: String) -> Problem {
        Problem { origin: self.origin.clone(), key: self.key.clone(), value: None, rule }
    }
}

/// Fetches a secret. `environment` answers what a variable holds. Reads a file at most; never logs.
///
/// Refused: a variable or file that is missing, empty, too long, or holds what no header can carry.
pub fn resolve_secret(
    source: &SecretSource,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<SecretText, Problem> {
    let (text, place) = match &source.place {
        SecretPlace::Environment(name) => {
            let place = format!("environment variable {name}");
            match environment(name) {
                Some(text) => (text, place),
                None => return Err(source.problem(format!("{place} is not set"))),
            }
        }
        SecretPlace::File(path) => {
            let place = format!("file {}", path.display());
            let read = std::fs::File::open(path).and_then(|file| {
                let mut text = String::new();
                file.take(SECRET_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
                Ok(text)
            });
            match read {
                Ok(text) => (text, place),
                Err(error) => return Err(source.problem(format!("{place} cannot be read: {error}"))),
            }
        }
    };
    let text = text.trim_end_matches(['\r', '\n']);
    if text.trim().is_empty() {
        return Err(source.problem(format!("{place} is empty")));
    }
    if text.len() > SECRET_BYTES_MAX {
        return Err(source.problem(format!("{place} holds more than {SECRET_BYTES_MAX} bytes")));
    }
    if !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(source.problem(format!("{place} holds characters that no header can carry")));
    }
    Ok(SecretText(text.to_owned()))
}

/// Whether `name` can be the name of an environment variable.
pub(crate) fn is_variable_name(name: &str) -> bool {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    !name.is_empty() && name.len() <= 256 && plain && !name.as_bytes()[0].is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, path::Path, sync::Arc};

    use super::*;

    fn source(place: SecretPlace) -> SecretSource {
        let origin = Origin::File { path: Arc::from("w.toml"), line: 3 };
        SecretSource { place, key: "providers.local.api_key_env".to_owned(), origin }
    }

    #[test]
    fn variables() {
        for (held, result) in [
            (Some("abc"), Ok("abc")),
            (Some("abc\n"), Ok("abc")),
            (None, Err("w.toml:3: providers.local.api_key_env: environment variable K is not set")),
            (Some(""), Err("w.toml:3: providers.local.api_key_env: environment variable K is empty")),
            (
                Some("a\nb"),
                Err(
                    "w.toml:3: providers.local.api_key_env: environment variable K holds characters that no header can carry",
                ),
            ),
            (
                Some("열쇠"),
                Err(
                    "w.toml:3: providers.local.api_key_env: environment variable K holds characters that no header can carry",
                ),
            ),
        ] {
            let secret = resolve_secret(&source(SecretPlace::Environment("K".to_owned())), &|name| {
                assert_eq!(name, "K");
                held.map(str::to_owned)
            });
            let shown = secret.as_ref().map(SecretText::expose).map_err(ToString::to_string);
            assert_eq!(shown, result.map_err(str::to_owned), "{held:?}");
            assert!(!format!("{secret:?}").contains("abc"));
        }
    }

    #[test]
    fn files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let place = |path: &Path| source(SecretPlace::File(path.to_owned()));
        assert!(resolve_secret(&place(&path), &|_| None).unwrap_err().rule.contains("cannot be read"));
        std::fs::File::create(&path).unwrap().write_all(b"abc\r\n").unwrap();
        assert_eq!(resolve_secret(&place(&path), &|_| None).unwrap().expose(), "abc");
        std::fs::write(&path, "x".repeat(SECRET_BYTES_MAX + 1)).unwrap();
        assert!(resolve_secret(&place(&path), &|_| None).unwrap_err().rule.contains("more than"));
    }
}
