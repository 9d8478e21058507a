//! The secrets that a configuration names: whether they can be had. What they are for is decided elsewhere.

use super::project::{Project, Purpose};
use crate::settings::{
    load::Examined,
    problem::Problem,
    secret::{SecretSource, SecretText, resolve_secret},
};

/// A shorter secret of a webhook can be guessed from what it signed.
const WEBHOOK_SECRET_BYTES_MIN: usize = 16;
/// Where that secret is named.
const WEBHOOK: &str = "deferred.webhook.";
/// Only a service asks for these.
const OF_SERVICES: [&str; 2] = ["keys.", WEBHOOK];

/// What is wrong with the secrets that `purpose` needs.
pub(super) fn wrong_secrets(project: &Project, examined: &Examined, purpose: Purpose) -> Vec<Problem> {
    let is_needed = |source: &&SecretSource| {
        purpose == Purpose::Serve || !OF_SERVICES.iter().any(|section| source.key.starts_with(section))
    };
    examined.secrets().iter().filter(is_needed).filter_map(|source| fetch(project, source).err()).collect()
}

/// Fetches a secret, which must be long enough for what it is for.
pub(super) fn fetch(project: &Project, source: &SecretSource) -> Result<SecretText, Problem> {
    let secret = resolve_secret(source, &|name| project.environment(name))?;
    let bytes = secret.expose().len();
    if source.key.starts_with(WEBHOOK) && bytes < WEBHOOK_SECRET_BYTES_MIN {
        let rule = format!(
            "its secret has {bytes} bytes, at least {WEBHOOK_SECRET_BYTES_MIN} are needed: who can guess it can sign"
        );
        return Err(Problem { origin: source.origin.clone(), key: source.key.clone(), value: None, rule });
    }
    Ok(secret)
}
