//! Work whose cost grows with a value of a call: small ones are done where they stand, large ones on a thread that may block, a few at once,
//! so that health, queries and everybody's small calls go on beside them. Knows nothing of what the work is.

use tokio::{sync::Semaphore, task::spawn_blocking};

use crate::model::{facts::Ending, reply::AttemptFailure};

/// What costs as much as reading or writing so many bytes is done at once.
pub const INLINE_BYTES_MAX: usize = 256 * 1024;
/// So many large pieces of work are done at once; the others wait, since each is short.
const AT_ONCE_MAX: usize = 4;

/// One for the process, as its threads and cores are.
static PLACES: Semaphore = Semaphore::const_new(AT_ONCE_MAX);

/// Does `act`, which costs as much as reading or writing `bytes`. Fails as `act` does; work that was lost with the process's threads, or
/// that broke, is a fault of ours.
pub async fn work<T: Send + 'static>(
    bytes: usize,
    act: impl FnOnce() -> Result<T, AttemptFailure> + Send + 'static,
) -> Result<T, AttemptFailure> {
    if bytes <= INLINE_BYTES_MAX {
        return act();
    }
    let lost =
        |why: &dyn std::fmt::Display| AttemptFailure::new(Ending::Internal, format!("work on a large value: {why}"));
    let place = PLACES.acquire().await.map_err(|closed| lost(&closed))?;
    let done = spawn_blocking(move || {
        let _held = place;
        act()
    });
    done.await.map_err(|broken| lost(&broken))?
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    #[tokio::test]
    async fn large_work_leaves_the_thread_to_others() {
        let here = thread::current().id();
        let on = |bytes| work(bytes, move || Ok(thread::current().id()));
        assert_eq!(on(INLINE_BYTES_MAX).await, Ok(here));
        assert_ne!(on(INLINE_BYTES_MAX + 1).await, Ok(here));
        // It ends only by what this one thread does meanwhile.
        let (tell, told) = mpsc::channel();
        let waits = work(INLINE_BYTES_MAX + 1, move || Ok(told.recv_timeout(Duration::from_secs(60)).is_ok()));
        let (heard, _) = tokio::join!(waits, async move { tell.send(()) });
        assert_eq!(heard, Ok(true));
    }

    #[tokio::test]
    async fn failures_and_faults_are_told() {
        let failure = || AttemptFailure::new(Ending::BadReply, "no JSON".to_owned());
        assert_eq!(work::<()>(INLINE_BYTES_MAX + 1, move || Err(failure())).await, Err(failure()));
        let broken = work::<()>(INLINE_BYTES_MAX + 1, || panic!("a fault of the test's")).await;
        assert_eq!(broken.map_err(|failure| failure.ending), Err(Ending::Internal));
    }
}
