//! A request to a provider, and who follows it: what of it is kept, and that it has left. It opens no connection and judges nothing.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use reqwest::{Method, header::HeaderMap};

use super::vendor_budget::VendorWord;
use crate::runtime::{
    capture::CaptureSlot,
    ports::{AttemptRequest, Progress},
    tally::{AnswerForm, Tally},
};

/// A request to a provider.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Its method.
    pub method: Method,
    /// Joined to the provider's `base_url`; may bring a query.
    pub path: String,
    /// Sent beside the provider's own headers, which they may replace.
    pub headers: HeaderMap,
    /// Its body, JSON, if it has one.
    pub body: Option<Bytes>,
}

/// Who follows an exchange.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ears<'a> {
    /// Where the exchange is left word for word, if it may be kept.
    pub(super) capture: Option<&'a CaptureSlot>,
    /// Who counts what it uses.
    tally: Option<(&'a Arc<Tally>, AnswerForm)>,
    /// Where the vendor's word of the model goes.
    vendor: Option<&'a VendorWord>,
}

impl<'a> Ears<'a> {
    /// Those of an attempt that asks for such an answer.
    pub fn of(request: &'a AttemptRequest, progress: &'a Progress, wanted: AnswerForm) -> Self {
        Self { capture: request.capture.as_ref(), tally: Some((progress.tally(), wanted)), vendor: None }
    }

    /// The same, and what the vendor says of its budget for the model goes to `vendor`.
    pub(in crate::transport) fn with_vendor(self, vendor: &'a VendorWord) -> Self {
        Self { vendor: Some(vendor), ..self }
    }

    /// The request is made; its body tells when it leaves.
    pub(super) fn body(self, body: Option<Bytes>) -> Option<reqwest::Body> {
        let Some((tally, wanted)) = self.tally else { return body.map(reqwest::Body::from) };
        tally.asks(wanted);
        if body.is_none() {
            // Nothing tells when that leaves.
            tally.left();
        }
        body.map(|bytes| reqwest::Body::wrap(LeavingBody { bytes: Some(bytes), tally: Arc::clone(tally) }))
    }

    /// What the vendor says of its own budget.
    pub(super) fn head(self, headers: &HeaderMap) {
        if let Some(vendor) = self.vendor {
            vendor.hear(headers);
        }
    }

    /// The answer begins.
    pub(super) fn answer(self, form: AnswerForm) {
        if let Some((tally, _)) = self.tally {
            tally.comes(form);
        }
    }
}

/// A body that is asked for once there is a connection to write it to, and says so. Its length is known beforehand.
#[derive(Debug)]
struct LeavingBody {
    bytes: Option<Bytes>,
    tally: Arc<Tally>,
}

impl Body for LeavingBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = self.bytes.take();
        if bytes.is_some() {
            self.tally.left();
        }
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| u64::try_from(bytes.len()).unwrap_or(u64::MAX)))
    }
}
