//! `[keys.NAME]`: who may use the service, as whom and for what. The keys themselves never stand in the configuration: their hashes do,
//! or where they are to be found.

use std::{collections::BTreeMap, path::Path};

use super::{
    effect_rules::problem_at,
    node::{Node, Table, Value, key_path},
    problem::Problem,
    reader::Reader,
    report::Report,
    secret::{SecretPlace, SecretSource, is_variable_name},
};
use crate::{
    model::{hex::unhex, name::Name},
    policy::compartment::settings::{CLASSES, HighestClass},
};

/// The most keys.
pub const KEYS_MAX: usize = 10_000;
/// The most features that one key may name.
const FEATURES_MAX: usize = 1_000;
/// What a key is that is given neither role.
const ROLE_DEFAULT: Role = Role::Caller;
/// The highest class where none is named.
const PRIORITY_DEFAULT: &str = "interactive";

/// A name that is not a caller's to give is an error, unless a key says that these are none.
const OPENAI_NAMES_DEFAULT: OpenAiNames = OpenAiNames::Taken;

/// So many digits of a hash are shown.
const HASH_DIGITS_SHOWN: usize = 12;
/// How a key can be known.
const PROOFS: [&str; 3] = ["sha256", "key_env", "key_file"];

/// What the holder of a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Runs, files and calls of its own tenant.
    Caller,
    /// All tenants, and acts on agents.
    Operator,
}

/// How a key is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyProof {
    /// By the SHA-256 of its text.
    Hash([u8; 32]),
    /// By its text, which is elsewhere.
    Secret(SecretSource),
}

/// One key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySettings {
    /// Its name: what logs and runs say of it.
    pub name: Name,
    /// How it is known.
    pub proof: KeyProof,
    /// Whose it is.
    pub tenant: Option<Name>,
    /// The tier of that tenant.
    pub tier: Option<Name>,
    /// What it allows.
    pub role: Role,
    /// The feature where a request names none.
    pub feature: Option<Name>,
    /// Features that a request may name; `None` = any.
    pub features: Option<Vec<Name>>,
    /// The highest class that a request may ask for.
    pub priority_max: HighestClass,
    /// Whether requests may name tenant and user.
    pub acting: Acting,
    /// What `user` and `metadata` of requests in OpenAI's shape are.
    pub openai_names: OpenAiNames,
}

/// Whether a key's holder speaks for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acting {
    /// Only for itself.
    ForItself,
    /// For whomever a request names.
    ForOthers,
}

/// What `user` and `metadata` of a request in OpenAI's shape are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenAiNames {
    /// Whom the request is for, as our headers say it: refused where the key may not name that.
    Taken,
    /// The model server's business: they name nobody here.
    PassedOn,
}

/// Reads `[keys.*]`.
/// A file's path is taken from `folder`.
pub(super) fn read_keys(root: &mut Reader<'_, '_>, folder: &Path) -> Vec<KeySettings> {
    let table = root.entries("keys");
    if table.len() > KEYS_MAX {
        root.refuse("keys", format!("has {} entries, at most {KEYS_MAX} are allowed", table.len()));
    }
    let mut keys = Vec::new();
    for (name, node) in table.iter().take(KEYS_MAX) {
        keys.extend(read_key(name, node, root, folder));
    }
    keys
}

fn read_key(name: &str, node: &Node, root: &mut Reader<'_, '_>, folder: &Path) -> Option<KeySettings> {
    let path = key_path("keys", name);
    let refuse = |rule: String| Problem { origin: node.origin.clone(), key: path.clone(), value: None, rule };
    let name = match Name::try_new(name) {
        Ok(name) => name,
        Err(error) => {
            root.report.tell(refuse(error.to_string()));
            return None;
        }
    };
    let Some(table) = node.as_table() else {
        root.report.tell(refuse("must be a table".to_owned()));
        return None;
    };
    let mut reader = Reader::new(table, node.origin.clone(), &path, "", root.report);
    let key = KeySettings {
        // Where there is none the configuration is refused: what else is wrong with the key is told all the same.
        proof: read_proof(&mut reader, folder).unwrap_or(KeyProof::Hash([0; 32])),
        tenant: read_name(&mut reader, "tenant"),
        tier: read_name(&mut reader, "tier"),
        role: reader.choice("role", ROLE_DEFAULT, &[("caller", Role::Caller), ("operator", Role::Operator)], &[]),
        feature: read_name(&mut reader, "feature"),
        features: read_names(&mut reader, "features"),
        priority_max: HighestClass::of(reader.choice(
            "priority_max",
            PRIORITY_DEFAULT,
            &CLASSES.map(|class| (class, class)),
            &[],
        )),
        acting: if reader.truth("may_act_for", false) { Acting::ForOthers } else { Acting::ForItself },
        openai_names: reader.choice(
            "openai_names",
            OPENAI_NAMES_DEFAULT,
            &[("taken", OpenAiNames::Taken), ("passed_on", OpenAiNames::PassedOn)],
            &[],
        ),
        name,
    };
    reader.finish(&[]);
    Some(key)
}

