//! The listener: takes connections in up to their cap, a reserve of them beyond it, and lets those that are open end in time.

use std::{sync::Arc, time::Duration};

use axum::Router;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::connection::{Seat, serve_connection, write_last};
use crate::{serve::answer::failure::Failure, settings::serve::ServeSettings};

/// Connections beyond the cap, for health, queries and operator acts.
pub const RESERVE_MAX: usize = 128;
/// After an error of the listener (too many open files) it rests this long.
const REST: Duration = Duration::from_millis(100);

/// A listening service.
#[derive(Debug)]
pub struct Server {
    /// No new connections are taken once this is cancelled.
    pub listening: CancellationToken,
    connections: TaskTracker,
    stopping: CancellationToken,
    aborting: CancellationToken,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listening: CancellationToken::new(),
            connections: TaskTracker::new(),
            stopping: CancellationToken::new(),
            aborting: CancellationToken::new(),
        }
    }
}

impl Server {
    /// Takes connections until [`Server::listening`] is cancelled.
    pub async fn listen(&self, listener: &TcpListener, routes: Router, settings: &ServeSettings) {
        let usual = Arc::new(Semaphore::new(settings.connections_max as usize));
        let reserve = Arc::new(Semaphore::new(RESERVE_MAX));
        let settings = Arc::new(settings.clone());
        loop {
            let accepted = tokio::select! {
                () = self.listening.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let socket = match accepted {
                Ok((socket, _)) => socket,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken in");
                    tokio::time::sleep(REST).await;
                    continue;
                }
            };
            // Small frames must not wait for each other; a socket that cannot do it still works.
            let _ = socket.set_nodelay(true);
            let place = Arc::clone(&usual).try_acquire_owned().map(|place| (place, Seat::Usual));
            let place = place.or_else(|_| Arc::clone(&reserve).try_acquire_owned().map(|place| (place, Seat::Reserve)));
            let Ok((place, seat)) = place else {
                write_last(&socket, &Failure::busy("connections"));
                continue;
            };
            self.take_in(socket, place, seat, routes.clone(), Arc::clone(&settings));
        }
    }

    fn take_in(
        &self,
        socket: TcpStream,
        place: tokio::sync::OwnedSemaphorePermit,
        seat: Seat,
        routes: Router,
        settings: Arc<ServeSettings>,
    ) {
        let (stopping, aborting) = (self.stopping.clone(), self.aborting.clone());
        self.connections.spawn(async move {
            let serving = serve_connection(socket, routes, settings, seat, stopping);
            tokio::select! {
                () = serving => {}
                () = aborting.cancelled() => {}
            }
            drop(place);
        });
    }

    /// Ends: connections without a request at once, the others after theirs, all of them after `grace`.
    pub async fn end(&self, grace: Duration) {
        self.listening.cancel();
        self.stopping.cancel();
        self.connections.close();
        if tokio::time::timeout(grace, self.connections.wait()).await.is_err() {
            tracing::warn!(connections = self.connections.len(), "grace is over, cutting what is left");
            self.aborting.cancel();
            self.connections.wait().await;
        }
    }
}
