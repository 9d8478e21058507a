//! The files of runs: bytes on disk by their hash, who owns them in the database, smaller copies of photos.

pub(super) mod disk;
pub mod table;
