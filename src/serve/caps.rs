//! How much the service does at once. Each kind of request has permits of its own, so that queries, health and operator acts go on while
//! calls and streams are full.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    answer::{body::too_large, failure::Failure},
    answer_room::AnswerRooms,
};
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
    /// Answers that are not read yet.
    pub answers: AnswerRooms,
    runs: Arc<Semaphore>,
    run_blocks: Arc<Semaphore>,
    runs_bytes_max: u64,
    tenant_runs: Arc<Counts<Option<String>>>,
    tenant_runs_max: u64,
    tenant_run_bytes: Arc<Counts<Option<String>>>,
    tenant_run_bytes_max: u64,
    large: Arc<Semaphore>,
    run_streams: Arc<Counts<String>>,
    key_streams: Arc<Counts<Option<String>>>,
    key_uploads: Arc<Counts<Option<String>>>,
    key_uploads_max: u32,
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
        Self {
            calls: semaphore(settings.calls_max),
            uploads: semaphore(settings.uploads_max),
            queries: semaphore(settings.queries_max),
            streams: semaphore(settings.streams_max),
            openings: semaphore(settings.queries_max),
            body_blocks: block_semaphore(settings.bodies_bytes_max),
            answers: AnswerRooms::new(settings),
            runs: semaphore(settings.runs_live_max),
            run_blocks: block_semaphore(settings.runs_bytes_max),
            runs_bytes_max: settings.runs_bytes_max,
            tenant_runs: Arc::default(),
            tenant_runs_max: settings.runs_tenant_max.into(),
            tenant_run_bytes: Arc::default(),
            tenant_run_bytes_max: settings.runs_tenant_bytes_max,
            large: Arc::new(Semaphore::new(large_at_once())),
            run_streams: Arc::default(),
            key_streams: Arc::default(),
            key_uploads: Arc::default(),
            key_uploads_max: settings.uploads_key_max,
            run_streams_max: settings.streams_run_max,
            key_streams_max: settings.streams_key_max,
        }
    }

    /// A place for a call of an agent or model; it lasts as long as the answer is under way. There is none for an asker whose earlier
    /// answers are not read.
    pub fn call(&self, asker: Option<&str>) -> Result<Place, Failure> {
        self.answers.may_call(asker)?;
        place(&self.calls, "calls")
    }

    /// A place for an upload, asked for with this key. However slowly one caller sends, the others have places left.
    pub fn upload(&self, key: Option<&str>) -> Result<UploadPlace, Failure> {
        // Without keys there is one caller, who may have them all.
        let max = if key.is_some() { self.key_uploads_max } else { u32::MAX };
        let of_key = Counts::take(&self.key_uploads, key.map(str::to_owned), 1, max.into());
        let of_key = of_key.ok_or_else(|| Failure::busy("uploads of this key"))?;
        Ok(UploadPlace { place: place(&self.uploads, "uploads")?, of_key })
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
        let of_run = Counts::take(&self.run_streams, run_id.to_owned(), 1, self.run_streams_max.into());
        let of_run = of_run.ok_or_else(|| Failure::busy("watchers of this run"))?;
        let of_key = Counts::take(&self.key_streams, key.map(str::to_owned), 1, self.key_streams_max.into());
        let of_key = of_key.ok_or_else(|| Failure::busy("streams of this key"))?;
        Ok(StreamPlace { place: place(&self.streams, "streams")?, of_run, of_key })
    }

    /// A turn for work on a large body; waited for, since each such turn is short.
    pub async fn large(&self) -> Result<Place, Failure> {
        let permit = Arc::clone(&self.large).acquire_owned().await;
        Ok(Place { permit: permit.map_err(Failure::internal)? })
    }

    /// Room for a body that is about to be read.
    pub fn body(&self) -> BodyRoom {
        BodyRoom::within(&self.body_blocks, "bytes of bodies")
    }

    /// A place for a run of this tenant whose input has so many bytes, for as long as it is not over.
    pub fn run(&self, tenant: Option<&str>, input_bytes: usize) -> Result<RunPlace, Failure> {
        let (bytes, bytes_max) = (input_bytes as u64, self.runs_bytes_max.min(self.tenant_run_bytes_max));
        if bytes > bytes_max {
            return Err(too_large(bytes_max));
        }
        let tenant = || tenant.map(str::to_owned);
        let of_tenant = Counts::take(&self.tenant_runs, tenant(), 1, self.tenant_runs_max);
        let of_tenant = of_tenant.ok_or_else(|| Failure::busy("live runs of this tenant"))?;
        let bytes_of_tenant = Counts::take(&self.tenant_run_bytes, tenant(), bytes, self.tenant_run_bytes_max);
        let bytes_of_tenant =
            bytes_of_tenant.ok_or_else(|| Failure::busy("bytes of inputs of live runs of this tenant"))?;
        let place = place(&self.runs, "live runs")?;
        let mut room = BodyRoom::within(&self.run_blocks, "bytes of inputs of live runs");
        room.grow(input_bytes)?;
        Ok(RunPlace { place, room, of_tenant, bytes_of_tenant })
    }
}

