//! How the journal is: written by the writer alone, read by everybody.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use crate::runtime::journal::JournalError;

/// How the journal is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// What is given to it becomes durable.
    Good,
    /// The disk refuses; entries are kept in memory and tried again.
    Failing {
        /// Unix milliseconds of the first refusal in a row.
        since_ms: u64,
        /// The latest refusal.
        error: JournalError,
    },
    /// It was closed, or its thread ended.
    Closed,
}

/// A journal's health with figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalHealth {
    /// How it is.
    pub health: Health,
    /// Bytes that wait to be written.
    pub waiting_bytes: usize,
    /// Entries that could never be written and were dropped; nobody was told that they are durable.
    pub dropped: u64,
    /// So near to `size_max` that new runs are refused; those under way go on.
    pub is_nearly_full: bool,
    /// Captures and ledger lines that were left out because too much waited.
    pub left_out: u64,
}

/// The shared state of a journal's health.
#[derive(Debug, Default)]
pub(super) struct Vitals {
    failing: Mutex<Option<(u64, JournalError)>>,
    pub(super) is_closed: AtomicBool,
    pub(super) is_nearly_full: AtomicBool,
    pub(super) waiting_bytes: AtomicUsize,
    pub(super) dropped: AtomicU64,
    pub(super) left_out: AtomicU64,
}

impl Vitals {
    /// The disk refused.
    pub(super) fn failed(&self, now_ms: u64, error: JournalError) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let since_ms = failing.as_ref().map_or(now_ms, |(since_ms, _)| *since_ms);
        if failing.is_none() {
            tracing::error!(%error, "the journal cannot write; what runs have to say is kept and tried again");
        }
        *failing = Some((since_ms, error));
    }

    /// The disk took something.
    pub(super) fn succeeded(&self) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        if failing.take().is_some() {
            tracing::info!("the journal writes again");
        }
    }

    /// The latest refusal, while it lasts.
    pub(super) fn error(&self) -> Option<JournalError> {
        let failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        failing.as_ref().map(|(_, error)| error.clone())
    }

    /// As others see it.
    pub(super) fn health(&self) -> JournalHealth {
        let failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let health = match failing {
            _ if self.is_closed.load(Ordering::Acquire) => Health::Closed,
            Some((since_ms, error)) => Health::Failing { since_ms, error },
            None => Health::Good,
        };
        JournalHealth {
            health,
            waiting_bytes: self.waiting_bytes.load(Ordering::Relaxed),
            is_nearly_full: self.is_nearly_full.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            left_out: self.left_out.load(Ordering::Relaxed),
        }
    }
}
