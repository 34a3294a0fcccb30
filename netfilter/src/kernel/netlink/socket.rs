//! A netlink socket: sends one datagram and receives the replies without blocking.
//!
//! The kernel completes a request before `sendmsg` returns (docs/RULES.md, section 5.1), so every reply is queued by
//! then.

use super::list::{Limit, List, Listed};
use super::reply::{Received, Replies, RequestOutcome};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SetSockOpt, SockFlag, SockProtocol, SockType, bind, recv, sendmsg,
    setsockopt, socket, sockopt,
};
use nix::{libc, setsockopt_impl, sockopt_impl};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes of the receive buffer for lists. The first datagram of a list has at most `NLMSG_GOODSIZE` bytes, less than
/// 8 KiB, and later datagrams no more than the largest buffer passed so far (`netlink_dump`, `max_recvmsg_len`). Only
/// lists of links with virtual functions need more (`min_dump_alloc`), and this crate does not request those.
///
/// The kernel allocates as much memory for the next datagram before it knows whether there is one, plus 320 bytes
/// (`struct skb_shared_info`): together 8 KiB, the largest allocation from kmalloc's caches; beyond it the kernel
/// allocates pages (`KMALLOC_MAX_CACHE_SIZE`).
const LIST_BUFFER: usize = 8 * 1024 - 320;

/// Bytes of the receive buffer for lists that must show objects of any size. The kernel ends a list without an error at
/// an object for which its datagram has no room (`nf_tables_dump_rules`, net/netfilter/nf_tables_api.c, v6.18), and
/// composes no longer datagrams than these (`netlink_recvmsg`, net/netlink/af_netlink.c). A rule takes some 37 KB at
/// most, so a list can end there all the same.
const LONG_LIST_BUFFER: usize = 32 * 1024;

/// Bytes of the receive buffer for acknowledgements. A capped acknowledgement has some dozen bytes, rarely with a
/// message of the kernel. The buffer is small and on the stack, because zeroing a larger one would cost an ADD a page
/// fault per page.
const REPLY_BUFFER: usize = 4 * 1024;

/// The most consecutive EINTR of one call. Neither call sleeps, so even one signal is rare.
const INTERRUPTIONS: usize = 100;

/// Bytes of the socket's receive buffer: one reply per refused message, about 1 KiB each with overhead.
const RECEIVE_QUEUE: usize = 1 << 20;

sockopt_impl!(
    /// `NETLINK_EXT_ACK`: attributes with the kernel's message follow an acknowledgement. Linux 4.12.
    ExtendedAck, SetOnly, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, bool
);
sockopt_impl!(
    /// `NETLINK_CAP_ACK`: an acknowledgement repeats only the header of the request. Linux 4.3.
    CappedAck, SetOnly, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, bool
);

sockopt_impl!(
    /// `NETLINK_ADD_MEMBERSHIP`: receives the messages of a multicast group.
    Membership, SetOnly, libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, u32
);

/// A netlink socket of the network namespace in which the calling thread opened it.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
}

