//! Keys, and what one tenant sees of another: nothing.

use super::support::World;

#[tokio::test]
async fn a_key_is_needed_and_must_be_known() {
    let world = World::usual().await;
    for path in ["/v1/runs", "/v1/agents", "/v1/usage", "/v1/dead-letters", "/metrics", "/v1/runs/x/events"] {
        let got = world.ask("GET", path, &[], "").await;
        got.fails(401, "UNAUTHORIZED");
        assert!(got.headers.contains_key("www-authenticate"), "{path}");
        world.with_key("nobody", "GET", path, "").await.fails(401, "UNAUTHORIZED");
    }
    world.ask("GET", "/v1/runs", &[("x-api-key", "ann")], "").await.is(200);
    world.ask("GET", "/v1/runs", &[("authorization", "bearer ann")], "").await.is(200);
    world.ask("GET", "/healthz", &[], "").await.is(200);
}

/// Who names two callers is none of them.
#[tokio::test]
async fn two_keys_in_one_request_are_refused() {
    let world = World::usual().await;
    let (ann, bob) = (("authorization", "Bearer ann"), ("authorization", "Bearer bob"));
    for (headers, is_one) in [
        (&[ann, ann][..], true),
        (&[ann, ("x-api-key", "ann")], true),
        (&[ann, ("x-api-key", "not one of ours")], true),
        (&[ann, bob], false),
        (&[ann, ("x-api-key", "bob")], false),
        (&[("x-api-key", "ann"), ("x-api-key", "bob")], false),
    ] {
        let got = world.ask("GET", "/v1/runs", headers, "").await;
        if is_one {
            got.is(200);
        } else {
            got.fails(400, "INVALID_REQUEST");
            assert!(!got.text.contains("bob"), "{headers:?}: a key is told: {}", got.text);
        }
    }
}

#[tokio::test]
async fn what_is_another_tenants_is_not_there() {
    let world = World::usual().await;
    let id = world.ended_run("ann").await;
    let paths = ["", "/result", "/why", "/events"].map(|end| ("GET", format!("/v1/runs/{id}{end}")));
    let acts = [("POST", "/cancel"), ("POST", "/repair"), ("DELETE", "")]
        .map(|(method, end)| (method, format!("/v1/runs/{id}{end}")));
    for (method, path) in paths.iter().chain(&acts) {
        let foreign = world.with_key("bob", method, path, "").await;
        foreign.fails(404, "NOT_FOUND");
        let absent =
            world.with_key("bob", method, &path.replace(&id, "00000000-0000-7000-8000-000000000000"), "").await;
        assert_eq!(absent.status, foreign.status, "{method} {path}");
    }
    assert_eq!(world.with_key("bob", "GET", "/v1/runs", "").await.json()["data"].as_array().unwrap().len(), 0);
    world.with_key("bob", "GET", "/v1/runs?tenant=acme", "").await.fails(404, "NOT_FOUND");
    world.with_key("bob", "GET", "/v1/usage?tenant=acme", "").await.fails(404, "NOT_FOUND");
    world.with_key("bob", "DELETE", "/v1/tenants/acme/data", "").await.fails(404, "NOT_FOUND");
    let of_all = world.with_key("olga", "GET", "/v1/runs", "").await.json();
    assert_eq!(
        (of_all["data"][0]["run_id"].as_str(), of_all["data"][0]["tenant"].as_str()),
        (Some(&*id), Some("acme"))
    );
    world.with_key("ann", "GET", &format!("/v1/runs/{id}"), "").await.is(200);
}

