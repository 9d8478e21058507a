//! A journal in memory: slow, stuck, failing or cut off at any batch, and read by whoever comes after. Runs overtake each other in it;
//! batches of one run never do.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use watertight::{
    model::{
        event::{Event, EventType},
        run::RunRecord,
    },
    runtime::{
        journal::{
            Acceptance, Batch, DeadLetter, Ended, Entry, FIRST_GENERATION, Journal, JournalError, RunAccepted,
            StoredRun, WhenAccepted, WhenDurable,
        },
        ports::{BoxFuture, Clock},
    },
};

/// What is on the disk.
#[derive(Default)]
pub struct Disk {
    runs: BTreeMap<String, Written>,
    pub letters: Vec<DeadLetter>,
    pub batches: usize,
    /// What signs of life are dated by; there are none without it.
    pub clock: Option<Arc<dyn Clock>>,
    alive_ms: Option<u64>,
}

struct Written {
    accepted: Arc<RunAccepted>,
    generation: u64,
    ended: Vec<Ended>,
    events: Vec<Event>,
    finished: Option<RunRecord>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Well,
    Stuck,
    Full,
    Dead,
}

struct Queue {
    state: State,
    /// The process dies when so many batches are on the disk.
    dies_after: usize,
    waiting: HashMap<Arc<str>, VecDeque<(Batch, WhenDurable)>>,
}

/// One process's way to the disk.
pub struct FakeJournal {
    pub disk: Arc<Mutex<Disk>>,
    queue: Mutex<Queue>,
    delay: Duration,
}

impl FakeJournal {
    /// On an empty disk.
    pub fn new(delay: Duration) -> Arc<Self> {
        Self::on(Arc::new(Mutex::new(Disk::default())), delay)
    }

    fn on(disk: Arc<Mutex<Disk>>, delay: Duration) -> Arc<Self> {
        let queue = Queue { state: State::Well, dies_after: usize::MAX, waiting: HashMap::new() };
        Arc::new(Self { disk, queue: Mutex::new(queue), delay })
    }

    /// The next process, on the same disk. Nothing of the one before gets through any more.
    pub fn reopen(&self) -> Arc<Self> {
        self.set(State::Dead);
        Self::on(self.disk.clone(), self.delay)
    }

    /// Dies when so many batches are on the disk.
    pub fn dies_after(&self, batches: usize) {
        self.queue.lock().unwrap().dies_after = batches;
    }

    /// Takes nothing for now.
    pub fn stick(&self) {
        self.set(State::Stuck);
    }

    /// Refuses new runs.
    pub fn fill(&self) {
        self.set(State::Full);
    }

    /// Takes everything again.
    pub fn heal(self: &Arc<Self>) {
        self.set(State::Well);
        let waiting: Vec<(Arc<str>, usize)> =
            self.queue.lock().unwrap().waiting.iter().map(|(run, batches)| (run.clone(), batches.len())).collect();
        for (run, batches) in waiting {
            for _ in 0..batches {
                self.write_later(run.clone());
            }
        }
    }

    pub fn is_dead(&self) -> bool {
        self.queue.lock().unwrap().state == State::Dead
    }

    pub fn events(&self, run: &str) -> Vec<Event> {
        self.disk.lock().unwrap().runs[run].events.clone()
    }

    pub fn finished(&self, run: &str) -> Option<RunRecord> {
        self.disk.lock().unwrap().runs[run].finished.clone()
    }

    pub fn accepted(&self, run: &str) -> Arc<RunAccepted> {
        self.disk.lock().unwrap().runs[run].accepted.clone()
    }

    /// The idempotency keys of all calls whose end is on the disk.
    pub fn ended_calls(&self) -> BTreeSet<String> {
        let disk = self.disk.lock().unwrap();
        let keys = disk.runs.iter().flat_map(|(run, written)| written.ended.iter().map(move |ended| key(run, ended)));
        keys.collect()
    }

    fn set(&self, state: State) {
        let mut queue = self.queue.lock().unwrap();
        if queue.state != State::Dead {
            queue.state = state;
        }
    }

    fn write_later(self: &Arc<Self>, run: Arc<str>) {
        let journal = Arc::clone(self);
        // Runs overtake each other.
        let delay = journal.delay * (run.bytes().map(u32::from).sum::<u32>() % 3 + 1);
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            journal.write_next(&run);
        });
    }

    fn write_next(&self, run: &Arc<str>) {
        let (batch, durable) = {
            let mut queue = self.queue.lock().unwrap();
            if queue.state != State::Well && queue.state != State::Full {
                return;
            }
            let Some(next) = queue.waiting.get_mut(run).and_then(VecDeque::pop_front) else { return };
            let mut disk = self.disk.lock().unwrap();
            disk.batches += 1;
            if disk.batches > queue.dies_after {
                queue.state = State::Dead;
                return;
            }
            next
        };
        if self.disk.lock().unwrap().write(batch) {
            durable();
        }
    }
}

