//! A run's events after a place, page by page, from the log itself: no queue stands between a run and whoever follows it, so a slow
//! reader costs nobody anything.

use std::sync::Arc;

use crate::{
    model::{
        event::{Event, EventType},
        weight,
    },
    runtime::{
        journal::Journal as _,
        run_handle::{EventsPage, RunHandle},
    },
    serve::{
        answer::{failure::Failure, outgoing::UNCOUNTED_BYTES_MAX},
        state::Running,
    },
};

/// What is read at once: as much as a connection's own buffers hold, where no single event is larger.
pub const PAGE: EventsPage = EventsPage { events_max: 128, bytes_max: UNCOUNTED_BYTES_MAX };

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

    /// Whose events these are.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The id of the last event that the journal keeps.
    pub async fn last_kept(&self) -> Result<u64, Failure> {
        Ok(self.running.journal.last_event(&self.run_id).await?)
    }

    /// The next events; empty at the end. Waits for them if the run is live here.
    pub async fn next(&mut self) -> Result<Vec<Event>, Failure> {
        if self.is_over {
            return Ok(Vec::new());
        }
        let events = if let Some(handle) = &self.handle {
            handle.next_events_page(self.after, PAGE).await
        } else {
            let events = self.running.journal.events_after(&self.run_id, self.after, PAGE.events_max).await?;
            first_of(events, PAGE.bytes_max)
        };
        if let Some(last) = events.last() {
            self.after = last.id;
            self.is_over = last.kind == EventType::RunFinished;
        }
        Ok(events)
    }
}

/// The first of them, until they take so many bytes.
fn first_of(mut events: Vec<Event>, bytes_max: usize) -> Vec<Event> {
    let mut bytes = 0_usize;
    let fitting = events.iter().take_while(|event| {
        let has_room = bytes < bytes_max;
        bytes += weight::EVENT_BYTES + weight::of_value(&event.data);
        has_room
    });
    let fitting = fitting.count();
    events.truncate(fitting);
    events
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_has_an_end_and_holds_one_event_however_large() {
        let event = |id: u64, bytes: usize| {
            let (run_id, data) = ("r".to_owned(), json!("x".repeat(bytes)));
            Event { id, ts_ms: 0, kind: EventType::StepDelta, run_id, step: None, data }
        };
        for (sizes, want) in [
            (vec![], 0),
            (vec![1, 1, 1], 3),
            (vec![200_000, 1], 1),
            (vec![30_000, 30_000, 30_000, 1], 3),
            (vec![1, 200_000, 1], 2),
        ] {
            let events: Vec<Event> = (1..).zip(&sizes).map(|(id, bytes)| event(id, *bytes)).collect();
            assert_eq!(first_of(events, 64 * 1024).len(), want, "{sizes:?}");
        }
    }
}
