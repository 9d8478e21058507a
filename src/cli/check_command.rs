//! `watertight check`: everything that can be known without running, and on request one call of one agent.

use std::{convert::Infallible, sync::Arc};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    args::CheckArgs,
    assemble::{Backends, bare, further_of},
    exit::{Stop, in_json},
    faults::Faults,
    input::parse_json,
    project::{Project, Purpose},
    rerun::remote::Service,
    run_command::print,
    say::say,
    serve_command::check_reach,
    table::table,
};
use crate::{
    model::{
        name::Name,
        nearest::hint,
        reply::{AttemptFailure, Reply},
    },
    policy::verdict::{Keyed, Verdict, judge},
    runtime::ports::{AttemptRequest, AttemptTimeouts, Clock, Hold, Progress, TokioClock},
    serve::{access::keys::KeyRing, operator::config::ConfigInForce},
    settings::{
        agent::Agent,
        difference::{Change, ConfigRow, difference, rows},
        load::{Settings, explain},
    },
    transport::tap::Tap,
    workflow::checked::Workflow,
};

/// Checks.
pub(super) async fn check(args: CheckArgs) -> Result<(), Stop> {
    in_json(args.json, check_once(args).await)
}

async fn check_once(args: CheckArgs) -> Result<(), Stop> {
    let project = Project::read(&args.project)?;
    let (workflows, settings) = read(&project, args.call.as_deref())?;
    for warning in &settings.warnings {
        say(&format!("watertight: warning: {warning}"));
    }
    let backends = Backends::connect(&project, &settings)?;
    for agent in &settings.agents {
        backends.of(&project, &settings, agent)?;
        further_of(&project, &settings, agent, &backends, &bare)?;
    }
    if let (Some(agent), Some(input)) = (&args.call, &args.input) {
        return call(&project, &settings, &backends, agent, input, args.json).await;
    }
    if let Some(url) = &args.against {
        let workflows: Vec<Workflow> = workflows.into_iter().map(|(_, workflow)| workflow).collect();
        return against(url, args.key_env.as_deref(), rows(&settings, &workflows), args.json).await;
    }
    if args.explain {
        return show_explained(&settings, args.json);
    }
    if args.json { tell_program(&settings, &workflows) } else { tell_person(&settings, &workflows) }
}

/// What was checked, as one object.
fn tell_program(settings: &Settings, workflows: &[(String, Workflow)]) -> Result<(), Stop> {
    let agents: Vec<&str> = settings.agents.iter().map(|agent| agent.settings.name.as_str()).collect();
    let warnings: Vec<String> = settings.warnings.iter().map(ToString::to_string).collect();
    let all: Vec<Value> = workflows
        .iter()
        .map(|(file, workflow)| {
            let steps = workflow.steps().len();
            json!({ "name": workflow.name(), "hash": workflow.hash(), "file": file, "steps": steps })
        })
        .collect();
    let all = json!({ "ok": true, "workflows": all, "agents": agents, "warnings": warnings });
    print(&format!("{all}\n"))
}

/// What was checked: the agents, and a line for each workflow.
fn tell_person(settings: &Settings, workflows: &[(String, Workflow)]) -> Result<(), Stop> {
    print(&table(
        &["agent", "provider", "model", "slots", "what it does"],
        settings.agents.iter().map(|agent| {
            vec![
                agent.settings.name.to_string(),
                agent.settings.provider.to_string(),
                agent.settings.model.clone().unwrap_or_else(|| "-".to_owned()),
                agent.settings.slots.to_string(),
                agent.description.clone().unwrap_or_default(),
            ]
        }),
    ))?;
    if workflows.is_empty() {
        return print(
            "ok: neither workflow.toml nor workflows/*.toml here, so only settings and agents were checked\n",
        );
    }
    for (file, workflow) in workflows {
        let steps = workflow.steps().len();
        let steps = if steps == 1 { "1 step".to_owned() } else { format!("{steps} steps") };
        print(&format!("ok: workflow {}, {steps} ({file})\n", workflow.name()))?;
    }
    Ok(())
}

/// Reads all that `run` and `serve` read, each workflow with its file, and says all that is wrong with it.
fn read(project: &Project, called: Option<&str>) -> Result<(Vec<(String, Workflow)>, Settings), Stop> {
    let mut faults = Faults::default();
    // A built-in agent is there for the asking.
    let called = called.and_then(|name| Name::try_new(name).ok());
    let read = project.read_workflows(called, Purpose::Serve, &mut faults);
    faults.told()?;
    let (workflows, settings) = read.ok_or_else(|| Stop::Usage("the project cannot be read".to_owned()))?;
    let keys = KeyRing::of(&settings.keys, &|name| project.environment(name)).map_err(Stop::usage)?;
    check_reach(settings.serve.listen, settings.serve.open_to_network, &keys)?;
    Ok((workflows, settings))
}

/// What a reload would change at a running service.
async fn against(url: &str, key_env: Option<&str>, here: Vec<ConfigRow>, json: bool) -> Result<(), Stop> {
    let service = Service::of("--against", url, key_env)?;
    let there: ConfigInForce = service.ask(service.get("v1/config")?).await?;
    let changes = difference(&there.values, &here);
    if json {
        return print(&format!("{}\n", json!({ "ok": true, "changes": changes })));
    }
    if changes.is_empty() {
        return print("ok: a reload would change nothing\n");
    }
    let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let when = |needs_restart| if needs_restart { "with a restart" } else { "with a reload" };
    let row = |change: Change| {
        vec![change.key, shown(change.before), shown(change.after), when(change.needs_restart).to_owned()]
    };
    print(&table(&["key", "there", "here", "changes"], changes.into_iter().map(row)))
}

