//! A rerun at a running service, over its HTTP surface. Streams that break are followed on from the last event.

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Url};
use serde_json::json;

use super::command::{Followed, Pair};
use crate::{
    cli::{args::RerunArgs, exit::Stop, progress::Progress, say::say},
    model::{
        envelope::Envelope,
        event::{Event, EventType},
        run::RunRecord,
    },
    transport::sse::SseDecoder,
};

/// An answer that is no stream takes no longer.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// How often in a row the events of a run are asked for in vain, and how long between.
const TRIES_MAX: u32 = 30;
const TRY_EVERY: Duration = Duration::from_secs(1);

/// A running service.
pub(in crate::cli) struct Service {
    client: Client,
    base: Url,
    key: Option<String>,
}

/// Reruns.
pub(super) async fn rerun(url: &str, args: &RerunArgs, prompt: Option<String>) -> Result<Pair, Stop> {
    let service = Service::of("--url", url, args.key_env.as_deref())?;
    let old: RunRecord = service.ask(service.get(&format!("v1/runs/{}", args.run))?).await?;
    let body = json!({ "from": args.from, "prompt": prompt });
    let asked = service.request(reqwest::Method::POST, &format!("v1/runs/{}/rerun", args.run))?.json(&body);
    let begun: RunRecord = service.ask(asked).await?;
    let id = begun.run_id;
    say(&format!("watertight: run {id} goes on from step {} of {}", args.from, old.run_id));
    let mut progress = Progress::start(args.quiet || args.json);
    let followed = tokio::select! {
        ended = service.follow(&id, &mut progress) => ended.map(|()| Followed::ToItsEnd),
        _ = tokio::signal::ctrl_c() => Ok(Followed::Interrupted),
    };
    progress.end();
    let followed = followed?;
    if followed == Followed::Interrupted {
        say("watertight: interrupted, cancelling the run");
        let cancel = service.request(reqwest::Method::POST, &format!("v1/runs/{id}/cancel"))?;
        let new: RunRecord = service.ask(cancel).await?;
        return Ok(Pair { old, new, followed });
    }
    let new: RunRecord = service.ask(service.get(&format!("v1/runs/{id}"))?).await?;
    Ok(Pair { old, new, followed })
}

impl Service {
    /// The service at `url`, which `flag` named; with the key in the variable `key_env`.
    pub(in crate::cli) fn of(flag: &str, url: &str, key_env: Option<&str>) -> Result<Self, Stop> {
        let wrong = |why: &dyn std::fmt::Display| Stop::Usage(format!("{flag} {url}: {why}"));
        let slashed = format!("{}/", url.trim_end_matches('/'));
        let rule = "must be the address of a service, as in http://127.0.0.1:7800";
        let base = Url::parse(&slashed).map_err(|_| wrong(&rule))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(wrong(&rule));
        }
        let key = key_env.map(|name| {
            std::env::var(name).map_err(|_| Stop::Usage(format!("--key-env {name}: there is no such variable")))
        });
        let client = Client::builder().connect_timeout(Duration::from_secs(5)).build().map_err(Stop::usage)?;
        Ok(Self { client, base, key: key.transpose()? })
    }

    fn request(&self, method: reqwest::Method, path: &str) -> Result<RequestBuilder, Stop> {
        let url = self.base.join(path).map_err(Stop::usage)?;
        let request = self.client.request(method, url);
        Ok(match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        })
    }

    /// A question at `path`.
    pub(in crate::cli) fn get(&self, path: &str) -> Result<RequestBuilder, Stop> {
        self.request(reqwest::Method::GET, path)
    }

    /// One question; an error answer is told in the service's own words.
    pub(in crate::cli) async fn ask<T: serde::de::DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Stop> {
        let failed = |error: reqwest::Error| {
            let hint = if error.is_connect() { "; does `watertight serve` run there?" } else { "" };
            Stop::Usage(format!("{}: {}{hint}", self.base, causes(&error)))
        };
        let answer = request.timeout(ANSWER_WAIT).send().await.map_err(failed)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(failed)?;
        if !status.is_success() {
            let told = told(&body).unwrap_or_else(|| format!("HTTP {status}"));
            return Err(Stop::Usage(told));
        }
        serde_json::from_slice(&body).map_err(|error| Stop::Usage(format!("{}: no answer of ours: {error}", self.base)))
    }

    /// Shows a run's events until its last one.
    async fn follow(&self, id: &str, progress: &mut Progress) -> Result<(), Stop> {
        let (mut last, mut tries) = (0_u64, 0);
        loop {
            let seen = last;
            if self.follow_once(id, &mut last, progress).await? {
                return Ok(());
            }
            tries = if last > seen { 0 } else { tries + 1 };
            if tries > TRIES_MAX {
                say(&format!("watertight: {} tells no more events of run {id}; it goes on there", self.base));
                return Err(Stop::Failed);
            }
            tokio::time::sleep(TRY_EVERY).await;
        }
    }

    /// One stream, to its end or until it breaks. Whether the last event came.
    async fn follow_once(&self, id: &str, last: &mut u64, progress: &mut Progress) -> Result<bool, Stop> {
        let request = self.get(&format!("v1/runs/{id}/events?after={last}"))?;
        let Ok(mut answer) = request.send().await else { return Ok(false) };
        if !answer.status().is_success() {
            return Ok(false);
        }
        let mut decoder = SseDecoder::new();
        while let Ok(Some(piece)) = answer.chunk().await {
            decoder.push(&piece);
            while let Ok(Some(frame)) = decoder.pop() {
                let Ok(event) = serde_json::from_str::<Event>(&frame.data) else { continue };
                *last = event.id;
                progress.show(&event);
                if event.kind == EventType::RunFinished {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// The message of an error answer.
fn told(body: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(body).ok()?;
    let envelope: Envelope = serde_json::from_value(value.get("error")?.clone()).ok()?;
    Some(envelope.message)
}

fn causes(error: &reqwest::Error) -> String {
    let (mut text, mut cause) = (error.to_string(), std::error::Error::source(error));
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
