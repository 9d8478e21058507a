//! Four agents lean on one provider. One of them falls ill for two and a half seconds; the other three, and the provider, do not notice.
//!
//! `cargo run --release --example one_sick_agent` takes about seven seconds. So that it does, the ill agent's breaker stays open for
//! 2 s instead of 30 s, and calls are tried once instead of three times; all else is as by default. Exit code 1 if anything was not as said.

use std::{
    error::Error,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval};
use watertight::{
    model::{clock::Timestamp, name::Name},
    policy::{
        breaker::{settings::BreakerSettings, state::StateName},
        retry_settings::RetrySettings,
    },
    runtime::{
        book::BreakerEvent,
        call::{CallError, CallReply, CallRequest},
        engine::Runtime,
        function_agent::{AgentFailure, CallInfo, FunctionAgent},
        handle::AgentHandle,
        settings::{AgentSettings, ProviderSettings},
    },
};

/// Name, and how long a call takes while it is well.
const AGENTS: [(&str, Duration); 4] = [
    ("style", Duration::from_millis(20)),
    ("draft", Duration::from_millis(60)),
    ("review", Duration::from_millis(30)),
    ("meta", Duration::from_millis(10)),
];
const ILL: &str = "draft";
const ILL_FROM: Duration = Duration::from_secs(1);
const ILL_UNTIL: Duration = Duration::from_millis(3_500);
const SECONDS: u32 = 7;
/// Each agent is called so often.
const EVERY: Duration = Duration::from_millis(20);
const OPEN: Duration = Duration::from_secs(2);

/// What was seen of one agent since the last line of the table.
#[derive(Default)]
struct Seen {
    calls: u32,
    good: u32,
    refused: u32,
    failed: u32,
    milliseconds: Vec<f64>,
}

impl Seen {
    fn note(&mut self, result: &Result<CallReply, CallError>, took: Duration) {
        self.calls += 1;
        match result {
            Ok(_) => {
                self.good += 1;
                self.milliseconds.push(took.as_secs_f64() * 1_000.0);
            }
            Err(error) if error.nothing_sent => self.refused += 1,
            Err(_) => self.failed += 1,
        }
    }

    /// The middle of what good calls took.
    fn median(&mut self) -> String {
        self.milliseconds.sort_by(f64::total_cmp);
        let middle = self.milliseconds.get(self.milliseconds.len() / 2);
        middle.map_or_else(|| "-".to_owned(), |middle| format!("{middle:.0}"))
    }
}

type Board = Arc<Mutex<Seen>>;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let started = Instant::now();
    let runtime = start(started).await?;
    let mut events = runtime.breaker_events();
    let boards: Vec<Board> = AGENTS.iter().map(|_| Board::default()).collect();
    for ((name, _), board) in AGENTS.iter().zip(&boards) {
        let agent = runtime.agent(name).ok_or("every agent is there")?;
        tokio::spawn(call_steadily(agent, Arc::clone(board)));
    }

    println!("Breakers stay open for {} s here instead of 30 s, and no call is tried again.", OPEN.as_secs());
    println!("{ILL} answers 503 from {:.1} s to {:.1} s.\n", ILL_FROM.as_secs_f64(), ILL_UNTIL.as_secs_f64());
    println!(
        "{:>4}  {:<7} {:>5} {:>5} {:>7} {:>6} {:>7}  breaker",
        "s", "agent", "calls", "ok", "refused", "failed", "p50 ms"
    );
    let mut bystanders = Seen::default();
    for second in 1..=SECONDS {
        tokio::time::sleep_until(started + Duration::from_secs(second.into())).await;
        for (view, board) in runtime.agents().iter().zip(&boards) {
            let mut seen = std::mem::take(&mut *board.lock().unwrap_or_else(PoisonError::into_inner));
            let median = seen.median();
            println!(
                "{second:>4}  {:<7} {:>5} {:>5} {:>7} {:>6} {:>7}  {}",
                view.name.as_str(),
                seen.calls,
                seen.good,
                seen.refused,
                seen.failed,
                median,
                view.breaker.state.as_str()
            );
            if view.name.as_str() != ILL {
                bystanders.refused += seen.refused;
                bystanders.failed += seen.failed;
                bystanders.good += seen.good;
            }
        }
        println!();
    }

    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        println!("{}", line_of(&event));
        told.push(event);
    }
    runtime.stop(Duration::from_millis(200)).await;
    println!(
        "\nThe other three: {} good calls, {} refused, {} failed.",
        bystanders.good, bystanders.refused, bystanders.failed
    );
    let only_the_ill = told.iter().all(|event| *event.breaker == *format!("agent:{ILL}"));
    let opened = told.iter().any(|event| event.transition.to == StateName::Open);
    let healed = told.last().is_some_and(|event| event.transition.to == StateName::Closed);
    let unharmed = bystanders.refused + bystanders.failed == 0 && bystanders.good > 0;
    Ok(if only_the_ill && opened && healed && unharmed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Four agents on one provider; one of them follows the script.
async fn start(started: Instant) -> Result<Runtime, Box<dyn Error>> {
    let provider = Name::try_new("local")?;
    let mut builder = Runtime::builder().provider(ProviderSettings::new(provider.clone()));
    for (name, latency) in AGENTS {
        let settings = AgentSettings {
            breaker: BreakerSettings { open: OPEN, open_jitter: 0.0, ..BreakerSettings::default() },
            retry: RetrySettings { attempts_max: 1, ..RetrySettings::default() },
            ..AgentSettings::new(Name::try_new(name)?, provider.clone())
        };
        let work = move |_: Value, _: CallInfo| async move {
            tokio::time::sleep(latency).await;
            let ill = name == ILL && (ILL_FROM..ILL_UNTIL).contains(&started.elapsed());
            if ill { Err(AgentFailure::unavailable("out of memory")) } else { Ok(Value::Null) }
        };
        builder = builder.agent(settings, Arc::new(FunctionAgent::new(work)));
    }
    Ok(builder.start().await?)
}

/// Calls as people do: by the clock, whatever became of the call before.
async fn call_steadily(agent: AgentHandle, board: Board) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (agent, board) = (agent.clone(), Arc::clone(&board));
        tokio::spawn(async move {
            let began = Instant::now();
            let result = agent.call(CallRequest::of(Value::Null)).await;
            board.lock().unwrap_or_else(PoisonError::into_inner).note(&result, began.elapsed());
        });
    }
}

fn line_of(event: &BreakerEvent) -> String {
    let change = event.transition;
    let seconds = change.at.since(Timestamp::ZERO).as_secs_f64();
    let (from, to, reason) = (change.from.as_str(), change.to.as_str(), change.reason.as_str());
    format!("{seconds:>6.2} s  {} {from} -> {to} ({reason})", event.breaker)
}
