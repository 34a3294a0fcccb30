//! A batch of netlink messages, and mnl's socket that sends it.

use gybe_netfilter::nft::{BatchObject, NftError, SocketError, Start, Unknown};
use mnl::{Bus, Socket};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const NLMSG_ERROR: u16 = 2;

/// Bytes of the socket's buffers: each message of a batch is acknowledged, and long lists need long batches.
const BUFFER_SIZE: usize = 4 << 20;

/// Bytes of one reply: an error repeats the refused message, whose list of elements has up to 64 KiB.
const REPLY_SIZE: usize = 1 << 17;

/// Commits the batch in one datagram: mnl's `send_all` sends one for every 128 KiB, and the kernel discards half a
/// transaction; rustables' `send` loses replies when its buffer overflows.
///
/// # Errors
/// When the kernel refuses it, or its outcome is unknown.
pub fn transact(batch: &Batch) -> Result<(), NftError> {
    let socket = Socket::new(Bus::Netfilter).map_err(|error| SocketError::Open(errno(&error)))?;
    prepare(&socket).map_err(SocketError::Open)?;
    let bytes = batch.bytes().len();
    match socket.send(batch.bytes()) {
        Ok(sent) if sent == bytes => replies(&socket, batch),
        Ok(_) => Err(SocketError::Send { bytes, source: Errno::EMSGSIZE }.into()),
        Err(error) => Err(SocketError::Send { bytes, source: errno(&error) }.into()),
    }
}

/// Enlarges the buffers, which mnl cannot, and makes the socket non-blocking: all replies are queued when `send`
/// returns.
fn prepare(socket: &Socket) -> nix::Result<()> {
    #[expect(unsafe_code, reason = "mnl's socket has only AsRawFd")]
    // SAFETY: the socket owns the descriptor and lives longer than `descriptor`.
    let descriptor = unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) };
    // A user namespace may not exceed the administrator's limit; a batch that is too long then fails in `send`.
    setsockopt(&descriptor, sockopt::SndBufForce, &BUFFER_SIZE)
        .or_else(|_| setsockopt(&descriptor, sockopt::SndBuf, &BUFFER_SIZE))?;
    setsockopt(&descriptor, sockopt::RcvBufForce, &BUFFER_SIZE)
        .or_else(|_| setsockopt(&descriptor, sockopt::RcvBuf, &BUFFER_SIZE))?;
    fcntl(descriptor, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map(drop)
}

fn replies(socket: &Socket, batch: &Batch) -> Result<(), NftError> {
    // mnl needs a buffer that is aligned to the netlink header.
    let mut buffer = vec![0_u8; REPLY_SIZE + 4];
    let aligned = buffer.as_ptr().align_offset(4);
    let (mut refused, mut acknowledged) = (Vec::new(), false);
    loop {
        let messages = match socket.recv(&mut buffer[aligned..]) {
            Ok(messages) => messages,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if errno(&error) == Errno::ENOBUFS => {
                return Err(NftError::OutcomeUnknown(Unknown::RepliesDropped));
            }
            Err(error) => return Err(SocketError::Receive(errno(&error)).into()),
        };
        for message in messages {
            let message = message.map_err(|_| NftError::OutcomeUnknown(Unknown::Unreadable))?;
            if let Some(error) = error(message) {
                match error {
                    0 => acknowledged |= sequence(message) == batch.last(),
                    error => refused.push((sequence(message), Errno::from_raw(-error))),
                }
            }
        }
    }
    // Later refusals can be consequences of the first message that was refused.
    match refused.iter().min_by_key(|(sequence, _)| *sequence) {
        Some(&(sequence, source)) => Err(NftError::Refused {
            object: batch.object(sequence),
            kernel_message: None,
            lacking: None,
            others: refused.len() - 1,
            source,
        }),
        None if acknowledged => Ok(()),
        None => Err(NftError::OutcomeUnknown(Unknown::NotAcknowledged)),
    }
}

/// The negative errno of an acknowledgement, zero for success.
fn error(message: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes([message[4], message[5]]);
    let error = message.get(16..HEADERS).filter(|_| kind == NLMSG_ERROR)?;
    Some(i32::from_ne_bytes(error.try_into().unwrap()))
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

/// The lengths of the netlink and nfnetlink headers.
pub(crate) const HEADERS: usize = 20;
/// `NLM_F_EXCL`: refused if the object exists.
const EXCLUSIVE: u16 = 0x200;

/// Messages that the kernel carries out all or none of.
#[derive(Debug, Clone)]
pub struct Batch {
    bytes: Vec<u8>,
    /// The sequence number and the object of each message.
    objects: Vec<(u32, BatchObject)>,
}

impl Batch {
    /// `content` names the object of each message between the begin and the end of the transaction.
    ///
    /// Neither library can say that the table must not exist yet ([`Start::Fresh`]), so that flag is added here.
    pub(crate) fn new(mut bytes: Vec<u8>, content: Vec<BatchObject>, start: Start) -> Self {
        let offsets = message_offsets(&bytes);
        assert_eq!(offsets.len(), content.len() + 2, "each message has an object");
        let frame = || std::iter::once(BatchObject::Transaction);
        let all = frame().chain(content).chain(frame());
        let objects: Vec<_> = offsets.iter().map(|at| sequence(&bytes[*at..])).zip(all).collect();
        let table = objects.iter().position(|(_, object)| *object == BatchObject::Table);
        if let (Start::Fresh, Some(position)) = (start, table) {
            let flags = &mut bytes[offsets[position] + 6..][..2];
            let exclusive = u16::from_ne_bytes([flags[0], flags[1]]) | EXCLUSIVE;
            flags.copy_from_slice(&exclusive.to_ne_bytes());
        }
        Self { bytes, objects }
    }

    /// The messages, for one datagram.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The object of the message with this sequence number.
    pub(crate) fn object(&self, sequence: u32) -> BatchObject {
        let found = self.objects.iter().find(|(number, _)| *number == sequence);
        found.map_or(BatchObject::Transaction, |(_, object)| object.clone())
    }

    /// The sequence number of the last message before the end; both libraries have each message acknowledged.
    pub(crate) fn last(&self) -> u32 {
        self.objects[self.objects.len() - 2].0
    }
}

fn message_offsets(bytes: &[u8]) -> Vec<usize> {
    let mut offsets = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        offsets.push(at);
        let length = u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        at += usize::try_from(length).unwrap().next_multiple_of(4);
    }
    offsets
}

/// The sequence number in a message's header.
pub(crate) fn sequence(message: &[u8]) -> u32 {
    u32::from_ne_bytes(message[8..12].try_into().unwrap())
}
