//! `[serve]`: where the service listens and what it bears at most. Says nothing of runs or agents.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use super::{
    node::{Node, Value},
    reader::Reader,
};

/// No count of connections, streams or requests can be set higher.
pub const COUNT_MAX: u64 = 1_000_000;
/// No body can be allowed to be larger.
pub const BODY_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Whoever says several times a second that it lives can be late.
const SILENCE_MIN: Duration = Duration::from_secs(1);
/// The most origins that a browser may come from.
const ORIGINS_MAX: usize = 100;
/// What `open_to_network` must say.
const OPEN_WORDS: &str = "without keys";

/// Whether a service without keys may be reached from other machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenToNetwork {
    /// Only this machine.
    Never,
    /// The configuration says so in so many words.
    WithoutKeys,
}

/// How the service serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeSettings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Whether it may listen beyond this machine without keys.
    pub open_to_network: OpenToNetwork,
    /// How long calls in flight may go on after it was told to stop.
    pub grace: Duration,
    /// How long requests wait at most for a journal that a predecessor still holds.
    pub handover_wait: Duration,
    /// How long steps under way may go on once somebody waits at a successor for the journal; those that must not be made twice have all
    /// of grace.
    pub handover_steps_wait: Duration,
    /// A successor that has taken the service and was silent for so long has lost it again. A process says several times a second that it
    /// lives.
    pub handover_silence_max: Duration,
    /// One that lives has to serve within this, once the journal was let go of.
    pub handover_start_max: Duration,
    /// Connections at once; a small reserve beyond it serves health, queries and operator acts only.
    pub connections_max: u32,
    /// Connections at once from one address; `None` = as many as there are, since behind a proxy all come from one.
    pub connections_per_address_max: Option<u32>,
    /// Requests at once on one HTTP/2 connection.
    pub http2_streams_max: u32,
    /// Bytes of a request's path and query.
    pub target_bytes_max: u32,
    /// Headers of one request.
    pub headers_max: u32,
    /// Bytes of all headers of one request.
    pub header_bytes_max: u32,
    /// How long a request's head may take to arrive.
    pub header_timeout: Duration,
    /// How long a connection may be kept without a request.
    pub idle_timeout: Duration,
    /// How long a body may pause while it is sent.
    pub body_pause_max: Duration,
    /// A body that is slower than this over all is given up, once it was waited for longer than a pause may be.
    pub body_bytes_per_second_min: u32,
    /// How long a JSON body may take as a whole.
    pub body_timeout: Duration,
    /// How long a client may not read what it is sent.
    pub write_timeout: Duration,
    /// Bytes of a JSON body.
    pub body_bytes_max: u64,
    /// Bytes of all bodies that are in memory at once.
    pub bodies_bytes_max: u64,
    /// Bytes of all answers at once that were built whole and are not read yet: those of questions, and as many again of calls.
    pub answers_bytes_max: u64,
    /// Those of one tenant, or of one key that has none.
    pub answers_tenant_bytes_max: u64,
    /// Runs that were asked for here and are not over, at once.
    pub runs_live_max: u32,
    /// Bytes of the inputs of those runs. While a run goes on its input is in memory, up to three times.
    pub runs_bytes_max: u64,
    /// Those of one tenant.
    pub runs_tenant_max: u32,
    /// Bytes of the inputs of those.
    pub runs_tenant_bytes_max: u64,
    /// About the memory in bytes of the outputs of all runs that are not over.
    pub runs_outputs_bytes_max: u64,
    /// Calls of agents and model requests at once.
    pub calls_max: u32,
    /// Uploads at once.
    pub uploads_max: u32,
    /// Of those, uploads with one key.
    pub uploads_key_max: u32,
    /// An upload that is slower than this over all is given up, as a body is.
    pub upload_bytes_per_second_min: u32,
    /// Queries and operator acts at once.
    pub queries_max: u32,
    /// Event streams at once.
    pub streams_max: u32,
    /// Event streams of one run.
    pub streams_run_max: u32,
    /// Event streams of one key.
    pub streams_key_max: u32,
    /// A silent stream shows this often that it is alive.
    pub ping: Duration,
    /// Origins that a browser may come from; `*` = any.
    pub cors_origins: Vec<String>,
    /// The address that agents reach this service by, for URLs of files; `None` = where it listens.
    pub public_url: Option<String>,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7_800),
            open_to_network: OpenToNetwork::Never,
            grace: Duration::from_secs(30),
            handover_wait: Duration::from_secs(60),
            handover_steps_wait: Duration::from_secs(5),
            handover_silence_max: Duration::from_secs(15),
            handover_start_max: Duration::from_secs(600),
            connections_max: 10_000,
            connections_per_address_max: None,
            http2_streams_max: 256,
            target_bytes_max: 8 * 1024,
            headers_max: 100,
            header_bytes_max: 64 * 1024,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            body_pause_max: Duration::from_secs(30),
            body_bytes_per_second_min: 128,
            body_timeout: Duration::from_secs(300),
            write_timeout: Duration::from_secs(60),
            body_bytes_max: 32 * 1024 * 1024,
            bodies_bytes_max: 512 * 1024 * 1024,
            answers_bytes_max: 256 * 1024 * 1024,
            answers_tenant_bytes_max: 64 * 1024 * 1024,
            runs_live_max: 20_000,
            runs_tenant_max: 10_000,
            runs_tenant_bytes_max: 256 * 1024 * 1024,
            runs_bytes_max: 512 * 1024 * 1024,
            runs_outputs_bytes_max: 512 * 1024 * 1024,
            calls_max: 2_000,
            uploads_max: 64,
            uploads_key_max: 16,
            upload_bytes_per_second_min: 8 * 1024,
            queries_max: 500,
            streams_max: 8_000,
            streams_run_max: 2_000,
            streams_key_max: 4_000,
            ping: Duration::from_secs(15),
            cors_origins: Vec::new(),
            public_url: None,
        }
    }
}

