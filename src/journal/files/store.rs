//! The store of files as the rest of the program holds it. Whose a file is decides who finds it; that two tenants sent the same bytes
//! neither of them can tell.

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use super::{
    disk::Disk,
    picture::{PictureError, write_copy},
    table::{self, StoredFile},
    upload::{FileUpload, on_blocking_thread},
    way_room::{NoWayRoom, WayPlace, WayRoom},
};
use crate::{
    journal::{journal::SqliteJournal, query::TenantScope},
    runtime::journal::JournalError,
};

/// The shortest longer side of a smaller copy.
const COPY_SIDE_MIN: u32 = 16;
/// The longest.
const COPY_SIDE_MAX: u32 = 8_192;
/// So many files are looked up with one question.
const LOOKED_UP_AT_ONCE_MAX: usize = 500;

/// What the store takes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSettings {
    /// Bytes of a file.
    pub bytes_max: u64,
    /// Files of a tenant.
    pub files_max: u64,
    /// Bytes of all files of a tenant.
    pub tenant_bytes_max: u64,
    /// Files on their way in at once.
    pub uploads_max: usize,
    /// Pictures that are made smaller at once.
    pub pictures_max: usize,
    /// Bytes that files bring along into one call.
    pub call_bytes_max: u64,
    /// The same of all calls at once.
    pub calls_bytes_max: u64,
}

impl Default for FileSettings {
    fn default() -> Self {
        Self {
            bytes_max: 64 * 1024 * 1024,
            files_max: 100_000,
            tenant_bytes_max: 64 * 1024 * 1024 * 1024,
            uploads_max: 64,
            pictures_max: 2,
            call_bytes_max: 32 * 1024 * 1024,
            calls_bytes_max: 256 * 1024 * 1024,
        }
    }
}

/// Why a file was not taken or given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The file has more bytes than are taken.
    #[error("the file has more than {bytes_max} bytes")]
    TooLarge {
        /// So many are taken.
        bytes_max: u64,
    },
    /// The tenant has as many files, or as many bytes in them, as it may.
    #[error("the tenant has as many files or bytes as it may")]
    TooMany,
    /// As many files are on their way in as can be.
    #[error("as many files are on their way as can be")]
    Busy,
    /// No smaller copy can be made of it.
    #[error("{0}")]
    NoPicture(String),
    /// The database or the disk says so.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// What became of a request to delete a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileDeletion {
    /// It is gone.
    Done,
    /// There is no such file in this scope.
    NotFound,
    /// Runs name it; it goes with the last of them.
    InUse,
}

/// A smaller copy of a picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PictureCopy {
    /// Where it lies, as long as the file does.
    pub path: PathBuf,
    /// What it is.
    pub media_type: &'static str,
}

/// The store.
#[derive(Debug)]
pub struct FileStore {
    journal: Arc<SqliteJournal>,
    disk: Disk,
    settings: FileSettings,
    uploads: Arc<Semaphore>,
    pictures: Semaphore,
    ways: WayRoom,
}

impl FileStore {
    /// The store of a journal's files.
    pub fn new(journal: Arc<SqliteJournal>, settings: FileSettings) -> Self {
        let disk = Disk::at(journal.settings().files.clone());
        let (uploads, pictures) = (settings.uploads_max.max(1), settings.pictures_max.max(1));
        let (uploads, pictures) = (Arc::new(Semaphore::new(uploads)), Semaphore::new(pictures));
        let ways = WayRoom::of(settings.call_bytes_max, settings.calls_bytes_max);
        Self { journal, disk, settings, uploads, pictures, ways }
    }

    /// What it takes at most.
    pub fn settings(&self) -> &FileSettings {
        &self.settings
    }

    /// Begins to take a file of a tenant in. `name` is the sender's word and is made fit to be shown.
    pub async fn upload(&self, tenant: Option<String>, name: &str) -> Result<FileUpload, FileError> {
        let room = Arc::clone(&self.uploads).try_acquire_owned().map_err(|_| FileError::Busy)?;
        FileUpload::begin(Arc::clone(&self.journal), self.disk.clone(), self.settings, tenant, name, room).await
    }

