//! Test help: one attempt at a backend, with everything it shows of itself.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::sync::mpsc;

use crate::{
    model::{
        name::Name,
        reply::{AttemptFailure, Reply},
    },
    runtime::ports::{AttemptRequest, AttemptTimeouts, Backend, Hold, Progress, TokioClock},
};

/// What an attempt showed and how it ended.
#[derive(Debug)]
pub(crate) struct Attempted {
    pub(crate) ended: Result<Reply, AttemptFailure>,
    pub(crate) pieces: Vec<String>,
    pub(crate) committed: bool,
}

impl Attempted {
    pub(crate) fn failure(&self) -> &AttemptFailure {
        self.ended.as_ref().unwrap_err()
    }

    pub(crate) fn reply(&self) -> &Reply {
        self.ended.as_ref().unwrap()
    }
}

/// A request with this input and no timeouts.
pub(crate) fn request(input: Value) -> AttemptRequest {
    AttemptRequest {
        agent: Name::try_new("draft").unwrap(),
        input: Arc::new(input),
        call_id: "call-1".to_owned(),
        run_id: Some("run-1".to_owned()),
        step: None,
        attempt: 2,
        idempotency_key: "run-1/draft/0/0".to_owned(),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        deadline: Duration::from_millis(12_500),
        tenant: Some("acme".to_owned()),
        feature: Some("chat".to_owned()),
        priority: Some("batch".to_owned()),
        prompt: None,
        timeouts: AttemptTimeouts { first_token: None, stall: None },
        hold: Hold::of(Arc::new(())),
        relay: None,
        capture: None,
    }
}

/// One attempt that somebody watches.
pub(crate) async fn watched(backend: &dyn Backend, request: &AttemptRequest) -> Attempted {
    let (deltas, mut seen) = mpsc::channel(10_000);
    let progress = Progress::start(Arc::new(TokioClock::start()), Some(deltas));
    let ended = backend.attempt(request, &progress).await;
    let committed = progress.first_content().is_some();
    drop(progress);
    let mut pieces = Vec::new();
    while let Some(piece) = seen.recv().await {
        pieces.push(piece);
    }
    Attempted { ended, pieces, committed }
}

/// One attempt whose whole answer is all that is wanted.
pub(crate) async fn unwatched(backend: &dyn Backend, request: &AttemptRequest) -> Attempted {
    let progress = Progress::start(Arc::new(TokioClock::start()), None);
    let ended = backend.attempt(request, &progress).await;
    Attempted { ended, pieces: Vec::new(), committed: progress.first_content().is_some() }
}
