//! Outputs and inputs in what is written: small ones stand where they belong, larger ones stand once in the file, by the hash of their
//! JSON, and are named. So an output that a run, its record and the next step's input share is stored once.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{
    fault::Fault,
    pack::{pack, unpack},
};
use crate::{
    model::hex::{hex, unhex},
    runtime::journal::JournalError,
};

/// From so many bytes of JSON on a value is stored apart.
const APART_BYTES_MIN: usize = 1_024;

/// SHA-256.
pub(super) type Hash = [u8; 32];

/// A value, or the name of one that is stored apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Slot {
    /// The value itself.
    #[serde(rename = "v")]
    Here(Value),
    /// SHA-256 of its JSON, in hex.
    #[serde(rename = "c")]
    Apart(String),
}

/// Values that are stored apart: their packed JSON by hash.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) packed: BTreeMap<Hash, Vec<u8>>,
}

impl Contents {
    /// The slot of `value`; a large one comes to the contents.
    pub(super) fn put(&mut self, value: Value) -> Result<Slot, serde_json::Error> {
        let bytes = serde_json::to_vec(&value)?;
        if bytes.len() < APART_BYTES_MIN {
            return Ok(Slot::Here(value));
        }
        let hash: Hash = Sha256::digest(&bytes).into();
        self.packed.entry(hash).or_insert_with(|| pack(&bytes));
        Ok(Slot::Apart(hex(&hash)))
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.packed.values().map(|packed| packed.len() + size_of::<Hash>()).sum()
    }
}

/// The value of a slot.
pub(super) fn value_of(connection: &Connection, slot: Slot) -> Result<Value, Fault> {
    let hash = match slot {
        Slot::Here(value) => return Ok(value),
        Slot::Apart(hash) => hash,
    };
    let mut statement = connection.prepare_cached("SELECT body FROM content WHERE hash = ?1")?;
    let packed: Option<Vec<u8>> = statement.query_row([hash_of(&hash)?], |row| row.get(0)).optional()?;
    let packed = packed.ok_or_else(|| JournalError::Corrupt(format!("content {hash} is missing")))?;
    let bytes = unpack(&packed)?;
    if Sha256::digest(&bytes)[..] != hash_of(&hash)? {
        return Err(JournalError::Corrupt(format!("content {hash} is not what its name says")).into());
    }
    Ok(serde_json::from_slice(&bytes)?)
}

/// Stores what `run` names and did not name before.
pub(super) fn store(connection: &Connection, run: i64, contents: &Contents) -> Result<(), Fault> {
    for (hash, packed) in &contents.packed {
        let content = match content_of(connection, hash)? {
            Some(content) => content,
            None => connection
                .prepare_cached("INSERT INTO content (hash, body, runs) VALUES (?1, ?2, 0) RETURNING content")?
                .query_row((hash, packed), |row| row.get(0))?,
        };
        let named = connection
            .prepare_cached("INSERT OR IGNORE INTO run_content (run, content) VALUES (?1, ?2)")?
            .execute([run, content])?;
        if named > 0 {
            connection.prepare_cached("UPDATE content SET runs = runs + 1 WHERE content = ?1")?.execute([content])?;
        }
    }
    Ok(())
}

/// Lets go of all that `run` names but of `kept`; what nobody names any more is gone.
pub(super) fn release(connection: &Connection, run: i64, kept: &Contents) -> Result<(), Fault> {
    let mut statement = connection
        .prepare_cached("SELECT content, hash FROM run_content JOIN content USING (content) WHERE run = ?1")?;
    let named = statement.query_map([run], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Hash>(1)?)))?;
    let dropped: Vec<i64> = named
        .filter_map(|row| match row {
            Ok((_, hash)) if kept.packed.contains_key(&hash) => None,
            Ok((content, _)) => Some(Ok(content)),
            Err(error) => Some(Err(error)),
        })
        .collect::<Result<_, _>>()?;
    for content in dropped {
        connection
            .prepare_cached("DELETE FROM run_content WHERE run = ?1 AND content = ?2")?
            .execute([run, content])?;
        let runs: i64 = connection
            .prepare_cached("UPDATE content SET runs = runs - 1 WHERE content = ?1 RETURNING runs")?
            .query_row([content], |row| row.get(0))?;
        if runs <= 0 {
            connection.prepare_cached("DELETE FROM content WHERE content = ?1")?.execute([content])?;
        }
    }
    Ok(())
}

fn content_of(connection: &Connection, hash: &Hash) -> Result<Option<i64>, Fault> {
    let mut statement = connection.prepare_cached("SELECT content FROM content WHERE hash = ?1")?;
    Ok(statement.query_row([hash], |row| row.get(0)).optional()?)
}

/// The bytes of 64 hexadecimal digits.
pub(super) fn hash_of(text: &str) -> Result<Hash, Fault> {
    unhex(text).ok_or_else(|| Fault::Own(JournalError::Corrupt(format!("{text:?} is no hash"))))
}
