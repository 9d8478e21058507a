//! A server that loads models, in virtual time: one request at a time, a queue without bound, a load that is aborted when whoever asked for
//! it leaves, and models that are let go when they were not used for a while.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use tokio::{sync::Semaphore, time::Instant};
use watertight::{
    model::{
        facts::Ending,
        reply::{AttemptFailure, Reply},
    },
    runtime::ports::{AttemptRequest, Backend, BoxFuture, ColdStart, Progress, WarmUp},
};

/// The server. One model at a time fits.
pub struct ModelServer {
    /// How long a load takes.
    pub load: Duration,
    /// How long an answer of a loaded model takes.
    pub work: Duration,
    /// Unused for so long a model is let go.
    pub keeps_for: Duration,
    /// Nobody listens.
    pub is_down: AtomicBool,
    /// Loads never end.
    pub is_stuck: AtomicBool,
    one_at_a_time: Semaphore,
    loaded: Mutex<Option<(String, Instant)>>,
    /// Loads that ended well.
    pub loads: AtomicU32,
    /// Loads that were aborted.
    pub aborted: AtomicU32,
    /// Warm-ups that came.
    pub warm_ups: AtomicU32,
    /// Attempts that came, as agent and run.
    pub attempts: Mutex<Vec<(String, Option<String>)>>,
    /// The most that was ever under way and queued together.
    pub peak: AtomicU32,
    present: AtomicU32,
}

/// What one agent uses of it.
#[derive(Clone)]
pub struct ServedModel {
    /// The server.
    pub server: Arc<ModelServer>,
    /// The model.
    pub model: &'static str,
    /// What its adapter knows.
    pub cold_start: ColdStart,
    /// What its settings load it as.
    pub loads_as: &'static str,
}

/// Counts one more while it lives.
struct Present<'a>(&'a ModelServer);

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.present.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A load that counts as aborted unless it ended.
struct Load<'a> {
    server: &'a ModelServer,
    has_ended: bool,
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        let count = if self.has_ended { &self.server.loads } else { &self.server.aborted };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

impl ModelServer {
    /// A server whose loads take 45 s, and that lets a model go after five minutes.
    pub fn start(work: Duration) -> Arc<Self> {
        Arc::new(Self {
            load: Duration::from_secs(45),
            work,
            keeps_for: Duration::from_secs(300),
            is_down: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            one_at_a_time: Semaphore::new(1),
            loaded: Mutex::new(None),
            loads: AtomicU32::new(0),
            aborted: AtomicU32::new(0),
            warm_ups: AtomicU32::new(0),
            attempts: Mutex::new(Vec::new()),
            peak: AtomicU32::new(0),
            present: AtomicU32::new(0),
        })
    }

    /// An agent's way to `model` here, through an adapter that knows how long models are kept.
    pub fn model(self: &Arc<Self>, model: &'static str) -> Arc<ServedModel> {
        let cold_start = ColdStart::OnDemand { keeps_for: Some(self.keeps_for) };
        Arc::new(ServedModel { server: Arc::clone(self), model, cold_start, loads_as: "usual" })
    }

    /// Loads that ended, loads that were aborted, warm-ups that came.
    pub fn counts(&self) -> (u32, u32, u32) {
        let of = |count: &AtomicU32| count.load(Ordering::SeqCst);
        (of(&self.loads), of(&self.aborted), of(&self.warm_ups))
    }

    fn come(&self) -> Result<Present<'_>, AttemptFailure> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(AttemptFailure::new(Ending::Network { connected: false }, "connection refused"));
        }
        let present = self.present.fetch_add(1, Ordering::SeqCst) + 1;
        self.peak.fetch_max(present, Ordering::SeqCst);
        Ok(Present(self))
    }

    fn has(&self, model: &str) -> bool {
        let loaded = self.loaded.lock().unwrap();
        loaded.as_ref().is_some_and(|(name, used)| name == model && used.elapsed() < self.keeps_for)
    }

    async fn make_ready(&self, model: &str) -> WarmUp {
        if self.has(model) {
            self.touch(model);
            return WarmUp::WasLoaded;
        }
        let mut load = Load { server: self, has_ended: false };
        if self.is_stuck.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(self.load).await;
        load.has_ended = true;
        self.touch(model);
        WarmUp::Loaded
    }

    fn touch(&self, model: &str) {
        *self.loaded.lock().unwrap() = Some((model.to_owned(), Instant::now()));
    }
}

impl Backend for ServedModel {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async move {
            let server = &self.server;
            let seen = (request.agent.to_string(), request.run_id.clone());
            server.attempts.lock().unwrap().push(seen);
            let _present = server.come()?;
            let _turn = server.one_at_a_time.acquire().await.unwrap();
            if server.make_ready(self.model).await == WarmUp::Loaded {
                progress.model_loads();
            }
            tokio::time::sleep(server.work).await;
            progress.content("piece").await;
            server.touch(self.model);
            Ok(Reply::of(json!({ "from": request.agent })))
        })
    }

    fn stands_at(&self) -> Option<Arc<str>> {
        Some(format!("{:p}", Arc::as_ptr(&self.server)).into())
    }

    fn loads_as(&self) -> Option<Arc<str>> {
        Some(self.loads_as.into())
    }

    fn cold_start(&self) -> ColdStart {
        self.cold_start
    }

    fn warm_up(&self) -> BoxFuture<'_, Result<WarmUp, AttemptFailure>> {
        Box::pin(async move {
            self.server.warm_ups.fetch_add(1, Ordering::SeqCst);
            let _present = self.server.come()?;
            let _turn = self.server.one_at_a_time.acquire().await.unwrap();
            Ok(self.server.make_ready(self.model).await)
        })
    }

    fn health(&self) -> Option<BoxFuture<'_, Result<(), AttemptFailure>>> {
        Some(Box::pin(async move { self.server.come().map(drop) }))
    }
}
