//! `watertight serve`: puts the service together from a project and serves until it is told to stop.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use utoipa_axum::router::OpenApiRouter;

use super::{
    args::ServeArgs,
    assemble::{self, FileAccess},
    call_log_file::CallLogFile,
    exit::Stop,
    project::Project,
    say::say,
    storage::{self, file_settings, journal_settings},
    told_to_stop::told_to_stop,
};
use crate::{
    journal::{files::store::FileStore, journal::SqliteJournal},
    model::call_log::CallRecord,
    runtime::{journal::Journal, ports::CallLog, unix_clock::UnixClock},
    serve::{
        access::{keys::KeyRing, signature::Signer},
        agents::acts::restore_modes,
        answer::failure::Failure,
        caps::Caps,
        gateway::door,
        health::BEAT,
        http::server::Server,
        metrics,
        router::router,
        state::{AppState, Door, Ending, Running, Service},
    },
    settings::{load::Settings, serve::OpenToNetwork},
};

/// Streams are given so long to say their last line before connections are ended.
const LAST_LINES: Duration = Duration::from_millis(100);

/// Serves.
pub(super) async fn serve(args: ServeArgs) -> Result<(), Stop> {
    let project = Project::read(&args.project)?;
    let (workflows, mut settings) = project.workflows_and_settings()?;
    if let Some(listen) = args.listen {
        settings.serve.listen = listen;
    }
    for warning in &settings.warnings {
        say(&format!("watertight: warning: {warning}"));
    }
    let keys = KeyRing::of(&settings.keys, &|name| project.environment(name)).map_err(Stop::usage)?;
    check_reach(&settings, &keys)?;
    let log = args.call_log.as_deref().map(CallLogFile::open).transpose()?;
    let listen = settings.serve.listen;
    let cannot = |error: std::io::Error| Stop::Usage(format!("cannot listen on {listen}: {error}"));
    let listener = tokio::net::TcpListener::bind(listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let page = metrics::install().map_err(Stop::usage)?;
    let state = AppState::new(Service {
        caps: Caps::new(&settings.serve),
        settings: settings.serve.clone(),
        keys,
        language: settings.run.language,
        limits: settings.limits,
        run_deadline: settings.run.deadline,
        workflows: workflows.into_iter().map(|workflow| (workflow.name().to_string(), Arc::new(workflow))).collect(),
        door: Door::default(),
        signer: signer_of(&project.folder, &settings)?,
        ending: Ending::default(),
        metrics: Some(page),
    });
    let gateway = door::routes(assemble::gateway(&project, &settings)?);
    let running = start(&project, &settings, &state.signer, address, log.as_ref()).await?;
    state.door.open(Arc::new(running));
    // Heard from here on: whoever reads that it listens may stop it at once.
    let mut stop = Box::pin(told_to_stop());
    let is_stopped = stop.as_mut().now_or_never().is_some();
    if !is_stopped {
        announce(&project.folder, address, &state, &settings);
        serve_until(listener, &state, gateway, stop).await;
    }
    end(&state).await;
    if let Some(log) = log {
        log.close()?;
    }
    Ok(())
}

/// A service that other machines reach needs keys, or words that say that it shall have none.
pub(super) fn check_reach(settings: &Settings, keys: &KeyRing) -> Result<(), Stop> {
    let listen = settings.serve.listen;
    if listen.ip().is_loopback() || !keys.is_empty() || settings.serve.open_to_network == OpenToNetwork::WithoutKeys {
        return Ok(());
    }
    Err(Stop::Usage(format!(
        "serve.listen = \"{listen}\" can be reached from other machines, and there are no keys: make one with `watertight key new NAME`, or set serve.open_to_network = \"without keys\" if that is what you want"
    )))
}

/// Beside the journal is what tokens and URLs are signed with: they hold over a restart, and on both sides of a hand-over.
const SIGNING_KEY: &str = "signing.key";

fn signer_of(folder: &Path, settings: &Settings) -> Result<Signer, Stop> {
    let path = journal_settings(settings, folder).path.with_file_name(SIGNING_KEY);
    let unusable = |error: std::io::Error| Stop::Usage(format!("{}: {error}", path.display()));
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(unusable)?;
    }
    Signer::kept_at(&path).map_err(unusable)
}

