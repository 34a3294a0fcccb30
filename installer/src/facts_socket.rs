//! The socket at which the plugin asks about pods: who is let in, and in which order. What is said there
//! is in `gybe_plugin`'s `facts::wire`; who knows the pods is behind `node::Pods`.
//!
//! One thread hears all callers, and answers at once what is known, which is nearly every question: a
//! thread for each caller costs more than its answer. What has to be waited for is in `waiting`. Whoever
//! says nothing costs a place among those who are about to speak, and loses it to others.

mod caller;
mod desk;
mod waiting;

use crate::node::{Journal, Place, PlaceError, Pods};
use caller::Caller;
use desk::Desk;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Backlog, SockType, getsockopt, listen, sockopt};
use nix::unistd::geteuid;
use serde_json::json;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use waiting::Waiting;

/// So many may be about to speak; for one more, whoever has been silent for longest is hung up on. The
/// plugin speaks as soon as it is connected, and a node has 110 pods, or some hundreds.
const SPEAKERS: usize = 256;

/// How often it is asked whether all is well, at least.
const LOOK: Duration = Duration::from_secs(1);

/// The socket, listening.
#[derive(Debug)]
pub(crate) struct FactsSocket {
    socket: UnixListener,
    us: u32,
    place: Place,
}

/// Why nobody is answered any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Told to stop.
    Stopped,
    /// Something is not well.
    Unwell,
}

/// For what something came.
struct Woken {
    stop: bool,
    caller: bool,
    speakers: Vec<bool>,
}

impl FactsSocket {
    pub(crate) fn open(path: &Path) -> Result<Self, PlaceError> {
        // 110 pods may start at once; the kernel bounds this by net.core.somaxconn.
        let (place, socket) = Place::take(path, SockType::Stream, |socket| listen(socket, Backlog::MAXCONN))?;
        Ok(Self { socket: socket.into(), us: geteuid().as_raw(), place })
    }

    /// Whether who asks there is answered.
    pub(crate) fn stands(&self) -> bool {
        self.place.stands()
    }

    /// Answers callers until `stop` is readable, or until all is not `well`, which is asked every second
    /// at least; those who wait for a pod then are still answered, and none of them waits longer than it
    /// said.
    pub(crate) fn serve(
        &self,
        (stop, well): (BorrowedFd<'_>, &dyn Fn() -> bool),
        pods: &dyn Pods,
        journal: &Journal,
    ) -> Result<Ended, Errno> {
        let (waiting, mut speakers) = (Waiting::default(), VecDeque::new());
        thread::scope(|scope| {
            let desk = Desk { pods, journal, waiting: &waiting, scope };
            loop {
                let woken = self.wait(stop, &speakers)?;
                if woken.stop {
                    return Ok(Ended::Stopped);
                }
                if !well() {
                    return Ok(Ended::Unwell);
                }
                let spoken = speakers.drain(..).zip(woken.speakers);
                let still =
                    spoken.filter_map(|(caller, spoke)| if spoke { desk.hear(caller) } else { Some(caller) });
                speakers = still.filter(Caller::has_time).collect();
                if woken.caller
                    && let Some(caller) = self.accept(journal).and_then(|caller| desk.hear(caller))
                {
                    speakers.push_back(caller);
                    speakers.drain(..speakers.len().saturating_sub(SPEAKERS));
                }
            }
        })
    }

    /// Waits until somebody comes, speaks, or has been silent for too long.
    fn wait(&self, stop: BorrowedFd<'_>, speakers: &VecDeque<Caller>) -> Result<Woken, Errno> {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![readable(stop), readable(self.socket.as_fd())];
        fds.extend(speakers.iter().map(|caller| readable(caller.as_fd())));
        // All have the same time, so the first who came is the first whose time is up.
        let timeout = speakers.front().map_or(LOOK, |first| first.left().min(LOOK));
        match poll(&mut fds, PollTimeout::try_from(timeout).map_err(|_| Errno::EINVAL)?) {
            Ok(_) => {
                let mut came = fds.iter().map(|fd| fd.any().unwrap_or(false));
                let [stop, caller] = [came.next(), came.next()].map(Option::unwrap_or_default);
                Ok(Woken { stop, caller, speakers: came.collect() })
            }
            Err(Errno::EINTR) => {
                Ok(Woken { stop: false, caller: false, speakers: vec![false; speakers.len()] })
            }
            Err(why) => Err(why),
        }
    }

    /// Takes the next caller. Only root, or the user we are, is told about pods.
    fn accept(&self, journal: &Journal) -> Option<Caller> {
        let (caller, _) = self.socket.accept().ok()?;
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
