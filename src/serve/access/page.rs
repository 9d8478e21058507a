//! Which pages in a browser may ask a service that has no keys. Such a service is its user's alone, and any page that the user visits can
//! send requests from the same machine: what the browser says of them (`Host`, `Origin`) tells them apart. Programs say neither, or what
//! is true. With keys nobody asks here: no browser sends a key by itself.

use std::net::IpAddr;

use axum::http::{HeaderValue, Uri, header, request::Parts, uri::Authority};

use crate::{serve::answer::failure::Failure, settings::serve::ServeSettings};

/// Where services stand behind us.
const SERVICES: &str = "/agents/";
/// Whose page a browser sends something for.
const FETCH_SITE: &str = "sec-fetch-site";

/// Refuses what a page of somebody else's sends.
pub(super) fn check_page(parts: &Parts, settings: &ServeSettings) -> Result<(), Failure> {
    let host = host_of(parts);
    // A name that leads here by somebody else's doing makes their page one of our own. Who listens beyond this machine has names of its own.
    if let Some(host) = host.as_ref().filter(|_| settings.listen.ip().is_loopback())
        && !is_own(host.host())
        && !settings.cors_origins.iter().any(|origin| origin_host(origin).as_deref() == Some(host.host()))
    {
        return Err(Failure::forbidden(format!(
            "a service without keys is not asked by the name {:?}: use localhost or its address, or have keys",
            host.host()
        )));
    }
    // What a service behind us does for a question, and with our key, is not ours to know.
    let only_asks = parts.method.is_safe() && !parts.uri.path().starts_with(SERVICES);
    if only_asks {
        return Ok(());
    }
    let Some(origin) = parts.headers.get(header::ORIGIN) else {
        // Pictures, scripts and links of a page say no origin; programs say neither.
        let is_foreign = parts.headers.get(FETCH_SITE).is_some_and(|site| site == "cross-site");
        return if is_foreign { Err(foreign()) } else { Ok(()) };
    };
    if is_allowed(origin, host.as_ref(), &settings.cors_origins) {
        return Ok(());
    }
    Err(Failure::forbidden(format!(
        "a service without keys takes nothing from pages of {origin:?}: name them in serve.cors_origins, or have keys"
    )))
}

fn foreign() -> Failure {
    Failure::forbidden(
        "a service without keys takes nothing from pages of somebody else: name them in serve.cors_origins, or have keys",
    )
}

/// Whom the request was sent to, by its own word.
fn host_of(parts: &Parts) -> Option<Authority> {
    let named = || parts.headers.get(header::HOST)?.to_str().ok()?.parse().ok();
    parts.uri.authority().cloned().or_else(named)
}

/// Addresses, and names without a dot or below `localhost`: nobody else can own those and make them lead here.
fn is_own(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    bare.parse::<IpAddr>().is_ok() || !name.contains('.') || name.ends_with(".localhost")
}

fn origin_host(origin: &str) -> Option<String> {
    origin.parse::<Uri>().ok()?.host().map(str::to_owned)
}

