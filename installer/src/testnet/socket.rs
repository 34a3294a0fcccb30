//! Socket calls that the standard library does not have. Only `wait` blocks.

use gybe_netfilter::trace::Transport;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrIn,
    SockaddrIn6, SockaddrStorage, getsockopt, recvmsg, sendmsg, setsockopt, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Instant;

/// Opens a non-blocking socket of `like`'s family, and of that family only.
pub(crate) fn open(transport: Transport, like: SocketAddr) -> nix::Result<OwnedFd> {
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

pub(crate) fn bind(fd: &OwnedFd, address: SocketAddr) -> nix::Result<()> {
    nix::sys::socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(address))
}

pub(crate) fn connect(fd: &OwnedFd, address: SocketAddr) -> nix::Result<()> {
    nix::sys::socket::connect(fd.as_raw_fd(), &SockaddrStorage::from(address))
}

/// Waits until the socket has one of these events, or returns `ETIMEDOUT` at the deadline.
pub(super) fn wait(fd: &OwnedFd, events: PollFlags, deadline: Instant) -> nix::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd.as_fd(), events)], timeout) {
            Ok(0) if left.is_zero() => return Err(Errno::ETIMEDOUT),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

/// Returns the original destination of an accepted connection; `None` if conntrack does not know it.
pub(crate) fn original_destination(stream: &impl AsFd, caller: SocketAddr) -> Option<SocketAddr> {
    if caller.is_ipv4() {
        let address = getsockopt(stream, sockopt::OriginalDst).ok()?;
        Some(SocketAddrV4::from(SockaddrIn::from(address)).into())
    } else {
        let address = getsockopt(stream, sockopt::Ip6tOriginalDst).ok()?;
        let address = SocketAddrV6::from(SockaddrIn6::from(address));
        // Flow label and scope are not part of the client's destination.
        Some(SocketAddr::new((*address.ip()).into(), address.port()))
    }
}

/// Makes every received datagram carry the local address it was sent to, so that `reply` can be sent from there.
pub(super) fn enable_packet_info(fd: &OwnedFd, like: SocketAddr) -> nix::Result<()> {
    // IPv6 refuses a source address that is local by a route only, unless the socket has IP_FREEBIND
    // (net/ipv6/datagram.c, ip6_datagram_send_ctl, v6.18).
    setsockopt(fd, sockopt::IpFreebind, &true)?;
    if like.is_ipv4() {
        setsockopt(fd, sockopt::Ipv4PacketInfo, &true)
    } else {
        setsockopt(fd, sockopt::Ipv6RecvPacketInfo, &true)
    }
}

/// The sender and the destination of a received datagram.
pub(super) struct Datagram {
    pub(super) from: SocketAddr,
    address: SockaddrStorage,
    destination: Option<ControlMessageOwned>,
}

pub(super) fn receive(socket: &UdpSocket) -> io::Result<Datagram> {
    let mut text = [0; 512];
    let mut parts = [IoSliceMut::new(&mut text)];
    // The buffer for one packet info: 20 bytes with IPv6, 12 with IPv4.
    let mut control = nix::cmsg_space!([u8; 20]);
    let read =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty())?;
    let no_sender = || io::Error::other("a datagram without a sender");
    let address = read.address.ok_or_else(no_sender)?;
    let v4 = address.as_sockaddr_in().map(|a| SocketAddr::from(SocketAddrV4::from(*a)));
    let v6 = address.as_sockaddr_in6().map(|a| SocketAddr::from(SocketAddrV6::from(*a)));
    let from = v4.or(v6).ok_or_else(no_sender)?;
    Ok(Datagram { from, address, destination: read.cmsgs()?.next() })
}

/// Replies from the address that the datagram was sent to: clients ignore replies from other addresses.
pub(super) fn reply(socket: &UdpSocket, datagram: &Datagram, text: &[u8]) -> io::Result<()> {
    let parts = [IoSlice::new(text)];
    let send = |control: &[ControlMessage<'_>]| {
        sendmsg(socket.as_raw_fd(), &parts, control, MsgFlags::empty(), Some(&datagram.address))
    };
    match &datagram.destination {
        Some(ControlMessageOwned::Ipv4PacketInfo(info)) => {
            let mut from = *info;
            from.ipi_spec_dst = info.ipi_addr;
            from.ipi_ifindex = 0;
            send(&[ControlMessage::Ipv4PacketInfo(&from)])?
        }
        Some(ControlMessageOwned::Ipv6PacketInfo(info)) => {
            let mut from = *info;
            from.ipi6_ifindex = 0;
            send(&[ControlMessage::Ipv6PacketInfo(&from)])?
        }
        _ => send(&[])?,
    };
    Ok(())
}
