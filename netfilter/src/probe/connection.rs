//! The connections of a probe: where they should arrive, and where they do in the namespace of the calling thread, with
//! the original destination that the listener sees.
//!
//! One thread has both ends: the kernel delivers a packet over `lo` before the system call that sent it returns, and
//! no wait is longer than [`TIMEOUT`].

use crate::kernel::sockets::{bind_until, connect_until, open, original_destination, wait, wait_readable};
use crate::model::policy::istio::PROXY_ID;
use crate::model::ruleset::Transport;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{
    Backlog, MsgFlags, SockaddrStorage, listen, recv, recvfrom, send, sendto, setsockopt, sockopt,
};
use nix::unistd::{Uid, setfsuid};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// The longest wait for a connection or a reply, and for an address that is in use.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The ports that a connection may be redirected to. The UDP socket of the agent's resolver is bound to loopback as
/// Istio's is, so that its replies leave from the address at which the query arrived.
const LISTENERS: [u16; 3] = [15001, 15006, RESOLVER];
const RESOLVER: u16 = 15053;
const QUERY: &[u8] = b"query";
const REPLY: &[u8] = b"reply";

/// A connection to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProbeConnection {
    pub(super) transport: Transport,
    pub(super) to: SocketAddr,
    pub(super) by: Sender,
    /// The port at which it should arrive.
    pub(super) port: u16,
}

/// The owner of the connecting socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    /// The user of the probe, as an example of every user but the proxy.
    Application,
    /// The proxy's user.
    Proxy,
    /// The user of the probe, with this packet mark.
    Marked(u32),
}

impl ProbeConnection {
    /// The expected arrival: port and original destination.
    pub(super) fn expected(&self) -> Arrival {
        Arrival::At { port: self.port, original_destination: self.to }
    }
}

impl fmt::Display for ProbeConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = if self.transport == Transport::Tcp { "TCP" } else { "UDP" };
        let by = match self.by {
            Sender::Application => "the application",
            Sender::Proxy => "the proxy",
            Sender::Marked(_) => "a marked socket",
        };
        write!(f, "{transport} to {} by {by}", self.to)
    }
}

/// Where a connection arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A listener accepted it.
    At {
        /// The listener's port.
        port: u16,
        /// The original destination that the listener sees.
        original_destination: SocketAddr,
    },
    /// No listener accepted it.
    Nowhere(Errno),
}

/// The outcome of an attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeAttempt {
    /// The connection was attempted.
    Arrived(Arrival),
    /// This user id is not mapped here, so it cannot have a socket.
    UserNotMapped(u32),
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At { port, original_destination } => {
                write!(f, "on port {port} as meant for {original_destination}")
            }
            Self::Nowhere(errno) => write!(f, "nowhere ({})", errno.desc()),
        }
    }
}

impl Arrival {
    /// The arrival as the predicate of a sentence.
    pub(super) fn predicate(&self) -> String {
        match self {
            Self::At { .. } => format!("arrived {self}"),
            Self::Nowhere(errno) => format!("was not answered: {}", errno.desc()),
        }
    }
}

impl ProbeConnection {
    /// Connects.
    pub(super) fn make(&self) -> ProbeAttempt {
        let made = match self.transport {
            Transport::Tcp => self.connect(),
            Transport::Udp => self.query(),
        };
        match made {
            Ok(Some(arrival)) => ProbeAttempt::Arrived(arrival),
            Ok(None) => ProbeAttempt::UserNotMapped(PROXY_ID),
            Err(errno) => ProbeAttempt::Arrived(Arrival::Nowhere(errno)),
        }
    }

    fn connect(&self) -> nix::Result<Option<Arrival>> {
        let any: IpAddr = match self.to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let transparent = matches!(self.by, Sender::Marked(_));
        let ports = LISTENERS.into_iter().chain([self.to.port()]);
        let listeners = ports.map(|port| listener((any, port).into(), transparent));
        let listeners: Vec<TcpListener> = listeners.collect::<nix::Result<_>>()?;
        let Some(sender) = self.socket()? else { return Ok(None) };
        connect_until(&sender, self.to, deadline())?;
        let taken = listeners.get(first_ready(&listeners)?).ok_or(Errno::EBADF)?;
        let (stream, _) = taken.accept().map_err(|error| errno_of(&error))?;
        let port = taken.local_addr().map_err(|error| errno_of(&error))?.port();
        // Without translation conntrack knows none, and the connection has the local address.
        let local = stream.local_addr().map_err(|error| errno_of(&error))?;
        let original_destination = original_destination(&stream, local).unwrap_or(local);
        Ok(Some(Arrival::At { port, original_destination }))
    }

