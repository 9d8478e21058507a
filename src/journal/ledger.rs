//! The usage ledger: calls, refusals and tokens per day, tenant, feature, agent and model. Calls are added up in memory and written with
//! the next group of entries, so that a call's log never waits. It says what was used, not by whom it was asked in what words.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
};

use super::{fault::Fault, health::Vitals, number::to_sql, work::Within};
use crate::{
    model::{
        call_log::{CallRecord, Counted, CountedName, OTHER},
        cost::Cost,
    },
    runtime::ports::CallLog,
};

/// So many different lines wait in memory at most; a call that would need one more is left out and counted.
const LINES_MAX: usize = 20_000;
/// No sum of a line is larger, so that sums of lines can be made: beyond it numbers are no whole ones any more.
pub(super) const SUM_MAX: u64 = 1 << 53;
/// Features that the configuration does not know are counted by name up to this number a day and key; what is beyond counts as "other".
pub(super) const FEATURES_SAID_MAX: usize = 200;
/// The same of tenants.
pub(super) const TENANTS_SAID_MAX: usize = 2_000;
const DAY_MS: u64 = 24 * 3_600 * 1_000;

/// What a line is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Days since 1970, in UTC.
    day: u64,
    tenant: Option<String>,
    feature: Option<String>,
    agent: String,
    model: Option<String>,
    /// The money of its cost, where it has one.
    currency: Option<Arc<str>>,
}

/// What calls come to, but for their cost: that has a currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct UsageCounts {
    /// Calls that were made.
    pub calls: u64,
    /// Those of them that ended with an error.
    pub failures: u64,
    /// Calls that a guard refused.
    pub refusals: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// True if any of the tokens were counted by us and not told by the server.
    pub estimated: bool,
    /// Calls that used tokens which have no price: what they cost nobody knows.
    pub unpriced: u64,
}

impl UsageCounts {
    pub(super) fn add(&mut self, other: &Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.failures = self.failures.saturating_add(other.failures);
        self.refusals = self.refusals.saturating_add(other.refusals);
        self.prompt_tokens = self.prompt_tokens.saturating_add(other.prompt_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.estimated |= other.estimated;
        self.unpriced = self.unpriced.saturating_add(other.unpriced);
    }
}

/// What a line says.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Sums {
    counts: UsageCounts,
    cost: Option<Cost>,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.cost = Cost::sum(self.cost, other.cost);
    }

    fn of(record: &CallRecord) -> Self {
        // Only a call that was made has an id.
        let is_call = record.call_id.is_some();
        let failed = is_call && record.error_code.is_some();
        let usage = record.usage.unwrap_or_default();
        let counts = UsageCounts {
            calls: u64::from(is_call),
            failures: u64::from(failed),
            refusals: u64::from(!is_call),
            prompt_tokens: usage.prompt_tokens,
            output_tokens: usage.output_tokens,
            estimated: usage.estimated,
            unpriced: u64::from(is_call && record.cost.is_none() && usage.prompt_tokens.max(usage.output_tokens) > 0),
        };
        Self { counts, cost: record.cost }
    }
}

/// Lines by what they are about.
pub(super) type Lines = HashMap<Key, Sums>;

/// Names that callers chose, of one day: each key has its own allowance, so that one that makes names up takes none from the others.
#[derive(Debug, Default)]
struct SaidNames {
    day: u64,
    features: HashMap<Option<String>, HashSet<String>>,
    tenants: HashMap<Option<String>, HashSet<String>>,
}

impl SaidNames {
    /// What the ledger counts a call under.
    fn counted(&mut self, day: u64, key: Option<&str>, counted: Counted) -> (Option<String>, Option<String>) {
        // A call that began before midnight and ended after it is of the day that was.
        if day > self.day {
            *self = Self { day, ..Self::default() };
        }
        let Counted { tenant, feature } = counted;
        let tenant = tenant.map(|name| within(&mut self.tenants, key, name, TENANTS_SAID_MAX));
        (tenant, feature.map(|name| within(&mut self.features, key, name, FEATURES_SAID_MAX)))
    }
}

