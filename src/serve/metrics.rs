//! `/metrics` as Prometheus reads it. The program installs the recorder, never the library; what a rule may name is there from the start.

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse as _, Response},
};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    access::caller::Caller,
    answer::failure::Failure,
    state::{AppState, MetricsPage},
};
use crate::{
    model::{
        envelope::ErrorCode,
        name::Name,
        run::{RunStatus, StepStatus},
    },
    policy::fallback::Reason,
    runtime::{
        metric::{self, Kind, SECONDS_BUCKETS},
        reload::gone::GoneGauge,
        spent::Guess,
    },
};

/// How often what histograms collected is folded in.
pub const UPKEEP: Duration = Duration::from_secs(5);
/// Refusals of our own: their series are there from the start.
const REFUSALS: [ErrorCode; 11] = [
    ErrorCode::AgentCircuitOpen,
    ErrorCode::AgentBulkheadFull,
    ErrorCode::QuotaSpent,
    ErrorCode::DeadlineExceeded,
    ErrorCode::AgentRestarted,
    ErrorCode::ShuttingDown,
    ErrorCode::RateLimited,
    ErrorCode::CallVolumeExceeded,
    ErrorCode::LoadShed,
    ErrorCode::TokenBudgetExhausted,
    ErrorCode::TokenRequestTooLarge,
];

/// Counters that have no labels: they stand at 0 before anything happened.
const WITHOUT_LABELS: [metric::Metric; 3] = [metric::CALLERS_SHUT, metric::CAPTURES_LEFT_OUT, metric::OUTCOMES_LOST];
/// Counters of each agent that stand at 0 before anything happened.
const OF_AGENTS: [metric::Metric; 4] =
    [metric::ACTOR_RESTARTS, metric::DEAD_LETTERS, metric::RETRIES, metric::USAGE_ESTIMATED];
/// How runs end.
const RUNS_END: [RunStatus; 5] =
    [RunStatus::Completed, RunStatus::CompletedDegraded, RunStatus::Failed, RunStatus::Cancelled, RunStatus::TimedOut];
/// How steps end.
const STEPS_END: [StepStatus; 5] =
    [StepStatus::Succeeded, StepStatus::Degraded, StepStatus::Failed, StepStatus::Skipped, StepStatus::Cancelled];

/// Installs the recorder of this process and describes every metric. Before the runtime is started: it registers its series then.
pub fn install() -> Result<MetricsPage, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for metric in metric::ALL {
        if metric.kind == Kind::Histogram {
            builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), &SECONDS_BUCKETS)?;
        }
    }
    let page = MetricsPage(builder.install_recorder()?);
    for metric in metric::ALL {
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, metric.help),
            Kind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
            Kind::Histogram => metrics::describe_histogram!(metric.name, metric.help),
        }
    }
    Ok(page)
}

/// Series that rules name exist before anything happened. `with_targets` are the agents that have further targets.
pub fn begin_with_zero<'a>(agents: impl Iterator<Item = &'a Name>, with_targets: impl Iterator<Item = &'a Name>) {
    let begin = |of: metric::Metric, agent: &Name, reason: &'static str| {
        let agent = metrics::Label::new("agent", agent.as_str().to_owned());
        metric::count(of, vec![agent, metrics::Label::from_static_parts("reason", reason)], 0);
    };
    for of in WITHOUT_LABELS {
        metric::count(of, Vec::new(), 0);
    }
    for status in RUNS_END {
        metric::count(metric::RUNS, vec![metrics::Label::from_static_parts("status", status.as_str())], 0);
    }
    for status in STEPS_END {
        metric::count(metric::STEPS, vec![metrics::Label::from_static_parts("status", status.as_str())], 0);
    }
    for agent in agents {
        for of in OF_AGENTS {
            metric::count(of, vec![metrics::Label::new("agent", agent.as_str().to_owned())], 0);
        }
        for code in REFUSALS {
            begin(metric::REFUSED, agent, code.as_str());
        }
        for guess in Guess::ALL {
            begin(metric::TOKENS_GUESSED, agent, guess.as_str());
        }
    }
    for agent in with_targets {
        for reason in Reason::ALL {
            begin(metric::FALLBACKS, agent, reason.as_str());
        }
    }
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(metrics_page))
}

