//! Sends a batch over mnl's socket in the network namespace of the calling thread, and evaluates the kernel's replies.

use crate::batch::{Batch, HEADERS, sequence};
use gybe_netfilter::nft::{NftError, SocketError, Unknown};
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
    let socket = Socket::new(Bus::Netfilter).map_err(|error| SocketError::Open { source: errno(&error) })?;
    prepare(&socket).map_err(|source| SocketError::Open { source })?;
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
                return Err(NftError::OutcomeUnknown { source: Unknown::RepliesDropped });
            }
            Err(error) => return Err(SocketError::Receive { source: errno(&error) }.into()),
        };
        for message in messages {
            let message = message.map_err(|_| NftError::OutcomeUnknown { source: Unknown::Unreadable })?;
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
        None => Err(NftError::OutcomeUnknown { source: Unknown::NotAcknowledged }),
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
