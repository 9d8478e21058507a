//! Reloads of a running service: when its files change, on SIGHUP, on an operator's order. Reads everything anew through the loader of a
//! start; what is wrong with it is said as a whole and changes nothing.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::sync::mpsc;

use super::{
    args::ProjectArgs,
    assemble, deferral,
    exit::Stop,
    file_reach::FileGiver,
    loaded_files::{Layers, Look},
    project::{Project, Purpose},
    say::say,
    serve_command::{check_reach, warn},
};
use crate::{
    model::name::Name,
    runtime::metric,
    serve::{
        access::keys::KeyRing,
        gateway::door::GatewayDoor,
        metrics,
        operator::config::{ConfigInForce, Order, RefusedReload, Reloaded},
        state::AppState,
    },
    settings::{
        difference::{ConfigRow, difference, hash_of, rows, taken_over},
        load::Settings,
    },
    transport::webhook::Webhook,
    workflow::checked::Workflow,
};

/// So often files are looked at. A change is taken up at the first look that finds them as the look before did.
const LOOK: Duration = Duration::from_secs(1);

/// Without any key everybody who reaches the service is its operator, and what stands before it on the same machine reaches it.
const LAST_KEY: &str = "keys: a reload takes the last key away, and everybody who reaches this service would be its operator; restart if that is what you want";

/// What a reload needs to know of its service.
pub(super) struct Reloading<'a> {
    pub(super) args: &'a ProjectArgs,
    pub(super) listen: Option<SocketAddr>,
    pub(super) state: &'a AppState,
    pub(super) gateway: &'a GatewayDoor,
    /// What is really listened on, whatever the files say by now.
    pub(super) address: SocketAddr,
    /// What the start came from.
    pub(super) layers: Layers,
    /// Who signs what it tells of calls that were put off.
    pub(super) webhook: Option<&'a Arc<Webhook>>,
}

/// The configuration of a start.
pub(super) fn in_force(settings: &Settings, workflows: &[Workflow]) -> ConfigInForce {
    holding(rows(settings, workflows))
}

/// These values hold from now on.
fn holding(values: Vec<ConfigRow>) -> ConfigInForce {
    let loaded_ms = unix_ms();
    metric::set(metric::CONFIG_LOADED, Vec::new(), loaded_ms as f64 / 1_000.0);
    ConfigInForce { hash: hash_of(&values), loaded_ms, values, last_refusal: None }
}

/// What a reload is asked for by, from before the first load on: whatever comes while the service starts is taken up once it is there.
pub(super) struct Reasons {
    hangup: Hangup,
    /// The files as they were before the last load.
    loaded: Look,
}

impl Reasons {
    /// From now on none is missed; a hang-up does not end the process any more.
    pub(super) async fn watch(args: &ProjectArgs) -> Self {
        let hangup = Hangup::listen();
        Self { hangup, loaded: look_at(args, &Look::default()).await }
    }

    /// What the load read that came after the first look, and what it is about to read: the files of its secrets.
    pub(super) fn loaded_from(&mut self, project: &Project, settings: &Settings) {
        self.loaded.now_names(project.named_files(), settings.secret_files.iter().cloned());
    }
}

