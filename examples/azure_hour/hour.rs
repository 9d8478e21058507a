//! Plays the traces through one runtime in virtual time: each call is made when it was made then, and takes as long as its tokens say. What was
//! really used is written down at the moment at which each attempt began, and counted again apart from the runtime.

#[path = "trace.rs"]
pub(crate) mod trace;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use trace::{Arrival, Service};
use watertight::{
    model::{
        name::{InvalidName, Name},
        reply::{AttemptFailure, Reply, Usage},
    },
    policy::compartment::settings::{CompartmentSettings, FeatureSettings, Rates},
    runtime::{
        builder::StartError,
        call::{CallContext, CallRequest},
        engine::Runtime,
        handle::AgentHandle,
        ports::{Asked, AttemptRequest, Backend, BoxFuture, Progress, TokenEstimate},
        settings::{AgentSettings, ProviderSettings},
        token_count::TokenCounter,
    },
};

/// The provider's slots, and what each service is guaranteed of them.
pub(crate) const SLOTS: u32 = 44;
pub(crate) const CONVERSATION_SLOTS: u32 = 34;
pub(crate) const CODE_SLOTS: u32 = 8;
/// Tokens that each may use in any rolling minute.
pub(crate) const CONVERSATION_TOKENS: u64 = 700_000;
pub(crate) const CODE_TOKENS: u64 = 500_000;
/// How long a call may wait in line.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(5);
/// What an answer may have at most, as the two services would ask for it: the largest of each trace is below.
const CONVERSATION_OUTPUT_MAX: u64 = 1_000;
const CODE_OUTPUT_MAX: u64 = 2_000;
/// A batch's call is given up after so long.
const CODE_PATIENCE: Duration = Duration::from_secs(3_600);
/// What a call takes: this, and so much for each token of the prompt and of the output.
pub(crate) const BASE: Duration = Duration::from_millis(60);
pub(crate) const PROMPT_TOKEN: Duration = Duration::from_micros(200);
pub(crate) const OUTPUT_TOKEN: Duration = Duration::from_millis(20);

/// What was seen of one service.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// From the call of the trace to its answer, in milliseconds.
    pub(crate) took_ms: Vec<f64>,
    /// Refusals by reason.
    pub(crate) refused: BTreeMap<String, u64>,
    /// Calls that had no answer.
    pub(crate) lost: u64,
    /// When attempts began, and the tokens that each used.
    pub(crate) used: Vec<(Duration, u64)>,
}

impl Seen {
    /// The largest sum of tokens over any 60 s: exact, over every window that ends with an attempt.
    pub(crate) fn minute_max(&self) -> u64 {
        let mut used = self.used.clone();
        used.sort_unstable();
        let (mut first, mut sum, mut largest) = (0, 0, 0);
        for (at, tokens) in &used {
            sum += tokens;
            while used.get(first).is_some_and(|(began, _)| *began + Duration::from_secs(60) <= *at) {
                sum -= used[first].1;
                first += 1;
            }
            largest = largest.max(sum);
        }
        largest
    }

    /// By nearest rank.
    pub(crate) fn percentile_ms(&self, percent: usize) -> Option<f64> {
        let mut sorted = self.took_ms.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get((sorted.len() * percent).div_ceil(100).checked_sub(1)?).copied()
    }
}

/// A run that could not be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("tokio: {0}")]
    Tokio(#[from] std::io::Error),
    #[error("the runtime has no agent `model`")]
    NoAgent,
}

type Used = Arc<Mutex<BTreeMap<Service, Vec<(Duration, u64)>>>>;

/// A model behind a provider: it takes its time, and writes down what it uses.
struct Model {
    began: Instant,
    used: Used,
}

fn tokens(input: &Value, key: &str) -> u64 {
    input.get(key).and_then(Value::as_u64).unwrap_or_default()
}

impl Backend for Model {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        _: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async move {
            let (prompt, output) = (tokens(&request.input, "prompt"), tokens(&request.input, "output"));
            let service =
                if request.feature.as_deref() == Some("code") { Service::Code } else { Service::Conversation };
            {
                let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
                used.entry(service).or_default().push((self.began.elapsed(), prompt + output));
            }
            sleep(service_time(prompt, output)).await;
            let usage = Usage { prompt_tokens: prompt, output_tokens: output, ..Usage::default() };
            Ok(Reply { usage: Some(usage), ..Reply::of(Value::Null) })
        })
    }

    fn estimate(&self, asked: &Asked, _: Option<&str>) -> Option<TokenEstimate> {
        let output_max = Some(tokens(&asked.input, "output_max"));
        let prompt = tokens(&asked.input, "prompt");
        Some(TokenEstimate { prompt, output_max, counter: TokenCounter::Letters })
    }
}

