//! The journal and its files as the configuration wants them: the one place that knows both the tables and the stores.

use std::path::Path;

use crate::{
    journal::{
        files::store::FileSettings,
        settings::{JournalSettings, Retention, Survives},
    },
    settings::{journal::SurvivesWord, load::Settings},
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
