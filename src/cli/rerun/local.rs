//! A rerun in the project's own journal, by this very process. A journal that a service holds is left alone.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::command::{Followed, Pair};
use crate::{
    cli::{
        args::{ProjectArgs, RerunArgs},
        assemble,
        exit::Stop,
        file_reach::FileGiver,
        project::{Project, Purpose},
        run_command::follow,
        say::say,
        storage::{self, file_settings, journal_settings},
    },
    journal::{files::store::FileStore, journal::SqliteJournal, query::TenantScope},
    model::run::RunRecord,
    runtime::{
        engine::Runtime,
        journal::{Journal, JournalError, RunAccepted},
        ports::TokioClock,
    },
    serve::{access::signature::Signer, answer::failure::Failure, runs::linked::prompts_of},
    settings::load::Settings,
};

/// Reruns.
pub(super) async fn rerun(args: &RerunArgs, prompt: Option<String>) -> Result<Pair, Stop> {
    let folder = args.folder.clone().unwrap_or_else(|| ".".into());
    let project = ProjectArgs { folder, config: args.config.clone(), workflow: None, set: args.set.clone() };
    let project = Project::read(&project)?;
    let (_, settings) = project.workflows_and_settings(Purpose::Run)?;
    for warning in &settings.warnings {
        say(&format!("watertight: warning: {warning}"));
    }
    let journal = open(&project, &settings).await?;
    let pair = within(&project, &settings, &journal, args, prompt).await;
    journal.close().await;
    pair
}

async fn open(project: &Project, settings: &Settings) -> Result<Arc<SqliteJournal>, Stop> {
    let wanted = journal_settings(settings, &project.folder);
    let (held, path) = (wanted.path.clone(), wanted.path.display().to_string());
    if !wanted.path.exists() {
        return Err(Stop::Usage(format!(
            "{path}: there is no journal here: only runs of `serve` are kept; name the project that was served with --folder, or a service that runs with --url"
        )));
    }
    let opening = tokio::task::spawn_blocking(move || SqliteJournal::open(wanted));
    opening.await.map_err(Stop::usage)?.map_err(|error| match error {
        JournalError::Held(_) => {
            // The address that is configured may not be the one that it serves at.
            let at = SqliteJournal::holder_address(&held).map(|address| format!(" {address}")).unwrap_or_default();
            Stop::Usage(format!("{error}: a service is running on it; ask that one, with --url{at}"))
        }
        error => Stop::Usage(storage::unopened(&path, &error)),
    })
}

async fn within(
    project: &Project,
    settings: &Settings,
    journal: &Arc<SqliteJournal>,
    args: &RerunArgs,
    prompt: Option<String>,
) -> Result<Pair, Stop> {
    let (mut accepted, old) = stored(journal, &args.run).await?;
    settings.run.places.bind(&accepted.workflow, &mut accepted.input);
    // Its runs may name files. A URL leads to where the service would listen, so agents elsewhere find them only while one is there.
    let files = Arc::new(FileStore::new(Arc::clone(journal), file_settings(settings)));
    let signer = Signer::of_chance().map_err(Stop::usage)?;
    let giver = FileGiver { settings, files, signer, address: settings.serve.listen };
    let around = |agent: &_, backend| giver.around(agent, backend);
    let builder =
        assemble::builder(project, settings, Some(journal.usage_log(settings.spending.currency.as_deref())), &around)?;
    let mut builder =
        builder.clock(Arc::new(TokioClock::since_unix_epoch())).journal(Arc::clone(journal) as Arc<dyn Journal>);
    if let Some(captures) = storage::captures(settings, journal)? {
        builder = builder.captures(captures);
    }
    let runtime = builder.start().await.map_err(Stop::usage)?;
    let wrong = |failure: Failure| Stop::Usage(failure.envelope.message.clone());
    let prompts = prompts_of(&runtime, &accepted.workflow, &args.from, prompt).await.map_err(wrong);
    let result = match prompts {
        Ok(prompts) => start(&runtime, &accepted, &old, args, prompts).await,
        Err(stop) => Err(stop),
    };
    runtime.stop(Duration::ZERO).await;
    let (new, followed) = result?;
    Ok(Pair { old, new, followed })
}

async fn stored(journal: &SqliteJournal, run_id: &str) -> Result<(RunAccepted, RunRecord), Stop> {
    let failed = |error: JournalError| Stop::Usage(error.to_string());
    let head = journal.head(TenantScope::All, run_id).await.map_err(failed)?;
    // Only runs that are over have a record.
    if let Some(status) = head.as_ref().map(|head| head.summary.status).filter(|status| !status.is_terminal()) {
        return Err(Stop::Usage(format!(
            "run {run_id} is not over ({}): `watertight serve` goes on with it; wait there for its end (GET /v1/runs/{run_id}/result), or cancel it (POST /v1/runs/{run_id}/cancel), then rerun it",
            status.as_str()
        )));
    }
    let record = match &head {
        Some(_) => journal.record(run_id).await.map_err(failed)?,
        None => None,
    };
    let accepted = journal.accepted(run_id).await.map_err(failed)?;
    let (Some(record), Some(accepted)) = (record, accepted) else {
        return Err(Stop::Usage(format!(
            "there is no run {run_id:?} in this journal; GET /v1/runs of the service lists them"
        )));
    };
    Ok((accepted, record))
}

async fn start(
    runtime: &Runtime,
    accepted: &RunAccepted,
    old: &RunRecord,
    args: &RerunArgs,
    prompts: BTreeMap<String, String>,
) -> Result<(RunRecord, Followed), Stop> {
    let owner = accepted.owner.clone();
    let started = runtime.rerun(accepted, old, &args.from, prompts, owner, None).await;
    let started = started.map_err(|envelope| Stop::Usage(envelope.message))?;
    let Some(run) = started.handle else { return Err(Stop::Usage("the new run is not here".to_owned())) };
    say(&format!("watertight: run {} goes on from step {} of {}", run.id(), args.from, old.run_id));
    match follow(&run, args.quiet || args.json, tokio::signal::ctrl_c()).await {
        Some(record) => Ok(((*record).clone(), Followed::ToItsEnd)),
        None => Ok((run.record(), Followed::Interrupted)),
    }
}
