//! Tells somebody over HTTP that a call that was put off has ended: one signed POST a try. Whom, and the secret, an operator says in the
//! configuration, never a request. Follows no redirect, repeats nothing, reads no more of an answer than its head, and shows nothing of
//! it but the status. A name must not lead into our own network unless that is allowed.
//!
//! `x-watertight-signature: t=<Unix seconds>,v1=<HMAC-SHA256 of "<t>.<body>", in hex>`: whoever holds the secret makes it again over the
//! bytes as they came, and refuses what is too old.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::{
    Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde_json::json;
use sha2::Sha256;

use super::{
    inward::{LeadsInward, OutwardResolver},
    secret::Secret,
    wire::chain,
};
use crate::{
    model::{contract, name::Name},
    policy::retry_after,
    runtime::{
        deferred::{
            push::{PrivateNames, Push, Pushed},
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
    /// To other machines, by a proxy where the environment names one.
    outward: reqwest::Client,
    /// To this machine, which no proxy reaches.
    here: reqwest::Client,
    routes: WebhookRoutes,
    /// Written by a reload.
    secret: ArcSwap<Secret>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Webhook")
    }
}

impl Webhook {
    /// One that tells along `routes`, signed with `secret`, by the time of `clock`. An error says why there is no client.
    pub fn try_new(
        routes: WebhookRoutes,
        secret: Secret,
        private_names: PrivateNames,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, String> {
        let client = || {
            reqwest::Client::builder()
                .user_agent(concat!("watertight/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_TIMEOUT)
                .redirect(reqwest::redirect::Policy::none())
                .retry(reqwest::retry::never())
                .dns_resolver(Arc::new(OutwardResolver { private_names }))
                .referer(false)
        };
        let wrong = |error: reqwest::Error| chain(&error.without_url());
        let outward = client().build().map_err(wrong)?;
        let here = client().no_proxy().build().map_err(wrong)?;
        Ok(Self { outward, here, routes, secret: ArcSwap::from_pointee(secret), clock })
    }

    /// From now on it signs with this secret.
    pub fn sign_with(&self, secret: Secret) {
        self.secret.store(Arc::new(secret));
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
                retry_after: None,
            };
        };
        let body = json!({ "type": format!("deferred.{}", entry.status.as_str()), "deferred": entry }).to_string();
        let now_ms = self.clock.unix_ms(self.clock.now());
        let seconds = now_ms / 1_000;
        let client = if is_here(url) { &self.here } else { &self.outward };
        let secret = self.secret.load_full();
        let request = client
            .post(url)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(contract::SIGNATURE, signature(&secret, seconds, &body))
            .header(contract::DELIVERY, &entry.id)
            .header(contract::ATTEMPT, attempt)
            .body(body);
        match request.send().await {
            // Its body is nobody's business, and however long it is, it is not read.
            Ok(answer) => pushed_of(answer.status().as_u16(), answer.headers(), now_ms),
            Err(error) if LeadsInward::is_behind(&error) => {
                tracing::warn!(
                    host = Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned)),
                    "a webhook's name leads into this machine or a private network: nobody is told (deferred.webhook.private_names)"
                );
                Pushed::Failed { http_status: None, error: LeadsInward.to_string(), may_help: false, retry_after: None }
            }
            Err(error) => Pushed::Failed {
                http_status: None,
                error: secret.scrub(&chain(&error.without_url())),
                may_help: true,
                retry_after: None,
            },
        }
    }
}

