//! Whether the places of photos may be used: rounded and on this machine always, off it only if the configuration says so.

use crate::settings::{general::PlaceSharing, load::Settings, provider::Provider};

/// How far places may go with the agents of these settings.
pub(super) fn allowed(settings: &Settings) -> PlaceSharing {
    let stays = settings.providers.iter().all(is_on_this_machine);
    if stays { PlaceSharing::Rounded } else { settings.run.places }
}

fn is_on_this_machine(provider: &Provider) -> bool {
    let Some(endpoint) = provider.backend.endpoint() else { return true };
    let host = url::Url::parse(&endpoint.base_url).ok();
    match host.as_ref().and_then(url::Url::host) {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path};

    use super::*;
    use crate::{
        model::name::Name,
        settings::{
            folder::ConfigFile,
            load::{Sources, Wanted, load},
        },
    };

    fn check(base_url: &str, share: &str, want: PlaceSharing) {
        let text = format!(
            "[providers.p]\nkind = \"http\"\nbase_url = \"{base_url}\"\n[agents.a]\nprovider = \"p\"\n[places]\nshare = \"{share}\"\n"
        );
        let settings = load(&Sources {
            config: Some(&ConfigFile { path: "w.toml".into(), bytes: text.into_bytes() }),
            folder: Path::new("."),
            agent_folders: &[],
            environment: &BTreeMap::new(),
            flags: &[],
            embedded: &[],
            wanted: Wanted::Named(vec![Name::try_new("a").unwrap()]),
            read_file: &|_| Err("none".into()),
        });
        assert_eq!(allowed(&settings.unwrap()), want, "{base_url} {share}");
    }

    #[test]
    fn places_leave_the_machine_only_when_allowed() {
        check("http://127.0.0.1:7801", "never", PlaceSharing::Rounded);
        check("http://localhost:7801", "never", PlaceSharing::Rounded);
        check("http://[::1]:7801", "never", PlaceSharing::Rounded);
        check("http://10.0.0.7:7801", "never", PlaceSharing::Never);
        check("https://models.example/v1", "never", PlaceSharing::Never);
        check("https://localhost.example/v1", "never", PlaceSharing::Never);
        check("https://models.example/v1", "rounded", PlaceSharing::Rounded);
    }
}
