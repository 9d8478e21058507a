//! x
use super::{core::Shared, run_table::RunTable};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
pub(crate) enum OrchestratorMessage {
    GateChanged,
    SlotFreed,
    Crash,
}
pub(crate) struct OrchestratorActor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runs: Arc<RunTable>,
}
impl Actor for OrchestratorActor {
    type Msg = OrchestratorMessage;
    type State = ();
    type Arguments = ();
    async fn pre_start(&self, myself: ActorRef<Self::Msg>, (): ()) -> Result<(), ActorProcessingErr> {
        self.shared.orchestrator.set(myself);
        Ok(())
    }
}
