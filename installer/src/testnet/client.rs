//! Those who call: one connection, from one namespace, by one user, and what became of it.

use super::identity::{IdentityError, act_as};
use super::namespace::{Namespace, NamespaceError};
use super::outcome::ConnectionOutcome;
use super::socket;
use gybe_netfilter::hint::Hint;
use gybe_netfilter::trace::{Owner, Transport};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, getsockopt, recv, send, setsockopt, sockopt};
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How often a neighbour is looked for.
const ATTEMPTS: usize = 3;

/// A connection to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Who makes it.
    pub owner: Owner,
    /// TCP or UDP.
    pub transport: Transport,
    /// Where to.
    pub to: SocketAddr,
    /// What it looks like on its way.
    pub disguise: SourceOptions,
}

/// What a caller may choose about its own side of the connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceOptions {
    /// The address it comes from; the kernel's choice otherwise.
    pub source: Option<IpAddr>,
    /// The port it comes from, likewise.
    pub source_port: Option<u16>,
    /// A mark on its packets; its socket is then transparent, and may use foreign addresses.
    pub mark: Option<u32>,
}

/// Why a call could not be made at all. A connection that fails is not an error but a [`ConnectionOutcome`].
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The namespace cannot be entered.
    #[error("cannot call from inside a network namespace")]
    Namespace(#[from] NamespaceError),
    /// The socket would be somebody else's.
    #[error("cannot call as another user")]
    Identity(#[from] IdentityError),
    /// What came back is not what a listener of ours says.
    #[error("somebody answered who is none of ours")]
    Stranger(#[source] super::outcome::ParseOutcomeError),
}

impl Hint for ClientError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Namespace(error) => error.hint(),
            Self::Identity(error) => error.hint(),
            Self::Stranger(_) => None,
        }
    }
}

impl Client {
    /// Makes the connection from `namespace` and waits for its fate, no longer than `patience`.
    ///
    /// # Errors
    /// When the call could not be made as wanted, whatever its fate would have been.
    pub fn make(&self, namespace: &Namespace, patience: Duration) -> Result<ConnectionOutcome, ClientError> {
        namespace.run(|| {
            act_as(self.owner)?;
            match self.answer_of_neighbours(Instant::now() + patience) {
                Ok(text) => text.parse().map_err(ClientError::Stranger),
                Err(Errno::ETIMEDOUT) => Ok(ConnectionOutcome::Timeout),
                Err(Errno::ECONNREFUSED) => Ok(ConnectionOutcome::Refused),
                Err(errno) => Ok(ConnectionOutcome::Failed(errno)),
            }
        })?
    }

    /// A table of neighbours serves all namespaces of a kernel, and is full now and then on one that
    /// makes many (net/core/neighbour.c, `neigh_alloc`, v6.18). No rule of ours answers in that way.
    fn answer_of_neighbours(&self, deadline: Instant) -> nix::Result<String> {
        let mut answer = self.answer(deadline);
        for _ in 1..ATTEMPTS {
            if answer != Err(Errno::EHOSTUNREACH) {
                break;
            }
            answer = self.answer(deadline);
        }
        answer
    }

    fn answer(&self, deadline: Instant) -> nix::Result<String> {
        let fd = self.dressed_socket()?;
        match socket::connect(&fd, self.to) {
            Err(Errno::EINPROGRESS) => {
                wait(&fd, PollFlags::POLLOUT, deadline)?;
                match getsockopt(&fd, sockopt::SocketError)? {
                    0 => {}
                    error => return Err(Errno::from_raw(error)),
                }
            }
            other => other?,
        }
        if self.transport == Transport::Udp {
            send(fd.as_raw_fd(), b"who are you?", MsgFlags::empty())?;
        }
        self.read(&fd, deadline)
    }

    fn dressed_socket(&self) -> nix::Result<OwnedFd> {
        let fd = socket::open(self.transport, self.to)?;
        let SourceOptions { source, source_port, mark } = self.disguise;
        if let Some(mark) = mark {
            setsockopt(&fd, sockopt::IpTransparent, &true)?;
            setsockopt(&fd, sockopt::Mark, &mark)?;
        }
        if source.is_some() || source_port.is_some() {
            let any =
                if self.to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            socket::bind(&fd, SocketAddr::new(source.unwrap_or(any), source_port.unwrap_or(0)))?;
        }
        Ok(fd)
    }

    /// One datagram, or everything until the other side hangs up.
    fn read(&self, fd: &OwnedFd, deadline: Instant) -> nix::Result<String> {
        let mut text = Vec::new();
        let mut piece = [0; 512];
        loop {
            wait(fd, PollFlags::POLLIN, deadline)?;
            let read = recv(fd.as_raw_fd(), &mut piece, MsgFlags::empty())?;
            text.extend(piece.iter().take(read));
            if read == 0 || self.transport == Transport::Udp {
                return Ok(String::from_utf8_lossy(&text).into_owned());
            }
        }
    }
}

fn wait(fd: &OwnedFd, what: PollFlags, deadline: Instant) -> nix::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd.as_fd(), what)], timeout) {
            Ok(0) if left.is_zero() => return Err(Errno::ETIMEDOUT),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}
