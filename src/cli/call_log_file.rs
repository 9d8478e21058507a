//! A call log as a file of JSON Lines, written by a thread of its own: calls hand their records over and never wait for a disk.

use std::{
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    thread::JoinHandle,
};

use super::exit::Stop;
use crate::{model::call_log::CallRecord, runtime::ports::CallLog};

/// Records that may wait for the disk; further ones are left out and counted.
const WAITING_MAX: usize = 10_000;

/// The file.
pub(super) struct CallLogFile {
    path: PathBuf,
    records: Mutex<Option<SyncSender<CallRecord>>>,
    lost: AtomicU64,
    writer: Mutex<Option<JoinHandle<std::io::Result<()>>>>,
}

impl CallLogFile {
    /// Opens the file for appending.
    pub(super) fn open(path: &Path) -> Result<Arc<Self>, Stop> {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|error| Stop::Usage(format!("--call-log {}: {error}", path.display())))?;
        let (records, waiting) = sync_channel::<CallRecord>(WAITING_MAX);
        let writer = std::thread::spawn(move || {
            let mut file = BufWriter::new(file);
            // Whoever reads along sees each call, and a kill takes none of them: only what comes faster than the disk is written together.
            while let Ok(first) = waiting.recv() {
                for record in std::iter::once(first).chain(waiting.try_iter()) {
                    serde_json::to_writer(&mut file, &record)?;
                    file.write_all(b"\n")?;
                }
                file.flush()?;
            }
            Ok(())
        });
        Ok(Arc::new(Self {
            path: path.to_owned(),
            records: Mutex::new(Some(records)),
            lost: AtomicU64::new(0),
            writer: Mutex::new(Some(writer)),
        }))
    }

    /// Writes what waits and closes. Says so if anything could not be written.
    pub(super) fn close(&self) -> Result<(), Stop> {
        drop(self.records.lock().unwrap_or_else(PoisonError::into_inner).take());
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let wrong = |what: String| Stop::Usage(format!("--call-log {}: {what}", self.path.display()));
        match writer.map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => return Err(wrong(error.to_string())),
            Some(Err(_)) => return Err(wrong("its writer died".to_owned())),
        }
        match self.lost.load(Ordering::Relaxed) {
            0 => Ok(()),
            lost => Err(wrong(format!("{lost} records were left out: the disk was too slow"))),
        }
    }
}

impl CallLog for CallLogFile {
    fn finished(&self, record: CallRecord) {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = records.as_ref().is_some_and(|records| records.try_send(record).is_ok());
        if !taken {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}
