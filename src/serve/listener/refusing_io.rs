//! A socket that says in an envelope what the HTTP layer says in an empty answer: that a request could not be read. Only bytes that can
//! be no handler's answer are replaced: nothing of a handler is under way and everything before was flushed.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{refusal, talk::Talk};

/// The socket.
pub(super) struct RefusingIo<T> {
    inner: T,
    talk: Arc<Talk>,
    refusal: Vec<u8>,
    written: usize,
}

impl<T: AsyncWrite + Unpin> RefusingIo<T> {
    pub(super) fn new(inner: T, talk: Arc<Talk>) -> Self {
        Self { inner, talk, refusal: Vec::new(), written: 0 }
    }

    /// Writes what is left of a refusal.
    fn poll_refusal(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.refusal.get(self.written..).filter(|rest| !rest.is_empty()) {
            let count = ready!(Pin::new(&mut self.inner).poll_write(context, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
        }
        Poll::Ready(Ok(()))
    }

    /// The refusal that stands in for `bytes`, where they are the HTTP layer's own.
    fn stand_in(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        if self.talk.is_answering() || !self.talk.activity.is_http1() {
            return None;
        }
        let rest = bytes.strip_prefix(b"HTTP/1.1 ").or_else(|| bytes.strip_prefix(b"HTTP/1.0 "))?;
        let status = StatusCode::from_bytes(rest.get(..3)?).ok().filter(StatusCode::is_client_error)?;
        let (status, message) = match status {
            StatusCode::URI_TOO_LONG => (status, "the request's target is too long"),
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE if self.talk.has_line() => {
                (status, "the request has too many headers, or too large ones")
            }
            // All that was read is one line that does not end.
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                (StatusCode::URI_TOO_LONG, "the request's first line is too long")
            }
            _ => (
                status,
                "this is no request of HTTP/1.1: its method, target, version, a header or its framing is wrong",
            ),
        };
        Some(refusal::text(refusal::invalid(status, message), self.talk.language))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for RefusingIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        self.talk.has_read(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for RefusingIo<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_refusal(context))?;
        if let Some(refusal) = self.stand_in(bytes) {
            self.talk.refuse();
            self.refusal = refusal;
            self.written = 0;
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_refusal(context))?;
        // The HTTP layer's own answers are a head and nothing else, so the first slice is all of it.
        if let Some(first) = slices.iter().find(|slice| !slice.is_empty())
            && self.stand_in(first).is_some()
        {
            return self.poll_write(context, first);
        }
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(context))?;
        ready!(Pin::new(&mut self.inner).poll_flush(context))?;
        self.talk.has_flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(context))?;
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