fn is_allowed(origin: &HeaderValue, host: Option<&Authority>, known: &[String]) -> bool {
    if known.iter().any(|known| known == "*" || known.as_bytes() == origin.as_bytes()) {
        return true;
    }
    let page = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    let page = page.as_ref().and_then(Uri::authority);
    // Our own pages.
    page.zip(host).is_some_and(|(page, host)| page.as_str().eq_ignore_ascii_case(host.as_str()))
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn may(listen: &str, cors: &[&str], method: &str, headers: &[(&str, &str)]) -> bool {
        may_at("/v1/runs", listen, cors, method, headers)
    }

    fn may_at(path: &str, listen: &str, cors: &[&str], method: &str, headers: &[(&str, &str)]) -> bool {
        let settings = ServeSettings {
            listen: listen.parse().unwrap(),
            cors_origins: cors.iter().map(|origin| (*origin).to_owned()).collect(),
            ..ServeSettings::default()
        };
        let request = headers
            .iter()
            .fold(Request::builder().method(method).uri(path), |request, (name, value)| request.header(*name, *value));
        check_page(&request.body(()).unwrap().into_parts().0, &settings).is_ok()
    }

    /// A service behind us is asked with our key, whatever the method.
    #[test]
    fn pages_of_somebody_else_ask_no_service_behind_us() {
        let here = ("host", "127.0.0.1:7800");
        let evil = ("origin", "https://evil.example");
        for (path, cors, method, headers, want) in [
            ("/agents/v/account/files", &[][..], "GET", &[here, evil][..], false),
            ("/agents/v/account/files", &[], "HEAD", &[here, evil], false),
            ("/agents/v/account/files", &[], "OPTIONS", &[here, evil], false),
            ("/agents/v/picture.png", &[], "GET", &[here, ("sec-fetch-site", "cross-site")], false),
            ("/agents/v/picture.png", &[], "GET", &[here, ("sec-fetch-site", "same-origin")], true),
            ("/agents/v/account/files", &[], "GET", &[here, ("origin", "http://127.0.0.1:7800")], true),
            ("/agents/v/account/files", &["https://evil.example"], "GET", &[here, evil], true),
            ("/agents/v/account/files", &[], "GET", &[here], true),
            ("/v1/agents", &[], "GET", &[here, evil], true),
            ("/v1/runs", &[], "POST", &[here, ("sec-fetch-site", "cross-site")], false),
        ] {
            assert_eq!(may_at(path, "127.0.0.1:7800", cors, method, headers), want, "{path} {method} {headers:?}");
        }
    }

    #[test]
    fn pages_of_somebody_else_are_kept_out() {
        let (here, wide) = ("127.0.0.1:7800", "0.0.0.0:7800");
        let evil = ("origin", "https://evil.example");
        let own = [("host", "127.0.0.1:7800"), ("origin", "http://127.0.0.1:7800")];
        for (listen, cors, method, headers, want) in [
            // Programs, and our own pages.
            (here, &[][..], "POST", &[][..], true),
            (here, &[], "POST", &[("host", "127.0.0.1:7800")], true),
            (here, &[], "POST", &[("host", "localhost:7800")], true),
            (here, &[], "POST", &[("host", "Tools.localhost:7800")], true),
            (here, &[], "POST", &[("host", "watertight:7800")], true),
            (here, &[], "GET", &[("host", "[::1]:7800")], true),
            (here, &[], "POST", &own, true),
            (here, &[], "POST", &[("host", "localhost"), ("origin", "http://localhost")], true),
            // Pages of others that send.
            (here, &[], "POST", &[("host", "127.0.0.1:7800"), evil], false),
            (here, &[], "DELETE", &[evil], false),
            (here, &[], "POST", &[("host", "127.0.0.1:7800"), ("origin", "null")], false),
            (here, &[], "POST", &[("host", "127.0.0.1:7800"), ("origin", "http://127.0.0.1:9999")], false),
            (wide, &[], "POST", &[("host", "tools.example"), evil], false),
            // They read nothing: the browser keeps the answer from them.
            (here, &[], "GET", &[("host", "127.0.0.1:7800"), evil], true),
            // Pages whose own name leads here.
            (here, &[], "GET", &[("host", "evil.example:7800")], false),
            (here, &[], "GET", &[("host", "localhost.evil.example")], false),
            (here, &[], "POST", &[("host", "evil.example"), ("origin", "http://evil.example")], false),
            (wide, &[], "GET", &[("host", "tools.example")], true),
            // Those that are named.
            (here, &["https://evil.example"], "POST", &[("host", "127.0.0.1:7800"), evil], true),
            (here, &["https://evil.example"], "GET", &[("host", "evil.example")], true),
            (here, &["https://good.example"], "POST", &[evil], false),
            (here, &["*"], "POST", &[("host", "127.0.0.1:7800"), evil], true),
            (here, &["*"], "GET", &[("host", "evil.example")], false),
        ] {
            assert_eq!(may(listen, cors, method, headers), want, "{listen} {cors:?} {method} {headers:?}");
        }
    }
}
