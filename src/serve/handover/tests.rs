//! Hand-overs inside one process and between real ones, under load, and with partners that fall silent, die or talk nonsense.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UnixStream},
    task::{JoinHandle, JoinSet},
};

use super::{
    offer::Handover,
    successor::{Lost, Patience},
    take::{TakenOver, take_over},
};

const TIMEOUT: Duration = Duration::from_secs(10);
const PATIENCE: Patience = Patience { silence_max: TIMEOUT, start_max: TIMEOUT };
const HANDOVERS: usize = 20;
const CLIENTS: usize = 4;
/// Where the child process finds its socket and address.
const CHILD_PATH: &str = "WATERTIGHT_TEST_HANDOVER_PATH";
const CHILD_ADDRESS: &str = "WATERTIGHT_TEST_HANDOVER_ADDRESS";

fn free_address() -> SocketAddr {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handover.sock");
    (folder, path)
}

fn offer(path: &Path) -> (Handover, std::net::TcpListener, SocketAddr) {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let handover = Handover::offer(path, address, listener.try_clone().unwrap().into()).unwrap();
    (handover, listener, address)
}

/// An offer that a successor has taken, and what it took.
async fn taken_offer() -> (tempfile::TempDir, Handover, std::net::TcpListener, TakenOver) {
    let (folder, path) = folder();
    let (handover, listener, address) = offer(&path);
    let taken = take_over(&path, address, TIMEOUT).await.unwrap();
    (folder, handover, listener, taken)
}

/// A listener whose port nobody else can be given meanwhile, as it would where it is closed and bound again.
fn first_listener() -> (std::net::TcpListener, SocketAddr) {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A small server that takes over or binds, offers, serves until it is asked, and finishes what it began. Says when it serves.
async fn serve_until_asked(
    path: PathBuf,
    address: SocketAddr,
    own: Option<std::net::TcpListener>,
    ready: impl FnOnce(bool),
) {
    let taken = take_over(&path, address, TIMEOUT).await;
    let came_by_handover = taken.is_some();
    let (listener, farewell) = match taken {
        Some(TakenOver { listener, farewell }) => (listener, Some(farewell)),
        None => (own.unwrap_or_else(|| std::net::TcpListener::bind(address).unwrap()), None),
    };
    listener.set_nonblocking(true).unwrap();
    let handover = Handover::offer(&path, address, listener.try_clone().unwrap().into()).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    ready(came_by_handover);
    let mut open = JoinSet::new();
    if let Some(mut farewell) = farewell {
        open.spawn(async move {
            assert!(farewell.released(TIMEOUT, std::future::pending()).await, "the old one never let go");
        });
    }
    loop {
        tokio::select! {
            () = handover.asked() => break,
            accepted = listener.accept() => {
                let (mut socket, _) = accepted.unwrap();
                open.spawn(async move {
                    let mut request = [0; 4];
                    socket.read_exact(&mut request).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    socket.write_all(b"pong").await.unwrap();
                });
            }
        }
    }
    drop(listener);
    while let Some(ended) = open.join_next().await {
        ended.unwrap();
    }
    handover.release().await;
}

/// Clients that connect, ask and wait for the answer, again and again, each time anew.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<Vec<String>>>,
}

impl Load {
    fn on(address: SocketAddr) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |_| {
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            std::thread::spawn(move || {
                let mut failed = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match ask(address) {
                        Ok(()) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => failed.push(error.to_string()),
                    }
                }
                failed
            })
        };
        let threads = (0..CLIENTS).map(client).collect();
        Self { stop, answered, threads }
    }

    /// How many were answered by now.
    fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    fn end(self) -> (u64, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let failed = self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        (self.answered.load(Ordering::Relaxed), failed)
    }
}

fn ask(address: SocketAddr) -> std::io::Result<()> {
    let mut socket = std::net::TcpStream::connect_timeout(&address, TIMEOUT)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.write_all(b"ping")?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    if answer == "pong" { Ok(()) } else { Err(std::io::Error::other(format!("{answer:?}"))) }
}

