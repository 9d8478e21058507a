//! Work whose cost grows with a body: small ones are done where they came, large ones on a thread that may block, a few at once, so that
//! health, queries and everybody's small requests go on beside them. Knows nothing of what the work is.

use std::future::Future;

use futures_util::FutureExt as _;

use super::failure::Failure;
pub use crate::runtime::large_work::INLINE_BYTES_MAX;
use crate::serve::state::AppState;

/// Does `act`, which costs as much as reading `bytes`.
pub async fn work<T: Send + 'static>(
    state: &AppState,
    bytes: usize,
    act: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    if bytes <= INLINE_BYTES_MAX {
        return act();
    }
    let place = state.caps.large().await?;
    let done = tokio::task::spawn_blocking(move || {
        let _held = place;
        act()
    });
    done.await.map_err(Failure::internal)?
}

/// Waits for `act`, whose cost lies before its first wait.
pub async fn begin<F>(state: &AppState, bytes: usize, act: F) -> Result<F::Output, Failure>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    if bytes <= INLINE_BYTES_MAX {
        return Ok(act.await);
    }
    let begun = work(state, bytes, move || {
        let mut act = Box::pin(act);
        // Nobody is woken by this look; the next one, below, asks to be.
        let ended = (&mut act).now_or_never();
        Ok((ended, act))
    });
    match begun.await? {
        (Some(output), _) => Ok(output),
        (None, act) => Ok(act.await),
    }
}
