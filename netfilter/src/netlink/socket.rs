//! A netlink socket: opened with the options we need, one datagram out, datagrams in, no waiting.
//!
//! The kernel works a request off before `sendmsg` returns (docs/RULES.md, section 5.1), so every
//! answer is queued by then and nothing here ever blocks.

use super::list::{List, Listed};
use super::reply::{Account, Outcome, Received};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SetSockOpt, SockFlag, SockProtocol, SockType};
use nix::sys::socket::{recv, sendmsg, setsockopt, socket, sockopt};
use nix::{libc, setsockopt_impl, sockopt_impl};
use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};

/// The first datagram of a list has at most `NLMSG_GOODSIZE`, which is below 8 KiB, the others no
/// more than what we once had room for (`netlink_dump`, `max_recvmsg_len`). Lists that ask for more
/// (`min_dump_alloc`) are those of links with their virtual functions, and those nobody asks for.
///
/// Before it knows whether there is a next one the kernel takes as much memory for it, and 320 bytes of
/// its own (`struct skb_shared_info`): together the 8 KiB that `kmalloc` has at hand, and beyond which it
/// goes and asks for pages (`KMALLOC_MAX_CACHE_SIZE`).
const LISTED: usize = 8 * 1024 - 320;

/// A capped acknowledgement has a few dozen bytes, and seldom some words of the kernel's. Small, and
/// on the stack, as zeroing a larger buffer would cost an ADD a page fault for each of its pages.
const ANSWER: usize = 4 * 1024;

/// How many signals in a row may keep a call from its work. Neither call ever sleeps here, so that
/// already one is rare, and so many are no accident.
const INTERRUPTIONS: usize = 100;

/// Room for answers: one per refused message, each accounted with its overhead, about 1 KiB.
const RECEIVE_QUEUE: usize = 1 << 20;

sockopt_impl!(
    /// `NETLINK_EXT_ACK`: attributes with the kernel's words follow an answer. Linux 4.12.
    ExtendedAck, SetOnly, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, bool
);
sockopt_impl!(
    /// `NETLINK_CAP_ACK`: an answer repeats the header of what was asked, not all of it. Linux 4.3.
    CappedAck, SetOnly, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, bool
);

/// A netlink socket of the network namespace its thread was in when it was opened.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
}

/// A request did not get out, or an answer not in. Nothing is known of what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No socket.
    #[error("cannot open a netlink socket")]
    Open {
        /// Why.
        source: Errno,
    },
    /// The request could not be sent.
    #[error("cannot send {bytes} bytes to the kernel")]
    Send {
        /// How much it was.
        bytes: usize,
        /// Why.
        source: Errno,
    },
    /// The answer could not be fetched.
    #[error("cannot read the kernel's answer")]
    Receive {
        /// Why.
        source: Errno,
    },
}

impl Socket {
    /// Opens one. It needs no `bind`: the first message gives it a port.
    pub(crate) fn open(protocol: SockProtocol) -> Result<Self, Failure> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
            .map_err(|source| Failure::Open { source })?;
        let socket = Self { fd };
        socket.wish(ExtendedAck, &true);
        socket.wish(CappedAck, &true);
        Ok(socket)
    }

    /// Makes room for sending a datagram of `outgoing` bytes and for many answers.
    ///
    /// The forced options pass the administrator's limit and need `CAP_NET_ADMIN` in the initial
    /// user namespace; without it the plain ones give what that limit allows.
    pub(crate) fn make_room(&self, outgoing: usize) {
        // Half as much again: netlink counts the buffer's overhead too (`netlink_sendmsg`).
        let outgoing = outgoing.saturating_add(outgoing / 2).saturating_add(32 * 1024);
        if setsockopt(&self.fd, sockopt::SndBufForce, &outgoing).is_err() {
            self.wish(sockopt::SndBuf, &outgoing);
        }
        if setsockopt(&self.fd, sockopt::RcvBufForce, &RECEIVE_QUEUE).is_err() {
            self.wish(sockopt::RcvBuf, &RECEIVE_QUEUE);
        }
    }

    /// Sends messages as one datagram and hears what becomes of them; `last` asks for an answer.
    pub(crate) fn transact(&mut self, messages: &[u8], last: u32) -> Result<Outcome, Failure> {
        self.send(messages)?;
        let (mut account, mut buffer) = (Account::of(last), [0; ANSWER]);
        while !account.is_settled() {
            match self.receive(&mut buffer)? {
                Some(received) => account.note(received),
                None => break,
            }
        }
        Ok(account.outcome())
    }

    /// Sends a request for a list and collects it.
    pub(crate) fn list(&mut self, request: &[u8], sequence: u32) -> Result<Listed, Failure> {
        self.send(request)?;
        let (mut list, mut buffer) = (List::of(sequence), [0; LISTED]);
        while !list.is_complete() {
            match self.receive(&mut buffer)? {
                Some(received) => list.note(received),
                None => break,
            }
        }
        Ok(list.outcome())
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Failure> {
        // A signal before the kernel took the datagram: nothing was done, so it is sent again.
        let mut sent = Err(Errno::EINTR);
        for _ in 0..INTERRUPTIONS {
            sent = sendmsg::<()>(self.fd.as_raw_fd(), &[IoSlice::new(bytes)], &[], MsgFlags::empty(), None);
            if sent != Err(Errno::EINTR) {
                break;
            }
        }
        sent.map(drop).map_err(|source| Failure::Send { bytes: bytes.len(), source })
    }

    /// The next datagram; `None` when nothing more is queued.
    fn receive<'b>(&self, buffer: &'b mut [u8]) -> Result<Option<Received<'b>>, Failure> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
        for _ in 0..INTERRUPTIONS {
            match recv(self.fd.as_raw_fd(), buffer, flags) {
                Ok(length) => {
                    let datagram = buffer.get(..length);
                    return Ok(Some(datagram.map_or(Received::Truncated, Received::Datagram)));
                }
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::ENOBUFS) => return Ok(Some(Received::Overrun)),
                Err(Errno::EINTR) => {}
                Err(source) => return Err(Failure::Receive { source }),
            }
        }
        Err(Failure::Receive { source: Errno::EINTR })
    }

    /// Sets an option that an older kernel may not know and that we can do without.
    fn wish<O: SetSockOpt>(&self, option: O, value: &O::Val) {
        let _refused = setsockopt(&self.fd, option, value);
    }
}
