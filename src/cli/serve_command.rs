//! `watertight serve`: puts the service together from a project, takes over from a predecessor where there is one, and serves until it is
//! told to stop or a successor takes over. How it ends is in `serve_end`.

use std::{
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use tokio::sync::mpsc;

use super::{
    args::ServeArgs,
    assemble,
    call_log_file::CallLogFile,
    deferral,
    exit::Stop,
    file_reach::{FileGiver, reachable},
    project::{Project, Purpose},
    reloading::{self, Reasons, Reloading},
    say::say,
    serve_end::{Leaving, end},
    storage::{self, file_settings, journal_settings, listener_settings},
    told_to_stop::{outlive_file_size_limit, told_to_stop},
};
use crate::{
    journal::{files::store::FileStore, journal::SqliteJournal, settings::JournalSettings},
    model::call_log::CallRecord,
    runtime::{
        journal::{Journal, JournalError},
        ports::{CallLog, TokioClock},
    },
    serve::{
        access::{keys::KeyRing, signature::Signer},
        agents::acts::restore_modes,
        answer::failure::Failure,
        caps::Caps,
        gateway::door::{self, GatewayDoor},
        handover::{
            offer::Handover,
            take::{Farewell, take_over},
        },
        health::BEAT,
        listener::server::{Listening, listen},
        metrics,
        operator::{
            config::{ConfigDesk, Order},
            dead_letters::restore_letters,
        },
        router::router,
        state::{AppState, Coming, Door, Ending, Running, Service},
    },
    settings::{load::Settings, serve::OpenToNetwork},
    transport::webhook::Webhook,
};

/// Beside the journal: where this process offers its listening socket to its successor.
const HANDOVER_SOCKET: &str = "handover.sock";
/// Beside the journal: what signatures are made with. They hold over restarts.
const SIGNING_KEY: &str = "signing.key";
/// How long a predecessor has to hand its socket over.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(5);
/// A journal that another process holds is tried again after so long, so that a stop is heard in between.
const LOCK_LOOK: Duration = Duration::from_millis(500);

/// Serves.
pub(super) async fn serve(args: ServeArgs) -> Result<(), Stop> {
    outlive_file_size_limit();
    let mut reasons = Reasons::watch(&args.project).await;
    let project = Project::read(&args.project)?;
    let (workflows, mut settings) = project.workflows_and_settings(Purpose::Serve)?;
    if let Some(listen) = args.listen {
        settings.serve.listen = listen;
    }
    warn(&settings);
    // Before what is in them is read, so that no change of theirs is missed.
    reasons.loaded_from(&project, &settings);
    let keys = KeyRing::of(&settings.keys, &|name| project.environment(name)).map_err(Stop::usage)?;
    check_reach(settings.serve.listen, settings.serve.open_to_network, &keys)?;
    let log = args.call_log.as_deref().map(CallLogFile::open).transpose()?;
    // What can be wrong with agents is found before a predecessor is asked to go.
    drop(assemble::builder(&project, &settings, None, &assemble::bare)?);
    let webhook = deferral::webhook(&project, &settings)?;
    let gateway = GatewayDoor::from(assemble::gateway(&project, &settings)?);
    let home = home_of(journal_settings(&settings, &project.folder)).await?;
    let key = home.join(SIGNING_KEY);
    let signer = Signer::kept_at(&key).map_err(|error| Stop::Usage(format!("{}: {error}", key.display())))?;
    let page = metrics::install().map_err(Stop::usage)?;
    let (desk, orders) = ConfigDesk::new(reloading::in_force(&settings, &workflows));
    let state = AppState::new(Service {
        caps: Caps::new(&settings.serve),
        settings: settings.serve.clone(),
        keys,
        limits: settings.limits,
        language: settings.run.language,
        run_deadline: settings.run.deadline,
        places: settings.run.places,
        workflows: workflows.into_iter().map(|workflow| (workflow.name().to_string(), Arc::new(workflow))).collect(),
        door: Door::default(),
        signer,
        ending: Ending::default(),
        config: desk,
        metrics: Some(page),
    });
    let entrance = Entrance::find(&home, settings.serve.listen).await?;
    let (address, routes) = (entrance.address, router(state.clone(), door::routes(gateway.clone())));
    let listening = listen(entrance.listener, routes, listener_settings(&settings.serve, settings.run.language))
        .map_err(Stop::usage)?;
    let starting = Starting {
        project: &project,
        settings: &settings,
        log: log.as_ref(),
        state: &state,
        address,
        webhook: webhook.as_ref(),
    };
    let (listen, state, layers) = (args.listen, &state, project.layers());
    let reloading =
        Reloading { args: &args.project, listen, state, gateway: &gateway, address, layers, webhook: webhook.as_ref() };
    serve_until(starting, listening, entrance.farewell, (home, entrance.copy), (reloading, reasons, orders)).await?;
    if let Some(log) = log {
        log.close()?;
    }
    Ok(())
}

/// Says what is odd about a configuration that holds.
pub(super) fn warn(settings: &Settings) {
    for warning in &settings.warnings {
        say(&format!("watertight: warning: {warning}"));
    }
}

/// A service that other machines reach needs keys, or words that say that it shall have none.
pub(super) fn check_reach(listen: SocketAddr, open: OpenToNetwork, keys: &KeyRing) -> Result<(), Stop> {
    if listen.ip().is_loopback() || !keys.is_empty() || open == OpenToNetwork::WithoutKeys {
        return Ok(());
    }
    Err(Stop::Usage(format!(
        "serve.listen = \"{listen}\" can be reached from other machines, and there are no keys: make one with `watertight key new NAME`, or set serve.open_to_network = \"without keys\" if that is what you want"
    )))
}

/// The journal's folder, where what outlives this process lies. A journal that this program cannot open is found before a predecessor that
/// can is told to go.
async fn home_of(journal: JournalSettings) -> Result<PathBuf, Stop> {
    let home = journal.path.parent().unwrap_or(Path::new(".")).to_owned();
    std::fs::create_dir_all(&home).map_err(|error| Stop::Usage(format!("{}: {error}", home.display())))?;
    let shown = journal.path.display().to_string();
    let looking = tokio::task::spawn_blocking(move || SqliteJournal::look_ahead(&journal));
    looking.await.map_err(Stop::usage)?.map_err(|error| Stop::Usage(storage::unopened(&shown, &error)))?;
    Ok(home)
}

/// Where requests come in.
struct Entrance {
    listener: tokio::net::TcpListener,
    address: SocketAddr,
    /// The same socket, to be handed on.
    copy: OwnedFd,
    /// The predecessor that it came from.
    farewell: Option<Farewell>,
}

impl Entrance {
    /// A predecessor's socket, else one of our own.
    async fn find(home: &Path, listen: SocketAddr) -> Result<Self, Stop> {
        let cannot = |error: io::Error| Stop::Usage(format!("cannot listen on {listen}: {error}"));
        let taken = take_over(&home.join(HANDOVER_SOCKET), listen, HANDOVER_TIMEOUT).await;
        let (listener, farewell) = match taken {
            Some(taken) => (taken.listener, Some(taken.farewell)),
            None => (
                tokio::net::TcpListener::bind(listen)
                    .await
                    .and_then(tokio::net::TcpListener::into_std)
                    .map_err(cannot)?,
                None,
            ),
        };
        let copy = listener.try_clone().map_err(cannot)?.into();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Self { listener, address, copy, farewell })
    }
}

