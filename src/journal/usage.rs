//! What the ledger is asked: sums over days, grouped as wished.

use super::{
    fault::Fault,
    journal::SqliteJournal,
    ledger::SUM_MAX,
    number::{find_name, from_sql, name_text, to_sql},
    query::TenantScope,
};
use crate::{model::cost::Cost, runtime::journal::JournalError};

/// The most lines of one answer.
pub const USAGE_LINES_MAX: usize = 10_000;

/// What sums are kept apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageGroup {
    /// Days, in UTC.
    Day,
    /// Tenants.
    Tenant,
    /// Features.
    Feature,
    /// Agents.
    Agent,
    /// Models.
    Model,
}

/// Which part of the ledger is meant, and how it is summed up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageQuery {
    /// Whose.
    pub scope: TenantScope,
    /// The first day, as days since 1970 in UTC.
    pub from_day: u64,
    /// The last day, itself included.
    pub to_day: u64,
    /// What sums are kept apart by; empty = one sum of all.
    pub groups: Vec<UsageGroup>,
}

/// One sum. What it was not grouped by is `None`.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct UsageLine {
    /// Days since 1970.
    pub day: Option<u64>,
    /// The tenant.
    pub tenant: Option<String>,
    /// The feature.
    pub feature: Option<String>,
    /// The agent.
    pub agent: Option<String>,
    /// The model.
    pub model: Option<String>,
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
    /// `None` where no price is known; where it is of some of them, their sum. `None` as well where they are of several currencies.
    pub cost: Option<Cost>,
    /// The money of `cost`, as it was configured when it was spent; `None` where it was not.
    pub currency: Option<String>,
    /// Where costs are of several currencies: each apart, since no sum of them means anything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub costs: Vec<CostIn>,
}

/// A cost in one currency.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct CostIn {
    /// The currency; `None` where none was configured.
    pub currency: Option<String>,
    /// The sum.
    pub cost: Cost,
}

const COLUMNS: [(UsageGroup, &str); 5] = [
    (UsageGroup::Day, "day"),
    (UsageGroup::Tenant, "tenant"),
    (UsageGroup::Feature, "feature"),
    (UsageGroup::Agent, "agent"),
    (UsageGroup::Model, "model"),
];

impl SqliteJournal {
    /// Sums of the ledger. What was called within the last moment may not be in it yet.
    pub async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageLine>, JournalError> {
        self.ask(move |connection| {
            let tenant = match &query.scope {
                TenantScope::All => None,
                TenantScope::One(tenant) => match find_name(connection, tenant.as_deref())? {
                    Some(tenant) => Some(tenant),
                    None => return Ok(Vec::new()),
                },
            };
            let mut statement = connection.prepare_cached(&sql(&query.groups))?;
            let range = (to_sql(query.from_day), to_sql(query.to_day), tenant);
            let mut rows = statement.query(range)?;
            let mut lines = Vec::new();
            while let Some(row) = rows.next()? {
                let next = line(connection, row, &query.groups)?;
                // Costs of other money than before, of the same group.
                if let Some(last) = lines.last_mut().filter(|last| next.is_of_group(last)) {
                    last.add(next);
                } else if lines.len() < USAGE_LINES_MAX {
                    lines.push(next);
                } else {
                    break;
                }
            }
            lines.iter_mut().for_each(UsageLine::sum_up);
            Ok(lines)
        })
        .await
    }
}

fn sql(groups: &[UsageGroup]) -> String {
    let columns = COLUMNS.map(|(group, column)| if groups.contains(&group) { column } else { "0" });
    let asked = COLUMNS.iter().filter(|(group, _)| groups.contains(group)).map(|(_, column)| *column);
    let by: Vec<&str> = asked.chain(["currency"]).collect();
    let (columns, by) = (columns.join(", "), by.join(", "));
    // Whole as far as numbers are, whatever an older version let into a line.
    let tokens = |column: &str| format!("CAST(min(total({column}), {SUM_MAX}) AS INTEGER)");
    let (prompt, output) = (tokens("prompt_tokens"), tokens("output_tokens"));
    format!(
        "SELECT {columns}, sum(calls), sum(failures), sum(refusals), {prompt}, {output}, max(estimated), sum(cost), currency
          FROM usage WHERE day BETWEEN ?1 AND ?2 AND (?3 IS NULL OR tenant = ?3) GROUP BY {by} ORDER BY {by}"
    )
}

fn line(connection: &rusqlite::Connection, row: &rusqlite::Row<'_>, groups: &[UsageGroup]) -> Result<UsageLine, Fault> {
    let name = |place: usize| -> Result<Option<String>, Fault> { name_text(connection, row.get(place)?) };
    let count = |place: usize| -> Result<u64, Fault> { Ok(from_sql(row.get(place)?)) };
    Ok(UsageLine {
        day: groups.contains(&UsageGroup::Day).then(|| count(0)).transpose()?,
        tenant: name(1)?,
        feature: name(2)?,
        agent: name(3)?,
        model: name(4)?,
        calls: count(5)?,
        failures: count(6)?,
        refusals: count(7)?,
        prompt_tokens: count(8)?,
        output_tokens: count(9)?,
        estimated: row.get(10)?,
        cost: None,
        currency: None,
        costs: match row.get::<_, Option<f64>>(11)? {
            Some(nanos) => vec![CostIn { currency: name(12)?, cost: cost_of(nanos) }],
            None => Vec::new(),
        },
    })
}

impl UsageLine {
    /// Whether it is about the same, but for its money.
    fn is_of_group(&self, other: &Self) -> bool {
        let group =
            |line: &Self| (line.day, line.tenant.clone(), line.feature.clone(), line.agent.clone(), line.model.clone());
        group(self) == group(other)
    }

    fn add(&mut self, other: Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.failures = self.failures.saturating_add(other.failures);
        self.refusals = self.refusals.saturating_add(other.refusals);
        self.prompt_tokens = self.prompt_tokens.saturating_add(other.prompt_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.estimated |= other.estimated;
        self.costs.extend(other.costs);
    }

    /// Costs of one currency are the line's cost.
    fn sum_up(&mut self) {
        if let [CostIn { currency, cost }] = &mut self.costs[..] {
            (self.currency, self.cost) = (currency.take(), Some(*cost));
            self.costs.clear();
        }
    }
}

/// Whole billionths, as they are written.
fn cost_of(nanos: f64) -> Cost {
    // proof of no loss: what is written is whole and not negative; what somebody else wrote there saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and not negative")]
    Cost::from_nanos(nanos as u64)
}
