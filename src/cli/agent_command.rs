//! `watertight agent`: one agent of a project as a process of its own, well or ill.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use futures_util::FutureExt as _;
use reqwest::Url;

use super::{
    args::{AgentArgs, ProjectArgs},
    assemble::Backends,
    exit::Stop,
    project::Project,
    say::say,
    told_to_stop::told_to_stop,
};
use crate::{
    model::name::Name,
    serve::{agent_server::serve_agent, script_file::read_script},
    settings::{
        agent::Agent,
        load::{Settings, Wanted, explain},
    },
};

/// Serves until Ctrl-C or a termination signal.
pub(super) async fn serve(args: AgentArgs) -> Result<(), Stop> {
    let name = Name::try_new(&args.name).map_err(Stop::usage)?;
    let script = match &args.script {
        None => None,
        Some(path) => {
            let shown = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|error| Stop::Usage(format!("{shown}: {error}")))?;
            Some(read_script(&shown, &text).map_err(Stop::usage)?)
        }
    };
    let project = ProjectArgs {
        folder: args.folder.unwrap_or_else(|| PathBuf::from(".")),
        config: args.config,
        workflow: None,
        set: Vec::new(),
    };
    let project = Project::read(&project)?;
    let settings = project.settings(Wanted::Named(vec![name.clone()]))?;
    let Some(agent) = settings.agent(name.as_str()) else {
        let known: Vec<String> = project.agent_names()?.iter().map(Name::to_string).collect();
        return Err(Stop::Usage(format!("there is no agent {name}; there are {}", known.join(", "))));
    };
    let backend = Backends::connect(&project, &settings)?.of(&project, &settings, agent)?;
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .map_err(|error| Stop::Usage(format!("cannot listen on {}: {error}", args.listen)))?;
    let address = listener.local_addr().map_err(Stop::usage)?;
    refuse_itself(&settings, agent, address)?;
    // Heard from here on: whoever reads that it listens may stop it at once.
    let mut stop = Box::pin(told_to_stop());
    if stop.as_mut().now_or_never().is_some() {
        return Ok(());
    }
    say(&format!("agent {name} listens on http://{address}{}", if script.is_some() { ", by its script" } else { "" }));
    serve_agent(listener, name, backend, script, stop).await.map_err(Stop::usage)
}

/// An agent whose provider is this very process would call itself without end.
fn refuse_itself(settings: &Settings, agent: &Agent, address: SocketAddr) -> Result<(), Stop> {
    let further = agent.targets.iter().map(|target| &target.provider);
    for name in std::iter::once(&agent.settings.provider).chain(further) {
        let endpoint = settings.provider(name.as_str()).and_then(|provider| provider.backend.endpoint());
        let Some(url) = endpoint.map(|endpoint| endpoint.base_url.as_str()).filter(|url| leads_to(url, address)) else {
            continue;
        };
        let key = format!("providers.{name}.base_url");
        let rows = explain(settings);
        let origin = rows.iter().find(|row| row.key == key).map(|row| format!("{}: ", row.origin)).unwrap_or_default();
        return Err(Stop::Usage(format!(
            "{origin}{key} = {url:?}: is where this process itself listens ({address}): agent {} would call itself without end; serve it from a configuration in which its work is done elsewhere",
            agent.settings.name
        )));
    }
    Ok(())
}

/// Whether `url` leads to whoever listens at `address`, as far as that can be told without asking anybody.
fn leads_to(url: &str, address: SocketAddr) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let is_there = match host.parse::<IpAddr>() {
        Ok(named) => {
            let is_every = named.is_unspecified() || address.ip().is_unspecified();
            named == address.ip()
                || (is_every && (named.is_loopback() || address.ip().is_loopback() || named.is_unspecified()))
        }
        Err(_) => host == "localhost" && (address.ip().is_loopback() || address.ip().is_unspecified()),
    };
    is_there && url.port_or_known_default() == Some(address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leads_to_itself() {
        for (url, address, want) in [
            ("http://127.0.0.1:7801", "127.0.0.1:7801", true),
            ("http://localhost:7801/v1", "127.0.0.1:7801", true),
            ("http://127.0.0.1:7801", "0.0.0.0:7801", true),
            ("http://0.0.0.0:7801", "127.0.0.1:7801", true),
            ("http://[::1]:7801", "[::1]:7801", true),
            ("http://127.0.0.1", "127.0.0.1:80", true),
            ("http://127.0.0.1:7802", "127.0.0.1:7801", false),
            ("http://10.0.0.9:7801", "127.0.0.1:7801", false),
            ("http://model.example:7801", "0.0.0.0:7801", false),
        ] {
            assert_eq!(leads_to(url, address.parse().unwrap()), want, "{url} at {address}");
        }
    }
}