fn is_here(url: &str) -> bool {
    let url = Url::parse(url).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// What the head of an answer says. A redirect is not followed: only the configuration says where answers go.
fn pushed_of(status: u16, headers: &HeaderMap, now_ms: u64) -> Pushed {
    if (200..300).contains(&status) {
        return Pushed::Taken { http_status: status };
    }
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let retry_after = retry_after::read(headers, status, now_ms);
    let may_help = retry_after.is_some() || matches!(status, 408 | 425 | 429 | 500..=599);
    Pushed::Failed { http_status: Some(status), error: format!("answered {status}"), may_help, retry_after }
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
    use reqwest::header::RETRY_AFTER;

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
        webhook(routes, PrivateNames::Refused)
    }

    fn webhook(routes: WebhookRoutes, private_names: PrivateNames) -> Webhook {
        let clock = Arc::new(TokioClock::since_unix_epoch());
        Webhook::try_new(routes, Secret::new("s3cret"), private_names, clock).unwrap()
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
        let wait = |text: &'static str| HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]);
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (status, headers, want) in [
            (200, HeaderMap::new(), None),
            (204, HeaderMap::new(), None),
            (301, HeaderMap::new(), Some((false, None))),
            (400, HeaderMap::new(), Some((false, None))),
            (404, wait("7"), Some((true, seconds(7)))),
            (410, HeaderMap::new(), Some((false, None))),
            (410, wait("soon"), Some((false, None))),
            (429, HeaderMap::new(), Some((true, None))),
            (503, wait("90"), Some((true, seconds(90)))),
        ] {
            match (pushed_of(status, &headers, 0), want) {
                (Pushed::Taken { http_status }, None) => assert_eq!(http_status, status),
                (Pushed::Failed { may_help, retry_after, .. }, Some(wanted)) => {
                    assert_eq!((may_help, retry_after), wanted, "{status}");
                }
                other => panic!("{status}: {other:?}"),
            }
        }
    }

    /// However much the other side says, and however slowly: its head is all that is waited for.
    #[tokio::test]
    async fn the_body_of_an_answer_is_not_read() {
        let head = Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000000\r\n\r\nmore and ".to_vec());
        let mut server = FakeServer::start(vec![vec![head, Step::UntilClosed]]).await;
        let hook = hook(&server.base_url);
        let told = tokio::time::timeout(Duration::from_secs(30), hook.push(&entry("acme", "batch"), 1)).await;
        assert_eq!(told.unwrap(), Pushed::Taken { http_status: 200 });
        assert!(server.sees_client_leave().await);
    }

    /// A name that this machine's own files lead inward; `localhost` says so itself, and so does an address.
    #[tokio::test]
    async fn a_name_must_not_lead_inward_unless_that_is_allowed() {
        let server = FakeServer::start(vec![vec![Step::Send(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec())]]).await;
        let port = server.base_url.rsplit(':').next().unwrap().to_owned();
        let at = |host: &str, private_names| {
            let routes = WebhookRoutes { url: Some(format!("http://{host}:{port}/")), ..WebhookRoutes::default() };
            webhook(routes, private_names)
        };
        let entry = entry("acme", "batch");
        for (host, private_names) in [
            ("127.0.0.1", PrivateNames::Refused),
            ("localhost", PrivateNames::Refused),
            ("inner.localhost", PrivateNames::Allowed),
        ] {
            if !leads_here(host).await {
                println!("skipped: {host} is not known here");
                continue;
            }
            let told = at(host, private_names).push(&entry, 1).await;
            assert_eq!(told, Pushed::Taken { http_status: 204 }, "{host}");
        }
        let before = server.requests().len();
        let Ok(own) = std::fs::read_to_string("/etc/hostname") else { return };
        for host in ["inner.localhost", own.trim()] {
            if !leads_here(host).await {
                println!("skipped: {host} is not known here");
                continue;
            }
            let told = at(host, PrivateNames::Refused).push(&entry, 1).await;
            let Pushed::Failed { error, may_help: false, .. } = told else { panic!("{host}: {told:?}") };
            assert!(error.contains("leads into this machine") && !error.contains(host), "{error}");
        }
        assert_eq!(server.requests().len(), before, "nobody there heard of it");
    }

    async fn leads_here(host: &str) -> bool {
        let found = tokio::net::lookup_host((host, 0)).await;
        found.is_ok_and(|mut found| found.all(|address| crate::transport::inward::leads_inward(address.ip())))
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
