//! Whether supervisor and orchestrator turn: each is sent a beat now and then, and notes when it got to it. A health check asks nobody.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::{engine::Runtime, orchestrator::OrchestratorMessage, supervisor::SupervisorMessage};
use crate::model::clock::Timestamp;

/// When the two last turned, in milliseconds of the runtime's clock.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    supervisor: AtomicU64,
    orchestrator: AtomicU64,
}

impl Pulse {
    /// Who just started has turned: a clock may begin anywhere.
    pub(crate) fn begin(&self, now: Timestamp) {
        self.supervisor_turned(now);
        self.orchestrator_turned(now);
    }

    pub(crate) fn supervisor_turned(&self, now: Timestamp) {
        self.supervisor.store(now.millis(), Ordering::Relaxed);
    }

    pub(crate) fn orchestrator_turned(&self, now: Timestamp) {
        self.orchestrator.store(now.millis(), Ordering::Relaxed);
    }
}

/// How long ago the two showed that they turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastTurns {
    /// The supervisor.
    pub supervisor: Duration,
    /// The orchestrator.
    pub orchestrator: Duration,
}

impl Runtime {
    /// Sends both a beat. Never blocks.
    pub fn beat(&self) {
        self.shared.supervisor.cast(SupervisorMessage::Beat);
        self.shared.orchestrator.cast(OrchestratorMessage::Beat);
    }

    /// How long ago both got to a beat.
    pub fn last_turns(&self) -> LastTurns {
        let now = self.shared.now();
        let ago = |turned: &AtomicU64| now.since(Timestamp::from_millis(turned.load(Ordering::Relaxed)));
        LastTurns { supervisor: ago(&self.shared.pulse.supervisor), orchestrator: ago(&self.shared.pulse.orchestrator) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{engine::Part, ports::TokioClock};

    #[tokio::test(start_paused = true)]
    async fn whoever_turns_gets_to_its_beat() {
        let runtime = Runtime::builder().start().await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(runtime.last_turns().supervisor >= Duration::from_secs(60), "nobody sent a beat");
        runtime.beat();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let turns = runtime.last_turns();
        assert!(turns.supervisor < Duration::from_secs(1) && turns.orchestrator < Duration::from_secs(1), "{turns:?}");
    }

    /// Moments of today are large numbers: before the first beat, the start of each counts as its turn.
    #[tokio::test(start_paused = true)]
    async fn whoever_has_just_started_has_turned() {
        let clock = std::sync::Arc::new(TokioClock::since_unix_epoch());
        let runtime = Runtime::builder().clock(clock).start().await.unwrap();
        let turns = runtime.last_turns();
        assert!(turns.supervisor < Duration::from_secs(1) && turns.orchestrator < Duration::from_secs(1), "{turns:?}");
    }

    /// Each dies until its next start is some seconds away: its turns stop though it is beaten, the other's do not.
    #[tokio::test(start_paused = true)]
    async fn whoever_is_dead_does_not_turn() {
        for (part, dead) in [(Part::Supervisor, 0), (Part::Orchestrator, 1)] {
            let runtime = Runtime::builder().start().await.unwrap();
            let second = Duration::from_secs(1);
            let beaten = async |seconds: u32| {
                for _ in 0..seconds {
                    runtime.beat();
                    tokio::time::sleep(second).await;
                }
                let LastTurns { supervisor, orchestrator } = runtime.last_turns();
                [supervisor, orchestrator]
            };
            assert!(beaten(30).await.iter().all(|idle| *idle <= second));
            for _ in 0..21 {
                runtime.crash(part).unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // The waits between its deaths double: 1, 2, 4, 8, then 16 s.
            for wait in [1, 2, 4, 8] {
                tokio::time::sleep(second * wait + Duration::from_millis(20)).await;
                runtime.crash(part).unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let idle = beaten(11).await;
            assert!(idle[dead] > second * 10 && idle[1 - dead] <= second, "{part:?}: {idle:?}");
            assert!(beaten(10).await.iter().all(|idle| *idle <= second), "{part:?} is back");
        }
    }
}
