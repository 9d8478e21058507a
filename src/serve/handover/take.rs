//! The new process: asks the old one for its listening socket. Whatever goes wrong is logged and means that the caller binds by itself;
//! nothing is waited for longer than the caller allows.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::Path,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use super::message::{self, Word};

/// What was handed over.
#[derive(Debug)]
pub struct TakenOver {
    /// The old process's listening socket. Connections wait in it from now on until somebody accepts.
    pub listener: TcpListener,
    /// What the old process still does.
    pub farewell: Farewell,
}

/// The old process, which drains.
#[derive(Debug)]
pub struct Farewell(UnixStream);

impl Farewell {
    /// Waits until the old process has released its journal or is gone, and tells it once `wanted` comes, so that it does so soon. False
    /// where it does neither within `timeout`.
    pub async fn released(&mut self, timeout: Duration, wanted: impl Future<Output = ()>) -> bool {
        let (mut hearing, mut saying) = self.0.split();
        let telling = async {
            wanted.await;
            // Nobody who hears it: then the end is heard below.
            let _ = saying.write_all(&[Word::Wanted as u8]).await;
            std::future::pending::<()>().await;
        };
        // The word, garbage, an error and the end all mean that the old one holds nothing that it still tells of; the journal's own lock
        // decides in the end.
        let ended = async {
            tokio::select! {
                _ = hearing.read_u8() => {}
                () = telling => {}
            }
        };
        tokio::time::timeout(timeout, ended).await.is_ok()
    }

    /// Tells the old process that this one serves, so that it can go. Nothing happens where it is gone.
    pub async fn serving(mut self) {
        if let Err(error) = message::write_word(&mut self.0, Word::Serving).await {
            tracing::debug!(%error, "the old process went before it heard that this one serves");
        }
    }
}

/// Asks the process that offers at `path` for its socket on `address`. `None` where nobody is there or it cannot be had.
pub async fn take_over(path: &Path, address: SocketAddr, timeout: Duration) -> Option<TakenOver> {
    let asked = tokio::time::timeout(timeout, ask(path, address)).await;
    let asked = match asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        // No time limit from here on: the old one may already drain, so there is no way back.
        Ok(Some((stream, listener))) => take(stream, listener).await.map(Some),
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    };
    match asked {
        Ok(taken) => taken,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the listening socket was not handed over");
            None
        }
    }
}

async fn ask(path: &Path, address: SocketAddr) -> io::Result<Option<(UnixStream, TcpListener)>> {
    let mut stream = UnixStream::connect(path).await?;
    message::check_peer(&stream)?;
    message::write_ask(&mut stream, address).await?;
    let Some(descriptor) = message::receive(&stream).await? else {
        tracing::warn!(%address, "the other process does not serve this address");
        return Ok(None);
    };
    let is_listening = rustix::net::sockopt::socket_acceptconn(&descriptor).unwrap_or_default();
    let listener = TcpListener::from(descriptor);
    let found = listener.local_addr()?;
    if !is_listening || (address.port() != 0 && found != address) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a socket on {found}, not listening on {address}"),
        ));
    }
    listener.set_nonblocking(true)?;
    Ok(Some((stream, listener)))
}

async fn take(mut stream: UnixStream, listener: TcpListener) -> io::Result<TakenOver> {
    message::write_word(&mut stream, Word::Taken).await?;
    // The socket is kept even where the last word is lost.
    let done = tokio::time::timeout(message::EXCHANGE_TIMEOUT, message::expect_word(&mut stream, Word::Done)).await;
    if !matches!(done, Ok(Ok(()))) {
        tracing::warn!("the old process fell silent while it handed its socket over");
    }
    Ok(TakenOver { listener, farewell: Farewell(stream) })
}
