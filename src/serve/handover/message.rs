//! What the two processes say to each other over the Unix socket, and who may say it. Knows nothing of listeners or of draining.
//!
//! New: version, `Ask`, the address it wants. Old: version, `Given` with the descriptor, or `Refused`. New: `Taken`. Old: `Done`, and much
//! later `Released`; meanwhile the new one says `Alive` again and again, and may say `Wanted`. New: `Serving`. Where the new one is gone
//! before that word, the old one comes back; where it is silent or takes too long, the old one says `TakenBack` and comes back too.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::SocketAddr,
    os::fd::{BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest},
    net::UnixStream,
};

/// The version of these words. A process of another version is refused, and binds by itself.
pub(super) const VERSION: u8 = 3;
/// The longest address as text: an IPv6 address with scope and port.
const ADDRESS_BYTES_MAX: usize = 80;
/// How long the other process may take to say what it wants, or that it is done. One that is starved of its processor is not silent.
pub(super) const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the old process waits to hear that its socket was taken: longer than any successor tries to, so that none takes a socket
/// that the old one believes to have kept.
pub(super) const TAKEN_TIMEOUT: Duration = Duration::from_secs(60);

/// The new process says this often that it is alive: its start can take long, and one that is stopped says nothing.
pub(super) const BEAT: Duration = Duration::from_millis(250);

/// A word of the exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Word {
    Ask = b'A',
    Given = b'G',
    Refused = b'R',
    Taken = b'T',
    Done = b'D',
    Released = b'L',
    Wanted = b'W',
    Alive = b'V',
    Serving = b'S',
    TakenBack = b'B',
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Whether the process at the other end belongs to the same user.
pub(super) fn check_peer(stream: &UnixStream) -> io::Result<()> {
    let (peer, own) = (rustix::net::sockopt::socket_peercred(stream)?.uid, rustix::process::geteuid());
    if peer == own {
        return Ok(());
    }
    let message = format!("the other process belongs to user {}, this one to {}", peer.as_raw(), own.as_raw());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

pub(super) async fn write_ask(stream: &mut UnixStream, address: SocketAddr) -> io::Result<()> {
    let text = address.to_string();
    let length = u8::try_from(text.len()).map_err(|_| invalid("the address is too long".to_owned()))?;
    let mut bytes = vec![VERSION, Word::Ask as u8, length];
    bytes.extend_from_slice(text.as_bytes());
    stream.write_all(&bytes).await
}

/// The address that the new process asks for.
pub(super) async fn read_ask(stream: &mut UnixStream) -> io::Result<SocketAddr> {
    let mut head = [0; 3];
    stream.read_exact(&mut head).await?;
    let [version, word, length] = head;
    if version != VERSION {
        return Err(invalid(format!("version {version} instead of {VERSION}")));
    }
    if word != Word::Ask as u8 {
        return Err(invalid(format!("byte {word} instead of a question")));
    }
    let length = usize::from(length);
    if length > ADDRESS_BYTES_MAX {
        return Err(invalid(format!("an address of {length} bytes, {ADDRESS_BYTES_MAX} are allowed")));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text).await?;
    let address = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
    address.ok_or_else(|| invalid(format!("{:?} is no address", String::from_utf8_lossy(&text))))
}

pub(super) async fn write_word(stream: &mut (impl AsyncWrite + Unpin), word: Word) -> io::Result<()> {
    stream.write_all(&[word as u8]).await
}

pub(super) async fn expect_word(stream: &mut UnixStream, word: Word) -> io::Result<()> {
    let byte = stream.read_u8().await?;
    if byte == word as u8 { Ok(()) } else { Err(invalid(format!("byte {byte} instead of {word:?}"))) }
}

/// The next word of those that are said once the socket is taken.
pub(super) async fn read_word(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Word> {
    let byte = stream.read_u8().await?;
    let known = [Word::Alive, Word::Wanted, Word::Serving, Word::Released, Word::TakenBack];
    let word = known.into_iter().find(|word| *word as u8 == byte);
    word.ok_or_else(|| invalid(format!("byte {byte} instead of a word")))
}

/// Sends version and `Given`, with the descriptor.
pub(super) async fn give(stream: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let bytes = [VERSION, Word::Given as u8];
    let sent = stream
        .async_io(Interest::WRITABLE, || {
            let descriptors = [descriptor];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
                return Err(invalid("no room for the descriptor".to_owned()));
            }
            Ok(sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
        })
        .await?;
    if sent == bytes.len() { Ok(()) } else { Err(invalid("only half an answer could be sent".to_owned())) }
}

pub(super) async fn refuse(stream: &mut UnixStream) -> io::Result<()> {
    stream.write_all(&[VERSION, Word::Refused as u8]).await
}

/// The old process's answer: the descriptor, or `None` where it refuses.
pub(super) async fn receive(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut bytes = [0; 2];
    let (count, descriptor) = stream
        .async_io(Interest::READABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let received = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
            let mut descriptors = Vec::new();
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    descriptors.extend(rights);
                }
            }
            // The kernel cuts what has no room, so there is one at most.
            Ok((received.bytes, descriptors.pop()))
        })
        .await?;
    match (bytes, descriptor) {
        _ if count == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
        ([VERSION, word], Some(descriptor)) if word == Word::Given as u8 && count == 2 => Ok(Some(descriptor)),
        ([VERSION, word], None) if word == Word::Refused as u8 && count == 2 => Ok(None),
        _ => Err(invalid(format!("bytes {bytes:?} instead of an answer"))),
    }
}