    /// A file by its id; `None` if there is none in this scope.
    pub async fn file(&self, scope: TenantScope, id: &str) -> Result<Option<StoredFile>, FileError> {
        let id = id.to_owned();
        Ok(self.journal.ask(move |connection| table::find(connection, &scope, &id)).await?)
    }

    /// Files by their ids; those that are not in this scope are not among them.
    pub async fn files(&self, scope: &TenantScope, ids: &[String]) -> Result<HashMap<String, StoredFile>, FileError> {
        let mut found = HashMap::new();
        for some in ids.chunks(LOOKED_UP_AT_ONCE_MAX) {
            let (scope, ids) = (scope.clone(), some.to_vec());
            let files = self.journal.ask(move |connection| {
                let files = ids.iter().map(|id| table::find(connection, &scope, id));
                files.filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()
            });
            found.extend(files.await?.into_iter().map(|file| (file.id.clone(), file)));
        }
        Ok(found)
    }

    /// Room for bytes that files bring along into a call, before they are read; waited for in turn, for as long as `patience`.
    pub async fn way_room(&self, bytes: u64, patience: Duration) -> Result<WayPlace, NoWayRoom> {
        self.ways.take(bytes, patience).await
    }

    /// A file with its bytes, open for reading; it stays readable even if it is deleted meanwhile.
    pub async fn open(&self, scope: TenantScope, id: &str) -> Result<Option<(StoredFile, tokio::fs::File)>, FileError> {
        let Some(file) = self.file(scope, id).await? else { return Ok(None) };
        match tokio::fs::File::open(self.path(&file)).await {
            Ok(open) => Ok(Some((file, open))),
            Err(error) => Err(super::upload::disk_error(error)),
        }
    }

    /// Where a file's bytes lie: for agents that share this disk.
    pub fn path(&self, file: &StoredFile) -> PathBuf {
        self.disk.original(&file.hash)
    }

    /// Deletes a file that no run names.
    pub async fn delete(&self, scope: TenantScope, id: &str) -> Result<FileDeletion, FileError> {
        let id = id.to_owned();
        let deletion = self.journal.write(move |within| {
            let Some(file) = table::find(within.connection, &scope, &id)? else { return Ok(FileDeletion::NotFound) };
            if file.runs > 0 {
                return Ok(FileDeletion::InUse);
            }
            table::remove_by_id(within, &id)?;
            Ok(FileDeletion::Done)
        });
        Ok(deletion.await?)
    }

    /// A copy of a picture, its longer side at most `side_max` pixels: upright JPEG without EXIF. Made once, then kept beside the
    /// original and gone with it. `None` if there is no such file in this scope.
    pub async fn resized(&self, scope: TenantScope, id: &str, side_max: u32) -> Result<Option<PictureCopy>, FileError> {
        let Some(file) = self.file(scope, id).await? else { return Ok(None) };
        if !file.media_type.starts_with("image/") {
            return Err(FileError::NoPicture(format!("the file is {} and no picture", file.media_type)));
        }
        let side_max = side_max.clamp(COPY_SIDE_MIN, COPY_SIDE_MAX);
        let copy = PictureCopy { path: self.disk.copy(&file.hash, side_max), media_type: "image/jpeg" };
        if tokio::fs::try_exists(&copy.path).await.unwrap_or(false) {
            return Ok(Some(copy));
        }
        let _turn = self.pictures.acquire().await.map_err(|_| JournalError::Closed)?;
        // Whoever had the turn before may have made it.
        if tokio::fs::try_exists(&copy.path).await.unwrap_or(false) {
            return Ok(Some(copy));
        }
        let (original, path, disk) = (self.path(&file), copy.path.clone(), self.disk.clone());
        // A decoder that panics over a made-up picture ends its thread's task and nothing else.
        let made = on_blocking_thread(move || Ok(write_copy(&original, &disk.upload()?, &path, side_max)));
        match made.await? {
            Ok(()) => Ok(Some(copy)),
            Err(PictureError::Disk(text)) => Err(FileError::Journal(JournalError::Failed(text))),
            Err(error) => Err(FileError::NoPicture(error.to_string())),
        }
    }
}