#[tokio::test]
async fn only_who_speaks_for_others_names_them() {
    let world = World::usual().await;
    let named = |tenant: &str| format!(r#"{{"workflow":"one","input":{{"text":"x"}},"tenant":"{tenant}"}}"#);
    world.with_key("ann", "POST", "/v1/runs", &named("brick")).await.fails(403, "FORBIDDEN");
    world.with_key("ann", "POST", "/v1/runs", &named("acme")).await.is(202);
    let id = world.with_key("app", "POST", "/v1/runs", &named("brick")).await.is(202).json()["run_id"].clone();
    let path = format!("/v1/runs/{}", id.as_str().unwrap());
    world.with_key("bob", "GET", &path, "").await.is(200);
    world.with_key("app", "GET", &path, "").await.fails(404, "NOT_FOUND");
    for (key, header, value, status) in [
        ("ann", "x-watertight-tenant", "brick", 403),
        ("ann", "x-watertight-user", "u1", 403),
        ("app", "x-watertight-user", "u1", 200),
        ("low", "x-watertight-feature", "mail", 403),
        ("low", "x-watertight-feature", "chat", 200),
        ("low", "x-watertight-priority", "standard", 403),
        ("low", "x-watertight-priority", "background", 200),
        ("ann", "x-watertight-priority", "critical", 403),
        ("ann", "x-watertight-priority", "urgent", 400),
        ("ann", "x-watertight-deadline-ms", "0", 400),
        ("app", "x-watertight-tenant", "no name!", 400),
    ] {
        let bearer = format!("Bearer {key}");
        let got = world.ask("GET", "/v1/runs", &[("authorization", &bearer), (header, value)], "").await;
        assert_eq!(got.status.as_u16(), status, "{key} {header} {value}: {got:?}");
    }
}

/// Who names one in a header and another one in the body is nobody in particular: no answer of ours may depend on which one we read first.
#[tokio::test]
async fn header_and_body_name_the_same_or_nothing_happens() {
    let world = World::usual().await;
    for (header, value, body, status) in [
        ("x-watertight-tenant", "acme", r#""tenant":"acme""#, 202),
        ("x-watertight-tenant", "acme", r#""tenant":"globex""#, 400),
        ("x-watertight-feature", "chat", r#""feature":"chat""#, 202),
        ("x-watertight-feature", "chat", r#""feature":"batch""#, 400),
        ("x-watertight-priority", "batch", r#""priority":"standard""#, 400),
        ("x-watertight-user", "kim", r#""user":"lee""#, 400),
        ("x-watertight-user", "kim", r#""user":"kim""#, 202),
        ("x-watertight-user", "kim", r#""tenant":"acme""#, 202),
    ] {
        let headers = [("authorization", "Bearer app"), ("content-type", "application/json"), (header, value)];
        let body = format!(r#"{{"workflow":"one","input":{{"text":"x"}},{body}}}"#);
        let got = world.ask("POST", "/v1/runs", &headers, &body).await;
        assert_eq!(got.status.as_u16(), status, "{header} {value} {body}: {got:?}");
        if status == 400 {
            assert!(got.text.contains(header) && got.text.contains(value), "{got:?}");
        }
    }
    let twice = [("authorization", "Bearer app"), ("x-watertight-tenant", "acme"), ("x-watertight-tenant", "globex")];
    world.ask("GET", "/v1/runs", &twice, "").await.fails(400, "INVALID_REQUEST");
}

#[tokio::test]
async fn only_operators_act() {
    let world = World::usual().await;
    let shut = r#"{"action":"force_open","reason":"drill"}"#;
    for (path, body) in
        [("/v1/agents/echo/breaker", shut), ("/v1/agents/echo/drain", ""), ("/v1/dead-letters/x/replay", "")]
    {
        world.with_key("ann", "POST", path, body).await.fails(403, "FORBIDDEN");
    }
    world.with_key("ann", "GET", "/metrics", "").await.fails(403, "FORBIDDEN");
    // It would drain all the same.
    world.with_key("olga", "POST", "/v1/agents/echo/drain", r#"{"drain":false}"#).await.fails(400, "INVALID_REQUEST");
    // What is answered is what holds, and the next call meets it.
    for (action, state) in
        [("force_open", "forced_open"), ("auto", "closed"), ("disable", "disabled"), ("force_open", "forced_open")]
    {
        let act = format!(r#"{{"action":"{action}","reason":"drill"}}"#);
        let told = world.with_key("olga", "POST", "/v1/agents/echo/breaker", &act).await.is(200).json();
        assert_eq!(told["state"], state, "{told}");
    }
    let unknown = r#"{"action":"auto","breaker":"provider:none"}"#;
    let got = world.with_key("olga", "POST", "/v1/agents/echo/breaker", unknown).await;
    got.fails(404, "NOT_FOUND");
    assert_eq!(got.json()["error"]["message"], "there is no breaker \"provider:none\"");
    let got = world.with_key("ann", "POST", "/v1/agents/echo/call", r#"{"input":1}"#).await;
    got.fails(503, "AGENT_CIRCUIT_OPEN");
    // Nobody knows when somebody acts.
    assert!(!got.headers.contains_key("retry-after"), "{got:?}");
    assert_eq!(got.headers["x-should-retry"], "false", "{got:?}");
    world.with_key("olga", "POST", "/v1/agents/nobody/breaker", shut).await.fails(404, "NOT_FOUND");
    let kept = world.state.running().await.unwrap().journal.operator_modes().await.unwrap();
    assert_eq!((kept.len(), kept[0].set_by.as_deref()), (1, Some("olga")));
}

/// How much others call is an operator's to see.
#[tokio::test]
async fn counts_of_all_tenants_are_an_operators() {
    let world = World::usual().await;
    for (key, is_shown) in [("ann", false), ("olga", true)] {
        let listed = world.with_key(key, "GET", "/v1/agents", "").await.is(200).json();
        let agent = &listed["data"][0];
        assert_eq!(agent["name"], "echo");
        for field in ["in_flight", "mailbox_depth"] {
            assert_eq!(agent.get(field).is_some(), is_shown, "{key}: {agent}");
        }
    }
}

#[tokio::test]
async fn a_watch_token_reads_its_run_and_nothing_else() {
    let world = World::usual().await;
    let (id, other) = (world.ended_run("ann").await, world.ended_run("ann").await);
    world.with_key("bob", "POST", &format!("/v1/runs/{id}/watch-token"), "").await.fails(404, "NOT_FOUND");
    let given = world.with_key("ann", "POST", &format!("/v1/runs/{id}/watch-token"), "").await.is(200).json();
    let token = given["token"].as_str().unwrap();
    for end in ["events", "result"] {
        world.ask("GET", &format!("/v1/runs/{id}/{end}?token={token}"), &[], "").await.is(200);
        world.with_key(token, "GET", &format!("/v1/runs/{id}/{end}"), "").await.is(200);
        world.ask("GET", &format!("/v1/runs/{other}/{end}?token={token}"), &[], "").await.fails(401, "UNAUTHORIZED");
    }
    for (method, end) in [("GET", ""), ("GET", "/why"), ("POST", "/cancel"), ("DELETE", "")] {
        world.ask(method, &format!("/v1/runs/{id}{end}?token={token}"), &[], "").await.fails(401, "UNAUTHORIZED");
    }
}
