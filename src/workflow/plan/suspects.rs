//! Calls with which the process died several times: each waits until it is its turn to be tried, and is begun then.

use super::{
    action::{Action, Gates, StepKey},
    run_plan::RunPlan,
    state::ItemState,
};
use crate::model::clock::Timestamp;

impl RunPlan {
    /// Begins a call that is held back as a suspect. Any other is left alone.
    pub fn try_alone(&mut self, key: StepKey, now: Timestamp, gates: &dyn Gates) -> Vec<Action> {
        if self.is_suspect(key) {
            let place = key.index.map_or(0, |index| index as usize);
            self.set_state(key.step, place, ItemState::Waiting);
            self.steps[key.step].round_mut().items[place].is_tried = true;
            self.start_item(key.step, place, now);
            self.advance(now, gates);
        }
        self.take_actions()
    }

    /// Whether this call waits to be tried or is under way: its trial is not over.
    pub fn is_on_trial(&self, key: StepKey) -> bool {
        let is_called = matches!(self.item_state(key), Some(ItemState::Calling { .. } | ItemState::InLine { .. }));
        self.is_live() && (is_called || self.is_suspect(key))
    }

    fn is_suspect(&self, key: StepKey) -> bool {
        self.is_live() && matches!(self.item_state(key), Some(ItemState::Suspect))
    }
}
