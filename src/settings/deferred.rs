//! `[deferred]` and `[deferred.webhook]`: how calls are put off and made again, and who is told of their end.

use std::{collections::BTreeMap, path::Path, time::Duration};

use super::{
    endpoint::{check_base_url, read_secret},
    node::{Node, Value},
    reader::Reader,
    secret::SecretSource,
};
use crate::{
    model::name::Name,
    policy::compartment::settings::CLASSES,
    runtime::deferred::{
        push::PrivateNames,
        settings::{DeferredSettings, PushSettings},
        store::QueueBounds,
    },
};

/// The most calls that can wait.
const ENTRIES_MAX: u64 = 10_000_000;
/// The most bytes of one.
const ENTRY_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The most attempts.
const ATTEMPTS_MAX: u64 = 1_000;
/// The most calls at once.
const PARALLEL_MAX: u64 = 10_000;

/// `[deferred]`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeferredTable {
    /// For the runtime.
    pub settings: DeferredSettings,
    /// Who is told of ends, if anybody is.
    pub webhook: Option<WebhookTable>,
}

/// `[deferred.webhook]`.
#[derive(Debug, Clone, PartialEq)]
pub struct WebhookTable {
    /// Where what is signed is signed with.
    pub secret: SecretSource,
    /// Whether names may lead into this machine or a private network.
    pub private_names: PrivateNames,
    /// For calls that no other entry is for.
    pub url: Option<String>,
    /// By feature.
    pub features: BTreeMap<Name, String>,
    /// By tenant; these come before those by feature.
    pub tenants: BTreeMap<Name, String>,
}

/// Reads `[deferred]`.
pub(super) fn read_deferred(root: &mut Reader<'_, '_>, folder: &Path) -> DeferredTable {
    let mut reader = root.table("deferred");
    let usual = DeferredSettings::default();
    let number = |reader: &mut Reader<'_, '_>, key: &'static str, max: u64, default: u64| {
        let value = reader.whole(key, 1, max).unwrap_or(default);
        reader.explain(key, value.to_string());
        value
    };
    let entries_max = number(&mut reader, "entries_max", ENTRIES_MAX, usual.bounds.entries_max);
    let of_tenant = usual.bounds.tenant_entries_max.min(entries_max);
    let tenant_entries_max = number(&mut reader, "tenant_entries_max", ENTRIES_MAX, of_tenant);
    if tenant_entries_max > entries_max {
        reader.warn("tenant_entries_max", "is more than deferred.entries_max, which holds for all together");
    }
    let entry_bytes_max = number(&mut reader, "entry_bytes_max", ENTRY_BYTES_MAX, usual.entry_bytes_max);
    let attempts = number(&mut reader, "attempts_max", ATTEMPTS_MAX, u64::from(usual.attempts_max));
    let parallel = number(&mut reader, "parallel", PARALLEL_MAX, usual.parallel as u64);
    let delay = reader.duration("delay", usual.delay);
    let expires_after = reader.duration("expires_after", usual.expires_after);
    if expires_after <= delay {
        reader.refuse("expires_after", "must be longer than deferred.delay: no call would ever be made");
    }
    let jitter = reader.number("jitter", usual.jitter);
    if !(0.0..=1.0).contains(&jitter) {
        reader.refuse("jitter", "must be a share from 0 to 1");
    }
    let classes = CLASSES.map(|class| (class, class));
    let priority = reader.choice("priority", "background", &classes, &[]);
    let (push, webhook) = read_webhook(&mut reader, folder);
    reader.finish(&[]);
    let settings = DeferredSettings {
        bounds: QueueBounds { entries_max, tenant_entries_max },
        entry_bytes_max,
        delay,
        jitter,
        // proof of no loss: at most a thousand, and ten thousand.
        attempts_max: u32::try_from(attempts).unwrap_or(u32::MAX),
        expires_after,
        parallel: usize::try_from(parallel).unwrap_or(usize::MAX),
        priority: priority.to_owned(),
        push,
    };
    DeferredTable { settings, webhook }
}

fn read_webhook(reader: &mut Reader<'_, '_>, folder: &Path) -> (PushSettings, Option<WebhookTable>) {
    let usual = PushSettings::default();
    if !reader.is_given("webhook") {
        reader.know(&["webhook"]);
        return (usual, None);
    }
    let mut table = reader.table("webhook");
    let attempts = table.whole("attempts_max", 1, ATTEMPTS_MAX).and_then(|most| u32::try_from(most).ok());
    let attempts_max = attempts.unwrap_or(usual.attempts_max);
    table.explain("attempts_max", attempts_max.to_string());
    let push = PushSettings {
        attempts_max,
        backoff: table.duration("backoff", usual.backoff),
        backoff_max: table.duration("backoff_max", usual.backoff_max).max(Duration::from_secs(1)),
        timeout: table.duration("timeout", usual.timeout),
    };
    let private_names = if table.truth("private_names", false) { PrivateNames::Allowed } else { PrivateNames::Refused };
    let url = table.node("url").and_then(|node| read_url(&mut table, "url", node));
    let features = read_urls(&mut table, "features");
    let tenants = read_urls(&mut table, "tenants");
    if url.is_none() && features.is_empty() && tenants.is_empty() && !table.is_given("url") {
        table.refuse_without(&["url", "features", "tenants"], "url", "must be set, here or by feature or tenant");
    }
    let secret = read_secret(&mut table, folder, ["secret", "secret_env", "secret_file"]);
    if secret.is_none() && !table.is_given("secret_env") && !table.is_given("secret_file") {
        table.refuse_without(
            &["secret_env", "secret_file"],
            "secret_env",
            "must be set, or secret_file: what is told is signed",
        );
    }
    table.finish(&[]);
    (push, secret.map(|secret| WebhookTable { secret, private_names, url, features, tenants }))
}

