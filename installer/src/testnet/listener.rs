//! Those who answer: sockets of one user in one namespace, served by one thread, that tell every
//! caller who they are and what they see. Who calls is not known here.

use super::identity::{IdentityError, act_as};
use super::namespace::{Namespace, NamespaceError};
use super::outcome::Reply;
use super::socket;
use gybe_netfilter::hint::Hint;
use gybe_netfilter::trace::{Owner, Transport};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{Backlog, listen, setsockopt, sockopt};
use std::borrow::Cow;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

/// How those who answer call themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerName {
    /// By name alone: `ext-peer`, who answers on every port alike.
    Name(&'static str),
    /// By name and the port they listen on: `envoy:15001`.
    NameAndPort(&'static str),
}

/// Which addresses of its namespace a listener answers on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenAddress {
    /// All of them.
    Everywhere,
    /// All of them, and connections to other addresses that are handed to it (`IP_TRANSPARENT`).
    Transparent,
    /// 127.0.0.1 and `::1`.
    Loopback,
}

/// One port somebody listens on, in both families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListeningPort {
    /// TCP or UDP.
    pub transport: Transport,
    /// The port.
    pub port: u16,
    /// Where it is heard.
    pub reach: ListenAddress,
}

/// Why nobody listens.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The namespace cannot be entered.
    #[error("cannot listen inside a network namespace")]
    Namespace(#[from] NamespaceError),
    /// The sockets would be somebody else's.
    #[error("cannot listen as another user")]
    Identity(#[from] IdentityError),
    /// One of the sockets.
    #[error("cannot listen on {transport:?} {address}: {errno}")]
    Socket {
        /// TCP or UDP.
        transport: Transport,
        /// Where.
        address: SocketAddr,
        /// Why not.
        errno: Errno,
    },
    /// No thread, or none that lived long enough to say what is wrong.
    #[error("cannot start a thread to listen with")]
    NoThread(#[source] std::io::Error),
}

impl Hint for ListenError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Namespace(error) => error.hint(),
            Self::Identity(error) => error.hint(),
            Self::Socket { .. } | Self::NoThread(_) => None,
        }
    }
}

/// Listeners at work, until this value goes.
#[derive(Debug)]
pub struct Listeners {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Listeners {
    /// Starts listening in `namespace`, as `owner`; when this returns, every port answers.
    ///
    /// # Errors
    /// When one socket cannot be had; then none is left behind.
    pub fn start(
        namespace: &Arc<Namespace>,
        owner: Owner,
        badge: ServerName,
        services: Vec<ListeningPort>,
    ) -> Result<Self, ListenError> {
        let stop = EventFd::new().map_err(|errno| ListenError::NoThread(errno.into()))?;
        let stop = Arc::new(stop);
        let (ready, started) = mpsc::channel();
        let place = (Arc::clone(namespace), Arc::clone(&stop));
        let thread = thread::Builder::new().name("listeners".into()).spawn(move || {
            let (namespace, stop) = place;
            match open_all(&namespace, owner, &services) {
                Ok(ears) => {
                    drop(namespace);
                    let told = ready.send(Ok(()));
                    if told.is_ok() {
                        serve(&ears, badge, &stop);
                    }
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        });
        let thread = thread.map_err(ListenError::NoThread)?;
        let listeners = Self { stop, thread: Some(thread) };
        match started.recv() {
            Ok(outcome) => outcome.map(|()| listeners),
            Err(gone) => Err(ListenError::NoThread(std::io::Error::other(gone))),
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        // A counter that is full already says "stop".
        let _told = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

enum Ear {
    Connections(TcpListener, u16),
    Datagrams(UdpSocket, u16),
}

fn open_all(
    namespace: &Namespace,
    owner: Owner,
    services: &[ListeningPort],
) -> Result<Vec<Ear>, ListenError> {
    namespace.enter()?;
    act_as(owner)?;
    let both = |service: &ListeningPort| match service.reach {
        ListenAddress::Loopback => [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)],
        _ => [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)],
    };
    let each = services.iter().flat_map(|service| both(service).map(|address| (service, address)));
    each.map(|(service, address)| {
        let address = SocketAddr::new(address, service.port);
        open(service, address).map_err(|errno| ListenError::Socket {
            transport: service.transport,
            address,
            errno,
        })
    })
    .collect()
}

fn open(service: &ListeningPort, address: SocketAddr) -> nix::Result<Ear> {
    let fd = socket::open(service.transport, address)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    if service.reach == ListenAddress::Transparent {
        setsockopt(&fd, sockopt::IpTransparent, &true)?;
    }
    socket::bind(&fd, address)?;
    Ok(match service.transport {
        Transport::Tcp => {
            listen(&fd, Backlog::new(64)?)?;
            Ear::Connections(fd.into(), service.port)
        }
        Transport::Udp => {
            socket::tell_destination(&fd, address)?;
            Ear::Datagrams(fd.into(), service.port)
        }
    })
}

fn serve(ears: &[Ear], badge: ServerName, stop: &EventFd) {
    let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut waiting: Vec<PollFd<'_>> = ears
        .iter()
        .map(|ear| match ear {
            Ear::Connections(listener, _) => watched(listener.as_fd()),
            Ear::Datagrams(socket, _) => watched(socket.as_fd()),
        })
        .chain([watched(stop.as_fd())])
        .collect();
    loop {
        match poll(&mut waiting, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        if waiting.last().and_then(PollFd::any).unwrap_or(true) {
            return;
        }
        for (ear, _) in ears.iter().zip(&waiting).filter(|(_, fd)| fd.any().unwrap_or(true)) {
            // One caller who hangs up early must not cost the others their answer.
            let _told = match ear {
                Ear::Connections(listener, port) => greet(listener, &name(badge, *port)),
                Ear::Datagrams(socket, port) => reply(socket, &name(badge, *port)),
            };
        }
    }
}

fn name(badge: ServerName, port: u16) -> String {
    match badge {
        ServerName::Name(name) => name.to_owned(),
        ServerName::NameAndPort(name) => format!("{name}:{port}"),
    }
}

fn greet(listener: &TcpListener, by: &str) -> std::io::Result<()> {
    let (mut stream, caller) = listener.accept()?;
    let original = socket::original_destination(&stream, caller);
    let answer = Reply { by: by.to_owned(), original, source: caller.ip() };
    stream.write_all(answer.to_string().as_bytes())
}

fn reply(socket: &UdpSocket, by: &str) -> std::io::Result<()> {
    let question = socket::receive(socket)?;
    let answer = Reply { by: by.to_owned(), original: None, source: question.from.ip() };
    socket::answer(socket, &question, answer.to_string().as_bytes())
}
