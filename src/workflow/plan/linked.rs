//! What a run that goes on from another one does again, and what it takes over: a repair does again what was degraded or did not
//! succeed, a rerun everything from one step on. Whatever depends on what is done again is done again too, and a loop as a whole.

use std::collections::{BTreeSet, HashSet};

use crate::{
    model::{
        ended::{Ended, EndedScope},
        run::{RunRecord, RunStatus, StepRecord, StepStatus},
    },
    policy::ladder::cause_of,
    workflow::{checked::Workflow, definition::OnCause},
};

/// What one of these was done for is an end like any other; of `best_so_far` and `partial` the loop or list tells anew what comes of it.
const STAND_INS: [OnCause; 3] = [OnCause::Default, OnCause::Skip, OnCause::Notice];

/// What becomes of a result that something else stood in for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoodIn {
    /// It is what a repair is for.
    DoneAgain,
    /// It is a result like any other.
    TakenOver,
}

/// What a run takes over of another one.
#[derive(Debug, Clone, PartialEq)]
pub struct Linked {
    /// Steps that are done again.
    pub again: BTreeSet<String>,
    /// Results that are taken over.
    pub seeds: Vec<Ended>,
}

/// What a repair of this run comes to; `None` if nothing of it needs one.
pub fn repaired(workflow: &Workflow, record: &RunRecord) -> Option<Linked> {
    let bad: HashSet<usize> = (0..workflow.steps.len()).filter(|step| needs_repair(workflow, *step, record)).collect();
    (!bad.is_empty()).then(|| linked(workflow, record, &bad, StoodIn::DoneAgain))
}

/// What a rerun from this step on comes to; `None` if there is no such step.
pub fn rerun_from(workflow: &Workflow, record: &RunRecord, step: &str) -> Option<Linked> {
    let step = workflow.steps.iter().position(|known| known.id() == step)?;
    let mut linked = linked(workflow, record, &HashSet::from([step]), StoodIn::TakenOver);
    // Unlike in a repair, no item of that step is kept.
    let id = workflow.steps[step].id();
    linked.seeds.retain(|seed| seed.record.id != id);
    Some(linked)
}

fn linked(workflow: &Workflow, run: &RunRecord, from: &HashSet<usize>, stood_in: StoodIn) -> Linked {
    let again = with_dependents(workflow, from);
    let inputs_hold = |step: usize| !workflow.steps[step].needs.iter().any(|needed| again.contains(needed));
    let takes_over = |record: &&StepRecord| {
        let Some(step) = workflow.steps.iter().position(|step| step.id() == record.id) else { return false };
        let is_mapped = workflow.steps[step].map.is_some();
        let is_item = is_mapped == record.index.is_some();
        // What a `when` leaves out is left out again; an item of a list is told so, because those after it wait for it.
        let was_left_out = record.status == StepStatus::Skipped && record.degraded.is_none() && is_mapped;
        let is_good = record.status == StepStatus::Succeeded || was_left_out;
        // What a rerun leaves alone stays as it ended, paid or not: also what was done instead, and items that a list did without.
        let stays = stood_in == StoodIn::TakenOver
            && !again.contains(&step)
            && (has_stand_in(record) || (is_mapped && has_ended(record) && is_settled(workflow, step, run)));
        // A list that is repaired keeps the items that succeeded, if it is the same list.
        let is_kept = is_mapped && workflow.steps[step].in_loop.is_none() && inputs_hold(step);
        is_item && (stays || (is_good && (!again.contains(&step) || is_kept)))
    };
    let seeds = run.steps.iter().filter(takes_over).map(seed).collect();
    Linked { again: again.iter().map(|step| workflow.steps[*step].id().to_owned()).collect(), seeds }
}

/// Whether something stood in for its output.
fn has_stand_in(record: &StepRecord) -> bool {
    record.degraded.as_ref().is_some_and(|degraded| STAND_INS.iter().any(|action| action.as_str() == degraded.action))
}

/// Whether it came to an end of its own.
fn has_ended(record: &StepRecord) -> bool {
    matches!(record.status, StepStatus::Succeeded | StepStatus::Degraded | StepStatus::Skipped | StepStatus::Failed)
}

/// Whether this step, whatever became of its items, failed no run.
fn is_settled(workflow: &Workflow, step: usize, run: &RunRecord) -> bool {
    let is_well = matches!(run.status, RunStatus::Completed | RunStatus::CompletedDegraded);
    is_well || !needs_repair(workflow, step, run)
}

fn needs_repair(workflow: &Workflow, step: usize, record: &RunRecord) -> bool {
    let definition = &workflow.steps[step];
    if record.degraded.iter().any(|degraded| degraded.step == definition.id()) {
        return true;
    }
    if matches!(record.status, RunStatus::Completed | RunStatus::CompletedDegraded) {
        return false;
    }
    let own = || record.steps.iter().filter(|own| own.id == definition.id());
    let succeeded = own().filter(|own| own.status == StepStatus::Succeeded).count();
    if let Some(goal) = definition.map.as_ref().and_then(|map| map.join.goal()) {
        return succeeded < goal as usize;
    }
    own().any(|own| !matches!(own.status, StepStatus::Succeeded | StepStatus::Degraded | StepStatus::Skipped))
}

/// The steps with all that depend on them, directly or not; a loop goes as a whole.
fn with_dependents(workflow: &Workflow, from: &HashSet<usize>) -> HashSet<usize> {
    let mut found = from.clone();
    loop {
        let loops: HashSet<usize> = found.iter().filter_map(|step| workflow.steps[*step].in_loop).collect();
        let depends = |step: &usize| {
            let definition = &workflow.steps[*step];
            definition.needs.iter().any(|needed| found.contains(needed))
                || definition.in_loop.is_some_and(|own| loops.contains(&own))
        };
        let more: Vec<usize> = (0..workflow.steps.len()).filter(|step| !found.contains(step)).filter(depends).collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// A result as it is taken over: its tokens were counted where they were used.
fn seed(record: &StepRecord) -> Ended {
    let at_ms = record.started_ms.unwrap_or_default().saturating_add(record.duration_ms.unwrap_or_default());
    let code = record.error.as_ref().map(|error| cause_of(error.error_code));
    let cause = record.degraded.as_ref().map(|degraded| degraded.cause).or(code);
    Ended { scope: EndedScope::Item, record: record.clone(), cause, usage: None, at_ms }
}
