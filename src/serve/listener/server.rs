//! The door: takes connections in up to their caps, tells the others, and lets those that are open end in time. An error of the listening
//! socket never ends it.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::Router;
use metrics::Label;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    connection::{Bounds, Caller, break_off, linger, serve_connection, write_last},
    places::{Full, Place, Places},
    refusal,
    settings::ListenerSettings,
    talk::Talk,
};
use crate::runtime::metric;

/// After an error of the listening socket (too many open files) it rests this long.
const REST: Duration = Duration::from_millis(100);
/// Refused connections that are waited for, so that their answer is not lost. Others get theirs and are closed at once.
const REFUSED_MAX: usize = 64;

/// A door that is open. Dropped, it takes no connection in any more; those that are open go on.
#[derive(Debug)]
pub struct Listening {
    address: SocketAddr,
    door: Arc<Door>,
    accepting: Option<JoinHandle<TcpListener>>,
}

/// How a door was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// Connections whose requests were cut because grace was over.
    pub cut: usize,
}

#[derive(Debug)]
struct Door {
    settings: Arc<ListenerSettings>,
    places: Arc<Places>,
    refusing: Arc<Semaphore>,
    connections: TaskTracker,
    listening: CancellationToken,
    leaving: Arc<AtomicBool>,
    stopping: CancellationToken,
    aborting: CancellationToken,
    cut: AtomicUsize,
}

/// Serves `routes` on `listener`. Needs a Tokio runtime.
///
/// Handlers find the peer in the extension [`axum::extract::ConnectInfo`] and the bound of the body in [`super::BodyBytesMax`].
pub fn listen(listener: TcpListener, routes: Router, settings: ListenerSettings) -> io::Result<Listening> {
    let address = listener.local_addr()?;
    let door = Arc::new(Door {
        places: Places::new(&settings),
        settings: Arc::new(settings),
        refusing: Arc::new(Semaphore::new(REFUSED_MAX)),
        connections: TaskTracker::new(),
        listening: CancellationToken::new(),
        leaving: Arc::default(),
        stopping: CancellationToken::new(),
        aborting: CancellationToken::new(),
        cut: AtomicUsize::new(0),
    });
    let accepting = tokio::spawn(accept(Arc::clone(&door), listener, routes));
    Ok(Listening { address, door, accepting: Some(accepting) })
}

impl Listening {
    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections that are open, those included that are being told that there is no place.
    pub fn connections(&self) -> usize {
        self.door.connections.len()
    }

    /// Takes no connection in any more, and hands the listening socket out. Connections that nobody has accepted wait in it. From now on
    /// each answer of HTTP/1 is its connection's last.
    pub async fn stop_accepting(&mut self) -> Option<TcpListener> {
        self.door.leaving.store(true, Ordering::Release);
        self.door.listening.cancel();
        self.accepting.take()?.await.ok()
    }

    /// Lets go of connections without a request, and of the others after theirs. Whoever is let go has had no word of a request yet.
    pub fn let_go(&self) {
        self.door.stopping.cancel();
    }

    /// Ends: connections without a request at once, the others after theirs, all of them after `grace`.
    pub async fn close(mut self, grace: Duration) -> Closed {
        drop(self.stop_accepting().await);
        let door = &self.door;
        door.stopping.cancel();
        door.connections.close();
        if tokio::time::timeout(grace, door.connections.wait()).await.is_err() {
            door.aborting.cancel();
            door.connections.wait().await;
        }
        let cut = door.cut.load(Ordering::Acquire);
        if cut > 0 {
            tracing::warn!(cut, "grace is over: connections were cut");
        }
        Closed { cut }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.door.listening.cancel();
    }
}

async fn accept(door: Arc<Door>, listener: TcpListener, routes: Router) -> TcpListener {
    loop {
        let accepted = tokio::select! {
            biased;
            () = door.listening.cancelled() => return listener,
            accepted = listener.accept() => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            // The client was gone before it was taken in.
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) => {
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken in");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        // Small frames must not wait for each other; a socket that cannot do it still works.
        let _ = socket.set_nodelay(true);
        match door.places.take(peer.ip()) {
            Ok(place) => door.take_in(socket, peer, place, routes.clone()),
            Err(full) => door.refuse(socket, full),
        }
    }
}

impl Door {
    fn take_in(self: &Arc<Self>, socket: TcpStream, peer: SocketAddr, place: Place, routes: Router) {
        let door = Arc::clone(self);
        self.connections.spawn(async move {
            let talk = Talk::open(door.settings.language);
            let socket = Arc::new(socket);
            let caller = Caller { socket: Arc::clone(&socket), peer, seat: place.seat };
            let bounds = Bounds {
                settings: Arc::clone(&door.settings),
                leaving: Arc::clone(&door.leaving),
                stopping: door.stopping.clone(),
            };
            let serving = serve_connection(caller, Arc::clone(&talk), routes, bounds);
            // Lives past the choice below: dropped earlier, nothing would be left to count.
            let mut serving = std::pin::pin!(serving);
            tokio::select! {
                () = serving.as_mut() => {}
                () = door.aborting.cancelled() => {
                    if talk.is_busy() {
                        door.cut.fetch_add(1, Ordering::AcqRel);
                    }
                    break_off(&socket, &talk);
                }
            }
            drop(place);
        });
    }

    fn refuse(self: &Arc<Self>, socket: TcpStream, full: Full) {
        metric::count(metric::CONNECTIONS_REFUSED, vec![Label::from_static_parts("reason", full.reason())], 1);
        write_last(&socket, refusal::no_place(full.as_str()), self.settings.language);
        if let Ok(waited_for) = Arc::clone(&self.refusing).try_acquire_owned() {
            let aborting = self.aborting.clone();
            self.connections.spawn(async move {
                tokio::select! {
                    () = linger(&socket) => {}
                    () = aborting.cancelled() => {}
                }
                drop(waited_for);
            });
        }
    }
}
