//! Ladders and the deferred queue as the configuration wants them: with a journal whole, without one the rung that puts calls off is left
//! out and that is said. Decides nothing of a call.

use std::sync::Arc;

use super::{exit::Stop, faults::Faults, project::Project, say::say, secrets::fetch};
use crate::{
    journal::journal::SqliteJournal,
    model::run::Cause,
    policy::ladder::Rung,
    runtime::{
        builder::RuntimeBuilder,
        deferred::{push::Push, store::DeferredStore},
        ports::{Clock, TokioClock},
    },
    settings::load::{Examined, Settings},
    transport::{
        secret::Secret,
        webhook::{Webhook, WebhookRoutes},
    },
    workflow::checked::Workflow,
};

/// Who is told of the ends of calls that were put off, if anybody is. Its secret is fetched here.
pub(super) fn webhook(project: &Project, settings: &Settings) -> Result<Option<Arc<Webhook>>, Stop> {
    let (Some(table), Some(secret)) = (&settings.deferred.webhook, secret(project, settings)?) else { return Ok(None) };
    let routes =
        WebhookRoutes { url: table.url.clone(), features: table.features.clone(), tenants: table.tenants.clone() };
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::since_unix_epoch());
    let webhook = Webhook::try_new(routes, secret, table.private_names, clock);
    let webhook = webhook.map_err(|error| Stop::Usage(format!("deferred.webhook: {error}")))?;
    Ok(Some(Arc::new(webhook)))
}

/// What such news are signed with, if anybody is told.
pub(super) fn secret(project: &Project, settings: &Settings) -> Result<Option<Secret>, Stop> {
    let Some(table) = &settings.deferred.webhook else { return Ok(None) };
    let secret = fetch(project, &table.secret).map_err(Stop::usage)?;
    Ok(Some(Secret::new(secret.expose())))
}

/// The same runtime with whole ladders and a queue in the journal.
pub(super) fn with_queue(
    builder: RuntimeBuilder,
    settings: &Settings,
    journal: &Arc<SqliteJournal>,
    webhook: Option<&Arc<Webhook>>,
) -> RuntimeBuilder {
    let store = Arc::clone(journal) as Arc<dyn DeferredStore>;
    let push = webhook.map(|webhook| Arc::clone(webhook) as Arc<dyn Push>);
    builder.ladders(settings.ladders.clone()).deferred(store, settings.deferred.settings.clone(), push)
}

/// Says that a rung is left out where there is no journal.
pub(super) fn say_what_is_skipped(settings: &Settings, workflow: &Workflow) {
    let by_step = workflow
        .steps()
        .iter()
        .any(|step| Cause::ALL.into_iter().any(|cause| step.on(cause).rung() == Some(Rung::Deferred)));
    if settings.ladders.any_defers() || by_step {
        say(
            "watertight: warning: the rung \"deferred\" is skipped: `run` keeps no journal, so nothing would make the call later",
        );
    }
}

/// A step that asks for a lighter target needs an agent that has one. `file` is the workflow's.
pub(super) fn check_steps(file: &str, workflow: &Workflow, examined: &Examined, faults: &mut Faults) {
    for (at, step) in workflow.steps().iter().enumerate() {
        let (id, agent) = (step.id(), step.agent());
        let ladders = &examined.settings().ladders.agents;
        let lighter = ladders.get(agent).map_or(0, |ladder| ladder.lighter.len());
        // What is wrong with its ladder is told already.
        if lighter > 0 || !examined.is_whole(&format!("agents.{agent}.ladder")) {
            continue;
        }
        for cause in Cause::ALL.into_iter().filter(|cause| step.on(*cause).rung() == Some(Rung::Lighter)) {
            let line = workflow.line_of(Some(at), &format!("on.{}", cause.as_str())).unwrap_or(1);
            let cause = cause.as_str();
            faults.tell(format_args!(
                "{file}:{line}: step.{id}.on.{cause} = \"lighter\": agent {agent} has no lighter target (agents.{agent}.ladder.lighter)"
            ));
        }
    }
}