fn start_in_process(
    path: &Path,
    address: SocketAddr,
    own: Option<std::net::TcpListener>,
) -> (JoinHandle<()>, tokio::sync::oneshot::Receiver<bool>) {
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let path = path.to_owned();
    let ready = move |by_handover| ready.send(by_handover).unwrap();
    let serving = tokio::spawn(serve_until_asked(path, address, own, ready));
    (serving, is_ready)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_refused_over_hand_overs_in_one_process() {
    let (_folder, path) = folder();
    let (own, address) = first_listener();
    let (mut serving, is_ready) = start_in_process(&path, address, Some(own));
    assert!(!is_ready.await.unwrap(), "the first one binds");
    let load = Load::on(address);
    for _ in 0..HANDOVERS {
        let before = load.answered();
        let (next, is_ready) = start_in_process(&path, address, None);
        assert!(is_ready.await.unwrap(), "the socket was not handed over");
        serving.await.unwrap();
        serving = next;
        while load.answered() < before + 10 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let (answered, failed) = tokio::task::spawn_blocking(|| load.end()).await.unwrap();
    assert!(failed.is_empty(), "{answered} answered, {} failed: {:?}", failed.len(), failed.first());
    serving.abort();
}

/// The body of the processes of the next test; without its environment there is nothing to do.
#[tokio::test]
async fn child_of_the_test_with_real_processes() {
    let (Ok(path), Ok(address)) = (std::env::var(CHILD_PATH), std::env::var(CHILD_ADDRESS)) else { return };
    let ready = |by_handover| println!("\nserving {by_handover}");
    serve_until_asked(path.into(), address.parse().unwrap(), None, ready).await;
}

/// A process, killed when dropped.
struct Child(std::process::Child);

impl Child {
    /// Starts one and waits until it serves; tells whether the socket was handed over to it.
    fn start(path: &Path, address: SocketAddr) -> (Self, bool) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serve::handover::tests::child_of_the_test_with_real_processes", "--nocapture"])
            .env(CHILD_PATH, path)
            .env(CHILD_ADDRESS, address.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        let said = lines.find_map(|line| line.unwrap().strip_prefix("serving ").map(str::to_owned));
        // The rest is read by nobody, but the pipe has to stay open: the child still says how its test went.
        std::thread::spawn(move || lines.count());
        (Self(child), said.unwrap() == "true")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nobody_is_refused_over_hand_overs_between_processes() {
    let (_folder, path) = folder();
    let address = free_address();
    let (mut serving, by_handover) = Child::start(&path, address);
    assert!(!by_handover, "the first one binds");
    let load = Load::on(address);
    for _ in 0..HANDOVERS {
        let before = load.answered();
        let (next, by_handover) = Child::start(&path, address);
        assert!(by_handover, "the socket was not handed over");
        assert!(serving.0.wait().unwrap().success(), "the old process ended badly");
        serving = next;
        while load.answered() < before + 10 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let (answered, failed) = load.end();
    assert!(failed.is_empty(), "{answered} answered, {} failed: {:?}", failed.len(), failed.first());
}

#[tokio::test]
async fn the_file_is_private_and_goes_with_its_owner_only() {
    let (_folder, path) = folder();
    let (first, _listener, address) = offer(&path);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let second = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let error = Handover::offer(&path, address, second.try_clone().unwrap().into()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "a process that lives is not pushed aside");
    let taken = take_over(&path, address, TIMEOUT).await.unwrap();
    let successor = Handover::offer(&path, address, taken.listener.try_clone().unwrap().into()).unwrap();
    drop(first);
    assert!(path.exists(), "the old one took the successor's file away");
    drop(successor);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_file_is_not() {
    let (folder, path) = folder();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(take_over(&path, free_address(), TIMEOUT).await.is_none(), "nobody is there");
    drop(offer(&path));
    std::fs::write(&path, "precious").unwrap();
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let error = Handover::offer(&path, address, listener.into()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "something was left beside");
}

#[tokio::test]
async fn strangers_are_refused_and_the_offer_stands() {
    let (_folder, path) = folder();
    let (handover, _listener, address) = offer(&path);
    assert!(take_over(&path, free_address(), TIMEOUT).await.is_none(), "another address");
    let mut wrong_length = vec![3, b'A', 255];
    wrong_length.extend([b'9'; 255]);
    let garbage: [&[u8]; 8] = [
        b"",
        b"\x02A\x09127.0.0.1",
        b"\x03",
        b"\x01A\x00",
        b"\x03X\x00",
        b"\x03A\x03abc",
        b"GET / HTTP/1.1\r\n\r\n",
        &wrong_length,
    ];
    for bytes in garbage {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        // A reset is as good as an end: what it may not be is a descriptor or silence.
        let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.expect("silence");
        assert!(answer.is_empty() || answer == [3, b'R'], "{bytes:?}: {answer:?}");
    }
    let asked = tokio::time::timeout(Duration::from_millis(50), handover.asked()).await;
    assert!(asked.is_err(), "it would drain for a stranger");
    let _taken = take_over(&path, address, TIMEOUT).await.expect("the offer still stands");
    handover.asked().await;
}

#[tokio::test]
async fn a_successor_that_dies_half_way_changes_nothing() {
    let (_folder, path) = folder();
    let (handover, _listener, address) = offer(&path);
    let mut dying = UnixStream::connect(&path).await.unwrap();
    super::message::write_ask(&mut dying, address).await.unwrap();
    assert!(super::message::receive(&dying).await.unwrap().is_some());
    drop(dying);
    assert!(tokio::time::timeout(Duration::from_millis(50), handover.asked()).await.is_err());
    assert!(take_over(&path, address, TIMEOUT).await.is_some());
}

/// A machine under load: the successor is slower than the exchange may take before it has its socket. Neither believes what the other
/// does not.
#[tokio::test]
async fn a_slow_successor_takes_what_it_was_given() {
    let (_folder, path) = folder();
    let (handover, _listener, address) = offer(&path);
    let mut slow = UnixStream::connect(&path).await.unwrap();
    super::message::write_ask(&mut slow, address).await.unwrap();
    let given = super::message::receive(&slow).await.unwrap();
    tokio::time::pause();
    tokio::time::advance(super::message::EXCHANGE_TIMEOUT + Duration::from_millis(200)).await;
    tokio::time::resume();
    super::message::write_word(&mut slow, super::message::Word::Taken).await.unwrap();
    super::message::expect_word(&mut slow, super::message::Word::Done).await.unwrap();
    handover.asked().await;
    assert!(given.is_some() && !path.exists(), "the file of an offer that was taken stays behind");
    // A successor's file is nobody else's, whatever number the system gave it.
    let _successor = Handover::offer(&path, address, given.unwrap()).unwrap();
    drop(handover);
    assert!(path.exists());
}

#[tokio::test]
async fn an_old_process_that_is_silent_or_dies_is_given_up() {
    let (_folder, path) = folder();
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let address = free_address();
    let silent = take_over(&path, address, Duration::from_millis(100)).await;
    assert!(silent.is_none());
    let dying = tokio::spawn(async move {
        // The first is the one that was given up above.
        drop(listener.accept().await.unwrap());
        let (mut stream, _) = listener.accept().await.unwrap();
        super::message::read_ask(&mut stream).await.unwrap();
    });
    assert!(take_over(&path, address, TIMEOUT).await.is_none());
    dying.await.unwrap();
}

#[tokio::test]
async fn a_socket_that_is_not_the_one_asked_for_is_not_taken() {
    let (_folder, path) = folder();
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let giving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        super::message::read_ask(&mut stream).await.unwrap();
        let other = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        super::message::give(&stream, std::os::fd::AsFd::as_fd(&other)).await.unwrap();
        super::message::expect_word(&mut stream, super::message::Word::Taken).await
    });
    assert!(take_over(&path, free_address(), TIMEOUT).await.is_none());
    assert!(giving.await.unwrap().is_err(), "it was said to be taken");
}

#[tokio::test]
async fn the_successor_hears_of_the_journal() {
    let (_folder, handover, _listener, mut taken) = taken_offer().await;
    handover.asked().await;
    let mut hearing = tokio::spawn(async move { taken.farewell.released(TIMEOUT, std::future::pending()).await });
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut hearing).await.is_err(), "too early");
    handover.release().await;
    assert!(hearing.await.unwrap());
    // An old process that dies has released everything too; one that lives and keeps silent has not.
    let (_folder, handover, _listener, mut taken) = taken_offer().await;
    handover.asked().await;
    drop(handover);
    assert!(taken.farewell.released(TIMEOUT, std::future::pending()).await);
    let (_folder, _handover, _listener, mut taken) = taken_offer().await;
    assert!(!taken.farewell.released(Duration::from_millis(50), std::future::pending()).await);
}

#[tokio::test]
async fn the_old_one_hears_that_somebody_waits_for_the_journal() {
    let (_folder, handover, _listener, mut taken) = taken_offer().await;
    handover.asked().await;
    let (want, wanted) = tokio::sync::oneshot::channel::<()>();
    let moment = Duration::from_millis(50);
    let hearing = tokio::spawn(async move { taken.farewell.released(TIMEOUT, async { wanted.await.unwrap() }).await });
    assert!(tokio::time::timeout(moment, handover.wanted()).await.is_err(), "nobody waits yet");
    want.send(()).unwrap();
    tokio::time::timeout(TIMEOUT, handover.wanted()).await.unwrap();
    handover.release().await;
    assert!(hearing.await.unwrap());
    // One that is gone wants nothing, and keeps nobody from saying the last word.
    let (_folder, handover, _listener, taken) = taken_offer().await;
    drop(taken);
    handover.asked().await;
    assert!(tokio::time::timeout(moment, handover.wanted()).await.is_err());
    handover.release().await;
}

/// One that dies before it serves leaves the socket to the old one, with whoever waits in it; one that serves does not.
#[tokio::test]
async fn a_successor_that_dies_before_it_serves_gives_the_socket_back() {
    let (_folder, handover, listener, taken) = taken_offer().await;
    handover.asked().await;
    handover.release().await;
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = std::net::TcpStream::connect(address).unwrap();
    drop(taken);
    let kept = std::net::TcpListener::from(handover.came_back(PATIENCE).await.expect("it is gone").listener);
    kept.set_nonblocking(false).unwrap();
    assert_eq!(kept.accept().unwrap().1, client.local_addr().unwrap());
    assert!(handover.came_back(PATIENCE).await.is_none(), "once");

    let (_folder, handover, _listener, mut taken) = taken_offer().await;
    handover.asked().await;
    let moment = Duration::from_millis(20);
    // It waited for the journal, and got it before it was heard.
    assert!(!taken.farewell.released(moment, std::future::ready(())).await);
    handover.release().await;
    assert!(
        tokio::time::timeout(moment, handover.came_back(PATIENCE)).await.is_err(),
        "it lives and does not serve yet"
    );
    let (_folder, handover, _listener, mut taken) = taken_offer().await;
    handover.asked().await;
    handover.release().await;
    assert!(taken.farewell.released(TIMEOUT, std::future::pending()).await);
    taken.farewell.serving().await;
    assert!(handover.came_back(PATIENCE).await.is_none());
}

/// One that hangs loses the service and hears so when it wakes; one that says that it serves before it hears keeps it.
#[tokio::test]
async fn a_successor_that_does_not_come_to_serve_hears_that_it_has_lost() {
    let at_once = Patience { silence_max: Duration::ZERO, start_max: TIMEOUT };
    let slow = Patience { silence_max: TIMEOUT, start_max: Duration::ZERO };
    for (patience, why) in [(at_once, Lost::Silent), (slow, Lost::TooSlow)] {
        let (_folder, handover, _listener, mut taken) = taken_offer().await;
        handover.asked().await;
        handover.release().await;
        let hung = handover.came_back(patience).await.unwrap().hung.expect("it lives");
        assert_eq!(hung.why(), why);
        tokio::time::timeout(TIMEOUT, taken.farewell.lost()).await.unwrap();
        assert!(taken.farewell.released(TIMEOUT, std::future::pending()).await);
        // This process is its own successor here: nobody ends itself.
        assert!(hung.process_id().is_none() && hung.kill().is_err());
        taken.farewell.serving().await;
        tokio::time::timeout(TIMEOUT, hung.serves_after_all()).await.unwrap();
    }
    let (_folder, handover, _listener, taken) = taken_offer().await;
    handover.asked().await;
    let moment = Duration::from_millis(20);
    let lost = taken.farewell.lost();
    drop((handover, taken));
    assert!(tokio::time::timeout(moment, lost).await.is_err(), "an old one that died has not taken anything back");
}
