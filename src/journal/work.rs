//! One thing that the writer does: what the queue holds. A piece of work may be run again after a rollback, and is told how it ended
//! once that is certain.

use rusqlite::Connection;

use super::{fault::Fault, number::Names, slot::Hash};
use crate::runtime::journal::JournalError;

/// What work is done within: a transaction that may still be rolled back.
pub(super) struct Within<'a> {
    pub(super) connection: &'a Connection,
    pub(super) names: &'a mut Names,
    pub(super) now_ms: u64,
    /// The file's own limit is near: nothing new is begun.
    pub(super) is_nearly_full: bool,
    /// Contents of files that nobody owns any more: their bytes go once the transaction is committed.
    pub(super) unowned: &'a mut Vec<Hash>,
}

/// What becomes of work that the disk refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnRefusal {
    /// It is kept, in order, and tried until it succeeds.
    Keep,
    /// It ends with the error.
    Tell,
    /// The same; and while other work is kept it is refused without a try: it would begin something new.
    TellAtOnce,
}

/// A piece of work.
pub(super) trait Work: Send {
    /// What becomes of it if the disk refuses.
    fn on_refusal(&self) -> OnRefusal;

    /// Bytes in memory.
    fn bytes(&self) -> usize {
        0
    }

    /// Does it, within a transaction.
    fn run(&mut self, within: &mut Within<'_>) -> Result<(), Fault>;

    /// Told once: its transaction is committed, or it never will be.
    fn end(self: Box<Self>, result: Result<(), JournalError>);
}

/// Work that gives a value back to whoever waits for it.
pub(super) struct Asked<T, F> {
    act: F,
    value: Option<T>,
    answer: tokio::sync::oneshot::Sender<Result<T, JournalError>>,
}

impl<T, F: FnMut(&mut Within<'_>) -> Result<T, Fault>> Asked<T, F> {
    pub(super) fn new(act: F, answer: tokio::sync::oneshot::Sender<Result<T, JournalError>>) -> Self {
        Self { act, value: None, answer }
    }
}

impl<T: Send, F: FnMut(&mut Within<'_>) -> Result<T, Fault> + Send> Work for Asked<T, F> {
    fn on_refusal(&self) -> OnRefusal {
        OnRefusal::Tell
    }

    fn run(&mut self, within: &mut Within<'_>) -> Result<(), Fault> {
        self.value = Some((self.act)(within)?);
        Ok(())
    }

    fn end(self: Box<Self>, result: Result<(), JournalError>) {
        let Self { value, answer, .. } = *self;
        // Whoever asked may have left.
        let _ = answer.send(result.and_then(|()| value.ok_or(JournalError::Closed)));
    }
}

/// Work that nobody waits for and that must not get lost while the disk refuses.
pub(super) struct Kept<F>(pub(super) F, pub(super) usize);

impl<F: FnMut(&mut Within<'_>) -> Result<(), Fault> + Send> Work for Kept<F> {
    fn on_refusal(&self) -> OnRefusal {
        OnRefusal::Keep
    }

    fn bytes(&self) -> usize {
        self.1
    }

    fn run(&mut self, within: &mut Within<'_>) -> Result<(), Fault> {
        (self.0)(within)
    }

    fn end(self: Box<Self>, result: Result<(), JournalError>) {
        if let Err(error) = result {
            tracing::error!(%error, "an entry of the journal was lost");
        }
    }
}
