//! Listeners: sockets of one user in one namespace, served by one thread. Each replies to every client with its own
//! name and what it sees of the connection.

use super::namespace::{Namespace, NamespaceError};
use super::outcome::Reply;
use gybe_netfilter::kernel::sockets::{self, IdentityError, act_as};
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::ruleset::Transport;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{
    Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, listen, recvmsg, sendmsg,
    setsockopt, sockopt,
};
use std::borrow::Cow;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a listener waits for its port: a child of another thread has a former listener's socket until its execve(2).
const FREE_WITHIN: Duration = Duration::from_secs(5);

/// The name in a listener's replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerName {
    /// The name alone: `ext-peer`.
    Name(&'static str),
    /// The name and the port: `envoy:15001`.
    NameAndPort(&'static str),
}

/// The addresses of its namespace that a listener accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenAddress {
    Any,
    /// All, and connections to other addresses that a TPROXY rule assigns to it (`IP_TRANSPARENT`).
    Transparent,
    /// 127.0.0.1 and `::1`.
    Loopback,
}

/// A port to listen on, in both families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListeningPort {
    pub transport: Transport,
    pub port: u16,
    pub address: ListenAddress,
}

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("cannot listen inside a network namespace")]
    Namespace(#[from] NamespaceError),
    #[error("cannot listen as another user")]
    Identity(#[from] IdentityError),
    #[error("cannot listen on {transport:?} {address}: {errno}")]
    Socket { transport: Transport, address: SocketAddr, errno: Errno },
    /// The thread could not be started, or ended before it reported an error.
    #[error("cannot start a thread for listeners")]
    Thread(#[source] io::Error),
}

impl Hint for ListenError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Namespace(error) => error.hint(),
            Self::Identity(error) => error.hint(),
            Self::Socket { .. } | Self::Thread(_) => None,
        }
    }
}

/// Running listeners; they stop when this value is dropped.
#[derive(Debug)]
pub struct Listeners {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Listeners {
    /// Starts listening in `namespace` as `owner`, and returns when every port accepts. After an error no socket is
    /// left.
    pub fn start(
        namespace: &Arc<Namespace>,
        owner: Owner,
        name: ServerName,
        ports: Vec<ListeningPort>,
    ) -> Result<Self, ListenError> {
        Self::start_marked(namespace, owner, 0, name, ports)
    }

    /// [`Listeners::start`], with a mark (`SO_MARK`) on the packets of the sockets and of the connections they accept.
    pub fn start_marked(
        namespace: &Arc<Namespace>,
        owner: Owner,
        mark: u32,
        name: ServerName,
        ports: Vec<ListeningPort>,
    ) -> Result<Self, ListenError> {
        let stop = EventFd::new().map_err(|errno| ListenError::Thread(errno.into()))?;
        let stop = Arc::new(stop);
        let (ready, started) = mpsc::channel();
        let (namespace, stop_of_thread) = (Arc::clone(namespace), Arc::clone(&stop));
        let thread = thread::Builder::new().name("listeners".into()).spawn(move || {
            match open_all(&namespace, owner, mark, &ports) {
                Ok(sockets) => {
                    drop(namespace);
                    if ready.send(Ok(())).is_ok() {
                        serve(&sockets, name, &stop_of_thread);
                    }
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        });
        let thread = thread.map_err(ListenError::Thread)?;
        let listeners = Self { stop, thread: Some(thread) };
        match started.recv() {
            Ok(outcome) => outcome.map(|()| listeners),
            Err(gone) => Err(ListenError::Thread(io::Error::other(gone))),
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        // A full counter has been written before, so the thread stops anyway.
        let _written = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

enum ListeningSocket {
    Tcp { socket: TcpListener, port: u16 },
    Udp { socket: UdpSocket, port: u16 },
}

fn open_all(
    namespace: &Namespace,
    owner: Owner,
    mark: u32,
    ports: &[ListeningPort],
) -> Result<Vec<ListeningSocket>, ListenError> {
    namespace.enter()?;
    act_as(owner)?;
    let both_families = |port: &ListeningPort| match port.address {
        ListenAddress::Loopback => [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)],
        _ => [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)],
    };
    let each = ports.iter().flat_map(|port| both_families(port).map(|address| (port, address)));
    let opened = each.map(|(port, address)| {
        let address = SocketAddr::new(address, port.port);
        match open(port, address, mark) {
            // A kernel without IPv6, or a namespace without ::1 (disable_ipv6): no client has it either.
            Err(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL) if address.is_ipv6() => Ok(None),
            opened => opened.map(Some).map_err(|errno| ListenError::Socket {
                transport: port.transport,
                address,
                errno,
            }),
        }
    });
    opened.filter_map(Result::transpose).collect()
}

fn open(listening: &ListeningPort, address: SocketAddr, mark: u32) -> nix::Result<ListeningSocket> {
    let fd = sockets::open(listening.transport, address)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    if listening.address == ListenAddress::Transparent {
        setsockopt(&fd, sockopt::IpTransparent, &true)?;
    }
    if mark != 0 {
        setsockopt(&fd, sockopt::Mark, &mark)?;
    }
    sockets::bind_until(&fd, address, Instant::now() + FREE_WITHIN)?;
    let port = listening.port;
    Ok(match listening.transport {
        Transport::Tcp => {
            listen(&fd, Backlog::new(64)?)?;
            ListeningSocket::Tcp { socket: fd.into(), port }
        }
        Transport::Udp => {
            enable_packet_info(&fd, address)?;
            ListeningSocket::Udp { socket: fd.into(), port }
        }
    })
}

fn serve(sockets: &[ListeningSocket], name: ServerName, stop: &EventFd) {
    let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut polled: Vec<PollFd<'_>> = sockets
        .iter()
        .map(|socket| match socket {
            ListeningSocket::Tcp { socket, .. } => readable(socket.as_fd()),
            ListeningSocket::Udp { socket, .. } => readable(socket.as_fd()),
        })
        .chain([readable(stop.as_fd())])
        .collect();
    loop {
        match poll(&mut polled, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        if polled.last().and_then(PollFd::any).unwrap_or(true) {
            return;
        }
        for (socket, _) in sockets.iter().zip(&polled).filter(|(_, fd)| fd.any().unwrap_or(true)) {
            // An error is one client's, which may have closed its connection; the others are served.
            let _replied = match socket {
                ListeningSocket::Tcp { socket, port } => reply_on_stream(socket, name.with_port(*port)),
                ListeningSocket::Udp { socket, port } => reply_to_datagram(socket, name.with_port(*port)),
            };
        }
    }
}

impl ServerName {
    fn with_port(self, port: u16) -> String {
        match self {
            Self::Name(name) => name.to_owned(),
            Self::NameAndPort(name) => format!("{name}:{port}"),
        }
    }
}

fn reply_on_stream(listener: &TcpListener, by: String) -> io::Result<()> {
    let (mut stream, client) = listener.accept()?;
    let original = sockets::original_destination(&stream, client);
    let reply = Reply { by, original, source: client.ip() };
    stream.write_all(reply.to_string().as_bytes())
}

fn reply_to_datagram(socket: &UdpSocket, by: String) -> io::Result<()> {
    let datagram = receive(socket)?;
    let reply = Reply { by, original: None, source: datagram.from.ip() };
    send_from(socket, &datagram, reply.to_string().as_bytes())
}

/// Makes every received datagram carry the local address it was sent to, so that a reply can be sent from there.
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
pub(super) fn send_from(socket: &UdpSocket, datagram: &Datagram, text: &[u8]) -> io::Result<()> {
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
