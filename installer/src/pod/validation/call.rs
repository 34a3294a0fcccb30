//! One call to where nobody listens, begun without waiting, and how it ended.

use crate::testnet::socket;
use gybe_netfilter::trace::Transport;
use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// How a call ended, as its caller sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CallEnd {
    /// Somebody took it.
    Answered,
    /// It was turned down.
    Refused,
    /// Nothing came back.
    Unanswered,
    /// The kernel would not begin it; the number says why.
    Failed(i32),
}

/// A call under way, or over. Its socket stays open until it is dropped.
#[derive(Debug)]
pub(super) struct Call {
    fd: Option<OwnedFd>,
    end: Option<CallEnd>,
}

impl Call {
    /// Begins it.
    pub(super) fn begin(source: IpAddr, target: SocketAddr) -> Self {
        let begin = || {
            let fd = socket::open(Transport::Tcp, target)?;
            socket::bind(&fd, SocketAddr::new(source, 0))?;
            Ok((socket::connect(&fd, target), fd))
        };
        match begin() {
            Ok((Err(Errno::EINPROGRESS), fd)) => Self { fd: Some(fd), end: None },
            Ok((outcome, fd)) => Self { fd: Some(fd), end: Some(CallEnd::of(outcome)) },
            Err(errno) => Self { fd: None, end: Some(CallEnd::of(Err(errno))) },
        }
    }

    /// The socket to wait for, while nothing is decided.
    pub(super) fn pending(&self) -> Option<&OwnedFd> {
        self.fd.as_ref().filter(|_| self.end.is_none())
    }

    /// Takes note of what the kernel says about it by now.
    pub(super) fn settle(&mut self) {
        if let Some(fd) = self.pending() {
            let outcome = match getsockopt(fd, sockopt::SocketError) {
                Ok(0) => Ok(()),
                Ok(error) => Err(Errno::from_raw(error)),
                Err(errno) => Err(errno),
            };
            self.end = Some(CallEnd::of(outcome));
        }
    }

    /// How it ended; what has not ended by now is unanswered.
    pub(super) fn end(&self) -> CallEnd {
        self.end.unwrap_or(CallEnd::Unanswered)
    }
}

impl CallEnd {
    fn of(outcome: nix::Result<()>) -> Self {
        match outcome {
            Ok(()) => Self::Answered,
            Err(Errno::ECONNREFUSED | Errno::ECONNRESET) => Self::Refused,
            Err(Errno::ETIMEDOUT) => Self::Unanswered,
            Err(errno) => Self::Failed(errno as i32),
        }
    }
}
