//! Tells somebody over HTTP that a call that was put off has ended: one signed POST a try. Whom, and the secret, an operator says in the
//! configuration, never a request. Follows no redirect, repeats nothing, and shows no address's answer to anybody.
//!
//! `x-watertight-signature: t=<Unix seconds>,v1=<HMAC-SHA256 of "<t>.<body>", in hex>`: whoever holds the secret makes it again over the
//! bytes as they came, and refuses what is too old.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc, time::Duration};

use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde_json::json;
use sha2::Sha256;

use super::{secret::Secret, wire::chain};
use crate::{
    model::{contract, name::Name},
    runtime::{
        deferred::{
            push::{Push, Pushed},
            view::DeferredView,
        },
        journal::RunOwner,
        ports::{BoxFuture, Clock},
    },
};

/// To a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Who is told of which ends.
#[derive(Clone, Default)]
pub struct WebhookRoutes {
    /// Of calls that no other entry is for.
    pub url: Option<String>,
    /// By feature.
    pub features: BTreeMap<Name, String>,
    /// By tenant; these come before those by feature.
    pub tenants: BTreeMap<Name, String>,
}

/// Tells of ends over HTTP.
pub struct Webhook {
    http: reqwest::Client,
    routes: WebhookRoutes,
    secret: Secret,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Webhook")
    }
}