fn key(run: &str, ended: &Ended) -> String {
    let index = ended.record.index.map_or_else(|| "-".to_owned(), |index| index.to_string());
    format!("{run}/{}/{index}/{}", ended.record.id, ended.record.iteration)
}

impl Disk {
    fn write(&mut self, batch: Batch) -> bool {
        let written = self.runs.get_mut(&*batch.run_id).expect("entries of a run that was not accepted");
        if batch.generation != written.generation {
            return false;
        }
        for entry in batch.entries {
            assert!(written.finished.is_none(), "after the end: {entry:?}");
            match entry {
                Entry::Ended(ended) => {
                    let again = written.ended.iter().any(|known| key("", known) == key("", &ended));
                    assert!(!again, "ended twice: {ended:?}");
                    written.ended.push(*ended);
                }
                Entry::Event(event) => {
                    assert_eq!(event.id, written.events.len() as u64 + 1, "a gap or a repetition");
                    written.events.push(event);
                }
                Entry::Finished(record) => {
                    assert_eq!(written.events.last().unwrap().kind, EventType::RunFinished);
                    written.finished = Some(*record);
                }
            }
        }
        true
    }
}

/// What the trait is implemented on, so that the journal can hold on to itself.
pub struct Handle(pub Arc<FakeJournal>);

impl Journal for Handle {
    fn accept(&self, run: Arc<RunAccepted>, accepted: WhenAccepted) {
        let journal = self.0.clone();
        tokio::spawn(async move {
            tokio::time::sleep(journal.delay).await;
            let state = journal.queue.lock().unwrap().state;
            if state != State::Well {
                return accepted(Err(JournalError::Full("no room".into())));
            }
            let known = run.idempotency.as_ref().and_then(|wanted| {
                let disk = journal.disk.lock().unwrap();
                let fits =
                    |known: &&Written| known.accepted.idempotency.as_ref().is_some_and(|own| own.key == wanted.key);
                let found = disk.runs.values().find(fits);
                found.map(|found| (found.accepted.run_id.clone(), found.accepted.idempotency.as_ref() == Some(wanted)))
            });
            let answer = match known {
                Some((run_id, true)) => Acceptance::Replayed { run_id },
                Some((run_id, false)) => Acceptance::Conflict { run_id },
                None => {
                    let (ended, events) = (Vec::new(), Vec::new());
                    let written =
                        Written { accepted: run.clone(), generation: FIRST_GENERATION, ended, events, finished: None };
                    journal.disk.lock().unwrap().runs.insert(run.run_id.clone(), written);
                    Acceptance::New
                }
            };
            accepted(Ok(answer));
        });
    }

    fn append(&self, batch: Batch, durable: WhenDurable) {
        let run = batch.run_id.clone();
        self.0.queue.lock().unwrap().waiting.entry(run.clone()).or_default().push_back((batch, durable));
        if self.0.delay.is_zero() {
            // On the caller's own stack: a journal may be that quick.
            self.0.write_next(&run);
        } else {
            self.0.write_later(run);
        }
    }

    fn put_aside(&self, letter: DeadLetter) {
        self.0.disk.lock().unwrap().letters.push(letter);
    }

    fn take_over(&self) -> BoxFuture<'_, Result<Vec<StoredRun>, JournalError>> {
        Box::pin(async move {
            let mut disk = self.0.disk.lock().unwrap();
            let open = disk.runs.values_mut().filter(|run| run.finished.is_none());
            let stored = open.map(|run| {
                run.generation += 1;
                StoredRun {
                    accepted: (*run.accepted).clone(),
                    generation: run.generation,
                    started_ms: run.events.first().map(|event| event.ts_ms),
                    ended: run.ended.clone(),
                    events: run.events.clone(),
                }
            });
            Ok(stored.collect())
        })
    }

    fn note_alive(&self) {
        let mut disk = self.0.disk.lock().unwrap();
        disk.alive_ms = disk.clock.as_ref().map(|clock| clock.unix_ms(clock.now()));
    }

    fn last_alive_ms(&self) -> Option<u64> {
        self.0.disk.lock().unwrap().alive_ms
    }

    fn events_after(&self, run_id: &str, after: u64, max: usize) -> BoxFuture<'_, Result<Vec<Event>, JournalError>> {
        let events: Vec<Event> = self.0.events(run_id).into_iter().filter(|event| event.id > after).take(max).collect();
        Box::pin(async move { Ok(events) })
    }

    fn record(&self, run_id: &str) -> BoxFuture<'_, Result<Option<RunRecord>, JournalError>> {
        let record = self.0.finished(run_id);
        Box::pin(async move { Ok(record) })
    }
}