/// Reads `[serve]`.
pub(super) fn read_serve(root: &mut Reader<'_, '_>) -> ServeSettings {
    let fallback = ServeSettings::default();
    let mut reader = root.table("serve");
    let settings = ServeSettings {
        listen: read_listen(&mut reader, fallback.listen),
        open_to_network: read_open(&mut reader),
        grace: reader.duration_from_zero("grace", fallback.grace),
        handover_wait: reader.duration("handover_wait", fallback.handover_wait),
        handover_steps_wait: reader.duration_from_zero("handover_steps_wait", fallback.handover_steps_wait),
        handover_silence_max: read_silence(&mut reader, fallback.handover_silence_max),
        handover_start_max: reader.duration("handover_start_max", fallback.handover_start_max),
        connections_max: count(&mut reader, "connections_max", fallback.connections_max),
        connections_per_address_max: read_per_address(&mut reader),
        http2_streams_max: count(&mut reader, "http2_streams_max", fallback.http2_streams_max),
        target_bytes_max: count(&mut reader, "target_bytes_max", fallback.target_bytes_max),
        headers_max: count(&mut reader, "headers_max", fallback.headers_max),
        header_bytes_max: count(&mut reader, "header_bytes_max", fallback.header_bytes_max),
        header_timeout: reader.duration("header_timeout", fallback.header_timeout),
        idle_timeout: reader.duration("idle_timeout", fallback.idle_timeout),
        body_pause_max: reader.duration("body_pause_max", fallback.body_pause_max),
        body_bytes_per_second_min: count(&mut reader, "body_bytes_per_second_min", fallback.body_bytes_per_second_min),
        body_timeout: reader.duration("body_timeout", fallback.body_timeout),
        write_timeout: reader.duration("write_timeout", fallback.write_timeout),
        body_bytes_max: bytes(&mut reader, "body_bytes_max", fallback.body_bytes_max),
        bodies_bytes_max: bytes(&mut reader, "bodies_bytes_max", fallback.bodies_bytes_max),
        answers_bytes_max: bytes(&mut reader, "answers_bytes_max", fallback.answers_bytes_max),
        answers_tenant_bytes_max: bytes(&mut reader, "answers_tenant_bytes_max", fallback.answers_tenant_bytes_max),
        runs_tenant_max: count(&mut reader, "runs_tenant_max", fallback.runs_tenant_max),
        runs_tenant_bytes_max: bytes(&mut reader, "runs_tenant_bytes_max", fallback.runs_tenant_bytes_max),
        runs_live_max: count(&mut reader, "runs_live_max", fallback.runs_live_max),
        runs_bytes_max: bytes(&mut reader, "runs_bytes_max", fallback.runs_bytes_max),
        runs_outputs_bytes_max: bytes(&mut reader, "runs_outputs_bytes_max", fallback.runs_outputs_bytes_max),
        calls_max: count(&mut reader, "calls_max", fallback.calls_max),
        uploads_max: count(&mut reader, "uploads_max", fallback.uploads_max),
        upload_bytes_per_second_min: count(
            &mut reader,
            "upload_bytes_per_second_min",
            fallback.upload_bytes_per_second_min,
        ),
        uploads_key_max: count(&mut reader, "uploads_key_max", fallback.uploads_key_max),
        queries_max: count(&mut reader, "queries_max", fallback.queries_max),
        streams_max: count(&mut reader, "streams_max", fallback.streams_max),
        streams_run_max: count(&mut reader, "streams_run_max", fallback.streams_run_max),
        streams_key_max: count(&mut reader, "streams_key_max", fallback.streams_key_max),
        ping: reader.duration("ping", fallback.ping),
        cors_origins: read_origins(&mut reader),
        public_url: read_public_url(&mut reader),
    };
    reader.finish(&[]);
    settings
}

fn count(reader: &mut Reader<'_, '_>, key: &'static str, default: u32) -> u32 {
    let value = reader.whole(key, 1, COUNT_MAX).and_then(|number| u32::try_from(number).ok()).unwrap_or(default);
    reader.explain(key, value.to_string());
    value
}

fn read_silence(reader: &mut Reader<'_, '_>, default: Duration) -> Duration {
    let key = "handover_silence_max";
    let value = reader.duration(key, default);
    if value < SILENCE_MIN {
        reader.refuse(key, "must be 1s or longer");
    }
    value
}

