//! The few things about sockets that the standard library does not say. Nothing waits here.

use gybe_netfilter::trace::Transport;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrIn,
    SockaddrIn6, SockaddrStorage, getsockopt, recvmsg, sendmsg, setsockopt, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// A socket of `like`'s family and of that family only; nothing it does makes the caller wait.
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

/// Where the caller of an accepted connection wanted to go; `None` when conntrack does not know it.
pub(crate) fn original_destination(stream: &impl AsFd, caller: SocketAddr) -> Option<SocketAddr> {
    if caller.is_ipv4() {
        let address = getsockopt(stream, sockopt::OriginalDst).ok()?;
        Some(SocketAddrV4::from(SockaddrIn::from(address)).into())
    } else {
        let address = getsockopt(stream, sockopt::Ip6tOriginalDst).ok()?;
        let address = SocketAddrV6::from(SockaddrIn6::from(address));
        // Neither flow label nor scope is part of what the caller asked for.
        Some(SocketAddr::new((*address.ip()).into(), address.port()))
    }
}

/// From now on, every datagram says which of our addresses it was sent to, and may be answered
/// from there.
pub(super) fn tell_destination(fd: &OwnedFd, like: SocketAddr) -> nix::Result<()> {
    // An address that is ours by a route only may not be a source in IPv6 without it
    // (net/ipv6/datagram.c, ip6_datagram_send_ctl, v6.18).
    setsockopt(fd, sockopt::IpFreebind, &true)?;
    if like.is_ipv4() {
        setsockopt(fd, sockopt::Ipv4PacketInfo, &true)
    } else {
        setsockopt(fd, sockopt::Ipv6RecvPacketInfo, &true)
    }
}

/// A datagram, less what is in it.
pub(super) struct Question {
    pub(super) from: SocketAddr,
    address: SockaddrStorage,
    asked_at: Option<ControlMessageOwned>,
}

pub(super) fn receive(socket: &UdpSocket) -> io::Result<Question> {
    let mut text = [0; 512];
    let mut parts = [IoSliceMut::new(&mut text)];
    // Room for one packet info; the IPv6 one is 20 bytes, the IPv4 one 12.
    let mut control = nix::cmsg_space!([u8; 20]);
    let read =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty())?;
    let nameless = || io::Error::other("a datagram without a sender");
    let address = read.address.ok_or_else(nameless)?;
    let v4 = address.as_sockaddr_in().map(|a| SocketAddr::from(SocketAddrV4::from(*a)));
    let v6 = address.as_sockaddr_in6().map(|a| SocketAddr::from(SocketAddrV6::from(*a)));
    let from = v4.or(v6).ok_or_else(nameless)?;
    Ok(Question { from, address, asked_at: read.cmsgs()?.next() })
}

/// Answers from the address the question was sent to, so that the caller knows the answer is to it.
pub(super) fn answer(socket: &UdpSocket, question: &Question, text: &[u8]) -> io::Result<()> {
    let parts = [IoSlice::new(text)];
    let send = |control: &[ControlMessage<'_>]| {
        sendmsg(socket.as_raw_fd(), &parts, control, MsgFlags::empty(), Some(&question.address))
    };
    match &question.asked_at {
        Some(ControlMessageOwned::Ipv4PacketInfo(asked)) => {
            let mut from = *asked;
            from.ipi_spec_dst = asked.ipi_addr;
            from.ipi_ifindex = 0;
            send(&[ControlMessage::Ipv4PacketInfo(&from)])?
        }
        Some(ControlMessageOwned::Ipv6PacketInfo(asked)) => {
            let mut from = *asked;
            from.ipi6_ifindex = 0;
            send(&[ControlMessage::Ipv6PacketInfo(&from)])?
        }
        _ => send(&[])?,
    };
    Ok(())
}
