//! Holds an `http` agent back until its health path first answered: a service that is still starting is neither ill nor on trial.
//! From the first good answer on nobody asks again, and how well the service does is the breaker's to say.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::OnceCell, time::Instant};

use crate::{
    model::{
        facts::Ending,
        reply::{AttemptFailure, Reply},
    },
    runtime::ports::{AttemptRequest, Backend, BoxFuture, Progress},
    transport::client::ProviderClient,
};

use super::health::probe_health;

/// The health path is asked at most once in this time, and whoever was refused is told to come back after it.
pub const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Asks whether the service is up.
type Ask = Box<dyn Fn() -> BoxFuture<'static, Result<(), AttemptFailure>> + Send + Sync>;

/// An `http` agent that is not called before its health path first answered with a 2xx. Until then its attempts end as a refusal of
/// our own, which goes out as `AGENT_WARMING`.
pub struct StartingHttpAgent {
    backend: Arc<dyn Backend>,
    ask: Ask,
    /// Set once, by the first good answer. Whoever comes while somebody asks waits for that answer and asks no second time.
    up: OnceCell<()>,
    /// The last answer that was none. Written only by the one attempt that asks.
    last: Mutex<Option<NotUp>>,
}

struct NotUp {
    at: Instant,
    why: String,
}

impl fmt::Debug for StartingHttpAgent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StartingHttpAgent").field("is_up", &self.up.initialized()).finish_non_exhaustive()
    }
}

impl StartingHttpAgent {
    /// Holds `backend` back until `health_path` at `client`'s provider answers.
    pub fn new(backend: Arc<dyn Backend>, client: Arc<ProviderClient>, health_path: &str) -> Self {
        let path: Arc<str> = Arc::from(health_path);
        Self::asking(
            backend,
            Box::new(move || {
                let (client, path) = (Arc::clone(&client), Arc::clone(&path));
                Box::pin(async move { probe_health(&client, &path).await })
            }),
        )
    }

    fn asking(backend: Arc<dyn Backend>, ask: Ask) -> Self {
        Self { backend, ask, up: OnceCell::new(), last: Mutex::new(None) }
    }

    async fn ask_again(&self) -> Result<(), AttemptFailure> {
        if let Some(why) = self.asked_a_moment_ago() {
            return Err(not_up(&why));
        }
        // Noted before it is asked: if this caller leaves meanwhile, the next one must not ask at once.
        self.note("it was asked a moment ago and has not answered yet");
        (self.ask)().await.map_err(|failure| {
            self.note(&failure.message);
            not_up(&failure.message)
        })
    }

    fn asked_a_moment_ago(&self) -> Option<String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|last| last.at.elapsed() < ASK_AGAIN_AFTER).map(|last| last.why.clone())
    }

    fn note(&self, why: &str) {
        let not_up = NotUp { at: Instant::now(), why: why.to_owned() };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(not_up);
    }
}

fn not_up(why: &str) -> AttemptFailure {
    AttemptFailure {
        retry_after: Some(ASK_AGAIN_AFTER),
        ..AttemptFailure::new(Ending::OwnRefusal, format!("the service is starting, its health path says no: {why}"))
    }
}

impl Backend for StartingHttpAgent {
    fn inner(&self) -> Option<&dyn Backend> {
        Some(&*self.backend)
    }

    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        if self.up.initialized() {
            return self.backend.attempt(request, progress);
        }
        progress.tally().prepares();
        Box::pin(async move {
            self.up.get_or_try_init(|| self.ask_again()).await?;
            self.backend.attempt(request, progress).await
        })
    }

    fn health(&self) -> Option<BoxFuture<'_, Result<(), AttemptFailure>>> {
        Some((self.ask)())
    }
}

#[cfg(test)]
mod tests;