fn service_time(prompt: u64, output: u64) -> Duration {
    let times = |each: Duration, count: u64| each * u32::try_from(count).unwrap_or(u32::MAX);
    BASE + times(PROMPT_TOKEN, prompt) + times(OUTPUT_TOKEN, output)
}

/// Plays all arrivals, in virtual time, on a thread's own tokio.
pub(crate) fn play(arrivals: Vec<Arrival>) -> Result<BTreeMap<Service, Seen>, Failed> {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    tokio.block_on(async move {
        let used = Used::default();
        let began = Instant::now();
        let runtime = start(Model { began, used: Arc::clone(&used) }).await?;
        let model = runtime.agent("model").ok_or(Failed::NoAgent)?;
        let mut calls = JoinSet::new();
        for arrival in arrivals {
            calls.spawn(call(model.clone(), arrival, began + arrival.at));
        }
        let mut all: BTreeMap<Service, Seen> = BTreeMap::new();
        while let Some(ended) = calls.join_next().await {
            let Ok((service, took, refused)) = ended else { continue };
            let seen = all.entry(service).or_default();
            match took {
                Some(took) => seen.took_ms.push(took.as_secs_f64() * 1_000.0),
                None => seen.lost += 1,
            }
            for reason in refused {
                *seen.refused.entry(reason).or_default() += 1;
            }
        }
        runtime.stop(Duration::from_secs(1)).await;
        for (service, used) in std::mem::take(&mut *used.lock().unwrap_or_else(PoisonError::into_inner)) {
            all.entry(service).or_default().used = used;
        }
        Ok(all)
    })
}

/// One provider, one agent, two features.
async fn start(model: Model) -> Result<Runtime, Failed> {
    let shared = Name::try_new("shared")?;
    let feature = |name: &str, guaranteed, tokens| -> Result<FeatureSettings, InvalidName> {
        Ok(FeatureSettings {
            guaranteed: vec![(shared.clone(), guaranteed)],
            rates: Rates { tokens_per_minute: Some(tokens), ..Rates::default() },
            max_wait: WAIT_MAX,
            line_max: 1_000,
            ..FeatureSettings::new(Name::try_new(name)?)
        })
    };
    let mut code = feature("code", CODE_SLOTS, CODE_TOKENS)?;
    code.slots = Some(CODE_SLOTS);
    let compartments = CompartmentSettings {
        features: vec![feature("conversation", CONVERSATION_SLOTS, CONVERSATION_TOKENS)?, code],
        ..CompartmentSettings::default()
    };
    let provider = ProviderSettings { slots: Some(SLOTS), ..ProviderSettings::new(shared.clone()) };
    let agent = AgentSettings { slots: SLOTS, ..AgentSettings::new(Name::try_new("model")?, shared.clone()) };
    let builder = Runtime::builder().seed(2_023).compartments(compartments);
    Ok(builder.provider(provider).agent(agent, Arc::new(model)).start().await?)
}

/// Makes one call at its time. A refused conversation is lost: somebody waited for it. A refused piece of code comes back when it was told to.
async fn call(model: AgentHandle, arrival: Arrival, at: Instant) -> (Service, Option<Duration>, Vec<String>) {
    sleep_until(at).await;
    let (feature, class, output_max, patience) = match arrival.service {
        Service::Conversation => ("conversation", "interactive", CONVERSATION_OUTPUT_MAX, Duration::ZERO),
        Service::Code => ("code", "batch", CODE_OUTPUT_MAX, CODE_PATIENCE),
    };
    let input = json!({ "prompt": arrival.prompt_tokens, "output": arrival.output_tokens, "output_max": output_max });
    let context =
        CallContext { feature: Some(feature.to_owned()), priority: Some(class.to_owned()), ..CallContext::default() };
    let mut refused = Vec::new();
    loop {
        let request = CallRequest { context: context.clone(), ..CallRequest::of(input.clone()) };
        let Err(error) = model.call(request).await else {
            return (arrival.service, Some(at.elapsed()), refused);
        };
        refused.push(error.envelope.error_code.as_str().to_owned());
        let wait = Duration::from_secs_f64(error.envelope.retry_after.unwrap_or(1.0));
        if !error.nothing_sent || at.elapsed() + wait > patience {
            return (arrival.service, None, refused);
        }
        sleep(wait).await;
    }
}