fn show_explained(settings: &Settings, json: bool) -> Result<(), Stop> {
    let rows = explain(settings);
    if json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|row| json!({ "key": row.key, "value": row.value, "origin": row.origin.to_string() }))
            .collect();
        return print(&format!("{}\n", Value::Array(rows)));
    }
    let rows = rows.into_iter().map(|row| vec![row.key.clone(), row.value.clone(), row.origin.to_string()]);
    print(&table(&["key", "value", "from"], rows))
}

/// One attempt of one agent, outside every guard, with what went over the wire.
async fn call(
    project: &Project,
    settings: &Settings,
    backends: &Backends,
    name: &str,
    input: &std::path::Path,
    json: bool,
) -> Result<(), Stop> {
    let Some(agent) = settings.agent(name) else {
        let known: Vec<&str> = settings.agents.iter().map(|agent| agent.settings.name.as_str()).collect();
        let near = hint(name, known.iter().copied());
        return Err(Stop::Usage(format!("there is no agent {name}{near}; there are {}", known.join(", "))));
    };
    let shown = input.display();
    let text = std::fs::read_to_string(input).map_err(|error| Stop::Usage(format!("{shown}: {error}")))?;
    let input = parse_json(&text, &shown.to_string())?;
    let tap = Tap::new();
    if let Some(client) = backends.client(&agent.settings.provider) {
        client.attach(&tap);
    }
    let backend = backends.of(project, settings, agent)?;
    let (deltas, mut pieces) = mpsc::channel(64);
    // Asked as a run would ask: for a stream only where the agent streams.
    let streams = agent.settings.timeouts.first_token.is_some();
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::start());
    let progress = Progress::start(clock, Some(deltas).filter(|_| streams));
    let request = request_of(agent, input);
    let drain = async {
        while pieces.recv().await.is_some() {}
        std::future::pending::<Infallible>().await
    };
    let limit = agent.settings.timeouts.attempt.unwrap_or(agent.settings.timeouts.call);
    let result = tokio::select! {
        result = tokio::time::timeout(limit, backend.attempt(&request, &progress)) => result,
        never = drain => match never {},
    };
    let Ok(result) = result else {
        say(&format!("watertight: no answer within {limit:?}"));
        return Err(Stop::Failed);
    };
    show_call(agent, &tap, &result, json)?;
    if result.is_ok() { Ok(()) } else { Err(Stop::Failed) }
}

fn request_of(agent: &Agent, input: Value) -> AttemptRequest {
    AttemptRequest {
        agent: agent.settings.name.clone(),
        input: Arc::new(input),
        call_id: "check".to_owned(),
        run_id: None,
        step: None,
        attempt: 1,
        idempotency_key: uuid::Uuid::now_v7().to_string(),
        traceparent: None,
        deadline: agent.settings.timeouts.call,
        tenant: None,
        feature: None,
        priority: None,
        prompt: None,
        timeouts: AttemptTimeouts {
            first_token: agent.settings.timeouts.first_token,
            stall: agent.settings.timeouts.stall,
        },
        hold: Hold::of(Arc::new(())),
        relay: None,
        capture: None,
    }
}

fn show_call(agent: &Agent, tap: &Tap, result: &Result<Reply, AttemptFailure>, json: bool) -> Result<(), Stop> {
    let ending = match result {
        Ok(_) => crate::model::facts::Ending::Success,
        Err(failure) => failure.ending.clone(),
    };
    let verdict = judge(&ending, Keyed::No).target;
    let read = match result {
        Ok(reply) => json!({ "output": reply.output, "usage": reply.usage, "finish_reason": reply.finish_reason }),
        Err(failure) => json!({
            "ending": failure.ending, "message": failure.message, "upstream_code": failure.upstream_code,
            "status": failure.status, "retry_after": failure.retry_after.map(|wait| wait.as_secs_f64()),
        }),
    };
    let exchange = tap.take();
    if json {
        let exchange = exchange.map(|exchange| json!({ "request": exchange.request, "answer": exchange.answer }));
        let all =
            json!({ "agent": agent.settings.name, "exchange": exchange, "read": read, "verdict": word_of(verdict) });
        return print(&format!("{all}\n"));
    }
    match exchange {
        Some(exchange) => print(&format!("== request\n{}\n== answer\n{}\n", exchange.request, exchange.answer))?,
        None => print("== request\n(inside this program: nothing went over the wire)\n")?,
    }
    print(&format!("== read as\n{read:#}\n== counts as\n{}\n", in_words(verdict)))
}

fn word_of(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Success => "success",
        Verdict::Failure { .. } => "failure",
        Verdict::Ignored => "ignored",
    }
}

/// A verdict with what it means for the agent's breaker.
fn in_words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Success => "success",
        Verdict::Failure { hard: true } => "failure: in the share of failures, and as one more in a row",
        Verdict::Failure { hard: false } => "failure: in the share of failures",
        Verdict::Ignored => "ignored: neither success nor failure, the agent's breaker does not hear of it",
    }
}
