//! `watertight serve`: puts the service together from a project, takes over from a predecessor where there is one, and serves until it is
//! told to stop or a successor takes over. How it ends is in `serve_end`.

use std::{
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::sync::mpsc;

use super::{
    args::ServeArgs,
    assemble,
    call_log_file::CallLogFile,
    deferral,
    exit::Stop,
    project::{Project, Purpose},
    reloading::{self, Reasons, Reloading},
    say::say,
    serve_end::{Ended, Instead, Leaving, end},
    serve_start::{Starting, start},
    storage::{self, journal_settings, listener_settings},
    told_to_stop::{outlive_file_size_limit, told_to_stop},
};
use crate::{
    journal::{journal::SqliteJournal, settings::JournalSettings},
    serve::{
        access::{keys::KeyRing, signature::Signer},
        caps::Caps,
        gateway::door::{self, GatewayDoor},
        handover::{
            offer::Handover,
            successor::{GivenBack, Hung, Lost, Patience},
            take::{Farewell, take_over},
        },
        health::BEAT,
        listener::server::{Listening, listen},
        metrics,
        operator::config::{ConfigDesk, Order},
        router::router,
        state::{AppState, Door, Ending, MetricsPage, Service},
    },
    settings::{load::Settings, serve::OpenToNetwork},
    workflow::checked::Workflow,
};

/// Beside the journal: where this process offers its listening socket to its successor.
const HANDOVER_SOCKET: &str = "handover.sock";
/// Beside the journal: what signatures are made with. They hold over restarts.
const SIGNING_KEY: &str = "signing.key";
/// How long a predecessor has to hand its socket over.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves, and goes on where a successor dies before it does.
pub(super) async fn serve(args: ServeArgs) -> Result<(), Stop> {
    outlive_file_size_limit();
    let page = metrics::install().map_err(Stop::usage)?;
    let mut kept = None;
    while let Some(again) = serve_once(&args, page.clone(), kept.take()).await? {
        let why = match again.hung.as_ref().map(Hung::why) {
            None => "is gone before it served",
            Some(Lost::Silent) => "hangs: nothing was heard of it for serve.handover_silence_max",
            Some(Lost::TooSlow) => "does not serve within serve.handover_start_max and is told to end",
        };
        say(&format!("watertight: the successor {why}: this process goes on (why, the successor's own messages say)"));
        kept = Some(again);
    }
    Ok(())
}

/// What a process needs to go on serving.
struct Kept {
    /// The listening socket.
    socket: OwnedFd,
    /// As it was read when the process began to serve.
    project: Project,
    /// The successor that has lost the service, unless it is known to be gone.
    hung: Option<Hung>,
}

/// The project as it lies there. Whoever has served with it before goes on with that where it cannot be used now: it may have been written
/// for the successor.
fn read_project(args: &ServeArgs, before: Option<Project>) -> Result<(Project, Vec<Workflow>, Settings), Stop> {
    let read = |project: Project| {
        project.workflows_and_settings(Purpose::Serve).map(|(workflows, settings)| (project, workflows, settings))
    };
    match (Project::read(&args.project).and_then(read), before) {
        (Err(stop), Some(before)) => {
            say(&format!("watertight: warning: goes on with the settings it was started with: {stop}"));
            read(before)
        }
        (now, _) => now,
    }
}

/// Serves until it is told to stop or somebody else serves; otherwise tells what to go on with.
async fn serve_once(args: &ServeArgs, page: MetricsPage, kept: Option<Kept>) -> Result<Option<Kept>, Stop> {
    let mut reasons = Reasons::watch(&args.project).await;
    let (socket, before, hung) =
        kept.map_or((None, None, None), |kept| (Some(kept.socket), Some(kept.project), kept.hung));
    let (project, workflows, mut settings) = read_project(args, before)?;
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
    let entrance = Entrance::find(&home, settings.serve.listen, socket).await?;
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
    let hand = (home, entrance.copy);
    let others = Others { farewell: entrance.farewell, hung };
    let ended = serve_until(starting, listening, others, hand, (reloading, reasons, orders)).await?;
    if let Some(log) = log {
        log.close()?;
    }
    Ok(ended.map(|GivenBack { listener, hung }| Kept { socket: listener, project, hung }))
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
    /// The socket that this process had before, a predecessor's, or one of our own.
    async fn find(home: &Path, listen: SocketAddr, before: Option<OwnedFd>) -> Result<Self, Stop> {
        if let Some(socket) = before {
            return Self::of(socket.into(), None, listen);
        }
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
        Self::of(listener, farewell, listen)
    }

    /// A socket that listens already.
    fn of(listener: std::net::TcpListener, farewell: Option<Farewell>, listen: SocketAddr) -> Result<Self, Stop> {
        let cannot = |error: io::Error| Stop::Usage(format!("cannot listen on {listen}: {error}"));
        let copy = listener.try_clone().map_err(cannot)?.into();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Self { listener, address, copy, farewell })
    }
}

