//! Room for what files bring along into inputs of agents: it is counted before any of it is read, for one call and for all at once.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes are counted in blocks of this size.
const BLOCK_BYTES: u64 = 1_024;

/// What one call takes of it, until it is dropped.
#[derive(Debug)]
pub struct WayPlace {
    #[allow(dead_code, reason = "held for its drop")]
    permit: OwnedSemaphorePermit,
}

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoWayRoom {
    /// One call has no more than this, in bytes.
    Never(u64),
    /// Others have it.
    Now,
}

/// The room.
#[derive(Debug)]
pub(super) struct WayRoom {
    blocks: Arc<Semaphore>,
    call_bytes_max: u64,
}

impl WayRoom {
    /// Room for `calls_bytes_max` in all; one call has at most `call_bytes_max` of it.
    pub(super) fn of(call_bytes_max: u64, calls_bytes_max: u64) -> Self {
        let call_bytes_max = call_bytes_max.min(calls_bytes_max);
        let blocks = usize::try_from(blocks(calls_bytes_max)).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { blocks: Arc::new(Semaphore::new(blocks)), call_bytes_max }
    }

    /// Room for `bytes`, in turn; given up after `patience`.
    pub(super) async fn take(&self, bytes: u64, patience: Duration) -> Result<WayPlace, NoWayRoom> {
        if bytes > self.call_bytes_max {
            return Err(NoWayRoom::Never(self.call_bytes_max));
        }
        let many = u32::try_from(blocks(bytes)).map_err(|_| NoWayRoom::Never(self.call_bytes_max))?;
        let taking = Arc::clone(&self.blocks).acquire_many_owned(many);
        match tokio::time::timeout(patience, taking).await {
            Ok(Ok(permit)) => Ok(WayPlace { permit }),
            _ => Err(NoWayRoom::Now),
        }
    }
}

fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(3);

    #[tokio::test(start_paused = true)]
    async fn one_call_and_all_calls_are_bounded() {
        let room = WayRoom::of(8 * BLOCK_BYTES, 10 * BLOCK_BYTES);
        assert_eq!(room.take(8 * BLOCK_BYTES + 1, PATIENCE).await.unwrap_err(), NoWayRoom::Never(8 * BLOCK_BYTES));
        let first = room.take(8 * BLOCK_BYTES, PATIENCE).await.unwrap();
        let second = room.take(BLOCK_BYTES + 1, PATIENCE).await.unwrap();
        let begun = tokio::time::Instant::now();
        assert_eq!(room.take(1, PATIENCE).await.unwrap_err(), NoWayRoom::Now);
        assert_eq!(begun.elapsed(), PATIENCE);
        let freed = async {
            tokio::time::sleep(PATIENCE / 3).await;
            drop(first);
        };
        let (third, ()) = tokio::join!(room.take(8 * BLOCK_BYTES, PATIENCE), freed);
        drop((second, third.unwrap()));
        let whole = WayRoom::of(u64::MAX, 10 * BLOCK_BYTES);
        assert!(whole.take(10 * BLOCK_BYTES, PATIENCE).await.is_ok(), "a call's part is no more than the whole");
        assert_eq!(whole.take(11 * BLOCK_BYTES, PATIENCE).await.unwrap_err(), NoWayRoom::Never(10 * BLOCK_BYTES));
    }
}
