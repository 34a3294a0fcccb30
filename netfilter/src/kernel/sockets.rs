//! Non-blocking sockets of test connections: calls that the standard library does not have, and the owner of the sockets
//! that a thread creates. Only [`wait`], [`bind_until`] and [`connect_until`] block.

use crate::model::Hint;
use crate::model::packet::Owner;
use crate::model::ruleset::Transport;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, SockaddrStorage, getsockopt, setsockopt,
    sockopt,
};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use std::borrow::Cow;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

/// The time between two attempts of [`bind_until`].
pub(crate) const BIND_INTERVAL: Duration = Duration::from_millis(1);

/// Opens a socket of `like`'s family, and of that family only.
///
/// # Errors
/// When the kernel refuses.
pub fn open(transport: Transport, like: SocketAddr) -> nix::Result<OwnedFd> {
    let family = if like.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let kind = match transport {
        Transport::Tcp => SockType::Stream,
        Transport::Udp => SockType::Datagram,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = nix::sys::socket::socket(family, kind, flags, None)?;
    if like.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    Ok(fd)
}

/// bind(2).
///
/// # Errors
/// When the kernel refuses.
pub fn bind(fd: &OwnedFd, address: SocketAddr) -> nix::Result<()> {
    nix::sys::socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(address))
}

/// Binds, and tries again until the deadline while the address is in use: a child process that another thread has
/// forked has copies of the previous connection's sockets until it calls execve(2).
///
/// # Errors
/// `EADDRINUSE` at the deadline, or another reason for which the kernel refuses.
pub fn bind_until(fd: &OwnedFd, address: SocketAddr, deadline: Instant) -> nix::Result<()> {
    loop {
        match bind(fd, address) {
            Err(Errno::EADDRINUSE) if Instant::now() < deadline => thread::sleep(BIND_INTERVAL),
            outcome => return outcome,
        }
    }
}

/// connect(2).
///
/// # Errors
/// `EINPROGRESS` for a TCP connection that is not refused at once.
pub fn connect(fd: &OwnedFd, to: SocketAddr) -> nix::Result<()> {
    nix::sys::socket::connect(fd.as_raw_fd(), &SockaddrStorage::from(to))
}

/// Connects, and waits until the connection is established.
///
/// # Errors
/// `ETIMEDOUT` at the deadline, or the reason for which there is no connection.
pub fn connect_until(fd: &OwnedFd, to: SocketAddr, deadline: Instant) -> nix::Result<()> {
    match connect(fd, to) {
        Err(Errno::EINPROGRESS) => {
            wait(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)], deadline)?;
            match getsockopt(fd, sockopt::SocketError)? {
                0 => Ok(()),
                error => Err(Errno::from_raw(error)),
            }
        }
        outcome => outcome,
    }
}

/// Waits until one of the sockets has one of its events.
///
/// # Errors
/// `ETIMEDOUT` at the deadline.
pub fn wait(sockets: &mut [PollFd<'_>], deadline: Instant) -> nix::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(sockets, timeout) {
            Ok(0) if left.is_zero() => return Err(Errno::ETIMEDOUT),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

/// Waits until there is something to read or accept.
///
/// # Errors
/// `ETIMEDOUT` at the deadline.
pub fn wait_readable(socket: &impl AsFd, deadline: Instant) -> nix::Result<()> {
    wait(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], deadline)
}

/// The original destination of an accepted connection; `None` when conntrack does not know it. `like`: an address of
/// the connection's family.
pub fn original_destination(stream: &impl AsFd, like: SocketAddr) -> Option<SocketAddr> {
    if like.is_ipv4() {
        let address = getsockopt(stream, sockopt::OriginalDst).ok()?;
        Some(SocketAddrV4::from(SockaddrIn::from(address)).into())
    } else {
        let address = getsockopt(stream, sockopt::Ip6tOriginalDst).ok()?;
        let address = SocketAddrV6::from(SockaddrIn6::from(address));
        // Flow label and scope are not part of the client's destination.
        Some(SocketAddr::new((*address.ip()).into(), address.port()))
    }
}

/// The thread may not create sockets of this owner.
#[derive(Debug, thiserror::Error)]
#[error("cannot create sockets owned by uid {} gid {}", .owner.uid, .owner.gid)]
pub struct IdentityError {
    /// The desired owner.
    pub owner: Owner,
}

impl Hint for IdentityError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let hint = format!(
            "in a user namespace these ids must be mapped: {} maps a whole range (package uidmap, /etc/subuid, /etc/subgid)",
            crate::kernel::netns::UNPRIVILEGED
        );
        Some(hint.into())
    }
}

/// Makes the calling thread, and no other, create sockets as this user and group for the rest of its life.
///
/// `meta skuid` compares `file->f_cred->fsuid` of the socket (net/netfilter/nft_meta.c,
/// `nft_meta_get_eval_skugid`, v6.18), and those credentials are a copy of the thread's at
/// `socket(2)` or `accept(2)`. The file system ids of a thread can be changed alone, and going from
/// 0 to another one keeps `CAP_NET_ADMIN` and `CAP_NET_BIND_SERVICE` (capabilities(7)).
///
/// # Errors
/// When the thread may not take these ids.
pub fn act_as(owner: Owner) -> Result<(), IdentityError> {
    setfsgid(Gid::from_raw(owner.gid));
    setfsuid(Uid::from_raw(owner.uid));
    // Both calls return the previous id whether they worked or not; an invalid id changes nothing.
    let uid = setfsuid(Uid::from_raw(u32::MAX));
    let gid = setfsgid(Gid::from_raw(u32::MAX));
    let current = Owner { uid: uid.as_raw(), gid: gid.as_raw() };
    if current == owner { Ok(()) } else { Err(IdentityError { owner }) }
}