    /// Sends a query and receives the reply, which conntrack translates back in the zone of the query.
    fn query(&self) -> nix::Result<Option<Arrival>> {
        let resolver = SocketAddr::from((Ipv4Addr::LOCALHOST, RESOLVER));
        // The zone of a reply depends on its socket's owner.
        let Some(resolver_socket) = as_proxy(|| bound_socket(Transport::Udp, resolver)).transpose()? else {
            return Ok(None);
        };
        let receivers =
            [(RESOLVER, resolver_socket), (self.to.port(), bound_socket(Transport::Udp, self.to)?)];
        let Some(sender) = self.socket()? else { return Ok(None) };
        // One source port for all queries, so that two of them share one five-tuple.
        setsockopt(&sender, sockopt::ReuseAddr, &true)?;
        bind_until(&sender, SocketAddr::new(self.to.ip(), RESOLVER + 1), deadline())?;
        connect_until(&sender, self.to, deadline())?;
        send(sender.as_raw_fd(), QUERY, MsgFlags::empty())?;
        let sockets = [&receivers[0].1, &receivers[1].1];
        let (port, receiver) = receivers.get(first_ready(&sockets)?).ok_or(Errno::EBADF)?;
        let mut text = [0; 64];
        let (_, from) = recvfrom::<SockaddrStorage>(receiver.as_raw_fd(), &mut text)?;
        sendto(receiver.as_raw_fd(), REPLY, &from.ok_or(Errno::ENOTCONN)?, MsgFlags::empty())?;
        wait_readable(&sender, deadline())?;
        recv(sender.as_raw_fd(), &mut text, MsgFlags::empty())?;
        Ok(Some(Arrival::At { port: *port, original_destination: self.to }))
    }

    /// Opens its socket; `None` when the user is not mapped.
    fn socket(&self) -> nix::Result<Option<OwnedFd>> {
        match self.by {
            Sender::Application => open(self.transport, self.to).map(Some),
            Sender::Proxy => as_proxy(|| open(self.transport, self.to)).transpose(),
            Sender::Marked(mark) => {
                let fd = open(self.transport, self.to)?;
                setsockopt(&fd, sockopt::Mark, &mark)?;
                Ok(Some(fd))
            }
        }
    }
}

/// Runs `work` as the proxy's user. Rules that match the socket's owner compare the file system user id of the thread
/// that created the socket (`nft_meta_get_eval_skugid`, net/netfilter/nft_meta.c, v6.18). Returns `None` when that id
/// is not mapped here.
fn as_proxy<T>(work: impl FnOnce() -> T) -> Option<T> {
    let before = setfsuid(Uid::from_raw(PROXY_ID));
    // An invalid id changes nothing and returns the current one.
    let is_proxy = setfsuid(Uid::from_raw(u32::MAX)).as_raw() == PROXY_ID;
    let done = is_proxy.then(work);
    setfsuid(before);
    done
}

fn bound_socket(transport: Transport, address: SocketAddr) -> nix::Result<OwnedFd> {
    let fd = open(transport, address)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    bind_until(&fd, address, deadline())?;
    Ok(fd)
}

fn listener(address: SocketAddr, transparent: bool) -> nix::Result<TcpListener> {
    let fd = open(Transport::Tcp, address)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    if transparent {
        setsockopt(&fd, sockopt::IpTransparent, &true)?;
    }
    bind_until(&fd, address, deadline())?;
    listen(&fd, Backlog::new(8)?)?;
    Ok(fd.into())
}

/// The index of the first readable socket.
fn first_ready<F: AsFd>(all: &[F]) -> nix::Result<usize> {
    let mut waiting: Vec<PollFd<'_>> =
        all.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
    wait(&mut waiting, deadline())?;
    waiting.iter().position(|fd| fd.any().unwrap_or(false)).ok_or(Errno::ETIMEDOUT)
}

fn deadline() -> Instant {
    Instant::now() + TIMEOUT
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::sockets::{BIND_INTERVAL, bind};
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn a_listener_waits_for_an_address_that_is_still_in_use() {
        let earlier = listener((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
        let address = earlier.local_addr().unwrap();
        let fd = open(Transport::Tcp, address).unwrap();
        setsockopt(&fd, sockopt::ReuseAddr, &true).unwrap();
        assert_eq!(bind(&fd, address), Err(Errno::EADDRINUSE));
        let (starts, started) = channel();
        let later = thread::spawn(move || {
            starts.send(()).unwrap();
            listener(address, false).and_then(|it| it.local_addr().map_err(|error| errno_of(&error)))
        });
        started.recv().unwrap();
        // Long enough for several attempts; the thread can only end once the address is free.
        thread::sleep(20 * BIND_INTERVAL);
        assert!(!later.is_finished());
        drop(earlier);
        assert_eq!(later.join().unwrap(), Ok(address));
    }
}
