//! What the ledger is asked: sums over days, grouped as wished.

use super::{
    fault::Fault,
    journal::SqliteJournal,
    ledger::{SUM_MAX, UsageCounts},
    number::{find_name, from_sql, name_text, to_sql},
    query::TenantScope,
};
use crate::{model::cost::Cost, runtime::journal::JournalError};

/// The most lines of one page.
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
    /// Where the page before ended.
    pub after: Option<UsageCursor>,
}

/// The last line of a page: what it was grouped by, in the order of the columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageCursor(Vec<i64>);

impl UsageCursor {
    /// Reads one that was handed out for these groups; `None` if it never was.
    pub fn parse(text: &str, groups: &[UsageGroup]) -> Option<Self> {
        let places: Vec<i64> = text.split('-').map(|place| place.parse().ok()).collect::<Option<_>>()?;
        (places.len() == columns_of(groups).len()).then_some(Self(places))
    }
}

impl std::fmt::Display for UsageCursor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let places: Vec<String> = self.0.iter().map(i64::to_string).collect();
        formatter.write_str(&places.join("-"))
    }
}

/// Sums, and where the next ones begin.
#[derive(Debug, Clone, PartialEq)]
pub struct UsagePage {
    /// At most [`USAGE_LINES_MAX`].
    pub lines: Vec<UsageLine>,
    /// `None` = there are no more.
    pub next: Option<UsageCursor>,
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
    /// What the calls come to.
    #[serde(flatten)]
    pub counts: UsageCounts,
    /// `None` where no price is known, or not of all calls that used something, and where costs are of several currencies: then no number is
    /// what they cost.
    pub cost: Option<Cost>,
    /// The money of `cost`, as it was configured when it was spent; `None` where it was not.
    pub currency: Option<String>,
    /// Where there is no `cost` though there are prices: what is known, each currency apart.
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
    pub async fn usage(&self, query: UsageQuery) -> Result<UsagePage, JournalError> {
        self.ask(move |connection| {
            let tenant = match &query.scope {
                TenantScope::All => None,
                TenantScope::One(tenant) => match find_name(connection, tenant.as_deref())? {
                    Some(tenant) => Some(tenant),
                    None => return Ok(UsagePage { lines: Vec::new(), next: None }),
                },
            };
            let after = query.after.map(|cursor| cursor.0).unwrap_or_default();
            let mut statement = connection.prepare_cached(&sql(&query.groups, after.len()))?;
            let mut values = vec![Some(to_sql(query.from_day)), Some(to_sql(query.to_day)), tenant];
            values.extend(after.into_iter().map(Some));
            let mut rows = statement.query(rusqlite::params_from_iter(values))?;
            let (mut lines, mut last, mut next_page) = (Vec::new(), Vec::new(), None);
            while let Some(row) = rows.next()? {
                let next = line(connection, row, &query.groups)?;
                // Costs of other money than before, of the same group.
                if let Some(last) = lines.last_mut().filter(|last| next.is_of_group(last)) {
                    last.add(next);
                } else if lines.len() < USAGE_LINES_MAX {
                    lines.push(next);
                    last = places(row, &query.groups)?;
                } else {
                    next_page = Some(UsageCursor(last));
                    break;
                }
            }
            lines.iter_mut().for_each(UsageLine::sum_up);
            Ok(UsagePage { lines, next: next_page })
        })
        .await
    }
}

/// The columns that lines are grouped by, but for that of their money.
fn columns_of(groups: &[UsageGroup]) -> Vec<&'static str> {
    COLUMNS.iter().filter(|(group, _)| groups.contains(group)).map(|(_, column)| *column).collect()
}

/// What a line is grouped by, as the file keeps it.
fn places(row: &rusqlite::Row<'_>, groups: &[UsageGroup]) -> Result<Vec<i64>, Fault> {
    let grouped = COLUMNS.iter().enumerate().filter(|(_, (group, _))| groups.contains(group));
    Ok(grouped.map(|(place, _)| row.get(place)).collect::<Result<_, _>>()?)
}

/// `after` = so many values say where the page before ended.
fn sql(groups: &[UsageGroup], after: usize) -> String {
    let columns = COLUMNS.map(|(group, column)| if groups.contains(&group) { column } else { "0" });
    let grouped = columns_of(groups);
    let beyond = if after == 0 {
        String::new()
    } else {
        let values: Vec<String> = (4..4 + after).map(|number| format!("?{number}")).collect();
        format!("AND ({}) > ({})", grouped.join(", "), values.join(", "))
    };
    let by: Vec<&str> = grouped.into_iter().chain(["currency"]).collect();
    let (columns, by) = (columns.join(", "), by.join(", "));
    // Whole as far as numbers are, whatever an older version let into a line.
    let tokens = |column: &str| format!("CAST(min(total({column}), {SUM_MAX}) AS INTEGER)");
    let (prompt, output) = (tokens("prompt_tokens"), tokens("output_tokens"));
    format!(
        "SELECT {columns}, sum(calls), sum(failures), sum(refusals), {prompt}, {output}, max(estimated), sum(cost), currency, sum(unpriced)
         FROM usage WHERE day BETWEEN ?1 AND ?2 AND (?3 IS NULL OR tenant = ?3) {beyond} GROUP BY {by} ORDER BY {by}"
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
        counts: UsageCounts {
            calls: count(5)?,
            failures: count(6)?,
            refusals: count(7)?,
            prompt_tokens: count(8)?,
            output_tokens: count(9)?,
            estimated: row.get(10)?,
            unpriced: count(13)?,
        },
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
        self.counts.add(&other.counts);
        self.costs.extend(other.costs);
    }

    /// Costs of one currency are the line's cost, if there is a price for all of it.
    fn sum_up(&mut self) {
        if self.counts.unpriced > 0 {
            return;
        }
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
