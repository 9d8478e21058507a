//! `watertight init`: a first configuration for what is found on this machine.

use std::{path::Path, time::Duration};

use super::{args::InitArgs, exit::Stop, run_command::print, say::say};
use crate::{
    settings::{
        provider::Flavor,
        template::{InitCase, config_text},
    },
    transport::{
        client::{ProviderClient, ProviderOptions},
        http_agent::health::probe_health,
        ollama::server::OllamaServer,
        openai::probe::{MODELS_PATH, probe_models},
    },
};

/// Where model servers usually listen on one's own machine: llama.cpp, its second, LM Studio, vLLM.
const USUAL_PORTS: [u16; 4] = [8080, 8081, 1234, 8000];
/// Where Ollama listens.
const OLLAMA: &str = crate::settings::ollama::BASE_URL;
/// So long a server may take to list its models.
const PROBE_WAIT: Duration = Duration::from_millis(1_500);
/// The reference workflow: photos and notes in, a post out.
const WORKFLOW: &str = include_str!("../../examples/momently/workflow.toml");

/// Writes `watertight.toml`, and `workflow.toml` where there is none.
pub(super) async fn init(args: InitArgs) -> Result<(), Stop> {
    let case = detect(&args).await?;
    let found = match &case {
        InitCase::Embedded => "no model server: the agents compute inside the program, without a model".to_owned(),
        InitCase::OpenAiServer { base_url, models, .. } => format!("{base_url} with {}", models.join(", ")),
        InitCase::OllamaServer { base_url, models } => format!("Ollama at {base_url} with {}", models.join(", ")),
        InitCase::HttpAgents { base_url, .. } => base_url.clone(),
    };
    say(&format!("found {found}"));
    std::fs::create_dir_all(&args.folder)
        .map_err(|error| Stop::Usage(format!("{}: {error}", args.folder.display())))?;
    write(&args.folder.join("watertight.toml"), &config_text(&case), args.force)?;
    let workflow = args.folder.join("workflow.toml");
    if !workflow.exists() {
        write(&workflow, WORKFLOW, args.force)?;
    }
    let folder = args.folder.display();
    print(&format!(
        "Put photos into {folder}/input/photos and notes into {folder}/input/notes.md, then:\n  watertight check {folder}\n  watertight run {folder}\n"
    ))
}

async fn detect(args: &InitArgs) -> Result<InitCase, Stop> {
    if args.embedded {
        return Ok(InitCase::Embedded);
    }
    if let Some(server) = &args.server {
        if let Some(ollama) = ollama(server).await {
            return Ok(ollama);
        }
        let models = models(server).await.map_err(|message| Stop::Usage(format!("--server {server}: {message}")))?;
        return Ok(InitCase::OpenAiServer { flavor: flavor(server).await, base_url: server.clone(), models });
    }
    for port in USUAL_PORTS {
        let base_url = format!("http://127.0.0.1:{port}/v1");
        if let Ok(models) = models(&base_url).await
            && !models.is_empty()
        {
            return Ok(InitCase::OpenAiServer { flavor: flavor(&base_url).await, base_url, models });
        }
    }
    Ok(ollama(OLLAMA).await.unwrap_or(InitCase::Embedded))
}

/// Ollama at this address, if it answers there as only Ollama does and has a model.
async fn ollama(address: &str) -> Option<InitCase> {
    let base_url = address.trim_end_matches('/').trim_end_matches("/v1").to_owned();
    let mut options = ProviderOptions::at(&base_url);
    options.connect_timeout = PROBE_WAIT;
    let client = ProviderClient::try_new(&options).ok()?;
    let server = OllamaServer::new(&client);
    let asking = async {
        server.version().await.ok()?;
        server.models().await.ok()
    };
    let models = tokio::time::timeout(PROBE_WAIT, asking).await.ok().flatten()?;
    (!models.is_empty()).then_some(InitCase::OllamaServer { base_url, models })
}

/// llama.cpp serves `/props` beside its OpenAI API; nobody else does.
async fn flavor(base_url: &str) -> Flavor {
    let root = base_url.trim_end_matches('/').trim_end_matches("/v1");
    let mut options = ProviderOptions::at(root);
    options.connect_timeout = PROBE_WAIT;
    let Ok(client) = ProviderClient::try_new(&options) else { return Flavor::Any };
    match tokio::time::timeout(PROBE_WAIT, probe_health(&client, "/props")).await {
        Ok(Ok(())) => Flavor::LlamaCpp,
        _ => Flavor::Any,
    }
}

async fn models(base_url: &str) -> Result<Vec<String>, String> {
    let mut options = ProviderOptions::at(base_url);
    options.connect_timeout = PROBE_WAIT;
    let client = ProviderClient::try_new(&options).map_err(|error| error.to_string())?;
    match tokio::time::timeout(PROBE_WAIT, probe_models(&client, MODELS_PATH)).await {
        Ok(Ok(models)) => Ok(models),
        Ok(Err(failure)) => Err(failure.message),
        Err(_) => Err("no answer".to_owned()),
    }
}

fn write(path: &Path, text: &str, force: bool) -> Result<(), Stop> {
    let shown = path.display();
    if path.exists() && !force {
        return Err(Stop::Usage(format!("{shown} is there already; --force overwrites it")));
    }
    std::fs::write(path, text).map_err(|error| Stop::Usage(format!("{shown}: {error}")))?;
    say(&format!("wrote {shown}"));
    Ok(())
}