fn read_urls(reader: &mut Reader<'_, '_>, key: &'static str) -> BTreeMap<Name, String> {
    let entries = reader.entries(key);
    let mut table = reader.table(key);
    let mut found = BTreeMap::new();
    for (name, node) in entries {
        let url = read_url(&mut table, name, node);
        match (Name::try_new(name), url) {
            (Ok(name), Some(url)) => _ = found.insert(name, url),
            (Err(error), _) => table.refuse(name, error.to_string()),
            (Ok(_), None) => {}
        }
    }
    found
}

fn read_url(reader: &mut Reader<'_, '_>, key: &str, node: &Node) -> Option<String> {
    let Value::Text(url) = &node.value else {
        reader.refuse(key, "must be a text in quotes");
        return None;
    };
    if let Err(rule) = check_url(url) {
        reader.refuse(key, rule);
        return None;
    }
    reader.explain(key, url.as_str());
    Some(url.clone())
}

/// Answers leave this machine encrypted, or not at all.
fn check_url(url: &str) -> Result<(), &'static str> {
    check_base_url(url)?;
    let Some(rest) = url.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://")).and_then(|_| url.get(7..))
    else {
        return Ok(());
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let is_here = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    if is_here { Ok(()) } else { Err("must be https://, or http:// on this machine (127.0.0.1, [::1], localhost)") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::Given;

    fn lines(text: &str) -> Vec<String> {
        let error = Given::config(text).load().unwrap_err().to_string();
        error.lines().map(str::to_owned).collect()
    }

    #[test]
    fn defaults_and_a_full_table() {
        let plain = Given::config("").load().unwrap().deferred;
        assert_eq!((plain.settings, plain.webhook), (DeferredSettings::default(), None));
        let text = "[deferred]\nentries_max = 50\ntenant_entries_max = 5\nentry_bytes_max = 1000\ndelay = '1m'\njitter = 0.5\n\
            attempts_max = 2\nexpires_after = '1h'\nparallel = 3\npriority = 'batch'\n[deferred.webhook]\n\
            url = 'https://hooks.example/done'\nsecret_env = 'HOOK'\nprivate_names = true\nattempts_max = 4\nbackoff = '1s'\nbackoff_max = '1m'\n\
            timeout = '5s'\n[deferred.webhook.features]\nbatch = 'http://127.0.0.1:9000/batch'\n[deferred.webhook.tenants]\n\
            acme = 'http://[::1]/acme'\n";
        let full = Given::config(text).load().unwrap().deferred;
        let wanted = DeferredSettings {
            bounds: QueueBounds { entries_max: 50, tenant_entries_max: 5 },
            entry_bytes_max: 1_000,
            delay: Duration::from_secs(60),
            jitter: 0.5,
            attempts_max: 2,
            expires_after: Duration::from_secs(3_600),
            parallel: 3,
            priority: "batch".to_owned(),
            push: PushSettings {
                attempts_max: 4,
                backoff: Duration::from_secs(1),
                backoff_max: Duration::from_secs(60),
                timeout: Duration::from_secs(5),
            },
        };
        assert_eq!(full.settings, wanted);
        let webhook = full.webhook.unwrap();
        assert_eq!(webhook.url.as_deref(), Some("https://hooks.example/done"));
        assert_eq!((webhook.features.len(), webhook.tenants.len()), (1, 1));
        assert_eq!(webhook.private_names, PrivateNames::Allowed);
        assert_eq!(webhook.secret.key, "deferred.webhook.secret_env");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, line) in [
            ("[deferred]\nentries_max = 0", "w.toml:2: deferred.entries_max = 0: must be a whole number from 1 to"),
            (
                "[deferred]\nexpires_after = '1m'",
                "w.toml:2: deferred.expires_after = \"1m\": must be longer than deferred.delay",
            ),
            ("[deferred]\njitter = 2.0", "w.toml:2: deferred.jitter = 2.0: must be a share from 0 to 1"),
            ("[deferred]\npriority = 'vip'", "w.toml:2: deferred.priority = \"vip\": must be one of critical,"),
            ("[deferred]\ndelays = '1m'", "w.toml:2: deferred.delays = \"1m\": unknown key, did you mean `delay`?"),
        ] {
            assert!(lines(text)[0].starts_with(line), "{:?}", lines(text));
        }
        let hook = |text: &str| lines(&format!("[deferred.webhook]\nsecret_env = 'HOOK'\n{text}\n"));
        for url in ["http://hooks.example/x", "ftp://127.0.0.1/", "http://127.0.0.1.example/x", "http://10.0.0.1/"] {
            let found = hook(&format!("url = '{url}'"));
            assert!(found[0].starts_with("w.toml:3: deferred.webhook.url = "), "{found:?}");
        }
        assert!(hook("")[0].contains("deferred.webhook.url: must be set"), "{:?}", hook(""));
        let bare = lines("[deferred.webhook]\nurl = 'https://a.example/'\nsecret = 'x'\n");
        assert!(
            bare.iter().any(|line| line.contains("must not stand in the configuration: use secret_env")),
            "{bare:?}"
        );
        assert!(bare.iter().any(|line| line.contains("deferred.webhook.secret_env: must be set")), "{bare:?}");
    }
}
