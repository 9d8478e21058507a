//! Laying one layer over another: manifests, the file, the environment, flags. It knows no key beside the pairs that exclude each other.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    node::{DEPTH_MAX, Layer, Node, Table, Value, key_path, parse_key, parse_value},
    problem::{Origin, Problem},
};

/// What an environment variable's name begins with.
pub const ENVIRONMENT_PREFIX: &str = "WATERTIGHT_";
/// What stands for the point of a key in an environment variable's name.
const ENVIRONMENT_SEPARATOR: &str = "__";

/// Two ways to say one thing: a later layer that says it one way silences the other way below.
const EXCLUSIVE: [(&str, &str); 2] = [("window_calls", "window"), ("api_key_env", "api_key_file")];

/// Lays `over` over `base`: tables are joined, everything else is replaced.
pub(super) fn merge(base: &mut Table, over: Table) {
    for (one, other) in EXCLUSIVE {
        if over.contains_key(one) {
            base.remove(other);
        }
        if over.contains_key(other) {
            base.remove(one);
        }
    }
    for (key, node) in over {
        match (base.get_mut(&key), node) {
            (Some(below), Node { value: Value::Table(above_table), origin, layer }) if below.as_table().is_some() => {
                if let Value::Table(below_table) = &mut below.value {
                    merge(below_table, above_table);
                }
                // A missing key is best blamed on a table that somebody wrote, in the latest file that has it.
                if matches!(origin, Origin::File { .. }) {
                    below.origin = origin;
                }
                below.layer = layer;
            }
            (_, node) => {
                base.insert(key, node);
            }
        }
    }
}

/// Lays the `WATERTIGHT_*` variables over `root`. Names without a double underscore are no settings (programs have other
/// variables too), but one that seems to mean a table in `tables` is returned as a warning.
pub(super) fn merge_environment(
    root: &mut Table,
    environment: &BTreeMap<String, String>,
    tables: &[&str],
) -> Vec<Problem> {
    let mut warnings = Vec::new();
    for (name, text) in environment {
        let Some(path) = name.strip_prefix(ENVIRONMENT_PREFIX) else { continue };
        let origin = Origin::Environment(Arc::from(name.as_str()));
        if !path.contains(ENVIRONMENT_SEPARATOR) {
            let first = path.split('_').next().unwrap_or_default().to_ascii_lowercase();
            if path.contains('_') && tables.contains(&first.as_str()) {
                let rule = "is not used: parts of a key are separated by two underscores".to_owned();
                warnings.push(Problem { origin, key: String::new(), value: None, rule });
            }
            continue;
        }
        if path.matches(ENVIRONMENT_SEPARATOR).count() >= DEPTH_MAX {
            let rule = format!("is not used: no key has more than {DEPTH_MAX} parts");
            warnings.push(Problem { origin, key: String::new(), value: None, rule });
            continue;
        }
        let parts: Vec<String> = path.split(ENVIRONMENT_SEPARATOR).map(str::to_ascii_lowercase).collect();
        set(root, &parts, value_of(text, &origin), &origin, spelled_as);
    }
    warnings
}

/// Lays `key=value` flags over `root`, the later over the earlier.
pub(super) fn merge_flags(root: &mut Table, flags: &[String]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for flag in flags {
        let parsed = flag.split_once('=').and_then(|(key, text)| Some((key.trim(), parse_key(key.trim())?, text)));
        let Some((key, parts, text)) = parsed else {
            let shown: String = flag.split('=').next().unwrap_or_default().chars().take(80).collect();
            let origin = Origin::Flag(Arc::from(shown));
            let rule = "must be key=value, as in agents.draft.slots=3".to_owned();
            problems.push(Problem { origin, key: String::new(), value: None, rule });
            continue;
        };
        let origin = Origin::Flag(Arc::from(key));
        set(root, &parts, value_of(text, &origin), &origin, |_, _| false);
    }
    problems
}

/// A value given as text: as in TOML if it is that, else the text itself.
fn value_of(text: &str, origin: &Origin) -> Node {
    let plain = || Node { value: Value::Text(text.to_owned()), origin: origin.clone(), layer: Layer::Config };
    parse_value(text.trim(), origin).unwrap_or_else(plain)
}

/// Whether `key` is what `part` of a variable's name means: variables know neither case nor `-` and `.`.
fn spelled_as(key: &str, part: &str) -> bool {
    key.len() == part.len()
        && key.bytes().zip(part.bytes()).all(|(byte, wanted)| {
            byte.to_ascii_lowercase() == wanted || (wanted == b'_' && (byte == b'-' || byte == b'.'))
        })
}

