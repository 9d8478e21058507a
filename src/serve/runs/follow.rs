//! A run's events after a place, page by page, from the log itself: no queue stands between a run and whoever follows it, so a slow
//! reader costs nobody anything.

use std::sync::Arc;

use crate::{
    model::event::{Event, EventType},
    runtime::{journal::Journal as _, run_handle::RunHandle},
    serve::{answer::failure::Failure, state::Running},
};

/// Events that are read at once.
pub const PAGE_MAX: usize = 128;

/// Where a follower stands.
pub struct Follower {
    running: Arc<Running>,
    run_id: String,
    handle: Option<RunHandle>,
    after: u64,
    is_over: bool,
}

impl Follower {
    /// Follows from after the event `after` on.
    pub fn new(running: Arc<Running>, run_id: String, handle: Option<RunHandle>, after: u64) -> Self {
        Self { running, run_id, handle, after, is_over: false }
    }

    /// The next events; empty at the end. Waits for them if the run is live here.
    pub async fn next(&mut self) -> Result<Vec<Event>, Failure> {
        if self.is_over {
            return Ok(Vec::new());
        }
        let events = match &self.handle {
            Some(handle) => handle.next_events_page(self.after, PAGE_MAX).await,
            None => self.running.journal.events_after(&self.run_id, self.after, PAGE_MAX).await?,
        };
        if let Some(last) = events.last() {
            self.after = last.id;
            self.is_over = last.kind == EventType::RunFinished;
        }
        Ok(events)
    }
}