/// The error of opening the socket, or of sending or receiving; the outcome of the request is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    /// The socket could not be opened.
    #[error("cannot open a netlink socket")]
    Open(#[source] Errno),
    /// The request could not be sent.
    #[error("cannot send {bytes} bytes to the kernel")]
    Send {
        /// The size of the request in bytes.
        bytes: usize,
        /// The kernel's error.
        source: Errno,
    },
    /// The reply could not be received.
    #[error("cannot read the kernel's reply")]
    Receive(#[source] Errno),
}

impl Socket {
    /// Opens a socket. It needs no `bind`: the kernel assigns a port at the first message.
    pub(crate) fn open(protocol: SockProtocol) -> Result<Self, SocketError> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
            .map_err(SocketError::Open)?;
        Ok(Self::with(fd))
    }

    /// Opens a socket of the protocol for IPsec, which nix does not name.
    #[expect(unsafe_code, reason = "a descriptor that socket(2) returned becomes an owned one")]
    pub(crate) fn open_xfrm() -> Result<Self, SocketError> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: socket(2) takes numbers only.
        let fd = Errno::result(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_XFRM) })
            .map_err(SocketError::Open)?;
        // SAFETY: the kernel just returned it, and this is its only owner.
        Ok(Self::with(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn with(fd: OwnedFd) -> Self {
        let socket = Self { fd };
        socket.set_optional(ExtendedAck, &true);
        socket.set_optional(CappedAck, &true);
        socket
    }

    /// Enlarges the buffers for a datagram of `outgoing` bytes and for many replies.
    ///
    /// The forced options exceed the administrator's limit and need `CAP_NET_ADMIN` in the initial user namespace;
    /// otherwise the plain options enlarge the buffers up to that limit.
    pub(crate) fn make_room(&self, outgoing: usize) {
        // One and a half times the size: netlink counts the buffer's overhead too (`netlink_sendmsg`).
        let outgoing = outgoing.saturating_add(outgoing / 2).saturating_add(32 * 1024);
        if setsockopt(&self.fd, sockopt::SndBufForce, &outgoing).is_err() {
            self.set_optional(sockopt::SndBuf, &outgoing);
        }
        if setsockopt(&self.fd, sockopt::RcvBufForce, &RECEIVE_QUEUE).is_err() {
            self.set_optional(sockopt::RcvBuf, &RECEIVE_QUEUE);
        }
    }

    /// Sends messages as one datagram and returns their outcome; message `last` requests an acknowledgement.
    pub(crate) fn transact(&mut self, messages: &[u8], last: u32) -> Result<RequestOutcome, SocketError> {
        self.send(messages)?;
        let (mut replies, mut buffer) = (Replies::of(last), [0; REPLY_BUFFER]);
        while !replies.is_complete() {
            match self.receive(&mut buffer)? {
                Some(received) => replies.add(received),
                None => break,
            }
        }
        Ok(replies.outcome())
    }

    /// Sends a request for a list and collects it, up to the limit: the kernel composes each datagram when the one before
    /// has been received.
    pub(crate) fn list(
        &mut self,
        request: &[u8],
        sequence: u32,
        limit: Limit,
    ) -> Result<Listed, SocketError> {
        self.send(request)?;
        self.collect(&mut [0; LIST_BUFFER], List::of(sequence, limit))
    }

    /// The same with long datagrams, except for the first list of the socket.
    pub(crate) fn list_of_any_size(
        &mut self,
        request: &[u8],
        sequence: u32,
        limit: Limit,
    ) -> Result<Listed, SocketError> {
        self.send(request)?;
        self.collect(&mut vec![0; LONG_LIST_BUFFER], List::of(sequence, limit))
    }

    fn collect(&self, buffer: &mut [u8], mut list: List) -> Result<Listed, SocketError> {
        while !list.is_complete() {
            match self.receive(buffer)? {
                Some(received) => list.add(received),
                None => break,
            }
        }
        Ok(list.outcome())
    }

    fn send(&self, bytes: &[u8]) -> Result<(), SocketError> {
        // A signal arrived before the kernel accepted the datagram, so it is sent again.
        let mut sent = Err(Errno::EINTR);
        for _ in 0..INTERRUPTIONS {
            sent = sendmsg::<()>(self.fd.as_raw_fd(), &[IoSlice::new(bytes)], &[], MsgFlags::empty(), None);
            if sent != Err(Errno::EINTR) {
                break;
            }
        }
        sent.map(drop).map_err(|source| SocketError::Send { bytes: bytes.len(), source })
    }

    /// Receives the messages of a multicast group, too. The kernel delivers none to a socket without a port
    /// (`do_one_broadcast`, net/netlink/af_netlink.c, v6.18).
    pub(crate) fn join(&self, group: u32) -> Result<(), SocketError> {
        bind(self.fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).map_err(SocketError::Open)?;
        setsockopt(&self.fd, Membership, &group).map_err(SocketError::Open)
    }

    /// The next datagram; `None` when no more is queued.
    pub(crate) fn receive<'b>(&self, buffer: &'b mut [u8]) -> Result<Option<Received<'b>>, SocketError> {
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
                Err(source) => return Err(SocketError::Receive(source)),
            }
        }
        Err(SocketError::Receive(Errno::EINTR))
    }

    /// Sets an option that is not necessary, and that older kernels lack.
    fn set_optional<O: SetSockOpt>(&self, option: O, value: &O::Val) {
        let _refused = setsockopt(&self.fd, option, value);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
