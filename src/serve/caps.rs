//! How much the service does at once. Each kind of request has permits of its own, so that queries, health and operator acts go on while
//! calls and streams are full.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::{body::too_large, failure::Failure};
use crate::settings::serve::ServeSettings;

/// Bytes of bodies are counted in blocks of this size.
const BLOCK_BYTES: usize = 1024;
/// The longest that a stream waits to be opened.
const OPENING_WAIT: Duration = Duration::from_secs(5);

/// The caps.
#[derive(Debug)]
pub struct Caps {
    calls: Arc<Semaphore>,
    uploads: Arc<Semaphore>,
    queries: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    openings: Arc<Semaphore>,
    body_blocks: Arc<Semaphore>,
    runs: Arc<Semaphore>,
    run_blocks: Arc<Semaphore>,
    runs_bytes_max: u64,
    run_streams: Arc<Counts<String>>,
    key_streams: Arc<Counts<Option<String>>>,
    run_streams_max: u32,
    key_streams_max: u32,
}

/// A place within a cap; dropping it gives it back.
#[derive(Debug)]
pub struct Place {
    #[allow(dead_code, reason = "held for its drop")]
    permit: OwnedSemaphorePermit,
}

/// A stream's places.
#[derive(Debug)]
pub struct StreamPlace {
    #[allow(dead_code, reason = "held for its drop")]
    place: Place,
    #[allow(dead_code, reason = "held for its drop")]
    of_run: Counted<String>,
    #[allow(dead_code, reason = "held for its drop")]
    of_key: Counted<Option<String>>,
}

impl Caps {
    /// Caps as configured.
    pub fn new(settings: &ServeSettings) -> Self {
        let semaphore = |count: u32| Arc::new(Semaphore::new(count as usize));
        let blocks = |bytes: u64| {
            let blocks = usize::try_from(bytes).unwrap_or(usize::MAX) / BLOCK_BYTES;
            Arc::new(Semaphore::new(blocks.min(Semaphore::MAX_PERMITS)))
        };
        Self {
            calls: semaphore(settings.calls_max),
            uploads: semaphore(settings.uploads_max),
            queries: semaphore(settings.queries_max),
            streams: semaphore(settings.streams_max),
            openings: semaphore(settings.queries_max),
            body_blocks: blocks(settings.bodies_bytes_max),
            runs: semaphore(settings.runs_live_max),
            run_blocks: blocks(settings.runs_bytes_max),
            runs_bytes_max: settings.runs_bytes_max,
            run_streams: Arc::default(),
            key_streams: Arc::default(),
            run_streams_max: settings.streams_run_max,
            key_streams_max: settings.streams_key_max,
        }
    }

    /// A place for a call of an agent or model; it lasts as long as the answer is under way.
    pub fn call(&self) -> Result<Place, Failure> {
        place(&self.calls, "calls")
    }

    /// A place for an upload.
    pub fn upload(&self) -> Result<Place, Failure> {
        place(&self.uploads, "uploads")
    }

    /// A place for a query or an operator's act.
    pub fn query(&self) -> Result<Place, Failure> {
        place(&self.queries, "queries")
    }

    /// A place to look for the run of a stream that is about to be opened; waited for, since thousands of readers come back at once
    /// after a restart. Apart from queries, which go on however many come.
    pub async fn opening(&self) -> Result<Place, Failure> {
        let permit = Arc::clone(&self.openings).acquire_owned();
        match tokio::time::timeout(OPENING_WAIT, permit).await {
            Ok(Ok(permit)) => Ok(Place { permit }),
            _ => Err(Failure::busy("streams that are being opened")),
        }
    }

    /// A place for an event stream of this run, asked for with this key.
    pub fn stream(&self, run_id: &str, key: Option<&str>) -> Result<StreamPlace, Failure> {
        let of_run = Counts::take(&self.run_streams, run_id.to_owned(), self.run_streams_max);
        let of_run = of_run.ok_or_else(|| Failure::busy("watchers of this run"))?;
        let of_key = Counts::take(&self.key_streams, key.map(str::to_owned), self.key_streams_max);
        let of_key = of_key.ok_or_else(|| Failure::busy("streams of this key"))?;
        Ok(StreamPlace { place: place(&self.streams, "streams")?, of_run, of_key })
    }

    /// Room for a body that is about to be read.
    pub fn body(&self) -> BodyRoom {
        BodyRoom { blocks: Arc::clone(&self.body_blocks), what: "bytes of bodies", held: None, bytes: 0 }
    }

    /// A place for a run whose input has so many bytes, for as long as it is not over.
    pub fn run(&self, input_bytes: usize) -> Result<RunPlace, Failure> {
        if input_bytes as u64 > self.runs_bytes_max {
            return Err(too_large(self.runs_bytes_max));
        }
        let place = place(&self.runs, "live runs")?;
        let mut room = BodyRoom {
            blocks: Arc::clone(&self.run_blocks),
            what: "bytes of inputs of live runs",
            held: None,
            bytes: 0,
        };
        room.grow(input_bytes)?;
        Ok(RunPlace { place, room })
    }
}

/// A live run's place and room.
#[derive(Debug)]
pub struct RunPlace {
    #[allow(dead_code, reason = "held for its drop")]
    place: Place,
    #[allow(dead_code, reason = "held for its drop")]
    room: BodyRoom,
}

/// Room for one body; grows with it, and is given back when it is dropped.
#[derive(Debug)]
pub struct BodyRoom {
    blocks: Arc<Semaphore>,
    what: &'static str,
    held: Option<OwnedSemaphorePermit>,
    bytes: usize,
}

impl BodyRoom {
    /// Takes room for `bytes` more.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Failure> {
        let before = self.bytes.div_ceil(BLOCK_BYTES);
        self.bytes = self.bytes.saturating_add(bytes);
        let more = self.bytes.div_ceil(BLOCK_BYTES).saturating_sub(before);
        let more = u32::try_from(more).map_err(|_| Failure::busy(self.what))?;
        let taken = Arc::clone(&self.blocks).try_acquire_many_owned(more);
        let taken = taken.map_err(|_| Failure::busy(self.what))?;
        match &mut self.held {
            Some(held) => held.merge(taken),
            None => self.held = Some(taken),
        }
        Ok(())
    }
}

fn place(semaphore: &Arc<Semaphore>, what: &str) -> Result<Place, Failure> {
    let permit = Arc::clone(semaphore).try_acquire_owned().map_err(|_| Failure::busy(what))?;
    Ok(Place { permit })
}

/// Counts by name; a name without any is forgotten.
#[derive(Debug)]
struct Counts<K: Eq + Hash>(Mutex<HashMap<K, u32>>);

impl<K: Eq + Hash> Default for Counts<K> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

#[derive(Debug)]
struct Counted<K: Eq + Hash> {
    counts: Arc<Counts<K>>,
    name: K,
}

impl<K: Eq + Hash + Clone> Counts<K> {
    fn take(counts: &Arc<Self>, name: K, max: u32) -> Option<Counted<K>> {
        let mut map = counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = map.entry(name.clone()).or_insert(0);
        if *count >= max {
            return None;
        }
        *count += 1;
        drop(map);
        Some(Counted { counts: Arc::clone(counts), name })
    }
}

impl<K: Eq + Hash> Drop for Counted<K> {
    fn drop(&mut self) {
        let mut map = self.counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = map.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                map.remove(&self.name);
            }
        }
    }
}