/// The metrics, for operators: they count what all tenants do.
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, content_type = "text/plain"), (status = 403), (status = 404)))]
pub(crate) async fn metrics_page(State(state): State<AppState>, caller: Caller) -> Result<Response, Failure> {
    caller.must_be_operator()?;
    let Some(MetricsPage(handle)) = &state.metrics else { return Err(Failure::not_found("metrics page here")) };
    let kind = (header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    let gone = state.door.now().map(|running| running.runtime.gone_gauges()).unwrap_or_default();
    Ok(([kind], without_gone(&handle.render(), &gone)).into_response())
}

/// The page without the gauges of what a reload took away: they would say for ever what was true at its end. Counters stay, so that
/// rates over that moment are right.
fn without_gone(page: &str, gone: &[GoneGauge]) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let label = |(key, value): &(&'static str, Arc<str>)| format!("{key}=\"{}\"", escaped(value));
    let mut labels_of: HashMap<&str, Vec<Vec<String>>> = HashMap::new();
    for gone in gone {
        labels_of.entry(gone.gauge).or_default().push(gone.labels.iter().map(label).collect());
    }
    let is_gone = |line: &&str| {
        let Some((name, labels)) = line.split_once('{') else { return false };
        let gone = labels_of.get(name).into_iter().flatten();
        gone.into_iter().any(|gone| gone.iter().all(|label| has_label(labels, label)))
    };
    page.lines().filter(|line| !is_gone(line)).fold(String::with_capacity(page.len()), |page, line| page + line + "\n")
}

/// Whether one of these labels is `label`, and not only ends like it.
fn has_label(labels: &str, label: &str) -> bool {
    labels.match_indices(label).any(|(at, _)| at == 0 || labels[..at].ends_with(','))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B42: gauges of what is gone vanish, and nothing else does.
    #[test]
    fn gauges_of_what_is_gone_vanish() {
        let kept = "# TYPE watertight_slots gauge\nwatertight_slots{agent=\"draft2\"} 3\nwatertight_admitted_total{agent=\"draft\"} 9\n\
            watertight_model_warmth{provider=\"a\",model=\"y\",state=\"warm\"} 1\n";
        let page = format!(
            "{kept}watertight_slots{{agent=\"draft\"}} 3\nwatertight_breaker_state{{state=\"open\",breaker=\"agent:draft:a/\\\"b\"}} 1\n\
            watertight_model_warmth{{provider=\"a\",model=\"x\",state=\"warm\"}} 1\n"
        );
        let of = |gauge: metric::Metric, labels: &[(&'static str, &str)]| GoneGauge {
            gauge: gauge.name,
            labels: labels.iter().map(|(key, value)| (*key, Arc::from(*value))).collect(),
        };
        let gone = [
            of(metric::SLOTS, &[("agent", "draft")]),
            of(metric::BREAKER_STATE, &[("breaker", "agent:draft:a/\"b")]),
            of(metric::MODEL_WARMTH, &[("provider", "a"), ("model", "x")]),
        ];
        assert_eq!(without_gone(&page, &gone), kept);
        assert_eq!(without_gone(&page, &[]), page);
    }

    #[test]
    fn what_rules_name_is_there_from_the_start() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let [plain, with_targets] = ["plain", "with-targets"].map(|name| Name::try_new(name).unwrap());
        metrics::with_local_recorder(&recorder, || {
            begin_with_zero([&plain, &with_targets].into_iter(), [&with_targets].into_iter());
        });
        let page = handle.render();
        let series = |metric: metric::Metric, agent: &str, reason: &str| {
            page.contains(&format!("{}{{agent=\"{agent}\",reason=\"{reason}\"}} 0\n", metric.name))
        };
        // As the page for people says it.
        let rows = include_str!("../../docs/metrics.md").lines().filter(|row| row.contains("| counter | - |"));
        let bare: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
        assert!(bare.len() >= 3 && bare.iter().all(|name| page.contains(&format!("\n{name} 0\n"))), "{bare:?} {page}");
        for (metric, status) in [(metric::RUNS, "timed_out"), (metric::STEPS, "degraded")] {
            assert!(page.contains(&format!("{}{{status=\"{status}\"}} 0\n", metric.name)), "{page}");
        }
        for agent in ["plain", "with-targets"] {
            assert!(page.contains(&format!("{}{{agent=\"{agent}\"}} 0\n", metric::DEAD_LETTERS.name)), "{page}");
            assert!(series(metric::REFUSED, agent, "AGENT_CIRCUIT_OPEN"), "{page}");
        }
        for reason in Reason::ALL {
            assert!(series(metric::FALLBACKS, "with-targets", reason.as_str()), "{page}");
            assert!(!series(metric::FALLBACKS, "plain", reason.as_str()), "{page}");
        }
    }
}
