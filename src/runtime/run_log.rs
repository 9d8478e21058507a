//! The events of one run, and its way into the journal. What is not durable yet is in the log but not shown. One lock gives events
//! their ids, another one keeps batches in the same order; neither is held while the journal's answer is awaited.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

use super::{
    core::lock,
    journal::{Batch, Entry, Journal},
    run_handle::EventsPage,
    sync::Mutex,
};
use crate::model::{
    event::{Event, EventType},
    weight,
};

/// Events that one run may have; pieces of content are left out beyond it, nothing else ever is.
pub(crate) const EVENTS_MAX: usize = 20_000;
/// Events of one run that may wait for the journal; pieces of content are left out beyond it, nothing else ever is.
pub(crate) const EVENTS_UNWRITTEN_MAX: usize = 1_000;

/// How a run is written down.
pub(crate) struct JournalEnd {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) run_id: Arc<str>,
    /// Held by this owner of the run.
    pub(crate) generation: u64,
    /// Batches reach the journal in the order of their numbers.
    order: Mutex<()>,
}

impl JournalEnd {
    pub(crate) fn new(journal: Arc<dyn Journal>, run_id: &str, generation: u64) -> Self {
        Self { journal, run_id: run_id.into(), generation, order: Mutex::new(()) }
    }
}

/// The log.
pub(crate) struct RunLog {
    run_id: String,
    pub(crate) journal: Option<JournalEnd>,
    state: Mutex<LogState>,
    last_event: watch::Sender<u64>,
}

#[derive(Default)]
struct LogState {
    events: Vec<StoredEvent>,
    /// So many of them may be seen.
    shown: usize,
    /// What the next batch is made of.
    outgoing: Vec<Entry>,
    /// A turn of the orchestrator is under way: its entries go together.
    in_turn: bool,
    /// The number of the last batch that was handed over, from 1.
    sent: u64,
    /// How many events the batches that were handed over reach to.
    sent_events: usize,
    /// The number of the last batch that is durable.
    durable: u64,
    /// Up to the batch of this number each one that becomes durable is news to the orchestrator: something is done after it.
    awaited: u64,
}

/// An event without what follows from its place: its id and its run.
struct StoredEvent {
    ts_ms: u64,
    kind: EventType,
    step: Option<String>,
    data: Value,
}

impl StoredEvent {
    /// About the memory that it takes.
    fn bytes(&self) -> usize {
        weight::EVENT_BYTES + weight::of_value(&self.data)
    }
}

/// Who hands a batch over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A turn that is over.
    Turn,
    /// The same, and something is to be done once all that was said so far is durable, by whomever it was said.
    TurnThatWaits,
    /// Somebody beside the turns: if one is under way, it takes the entries along.
    Beside,
}

/// A batch that the journal has, but may not have written yet.
pub(crate) struct SentBatch {
    pub(crate) number: u64,
    events: usize,
}

impl RunLog {
    /// A log that goes on after `past`, all of which is durable.
    pub(crate) fn new(run_id: String, journal: Option<JournalEnd>, past: Vec<Event>) -> Self {
        let stored =
            |event: Event| StoredEvent { ts_ms: event.ts_ms, kind: event.kind, step: event.step, data: event.data };
        let events: Vec<StoredEvent> = past.into_iter().map(stored).collect();
        let shown = events.len();
        let state = LogState { events, shown, sent_events: shown, ..LogState::default() };
        Self { run_id, journal, state: Mutex::new(state), last_event: watch::Sender::new(shown as u64) }
    }

    /// Appends an event with the next id.
    pub(crate) fn append(&self, ts_ms: u64, kind: EventType, step: Option<String>, data: Value) {
        let id = {
            let mut state = lock(&self.state);
            let unwritten = state.events.len() - state.shown;
            let is_full = state.events.len() >= EVENTS_MAX || unwritten >= EVENTS_UNWRITTEN_MAX;
            if kind == EventType::StepDelta && is_full {
                return;
            }
            let event = StoredEvent { ts_ms, kind, step, data };
            let id = state.events.len() as u64 + 1;
            if self.journal.is_some() {
                state.outgoing.push(Entry::Event(self.event(id, &event)));
            } else {
                state.shown += 1;
            }
            state.events.push(event);
            id
        };
        if self.journal.is_none() {
            self.tell(id);
        }
    }

