//! The sink of kept attempts: a bounded queue and one thread that lays them out, redacts them and hands them to the journal. Nobody waits
//! for it; what does not fit is left out and counted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use super::{captures::Capture, journal::SqliteJournal};
use crate::runtime::{
    capture::{AttemptCapture, CaptureSink},
    metric,
};

/// Attempts that may wait.
pub const QUEUE_MAX: usize = 256;
/// Bytes that may wait in them.
pub const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Keeps attempts in a journal.
#[derive(Debug)]
pub struct CaptureWriter {
    queue: SyncSender<(AttemptCapture, usize)>,
    waiting_bytes: Arc<AtomicUsize>,
}

impl CaptureWriter {
    /// Starts the thread. It ends when the writer is dropped and all that waited is handed on. Each attempt is kept for `keep`.
    pub fn start(journal: Arc<SqliteJournal>, keep: Duration) -> std::io::Result<Self> {
        let (queue, waiting) = sync_channel(QUEUE_MAX);
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let (keep_ms, bytes) = (u64::try_from(keep.as_millis()).unwrap_or(u64::MAX), Arc::clone(&waiting_bytes));
        let work = move || write(&waiting, &bytes, &journal, keep_ms);
        std::thread::Builder::new().name("captures".to_owned()).spawn(work)?;
        Ok(Self { queue, waiting_bytes })
    }
}

impl CaptureSink for CaptureWriter {
    fn keep(&self, capture: AttemptCapture) {
        let bytes = capture.recorded.bytes();
        let before = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        // One that is larger than the queue by itself still finds an empty one.
        let fits = before == 0 || before.saturating_add(bytes) <= QUEUE_BYTES_MAX;
        if !fits || self.queue.try_send((capture, bytes)).is_err() {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            left_out();
        }
    }
}

/// One attempt was not kept.
pub(super) fn left_out() {
    metric::count(metric::CAPTURES_LEFT_OUT, Vec::new(), 1);
}

fn write(
    waiting: &Receiver<(AttemptCapture, usize)>,
    waiting_bytes: &AtomicUsize,
    journal: &SqliteJournal,
    keep_ms: u64,
) {
    while let Ok((capture, bytes)) = waiting.recv() {
        journal.put_capture(laid_out(capture, keep_ms));
        waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn laid_out(capture: AttemptCapture, keep_ms: u64) -> Capture {
    let said = capture.recorded.said();
    Capture {
        tenant: capture.tenant,
        run_id: capture.run_id,
        step: capture.step,
        agent: capture.agent.to_string(),
        target: Some(capture.target.to_string()),
        call_id: capture.call_id,
        attempt: capture.attempt,
        at_ms: capture.at_ms,
        expires_ms: capture.at_ms.saturating_add(keep_ms),
        prompt: said.prompt,
        answer: said.answer,
        text: said.text,
        parsed: capture.recorded.redact(capture.parsed),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        journal::{query::TenantScope, settings::JournalSettings},
        model::name::Name,
        runtime::capture::{Recorded, Said},
    };

    struct Exchange {
        bytes: usize,
        /// Laying it out waits for this.
        gate: Arc<Mutex<()>>,
    }

    impl Recorded for Exchange {
        fn bytes(&self) -> usize {
            self.bytes
        }

        fn said(&self) -> Said {
            drop(self.gate.lock());
            Said { prompt: json!("p"), answer: Some("a".to_owned()), text: Some("t".to_owned()) }
        }

        fn redact(&self, value: Value) -> Value {
            json!({ "redacted": value })
        }
    }

    fn capture(attempt: u32, bytes: usize, gate: &Arc<Mutex<()>>) -> AttemptCapture {
        AttemptCapture {
            tenant: Some("acme".to_owned()),
            run_id: Some("r".to_owned()),
            step: Some("draft".to_owned()),
            agent: Name::try_new("writer").unwrap(),
            target: "local/qwen".into(),
            call_id: "c".to_owned(),
            attempt,
            at_ms: u64::MAX / 4,
            parsed: json!({ "output": 1 }),
            recorded: Arc::new(Exchange { bytes, gate: Arc::clone(gate) }),
        }
    }

    async fn kept(journal: &SqliteJournal, count: usize) -> Vec<Capture> {
        for _ in 0..2_000 {
            let kept = journal.read_captures(TenantScope::All, "r", "test").await.unwrap();
            if kept.len() >= count {
                return kept;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{count} captures never came");
    }

    #[tokio::test]
    async fn a_full_queue_makes_nobody_wait() {
        let folder = tempfile::tempdir().unwrap();
        let journal = SqliteJournal::open(JournalSettings::at(folder.path().join("journal.db"))).unwrap();
        let run =
            "INSERT INTO run (run_id, tenant, feature, workflow, status, number, generation, created_ms, deadline_ms)
             VALUES ('r', 0, 0, 0, 0, 0, 0, 0, 0)";
        assert_eq!(journal.write(move |within| Ok(within.connection.execute(run, [])?)).await, Ok(1));
        let writer = CaptureWriter::start(Arc::clone(&journal), Duration::from_millis(7)).unwrap();
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        // The first is larger than everything together may be, and alone; while it is laid out, nothing else fits by bytes.
        writer.keep(capture(1, QUEUE_BYTES_MAX + 1, &gate));
        writer.keep(capture(2, 1, &gate));
        drop(closed);
        let first = kept(&journal, 1).await.remove(0);
        assert_eq!((first.attempt, first.expires_ms), (1, u64::MAX / 4 + 7));
        assert_eq!((first.target.as_deref(), first.text.as_deref()), (Some("local/qwen"), Some("t")));
        assert_eq!(first.parsed, json!({ "redacted": { "output": 1 } }));
        while writer.waiting_bytes.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // By count: one is in the writer's hand at most, the others wait.
        let closed = gate.lock().unwrap();
        let attempts = u32::try_from(QUEUE_MAX).unwrap() + 50;
        (10..10 + attempts).for_each(|attempt| writer.keep(capture(attempt, 1, &gate)));
        drop(closed);
        let all = kept(&journal, QUEUE_MAX + 1).await;
        assert!(all.len() <= QUEUE_MAX + 2 && all[1].attempt == 10, "{}", all.len());
    }
}