/// Puts `node` at `parts`, making tables on the way. A part that is no key yet may mean one that `alike` recognises.
fn set(root: &mut Table, parts: &[String], node: Node, origin: &Origin, alike: fn(&str, &str) -> bool) {
    let mut resolved = Vec::new();
    let mut below = Some(&*root);
    for part in parts {
        let key = match below {
            Some(table) if !table.contains_key(part) => table.keys().find(|key| alike(key, part)).unwrap_or(part),
            _ => part,
        };
        resolved.push(key.clone());
        below = below.and_then(|table| table.get(key)).and_then(Node::as_table);
    }
    let mut value = node;
    for key in resolved.into_iter().rev() {
        let table = Table::from([(key, value)]);
        value = Node { value: Value::Table(table), origin: origin.clone(), layer: Layer::Config };
    }
    if let Value::Table(layer) = value.value {
        merge(root, layer);
    }
}

/// Every value below `node` that is no table, with its full key; at most `count_max` of them.
pub(super) fn leaves<'n>(path: &str, node: &'n Node, count_max: usize, found: &mut Vec<(String, &'n Node)>) {
    if found.len() >= count_max {
        return;
    }
    match node.as_table() {
        Some(table) if !table.is_empty() => {
            for (key, inner) in table {
                leaves(&key_path(path, key), inner, count_max, found);
            }
        }
        _ => found.push((path.to_owned(), node)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::node::parse_file;

    fn tree(text: &str) -> Table {
        parse_file(&Arc::from("w.toml"), text.as_bytes(), Layer::Config).unwrap()
    }

    fn shown(root: &Table) -> Vec<String> {
        let mut found = Vec::new();
        for (key, node) in root {
            leaves(key, node, 100, &mut found);
        }
        found.into_iter().map(|(key, node)| format!("{key} = {} ({})", node.shown(&key), node.origin)).collect()
    }

    #[test]
    fn later_layers_win_key_by_key() {
        let mut root = tree("[a]\nb = 1\nc = { d = 2, e = 3 }\n");
        merge(&mut root, tree("[a]\nc.e = 4\nf = 5\n"));
        assert_eq!(
            shown(&root),
            ["a.b = 1 (w.toml:2)", "a.c.d = 2 (w.toml:3)", "a.c.e = 4 (w.toml:2)", "a.f = 5 (w.toml:3)"]
        );
    }

    #[test]
    fn one_way_to_say_it_silences_the_other() {
        let mut root = tree("[x]\nwindow_calls = 20\napi_key_file = 'f'\n");
        merge(&mut root, tree("[x]\nwindow = '60s'\napi_key_env = 'K'\n"));
        assert_eq!(shown(&root), ["x.api_key_env = \"(hidden)\" (w.toml:3)", "x.window = \"60s\" (w.toml:2)"]);
        let both = tree("[x]\nwindow_calls = 20\nwindow = '60s'\n");
        let mut root = tree("");
        merge(&mut root, both);
        assert_eq!(shown(&root).len(), 2, "the reader must see both to refuse them");
    }

    #[test]
    fn environment() {
        let mut root = tree("[agents.photo-facts]\nslots = 1\n[agents.Draft]\nslots = 1\n");
        let environment = [
            ("WATERTIGHT_AGENTS__PHOTO_FACTS__SLOTS", "3"),
            ("WATERTIGHT_AGENTS__DRAFT__TIMEOUT", "30s"),
            ("WATERTIGHT_AGENTS__NEW__SLOTS", "\"4\""),
            ("WATERTIGHT_AGENTS_DRAFT_SLOTS", "5"),
            ("WATERTIGHT_LOG", "info"),
            ("HOME", "x"),
        ];
        let environment = environment.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let warnings = merge_environment(&mut root, &environment, &["agents"]);
        assert_eq!(warnings.len(), 1);
        assert_eq!(warnings[0].origin.to_string(), "WATERTIGHT_AGENTS_DRAFT_SLOTS");
        assert_eq!(
            shown(&root),
            [
                "agents.Draft.slots = 1 (w.toml:4)",
                "agents.Draft.timeout = \"30s\" (WATERTIGHT_AGENTS__DRAFT__TIMEOUT)",
                "agents.new.slots = \"4\" (WATERTIGHT_AGENTS__NEW__SLOTS)",
                "agents.photo-facts.slots = 3 (WATERTIGHT_AGENTS__PHOTO_FACTS__SLOTS)",
            ]
        );
    }

    #[test]
    fn flags() {
        let mut root = tree("[agents.draft]\nslots = 1\n");
        let flags = ["agents.draft.slots=2", "agents.draft.slots = 3", "a.b=30s", "nonsense", "=1", "a..b=1"];
        let problems = merge_flags(&mut root, &flags.map(str::to_owned));
        assert_eq!(problems.len(), 3);
        assert_eq!(shown(&root), ["a.b = \"30s\" (--set a.b)", "agents.draft.slots = 3 (--set agents.draft.slots)"]);
    }
}