/// Takes hold of the journal, starts the runtime and goes on with what was not over.
async fn start(
    project: &Project,
    settings: &Settings,
    signer: &Signer,
    address: SocketAddr,
    log: Option<&Arc<CallLogFile>>,
) -> Result<Running, Stop> {
    let opened = journal_settings(settings, &project.folder);
    let shown = opened.path.display().to_string();
    let wait = settings.serve.handover_wait;
    let opening = tokio::task::spawn_blocking(move || SqliteJournal::open_after(opened, wait));
    let journal = opening.await.map_err(Stop::usage)?;
    let journal = journal.map_err(|error| Stop::Usage(format!("{shown}: {error}")))?;
    let logs = CallLogs { ledger: journal.usage_log(), file: log.map(Arc::clone) };
    let files = Arc::new(FileStore::new(Arc::clone(&journal), file_settings(settings)));
    let access = FileAccess {
        store: Arc::clone(&files),
        signer: signer.clone(),
        public_url: settings.serve.public_url.clone().unwrap_or_else(|| format!("http://{address}")),
    };
    let builder = assemble::builder(project, settings, Some(Arc::new(logs)), Some(access))?;
    let mut builder = builder.clock(Arc::new(UnixClock::start())).journal(Arc::clone(&journal) as Arc<dyn Journal>);
    if let Some(captures) = storage::captures(settings, &journal)? {
        builder = builder.captures(captures);
    }
    metrics::begin_with_zero(settings.agents.iter().map(|agent| &agent.settings.name));
    let runtime = Arc::new(builder.start().await.map_err(Stop::usage)?);
    let running = Running { runtime, journal, files };
    let wrong = |failure: Failure| Stop::Usage(failure.envelope.message.clone());
    restore_modes(&running).await.map_err(wrong)?;
    let stored = running.journal.take_over().await.map_err(Stop::usage)?;
    let resumed = running.runtime.resume(stored).len();
    if resumed > 0 {
        say(&format!("watertight: {resumed} runs go on where they were"));
    }
    Ok(running)
}

/// The usage ledger, and a file if one is wanted.
struct CallLogs {
    ledger: Arc<dyn CallLog>,
    file: Option<Arc<CallLogFile>>,
}

impl CallLog for CallLogs {
    fn finished(&self, record: CallRecord) {
        if let Some(file) = &self.file {
            file.finished(record.clone());
        }
        self.ledger.finished(record);
    }
}

fn announce(folder: &Path, address: SocketAddr, state: &AppState, settings: &Settings) {
    let names = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let workflows = names(state.workflows.keys().map(String::as_str).collect());
    let agents = names(settings.agents.iter().map(|agent| agent.settings.name.as_str()).collect());
    let keys = if state.keys.is_empty() { "none needed".to_owned() } else { state.keys.len().to_string() };
    say(&format!("watertight serves {} on http://{address}", folder.display()));
    say(&format!("  workflows: {workflows}"));
    say(&format!("  agents: {agents}"));
    say(&format!("  keys: {keys}"));
    say(&format!("  journal: {}", folder.join(&settings.journal.path).display()));
}

/// Serves until it is told to stop; then nothing new comes in.
async fn serve_until(
    listener: tokio::net::TcpListener,
    state: &AppState,
    plugged: OpenApiRouter<AppState>,
    stop: impl Future<Output = ()>,
) {
    let server = Server::default();
    let routes = router(state.clone(), plugged);
    tokio::select! {
        () = server.listen(&listener, routes, &state.settings) => {}
        () = keep_up(state) => {}
        () = stop => {}
    }
    drop(listener);
    say("watertight: stopping");
    // No new runs or calls; those under way have the grace, and streams say their last line at once.
    state.ending.draining.cancel();
    state.ending.closing_streams.cancel();
    tokio::time::sleep(LAST_LINES).await;
    let grace = state.settings.grace;
    let drain = async {
        if let Some(running) = state.door.now() {
            running.runtime.drain(grace).await;
        }
    };
    let ending = async { tokio::join!(server.end(grace), drain) };
    // Health goes on while the node stops.
    tokio::select! {
        _ = ending => {}
        () = keep_up(state) => {}
    }
}

/// What goes on beside the requests.
async fn keep_up(state: &AppState) {
    let mut beats: u64 = 0;
    loop {
        if let Some(running) = state.door.now() {
            running.runtime.beat();
        }
        if beats.is_multiple_of(metrics::UPKEEP.as_secs() / BEAT.as_secs())
            && let Some(page) = &state.metrics
        {
            page.0.run_upkeep();
        }
        beats += 1;
        tokio::time::sleep(BEAT).await;
    }
}

/// Writes down what is left and lets go of the journal.
async fn end(state: &AppState) {
    if let Some(running) = state.door.shut() {
        running.runtime.drain(Duration::ZERO).await;
        running.journal.close().await;
    }
}
