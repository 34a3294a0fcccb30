//! A netlink socket: opened with the options we need, one datagram out, datagrams in, no waiting.
//!
//! The kernel works a request off before `sendmsg` returns (spec `netlink.md`, Transport), so every
//! answer is queued by then and nothing here ever blocks.

use super::reply::Received;
use nix::errno::Errno;
use nix::{libc, setsockopt_impl, sockopt_impl};
use nix::sys::socket::{AddressFamily, MsgFlags, SetSockOpt, SockFlag, SockProtocol, SockType};
use nix::sys::socket::{recv, sendmsg, setsockopt, socket, sockopt};
use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};

/// The kernel fills at most 32 KiB per datagram of a list (`netlink_recvmsg`: `max_recvmsg_len` is
/// capped at `SKB_WITH_OVERHEAD(32768)`); a capped acknowledgement has a few dozen bytes.
const RECEIVE: usize = 32 * 1024;

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
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens one. It needs no `bind`: the first message gives it a port.
    pub(crate) fn open(protocol: SockProtocol) -> Result<Self, Errno> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        let socket = Self { fd, buffer: vec![0; RECEIVE] };
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

    /// Sends all of it as one datagram.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<(), Errno> {
        // A signal before the kernel took the datagram: nothing was done, so it is sent again.
        loop {
            match sendmsg::<()>(self.fd.as_raw_fd(), &[IoSlice::new(bytes)], &[], MsgFlags::empty(), None) {
                Err(Errno::EINTR) => {}
                sent => return sent.map(drop),
            }
        }
    }

    /// The next datagram; `None` when nothing more is queued.
    pub(crate) fn receive(&mut self) -> Result<Option<Received<'_>>, Errno> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
        loop {
            match recv(self.fd.as_raw_fd(), &mut self.buffer, flags) {
                Ok(length) => {
                    let datagram = self.buffer.get(..length);
                    return Ok(Some(datagram.map_or(Received::Truncated, Received::Datagram)));
                }
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::ENOBUFS) => return Ok(Some(Received::Overrun)),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Sets an option that an older kernel may not know and that we can do without.
    fn wish<O: SetSockOpt>(&self, option: O, value: &O::Val) {
        let _refused = setsockopt(&self.fd, option, value);
    }
}
