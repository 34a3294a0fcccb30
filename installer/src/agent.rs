//! The node agent's life: what runs beside what, and how it stops.
//!
//! One thread answers callers (`facts_socket`) until the signal to stop, one hears plugins' lines
//! (`log_socket`) until the last caller is answered, and one writes to stderr (`journal`): nobody reads it,
//! and no pod waits for that. Who knows the pods stands behind [`Pods`]. What keeps the node, and tells
//! about it, runs beside: `beside.rs`.

pub mod agent_status;
mod asked;
mod beside;
mod bulletin;
mod calls;
pub mod cluster;
mod credentials;
mod daemonset;
mod facts_socket;
mod healing;
mod health;
mod http;
pub(crate) mod incumbent;
pub mod kubeconfig;
mod label;
mod log_socket;
mod metrics;
mod page;
mod part;
mod place;
mod pods_from;
mod process;
mod sockets;
pub(crate) mod stand_in;
mod token;
mod view;

pub(crate) use credentials::KUBECONFIG_NEW;
pub use healing::{Following, Keeping, NoSettings, REST};
pub use label::Home;
pub use part::Part;
pub use place::PlaceError;
pub(crate) use place::is_served;
pub use pods_from::PodsFrom;
pub(crate) use sockets::{LOOK, Socket, Unserved};

use crate::agent::facts_socket::FactsSocket;
use crate::error::errno;
use crate::log::Journal;
use agent_status::AgentStatus;
use asked::Asked;
use beside::Beside;
use calls::Calls;
use gybe_plugin::args::PodRef;
use gybe_plugin::conf::LOG_SOCKET;
use gybe_plugin::facts::wire::FactsResponse;
use log_socket::LogSocket;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::json;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Somebody who knows this node's pods.
pub trait Pods: Sync {
    /// What can be said of a pod now; none when it may be about to come.
    fn at_once(&self, pod: &PodRef) -> Option<FactsResponse>;

    /// What is known of a pod, at the latest `until` then.
    fn answer(&self, pod: &PodRef, until: Instant) -> FactsResponse;

    /// How well they are known.
    fn state(&self) -> PodsState;

    /// Whether a pod of this part of Istio is on this node, also one that is ending; none while the pods are
    /// not known.
    fn has_pod_of(&self, part: &Part) -> Option<bool>;
}

/// How well the pods are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodsState {
    /// Why questions cannot be answered as they should; none when they can.
    pub missing: Option<String>,
    /// How many are known.
    pub pods: usize,
    /// How the watch of the cluster went; none where there is no cluster.
    pub watch: Option<WatchCounts>,
}

/// How the watch of the cluster went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchCounts {
    /// How long ago the API server last told of pods.
    pub silent: Duration,
    /// How often the watch was opened again.
    pub reconnects: u64,
    /// How often a request about pods failed, by HTTP status; none is no answer, or one that cannot be read.
    pub errors: BTreeMap<Option<u16>, u64>,
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
    let (sockets, unserved) = (open(agent.facts)?, Unserved::default());
    let journal = Journal::default();
    journal.tell("info", "gybe node: serving", json!({ "socket": agent.facts.display().to_string() }));
    let (pods, calls) = (Asked::of(agent.pods), Calls::default());
    let serving = |status: &(dyn Fn() -> AgentStatus + Sync)| {
        answer_and_tell((&pods, &calls, status), &stop, sockets, (&journal, &unserved))
    };
    let served = match agent.keeping {
        Some(keeping) => {
            let (pods, calls, unserved) = (&pods, &calls, &unserved);
            let beside = Beside { pods, calls, unserved, journal: &journal, home: agent.home };
            beside.run(keeping, serving)
        }
        None => serving(&|| health::of_pods_alone(pods.state().missing, unserved.read())),
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

/// The socket for facts at that path, the other beside it.
fn open(facts: &Path) -> Result<(FactsSocket, LogSocket), NodeError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| NodeError::Serve { path, source }
    };
    let log = facts.with_file_name(LOG_SOCKET);
    Ok((FactsSocket::open(facts).map_err(failed(facts))?, LogSocket::open(&log).map_err(failed(&log))?))
}

/// Until it is told to stop. Ends when the last caller has been answered, and none takes longer than its
/// deadline. The sockets are gone then, whatever else has to be done: nobody waits for an answer in vain.
fn answer_and_tell(
    (pods, calls, status): (&dyn Pods, &Calls, &(dyn Fn() -> AgentStatus + Sync)),
    stop: &SignalFd,
    (mut facts, mut log): (FactsSocket, LogSocket),
    told: (&Journal, &Unserved),
) -> Result<(), NodeError> {
    let wait = |what| move |source| NodeError::Wait { what, source };
    let (ended, running) = std::io::pipe().map_err(|why| wait("the end")(errno(&why)))?;
    thread::scope(|scope| {
        let telling = scope.spawn(|| log.serve(ended.as_fd(), calls, told));
        let served = facts.serve(stop.as_fd(), (pods, status), told).map_err(wait("callers"));
        // Whoever polls the other end wakes.
        drop(running);
        let told = telling.join().unwrap_or(Err(Errno::EIO)).map_err(wait("log lines"));
        told.and(served)
    })
}
