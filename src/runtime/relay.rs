//! A call whose request is somebody else's: the body goes to the model's server as it came, the answer comes back as it came. What
//! the caller hands in, and what reaches it before the call has ended. Bytes only; what they mean is the backend's business.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{model::raw_object::RawObject, policy::ladder::Rung};

/// Frames that may be under way between an attempt and its caller.
pub const RELAY_PIECES_MAX: usize = 64;

/// What is asked of the model's server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayKind {
    /// A chat completion.
    Chat,
    /// Embeddings.
    Embeddings,
}

/// How the caller wants the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayForm {
    /// Whole.
    Whole,
    /// As it comes.
    Stream {
        /// Whether the caller asked for the frame that tells the usage.
        usage: StreamUsage,
    },
}

/// Whether a stream's caller asked for the frame that tells the usage. We always ask for it; it is passed on only where it was wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamUsage {
    /// It did.
    Wanted,
    /// It did not.
    Unwanted,
}

/// A request to be relayed.
#[derive(Debug, Clone)]
pub struct Relay {
    /// What is asked.
    pub kind: RelayKind,
    /// How the answer is wanted.
    pub form: RelayForm,
    /// The caller's request.
    pub body: Arc<RawObject>,
    /// Where the answer goes.
    pub out: mpsc::Sender<RelayPiece>,
    /// The further target that is asked, where the first one was passed over; set by the runtime.
    pub fallback: Option<Arc<str>>,
    /// The rung of the ladder that is asked, where the agent was refused or failed; set by the runtime.
    pub degraded: Option<Rung>,
    /// Attempts that this call has made at other targets before; set by the runtime.
    pub earlier: u32,
}

/// A piece of a relayed answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayPiece {
    /// The first content of a stream has come: from here on nothing is repeated and no other target is asked.
    Began(RelayBegan),
    /// A whole frame of a stream.
    Frame(Bytes),
    /// The whole answer. Only sent by an attempt that succeeds.
    Whole(Bytes),
}

/// What is known of a call when its stream begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayBegan {
    /// The call.
    pub call_id: String,
    /// The attempt that answers, from 1, over all targets that were asked.
    pub attempt: u32,
    /// The further target that answers, where it is not the first.
    pub fallback: Option<Arc<str>>,
    /// The rung of the ladder that answers, where it is not the agent itself.
    pub degraded: Option<Rung>,
    /// How long this attempt has waited for the other side.
    pub waited: Duration,
}
