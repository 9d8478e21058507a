//! `GET /v1/usage`: sums of the ledger, the caller's own or everybody's for operators.

use axum::{Json as Answer, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    journal::{
        query::TenantScope,
        usage::{UsageCursor, UsageGroup, UsageLine, UsageQuery},
    },
    serve::{
        access::caller::Caller,
        answer::{failure::Failure, query::Asked},
        state::AppState,
    },
};

/// Days that are summed up where nothing is said, today included.
const DAYS_DEFAULT: u64 = 30;
const DAY_MS: u64 = 24 * 3_600 * 1_000;
const GROUPS: [(&str, UsageGroup); 5] = [
    ("day", UsageGroup::Day),
    ("tenant", UsageGroup::Tenant),
    ("feature", UsageGroup::Feature),
    ("agent", UsageGroup::Agent),
    ("model", UsageGroup::Model),
];

/// Which part of the ledger.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct UsageAsked {
    /// The first day, as in 2026-03-01 (UTC); 29 days before the last without.
    pub from: Option<String>,
    /// The last day, itself included; today without.
    pub to: Option<String>,
    /// What sums are kept apart by, divided by commas: day, tenant, feature, agent, model.
    pub group: Option<String>,
    /// Of this tenant; for operators.
    pub tenant: Option<String>,
    /// `next_cursor` of the page before, asked for with the same days, groups and tenant.
    pub cursor: Option<String>,
}

/// Sums.
#[derive(Debug, Serialize, ToSchema)]
pub struct UsageSums {
    /// One a group; what was called within the last moment may not be in it yet.
    #[schema(value_type = Vec<Object>)]
    pub data: Vec<UsageLine>,
    /// Where the next page begins; `null` = there is none. A page holds 10,000 sums.
    pub next_cursor: Option<String>,
}

/// The routes.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(usage))
}

/// Calls, tokens and cost, summed up by day, tenant, feature, agent or model.
#[utoipa::path(get, path = "/v1/usage", tag = "operator", params(UsageAsked), responses((status = 200, body = UsageSums)))]
pub(crate) async fn usage(
    State(state): State<AppState>,
    caller: Caller,
    Asked(asked): Asked<UsageAsked>,
) -> Result<Answer<UsageSums>, Failure> {
    let _place = state.caps.query()?;
    let running = state.running().await?;
    let clock = running.runtime.clock();
    let query = query_of(&caller, asked, clock.unix_ms(clock.now()) / DAY_MS)?;
    let page = running.journal.usage(query).await?;
    Ok(Answer(UsageSums { data: page.lines, next_cursor: page.next.map(|cursor| cursor.to_string()) }))
}

fn query_of(caller: &Caller, asked: UsageAsked, today: u64) -> Result<UsageQuery, Failure> {
    let scope = match asked.tenant {
        None => caller.scope(),
        Some(tenant) if caller.sees(Some(&tenant)) => TenantScope::One(Some(tenant)),
        Some(tenant) => return Err(Failure::not_found(format_args!("tenant {tenant:?}"))),
    };
    let to_day = asked.to.as_deref().map(day_of).transpose()?.unwrap_or(today);
    let from_day = asked.from.as_deref().map(day_of).transpose()?;
    let from_day = from_day.unwrap_or_else(|| to_day.saturating_sub(DAYS_DEFAULT - 1));
    if from_day > to_day {
        return Err(Failure::invalid("from is later than to"));
    }
    let group_of = |word: &str| {
        let found = GROUPS.iter().find(|(known, _)| *known == word.trim()).map(|(_, group)| *group);
        found.ok_or_else(|| Failure::invalid(format!("group: {word:?} is none of day, tenant, feature, agent, model")))
    };
    let groups: Option<Vec<_>> =
        asked.group.as_deref().map(|text| text.split(',').map(group_of).collect()).transpose()?;
    let groups = groups.unwrap_or_default();
    let after = |text: String| {
        let unknown = || Failure::invalid(format!("cursor {text:?} was not handed out for this group"));
        UsageCursor::parse(&text, &groups).ok_or_else(unknown)
    };
    let after = asked.cursor.map(after).transpose()?;
    Ok(UsageQuery { scope, from_day, to_day, groups, after })
}

fn day_of(text: &str) -> Result<u64, Failure> {
    let rule = || Failure::invalid(format!("{text:?} is no day, as in 2026-03-01"));
    let date: jiff::civil::Date = text.parse().map_err(|_| rule())?;
    let zero = jiff::civil::date(1970, 1, 1);
    let days = date.since(zero).map_err(|_| rule())?.get_days();
    u64::try_from(days).map_err(|_| rule())
}
