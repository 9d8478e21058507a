//! The journal and its files as the configuration wants them: the one place that knows both the tables and the stores.

use std::{path::Path, sync::Arc};

use super::exit::Stop;
use crate::{
    journal::{
        capture_writer::CaptureWriter,
        files::store::FileSettings,
        journal::SqliteJournal,
        settings::{JournalSettings, Retention, Survives},
    },
    policy::capture::CaptureRule,
    runtime::capture::Captures,
    settings::{capture::CaptureMode, journal::SurvivesWord, load::Settings},
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
            unused_files: settings.files.unused_keep,
            size_budget: retention.size_budget,
        },
        idempotency_keep: table.idempotency_keep,
        lock_wait: table.lock_wait,
        readers: table.readers,
        ..JournalSettings::at(folder.join(&table.path))
    }
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
