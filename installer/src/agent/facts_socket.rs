//! The socket at which the plugin asks about pods: who is let in, and in which order. What is said there
//! is in `gybe_plugin`'s `facts::wire`; who knows the pods is behind `node::Pods`.
//!
//! One thread hears all callers, and answers at once what is known, which is nearly every question: a
//! thread for each caller costs more than its answer. What has to be waited for is in `waiting`. Whoever
//! says nothing costs a place among those who are about to speak, and loses it to others.

mod caller;
mod desk;
mod waiting;

use crate::agent::agent_status::AgentStatus;
use crate::agent::{LOOK, PlaceError, Pods, Socket, UnsupportedPolicy};
use crate::log::Journal;
use caller::Caller;
use desk::Desk;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{SockType, getsockopt, sockopt};
use nix::unistd::geteuid;
use serde_json::json;
use std::collections::VecDeque;
use std::io;
use std::iter;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use waiting::Waiting;

/// So many may be about to speak; for one more, whoever has been silent for longest is hung up on. The
/// plugin speaks as soon as it is connected, and a node has 110 pods, or some hundreds.
const SPEAKERS: usize = 256;

/// At the end those are heard who are there: as many as a backlog holds (net.core.somaxconn).
const BACKLOG: usize = 4096;

/// How long no connection is accepted after one could not be: without a free file descriptor the listener stays
/// readable, and the loop would spin.
const PAUSE: Duration = Duration::from_millis(100);

/// The socket, listening.
#[derive(Debug)]
pub(crate) struct FactsSocket {
    socket: Socket<UnixListener>,
    us: u32,
    /// Until when no connection is accepted.
    paused_until: Option<Instant>,
}

/// For what something came.
struct Woken {
    stop: bool,
    caller: bool,
    speakers: Vec<bool>,
    nobody: bool,
}

impl FactsSocket {
    pub(crate) fn open(path: &Path) -> Result<Self, PlaceError> {
        Ok(Self { socket: Socket::open(path, SockType::Stream)?, us: geteuid().as_raw(), paused_until: None })
    }

    /// Answers callers until `stop` is readable. Who has spoken by then, and who waits for a pod, is still
    /// answered; none of them waits longer than it said.
    pub(crate) fn serve(
        &mut self,
        stop: BorrowedFd<'_>,
        (pods, status): (&dyn Pods, &(dyn Fn() -> AgentStatus + Sync)),
        (journal, unserved): (&Journal, &UnsupportedPolicy),
    ) -> Result<(), Errno> {
        let (waiting, mut speakers) = (Waiting::default(), VecDeque::new());
        thread::scope(|scope| {
            let desk = Desk { pods, status, journal, waiting: &waiting, scope };
            loop {
                let woken = self.wait(stop, &speakers)?;
                let spoken = speakers.drain(..).zip(woken.speakers);
                let still =
                    spoken.filter_map(|(caller, spoke)| if spoke { desk.hear(caller) } else { Some(caller) });
                speakers = still.filter(Caller::has_time).collect();
                let most = if woken.stop { BACKLOG } else { usize::from(woken.caller) };
                let came: Vec<_> = iter::from_fn(|| self.accept()).take(most).collect();
                let let_in = came.into_iter().filter_map(|caller| self.let_in(caller, journal));
                speakers.extend(let_in.filter_map(|caller| desk.hear(caller)));
                speakers.drain(..speakers.len().saturating_sub(SPEAKERS));
                if woken.stop {
                    return Ok(());
                }
                if woken.nobody {
                    self.socket.keep(unserved, journal);
                }
            }
        })
    }

    /// Waits until somebody comes, speaks, or has been silent for too long.
    fn wait(&self, stop: BorrowedFd<'_>, speakers: &VecDeque<Caller>) -> Result<Woken, Errno> {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let pause = self.paused_until.map(|until| until.saturating_duration_since(Instant::now()));
        let pause = pause.filter(|pause| !pause.is_zero());
        let events = if pause.is_some() { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut fds = vec![readable(stop), PollFd::new(self.socket.as_fd(), events)];
        fds.extend(speakers.iter().map(|caller| readable(caller.as_fd())));
        // All have the same time, so the first who came is the first whose time is up; poll(2) counts
        // whole milliseconds.
        let left = speakers.front().map_or(LOOK, |first| first.left() + Duration::from_millis(1));
        let left = left.min(pause.unwrap_or(LOOK)).min(LOOK);
        let nobody = match poll(&mut fds, PollTimeout::try_from(left).map_err(|_| Errno::EINVAL)?) {
            Err(Errno::EINTR) => false,
            came => came? == 0 && pause.is_none(),
        };
        let mut came = fds.iter().map(|fd| fd.any().unwrap_or(false));
        let [stop, caller] = [came.next(), came.next()].map(Option::unwrap_or_default);
        Ok(Woken { stop, caller, speakers: came.collect(), nobody })
    }

    fn accept(&mut self) -> Option<UnixStream> {
        match self.socket.open.accept() {
            Ok((caller, _)) => Some(caller),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => None,
            Err(_) => {
                self.paused_until = Some(Instant::now() + PAUSE);
                None
            }
        }
    }

    /// Only root, or the user we are, is told about pods.
    fn let_in(&self, caller: UnixStream, journal: &Journal) -> Option<Caller> {
        match getsockopt(&caller, sockopt::PeerCredentials).map(|peer| peer.uid()) {
            Ok(uid) if uid == 0 || uid == self.us => Some(Caller::new(caller, Instant::now())),
            Ok(uid) => {
                journal.tell("warn", "gybe node: a caller was refused", json!({ "uid": uid }));
                None
            }
            Err(_) => None,
        }
    }
}