impl Reloading<'_> {
    /// Reloads whenever there is a reason, for ever.
    pub(super) async fn keep_up(&self, reasons: &mut Reasons, orders: &mut mpsc::Receiver<Order>) {
        let Reasons { hangup, loaded } = reasons;
        let mut layers = self.layers.clone();
        let mut last = loaded.clone();
        loop {
            let order = tokio::select! {
                () = hangup.heard() => {
                    say("watertight: SIGHUP, loading the configuration anew");
                    None
                }
                Some(order) = orders.recv() => Some(order),
                () = tokio::time::sleep(LOOK) => {
                    let seen = look_at(self.args, loaded).await;
                    let is_settled = std::mem::replace(&mut last, seen.clone()) == seen;
                    if !is_settled || seen == *loaded {
                        continue;
                    }
                    say("watertight: files have changed, loading the configuration anew");
                    None
                }
            };
            // Looked at before they are read: what changes while they are read is taken up next.
            *loaded = look_at(self.args, loaded).await;
            let became = self.reload(&mut layers, loaded).await;
            last.clone_from(loaded);
            if let Some(order) = order {
                // Who ordered it may have left.
                let _ = order.send(became);
            }
        }
    }

    /// One reload. What became of it is said, counted and kept.
    async fn reload(&self, layers: &mut Layers, loaded: &mut Look) -> Reloaded {
        let became = self.try_reload(layers, loaded).await;
        let result = if became.is_ok() { "ok" } else { "refused" };
        metric::count(metric::RELOADS, vec![metrics_label(result)], 1);
        match &became {
            Ok(changes) if changes.is_empty() => say("watertight: reloaded; every value is as it was"),
            Ok(changes) => {
                let are = if changes.len() == 1 { "value is another" } else { "values are others" };
                say(&format!("watertight: reloaded, {} {are}:", changes.len()));
                for change in changes {
                    say(&format!("  {change}"));
                }
            }
            Err(problems) => {
                say("watertight: the new configuration is refused, nothing has changed:");
                for problem in problems {
                    say(&format!("  {problem}"));
                }
                let refused = RefusedReload { at_ms: unix_ms(), problems: problems.clone() };
                let before = ConfigInForce::clone(&self.state.config.in_force());
                self.state.config.put(ConfigInForce { last_refusal: Some(refused), ..before });
            }
        }
        became
    }

    async fn try_reload(&self, layers: &mut Layers, loaded: &mut Look) -> Reloaded {
        let lines = |stop: Stop| -> Vec<String> { stop.to_string().lines().map(str::to_owned).collect() };
        let args = self.args.clone();
        let reading = tokio::task::spawn_blocking(move || read(&args)).await;
        let (project, workflows, mut settings) = reading.map_err(|error| vec![error.to_string()])?.map_err(lines)?;
        // Also where it is refused below: what it names and is not there may come.
        loaded.now_names(project.named_files(), settings.secret_files.iter().cloned());
        let missed = layers.vanished(&project.layers(), |name| settings.agent(name.as_str()).is_some());
        if !missed.is_empty() {
            return Err(missed);
        }
        if let Some(listen) = self.listen {
            settings.serve.listen = listen;
        }
        let keys = KeyRing::of(&settings.keys, &|name| project.environment(name))
            .map_err(|problem| vec![problem.to_string()])?;
        self.check_reach(&settings, &keys).map_err(lines)?;
        if keys.is_empty() && !self.state.keys.is_empty() {
            return Err(vec![LAST_KEY.to_owned()]);
        }
        warn(&settings);
        let Some(running) = self.state.door.now() else {
            return Err(vec!["the service is not there yet, or not any more".to_owned()]);
        };
        let giver = FileGiver {
            settings: &settings,
            files: Arc::clone(&running.files),
            signer: self.state.signer.clone(),
            address: self.address,
        };
        let around = |agent: &_, backend| giver.around(agent, backend);
        let parts = assemble::parts(&project, &settings, &around).map_err(lines)?;
        let secret = deferral::secret(&project, &settings).map_err(lines)?;
        let gateway = assemble::gateway(&project, &settings).map_err(lines)?;
        let report = running.runtime.reload(parts).await.map_err(|error| vec![error.to_string()])?;
        let has_targets = |name: &&Name| settings.agent(name.as_str()).is_some_and(|agent| !agent.targets.is_empty());
        metrics::begin_with_zero(report.added.iter(), report.added.iter().filter(has_targets));
        self.state.keys.replace(keys);
        if let (Some(webhook), Some(secret)) = (self.webhook, secret) {
            webhook.sign_with(secret);
        }
        self.gateway.replace(gateway);
        let before = self.state.config.in_force();
        let loaded = rows(&settings, &workflows);
        let changes = difference(&before.values, &loaded);
        self.state.config.put(holding(taken_over(&before.values, loaded)));
        *layers = project.layers();
        Ok(changes)
    }

    /// Who may come in is of now, where it listens is of the start: both addresses are judged, and words that the start did not hear open
    /// nothing before a restart.
    fn check_reach(&self, settings: &Settings, keys: &KeyRing) -> Result<(), Stop> {
        check_reach(settings.serve.listen, settings.serve.open_to_network, keys)?;
        check_reach(self.address, settings.serve.open_to_network, keys)?;
        check_reach(self.address, self.state.settings.open_to_network, keys)
    }
}

/// All files that a load reads, with their dates and sizes.
async fn look_at(args: &ProjectArgs, before: &Look) -> Look {
    let (args, before) = (args.clone(), before.clone());
    tokio::task::spawn_blocking(move || Look::at(&args, &before)).await.unwrap_or_default()
}

fn read(args: &ProjectArgs) -> Result<(Project, Vec<Workflow>, Settings), Stop> {
    let project = Project::read(args)?;
    let (workflows, settings) = project.workflows_and_settings(Purpose::Serve)?;
    Ok((project, workflows, settings))
}

fn metrics_label(result: &'static str) -> ::metrics::Label {
    ::metrics::Label::from_static_parts("result", result)
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// SIGHUP, where there is one.
struct Hangup {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

impl Hangup {
    fn listen() -> Self {
        Self {
            #[cfg(unix)]
            signal: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).ok(),
        }
    }

    async fn heard(&mut self) {
        #[cfg(unix)]
        if let Some(signal) = &mut self.signal
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending::<()>().await;
    }
}