    /// Something else for the next batch.
    pub(crate) fn write(&self, entry: Entry) {
        lock(&self.state).outgoing.push(entry);
    }

    /// A turn begins: its entries become durable together or not at all.
    pub(crate) fn begin_turn(&self) {
        if self.journal.is_some() {
            lock(&self.state).in_turn = true;
        }
    }

    /// Takes back what a turn that broke off left behind: nobody has seen it.
    pub(crate) fn drop_unsent(&self) {
        if self.journal.is_some() {
            let mut state = lock(&self.state);
            let sent = state.sent_events;
            state.events.truncate(sent);
            state.outgoing.clear();
        }
    }

    /// Hands over what is to be written. The number of the batch that must be durable before anything is built upon what was said so
    /// far; 0 if there is none. `written` makes what the journal calls or drops.
    pub(crate) fn send(&self, sender: Sender, written: impl FnOnce(SentBatch) -> Box<dyn FnOnce() + Send>) -> u64 {
        let Some(end) = &self.journal else { return 0 };
        let _order = lock(&end.order);
        let (entries, sent) = {
            let mut state = lock(&self.state);
            if sender != Sender::Beside {
                state.in_turn = false;
            }
            let is_next = !state.in_turn && !state.outgoing.is_empty();
            state.sent += u64::from(is_next);
            if sender == Sender::TurnThatWaits {
                state.awaited = state.sent;
            }
            if !is_next {
                return state.sent;
            }
            state.sent_events = state.events.len();
            let sent = SentBatch { number: state.sent, events: state.events.len() };
            (std::mem::take(&mut state.outgoing), sent)
        };
        let number = sent.number;
        let batch = Batch { run_id: Arc::clone(&end.run_id), generation: end.generation, entries };
        end.journal.append(batch, written(sent));
        number
    }

    /// A batch is durable, and with it all before it. True if a turn waits for it, or for a later one.
    pub(crate) fn became_durable(&self, batch: &SentBatch) -> bool {
        let (shown, is_awaited) = {
            let mut state = lock(&self.state);
            state.durable = state.durable.max(batch.number);
            state.shown = state.shown.max(batch.events);
            (state.shown as u64, batch.number <= state.awaited)
        };
        self.tell(shown);
        is_awaited
    }

    /// The number of the last batch that is durable.
    pub(crate) fn durable(&self) -> u64 {
        lock(&self.state).durable
    }

    /// True if everything that was said is durable.
    pub(crate) fn is_quiet(&self) -> bool {
        let state = lock(&self.state);
        state.durable == state.sent && state.outgoing.is_empty()
    }

    /// Events after the id `after` that may be seen, in order.
    pub(crate) fn events_after(&self, after: u64) -> Vec<Event> {
        self.events_page(after, EventsPage::WHOLE)
    }

    /// A page of the events after the id `after`, in order.
    pub(crate) fn events_page(&self, after: u64, page: EventsPage) -> Vec<Event> {
        let state = lock(&self.state);
        let shown = &state.events[..state.shown];
        let from = usize::try_from(after).unwrap_or(usize::MAX).min(shown.len());
        let ids = (from as u64 + 1)..;
        let mut bytes = 0;
        let fits = |(_, event): &(u64, &StoredEvent)| {
            // The first one in any case.
            let has_room = bytes < page.bytes_max;
            bytes = bytes.saturating_add(event.bytes());
            has_room
        };
        let events = ids.zip(&shown[from..]).take(page.events_max).take_while(fits);
        events.map(|(id, event)| self.event(id, event)).collect()
    }

    /// The id of the last event that may be seen, 0 before the first.
    pub(crate) fn last_shown(&self) -> u64 {
        lock(&self.state).shown as u64
    }

    /// About the memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        lock(&self.state).events.iter().map(StoredEvent::bytes).sum()
    }

    pub(crate) fn last_event(&self) -> watch::Receiver<u64> {
        self.last_event.subscribe()
    }

    /// Who begins to listen after this finds the event in the log, because both take its lock.
    fn tell(&self, id: u64) {
        if self.last_event.receiver_count() > 0 {
            self.last_event.send_replace(id);
        }
    }

    fn event(&self, id: u64, stored: &StoredEvent) -> Event {
        let StoredEvent { ts_ms, kind, step, data } = stored;
        Event { id, ts_ms: *ts_ms, kind: *kind, run_id: self.run_id.clone(), step: step.clone(), data: data.clone() }
    }
}