impl Webhook {
    /// One that tells along `routes`, signed with `secret`, by the time of `clock`. An error says why there is no client.
    pub fn try_new(routes: WebhookRoutes, secret: Secret, clock: Arc<dyn Clock>) -> Result<Self, String> {
        let http = reqwest::Client::builder()
            .user_agent(concat!("watertight/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .build()
            .map_err(|error| chain(&error.without_url()))?;
        Ok(Self { http, routes, secret, clock })
    }

    fn url_of(&self, tenant: Option<&str>, feature: Option<&str>) -> Option<&String> {
        let of_tenant = tenant.and_then(|tenant| self.routes.tenants.get(tenant));
        let of_feature = || feature.and_then(|feature| self.routes.features.get(feature));
        of_tenant.or_else(of_feature).or(self.routes.url.as_ref())
    }

    async fn tell(&self, entry: &DeferredView, attempt: u32) -> Pushed {
        let Some(url) = self.url_of(entry.tenant.as_deref(), entry.feature.as_deref()) else {
            return Pushed::Failed {
                http_status: None,
                error: "nobody is told of this any more".to_owned(),
                may_help: false,
            };
        };
        let body = json!({ "type": format!("deferred.{}", entry.status.as_str()), "deferred": entry }).to_string();
        let seconds = self.clock.unix_ms(self.clock.now()) / 1_000;
        let request = self
            .http
            .post(url)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(contract::SIGNATURE, signature(&self.secret, seconds, &body))
            .header(contract::DELIVERY, &entry.id)
            .header(contract::ATTEMPT, attempt)
            .body(body);
        match request.send().await {
            Ok(answer) => pushed_of(answer.status().as_u16(), answer.headers().contains_key(RETRY_AFTER)),
            Err(error) => Pushed::Failed { http_status: None, error: chain(&error.without_url()), may_help: true },
        }
    }
}

/// What an answer's status says. A redirect is not followed: only the configuration says where answers go.
fn pushed_of(status: u16, told_to_wait: bool) -> Pushed {
    if (200..300).contains(&status) {
        return Pushed::Taken { http_status: status };
    }
    let may_help = told_to_wait || matches!(status, 408 | 425 | 429 | 500..=599);
    Pushed::Failed { http_status: Some(status), error: format!("answered {status}"), may_help }
}

fn signature(secret: &Secret, seconds: u64, body: &str) -> String {
    let mut text = format!("t={seconds},v1=");
    // A key of any length is one.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes()) else { return text };
    mac.update(format!("{seconds}.").as_bytes());
    mac.update(body.as_bytes());
    for byte in mac.finalize().into_bytes() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl Push for Webhook {
    fn is_for(&self, owner: &RunOwner) -> bool {
        self.url_of(owner.tenant.as_deref(), owner.feature.as_deref()).is_some()
    }

    fn push<'a>(&'a self, entry: &'a DeferredView, attempt: u32) -> BoxFuture<'a, Pushed> {
        Box::pin(self.tell(entry, attempt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::run::Cause,
        runtime::{deferred::store::DeferredStatus, ports::TokioClock},
        transport::fake_server::{FakeServer, Step},
    };

    fn entry(tenant: &str, feature: &str) -> DeferredView {
        DeferredView {
            id: "d-1".into(),
            agent: "draft".into(),
            status: DeferredStatus::Done,
            cause: Cause::Budget,
            tenant: Some(tenant.into()),
            feature: Some(feature.into()),
            run_id: None,
            step: None,
            created_ms: 1,
            due_ms: None,
            expires_ms: 9,
            ended_ms: Some(5),
            attempts: 1,
            refusals: 0,
            output: Some(json!("본문")),
            usage: None,
            target: None,
            error: None,
            delivery: None,
        }
    }

    fn hook(url: &str) -> Webhook {
        let name = |text| Name::try_new(text).unwrap();
        let routes = WebhookRoutes {
            url: None,
            features: [(name("batch"), format!("{url}/batch"))].into(),
            tenants: [(name("acme"), format!("{url}/acme"))].into(),
        };
        Webhook::try_new(routes, Secret::new("s3cret"), Arc::new(TokioClock::since_unix_epoch())).unwrap()
    }

    #[test]
    fn a_signature_is_over_time_and_body() {
        // By `printf '17.{}' | openssl dgst -sha256 -hmac s3cret`.
        let secret = Secret::new("s3cret");
        let made = signature(&secret, 17, "{}");
        assert_eq!(made, "t=17,v1=986a7a44b27c222a3b1000e49042bdb8fb3bbc90490fac0df6fb65d8c717dc16");
        assert_ne!(made, signature(&secret, 18, "{}"));
        assert_ne!(made[5..], signature(&secret, 17, "{ }")[5..]);
        assert_ne!(made[5..], signature(&Secret::new("other"), 17, "{}")[5..]);
    }

    #[test]
    fn what_a_status_says() {
        for (status, told_to_wait, want) in [
            (200, false, None),
            (204, false, None),
            (301, false, Some(false)),
            (400, false, Some(false)),
            (404, true, Some(true)),
            (410, false, Some(false)),
            (429, false, Some(true)),
            (503, false, Some(true)),
        ] {
            match (pushed_of(status, told_to_wait), want) {
                (Pushed::Taken { http_status }, None) => assert_eq!(http_status, status),
                (Pushed::Failed { may_help, .. }, Some(wanted)) => assert_eq!(may_help, wanted, "{status}"),
                other => panic!("{status}: {other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn the_tenants_place_comes_first_and_what_is_sent_is_signed() {
        let no_content = b"HTTP/1.1 204 No Content\r\n\r\n".to_vec();
        let moved = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n".to_vec();
        let server = FakeServer::start(vec![vec![Step::Send(no_content)], vec![Step::Send(moved)]]).await;
        let hook = hook(&server.base_url);
        assert_eq!(hook.push(&entry("acme", "batch"), 2).await, Pushed::Taken { http_status: 204 });
        let moved = hook.push(&entry("bolt", "batch"), 1).await;
        assert!(matches!(moved, Pushed::Failed { http_status: Some(302), may_help: false, .. }), "{moved:?}");
        let requests = server.requests();
        assert!(requests[0].starts_with("POST /acme ") && requests[1].starts_with("POST /batch "), "{requests:?}");
        let (head, body) = requests[0].split_once("\r\n\r\n").unwrap();
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap();
        let signed = header(contract::SIGNATURE);
        let seconds = signed.split_once("t=").unwrap().1.split_once(',').unwrap().0.parse().unwrap();
        assert_eq!(signed, signature(&Secret::new("s3cret"), seconds, body));
        assert_eq!((header(contract::DELIVERY), header(contract::ATTEMPT)), ("d-1", "2"));
        let told: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!((told["type"].as_str(), told["deferred"]["output"].as_str()), (Some("deferred.done"), Some("본문")));
    }

    #[tokio::test]
    async fn nobody_is_told_without_a_place_and_a_dead_one_is_tried_again() {
        let hook = hook("http://127.0.0.1:1");
        let owner = |feature: &str| RunOwner { feature: Some(feature.into()), ..RunOwner::default() };
        assert!(hook.is_for(&owner("batch")) && !hook.is_for(&owner("chat")));
        let gone = hook.push(&entry("bolt", "chat"), 1).await;
        assert!(matches!(gone, Pushed::Failed { may_help: false, .. }), "{gone:?}");
        let dead = hook.push(&entry("acme", "batch"), 1).await;
        assert!(matches!(dead, Pushed::Failed { http_status: None, may_help: true, .. }), "{dead:?}");
    }
}