fn read_proof(reader: &mut Reader<'_, '_>, folder: &Path) -> Option<KeyProof> {
    let given: Vec<&'static str> = PROOFS.into_iter().filter(|key| reader.is_given(key)).collect();
    reader.know(&["sha256", "key_env", "key_file", "key"]);
    if reader.is_given("key") {
        reader.refuse("key", "a key never stands in the configuration: give its `sha256`, or `key_env` or `key_file`");
        return None;
    }
    let [key] = given[..] else {
        let rule = "exactly one of `sha256`, `key_env` and `key_file` must say how the key is known";
        match given.last() {
            Some(last) => reader.refuse(last, rule),
            None => reader.refuse_without(&PROOFS, "sha256", rule),
        }
        return None;
    };
    let text = reader.text(key)?;
    let source = |reader: &mut Reader<'_, '_>, place| {
        let source = SecretSource { place, key: reader.full_key(key), origin: reader.origin(key) };
        reader.report.secrets.push(source.clone());
        reader.explain(key, text);
        KeyProof::Secret(source)
    };
    match key {
        "sha256" => {
            let hash = unhex(text);
            // Enough to tell it from another one.
            reader.explain(key, format!("{}...", text.chars().take(HASH_DIGITS_SHOWN).collect::<String>()));
            if hash.is_none() {
                reader.refuse(
                    key,
                    "must be 64 hexadecimal digits (`watertight key new NAME` makes a key and prints them)",
                );
            }
            hash.map(KeyProof::Hash)
        }
        "key_env" if is_variable_name(text) => Some(source(reader, SecretPlace::Environment(text.to_owned()))),
        "key_env" => {
            reader.refuse(key, "must be the name of an environment variable");
            None
        }
        _ if text.is_empty() => {
            reader.refuse(key, "must be the path of a file");
            None
        }
        _ => {
            let path = folder.join(text);
            reader.report.secret_files.insert(path.clone());
            Some(source(reader, SecretPlace::File(path)))
        }
    }
}

fn read_name(reader: &mut Reader<'_, '_>, key: &'static str) -> Option<Name> {
    let text = reader.text(key)?;
    match Name::try_new(text) {
        Ok(name) => {
            reader.explain(key, text);
            Some(name)
        }
        Err(error) => {
            reader.refuse(key, error.to_string());
            None
        }
    }
}

fn read_names(reader: &mut Reader<'_, '_>, key: &'static str) -> Option<Vec<Name>> {
    let node = reader.node(key)?;
    let items = match &node.value {
        Value::List(items) if items.len() <= FEATURES_MAX => items,
        _ => {
            reader.refuse(key, format!("must be a list of at most {FEATURES_MAX} names"));
            return None;
        }
    };
    let mut names = Vec::new();
    for (at, item) in items.iter().enumerate() {
        match item.as_text().map(Name::try_new) {
            Some(Ok(name)) => names.push(name),
            Some(Err(error)) => reader.refuse_entry(key, at, item, error.to_string()),
            None => reader.refuse_entry(key, at, item, "must be a name in quotes"),
        }
    }
    let shown: Vec<&str> = names.iter().map(Name::as_str).collect();
    reader.explain(key, shown.join(", "));
    Some(names)
}

/// Two keys of one hash would make it a matter of chance whose a request is.
pub(super) fn check_keys(keys: &[KeySettings], root: &Table, report: &mut Report) {
    let mut known: BTreeMap<[u8; 32], &Name> = BTreeMap::new();
    for key in keys {
        let path = key_path(&key_path("keys", key.name.as_str()), "sha256");
        let KeyProof::Hash(hash) = key.proof else { continue };
        if !report.is_sound(&path) || !report.is_sound(&key_path(&key_path("keys", key.name.as_str()), "key")) {
            continue;
        }
        match known.get(&hash) {
            Some(twin) => report.tell(problem_at(root, path, format!("is the hash of keys.{twin} too"))),
            None => _ = known.insert(hash, &key.name),
        }
    }
}
