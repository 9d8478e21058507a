//! The names of the headers that an agent is called with over HTTP. Both ends of the contract name them from here.

/// W3C trace context.
pub const TRACEPARENT: &str = "traceparent";
/// The same over attempts, re-sends and a restart.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The call that an attempt belongs to.
pub const CALL_ID: &str = "x-watertight-call-id";
/// The run that the call belongs to.
pub const RUN_ID: &str = "x-watertight-run-id";
/// 1 for the first attempt.
pub const ATTEMPT: &str = "x-watertight-attempt";
/// Milliseconds that are left until the answer is of no more use.
pub const DEADLINE_MS: &str = "x-watertight-deadline-ms";
/// Who it is for.
pub const TENANT: &str = "x-watertight-tenant";
/// For which feature.
pub const FEATURE: &str = "x-watertight-feature";
/// In which class.
pub const PRIORITY: &str = "x-watertight-priority";
/// Whether the caller's own layers should try again.
pub const SHOULD_RETRY: &str = "x-should-retry";
/// The agent that answered; on answers.
pub const AGENT: &str = "x-watertight-agent";
/// How many exchanges it took; on answers.
pub const ATTEMPTS: &str = "x-watertight-attempts";
/// The further target that answered, where it was not the first; on answers.
pub const FALLBACK: &str = "x-watertight-fallback";
/// The rung of a ladder that stands in for the agent's own answer: `lighter`, `deferred`, `default`, `notice`; on answers.
pub const DEGRADED: &str = "x-watertight-degraded";
/// `off` where only the agent's own answer is wanted; on requests to us.
pub const LADDER: &str = "x-watertight-ladder";
/// What a push of ours is signed with; on requests to webhooks.
pub const SIGNATURE: &str = "x-watertight-signature";
/// What a push tells of: the same over its tries; on requests to webhooks.
pub const DELIVERY: &str = "x-watertight-delivery";
/// Milliseconds that were ours, not the other side's; on answers.
pub const OVERHEAD_MS: &str = "x-watertight-overhead-ms";

/// The trace that a W3C trace context names: 32 hexadecimal digits.
pub fn trace_id_of(traceparent: Option<&str>) -> Option<String> {
    Some(traceparent?.get(3..35)?.to_owned())
}
