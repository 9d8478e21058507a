//! What all benches share: a meter that shows CPU time beside criterion's wall time, runtimes of agents that do nothing, percentiles.
//! It asserts nothing: figures are read by people, on a machine that they know.
#![allow(dead_code, unreachable_pub, reason = "each bench uses its own part of the kit")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench that cannot be set up has no figure")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{BenchmarkGroup, measurement::WallTime};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use watertight::{
    model::{
        envelope::ErrorCode,
        name::Name,
        reply::{AttemptFailure, Reply},
    },
    runtime::{
        builder::RuntimeBuilder,
        call::{CallContext, CallRequest},
        engine::Runtime,
        handle::AgentHandle,
        ports::{AttemptRequest, Backend, BoxFuture, Progress},
        run_handle::RunRequest,
        settings::{AgentSettings, ProviderSettings},
    },
    workflow::checked::Workflow,
};

/// Slots wherever a bench is not about slots.
pub const PLENTY: u32 = 20_000;

/// CPU time of all threads of this process.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
}

/// A page of memory, as this kernel has it.
const PAGE_BYTES: u64 = 4_096;

/// The resident set of this process in MiB; `None` where the kernel does not say.
pub fn resident_mib() -> Option<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some((pages * PAGE_BYTES) as f64 / (1024.0 * 1024.0))
}

/// CPU and wall time of work.
#[derive(Debug, Default, Clone, Copy)]
pub struct Meter {
    pub cpu: Duration,
    pub wall: Duration,
    pub operations: u64,
}

impl Meter {
    /// Does `operations` of work and adds them up. The wall time of this part.
    pub fn time(&mut self, operations: u64, work: impl FnOnce()) -> Duration {
        let (cpu, wall) = (cpu_time(), Instant::now());
        work();
        let took = wall.elapsed();
        self.cpu += cpu_time().saturating_sub(cpu);
        self.wall += took;
        self.operations += operations;
        took
    }

    pub fn cpu_nanoseconds(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e9 / self.operations.max(1) as f64
    }

    pub fn wall_nanoseconds(&self) -> f64 {
        self.wall.as_secs_f64() * 1e9 / self.operations.max(1) as f64
    }
}

/// One row: criterion measures the wall time of `work(iterations)`, the meter its CPU time. `work` does `together` operations an
/// iteration (threads that do the same beside each other, or items of one run that count apart).
pub fn row(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, together: u64, mut work: impl FnMut(u64)) {
    let mut meter = Meter::default();
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| meter.time(iterations * together, || work(iterations)));
    });
    if meter.operations > 0 {
        let (cpu, wall) = (meter.cpu_nanoseconds(), meter.wall_nanoseconds());
        let rate = 1e9 / wall;
        println!("{name:<44} cpu {cpu:>11.0} ns/op   wall {wall:>11.0} ns/op   {rate:>12.0} op/s\n");
    }
}

/// A name that is known to be one.
pub fn name(text: &str) -> Name {
    Name::try_new(text).unwrap()
}

/// An agent that answers at once with nothing.
pub struct Nothing;

impl Backend for Nothing {
    fn attempt<'a>(&'a self, _: &'a AttemptRequest, _: &'a Progress) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(std::future::ready(Ok(Reply::of(Value::Null))))
    }
}

/// An agent that never answers.
pub struct Never;

impl Backend for Never {
    fn attempt<'a>(&'a self, _: &'a AttemptRequest, _: &'a Progress) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(std::future::pending())
    }
}

/// A builder with one provider whose slots are shared by all its agents.
pub fn builder() -> RuntimeBuilder {
    let provider = ProviderSettings { slots: Some(PLENTY), ..ProviderSettings::new(name("local")) };
    Runtime::builder().seed(1).provider(provider)
}

/// Settings of an agent of this builder.
pub fn agent(agent: &str, slots: u32) -> AgentSettings {
    AgentSettings { slots, ..AgentSettings::new(name(agent), name("local")) }
}

/// A runtime with agents of these names that do nothing.
pub async fn nothing_doers(names: &[&str]) -> Runtime {
    let add = |builder: RuntimeBuilder, name: &&str| builder.agent(agent(name, PLENTY), Arc::new(Nothing));
    names.iter().fold(builder(), add).start().await.unwrap()
}

/// A call without input.
pub fn request() -> CallRequest {
    CallRequest::of(Value::Null)
}

/// `calls` calls, one after the other, that must all succeed.
pub async fn call_in_turn(handle: &AgentHandle, calls: u64) {
    for _ in 0..calls {
        handle.call(request()).await.unwrap();
    }
}

/// The same; where no slot is free it calls again after the others had their turn. How many calls were refused.
pub async fn call_until_answered(handle: &AgentHandle, calls: u64) -> u64 {
    let mut refused = 0;
    for _ in 0..calls {
        while let Err(error) = handle.call(request()).await {
            assert_eq!(error.envelope.error_code, ErrorCode::AgentBulkheadFull, "{error}");
            refused += 1;
            tokio::task::yield_now().await;
        }
    }
    refused
}

/// Two worker threads, as on the smallest machine that this is for.
pub fn two_workers() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Does `work(calls)` in `tasks` tasks beside each other, `calls` in all, on the runtime's own threads.
pub fn beside_each_other<Working>(
    tokio: &tokio::runtime::Runtime,
    tasks: u64,
    calls: u64,
    work: impl Fn(u64) -> Working,
) where
    Working: Future<Output = ()> + Send + 'static,
{
    tokio.block_on(async {
        let started: Vec<_> = (0..tasks)
            .map(|task| calls / tasks + u64::from(task < calls % tasks))
            .filter(|share| *share > 0)
            .map(|share| tokio::spawn(work(share)))
            .collect();
        for task in started {
            task.await.unwrap();
        }
    });
}

/// The value that `share` of all are at most, of times in any order.
pub fn percentile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    // The cast cannot lose: a bench has far fewer than 2^52 values.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let place = ((times.len() as f64 * share).ceil() as usize).clamp(1, times.len());
    times[place - 1]
}

/// A run of `workflow` that nobody owns.
pub fn run_request(workflow: Arc<Workflow>, input: serde_json::Map<String, Value>) -> RunRequest {
    RunRequest { workflow, input, deadline: None, context: CallContext::default() }
}
