//! The ring of keys: finds whose a key is. Keys are known by their SHA-256 only, and compared in constant time with all of them.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use base64::Engine as _;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use super::random::random_bytes;
use crate::{
    model::name::Name,
    policy::compartment::settings::HighestClass,
    settings::{
        keys::{Acting, KeyProof, KeySettings, OpenAiNames, Role},
        problem::{Origin, Problem},
        secret::resolve_secret,
    },
};

/// What every key of ours begins with: so that leak scanners can find it.
const KEY_PREFIX: &str = "wt-";
/// Random bytes of a key.
const KEY_RANDOM_BYTES: usize = 32;

/// What a key allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: Name,
    /// Whose it is.
    pub tenant: Option<Name>,
    /// The tier of that tenant.
    pub tier: Option<Name>,
    /// What its holder may do.
    pub role: Role,
    /// The feature where a request names none.
    pub feature: Option<Name>,
    /// Features that a request may name; `None` = any.
    pub features: Option<Vec<Name>>,
    /// The highest class.
    pub priority_max: HighestClass,
    /// Whether requests may name tenant and user.
    pub acting: Acting,
    /// What `user` and `metadata` of requests in OpenAI's shape are.
    pub openai_names: OpenAiNames,
}

/// All keys.
#[derive(Debug, Default)]
pub struct KeyRing {
    keys: ArcSwap<Vec<([u8; 32], Arc<Key>)>>,
}

impl KeyRing {
    /// The ring of these settings. Keys that stand elsewhere are fetched here, once; only their hashes are kept. Where one of them is another
    /// one's too it would be a matter of chance whose a request is: an error, as it is for hashes in the configuration.
    pub fn of(settings: &[KeySettings], environment: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problem> {
        let mut keys = Vec::with_capacity(settings.len());
        let mut known: HashMap<[u8; 32], &KeySettings> = HashMap::with_capacity(settings.len());
        for key in settings {
            let hash = match &key.proof {
                KeyProof::Hash(hash) => *hash,
                KeyProof::Secret(source) => hash_of(resolve_secret(source, environment)?.expose()),
            };
            if let Some(twin) = known.insert(hash, key) {
                return Err(shared(key, twin));
            }
            let allowed = Key {
                name: key.name.clone(),
                tenant: key.tenant.clone(),
                tier: key.tier.clone(),
                role: key.role,
                feature: key.feature.clone(),
                features: key.features.clone(),
                priority_max: key.priority_max,
                acting: key.acting,
                openai_names: key.openai_names,
            };
            keys.push((hash, Arc::new(allowed)));
        }
        Ok(Self { keys: ArcSwap::from_pointee(keys) })
    }

    /// From now on these keys hold, and no others.
    pub fn replace(&self, other: Self) {
        self.keys.store(other.keys.into_inner());
    }

    /// True if nobody needs a key.
    pub fn is_empty(&self) -> bool {
        self.keys.load().is_empty()
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.keys.load().len()
    }

    /// The key of this text. Takes the same time whichever it is, and if it is none.
    pub fn find(&self, text: &str) -> Option<Arc<Key>> {
        let hash = hash_of(text);
        let mut found = u64::MAX;
        let keys = self.keys.load();
        for (index, (known, _)) in keys.iter().enumerate() {
            let is_this: Choice = known.ct_eq(&hash);
            found.conditional_assign(&(index as u64), is_this);
        }
        let index = usize::try_from(found).ok()?;
        keys.get(index).map(|(_, key)| Arc::clone(key))
    }
}

/// Two names for one key.
fn shared(key: &KeySettings, twin: &KeySettings) -> Problem {
    let (source, other) = match (&key.proof, &twin.proof) {
        (KeyProof::Secret(source), _) => (source, twin),
        (_, KeyProof::Secret(source)) => (source, key),
        // Hashes that the configuration holds are compared where it is read, and told with their line.
        (KeyProof::Hash(_), KeyProof::Hash(_)) => {
            let key_path = format!("keys.{}.sha256", key.name);
            let rule = format!("is the hash of keys.{} too", twin.name);
            return Problem { origin: Origin::Default, key: key_path, value: None, rule };
        }
    };
    source.problem(format!("holds the key of keys.{} too", other.name))
}

/// The SHA-256 of a key.
pub fn hash_of(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// A new key. Only its holder ever has it.
pub fn new_key() -> Result<String, std::io::Error> {
    let random: [u8; KEY_RANDOM_BYTES] = random_bytes()?;
    Ok(format!("{KEY_PREFIX}{}", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(random)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::secret::{SecretPlace, SecretSource};

    fn settings(texts: &[&str]) -> Vec<KeySettings> {
        texts
            .iter()
            .map(|text| KeySettings {
                name: Name::try_new(&format!("key-{}", text.len())).unwrap(),
                proof: KeyProof::Hash(hash_of(text)),
                tenant: None,
                tier: None,
                role: Role::Caller,
                feature: None,
                features: None,
                priority_max: HighestClass::of("interactive"),
                acting: Acting::ForItself,
                openai_names: OpenAiNames::Taken,
            })
            .collect()
    }

    fn ring(texts: &[&str]) -> KeyRing {
        KeyRing::of(&settings(texts), &|_| None).unwrap()
    }

    #[test]
    fn one_key_has_one_name_wherever_it_stands() {
        let named = |name: &str, proof: KeyProof| {
            let usual = KeySettings { name: Name::try_new(name).unwrap(), ..settings(&["a"]).remove(0) };
            KeySettings { proof, ..usual }
        };
        let secret = |variable: &str| {
            KeyProof::Secret(SecretSource {
                place: SecretPlace::Environment(variable.to_owned()),
                key: format!("keys.{variable}.key_env"),
                origin: Origin::Default,
            })
        };
        let text = "a-key-of-32-letters-or-a-few-more!";
        let hash = || KeyProof::Hash(hash_of(text));
        let variables = |name: &str| Some(if name == "C" { "another-key-of-32-letters-or-more!" } else { text }.into());
        for (first, second, want) in [
            (secret("A"), secret("B"), Some(("keys.B.key_env", "holds the key of keys.first too"))),
            (hash(), secret("B"), Some(("keys.B.key_env", "holds the key of keys.first too"))),
            (secret("A"), hash(), Some(("keys.A.key_env", "holds the key of keys.second too"))),
            (hash(), hash(), Some(("keys.second.sha256", "is the hash of keys.first too"))),
            (secret("A"), secret("C"), None),
        ] {
            let told = KeyRing::of(&[named("first", first), named("second", second)], &variables).err();
            let told = told.as_ref().map(|problem| (problem.key.as_str(), problem.rule.as_str()));
            assert_eq!(told, want);
        }
    }

    #[test]
    fn keys_are_found_by_their_text_only() {
        let ring = ring(&["a", "bb", "ccc"]);
        for (text, name) in
            [("a", Some("key-1")), ("bb", Some("key-2")), ("ccc", Some("key-3")), ("", None), ("b", None)]
        {
            assert_eq!(ring.find(text).map(|key| key.name.to_string()).as_deref(), name, "{text}");
        }
        assert!(KeyRing::default().find("a").is_none());
    }

    #[test]
    fn new_keys_differ_and_are_long() {
        let (one, other) = (new_key().unwrap(), new_key().unwrap());
        assert!(one != other && one.len() >= 43 && one.starts_with(KEY_PREFIX));
    }
}