fn within(
    said: &mut HashMap<Option<String>, HashSet<String>>,
    key: Option<&str>,
    name: CountedName,
    max: usize,
) -> String {
    let name = match name {
        CountedName::Known(name) => return name,
        CountedName::Said(name) => name,
    };
    let names = said.entry(key.map(str::to_owned)).or_default();
    if names.contains(&name) {
        name
    } else if names.len() < max {
        names.insert(name.clone());
        name
    } else {
        OTHER.to_owned()
    }
}

/// The part of the ledger that is not written yet.
#[derive(Debug)]
pub(super) struct Ledger {
    lines: Mutex<Lines>,
    said: Mutex<SaidNames>,
    vitals: Arc<Vitals>,
}

impl Ledger {
    pub(super) fn new(vitals: Arc<Vitals>) -> Self {
        Self { lines: Mutex::new(Lines::new()), said: Mutex::default(), vitals }
    }

    /// Adds a call up.
    fn add(&self, record: CallRecord, currency: Option<&Arc<str>>) {
        let sums = Sums::of(&record);
        let day = record.ts_ms / DAY_MS;
        let CallRecord { agent, tenant, feature, model, caller, counted, .. } = record;
        let as_said = || Counted { tenant: tenant.map(CountedName::Said), feature: feature.map(CountedName::Said) };
        let counted = counted.unwrap_or_else(as_said);
        let (tenant, feature) = {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            said.counted(day, caller.as_deref(), counted)
        };
        let currency = sums.cost.and(currency).map(Arc::clone);
        self.put(Key { day, tenant, feature, agent, model, currency }, &sums);
    }

    fn put(&self, key: Key, sums: &Sums) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= LINES_MAX && !lines.contains_key(&key) {
            self.vitals.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        lines.entry(key).or_default().add(sums);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// All that is to be written.
    pub(super) fn take(&self) -> Lines {
        std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What could not be written after all.
    pub(super) fn give_back(&self, lines: Lines) {
        for (key, sums) in lines {
            self.put(key, &sums);
        }
    }
}

/// A ledger as the runtime's call log; costs are of this money.
#[derive(Debug, Clone)]
pub struct UsageLog {
    pub(super) ledger: Arc<Ledger>,
    pub(super) currency: Option<Arc<str>>,
}

impl CallLog for UsageLog {
    fn finished(&self, record: CallRecord) {
        self.ledger.add(record, self.currency.as_ref());
    }
}

/// Writes lines to the file.
pub(super) fn write(within: &mut Within<'_>, lines: &Lines) -> Result<(), Fault> {
    for (key, sums) in lines {
        let mut number = |text: Option<&str>| within.names.number(within.connection, text);
        let (tenant, feature) = (number(key.tenant.as_deref())?, number(key.feature.as_deref())?);
        let (agent, model) = (number(Some(&key.agent))?, number(key.model.as_deref())?);
        let currency = number(key.currency.as_deref())?;
        let mut statement = within.connection.prepare_cached(&format!(
            "INSERT INTO usage (day, tenant, feature, agent, model, calls, failures, refusals, prompt_tokens, output_tokens, estimated, cost,
                currency, unpriced)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
             ON CONFLICT DO UPDATE SET calls = calls + ?6, failures = failures + ?7, refusals = refusals + ?8,
             prompt_tokens = min(CAST(prompt_tokens AS INTEGER) + ?9, {SUM_MAX}),
             output_tokens = min(CAST(output_tokens AS INTEGER) + ?10, {SUM_MAX}), estimated = max(estimated, ?11),
             unpriced = unpriced + ?14, cost = CASE WHEN ?12 IS NULL THEN cost ELSE coalesce(cost, 0) + ?12 END",
        ))?;
        statement.execute((
            to_sql(key.day),
            tenant,
            feature,
            agent,
            model,
            to_sql(sums.counts.calls),
            to_sql(sums.counts.failures),
            to_sql(sums.counts.refusals),
            to_sql(sums.counts.prompt_tokens.min(SUM_MAX)),
            to_sql(sums.counts.output_tokens.min(SUM_MAX)),
            sums.counts.estimated,
            // Whole billionths in a column of real numbers, where they are exact up to nine million units.
            sums.cost.map(|cost| cost.nanos() as f64),
            currency,
            to_sql(sums.counts.unpriced),
        ))?;
    }
    Ok(())
}
