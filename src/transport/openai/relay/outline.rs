//! What a relayed answer holds at its top, whole or a frame of it, without reading any of it further. Judges nothing.

use serde::Deserialize;
use serde_json::value::RawValue;

/// The top of an answer. `C` is how far its choices are read.
#[derive(Deserialize)]
#[serde(bound(deserialize = "C: Deserialize<'de>"))]
pub(super) struct Outline<'a, C> {
    pub(super) choices: Option<C>,
    #[serde(borrow)]
    pub(super) data: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    error_code: Option<&'a RawValue>,
    #[serde(borrow, rename = "errorCode")]
    error_code_camel: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) usage: Option<&'a RawValue>,
}

impl<'a, C> Outline<'a, C> {
    /// The parts in which an answer that looks good can say that it is an error.
    pub(super) fn doubtful(&self) -> impl Iterator<Item = &'a RawValue> {
        [self.error, self.error_code, self.error_code_camel, self.kind].into_iter().flatten()
    }
}