/// The processes on either side.
struct Others {
    /// The predecessor that hands over.
    farewell: Option<Farewell>,
    /// The successor that has lost the service to this process.
    hung: Option<Hung>,
}

impl Others {
    /// Waits until this process is not to serve after all: who does. For ever where it is to.
    fn serve_instead(&self) -> impl Future<Output = Instead> + use<> {
        let predecessor = self.farewell.as_ref().map(Farewell::lost);
        let successor = self.hung.as_ref().map(Hung::serves_after_all);
        async move {
            tokio::select! {
                () = or_never(predecessor) => Instead::Predecessor,
                () = or_never(successor) => Instead::Successor,
            }
        }
    }
}

async fn or_never(future: Option<impl Future<Output = ()>>) {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Starts what does the work and opens the door to it, unless something comes in between.
async fn open_door(
    starting: &Starting<'_>,
    others: &mut Others,
    stop: impl Future<Output = ()>,
) -> Result<Option<Instead>, Stop> {
    let serve_instead = others.serve_instead();
    tokio::select! {
        biased;
        () = stop => return Ok(Some(Instead::Stopped)),
        instead = serve_instead => return Ok(Some(instead)),
        started = start(starting, others.farewell.as_mut(), others.hung.as_ref()) => {
            starting.state.door.open(Arc::new(started?));
        }
        () = keep_up(starting.state) => {}
    }
    Ok(None)
}

/// Opens the door, and serves until it is told to stop or somebody else takes over. `Some` is what was
/// given back, where a successor took over and did not come to serve.
async fn serve_until(
    starting: Starting<'_>,
    listening: Listening,
    mut others: Others,
    (home, copy): (PathBuf, OwnedFd),
    (reloading, mut reasons, mut orders): (Reloading<'_>, Reasons, mpsc::Receiver<Order>),
) -> Result<Option<GivenBack>, Stop> {
    let state = starting.state;
    let mut stop = Box::pin(told_to_stop());
    if let Some(instead) = open_door(&starting, &mut others, &mut stop).await? {
        return instead.end(state, listening).await.map(|()| None);
    }
    let Others { farewell, hung } = others;
    drop(hung);
    if let Some(farewell) = farewell {
        farewell.serving().await;
    }
    // A successor can be refused a connection for a moment where this does not work; everything else does.
    let offered = Handover::offer(&home.join(HANDOVER_SOCKET), starting.settings.serve.listen, copy);
    let offer = offered.inspect_err(|error| say(&format!("watertight: warning: no hand-over to a successor: {error}")));
    let offer = offer.ok();
    let Starting { settings: Settings { serve, .. }, .. } = starting;
    let patience = Patience { silence_max: serve.handover_silence_max, start_max: serve.handover_start_max };
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
        return Ok(match (end(state, listening, Leaving::To(offer.as_ref())).await, offer) {
            (Ended::Done, Some(offer)) => tokio::select! {
                biased;
                () = told_to_stop() => None,
                given_back = offer.came_back(patience) => given_back,
            },
            _ => None,
        });
    }
    // The socket that it holds would go on taking connections in that nobody serves.
    drop(offer);
    end(state, listening, Leaving::ForGood).await;
    Ok(None)
}

/// Waits until a successor has the socket; for ever where none can be heard.
async fn asked(offer: Option<&Handover>) {
    match offer {
        Some(offer) => offer.asked().await,
        None => std::future::pending().await,
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
