//! The files of runs: bytes on disk by their hash, who owns them in the database, smaller copies of photos.

pub(super) mod disk;
mod picture;
mod sniff;
pub mod store;
pub mod table;
pub mod upload;
pub mod way_room;

#[cfg(test)]
mod tests;
