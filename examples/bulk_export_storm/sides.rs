//! The two sides: the same agent on the same provider, with compartments and without. Nothing else differs between them.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use watertight::{
    model::{
        name::{InvalidName, Name},
        reply::{AttemptFailure, Reply, Usage},
    },
    policy::{
        breaker::settings::{BreakerSettings, Mode},
        compartment::settings::{CompartmentSettings, FeatureSettings, TenantSettings, TierSettings, UnknownTenant},
        retry_settings::RetrySettings,
    },
    runtime::{
        builder::StartError,
        engine::Runtime,
        ports::{AttemptRequest, Backend, BoxFuture, Progress},
        settings::{AgentSettings, ProviderSettings, Timeouts},
    },
};

use crate::storm::{
    callers::{Plan, TENANTS},
    server::{ModelServer, Work},
};

/// Slots of the provider that only chats take.
pub(crate) const CHAT_SLOTS: u32 = 20;
/// Slots of the provider that the export has, and only it.
pub(crate) const EXPORT_SLOTS: u32 = 3;
/// How long anybody may wait in line.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(5);
/// Slots of each tenant, and how much of them a feature of it has.
pub(crate) const TENANT_SLOTS: u32 = 20;
const CHAT_RATIO: f64 = 0.85;
const EXPORT_RATIO: f64 = 0.15;
/// More calls than anybody makes here.
const PLENTY: u32 = 1_000;
/// Longer than any call waits here: what is too slow shows in the figures and is not cut off.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// Whether callers are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// By feature and tenant.
    Compartments,
    /// Not at all.
    Open,
}

fn name(text: &str) -> Result<Name, InvalidName> {
    Name::try_new(text)
}

/// A runtime of this side whose one agent `assistant` is answered by `backend`; the model server behind it has so many slots. Where all
/// goes faster than in life, lines do too.
pub(crate) async fn start(side: Side, slots: usize, plan: Plan, backend: Arc<dyn Backend>) -> Result<Runtime, Failed> {
    let provider = name("shared")?;
    // Breakers only measure, so that all that is seen is the work of compartments.
    let (slots, agents) = (u32::try_from(slots).unwrap_or(PLENTY), BreakerSettings::default());
    let mut settings = ProviderSettings {
        breaker: BreakerSettings { mode: Mode::MetricsOnly, ..BreakerSettings::provider_default() },
        ..ProviderSettings::new(provider.clone())
    };
    let assistant = AgentSettings {
        slots: PLENTY,
        breaker: BreakerSettings { mode: Mode::MetricsOnly, ..agents },
        retry: RetrySettings { attempts_max: 1, ..RetrySettings::default() },
        timeouts: Timeouts { attempt: Some(PATIENCE), call: PATIENCE, ..Timeouts::default() },
        ..AgentSettings::new(name("assistant")?, provider)
    };
    let mut builder = Runtime::builder().seed(plan.seed);
    if side == Side::Compartments {
        settings.slots = Some(slots);
        builder = builder.compartments(compartments(WAIT_MAX.div_f64(plan.faster))?);
    }
    Ok(builder.provider(settings).agent(assistant, backend).start().await?)
}

/// Two features, and tenants of one tier, each with its own part of both.
fn compartments(max_wait: Duration) -> Result<CompartmentSettings, InvalidName> {
    let (shared, tier) = (name("shared")?, name("enterprise")?);
    let chat = FeatureSettings {
        max_wait,
        ratio: Some(CHAT_RATIO),
        guaranteed: vec![(shared.clone(), CHAT_SLOTS)],
        ..FeatureSettings::new(name("chat")?)
    };
    let export = FeatureSettings {
        max_wait,
        slots: Some(EXPORT_SLOTS),
        ratio: Some(EXPORT_RATIO),
        guaranteed: vec![(shared, EXPORT_SLOTS)],
        ..FeatureSettings::new(name("export")?)
    };
    let tenant = |text: &&str| Ok(TenantSettings { name: name(text)?, tier: tier.clone() });
    Ok(CompartmentSettings {
        features: vec![chat, export],
        tenants: TENANTS.iter().map(tenant).collect::<Result<_, InvalidName>>()?,
        tiers: vec![TierSettings { slots: Some(TENANT_SLOTS), max_wait, ..TierSettings::new(tier.clone()) }],
        unknown_tenant: UnknownTenant::Refused,
        ..CompartmentSettings::default()
    })
}

/// A side that could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    /// A name.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The runtime.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The runtime has no such agent.
    #[error("the runtime has no agent `assistant`")]
    NoAgent,
    /// The thread's tokio, or a port.
    #[error("tokio: {0}")]
    Tokio(std::io::Error),
    /// The client of the model server.
    #[error("the provider's client: {0}")]
    #[allow(dead_code, reason = "only over HTTP")]
    Backend(String),
}

/// The model server in this process, without a network.
pub(crate) struct InProcess(pub(crate) Arc<ModelServer>);

impl Backend for InProcess {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        _: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async move {
            let tokens = |key: &str| request.input.get(key).and_then(serde_json::Value::as_u64).unwrap_or_default();
            let work = Work { prompt_tokens: tokens("prompt_tokens"), output_tokens: tokens("output_tokens") };
            self.0.answer(work).await;
            let usage = Usage {
                prompt_tokens: work.prompt_tokens,
                output_tokens: work.output_tokens,
                estimated: false,
                ..Usage::default()
            };
            Ok(Reply { usage: Some(usage), ..Reply::of(json!({ "text": "" })) })
        })
    }
}
