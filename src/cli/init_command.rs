//! `watertight init`: a first configuration for what is found on this machine.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    args::InitArgs,
    exit::{Stop, in_json},
    run_command::print,
    say::say,
};
use crate::{
    settings::{
        provider::Flavor,
        template::{InitCase, config_text},
    },
    transport::{
        client::{ProviderClient, ProviderOptions},
        ollama::server::OllamaServer,
        openai::probe::{MODELS_PATH, probe_models, probe_slots},
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
    in_json(args.json, init_once(args).await)
}

async fn init_once(args: InitArgs) -> Result<(), Stop> {
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
    let config = args.folder.join("watertight.toml");
    write(&config, &config_text(&case), args.force)?;
    let mut written = vec![config];
    let workflow = args.folder.join("workflow.toml");
    if !workflow.exists() {
        write(&workflow, WORKFLOW, args.force)?;
        written.push(workflow);
    }
    let folder = args.folder.display();
    if args.json {
        return print(&format!("{}\n", in_words_of_programs(&case, &written)));
    }
    print(&format!(
        "Put photos into {folder}/input/photos and notes into {folder}/input/notes.md, then:\n  watertight check {folder}\n  watertight run {folder}\n"
    ))
}

/// What was found and written.
fn in_words_of_programs(case: &InitCase, written: &[PathBuf]) -> Value {
    let found = match case {
        InitCase::Embedded | InitCase::HttpAgents { .. } => json!({ "kind": "embedded" }),
        InitCase::OpenAiServer { base_url, models, flavor, slots } => json!({
            "kind": "openai", "base_url": base_url, "models": models, "slots": slots,
            "flavor": if *flavor == Flavor::LlamaCpp { "llama_cpp" } else { "any" },
        }),
        InitCase::OllamaServer { base_url, models } => {
            json!({ "kind": "ollama", "base_url": base_url, "models": models })
        }
    };
    let written: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
    json!({ "ok": true, "found": found, "written": written })
}

async fn detect(args: &InitArgs) -> Result<InitCase, Stop> {
    if args.embedded {
        return Ok(InitCase::Embedded);
    }
    if let Some(server) = &args.server {
        if let Some(ollama) = ollama(server).await {
            return Ok(ollama);
        }
        return open_ai(server).await;
    }
    for port in USUAL_PORTS {
        let base_url = format!("http://127.0.0.1:{port}/v1");
        if let Ok(models) = models(&base_url).await
            && !models.is_empty()
        {
            return Ok(server_of(base_url, models).await);
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

/// The server at this address, or below its `/v1`, which is easily left out.
async fn open_ai(server: &str) -> Result<InitCase, Stop> {
    let failed = match models(server).await {
        Ok(models) => return Ok(server_of(server.to_owned(), models).await),
        Err(message) => message,
    };
    let below = format!("{}/v1", server.trim_end_matches('/'));
    if server.trim_end_matches('/').ends_with("/v1") {
        return Err(Stop::Usage(format!("--server {server}: {failed}")));
    }
    match models(&below).await {
        Ok(models) => Ok(server_of(below, models).await),
        Err(second) => Err(Stop::Usage(format!(
            "--server {server}: {failed}; and at {below}: {second}; name the address up to /v1, where GET /v1/models lists models"
        ))),
    }
}

/// What is known of a server that lists these models.
async fn server_of(base_url: String, models: Vec<String>) -> InitCase {
    let root = base_url.trim_end_matches('/').trim_end_matches("/v1");
    let mut options = ProviderOptions::at(root);
    options.connect_timeout = PROBE_WAIT;
    let told = match ProviderClient::try_new(&options) {
        Ok(client) => tokio::time::timeout(PROBE_WAIT, probe_slots(&client)).await.ok().and_then(Result::ok),
        Err(_) => None,
    };
    let flavor = if told.is_some() { Flavor::LlamaCpp } else { Flavor::Any };
    InitCase::OpenAiServer { base_url, models, flavor, slots: told.flatten() }
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
