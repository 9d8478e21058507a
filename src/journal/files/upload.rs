//! A file on its way in: bytes are hashed and looked at as they come, and lie apart until they are whole. An upload that ends in any
//! other way leaves nothing.

use std::{path::PathBuf, sync::Arc};

use sha2::{Digest as _, Sha256};
use tokio::{io::AsyncWriteExt as _, sync::OwnedSemaphorePermit};

use super::{
    disk::Disk,
    sniff::{Sniffer, shown_name},
    store::{FileError, FileSettings},
    table::{self, StoredFile},
};
use crate::{
    journal::{journal::SqliteJournal, settings::Survives, slot::Hash},
    model::{file_id::FILE_ID_PREFIX, hex::hex},
    runtime::journal::JournalError,
};

/// A file on its way in. Dropping it throws away what came.
#[derive(Debug)]
pub struct FileUpload {
    pub(super) journal: Arc<SqliteJournal>,
    pub(super) disk: Disk,
    pub(super) settings: FileSettings,
    pub(super) tenant: Option<String>,
    pub(super) name: String,
    file: Option<tokio::fs::File>,
    passing: Passing,
    hasher: Sha256,
    sniffer: Sniffer,
    bytes: u64,
    _room: OwnedSemaphorePermit,
}

/// A file that goes when this does.
#[derive(Debug)]
struct Passing(PathBuf);

impl Drop for Passing {
    fn drop(&mut self) {
        // Moved to its place already, or thrown away now; a rest is swept up later.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl FileUpload {
    pub(super) async fn begin(
        journal: Arc<SqliteJournal>,
        disk: Disk,
        settings: FileSettings,
        tenant: Option<String>,
        name: &str,
        room: OwnedSemaphorePermit,
    ) -> Result<Self, FileError> {
        let path = {
            let disk = disk.clone();
            on_blocking_thread(move || disk.upload()).await?
        };
        let file = tokio::fs::File::create_new(&path).await.map_err(disk_error)?;
        Ok(Self {
            journal,
            disk,
            settings,
            tenant,
            name: shown_name(name),
            file: Some(file),
            passing: Passing(path),
            hasher: Sha256::new(),
            sniffer: Sniffer::default(),
            bytes: 0,
            _room: room,
        })
    }

    /// The next bytes. After an error the upload is over.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        if self.bytes > self.settings.bytes_max {
            self.file = None;
            return Err(FileError::TooLarge { bytes_max: self.settings.bytes_max });
        }
        let Some(file) = &mut self.file else { return Err(FileError::Journal(JournalError::Closed)) };
        self.hasher.update(bytes);
        self.sniffer.see(bytes);
        if let Err(error) = file.write_all(bytes).await {
            self.file = None;
            return Err(disk_error(error));
        }
        Ok(())
    }

    /// That was all: the file is there from now on.
    pub async fn finish(mut self) -> Result<StoredFile, FileError> {
        let Some(mut file) = self.file.take() else { return Err(FileError::Journal(JournalError::Closed)) };
        file.flush().await.map_err(disk_error)?;
        if self.journal.settings().survives == Survives::Power {
            file.sync_all().await.map_err(disk_error)?;
        }
        drop(file);
        let hash: Hash = std::mem::take(&mut self.hasher).finalize().into();
        let stored = StoredFile {
            id: new_id(),
            tenant: self.tenant.clone(),
            media_type: self.sniffer.media_type(&self.name).to_owned(),
            name: self.name.clone(),
            bytes: self.bytes,
            hash,
            created_ms: (self.journal.settings().now_ms)(),
            runs: 0,
        };
        let (file, disk, settings, passing) =
            (stored.clone(), self.disk.clone(), self.settings, self.passing.0.clone());
        let taken = self.journal.write(move |within| {
            let (count, bytes) = table::holdings(within, file.tenant.as_deref())?;
            if count >= settings.files_max || bytes.saturating_add(file.bytes) > settings.tenant_bytes_max {
                return Ok(Err(FileError::TooMany));
            }
            table::insert(within, &file)?;
            disk.take_in(&passing, &file.hash, file.bytes).map_err(|error| table::disk_fault(&error))?;
            Ok(Ok(()))
        });
        taken.await??;
        Ok(stored)
    }
}

/// A new id: nobody can guess one.
fn new_id() -> String {
    let chance = [uuid::Uuid::now_v7(), uuid::Uuid::now_v7()].map(uuid::Uuid::into_bytes).concat();
    format!("{FILE_ID_PREFIX}{}", hex(&Sha256::digest(chance)[..16]))
}

#[allow(clippy::needless_pass_by_value, reason = "handed to `map_err`")]
pub(super) fn disk_error(error: std::io::Error) -> FileError {
    FileError::Journal(match error.kind() {
        std::io::ErrorKind::StorageFull => JournalError::Full(error.to_string()),
        _ => JournalError::Failed(error.to_string()),
    })
}

pub(super) async fn on_blocking_thread<T: Send + 'static>(
    act: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, FileError> {
    match tokio::task::spawn_blocking(act).await {
        Ok(result) => result.map_err(disk_error),
        Err(error) => Err(FileError::Journal(JournalError::Failed(error.to_string()))),
    }
}
