//! The storm in virtual time: the same people over the same span alone, beside the export with compartments, and without.

#[path = "callers.rs"]
pub(crate) mod callers;
#[path = "samples.rs"]
pub(crate) mod samples;
#[path = "server.rs"]
pub(crate) mod server;
#[path = "sides.rs"]
pub(crate) mod sides;

use std::{sync::Arc, time::Duration};

use callers::{Export, Plan, Seen, play};
use server::{ModelServer, Speed};
use sides::{Failed, InProcess, Side, start};

/// A server in the manner of one large accelerator that batches: 24 streams; one alone makes 50 tokens a second, and each further one
/// slows all of them by one percent of that. A hundred prompt tokens cost as much as one token of output.
pub(crate) const SERVER: Speed = Speed { slots: 24, alone: 50.0, slowed_by: 0.01, prompt_per_output: 100.0 };

/// 30 people, and an export of documents of 5,000 tokens, 60 at once.
pub(crate) const PLAN: Plan =
    Plan { seed: 2_023, users: 30, think: Duration::from_secs(10), workers: 60, document_tokens: 5_000, faster: 1.0 };

/// What was seen of all three.
pub(crate) struct Storm {
    /// The people alone, for as long as the export takes with compartments.
    pub(crate) quiet: Seen,
    /// Beside the export, with compartments.
    pub(crate) kept_apart: Seen,
    /// Beside the export, without.
    pub(crate) open: Seen,
    /// What the server saw in each.
    pub(crate) servers: [server::Seen; 3],
}

/// Plays all three in virtual time, on a thread's own tokio.
pub(crate) fn in_virtual_time(plan: Plan, documents: u64) -> Result<Storm, Failed> {
    let virtual_time = |side, export| -> Result<(Seen, server::Seen), Failed> {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        tokio.map_err(Failed::Tokio)?.block_on(one(plan, side, export))
    };
    let (kept_apart, second) = virtual_time(Side::Compartments, Export::Documents(documents))?;
    let (quiet, first) = virtual_time(Side::Compartments, Export::None(kept_apart.span))?;
    let (open, third) = virtual_time(Side::Open, Export::Documents(documents))?;
    Ok(Storm { quiet, kept_apart, open, servers: [first, second, third] })
}

async fn one(plan: Plan, side: Side, export: Export) -> Result<(Seen, server::Seen), Failed> {
    let server = ModelServer::new(SERVER);
    let working = tokio::spawn(Arc::clone(&server).run());
    let runtime = start(side, SERVER.slots, plan, Arc::new(InProcess(Arc::clone(&server)))).await?;
    let assistant = runtime.agent("assistant").ok_or(Failed::NoAgent)?;
    let seen = play(&assistant, plan, export).await;
    runtime.stop(Duration::from_secs(1)).await;
    working.abort();
    Ok((seen, server.seen()))
}
