//! Whether a service is up: its configured health path answers. What follows from that is the runtime's business.

use std::time::Duration;

use crate::{
    model::reply::AttemptFailure,
    transport::{client::ProviderClient, question},
};

/// How long an answer is waited for.
pub const HEALTH_WAIT_MAX: Duration = Duration::from_secs(5);

/// Fine once `path` answers with a good status; its body does not matter.
pub async fn probe_health(client: &ProviderClient, path: &str) -> Result<(), AttemptFailure> {
    let asking = question::get(client, path);
    question::within(client, HEALTH_WAIT_MAX, "the health path did not answer", asking).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::Ending;
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
