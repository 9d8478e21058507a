//! How the plan's events are written: one shape for all that concern a step.

use serde_json::{Map, Value as Json};

use super::{
    action::{Action, NewEvent},
    run_plan::RunPlan,
};
use crate::model::{clock::Timestamp, event::EventType};

impl RunPlan {
    pub(super) fn emit(&mut self, kind: EventType, step: Option<usize>, data: Json) {
        let step = step.map(|step| self.workflow.steps[step].id.to_string());
        self.act(Action::Emit(NewEvent { kind, step, data }));
    }

    /// An event of a step: `index` and `iteration` stand beside its own facts.
    pub(super) fn emit_step(&mut self, kind: EventType, step: usize, index: Option<u32>, facts: Json) {
        let facts = if let Json::Object(facts) = facts { facts } else { Map::new() };
        let mut data = Map::with_capacity(2 + facts.len());
        data.insert("index".to_owned(), Json::from(index));
        data.insert("iteration".to_owned(), Json::from(self.steps[step].iteration()));
        data.extend(facts.into_iter().filter(|(_, fact)| !fact.is_null()));
        self.emit(kind, Some(step), Json::Object(data));
    }

    pub(super) fn unix_ms(&self, at: Timestamp) -> u64 {
        self.unix_zero_ms.saturating_add(at.millis())
    }
}
