//! The journal, its files and the listener as the configuration wants them: the one place that knows both the tables and what they set.

use std::{path::Path, sync::Arc};

use super::exit::Stop;
use crate::{
    journal::{
        capture_writer::CaptureWriter,
        files::store::FileSettings,
        journal::SqliteJournal,
        settings::{JournalSettings, Retention, Survives},
    },
    model::language::Language,
    policy::capture::CaptureRule,
    runtime::{capture::Captures, journal::JournalError},
    serve::listener::settings::ListenerSettings,
    settings::{capture::CaptureMode, journal::SurvivesWord, load::Settings, serve::ServeSettings},
};

/// What to open the journal with. Relative paths start at `folder`, that of the configuration.
pub fn journal_settings(settings: &Settings, folder: &Path) -> JournalSettings {
    let table = &settings.journal;
    let retention = &table.retention;
    JournalSettings {
        survives: match table.survives {
            SurvivesWord::Process => Survives::Process,
            SurvivesWord::Power => Survives::Power,
        },
        size_max: table.size_max,
        retention: Retention {
            completed: retention.completed,
            failed: retention.failed,
            cancelled: retention.cancelled,
            usage: retention.usage,
            dead_letters: retention.dead_letters,
            deferred: retention.deferred,
            unused_files: settings.files.unused_keep,
            size_budget: retention.size_budget,
        },
        idempotency_keep: table.idempotency_keep,
        lock_wait: table.lock_wait,
        readers: table.readers,
        ..JournalSettings::at(folder.join(&table.path))
    }
}

/// Why a journal cannot be opened, and what to do next.
pub fn unopened(path: &str, error: &JournalError) -> String {
    let told = error.to_string();
    let told = if told.contains(path) { told } else { format!("{path}: {told}") };
    let next = match error {
        JournalError::Held(_) => "; stop that process, or give this project a journal of its own with journal.path",
        JournalError::Corrupt(_) => {
            "; move it away together with its -wal and -shm files, and the next start makes a new one; `sqlite3 FILE .recover` may save what it holds"
        }
        JournalError::Full(_) => "; make room on the disk, or let it grow with journal.size_max",
        JournalError::Failed(_) | JournalError::Closed | JournalError::NoFile { .. } => "",
    };
    format!("{told}{next}")
}

/// What the store of files takes.
pub fn file_settings(settings: &Settings) -> FileSettings {
    let table = &settings.files;
    FileSettings {
        bytes_max: table.file_bytes_max,
        files_max: table.tenant_files_max,
        tenant_bytes_max: table.tenant_bytes_max,
        uploads_max: table.uploads_max,
        pictures_max: table.pictures_max,
        call_bytes_max: table.call_bytes_max,
        calls_bytes_max: table.calls_bytes_max,
    }
}

/// What the listener bears.
pub fn listener_settings(table: &ServeSettings, language: Language) -> ListenerSettings {
    ListenerSettings {
        connections_max: table.connections_max,
        connections_per_address_max: table.connections_per_address_max,
        header_read_timeout: table.header_timeout,
        headers_max: table.headers_max,
        header_bytes_max: table.header_bytes_max,
        target_bytes_max: table.target_bytes_max,
        body_bytes_max: table.body_bytes_max,
        body_pause_max: table.body_pause_max,
        body_bytes_per_second_min: table.body_bytes_per_second_min,
        idle_timeout: table.idle_timeout,
        write_timeout: table.write_timeout,
        http2_streams_max: table.http2_streams_max,
        language,
        ..ListenerSettings::default()
    }
}

/// Who keeps attempts word for word, if anybody is to.
pub(super) fn captures(settings: &Settings, journal: &Arc<SqliteJournal>) -> Result<Option<Captures>, Stop> {
    let table = &settings.capture;
    let rule = match table.mode {
        CaptureMode::Off => return Ok(None),
        CaptureMode::Errors => CaptureRule::Errors,
        CaptureMode::Sample => CaptureRule::Sample(table.sample_share),
        CaptureMode::All => CaptureRule::All,
    };
    let writer = CaptureWriter::start(Arc::clone(journal), table.keep).map_err(Stop::usage)?;
    Ok(Some(Captures::new(rule.checked().map_err(Stop::usage)?, Arc::new(writer))))
}
