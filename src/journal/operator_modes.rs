//! What operators set breakers to: kept over restarts, unlike what breakers learn by themselves.

use super::{
    journal::SqliteJournal,
    number::{from_sql, to_sql},
};
use crate::{policy::breaker::settings::Mode, runtime::journal::JournalError};

/// What an operator set a breaker to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorMode {
    /// The breaker, as in `agent:draft`.
    pub breaker: String,
    /// To what; [`Mode::Auto`] takes back what was set.
    pub mode: Mode,
    /// Why, in the operator's words.
    pub reason: String,
    /// Unix milliseconds.
    pub set_ms: u64,
    /// The name of the key that it was asked for with.
    pub set_by: Option<String>,
}

const MODES: [(Mode, &str); 4] = [
    (Mode::Auto, "auto"),
    (Mode::ForcedOpen, "forced_open"),
    (Mode::Disabled, "disabled"),
    (Mode::MetricsOnly, "metrics_only"),
];

impl SqliteJournal {
    /// Keeps what an operator set.
    pub async fn set_operator_mode(&self, set: OperatorMode) -> Result<(), JournalError> {
        self.write(move |within| {
            let OperatorMode { breaker, mode, reason, set_ms, set_by } = &set;
            if *mode == Mode::Auto {
                within.connection.prepare_cached("DELETE FROM operator_mode WHERE breaker = ?1")?.execute([breaker])?;
                return Ok(());
            }
            let word = MODES.iter().find(|(known, _)| known == mode).map_or("auto", |(_, word)| word);
            within
                .connection
                .prepare_cached("INSERT OR REPLACE INTO operator_mode VALUES (?1, ?2, ?3, ?4, ?5)")?
                .execute((breaker, word, reason, to_sql(*set_ms), set_by))?;
            Ok(())
        })
        .await
    }

    /// Everything that operators set and did not take back, by breaker. A mode of a newer program is left out.
    pub async fn operator_modes(&self) -> Result<Vec<OperatorMode>, JournalError> {
        self.ask(|connection| {
            let sql = "SELECT breaker, mode, reason, set_ms, set_by FROM operator_mode ORDER BY breaker";
            let mut statement = connection.prepare_cached(sql)?;
            let mut rows = statement.query([])?;
            let mut modes = Vec::new();
            while let Some(row) = rows.next()? {
                let word: String = row.get(1)?;
                let Some((mode, _)) = MODES.iter().find(|(_, known)| *known == word) else { continue };
                modes.push(OperatorMode {
                    breaker: row.get(0)?,
                    mode: *mode,
                    reason: row.get(2)?,
                    set_ms: from_sql(row.get(3)?),
                    set_by: row.get(4)?,
                });
            }
            Ok(modes)
        })
        .await
    }
}
