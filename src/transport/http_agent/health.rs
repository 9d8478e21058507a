//! Whether a service is up: its configured health path answers. What follows from that is the runtime's business.

use std::time::Duration;

use reqwest::{Method, header::HeaderMap};
use tokio::time::timeout;

use crate::{
    model::{
        facts::{Ending, TimeoutKind},
        reply::AttemptFailure,
    },
    transport::{
        client::{Outgoing, ProviderClient},
        error_body::ErrorPointers,
    },
};

/// How long an answer is waited for.
pub const HEALTH_WAIT_MAX: Duration = Duration::from_secs(5);

/// Fine once `path` answers with a good status; its body does not matter.
pub async fn probe_health(client: &ProviderClient, path: &str) -> Result<(), AttemptFailure> {
    let outgoing = Outgoing { method: Method::GET, path: path.to_owned(), headers: HeaderMap::new(), body: None };
    let answered = timeout(HEALTH_WAIT_MAX, client.send(outgoing, &ErrorPointers::default())).await;
    match answered {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(failure)) => Err(client.scrub(failure)),
        Err(_) => {
            let ending = Ending::Timeout { timeout: TimeoutKind::Attempt };
            let message = format!("the health path did not answer within {} s", HEALTH_WAIT_MAX.as_secs());
            Err(AttemptFailure::new(ending, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{
        client::ProviderOptions,
        fake_server::{FakeServer, answer},
    };

    #[tokio::test]
    async fn up_and_down() {
        let server = FakeServer::start(vec![answer(200, "", "anything"), answer(503, "", "starting")]).await;
        let client = ProviderClient::try_new(&ProviderOptions::at(&server.base_url)).unwrap();
        assert_eq!(probe_health(&client, "/actuator/health").await, Ok(()));
        assert!(server.requests()[0].starts_with("GET /actuator/health HTTP/1.1\r\n"));
        assert_eq!(probe_health(&client, "/actuator/health").await.unwrap_err().ending, Ending::status(503));
    }
}
