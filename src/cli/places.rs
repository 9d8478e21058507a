//! Whether the places of photos may be used: rounded, and only if the configuration says so.

use crate::settings::{general::PlaceSharing, load::Settings};

/// How far places may go with the agents of these settings: as far as `places.share` says, wherever they run.
pub(super) fn allowed(settings: &Settings) -> PlaceSharing {
    settings.run.places
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
    fn places_are_told_only_when_allowed() {
        for base_url in ["http://127.0.0.1:7801", "http://[::1]:7801", "https://models.example/v1"] {
            check(base_url, "never", PlaceSharing::Never);
            check(base_url, "rounded", PlaceSharing::Rounded);
        }
    }
}
