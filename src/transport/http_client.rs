//! How a provider is reached: one pool of connections with the bounds of every exchange. It knows no keys and no paths, and sends nothing
//! by itself.

use std::time::Duration;

use url::{Host, Url};

use super::{
    client::{HEADER_BYTES_MAX, POOL_IDLE},
    kept_connection::NotesConnecting,
};

/// What becomes of bodies that come packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packed {
    /// They are unpacked: whoever asks reads them.
    Unpacked,
    /// They stay as they are: whoever asks hands them on.
    AsSent,
}

/// A client for the place at `base_url`.
pub(super) fn http_client(
    base_url: &Url,
    connect_timeout: Duration,
    packed: Packed,
) -> Result<reqwest::Client, reqwest::Error> {
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("watertight/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(connect_timeout)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .connector_layer(NotesConnecting)
        .referer(false)
        .tcp_nodelay(true)
        .pool_idle_timeout(POOL_IDLE)
        .http2_max_header_list_size(HEADER_BYTES_MAX);
    if packed == Packed::AsSent {
        builder = builder.no_gzip();
    }
    if is_loopback(base_url) {
        // A proxy of the environment cannot reach what runs on this very machine.
        builder = builder.no_proxy();
    }
    builder.build()
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}
