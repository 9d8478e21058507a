//! The one list of metric names. Raw names elsewhere are a fault (checked by `tests/tidy.rs`). Labels hold configured names only.

use metrics::{Label, counter, gauge};

use super::shielded::shielded;

/// A metric: its name, what it is, and what it tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// The name, prefix included.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// What it tells, as a sentence.
    pub help: &'static str,
}

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Spread over [`SECONDS_BUCKETS`].
    Histogram,
}

/// Upper bounds of all histograms of seconds, up to ten minutes: model calls are long.
pub const SECONDS_BUCKETS: [f64; 16] =
    [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 300.0, 600.0];

macro_rules! metrics {
    ($($constant:ident $name:literal $kind:ident $help:literal;)*) => {
        $(#[doc = $help] pub const $constant: Metric = Metric { name: $name, kind: Kind::$kind, help: $help };)*
        /// Every metric of this program.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    BREAKER_STATE "watertight_breaker_state" Gauge "1 for the state that the breaker is in, 0 for the others.";
    BREAKER_TRANSITIONS "watertight_breaker_transitions_total" Counter "Changes of state.";
    BREAKER_FAILURE_SHARE "watertight_breaker_failure_share" Gauge "Failed of finished outcomes in the window, 0 to 1.";
    BREAKER_SLOW_SHARE "watertight_breaker_slow_share" Gauge "Slow of all outcomes in the window, 0 to 1.";
    BREAKER_WOULD_OPEN "watertight_breaker_would_open_total" Counter "Times that a breaker which only measures would have opened.";
    BREAKER_OUTCOMES "watertight_breaker_outcomes_total" Counter "Outcomes by verdict.";
    BREAKER_STALE "watertight_breaker_stale_total" Counter "Results of an earlier generation: they changed nothing.";
    ADMITTED "watertight_admitted_total" Counter "Calls that got everything they needed.";
    REFUSED "watertight_refused_total" Counter "Calls that were refused, by the code of the refusal.";
    IN_FLIGHT "watertight_in_flight" Gauge "Slots taken now.";
    SLOTS "watertight_slots" Gauge "Slots in all.";
    SLOT_SECONDS "watertight_slot_seconds_total" Counter "How long slots were held, summed up.";
    CALL_SECONDS "watertight_call_seconds" Histogram "How long calls took, attempts and waits between them included.";
    ATTEMPT_SECONDS "watertight_attempt_seconds" Histogram "How long single attempts took.";
    FIRST_TOKEN_SECONDS "watertight_first_token_seconds" Histogram "How long streams took to their first content.";
    TOKENS "watertight_tokens_total" Counter "Tokens used, by kind.";
    TOKENS_LIMIT "watertight_token_budget_limit" Gauge "Tokens that a budget allows in a rolling minute.";
    TOKENS_USED "watertight_token_budget_used" Gauge "Tokens that a budget's last minute holds, open reservations included.";
    TOKENS_RESERVED "watertight_token_budget_reserved" Gauge "Tokens that are reserved for attempts under way.";
    TOKENS_GUESSED "watertight_tokens_guessed_total" Counter "Attempts that were charged by our own counting, because nobody told what they used.";
    COST_NANOS "watertight_cost_nanos_total" Counter "What attempts cost, in billionths of a unit of money.";
    MODEL_WARMTH "watertight_model_warmth" Gauge "1 for what is believed of the model (unknown, cold, warming, warm), 0 for the rest.";
    WARM_UPS "watertight_warm_ups_total" Counter "Warm-ups of a model, by how they ended.";
    MODEL_SWAPS "watertight_model_swaps_total" Counter "Models that were thrown out by another one while they were still wanted.";
    PROBES "watertight_probes_total" Counter "Trials that the supervisor made itself, by how they ended.";
    RETRIES "watertight_retries_total" Counter "Attempts beyond the first.";
    FALLBACKS "watertight_fallbacks_total" Counter "Targets that were passed over for a further one, by reason.";
    DEGRADED "watertight_degraded_total" Counter "Calls that a rung of a ladder answered, by rung and cause.";
    DEFERRED_DEPTH "watertight_deferred_depth" Gauge "Calls that wait to be made later.";
    DEFERRED "watertight_deferred_total" Counter "What became of calls that were put off: kept, refused, made again, and how they ended.";
    DEFERRED_PUSHES "watertight_deferred_pushes_total" Counter "Tries to tell somebody of the end of such a call, by how they went.";
    USAGE_ESTIMATED "watertight_usage_estimated_total" Counter "Answers whose tokens were counted by us, because the server told none.";
    ACTOR_RESTARTS "watertight_actor_restarts_total" Counter "Deaths of actors and panics of attempts.";
    MAILBOX_DEPTH "watertight_mailbox_depth" Gauge "Calls that wait in the actor's mailbox.";
    OUTCOMES_LOST "watertight_outcomes_lost_total" Counter "Outcomes that no supervisor could judge because it was being restarted.";
    DEAD_LETTERS "watertight_dead_letters_total" Counter "Calls that killed too often, an actor or the process, and were put aside.";
    RUNS "watertight_runs_total" Counter "Runs by how they ended.";
    STEPS "watertight_steps_total" Counter "Steps by how they ended.";
    RUNS_LIVE "watertight_runs_live" Gauge "Runs that are not over.";
    LINE_LENGTH "watertight_line_length" Gauge "Callers and steps that wait for a slot.";
    FEATURE_IN_FLIGHT "watertight_feature_in_flight" Gauge "Slots of a feature that are taken now.";
    FEATURE_SLOTS "watertight_feature_slots" Gauge "Slots of a feature in all; infinite where it has no cap of its own.";
    ADAPTIVE_LIMIT "watertight_adaptive_limit" Gauge "Calls that a provider gets at once, as its adaptive limit has learnt.";
    LIMIT_CHANGES "watertight_adaptive_limit_changes_total" Counter "Changes of a provider's adaptive limit, by reason.";
    CALLERS_SHUT "watertight_callers_shut_total" Counter "Times that a caller's volume guard shut.";
    CLASSES_SHED "watertight_classes_shed" Gauge "Classes that are refused for higher ones now, the lowest first.";
    CAPTURES_LEFT_OUT "watertight_captures_left_out_total" Counter "Attempts that were to be kept word for word and were not: too large, or too many waited for the disk.";
    RELOADS "watertight_reloads_total" Counter "Reloads of the configuration, by what became of them.";
    CONFIG_LOADED "watertight_config_loaded_seconds" Gauge "When the configuration in force was loaded, in seconds since 1970.";
    CONNECTIONS "watertight_connections" Gauge "Connections that are open.";
    CONNECTIONS_REFUSED "watertight_connections_refused_total" Counter "Connections that found no place.";
}

/// Adds to a counter. A recorder that panics is not told on: it counts nothing.
pub fn count(metric: Metric, labels: Vec<Label>, by: u64) {
    shielded(|| counter!(metric.name, labels).increment(by));
}

/// Sets a gauge. A recorder that panics shows nothing.
pub fn set(metric: Metric, labels: Vec<Label>, value: f64) {
    shielded(|| gauge!(metric.name, labels).set(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_well_formed_and_unique() {
        let mut seen = std::collections::HashSet::new();
        for metric in ALL {
            assert!(metric.name.starts_with("watertight_"), "{}", metric.name);
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter, "{}", metric.name);
            assert!(metric.help.ends_with('.') && seen.insert(metric.name));
        }
    }
}
