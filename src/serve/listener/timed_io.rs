//! A socket whose reader may not stand still for ever: a write that waits too long is an error. Tells the connection's [`Activity`] of
//! bytes that come in.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Sleep, sleep},
};

use super::activity::Activity;

/// The socket.
pub(super) struct TimedIo {
    socket: Arc<TcpStream>,
    activity: Arc<Activity>,
    write_timeout: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl TimedIo {
    /// Wraps `socket`.
    pub(super) fn new(socket: Arc<TcpStream>, activity: Arc<Activity>, write_timeout: Duration) -> Self {
        Self { socket, activity, write_timeout, waiting: None }
    }

    /// Writes with `attempt` as soon as the socket takes bytes, unless that takes too long.
    fn poll_written(
        &mut self,
        context: &mut Context<'_>,
        attempt: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.socket.poll_write_ready(context) {
                Poll::Ready(Ok(())) => match attempt(&self.socket) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    written => {
                        self.waiting = None;
                        return Poll::Ready(written);
                    }
                },
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    let timeout = self.write_timeout;
                    let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(timeout)));
                    ready!(waiting.as_mut().poll(context));
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other side does not read")));
                }
            }
        }
    }
}

impl AsyncRead for TimedIo {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_read_ready(context))?;
            // Read as a buffer that need not be zeroed first: that would cost more than the reading.
            match self.socket.try_read_buf(buffer) {
                Ok(count) => {
                    if count > 0 {
                        let filled = buffer.filled();
                        self.activity.has_read(filled.get(filled.len() - count..).unwrap_or_default());
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for TimedIo {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_written(context, |socket| socket.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_written(context, |socket| socket.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Write) {
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }
}
