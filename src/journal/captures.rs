//! What attempts really said: prompt, raw answer, how it was read. Kept for a short time of its own, and nobody reads it without a note
//! of who and when: the note is durable before anything is shown.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    capture_writer::left_out,
    fault::Fault,
    journal::SqliteJournal,
    number::{from_sql, run_key, to_sql},
    pack::{pack, unpack},
    query::TenantScope,
    work::{OnRefusal, Within, Work},
};
use crate::runtime::journal::JournalError;

/// The most captures of one answer.
pub const CAPTURES_MAX: usize = 1_000;
/// A capture larger than this is left out.
pub const CAPTURE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What one attempt said, redacted already.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Capture {
    /// The tenant.
    pub tenant: Option<String>,
    /// The run, if it belonged to one.
    pub run_id: Option<String>,
    /// The step.
    pub step: Option<String>,
    /// The agent.
    pub agent: String,
    /// Which of its targets: `provider/model`.
    #[serde(default)]
    pub target: Option<String>,
    /// The call.
    pub call_id: String,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// Unix milliseconds.
    pub at_ms: u64,
    /// Unix milliseconds; it is gone then.
    pub expires_ms: u64,
    /// What was sent.
    pub prompt: Value,
    /// What came back, as it came; `None` if nothing did.
    pub answer: Option<String>,
    /// The text of a stream, put together.
    #[serde(default)]
    pub text: Option<String>,
    /// How that was read: an output, or why there is none.
    pub parsed: Value,
}

/// Somebody read captures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureReading {
    /// Who.
    pub reader: String,
    /// Unix milliseconds.
    pub at_ms: u64,
    /// So many were shown.
    pub captures: u64,
}

struct PutCapture {
    capture: Capture,
    body: Vec<u8>,
}

impl Work for PutCapture {
    fn on_refusal(&self) -> OnRefusal {
        OnRefusal::TellAtOnce
    }

    fn bytes(&self) -> usize {
        self.body.len()
    }

    fn run(&mut self, within: &mut Within<'_>) -> Result<(), Fault> {
        let capture = &self.capture;
        let tenant = within.names.number(within.connection, capture.tenant.as_deref())?;
        let key = capture.run_id.as_deref().map(run_key);
        // It may come later than the end of its run, and than its deletion: nothing of a run that is gone is kept.
        let sql = "INSERT INTO capture (tenant, run_id, call_id, at_ms, expires_ms, body) SELECT ?1, ?2, ?3, ?4, ?5, ?6
             WHERE ?2 IS NULL OR EXISTS (SELECT 1 FROM run WHERE run_id = ?2)";
        let (at_ms, expires_ms) = (to_sql(capture.at_ms), to_sql(capture.expires_ms));
        let values = (tenant, key, &capture.call_id, at_ms, expires_ms, &self.body);
        within.connection.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    fn end(self: Box<Self>, result: Result<(), JournalError>) {
        if let Err(error) = result {
            tracing::warn!(%error, call = self.capture.call_id, "a capture was left out");
            left_out();
        }
    }
}

impl SqliteJournal {
    /// Keeps what an attempt said. Never blocks; left out while too much waits for the disk.
    pub fn put_capture(&self, mut capture: Capture) {
        let body = match serde_json::to_vec(&capture) {
            Ok(body) if body.len() <= CAPTURE_BYTES_MAX => pack(&body),
            _ => {
                tracing::warn!(call = capture.call_id, "a capture is too large and was left out");
                left_out();
                return;
            }
        };
        if self.is_hard_pressed() {
            left_out();
            return;
        }
        (capture.prompt, capture.answer, capture.text, capture.parsed) = (Value::Null, None, None, Value::Null);
        self.queue(Box::new(PutCapture { capture, body }));
    }

    /// The captures of a run in this scope, oldest first, read by `reader`; that is written down before they are given.
    pub async fn read_captures(
        &self,
        scope: TenantScope,
        run_id: &str,
        reader: &str,
    ) -> Result<Vec<Capture>, JournalError> {
        let (key, reader) = (run_key(run_id), reader.to_owned());
        self.write(move |within| {
            let connection = within.connection;
            let mut statement = connection.prepare_cached(
                "SELECT tenant, body FROM capture WHERE run_id = ?1 AND expires_ms > ?2 ORDER BY capture LIMIT ?3",
            )?;
            let most = to_sql(CAPTURES_MAX as u64);
            let mut rows = statement.query((&key, to_sql(within.now_ms), most))?;
            let (mut captures, mut owner) = (Vec::new(), 0);
            while let Some(row) = rows.next()? {
                let tenant = row.get(0)?;
                if scope.sees(connection, tenant)? {
                    owner = tenant;
                    captures.push(serde_json::from_slice(&unpack(&row.get::<_, Vec<u8>>(1)?)?)?);
                }
            }
            if !captures.is_empty() {
                let sql =
                    "INSERT INTO capture_read (run_id, tenant, reader, at_ms, captures) VALUES (?1, ?2, ?3, ?4, ?5)";
                let values = (&key, owner, &reader, to_sql(within.now_ms), to_sql(captures.len() as u64));
                connection.prepare_cached(sql)?.execute(values)?;
            }
            Ok(captures)
        })
        .await
    }

    /// How many captures there are, and how many notes of readings.
    #[cfg(test)]
    pub(crate) async fn captures_kept(&self) -> Result<(u64, u64), JournalError> {
        self.ask(|connection| {
            let count = |table: &str| {
                connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0))
            };
            Ok((from_sql(count("capture")?), from_sql(count("capture_read")?)))
        })
        .await
    }

    /// Who read the captures of a run, oldest first.
    pub async fn capture_readings(
        &self,
        scope: TenantScope,
        run_id: &str,
    ) -> Result<Vec<CaptureReading>, JournalError> {
        let key = run_key(run_id);
        self.ask(move |connection| {
            let sql =
                "SELECT tenant, reader, at_ms, captures FROM capture_read WHERE run_id = ?1 ORDER BY reading LIMIT ?2";
            let mut statement = connection.prepare_cached(sql)?;
            let mut rows = statement.query((&key, to_sql(CAPTURES_MAX as u64)))?;
            let mut readings = Vec::new();
            while let Some(row) = rows.next()? {
                if scope.sees(connection, row.get(0)?)? {
                    let (reader, at_ms, captures) = (row.get(1)?, from_sql(row.get(2)?), from_sql(row.get(3)?));
                    readings.push(CaptureReading { reader, at_ms, captures });
                }
            }
            Ok(readings)
        })
        .await
    }
}
