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
}