fn read_per_address(reader: &mut Reader<'_, '_>) -> Option<u32> {
    let key = "connections_per_address_max";
    let value = reader.whole(key, 1, COUNT_MAX).and_then(|number| u32::try_from(number).ok());
    reader.explain(key, value.map_or_else(|| "none".to_owned(), |value| value.to_string()));
    value
}

fn bytes(reader: &mut Reader<'_, '_>, key: &'static str, default: u64) -> u64 {
    let value = reader.whole(key, 1_024, BODY_BYTES_MAX).unwrap_or(default);
    reader.explain(key, value.to_string());
    value
}

fn read_listen(reader: &mut Reader<'_, '_>, default: SocketAddr) -> SocketAddr {
    let listen = reader.text("listen").and_then(|text| {
        if let Ok(address) = text.parse() {
            Some(address)
        } else {
            reader.refuse("listen", "must be an IP address with a port, as in \"127.0.0.1:7800\"");
            None
        }
    });
    let listen = listen.unwrap_or(default);
    reader.explain("listen", listen.to_string());
    listen
}

fn read_open(reader: &mut Reader<'_, '_>) -> OpenToNetwork {
    let open = match reader.text("open_to_network") {
        Some(OPEN_WORDS) => OpenToNetwork::WithoutKeys,
        Some(_) => {
            reader.refuse("open_to_network", format!("must be \"{OPEN_WORDS}\", in so many words, or left out"));
            OpenToNetwork::Never
        }
        None => OpenToNetwork::Never,
    };
    let word = if open == OpenToNetwork::Never { "never" } else { OPEN_WORDS };
    reader.explain("open_to_network", word);
    open
}

fn read_origins(reader: &mut Reader<'_, '_>) -> Vec<String> {
    let rule = "must be a list of origins, as in [\"https://app.example\"], or [\"*\"]";
    let Some(Value::List(items)) = reader.node("cors_origins").map(|node| &node.value) else {
        if reader.is_given("cors_origins") {
            reader.refuse("cors_origins", rule);
        }
        reader.explain("cors_origins", "none");
        return Vec::new();
    };
    let origins: Option<Vec<String>> = items.iter().map(origin_of).collect();
    let origins = origins.filter(|origins| origins.len() <= ORIGINS_MAX).unwrap_or_else(|| {
        reader.refuse("cors_origins", rule);
        Vec::new()
    });
    reader.explain("cors_origins", origins.join(", "));
    origins
}

fn origin_of(node: &Node) -> Option<String> {
    let Value::Text(text) = &node.value else { return None };
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let is_origin = host.is_some_and(|host| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@".contains(&byte))
    });
    (is_origin || text == "*").then(|| text.clone())
}

fn read_public_url(reader: &mut Reader<'_, '_>) -> Option<String> {
    let text = reader.text("public_url")?;
    let fits = (text.starts_with("http://") || text.starts_with("https://")) && !text.contains(['?', '#', ' ']);
    if !fits {
        reader.refuse("public_url", "must be a URL of this service, as in \"https://runs.example\"");
        return None;
    }
    reader.explain("public_url", text);
    Some(text.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use crate::settings::tests::Given;

    #[test]
    fn how_long_a_successor_may_be_silent_is_set_and_bounded() {
        let plain = Given::config("").load().unwrap().serve;
        assert_eq!((plain.handover_silence_max.as_secs(), plain.handover_start_max.as_secs()), (15, 600));
        let given = Given::config("[serve]\nhandover_silence_max = \"1s\"\nhandover_start_max = \"3s\"\n");
        let set = given.load().unwrap().serve;
        assert_eq!((set.handover_silence_max.as_secs(), set.handover_start_max.as_secs()), (1, 3));
        for (key, value) in [("handover_silence_max", "999ms"), ("handover_start_max", "0s")] {
            let error = Given::config(&format!("[serve]\n{key} = \"{value}\"\n")).load().unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn what_connections_may_do_is_set_explained_and_bounded() {
        let plain = Given::config("").load().unwrap().serve;
        assert_eq!((plain.connections_per_address_max, plain.http2_streams_max), (None, 256));
        assert_eq!((plain.target_bytes_max, plain.body_bytes_per_second_min), (8 * 1024, 128));
        let text = "[serve]\nconnections_per_address_max = 9\nhttp2_streams_max = 7\ntarget_bytes_max = 100\nbody_bytes_per_second_min = 5\n";
        let settings = Given::config(text).load().unwrap();
        let changed = &settings.serve;
        assert_eq!((changed.connections_per_address_max, changed.http2_streams_max), (Some(9), 7));
        assert_eq!((changed.target_bytes_max, changed.body_bytes_per_second_min), (100, 5));
        for key in ["connections_per_address_max", "http2_streams_max", "target_bytes_max", "body_bytes_per_second_min"]
        {
            assert!(
                crate::settings::load::explain(&settings).iter().any(|line| line.key == format!("serve.{key}")),
                "{key}"
            );
            let error = Given::config(&format!("[serve]\n{key} = 0\n")).load().unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
