//! The new process: asks the old one for its listening socket. Whatever goes wrong is logged and means that the caller binds by itself;
//! nothing is waited for longer than the caller allows.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::Path,
    time::Duration,
};

use tokio::{
    net::UnixStream,
    sync::{mpsc, watch},
    time::MissedTickBehavior,
};
use tokio_util::task::AbortOnDropHandle;

use super::message::{self, Word};

/// What was handed over.
#[derive(Debug)]
pub struct TakenOver {
    /// The old process's listening socket. Connections wait in it from now on until somebody accepts.
    pub listener: TcpListener,
    /// What the old process still does.
    pub farewell: Farewell,
}

/// The old process, which drains. As long as this is kept, it hears that this process lives; dropped, that it is gone.
#[derive(Debug)]
pub struct Farewell {
    words: mpsc::UnboundedSender<Word>,
    old: watch::Receiver<Old>,
    talking: AbortOnDropHandle<()>,
}

/// What is known of the old process.
#[derive(Debug, Clone, Copy, Default)]
struct Old {
    /// It has let its journal go, or is gone.
    has_released: bool,
    /// It serves again.
    has_taken_back: bool,
}

impl Farewell {
    fn from(stream: UnixStream) -> Self {
        let (words, to_say) = mpsc::unbounded_channel();
        let (told, old) = watch::channel(Old::default());
        Self { words, old, talking: AbortOnDropHandle::new(tokio::spawn(talk(stream, to_say, told))) }
    }

    /// Waits until the old process has released its journal or is gone, and tells it once `wanted` comes, so that it does so soon. False
    /// where it does neither within `timeout`.
    pub async fn released(&mut self, timeout: Duration, wanted: impl Future<Output = ()>) -> bool {
        let words = &self.words;
        let telling = async {
            wanted.await;
            // Nobody who hears it: then the end is heard below.
            let _ = words.send(Word::Wanted);
            std::future::pending::<()>().await;
        };
        let old = &mut self.old;
        let ended = async {
            tokio::select! {
                // An error is the end of whoever hears it.
                _ = old.wait_for(|old| old.has_released || old.has_taken_back) => {}
                () = telling => {}
            }
        };
        tokio::time::timeout(timeout, ended).await.is_ok()
    }

    /// Waits until the old process says that it has taken the service back, because it heard nothing of this one for too long. For ever
    /// where it does not.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut old = self.old.clone();
        async move {
            if old.wait_for(|old| old.has_taken_back).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Tells the old process that this one serves, so that it can go. Nothing happens where it is gone.
    pub async fn serving(self) {
        // The task ends with that word.
        if self.words.send(Word::Serving).is_ok() {
            let _ = self.talking.await;
        }
    }
}

/// Says again and again that this process lives, and what there is to say, until it serves; hears what the old one says.
async fn talk(stream: UnixStream, mut words: mpsc::UnboundedReceiver<Word>, old: watch::Sender<Old>) {
    let (mut hearing, mut saying) = stream.into_split();
    let says = async {
        let mut beat = tokio::time::interval(message::BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Where the old one is gone, what it said before is still to be heard.
        let mut is_heard = true;
        loop {
            let word = tokio::select! {
                biased;
                Some(word) = words.recv() => word,
                _ = beat.tick(), if is_heard => Word::Alive,
                else => std::future::pending().await,
            };
            is_heard &= message::write_word(&mut saying, word).await.is_ok();
            if word == Word::Serving {
                return;
            }
        }
    };
    let hears = async {
        loop {
            match message::read_word(&mut hearing).await {
                Ok(Word::Released) => old.send_modify(|old| old.has_released = true),
                Ok(Word::TakenBack) => old.send_modify(|old| old.has_taken_back = true),
                // Garbage, an error and the end all mean that the old one holds nothing that it still tells of; the journal's own lock
                // decides in the end.
                _ => break old.send_modify(|old| old.has_released = true),
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = says => {}
        () = hears => {}
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
    Ok(TakenOver { listener, farewell: Farewell::from(stream) })
}
