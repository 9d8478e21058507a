//! `watertight agent`: one agent of a project as a process of its own, well or ill.

use std::path::PathBuf;

use futures_util::FutureExt as _;

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
    settings::load::Wanted,
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
    // Heard from here on: whoever reads that it listens may stop it at once.
    let mut stop = Box::pin(told_to_stop());
    if stop.as_mut().now_or_never().is_some() {
        return Ok(());
    }
    say(&format!("agent {name} listens on http://{address}{}", if script.is_some() { ", by its script" } else { "" }));
    serve_agent(listener, name, backend, script, stop).await.map_err(Stop::usage)
}
