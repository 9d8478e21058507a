//! `watertight serve`: puts the service together from a project and serves until it is told to stop.

use std::{net::SocketAddr, path::Path, sync::Arc};

use futures_util::FutureExt as _;
use utoipa_axum::router::OpenApiRouter;

use super::{
    args::ServeArgs, assemble, call_log_file::CallLogFile, exit::Stop, project::Project, say::say,
    told_to_stop::told_to_stop,
};
use crate::{
    runtime::ports::CallLog,
    serve::{
        access::{keys::KeyRing, signature::Signer},
        caps::Caps,
        gateway::door,
        http::server::Server,
        router::router,
        state::{AppState, Door, Ending, RuntimeDoor, Service},
    },
    settings::{load::Settings, serve::OpenToNetwork},
};

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
    let call_log = log.as_ref().map(|log| Arc::clone(log) as Arc<dyn CallLog>);
    let listen = settings.serve.listen;
    let cannot = |error: std::io::Error| Stop::Usage(format!("cannot listen on {listen}: {error}"));
    let listener = tokio::net::TcpListener::bind(listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let state = AppState::new(Service {
        caps: Caps::new(&settings.serve),
        settings: settings.serve.clone(),
        keys,
        limits: settings.limits,
        workflows: workflows.into_iter().map(|workflow| (workflow.name().to_string(), Arc::new(workflow))).collect(),
        door: RuntimeDoor::default(),
        files: Door::default(),
        signer: Signer::of_chance().map_err(Stop::usage)?,
        ending: Ending::default(),
        metrics: None,
    });
    let gateway = door::routes(assemble::gateway(&project, &settings)?);
    let runtime = assemble::runtime(&project, &settings, call_log).await?;
    state.door.open(Arc::new(runtime));
    // Heard from here on: whoever reads that it listens may stop it at once.
    let mut stop = Box::pin(told_to_stop());
    if stop.as_mut().now_or_never().is_some() {
        return Ok(());
    }
    announce(&project.folder, address, &state, &settings);
    serve_until(listener, &state, gateway, stop).await;
    if let Some(log) = log {
        log.close()?;
    }
    Ok(())
}

/// A service that other machines reach needs keys, or words that say that it shall have none.
fn check_reach(settings: &Settings, keys: &KeyRing) -> Result<(), Stop> {
    let listen = settings.serve.listen;
    if listen.ip().is_loopback() || !keys.is_empty() || settings.serve.open_to_network == OpenToNetwork::WithoutKeys {
        return Ok(());
    }
    Err(Stop::Usage(format!(
        "serve.listen = \"{listen}\" can be reached from other machines, and there are no keys: make one with `watertight key new NAME`, or set serve.open_to_network = \"without keys\" if that is what you want"
    )))
}

fn announce(folder: &Path, address: SocketAddr, state: &AppState, settings: &Settings) {
    let names = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let workflows = names(state.workflows.keys().map(String::as_str).collect());
    let agents = names(settings.agents.iter().map(|agent| agent.settings.name.as_str()).collect());
    say(&format!("watertight serves {} on http://{address}", folder.display()));
    say(&format!("  workflows: {workflows}"));
    say(&format!("  agents: {agents}"));
    say(&format!(
        "  keys: {}",
        if state.keys.is_empty() { "none needed".to_owned() } else { state.keys.len().to_string() }
    ));
}

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
        () = stop => {}
    }
    state.ending.draining.cancel();
    drop(listener);
    state.ending.closing_streams.cancel();
    server.end(state.settings.grace).await;
    if let Some(runtime) = state.door.shut().and_then(Arc::into_inner) {
        runtime.stop(std::time::Duration::ZERO).await;
    }
}
