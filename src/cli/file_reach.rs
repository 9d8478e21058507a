//! How an agent of the service reaches files that its input names, by where it runs. Looks at settings only, never at the network.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use axum::http::Uri;

use crate::{
    journal::files::store::FileStore,
    runtime::ports::Backend,
    serve::{
        access::signature::Signer,
        files::backend::{Reach, WithFiles},
    },
    settings::{
        agent::Agent,
        agent_backend::{AgentBackend, ImageForm},
        load::Settings,
    },
};

/// What gives files to agents.
pub(super) struct FileGiver<'a> {
    /// Where agents run.
    pub(super) settings: &'a Settings,
    /// The files.
    pub(super) files: Arc<FileStore>,
    /// Signs their URLs.
    pub(super) signer: Signer,
    /// Where the service listens.
    pub(super) address: SocketAddr,
}

impl FileGiver<'_> {
    /// The agent's backend, given files in the way in which it reaches them.
    pub(super) fn around(&self, agent: &Agent, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        let reach = match &agent.backend {
            AgentBackend::Embedded { .. } => Reach::Path,
            AgentBackend::Http(_) if self.is_here(agent) => Reach::PathAndUrl(self.url()),
            AgentBackend::Http(_) => Reach::Url(self.url()),
            AgentBackend::Model(model) if model.images == ImageForm::Attached => {
                Reach::Sees { side_max: self.settings.files.picture_side_max }
            }
            AgentBackend::Model(_) => return backend,
        };
        Arc::new(WithFiles::new(backend, Arc::clone(&self.files), self.signer.clone(), reach))
    }

    /// Whether the agent runs on this machine.
    fn is_here(&self, agent: &Agent) -> bool {
        let provider = self.settings.provider(agent.settings.provider.as_str());
        let endpoint = provider.and_then(|provider| provider.backend.endpoint());
        endpoint.is_some_and(|endpoint| is_loopback(&endpoint.base_url))
    }

    fn url(&self) -> String {
        self.settings.serve.public_url.clone().unwrap_or_else(|| format!("http://{}", reachable(self.address)))
    }
}

fn is_loopback(base_url: &str) -> bool {
    let Ok(url) = base_url.parse::<Uri>() else { return false };
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// An address that a connection can be made to: one that stands for all of this machine's becomes the loopback's.
pub(super) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_here() {
        for (url, here) in [
            ("http://127.0.0.1:9000", true),
            ("http://127.8.0.1/agents", true),
            ("http://localhost:9000/v1", true),
            ("http://[::1]:9000", true),
            ("http://10.0.0.7:9000", false),
            ("http://localhost.example:9000", false),
            ("https://127.0.0.1.example", false),
            ("nonsense", false),
        ] {
            assert_eq!(is_loopback(url), here, "{url}");
        }
    }

    #[test]
    fn an_address_for_all_becomes_one_to_connect_to() {
        for (listens, url) in
            [("0.0.0.0:7800", "127.0.0.1:7800"), ("[::]:7800", "[::1]:7800"), ("10.0.0.7:7800", "10.0.0.7:7800")]
        {
            assert_eq!(reachable(listens.parse().unwrap()).to_string(), url);
        }
    }
}
