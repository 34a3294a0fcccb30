//! The node agent's life: what runs beside what, and how it stops.
//!
//! One loop waits for callers, log lines and the signal to stop; each caller is answered on a thread
//! of its own, and there is a bound on both their number and their time. Who knows the pods stands
//! behind [`Pods`]. What keeps the node, and tells about it, runs beside: `beside.rs`.

mod asked;
mod beside;
mod bulletin;
mod calls;
mod credentials;
mod daemonset;
mod healing;
mod health;
mod http;
pub(crate) mod incumbent;
mod journal;
pub mod kubeconfig;
mod label;
mod metrics;
mod page;
mod place;
mod pods_from;
pub(crate) mod stand_in;
mod token;
mod view;

pub(crate) use credentials::KUBECONFIG_NEW;
pub use healing::{Keeping, REST};
pub(crate) use journal::Journal;
pub use label::Home;
pub(crate) use place::Place;
pub use place::PlaceError;
pub use pods_from::PodsFrom;

use crate::errno::errno;
use crate::facts_socket::FactsSocket;
use asked::Asked;
use beside::Beside;
use calls::Calls;
use gybe_plugin::args::PodRef;
use gybe_plugin::conf::LOG_SOCKET;
use gybe_plugin::facts::wire::Answer;
use journal::LogSocket;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::json;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

/// Somebody who knows this node's pods.
pub trait Pods: Sync {
    /// What is known of a pod, at the latest `until` then.
    fn answer(&self, pod: &PodRef, until: Instant) -> Answer;

    /// How well they are known.
    fn state(&self) -> PodsState;

    /// The namespaces of those whose name begins so, also of pods that are ending; none while they are
    /// not known.
    fn namespaces_of(&self, prefix: &str) -> Option<BTreeSet<String>>;
}

/// How well the pods are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodsState {
    /// Why questions cannot be answered as they should; none when they can.
    pub missing: Option<String>,
    /// How many are known.
    pub pods: usize,
    /// How long ago the cluster last gave a sign of life; none where there is no cluster.
    pub heard: Option<Duration>,
}

/// How the pods of istio-cni's DaemonSet begin; its name is fixed (spec `istio-cni-behaviour.md` 7).
/// Ours has its label, because istiod's untaint controller looks for that, but not its name.
pub(crate) const ISTIO_AGENT: &str = "istio-cni-node-";
/// How those of istiod's Deployment do.
pub(crate) const ISTIOD: &str = "istiod-";

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

/// All that one agent is.
pub struct Agent<'a> {
    /// Who knows the pods.
    pub pods: &'a dyn Pods,
    /// Where the plugin asks; log.sock stands beside it.
    pub facts: &'a Path,
    /// What it takes to keep the node; none only tells about pods.
    pub keeping: Option<Keeping>,
    /// Whom to ask about node and DaemonSet; none where there is no cluster.
    pub home: Option<Home>,
}

/// Serves until the process is told to end by SIGTERM or SIGINT, and leaves everything in place then.
///
/// # Errors
/// When the sockets cannot be made, or waiting fails.
pub fn serve(agent: Agent<'_>) -> Result<(), NodeError> {
    // Blocked before the first thread is made, so that every thread blocks it (signal(7)).
    let stop = stop_signal().map_err(|source| NodeError::Wait { what: "signals", source })?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| NodeError::Serve { path, source }
    };
    let callers = FactsSocket::open(agent.facts).map_err(failed(agent.facts))?;
    let log = agent.facts.with_file_name(LOG_SOCKET);
    let lines = LogSocket::open(&log).map_err(failed(&log))?;
    let journal = Journal::default();
    journal.tell("info", "gybe node: serving", json!({ "socket": agent.facts.display().to_string() }));
    let (pods, calls) = (Asked::of(agent.pods), Calls::default());
    let serving = || wait_and_serve(&pods, &stop, (&callers, &lines), (&journal, &calls));
    let served = match agent.keeping {
        Some(keeping) => {
            let beside = Beside { pods: &pods, calls: &calls, journal: &journal, home: agent.home };
            beside.run(keeping, serving)
        }
        None => serving(),
    };
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
    (journal, calls): (&Journal, &Calls),
) -> Result<(), NodeError> {
    let done = std::io::pipe();
    let (freed, free) = done.map_err(|why| NodeError::Wait { what: "callers", source: errno(&why) })?;
    let room = Room { busy: AtomicUsize::new(0), free };
    thread::scope(|scope| {
        loop {
            // With no room for one more, whoever calls waits in the backlog.
            let has_room = room.busy.load(Ordering::Acquire) < CALLERS;
            let for_calls = if has_room { PollFlags::POLLIN } else { PollFlags::empty() };
            let [stop, line, room_again, caller] = woken([
                PollFd::new(stop.as_fd(), PollFlags::POLLIN),
                PollFd::new(lines.as_fd(), PollFlags::POLLIN),
                PollFd::new(freed.as_fd(), PollFlags::POLLIN),
                PollFd::new(callers.as_fd(), for_calls),
            ])?;
            if stop {
                return Ok(());
            }
            if line {
                lines.receive(journal, calls);
            }
            if room_again {
                drop(std::io::Read::read(&mut &freed, &mut [0; CALLERS]));
            }
            if caller && let Some(call) = callers.accept(journal) {
                room.serve(scope, journal, move || call.answer(pods, journal));
            }
        }
    })
}

/// For callers that are answered now.
struct Room {
    busy: AtomicUsize,
    free: std::io::PipeWriter,
}

impl Room {
    /// Answers on a thread of its own. Where the kernel has none, the caller is hung up on and asks again,
    /// and the node is kept all the same.
    fn serve<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        journal: &Journal,
        answer: impl FnOnce() + Send + 'scope,
    ) {
        self.busy.fetch_add(1, Ordering::AcqRel);
        let answering = thread::Builder::new().spawn_scoped(scope, move || {
            answer();
            self.leave();
        });
        if let Err(why) = answering {
            self.leave();
            let more = json!({ "why": why.to_string() });
            journal.tell("error", "gybe node: there is no thread for a caller", more);
        }
    }

    fn leave(&self) {
        // The loop may have found no room.
        if self.busy.fetch_sub(1, Ordering::AcqRel) == CALLERS {
            drop(std::io::Write::write(&mut &self.free, &[0]));
        }
    }
}

/// Waits, and says for which something came.
fn woken<const N: usize>(mut fds: [PollFd<'_>; N]) -> Result<[bool; N], NodeError> {
    match poll(&mut fds, PollTimeout::NONE) {
        Ok(_) => Ok(fds.map(|fd| fd.any().unwrap_or(false))),
        Err(Errno::EINTR) => Ok([false; N]),
        Err(source) => Err(NodeError::Wait { what: "callers", source }),
    }
}
