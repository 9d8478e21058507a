//! Random worlds: scripts, cancels, deaths at random virtual times. Whatever happened, nothing is lost and nothing is stuck.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Poll},
};

use proptest::prelude::*;
use watertight::{
    model::facts::Ending,
    policy::breaker::state::StateName,
    runtime::{
        call::{CallContext, CallRequest},
        engine::{Part, Runtime},
        settings::ProviderSettings,
    },
};

use crate::{
    kit::{Answer, Scripted, agent, call, code, name, pass, provider, settle},
    support::{agents_on, all, hold, ms, s, state},
};

const AGENTS: [&str; 3] = ["draft", "review", "meta"];

/// When a caller leaves.
#[derive(Debug, Clone, Copy)]
enum Leave {
    Never,
    /// After this time.
    After(u64),
    /// After its future was polled so often: each of its await points is one of these.
    Polled(u8),
}

#[derive(Debug, Clone)]
enum Act {
    Call { agent: usize, answer: Answer, leave: Leave, deadline_ms: Option<u64> },
    CrashAgent(usize),
    CrashSupervisor,
}

fn answers() -> impl Strategy<Value = Answer> {
    let plain = prop_oneof![
        4 => Just(Answer::Good),
        2 => Just(Answer::status(503)),
        1 => Just(Answer::status(404)),
        1 => Just(Answer::status_after(429, s(2))),
        1 => Just(Answer::status_after(429, s(40))),
        1 => Just(Answer::status(401)),
        1 => Just(Answer::ending(Ending::Network { connected: false })),
        1 => Just(Answer::ending(Ending::BadReply)),
        1 => Just(Answer::Hang),
        1 => Just(Answer::Panic),
    ];
    (plain, any::<bool>(), 0_u64..70_000).prop_map(|(plain, content, wait)| {
        let after = if wait % 3 == 0 { plain } else { plain.after(ms(wait)) };
        if content { Answer::Content(Box::new(after)) } else { after }
    })
}

fn acts() -> impl Strategy<Value = Act> {
    let leave = prop_oneof![
        2 => Just(Leave::Never),
        2 => (0_u64..100_000).prop_map(Leave::After),
        1 => (0_u8..4).prop_map(Leave::Polled),
    ];
    prop_oneof![
        20 => (0..AGENTS.len(), answers(), leave, prop::option::weighted(0.2, 0_u64..50_000))
            .prop_map(|(agent, answer, leave, deadline_ms)| Act::Call { agent, answer, leave, deadline_ms }),
        1 => (0..AGENTS.len()).prop_map(Act::CrashAgent),
        1 => Just(Act::CrashSupervisor),
    ]
}

/// Drops `inner` after it was polled `polls` times.
struct Polled<F> {
    inner: Pin<Box<F>>,
    polls: u8,
}

impl<F: Future> Future for Polled<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.polls == 0 {
            return Poll::Ready(());
        }
        self.polls -= 1;
        match self.inner.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending if self.polls == 0 => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn begin(runtime: &Runtime, agent: usize, leave: Leave, deadline_ms: Option<u64>) {
    let handle = runtime.agent(AGENTS[agent]).unwrap();
    let deadline = deadline_ms.map(|wait| runtime.clock().now().after(ms(wait)));
    let context = CallContext { deadline, ..CallContext::default() };
    let request = CallRequest { context, ..CallRequest::of(serde_json::Value::Null) };
    tokio::spawn(async move {
        let call = handle.call(request);
        match leave {
            Leave::Never => drop(call.await),
            Leave::After(wait) => drop(tokio::time::timeout(ms(wait), call).await),
            Leave::Polled(polls) => Polled { inner: Box::pin(call), polls }.await,
        }
    });
}

async fn world(acts: Vec<(u64, Act)>, slots: u32, provider_slots: u32, keyed: bool) -> Result<(), TestCaseError> {
    let local = ProviderSettings {
        slots: Some(provider_slots),
        guaranteed: AGENTS.map(|of| (name(of), 0)).into(),
        key: keyed.then(|| name("main")),
        ..provider("local")
    };
    let agents = AGENTS
        .map(|of| {
            let mut settings = agent(of, "local");
            (settings.slots, settings.retry.attempts_max) = (slots, 3);
            settings
        })
        .into();
    let (runtime, backends) = agents_on(local, agents).await;
    for (wait, act) in acts {
        match act {
            Act::Call { agent, answer, leave, deadline_ms } => {
                backends[agent].now(answer);
                begin(&runtime, agent, leave, deadline_ms);
            }
            Act::CrashAgent(agent) => runtime.crash(Part::Agent(AGENTS[agent])).unwrap(),
            Act::CrashSupervisor => runtime.crash(Part::Supervisor).unwrap(),
        }
        if wait % 4 != 0 {
            tokio::time::sleep(ms(wait)).await;
        }
        let in_flight: u32 = AGENTS.map(|of| runtime.agent(of).unwrap().in_flight()).iter().sum();
        prop_assert!(in_flight <= provider_slots.max(slots * 3).min(provider_slots));
    }
    // Every call is over by its own timeout.
    pass(s(200)).await;
    nothing_is_lost(&runtime, &backends, slots)?;
    nothing_is_stuck(&runtime, &backends, keyed).await?;
    // All of the provider's slots can be taken again.
    let mut held = Vec::new();
    let mut admitted = 0;
    for (of, backend) in AGENTS.iter().zip(&backends) {
        let (more, calls) = hold(&runtime, of, backend, 12).await;
        admitted += more;
        held.push(calls);
    }
    prop_assert_eq!(admitted, (slots * 3).min(provider_slots) as usize);
    Ok(())
}

fn nothing_is_lost(runtime: &Runtime, backends: &[std::sync::Arc<Scripted>], slots: u32) -> Result<(), TestCaseError> {
    for (of, backend) in AGENTS.iter().zip(backends) {
        let handle = runtime.agent(of).unwrap();
        prop_assert_eq!((handle.in_flight(), handle.mailbox_depth()), (0, 0), "{}", of);
        prop_assert_eq!(backend.running.load(Ordering::SeqCst), 0);
        prop_assert!(backend.peak.load(Ordering::SeqCst) <= slots);
    }
    Ok(())
}

/// With everybody well again, a call a second closes every breaker within ten minutes.
async fn nothing_is_stuck(
    runtime: &Runtime,
    backends: &[std::sync::Arc<Scripted>],
    keyed: bool,
) -> Result<(), TestCaseError> {
    all(backends, &Answer::Good);
    if keyed {
        // A rejected key is an operator's business.
        runtime.act("key:local/main", watertight::runtime::supervisor::BreakerAct::Reset).unwrap();
    }
    for _ in 0..600 {
        for of in AGENTS {
            drop(call(runtime, of).await);
        }
        pass(s(1)).await;
    }
    for of in AGENTS {
        prop_assert_eq!(code(&call(runtime, of).await), "OK", "{}", of);
        prop_assert_eq!(state(runtime, &format!("agent:{of}")), StateName::Closed);
    }
    prop_assert_eq!(state(runtime, "provider:local"), StateName::Closed);
    settle().await;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]
    #[test]
    fn nothing_is_lost_and_nothing_is_stuck(
        acts in prop::collection::vec((0_u64..20_000, acts()), 1..60),
        slots in 1_u32..6,
        provider_slots in 1_u32..8,
        keyed: bool,
    ) {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        tokio.block_on(world(acts, slots, provider_slots, keyed))?;
    }
}