/// An upload's places.
#[derive(Debug)]
pub struct UploadPlace {
    #[allow(dead_code, reason = "held for its drop")]
    place: Place,
    #[allow(dead_code, reason = "held for its drop")]
    of_key: Counted<Option<String>>,
}

/// A live run's place and room.
#[derive(Debug)]
pub struct RunPlace {
    #[allow(dead_code, reason = "held for its drop")]
    place: Place,
    #[allow(dead_code, reason = "held for its drop")]
    room: BodyRoom,
    #[allow(dead_code, reason = "held for its drop")]
    of_tenant: Counted<Option<String>>,
    #[allow(dead_code, reason = "held for its drop")]
    bytes_of_tenant: Counted<Option<String>>,
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
    /// None yet, of what these are blocks of.
    pub(super) fn within(blocks: &Arc<Semaphore>, what: &'static str) -> Self {
        Self { blocks: Arc::clone(blocks), what, held: None, bytes: 0 }
    }

    /// So many bytes were taken in.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes room for `bytes` more, or for as many as there is.
    pub(super) fn grow_as_far_as_there_is(&mut self, bytes: usize) {
        let before = self.bytes;
        while self.grow(bytes.min(self.blocks.available_permits().saturating_mul(BLOCK_BYTES))).is_err() {
            // Somebody else took of it in between.
            self.bytes = before;
        }
    }

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

/// Half of the processors: the other half is everybody else's.
fn large_at_once() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| (processors.get() / 2).max(1))
}

/// One permit a block of so many bytes.
pub(super) fn block_semaphore(bytes: u64) -> Arc<Semaphore> {
    let blocks = usize::try_from(bytes).unwrap_or(usize::MAX) / BLOCK_BYTES;
    Arc::new(Semaphore::new(blocks.min(Semaphore::MAX_PERMITS)))
}

fn place(semaphore: &Arc<Semaphore>, what: &str) -> Result<Place, Failure> {
    let permit = Arc::clone(semaphore).try_acquire_owned().map_err(|_| Failure::busy(what))?;
    Ok(Place { permit })
}

/// Counts by name; a name without any is forgotten.
#[derive(Debug)]
pub(super) struct Counts<K: Eq + Hash>(Mutex<HashMap<K, u64>>);

impl<K: Eq + Hash> Default for Counts<K> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

/// What somebody holds of a count.
#[derive(Debug)]
pub(super) struct Counted<K: Eq + Hash> {
    counts: Arc<Counts<K>>,
    name: K,
    many: u64,
}

impl Counts<String> {
    /// What those of this name hold.
    pub(super) fn of(counts: &Arc<Self>, name: &str) -> u64 {
        counts.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied().unwrap_or(0)
    }
}

impl<K: Eq + Hash + Clone> Counts<K> {
    pub(super) fn take(counts: &Arc<Self>, name: K, many: u64, max: u64) -> Option<Counted<K>> {
        let mut map = counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = map.get(&name).copied().unwrap_or(0).saturating_add(many);
        if sum > max {
            return None;
        }
        map.insert(name.clone(), sum);
        drop(map);
        Some(Counted { counts: Arc::clone(counts), name, many })
    }
}

impl<K: Eq + Hash> Drop for Counted<K> {
    fn drop(&mut self) {
        let mut map = self.counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = map.get_mut(&self.name) {
            *count = count.saturating_sub(self.many);
            if *count == 0 {
                map.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenants_runs_leave_places_to_others() {
        let settings = ServeSettings {
            runs_live_max: 3,
            runs_tenant_max: 2,
            runs_tenant_bytes_max: 10_000,
            ..ServeSettings::default()
        };
        let caps = Caps::new(&settings);
        let runs = [caps.run(Some("flood"), 10).unwrap(), caps.run(Some("flood"), 0).unwrap()];
        let refused = caps.run(Some("flood"), 0).unwrap_err().envelope;
        assert_eq!((refused.http_status, refused.retry_after), (503, Some(1.0)), "by number");
        let wide = caps.run(Some("other"), 9_000).unwrap();
        assert!(caps.run(None, 0).is_err(), "as many as there are");
        drop(runs);
        assert_eq!(caps.run(Some("other"), 1_001).unwrap_err().envelope.http_status, 503, "by bytes");
        assert_eq!(caps.run(Some("new"), 10_001).unwrap_err().envelope.http_status, 413, "it never fits");
        drop(wide);
        for counts in [&caps.tenant_runs, &caps.tenant_run_bytes] {
            assert!(counts.0.lock().unwrap().is_empty(), "what nobody holds is forgotten");
        }
    }
}
