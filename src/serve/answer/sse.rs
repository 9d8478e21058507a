//! Event streams: frames and their answer. Knows no events.

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, header},
    response::Response,
};
use futures_util::{Stream, StreamExt as _};
use serde::Serialize;
use serde_json::json;

/// How long a reader waits before it connects again to a node that was stopping, in ms.
const STOPPING_RETRY_MS: u64 = 1_000;
/// The last event of a stream that ends because the node stops.
const STOPPING: &str = "node.stopping";
/// What a stream says before it is cut for want of something that may be there a little later.
pub const CUT: &str = "retry: 2000\n: there is no going on here just now, connect again\n\n";
/// A line that nobody reads: it shows that the stream is alive.
pub const PING: &str = ": ping\n\n";

/// A frame of one JSON value without a name.
pub fn data(value: &impl Serialize) -> String {
    format!("data: {}\n\n", on_one_line(value))
}

/// A frame with a name.
pub fn named(name: &str, value: &impl Serialize) -> String {
    format!("event: {name}\ndata: {}\n\n", on_one_line(value))
}

/// A frame with id and name.
pub fn numbered(id: u64, name: &str, value: &impl Serialize) -> String {
    format!("id: {id}\nevent: {name}\ndata: {}\n\n", on_one_line(value))
}

/// JSON on one line, as our own shapes always are.
fn on_one_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

/// What the stream of a run's events says last where it ends because the node stops: the run is not over. The frame has no id, for it is
/// none of the run's own events, and a reader's cursor stays where it was.
pub fn node_stopping(run_id: &str) -> String {
    let event = json!({
        "type": STOPPING,
        "run_id": run_id,
        "data": { "message": "this node is stopping, connect again", "retry_after_ms": STOPPING_RETRY_MS },
    });
    format!("retry: {STOPPING_RETRY_MS}\n{}", named(STOPPING, &event))
}

/// The answer of a stream of frames. Nothing between here and the reader may hold frames back.
pub fn answer<F: Into<Bytes>>(frames: impl Stream<Item = F> + Send + 'static) -> Response {
    let pieces = frames.map(|frame| Ok::<_, std::convert::Infallible>(frame.into()));
    let mut answer = Response::new(Body::from_stream(pieces));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    answer
}
