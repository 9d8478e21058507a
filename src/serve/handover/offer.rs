//! The old process: waits at a Unix socket for its successor, gives it the listening socket, and learns that it has to drain. Goes on
//! serving whatever comes over that socket. Never touches a file at the path that is no socket, nor the socket of a process that lives.

use std::{
    io,
    net::SocketAddr,
    os::{
        fd::OwnedFd,
        unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Mutex, watch},
    task::JoinHandle,
};

use super::{
    message::{self, Word},
    successor::{GivenBack, Patience, Successor},
};

/// After an error of the Unix socket it rests this long.
const REST: Duration = Duration::from_millis(200);
/// Only the owner may connect.
const MODE: u32 = 0o600;

/// An open offer of the listening socket. Dropped, it ends, and its file is taken away.
#[derive(Debug)]
pub struct Handover {
    successor: watch::Receiver<bool>,
    successor_at: Arc<Mutex<Option<Successor>>>,
    waiting: JoinHandle<()>,
    file: Arc<SocketFile>,
}

impl Handover {
    /// Offers `listener`, which serves `address` (as configured), at `path`. Needs a Tokio runtime.
    ///
    /// # Errors
    /// Where the path is taken by something that is no socket or by a process that lives, or the file system refuses.
    pub fn offer(path: &Path, address: SocketAddr, listener: OwnedFd) -> io::Result<Self> {
        let (socket, file) = SocketFile::bind(path)?;
        let (found, successor) = watch::channel(false);
        let (successor_at, file) = (Arc::new(Mutex::new(None)), Arc::new(file));
        let (place, own) = (Arc::clone(&successor_at), Arc::clone(&file));
        let waiting = tokio::spawn(async move {
            let successor = wait_for_successor(socket, own, address, listener).await;
            *place.lock().await = Some(successor);
            // Nobody who waits: the offer was dropped.
            let _ = found.send(true);
        });
        Ok(Self { successor, successor_at, waiting, file })
    }

    /// Waits until a successor has the socket: this process has to stop accepting and to drain.
    pub async fn asked(&self) {
        let mut successor = self.successor.clone();
        if successor.wait_for(|found| *found).await.is_err() {
            // The task that waits is gone without a successor: nobody will ask.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the successor says that somebody waits for the journal there. Waits for ever for one that is gone.
    pub async fn wanted(&self) {
        let hears = self.successor_at.lock().await.as_ref().map(Successor::wanted);
        match hears {
            Some(wanted) => wanted.await,
            None => std::future::pending().await,
        }
    }

    /// Tells the successor that the journal is free. Nothing happens where there is none or it is gone.
    pub async fn release(&self) {
        if let Some(successor) = self.successor_at.lock().await.as_mut() {
            successor.say(Word::Released).await;
        }
    }

    /// Waits until the successor serves, after all was released; then there is nothing left to do. Where it is gone before that, silent, or
    /// takes too long: what this process goes on with.
    pub async fn came_back(&self, patience: Patience) -> Option<GivenBack> {
        let successor = self.successor_at.lock().await.take()?;
        successor.came_back(patience).await
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        self.waiting.abort();
        if !*self.successor.borrow() {
            self.file.remove();
        }
    }
}

async fn wait_for_successor(
    socket: UnixListener,
    file: Arc<SocketFile>,
    address: SocketAddr,
    listener: OwnedFd,
) -> Successor {
    loop {
        let mut stream = match socket.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a successor could not be heard");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        match give(&mut stream, address, &listener).await {
            Ok(()) => {
                // Closed before the last word, so that the successor can offer at the same path at once. The file goes while its
                // number is known to be its own: a later file may be given the same one.
                file.remove();
                drop(socket);
                if let Err(error) = message::write_word(&mut stream, Word::Done).await {
                    tracing::warn!(%error, "the successor went away after it took the socket");
                }
                return Successor::at(stream, listener);
            }
            Err(error) => tracing::warn!(%error, "a request for the listening socket was refused"),
        }
    }
}

async fn give(stream: &mut UnixStream, address: SocketAddr, listener: &OwnedFd) -> io::Result<()> {
    use std::os::fd::AsFd as _;
    message::check_peer(stream)?;
    let asked = within(message::EXCHANGE_TIMEOUT, message::read_ask(stream)).await;
    if !asked.as_ref().is_ok_and(|asked| *asked == address) {
        message::refuse(stream).await?;
        let asked = asked?;
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it asks for {asked}, this is {address}")));
    }
    message::give(stream, listener.as_fd()).await?;
    within(message::TAKEN_TIMEOUT, message::expect_word(stream, Word::Taken)).await
}

async fn within<T>(longest: Duration, exchange: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(longest, exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The file of the Unix socket, by its identity: a successor's file at the same path is another one.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn bind(path: &Path) -> io::Result<(UnixListener, Self)> {
        match std::fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                let message = format!("{} exists and is no socket", path.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
            }
            Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
                let message = format!("another process offers its listening socket at {}", path.display());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // Made beside and moved over: what lies at the path is always whole, and a stale file goes in the same instant.
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(beside);
        if std::fs::symlink_metadata(&beside).is_ok_and(|found| found.file_type().is_socket()) {
            std::fs::remove_file(&beside)?;
        }
        let socket = UnixListener::bind(&beside)?;
        let placed = std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(MODE))
            .and_then(|()| std::fs::symlink_metadata(&beside))
            .and_then(|found| std::fs::rename(&beside, path).map(|()| (found.dev(), found.ino())));
        match placed {
            Ok(identity) => Ok((socket, Self { path: path.to_owned(), identity })),
            Err(error) => {
                // The first error is the one to tell.
                let _ = std::fs::remove_file(&beside);
                Err(error)
            }
        }
    }

    fn remove(&self) {
        let is_own =
            std::fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if is_own && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the socket's file stays behind");
        }
    }
}
