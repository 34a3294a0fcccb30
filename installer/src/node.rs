//! The node agent's life: what runs beside what, and how it stops.
//!
//! One loop waits for callers, log lines and the signal to stop; each caller is answered on a thread
//! of its own, and there is a bound on both their number and their time. Who knows the pods stands
//! behind [`Pods`]: today a directory of manifests.

mod journal;
mod place;
mod pods_from;

pub(crate) use journal::Journal;
pub(crate) use place::Place;
pub use place::PlaceError;
pub use pods_from::PodsFrom;

use crate::facts_socket::FactsSocket;
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::wire::Answer;
use journal::LogSocket;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::json;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// Somebody who knows this node's pods.
pub trait Pods: Sync {
    /// What is known of a pod, at the latest `until` then.
    fn answer(&self, pod: &PodRef, until: Instant) -> Answer;
}

/// Why the agent cannot start, or go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A socket of ours.
    #[error("cannot serve at {}", .path.display())]
    Serve {
        /// Its path.
        path: PathBuf,
        /// What stands in the way.
        source: PlaceError,
    },
    /// The kernel.
    #[error("cannot wait for {what}")]
    Wait {
        /// For what.
        what: &'static str,
        /// What the kernel said.
        source: Errno,
    },
}

/// So many callers are answered at once; more wait in the socket's backlog. A node has 110 pods, or
/// some hundreds, and an answer takes less than a millisecond.
const CALLERS: usize = 64;

/// Serves until the process is told to end by SIGTERM or SIGINT.
///
/// # Errors
/// When the sockets cannot be made, or waiting fails.
pub fn serve(pods: &dyn Pods, facts: &Path) -> Result<(), NodeError> {
    // Blocked before the first thread is made, so that every thread blocks it (signal(7)).
    let stop = stop_signal().map_err(|source| NodeError::Wait { what: "signals", source })?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| NodeError::Serve { path, source }
    };
    let callers = FactsSocket::open(facts).map_err(failed(facts))?;
    let log = facts.with_file_name("log.sock");
    let lines = LogSocket::open(&log).map_err(failed(&log))?;
    let journal = Journal::default();
    journal.tell("info", "gybe node: serving", json!({ "socket": facts.display().to_string() }));
    let served = wait_and_serve(pods, &stop, (&callers, &lines), &journal);
    journal.tell("info", "gybe node: stopped", json!({}));
    served
}

/// Readable when the process is told to end. To be made before the first thread: each inherits what is
/// blocked (signal(7)).
pub(crate) fn stop_signal() -> Result<SignalFd, Errno> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block()?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// The scope ends when the last caller has been answered, and none takes longer than its deadline.
fn wait_and_serve(
    pods: &dyn Pods,
    stop: &SignalFd,
    (callers, lines): (&FactsSocket, &LogSocket),
    journal: &Journal,
) -> Result<(), NodeError> {
    let (busy, done) = (AtomicUsize::new(0), std::io::pipe());
    let (freed, free) = done.map_err(|why| NodeError::Wait { what: "callers", source: errno(&why) })?;
    thread::scope(|scope| {
        loop {
            // With no room for one more, whoever calls waits in the backlog.
            let room = busy.load(Ordering::Acquire) < CALLERS;
            let calls = if room { PollFlags::POLLIN } else { PollFlags::empty() };
            let [stop, line, room_again, caller] = woken([
                PollFd::new(stop.as_fd(), PollFlags::POLLIN),
                PollFd::new(lines.as_fd(), PollFlags::POLLIN),
                PollFd::new(freed.as_fd(), PollFlags::POLLIN),
                PollFd::new(callers.as_fd(), calls),
            ])?;
            if stop {
                return Ok(());
            }
            if line {
                lines.receive(journal);
            }
            if room_again {
                drop(std::io::Read::read(&mut &freed, &mut [0; CALLERS]));
            }
            if caller && let Some(call) = callers.accept(journal) {
                busy.fetch_add(1, Ordering::AcqRel);
                let (busy, mut free) = (&busy, &free);
                scope.spawn(move || {
                    call.answer(pods, journal);
                    // The loop may have found no room.
                    if busy.fetch_sub(1, Ordering::AcqRel) == CALLERS {
                        drop(std::io::Write::write(&mut free, &[0]));
                    }
                });
            }
        }
    })
}

/// Waits, and says for which something came.
fn woken<const N: usize>(mut fds: [PollFd<'_>; N]) -> Result<[bool; N], NodeError> {
    match poll(&mut fds, PollTimeout::NONE) {
        Ok(_) => Ok(fds.map(|fd| fd.any().unwrap_or(false))),
        Err(Errno::EINTR) => Ok([false; N]),
        Err(source) => Err(NodeError::Wait { what: "callers", source }),
    }
}

fn errno(fault: &std::io::Error) -> Errno {
    fault.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
