//! What is said of a file that is no TOML. The parser's own words, and the key that they are about where they name none.

/// A longer key is not shown.
const KEY_BYTES_SHOWN_MAX: usize = 80;

/// Said of the last mistake of a file that is no TOML: where its tables end is not known, so no more can be said of it.
pub(crate) const REST_UNSEEN: &str = "; what else is in this file is looked at once that is mended";

/// What `error` says of `text`.
pub(crate) fn said_of(error: &toml::de::Error, text: &str) -> String {
    let message = error.message().trim();
    let about = error.span().and_then(|span| text.get(span)).map(str::trim).unwrap_or_default();
    let is_short = !about.is_empty() && !about.contains('\n') && about.len() <= KEY_BYTES_SHOWN_MAX;
    // A key can be shown; a value may be a secret.
    if message.contains("duplicate key") && is_short { format!("{message} `{about}`") } else { message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_stands_twice_is_named() {
        for (text, said) in
            [("[a]\nslots = 1\nslots = 2\n", "duplicate key `slots`"), ("[a]\n[b]\n[a]\n", "duplicate key `a`")]
        {
            let (_, errors) = toml::de::DeTable::parse_recoverable(text);
            assert_eq!(errors.iter().map(|error| said_of(error, text)).collect::<Vec<_>>(), [said]);
        }
        let (_, errors) = toml::de::DeTable::parse_recoverable("key = sk-secret\n");
        assert!(!errors.is_empty() && errors.iter().all(|error| !said_of(error, "key = sk-secret\n").contains('`')));
    }
}
