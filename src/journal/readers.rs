//! Threads that answer queries on connections of their own, which can only read: they answer while the writer is busy or the disk
//! refuses. As many queries wait as there is room for, more are refused at once.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{fault::Fault, schema::open_reader};
use crate::runtime::journal::JournalError;

/// So many queries wait at most.
const WAITING_MAX: usize = 1_024;

type Query = Box<dyn FnOnce(Result<&Connection, JournalError>) + Send>;

/// The readers.
#[derive(Debug)]
pub(super) struct Readers {
    queue: SyncSender<Query>,
}

impl Readers {
    /// So many threads that read the file at `path`.
    pub(super) fn start(path: &Path, threads: usize) -> Result<Self, JournalError> {
        let (queue, queries) = sync_channel(WAITING_MAX);
        let queries = Arc::new(Mutex::new(queries));
        for number in 0..threads.max(1) {
            let (path, queries) = (path.to_owned(), Arc::clone(&queries));
            std::thread::Builder::new()
                .name(format!("journal-read-{number}"))
                .spawn(move || answer(&path, &queries))
                .map_err(|error| JournalError::Failed(format!("no thread to read with: {error}")))?;
        }
        Ok(Self { queue })
    }

    /// Asks the file. All of a query sees one state of it.
    pub(super) async fn ask<T, F>(&self, query: F) -> Result<T, JournalError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let query: Query = Box::new(move |connection| {
            let result = connection.and_then(|connection| in_one_state(connection, query).map_err(Into::into));
            // Whoever asked may have left.
            let _ = answer.send(result);
        });
        match self.queue.try_send(query) {
            Ok(()) => answered.await.unwrap_or_else(|_| Err(JournalError::Failed("the query panicked".to_owned()))),
            Err(TrySendError::Full(_)) => Err(JournalError::Failed(format!("{WAITING_MAX} queries wait already"))),
            Err(TrySendError::Disconnected(_)) => Err(JournalError::Closed),
        }
    }
}

fn in_one_state<T>(connection: &Connection, query: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T, Fault> {
    let transaction = connection.unchecked_transaction()?;
    let value = query(&transaction)?;
    transaction.finish()?;
    Ok(value)
}

fn answer(path: &Path, queries: &Mutex<Receiver<Query>>) {
    let mut connection: Option<Connection> = None;
    loop {
        let next = queries.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(query) = next else { return };
        if connection.is_none() {
            match open_reader(path) {
                Ok(opened) => connection = Some(opened),
                Err(fault) => {
                    query(Err(fault.into()));
                    continue;
                }
            }
        }
        let Some(open) = &connection else { continue };
        // A query that panics is a bug of ours; its asker is told, and the next one gets a fresh connection.
        if catch_unwind(AssertUnwindSafe(|| query(Ok(open)))).is_err() {
            connection = None;
        }
    }
}
