//! `GET /v1/usage`: by tenant, feature, agent, model and day; each tenant its own; sums are those of the ledger.

use serde_json::{Value, json};

use super::support::World;
use crate::{
    model::{call_log::CallRecord, cost::Cost, reply::Usage},
    runtime::ports::CallLog as _,
};

const DAY_MS: u64 = 24 * 3_600 * 1_000;
/// 2026-03-01.
const FIRST_DAY: u64 = 20_513;

/// What every call of the ledger used: tenant, feature, model, day, prompt, answer, counted by us, millionths of its cost.
type Line = (&'static str, Option<&'static str>, &'static str, u64, u64, u64, bool, Option<u32>);

const LINES: [Line; 6] = [
    ("acme", Some("chat"), "qwen", 0, 100, 10, false, Some(500)),
    ("acme", Some("chat"), "qwen", 1, 200, 20, true, Some(700)),
    ("acme", Some("batch"), "smol", 1, 300, 30, false, None),
    ("acme", None, "qwen", 2, 400, 40, false, Some(900)),
    ("brick", Some("chat"), "qwen", 1, 1_000, 100, false, Some(5_000)),
    ("brick", Some("chat"), "smol", 2, 2_000, 200, true, None),
];

async fn filled() -> World {
    let world = World::usual().await;
    let journal = std::sync::Arc::clone(&world.state.running().await.unwrap().journal);
    let log = journal.usage_log(Some("KRW"));
    for (tenant, feature, model, day, prompt_tokens, output_tokens, estimated, millionths) in LINES {
        log.finished(CallRecord {
            ts_ms: (FIRST_DAY + day) * DAY_MS + 7,
            agent: "draft".to_owned(),
            call_id: Some("c".to_owned()),
            tenant: Some(tenant.to_owned()),
            feature: feature.map(str::to_owned),
            model: Some(model.to_owned()),
            usage: Some(Usage { prompt_tokens, output_tokens, estimated, ..Usage::default() }),
            cost: millionths.and_then(|millionths| Cost::from_units(f64::from(millionths) / 1e6)),
            ..CallRecord::default()
        });
    }
    for _ in 0..1_000 {
        let got = world.with_key("olga", "GET", "/v1/usage?from=2026-03-01&to=2026-03-03", "").await.is(200).json();
        if got["data"][0]["calls"] == LINES.len() {
            return world;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("the ledger never wrote its lines")
}

/// A sum as the service must tell it: calls, tokens, counted by us, what has a price in millionths, calls without a price.
type Sum = (u64, u64, u64, bool, Option<u32>, u64);

/// The sum of the lines that are meant.
fn sum_of(meant: impl Fn(&Line) -> bool) -> Sum {
    LINES.iter().filter(|line| meant(line)).fold((0, 0, 0, false, None, 0), |sum, line| {
        let cost = line.7.map_or(sum.4, |cost| Some(cost + sum.4.unwrap_or(0)));
        (sum.0 + 1, sum.1 + line.4, sum.2 + line.5, sum.3 || line.6, cost, sum.5 + u64::from(line.7.is_none()))
    })
}

/// No price of a part is no cost of the whole: what is known stands apart then.
#[track_caller]
fn is_sum(line: &Value, (calls, prompt, output, estimated, cost, unpriced): Sum) {
    let number = |key: &str| line[key].as_u64().unwrap();
    let got = (number("calls"), number("prompt_tokens"), number("output_tokens"), line["estimated"].as_bool().unwrap());
    assert_eq!((got, number("unpriced")), ((calls, prompt, output, estimated), unpriced), "{line}");
    let (told, apart) = if unpriced == 0 { (line, &Value::Null) } else { (&line["costs"][0], &line["cost"]) };
    let units = told["cost"].as_f64().map(|units| (units * 1e6).round());
    assert_eq!((units, apart), (cost.map(f64::from), &Value::Null), "{line}");
    assert_eq!(told["currency"], cost.map_or(Value::Null, |_| json!("KRW")), "{line}");
}

#[tokio::test]
async fn each_tenant_sees_its_own_and_operators_see_all() {
    let world = filled().await;
    let ask = async |key: &str, more: &str| {
        let path = format!("/v1/usage?from=2026-03-01&to=2026-03-03{more}");
        let got = world.with_key(key, "GET", &path, "").await.is(200).json();
        assert_eq!(got["next_cursor"], Value::Null);
        got["data"].as_array().unwrap().clone()
    };
    for (key, more, tenant) in [
        ("ann", "", Some("acme")),
        ("bob", "", Some("brick")),
        ("ann", "&tenant=acme", Some("acme")),
        ("olga", "&tenant=brick", Some("brick")),
        ("olga", "", None),
    ] {
        let lines = ask(key, more).await;
        assert_eq!(lines.len(), 1, "{key} {more}");
        is_sum(&lines[0], sum_of(|line| tenant.is_none_or(|tenant| tenant == line.0)));
    }
    world.with_key("bob", "GET", "/v1/usage?tenant=acme&from=2026-03-01", "").await.fails(404, "NOT_FOUND");
    assert!(ask("olga", "&tenant=nobody").await.is_empty());
}

#[tokio::test]
async fn groups_and_days_add_up_to_the_whole() {
    let world = filled().await;
    let ask = async |query: &str| {
        let got = world.with_key("olga", "GET", &format!("/v1/usage?{query}"), "").await.is(200).json();
        got["data"].as_array().unwrap().clone()
    };
    let range = "from=2026-03-01&to=2026-03-03";
    for (group, groups) in
        [("tenant", 2), ("feature", 3), ("model", 2), ("agent", 1), ("day", 3), ("tenant,model", 4), ("day,feature", 5)]
    {
        let lines = ask(&format!("{range}&group={group}")).await;
        assert_eq!(lines.len(), groups, "{group}: {lines:?}");
        for key in ["calls", "prompt_tokens", "output_tokens"] {
            let whole = sum_of(|_| true);
            let want = if key == "calls" {
                whole.0
            } else if key == "prompt_tokens" {
                whole.1
            } else {
                whole.2
            };
            assert_eq!(lines.iter().map(|line| line[key].as_u64().unwrap()).sum::<u64>(), want, "{group}: {key}");
        }
        for line in &lines {
            let is = |key: &str, value: Option<&str>| line[key].is_null() || line[key].as_str() == value;
            let is_none = |key: &str| group.contains(key) && line[key].is_null();
            is_sum(
                line,
                sum_of(|known| {
                    let feature = if is_none("feature") { known.1.is_none() } else { is("feature", known.1) };
                    let day = line["day"].as_u64().is_none_or(|day| day == FIRST_DAY + known.3);
                    is("tenant", Some(known.0)) && feature && is("model", Some(known.2)) && day
                }),
            );
        }
    }
    for (days, meant) in [("from=2026-03-02&to=2026-03-02", 1..2), ("from=2026-03-02&to=2026-03-03", 1..3)] {
        is_sum(&ask(days).await[0], sum_of(|line| meant.contains(&line.3)));
    }
    assert!(ask("from=2026-04-01&to=2026-04-02").await.is_empty());
    world.with_key("olga", "GET", "/v1/usage?from=2026-03-02&to=2026-03-01", "").await.fails(400, "INVALID_REQUEST");
}
