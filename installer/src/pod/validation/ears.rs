//! The proxy's ports, listened on until the proxy itself does, and what arrives there.

use super::call::Call;
use super::{Stray, ValidationError};
use crate::testnet::socket;
use gybe_netfilter::trace::Transport;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Backlog, listen, setsockopt, sockopt};
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Instant;

/// As many addresses as could be had.
#[derive(Debug)]
pub(super) struct Ears(Vec<(SocketAddr, TcpListener)>);

impl Ears {
    /// Listens wherever nobody else does, and says where somebody else does.
    ///
    /// # Errors
    /// When listening fails for another reason.
    pub(super) fn open(addresses: &BTreeSet<SocketAddr>) -> Result<(Self, Vec<SocketAddr>), ValidationError> {
        let (mut ears, mut taken) = (Vec::new(), Vec::new());
        for address in addresses.iter().copied() {
            match open(address) {
                Ok(listener) => ears.push((address, listener)),
                Err(Errno::EADDRINUSE) => taken.push(address),
                Err(source) => return Err(ValidationError::Listen { address, source }),
            }
        }
        Ok((Self(ears), taken))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits until something arrives that `is_ours`, and says where it did; no longer than `until`.
    /// On the way `call` is settled when it ends.
    pub(super) fn hear(
        &self,
        call: &mut Call,
        until: Instant,
        mut is_ours: impl FnMut(Stray) -> bool,
    ) -> nix::Result<Option<SocketAddr>> {
        loop {
            let (ready, settled) = self.wait(call, until)?;
            for (at, ear) in ready {
                // Who has gone again has nothing to say.
                let Ok((stream, from)) = ear.accept() else { continue };
                let meant_for = socket::original_destination(&stream, from);
                if is_ours(Stray { at: *at, from, meant_for }) {
                    return Ok(Some(*at));
                }
            }
            if settled {
                call.settle();
            }
            if Instant::now() >= until {
                return Ok(None);
            }
        }
    }

    /// The ears at which somebody knocks, and whether the call has ended; neither when time is up.
    fn wait(&self, call: &Call, until: Instant) -> nix::Result<(Vec<&(SocketAddr, TcpListener)>, bool)> {
        let ears = self.0.iter().map(|(_, ear)| PollFd::new(ear.as_fd(), PollFlags::POLLIN));
        let pending = call.pending().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLOUT));
        let mut waiting: Vec<PollFd<'_>> = ears.chain(pending).collect();
        let left = until.saturating_duration_since(Instant::now());
        match poll(&mut waiting, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
        let ready = self.0.iter().zip(&waiting).filter(|(_, fd)| is_ready(fd)).map(|(ear, _)| ear);
        Ok((ready.collect(), waiting.get(self.0.len()).is_some_and(is_ready)))
    }
}

fn open(address: SocketAddr) -> nix::Result<TcpListener> {
    let fd = socket::open(Transport::Tcp, address)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    socket::bind(&fd, address)?;
    listen(&fd, Backlog::new(16)?)?;
    Ok(fd.into())
}
