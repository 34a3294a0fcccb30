//! A client: makes one connection from a namespace as a user, and returns its outcome.

use super::namespace::{Namespace, NamespaceError};
use super::outcome::ConnectionOutcome;
use gybe_netfilter::kernel::sockets::{self, IdentityError, act_as};
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::ruleset::Transport;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send, setsockopt, sockopt};
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

/// How long a client waits while the neighbour table is full: the kernel removes the entries of a namespace that ends.
const ROOM_WITHIN: Duration = Duration::from_secs(2);
/// The time between two attempts: the kernel sends no event when the table has room.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(20);

/// A client of one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// The owner of its socket.
    pub owner: Owner,
    pub transport: Transport,
    pub to: SocketAddr,
    pub source: SourceOptions,
}

/// The client's side of the connection. The kernel chooses what is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceOptions {
    pub address: Option<IpAddr>,
    pub port: Option<u16>,
    /// A mark on its packets. The socket is then transparent and may use addresses of other hosts.
    pub mark: Option<u32>,
}

/// Why no connection was attempted. A connection that fails is a [`ConnectionOutcome`], not an error.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot connect from inside a network namespace")]
    Namespace(#[from] NamespaceError),
    #[error("cannot connect as another user")]
    Identity(#[from] IdentityError),
    /// Every listener of `listener` sends a reply that can be parsed.
    #[error("another program than a listener of this test network replied")]
    UnknownReply(#[source] super::outcome::ParseOutcomeError),
}

impl Hint for ClientError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Namespace(error) => error.hint(),
            Self::Identity(error) => error.hint(),
            Self::UnknownReply(_) => None,
        }
    }
}

impl Client {
    /// Connects from `namespace` and waits for a reply until the timeout.
    pub fn connect(
        &self,
        namespace: &Namespace,
        timeout: Duration,
    ) -> Result<ConnectionOutcome, ClientError> {
        namespace.run(|| {
            act_as(self.owner)?;
            match self.reply_with_retries(Instant::now() + timeout) {
                Ok(text) => text.parse().map_err(ClientError::UnknownReply),
                Err(Errno::ETIMEDOUT) => Ok(ConnectionOutcome::Timeout),
                Err(Errno::ECONNREFUSED) => Ok(ConnectionOutcome::Refused),
                Err(errno) => Ok(ConnectionOutcome::Failed(errno)),
            }
        })?
    }

    /// Retries while the neighbour table is full, which serves all namespaces of a kernel and is full at times while
    /// tests create many of them (net/core/neighbour.c, `neigh_alloc`, v6.18). No rule of Gybe causes these errors. EINVAL
    /// is that of a datagram (net/ipv6/ip6_output.c, `ip6_finish_output2`).
    fn reply_with_retries(&self, deadline: Instant) -> nix::Result<String> {
        let until = deadline.min(Instant::now() + ROOM_WITHIN);
        loop {
            let reply = self.reply(deadline);
            let is_full = match reply {
                Err(Errno::EHOSTUNREACH) => true,
                Err(Errno::EINVAL) => self.transport == Transport::Udp && self.to.is_ipv6(),
                _ => false,
            };
            if !is_full || Instant::now() >= until {
                return reply;
            }
            thread::sleep(ATTEMPT_INTERVAL);
        }
    }

    fn reply(&self, deadline: Instant) -> nix::Result<String> {
        let fd = self.open_socket(deadline)?;
        sockets::connect_until(&fd, self.to, deadline)?;
        if self.transport == Transport::Udp {
            send(fd.as_raw_fd(), b"who are you?", MsgFlags::empty())?;
        }
        self.read(&fd, deadline)
    }

    fn open_socket(&self, deadline: Instant) -> nix::Result<OwnedFd> {
        let fd = sockets::open(self.transport, self.to)?;
        let SourceOptions { address, port, mark } = self.source;
        if let Some(mark) = mark {
            setsockopt(&fd, sockopt::IpTransparent, &true)?;
            setsockopt(&fd, sockopt::Mark, &mark)?;
        }
        if address.is_some() || port.is_some() {
            let any =
                if self.to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let source = SocketAddr::new(address.unwrap_or(any), port.unwrap_or(0));
            sockets::bind_until(&fd, source, deadline)?;
        }
        Ok(fd)
    }

    /// Reads one datagram, or a stream up to its end.
    fn read(&self, fd: &OwnedFd, deadline: Instant) -> nix::Result<String> {
        let mut text = Vec::new();
        let mut piece = [0; 512];
        loop {
            sockets::wait_readable(fd, deadline)?;
            let read = recv(fd.as_raw_fd(), &mut piece, MsgFlags::empty())?;
            text.extend(piece.iter().take(read));
            if read == 0 || self.transport == Transport::Udp {
                return Ok(String::from_utf8_lossy(&text).into_owned());
            }
        }
    }
}
