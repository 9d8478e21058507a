//! The twins of the bundled agents as a backend: runs a computation on a thread that may block and hands its answer over.
//! Never lets go of the call's slots before that thread has ended, and never computes on a worker thread.

use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{draft, meta, photos, review, style};
use crate::{
    model::{
        facts::Ending,
        reply::{AttemptFailure, Reply},
    },
    runtime::ports::{Asked, AttemptRequest, Backend, BoxFuture, Progress, TokenEstimate},
};

/// The names of all twins, by name.
pub const NAMES: [&str; 5] = ["draft", "meta", "photos", "review", "style"];

/// A computation over an agent's input. Deterministic but for the files that the input names; stops early once the token is
/// cancelled, where it could take long.
type Compute = fn(&Value, &CancellationToken) -> Result<Value, AttemptFailure>;

/// Does an agent's work inside this process, without a model.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddedBackend {
    compute: Compute,
}

/// The twin of that name.
pub fn by_name(name: &str) -> Option<EmbeddedBackend> {
    let compute: Compute = match name {
        "draft" => |input, _| draft::compute(input),
        "meta" => |input, _| meta::compute(input),
        "photos" => photos::compute,
        "review" => |input, _| review::compute(input),
        "style" => |input, _| style::compute(input),
        _ => return None,
    };
    Some(EmbeddedBackend { compute })
}

impl EmbeddedBackend {
    /// Computes on the calling thread: for programs without a runtime and for tests.
    pub fn compute(&self, input: &Value) -> Result<Value, AttemptFailure> {
        (self.compute)(input, &CancellationToken::new())
    }
}

impl Backend for EmbeddedBackend {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        _progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        let compute = self.compute;
        let input = Arc::clone(&request.input);
        let hold = request.hold.clone();
        let left = CancellationToken::new();
        let asked = left.clone();
        Box::pin(async move {
            // Dropped with this future: a caller who leaves stops the computation at its next look.
            let _stop_when_dropped = left.drop_guard();
            let work = tokio::task::spawn_blocking(move || {
                let answer = compute(&input, &asked);
                drop(hold);
                answer
            });
            match work.await {
                Ok(answer) => answer.map(Reply::of),
                // A panic is the attempt's own: the runtime ends this call with it and counts it in the restart ledger.
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => {
                        Err(AttemptFailure::new(Ending::Internal, "the runtime is stopping and did not start the work"))
                    }
                },
            }
        })
    }

    fn estimate(&self, _: &Asked, _: Option<&str>) -> Option<TokenEstimate> {
        Some(TokenEstimate::NONE)
    }
}
