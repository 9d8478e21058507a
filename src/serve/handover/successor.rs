//! The successor as the old process knows it from the moment on at which it took the socket: whether it lives, what it said, and what is
//! done where it neither serves nor goes. Never ends a process that was not heard to take the socket.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::{
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;

use super::message::{self, Word};

/// How long a successor is waited for once it was given all.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// One that was silent for so long hangs.
    pub silence_max: Duration,
    /// One that lives has to serve within this.
    pub start_max: Duration,
}

/// What the old process goes on with.
#[derive(Debug)]
pub struct GivenBack {
    /// The listening socket, in which connections wait for somebody to accept them.
    pub listener: OwnedFd,
    /// The successor, unless it is gone: it may hold the journal still.
    pub hung: Option<Hung>,
}

/// Why a successor that is not gone has lost the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// It was silent for too long.
    Silent,
    /// It lives, and took too long to start.
    TooSlow,
}

/// How a successor's start ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Serves,
    Gone,
}

/// What was heard of it.
#[derive(Debug, Clone, Copy)]
struct Heard {
    last: Instant,
    wants: bool,
    end: Option<End>,
}

/// The connection to it.
#[derive(Debug)]
struct Line {
    saying: OwnedWriteHalf,
    heard: watch::Receiver<Heard>,
    #[allow(dead_code, reason = "ends with this value")]
    hearing: AbortOnDropHandle<()>,
}

/// Who has the socket, and our own copy of it: should that one not come to serve, this process goes on.
#[derive(Debug)]
pub(super) struct Successor {
    line: Line,
    listener: OwnedFd,
    process: Option<Process>,
}

impl Successor {
    /// The one at the other end of `stream`, that took `listener`. Needs a Tokio runtime.
    pub(super) fn at(stream: UnixStream, listener: OwnedFd) -> Self {
        let process = Process::at(&stream);
        let (hearing, saying) = stream.into_split();
        let (sender, heard) = watch::channel(Heard { last: Instant::now(), wants: false, end: None });
        let hearing = AbortOnDropHandle::new(tokio::spawn(hear(hearing, sender)));
        Self { line: Line { saying, heard, hearing }, listener, process }
    }

    /// Waits until it says that somebody waits for the journal there.
    pub(super) fn wanted(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut heard = self.line.heard.clone();
        async move {
            if heard.wait_for(|heard| heard.wants).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    pub(super) async fn say(&mut self, word: Word) {
        if let Err(error) = message::write_word(&mut self.line.saying, word).await {
            tracing::warn!(%error, "the successor could not be told {word:?}");
        }
    }

    /// Waits until it serves. Otherwise it is told, once it is heard again, that it has lost the service.
    pub(super) async fn came_back(mut self, patience: Patience) -> Option<GivenBack> {
        let why = match outcome(&mut self.line.heard, patience).await {
            Ok(End::Serves) => return None,
            Ok(End::Gone) => return Some(GivenBack { listener: self.listener, hung: None }),
            Err(why) => why,
        };
        self.say(Word::TakenBack).await;
        let Self { line, listener, process } = self;
        Some(GivenBack { listener, hung: Some(Hung { line, process, why }) })
    }
}

/// How its start ends, or why it is not waited for any longer.
async fn outcome(heard: &mut watch::Receiver<Heard>, patience: Patience) -> Result<End, Lost> {
    let until = Instant::now() + patience.start_max;
    loop {
        let Heard { last, end, .. } = *heard.borrow_and_update();
        if let Some(end) = end {
            return Ok(end);
        }
        let silent = last + patience.silence_max;
        match tokio::time::timeout_at(silent.min(until), heard.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Ok(End::Gone),
            Err(_) if silent < until => return Err(Lost::Silent),
            Err(_) => return Err(Lost::TooSlow),
        }
    }
}

async fn hear(mut stream: OwnedReadHalf, heard: watch::Sender<Heard>) {
    loop {
        let word = message::read_word(&mut stream).await;
        let end = match word {
            Ok(Word::Alive | Word::Wanted) => None,
            Ok(Word::Serving) => Some(End::Serves),
            Ok(_) | Err(_) => Some(End::Gone),
        };
        heard.send_modify(|heard| {
            let wants = heard.wants || matches!(word, Ok(Word::Wanted));
            *heard = Heard { last: Instant::now(), wants, end };
        });
        if end.is_some() {
            return;
        }
    }
}

/// A successor that has lost the service and is not known to have gone.
#[derive(Debug)]
pub struct Hung {
    line: Line,
    process: Option<Process>,
    why: Lost,
}

impl Hung {
    /// Why it has lost the service.
    pub fn why(&self) -> Lost {
        self.why
    }

    /// Its process, where it can be told.
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().and_then(|process| u32::try_from(process.id.as_raw_nonzero().get()).ok())
    }

    /// Waits until it says that it serves after all: it woke before it knew that it had lost the service, and it holds the journal. Waits
    /// for ever for one that does not.
    pub fn serves_after_all(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut heard = self.line.heard.clone();
        async move {
            if heard.wait_for(|heard| heard.end == Some(End::Serves)).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Kills it: it holds what it cannot be asked for any more.
    ///
    /// # Errors
    /// Where its process is not known here (it belongs to another namespace) or the system refuses.
    pub fn kill(&self) -> io::Result<()> {
        let process = self.process.as_ref().ok_or(io::ErrorKind::NotFound)?;
        Ok(pidfd_send_signal(&process.handle, Signal::KILL)?)
    }
}

/// A process by a handle that means no other one, whatever becomes of its number.
#[derive(Debug)]
struct Process {
    id: Pid,
    handle: OwnedFd,
}

impl Process {
    /// The one at the other end, unless it is this one.
    fn at(stream: &UnixStream) -> Option<Self> {
        let id = rustix::net::sockopt::socket_peercred(stream).ok()?.pid;
        if id == rustix::process::getpid() {
            return None;
        }
        pidfd_open(id, PidfdFlags::empty()).ok().map(|handle| Self { id, handle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beats come every second until they stop; the end comes after them.
    #[tokio::test(start_paused = true)]
    async fn who_lives_is_waited_for_and_who_is_silent_is_not() {
        let patience = Patience { silence_max: Duration::from_secs(15), start_max: Duration::from_secs(100) };
        let second = Duration::from_secs(1);
        for (beats, end, outcome_wanted, seconds) in [
            (50, Some(End::Serves), Ok(End::Serves), 50),
            (50, Some(End::Gone), Ok(End::Gone), 50),
            (0, None, Err(Lost::Silent), 15),
            (50, None, Err(Lost::Silent), 65),
            (200, None, Err(Lost::TooSlow), 100),
            (95, None, Err(Lost::TooSlow), 100),
        ] {
            let began = Instant::now();
            let (sender, mut heard) = watch::channel(Heard { last: began, wants: false, end: None });
            let speaking = tokio::spawn(async move {
                for _ in 0..beats {
                    tokio::time::sleep(second).await;
                    sender.send_modify(|heard| heard.last = Instant::now());
                }
                if end.is_some() {
                    sender.send_modify(|heard| heard.end = end);
                }
                sender.closed().await;
            });
            assert_eq!(outcome(&mut heard, patience).await, outcome_wanted, "{beats} beats, {end:?}");
            assert_eq!(began.elapsed().as_secs(), seconds, "{beats} beats, {end:?}");
            speaking.abort();
        }
    }
}
