//! The sockets of a validation: the test connection, and listeners on the proxy's ports.

use super::{ArrivedConnection, ValidationError};
use gybe_netfilter::kernel::sockets;
use gybe_netfilter::model::ruleset::Transport;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Backlog, getsockopt, listen, setsockopt, sockopt};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// How a connection attempt ended, as its client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AttemptEnd {
    Accepted,
    Refused,
    /// No packet came back.
    Unanswered,
    /// With another error, when it started or after that; its number.
    Failed(i32),
}

/// A connection attempt to an address without a listener. Its socket stays open until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectAttempt {
    fd: Option<OwnedFd>,
    end: Option<AttemptEnd>,
}

impl ConnectAttempt {
    /// Starts an attempt and does not wait for its end.
    pub(super) fn start(source: IpAddr, target: SocketAddr) -> Self {
        let connect = || {
            let fd = sockets::open(Transport::Tcp, target)?;
            sockets::bind(&fd, SocketAddr::new(source, 0))?;
            Ok((sockets::connect(&fd, target), fd))
        };
        match connect() {
            Ok((Err(Errno::EINPROGRESS), fd)) => Self { fd: Some(fd), end: None },
            Ok((result, fd)) => Self { fd: Some(fd), end: Some(AttemptEnd::of(result)) },
            Err(errno) => Self { fd: None, end: Some(AttemptEnd::of(Err(errno))) },
        }
    }

    /// The socket to poll while the attempt has not ended.
    fn pending(&self) -> Option<&OwnedFd> {
        self.fd.as_ref().filter(|_| self.end.is_none())
    }

    /// Reads from the kernel how the attempt ended.
    fn finish(&mut self) {
        if let Some(fd) = self.pending() {
            let result = match getsockopt(fd, sockopt::SocketError) {
                Ok(0) => Ok(()),
                Ok(error) => Err(Errno::from_raw(error)),
                Err(errno) => Err(errno),
            };
            self.end = Some(AttemptEnd::of(result));
        }
    }

    /// Returns how it ended. An attempt that has not ended counts as unanswered.
    pub(super) fn end(&self) -> AttemptEnd {
        self.end.unwrap_or(AttemptEnd::Unanswered)
    }
}

impl AttemptEnd {
    fn of(result: nix::Result<()>) -> Self {
        match result {
            Ok(()) => Self::Accepted,
            Err(Errno::ECONNREFUSED | Errno::ECONNRESET) => Self::Refused,
            Err(Errno::ETIMEDOUT) => Self::Unanswered,
            Err(errno) => Self::Failed(errno as i32),
        }
    }
}

/// Listeners on those of the proxy's addresses that no other process listens on.
#[derive(Debug)]
pub(super) struct ProxyListeners(Vec<(SocketAddr, TcpListener)>);

impl ProxyListeners {
    /// Listens on all free addresses and returns those on which other processes listen.
    ///
    /// # Errors
    /// When listening fails for another reason.
    pub(super) fn open(addresses: &BTreeSet<SocketAddr>) -> Result<(Self, Vec<SocketAddr>), ValidationError> {
        let (mut listeners, mut taken) = (Vec::new(), Vec::new());
        for address in addresses.iter().copied() {
            match listen_on(address) {
                Ok(listener) => listeners.push((address, listener)),
                Err(Errno::EADDRINUSE) => taken.push(address),
                Err(source) => return Err(ValidationError::Listen { address, source }),
            }
        }
        Ok((Self(listeners), taken))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits until `deadline` for a connection for which `is_ours` is true, and returns where it arrived. Meanwhile
    /// records how `attempt` ends.
    pub(super) fn wait_for(
        &self,
        attempt: &mut ConnectAttempt,
        deadline: Instant,
        mut is_ours: impl FnMut(ArrivedConnection) -> bool,
    ) -> nix::Result<Option<SocketAddr>> {
        loop {
            let Ready { listeners, has_ended } = self.wait_until_ready(attempt, deadline)?;
            for (at, listener) in listeners {
                // The client may have closed the connection before it was accepted.
                let Ok((stream, from)) = listener.accept() else { continue };
                let meant_for = sockets::original_destination(&stream, from);
                if is_ours(ArrivedConnection { at: *at, from, meant_for }) {
                    return Ok(Some(*at));
                }
            }
            if has_ended {
                attempt.finish();
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
        }
    }

    fn wait_until_ready(&self, attempt: &ConnectAttempt, deadline: Instant) -> nix::Result<Ready<'_>> {
        let listeners = self.0.iter().map(|(_, socket)| PollFd::new(socket.as_fd(), PollFlags::POLLIN));
        let pending = attempt.pending().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLOUT));
        let mut polled: Vec<PollFd<'_>> = listeners.chain(pending).collect();
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut polled, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
        let listeners = self.0.iter().zip(&polled).filter(|(_, fd)| is_ready(fd)).map(|(one, _)| one);
        Ok(Ready {
            listeners: listeners.collect(),
            has_ended: polled.get(self.0.len()).is_some_and(is_ready),
        })
    }
}

/// The result of poll(2): empty when the deadline has passed.
struct Ready<'a> {
    listeners: Vec<&'a (SocketAddr, TcpListener)>,
    has_ended: bool,
}

fn listen_on(address: SocketAddr) -> nix::Result<TcpListener> {
    let fd = sockets::open(Transport::Tcp, address)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    sockets::bind(&fd, address)?;
    listen(&fd, Backlog::new(16)?)?;
    Ok(fd.into())
}
