//! UDP sockets that reply from the address at which a datagram arrived.

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

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
