//! What every answer to a call tells of it in its headers. Leaves out what is not known by the time the headers go; decides nothing.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::{
    model::{contract, run::AttemptRecord},
    policy::ladder::Rung,
    runtime::call::waited_between,
};

/// What is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    call_id: Option<String>,
    agent: String,
    attempts: Option<usize>,
    fallback: Option<String>,
    overhead: Option<Duration>,
    degraded: Option<Rung>,
}

impl Told {
    /// Who was called and who answered.
    pub fn of(agent: &str, call_id: Option<&str>, fallback: Option<&str>) -> Self {
        let (call_id, fallback) = (call_id.map(str::to_owned), fallback.map(str::to_owned));
        Self { call_id, agent: agent.to_owned(), attempts: None, fallback, overhead: None, degraded: None }
    }

    /// The call took `all`, of which its attempts took `spent`: what is left after their waits was ours.
    #[must_use]
    pub fn took(mut self, all: Duration, spent: Duration, attempts: &[AttemptRecord]) -> Self {
        self.attempts = Some(attempts.len());
        self.overhead = Some(all.saturating_sub(spent).saturating_sub(waited_between(attempts)));
        self
    }

    /// An answer begins with this attempt, after `all`, of which the attempt took `spent`. What was ours is known only if it is the first.
    #[must_use]
    pub fn begins(mut self, all: Duration, spent: Duration, attempt: u32) -> Self {
        self.attempts = Some(attempt as usize);
        let is_first = attempt <= 1 && self.fallback.is_none();
        self.overhead = is_first.then(|| all.saturating_sub(spent));
        self
    }

    /// This rung of a ladder stands in for the agent's own answer.
    #[must_use]
    pub fn degraded(mut self, rung: Option<Rung>) -> Self {
        self.degraded = rung;
        self
    }

    /// Writes it down.
    pub fn write(&self, headers: &mut HeaderMap) {
        let attempts = self.attempts.map(|attempts| attempts.to_string());
        let overhead = self.overhead.map(|overhead| format!("{:.2}", overhead.as_secs_f64() * 1_000.0));
        for (name, value) in [
            (contract::CALL_ID, self.call_id.as_deref()),
            (contract::AGENT, Some(self.agent.as_str())),
            (contract::ATTEMPTS, attempts.as_deref()),
            (contract::FALLBACK, self.fallback.as_deref()),
            (contract::OVERHEAD_MS, overhead.as_deref()),
            (contract::DEGRADED, self.degraded.map(Rung::as_str)),
        ] {
            if let Some(value) = value.and_then(|text| HeaderValue::from_str(text).ok()) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_ours() {
        let ms = Duration::from_millis;
        let attempt = |started_ms, duration_ms| AttemptRecord {
            started_ms,
            duration_ms,
            status: None,
            error_code: None,
            retry_after: None,
        };
        let told = Told::of("draft", Some("c1"), None);
        let tries = [attempt(0, 100), attempt(1_100, 50)];
        for (told, attempts, overhead) in [
            (told.clone(), "", ""),
            (told.clone().took(ms(1_153), ms(150), &tries), "2", "3.00"),
            (told.clone().took(ms(1), ms(2), &[]), "0", "0.00"),
            (told.clone().begins(ms(105), ms(100), 1), "1", "5.00"),
            (told.clone().begins(ms(905), ms(100), 2), "2", ""),
            (Told::of("draft", None, Some("b/m")).begins(ms(905), ms(100), 1), "1", ""),
        ] {
            let mut headers = HeaderMap::new();
            told.write(&mut headers);
            let text = |name: &str| headers.get(name).map_or("", |value| value.to_str().unwrap());
            let seen = (text(contract::AGENT), text(contract::ATTEMPTS), text(contract::OVERHEAD_MS));
            assert_eq!(seen, ("draft", attempts, overhead), "{told:?}");
        }
    }
}
