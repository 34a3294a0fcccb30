//! The socket at which the plugin asks about pods. What is said there is in `gybe_plugin`'s
//! `facts::wire`; who knows the pods is behind `node::Pods`.

use crate::node::{Journal, Place, PlaceError, Pods};
use gybe_plugin::facts::wire::{self, LONGEST_QUESTION};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Backlog, MsgFlags, SockType, getsockopt, listen, recv, send, sockopt};
use nix::unistd::geteuid;
use serde_json::json;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a caller may take to ask and to hear: less than the plugin itself waits.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is left of it for the answer's way back.
const WAY_BACK: Duration = Duration::from_millis(50);

/// The socket, listening.
#[derive(Debug)]
pub(crate) struct FactsSocket {
    socket: UnixListener,
    place: Place,
}

/// Somebody who called, and may.
#[derive(Debug)]
pub(crate) struct Call(UnixStream);

impl FactsSocket {
    pub(crate) fn open(path: &Path) -> Result<Self, PlaceError> {
        // 110 pods may start at once; the kernel bounds this by net.core.somaxconn.
        let (place, socket) = Place::take(path, SockType::Stream, |socket| listen(socket, Backlog::MAXCONN))?;
        Ok(Self { socket: socket.into(), place })
    }

    /// Whether who asks there is answered.
    pub(crate) fn stands(&self) -> bool {
        self.place.stands()
    }

    /// Takes the next caller. Only root, or the user we are, is told about pods.
    pub(crate) fn accept(&self, journal: &Journal) -> Option<Call> {
        let (caller, _) = self.socket.accept().ok()?;
        match getsockopt(&caller, sockopt::PeerCredentials).map(|peer| peer.uid()) {
            Ok(uid) if uid == 0 || uid == geteuid().as_raw() => Some(Call(caller)),
            Ok(uid) => {
                journal.tell("warn", "gybe node: a caller was refused", json!({ "uid": uid }));
                None
            }
            Err(_) => None,
        }
    }
}

impl Call {
    /// Hears the question and answers it, or hangs up on who takes too long.
    pub(crate) fn answer(&self, pods: &dyn Pods, journal: &Journal) {
        let until = Instant::now() + PATIENCE;
        let Ok(question) = self.question(until) else { return };
        if question.is_empty() {
            // Who only wanted to know whether somebody is here.
            return;
        }
        let answer = match wire::asked(&question) {
            Ok(pod) => pods.answer(&pod, until - WAY_BACK),
            Err(why) => wire::Answer::Fault(why.to_string()),
        };
        if let wire::Answer::Fault(why) = &answer {
            journal.tell("warn", "gybe node: a question could not be answered", json!({ "cause": why }));
        }
        // A caller that went away has decided without us.
        let _ = self.say(wire::answer(&answer).as_bytes(), until);
    }

    /// One line.
    fn question(&self, until: Instant) -> Result<Vec<u8>, Errno> {
        let (mut question, mut buffer) = (Vec::new(), [0; LONGEST_QUESTION]);
        loop {
            self.wait(PollFlags::POLLIN, until)?;
            let length = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?;
            question.extend(buffer.iter().take(length));
            if length == 0 || question.contains(&b'\n') {
                return Ok(question);
            }
            if question.len() > LONGEST_QUESTION {
                return Err(Errno::EMSGSIZE);
            }
        }
    }

    fn say(&self, mut words: &[u8], until: Instant) -> Result<(), Errno> {
        while !words.is_empty() {
            self.wait(PollFlags::POLLOUT, until)?;
            let sent = send(self.0.as_raw_fd(), words, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)?;
            words = words.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    fn wait(&self, what: PollFlags, until: Instant) -> Result<(), Errno> {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).map_err(|_| Errno::EINVAL)?;
        match poll(&mut [PollFd::new(self.0.as_fd(), what)], timeout)? {
            0 => Err(Errno::ETIMEDOUT),
            _ => Ok(()),
        }
    }
}

impl AsFd for FactsSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
