//! Where files' bytes lie: one folder a content, named by its hash, with the original and its smaller copies; uploads under way beside
//! them. Only the journal's writer moves bytes in and takes them away, so that the two never cross.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use crate::{
    journal::slot::Hash,
    model::hex::{hex, unhex},
};

/// The name of the bytes as they were sent.
const ORIGINAL: &str = "original";
/// Where uploads lie until they are whole.
const UPLOADS: &str = "uploads";
/// An upload that was not touched for so long belongs to a process that is gone.
const ABANDONED: Duration = Duration::from_secs(3_600);

/// The folder of files' bytes.
#[derive(Debug, Clone)]
pub(in crate::journal) struct Disk {
    folder: PathBuf,
}

impl Disk {
    pub(in crate::journal) fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn content(&self, hash: &Hash) -> PathBuf {
        let name = hex(hash);
        self.folder.join(&name[..2]).join(name)
    }

    /// The bytes as they were sent.
    pub(in crate::journal) fn original(&self, hash: &Hash) -> PathBuf {
        self.content(hash).join(ORIGINAL)
    }

    /// A copy of at most so many pixels on its longer side.
    pub(in crate::journal) fn copy(&self, hash: &Hash, pixels_max: u32) -> PathBuf {
        self.content(hash).join(format!("{pixels_max}.jpg"))
    }

    /// A new name for bytes that are on their way, in a folder that is there.
    pub(in crate::journal) fn upload(&self) -> io::Result<PathBuf> {
        let folder = self.folder.join(UPLOADS);
        fs::create_dir_all(&folder)?;
        Ok(folder.join(uuid::Uuid::now_v7().simple().to_string()))
    }

    /// Moves a whole upload to its place. Bytes that are there already stay, and the upload goes.
    pub(in crate::journal) fn take_in(&self, upload: &Path, hash: &Hash, bytes: u64) -> io::Result<()> {
        let place = self.original(hash);
        if fs::metadata(&place).is_ok_and(|found| found.len() == bytes) {
            return match fs::remove_file(upload) {
                // A try before this one moved it, and was rolled back.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                result => result,
            };
        }
        let folder = self.content(hash);
        fs::create_dir_all(&folder)?;
        fs::rename(upload, &place)?;
        // The name itself must survive a power loss as well as the row that points to it.
        File::open(&folder)?.sync_all()
    }

    /// Takes contents away, copies too. What is gone already is gone.
    pub(in crate::journal) fn remove(&self, hashes: &[Hash]) {
        for hash in hashes {
            match fs::remove_dir_all(self.content(hash)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%error, "the bytes of a deleted file could not be removed");
                }
                _ => {}
            }
        }
    }

    /// Contents whose hash begins with `shard` and that have been there for a while: those that no row names are left over from a
    /// commit that failed.
    pub(in crate::journal) fn settled(&self, shard: u8) -> Vec<Hash> {
        let Ok(entries) = fs::read_dir(self.folder.join(hex(&[shard]))) else { return Vec::new() };
        let old = entries.flatten().filter(is_old);
        old.filter_map(|entry| unhex(entry.file_name().to_str()?)).collect()
    }

    /// Removes uploads that nobody writes any more.
    pub(in crate::journal) fn remove_abandoned(&self) {
        let Ok(entries) = fs::read_dir(self.folder.join(UPLOADS)) else { return };
        for entry in entries.flatten() {
            if is_old(&entry) {
                // The next round tries again.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn is_old(entry: &fs::DirEntry) -> bool {
    let touched = entry.metadata().and_then(|metadata| metadata.modified());
    let age = touched.ok().and_then(|touched| SystemTime::now().duration_since(touched).ok());
    age.is_some_and(|age| age > ABANDONED)
}