/// What a start needs.
struct Starting<'a> {
    project: &'a Project,
    settings: &'a Settings,
    log: Option<&'a Arc<CallLogFile>>,
    state: &'a AppState,
    address: SocketAddr,
    webhook: Option<&'a Arc<Webhook>>,
}

/// Starts what does the work, opens the door to it, and serves until it is told to stop or somebody else takes over.
async fn serve_until(
    starting: Starting<'_>,
    listening: Listening,
    farewell: Option<Farewell>,
    (home, copy): (PathBuf, OwnedFd),
    (reloading, mut reasons, mut orders): (Reloading<'_>, Reasons, mpsc::Receiver<Order>),
) -> Result<(), Stop> {
    let state = starting.state;
    let mut stop = Box::pin(told_to_stop());
    tokio::select! {
        biased;
        () = &mut stop => {
            end(state, listening, Leaving::ForGood).await;
            return Ok(());
        }
        started = start(&starting, farewell) => state.door.open(Arc::new(started?)),
        () = keep_up(state) => {}
    }
    // A successor can be refused a connection for a moment where this does not work; everything else does.
    let offered = Handover::offer(&home.join(HANDOVER_SOCKET), starting.settings.serve.listen, copy);
    let offer = offered.inspect_err(|error| say(&format!("watertight: warning: no hand-over to a successor: {error}")));
    let offer = offer.ok();
    // Heard from before the start on: whoever reads that it listens may stop it at once.
    let is_stopped = stop.as_mut().now_or_never().is_some();
    if !is_stopped {
        announce(&starting);
    }
    let has_successor = !is_stopped
        && tokio::select! {
            () = stop => false,
            () = asked(offer.as_ref()) => true,
            () = reloading.keep_up(&mut reasons, &mut orders) => false,
            () = keep_up(state) => false,
        };
    // Whoever ordered a reload too late hears so at once.
    drop(orders);
    if has_successor {
        say("watertight: a successor has taken over");
        end(state, listening, Leaving::To(offer)).await;
    } else {
        // The socket that it holds would go on taking connections in that nobody serves.
        drop(offer);
        end(state, listening, Leaving::ForGood).await;
    }
    Ok(())
}

/// Waits until a successor has the socket; for ever where none can be heard.
async fn asked(offer: Option<&Handover>) {
    match offer {
        Some(offer) => offer.asked().await,
        None => std::future::pending().await,
    }
}

/// Takes hold of the journal, starts the runtime and goes on with what was not over.
async fn start(starting: &Starting<'_>, farewell: Option<Farewell>) -> Result<Running, Stop> {
    let Starting { project, settings, log, state, address, webhook } = *starting;
    let opened = JournalSettings {
        address: Some(format!("http://{}", reachable(address))),
        ..journal_settings(settings, &project.folder)
    };
    let shown = opened.path.display().to_string();
    let wait = settings.serve.handover_wait;
    if let Some(farewell) = farewell {
        state.door.comes_from_predecessor(Coming::Soon);
        say("watertight: a predecessor hands over");
        if !farewell.released(wait, state.door.wanted()).await {
            state.door.comes_from_predecessor(Coming::NotSaid);
            say("watertight: the predecessor still holds the journal");
        }
    }
    let journal = open_journal(opened, wait).await?;
    let journal = journal.map_err(|error| Stop::Usage(storage::unopened(&shown, &error)))?;
    let logs = CallLogs { ledger: journal.usage_log(settings.spending.currency.as_deref()), file: log.map(Arc::clone) };
    let files = Arc::new(FileStore::new(Arc::clone(&journal), file_settings(settings)));
    let giver = FileGiver { settings, files: Arc::clone(&files), signer: state.signer.clone(), address };
    let around = |agent: &_, backend| giver.around(agent, backend);
    let builder = assemble::builder(project, settings, Some(Arc::new(logs)), &around)?;
    let mut builder = builder
        .clock(Arc::new(TokioClock::since_unix_epoch()))
        .journal(Arc::clone(&journal) as Arc<dyn Journal>)
        .run_outputs_bytes_max(settings.serve.runs_outputs_bytes_max);
    if let Some(captures) = storage::captures(settings, &journal)? {
        builder = builder.captures(captures);
    }
    builder = deferral::with_queue(builder, settings, &journal, webhook);
    let with_targets = settings.agents.iter().filter(|agent| !agent.targets.is_empty());
    metrics::begin_with_zero(
        settings.agents.iter().map(|agent| &agent.settings.name),
        with_targets.map(|agent| &agent.settings.name),
    );
    let runtime = Arc::new(builder.start().await.map_err(Stop::usage)?);
    let running = Running { runtime, journal, files };
    let wrong = |failure: Failure| Stop::Usage(failure.envelope.message.clone());
    restore_modes(&running).await.map_err(wrong)?;
    let shut = running.runtime.restore_callers().await.map_err(Stop::usage)?;
    if shut > 0 {
        say(&format!("watertight: the volume guards of {shut} callers are still shut"));
    }
    restore_letters(&running).await.map_err(wrong)?;
    let stored = running.journal.take_over().await.map_err(Stop::usage)?;
    let resumed = running.runtime.resume(stored).len();
    if resumed > 0 {
        let go = if resumed == 1 { "run goes on where it was" } else { "runs go on where they were" };
        say(&format!("watertight: {resumed} {go}"));
    }
    Ok(running)
}

/// Opens the journal once whoever holds it lets it go, within `wait`.
async fn open_journal(
    settings: JournalSettings,
    wait: Duration,
) -> Result<Result<Arc<SqliteJournal>, JournalError>, Stop> {
    let until = Instant::now() + wait;
    let mut is_told = false;
    loop {
        let settings = settings.clone();
        let opening = tokio::task::spawn_blocking(move || SqliteJournal::open_after(settings, LOCK_LOOK.min(wait)));
        match opening.await.map_err(Stop::usage)? {
            Err(error @ JournalError::Held(_)) if Instant::now() < until => {
                if !is_told {
                    let seconds = wait.as_secs_f64();
                    say(&format!("watertight: {error}; waiting for it for {seconds} s (serve.handover_wait)"));
                }
                is_told = true;
            }
            opened => return Ok(opened),
        }
    }
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

fn announce(starting: &Starting<'_>) {
    let Starting { settings, state, address, .. } = *starting;
    let folder = &starting.project.folder;
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

/// What goes on beside the requests.
pub(super) async fn keep_up(state: &AppState) {
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
