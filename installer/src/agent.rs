//! The node agent's threads and how they stop.
//!
//! One thread answers the plugin's queries (`facts_socket`) until a signal stops it, one receives the plugin's log
//! lines (`log_socket`) until the last query is answered, and one writes to stderr (`log`), so that no pod waits for a
//! reader of stderr. The pods come from a [`PodLookup`]. `background` starts the threads that reconcile the node and
//! publish the status: the reconcile loop, HTTP, and the queries about our own node and DaemonSet. If several agents
//! run on a node, only one of them changes the node (`leader`).

mod background;
mod broken_pod_counts;
mod broken_pods;
pub mod cluster;
mod daemonset;
mod deletion_budget;
mod events;
mod facts_socket;
mod health;
mod http;
mod istio;
pub mod kubeconfig;
pub(crate) mod leader;
mod log_socket;
mod manifest_pods;
mod metrics;
mod node_taint;
mod plugin_calls;
pub(crate) mod probe_loop;
mod process;
mod queries;
mod reconcile;
mod refusals;
mod repair_socket;
mod role;
mod socket;
mod socket_file;
mod status;
mod token;

pub use cluster::ClusterNode;
pub use istio::IstioComponent;
pub use manifest_pods::ManifestPods;
pub use node_taint::{ConfigMapRef, CriticalDaemonSets, CriticalError};
pub(crate) use process::stop_signal;
pub use reconcile::{LiveSettings, ReconcileConfig, SettingsLoadError};
pub use socket_file::SocketError;

use crate::agent_status::AgentStatus;
use crate::error::errno;
use crate::log::Log;
use background::NodeAgent;
use events::EventQueue;
use facts_socket::FactsSocket;
use gybe_plugin::args::PodRef;
use gybe_plugin::conf::LOG_SOCKET;
use gybe_plugin::facts::wire::FactsResponse;
use gybe_plugin::pod::PodFacts;
use log_socket::LogSocket;
use nix::errno::Errno;
use plugin_calls::PluginCalls;
use queries::CountedPods;
pub(crate) use role::{Role, SharedRole};
use serde_json::json;
use socket::SocketHealth;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// A source of this node's pods.
pub trait PodLookup: Sync {
    /// Returns what is known about a pod now; none when the pod may be about to appear.
    fn find(&self, pod: &PodRef) -> Option<FactsResponse>;

    /// Returns what is known about a pod; waits for an unknown pod, at most until `until`.
    fn wait_for(&self, pod: &PodRef, until: Instant) -> FactsResponse;

    fn state(&self) -> PodsState;

    /// Reports whether such a pod is on this node, a terminating one included; none while the pods are not known.
    fn has_pod(&self, is_such: &dyn Fn(&PodFacts) -> bool) -> Option<bool>;
}

/// The state of a [`PodLookup`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodsState {
    /// Why queries cannot be answered reliably; none when they can.
    pub missing: Option<String>,
    /// Why new pods are not known at present: the watch is not open. Short interruptions are normal.
    pub unwatched: Option<String>,
    /// The number of known pods.
    pub pods: usize,
    /// The counters of the watch; none without a cluster.
    pub watch: Option<WatchCounts>,
}

/// Counters of the watch of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchCounts {
    /// The time since the API server last sent something about pods.
    pub silent: Duration,
    pub reconnects: u64,
    /// Failed requests about pods by HTTP status; none stands for no response, or for one that cannot be read.
    pub errors: BTreeMap<Option<u16>, u64>,
}

/// Why the agent cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("cannot serve at {}", .path.display())]
    Serve { path: PathBuf, source: SocketError },
    #[error("cannot find out which agent of the node leads, in {}", .directory.display())]
    Lead { directory: PathBuf, source: SocketError },
    #[error("cannot wait for {what}")]
    Wait { what: &'static str, source: Errno },
}

/// The configuration of one agent.
pub struct Agent<'a> {
    pub pods: &'a dyn PodLookup,
    /// The path of the facts socket; log.sock is in the same directory.
    pub facts: &'a Path,
    /// None for an agent that only answers queries about pods.
    pub reconcile: Option<ReconcileConfig>,
    /// None without a cluster.
    pub home: Option<ClusterNode>,
}

/// The state that the threads of the sockets share.
#[derive(Clone, Copy)]
pub(crate) struct SocketContext<'a> {
    pub(crate) log: &'a Log,
    pub(crate) health: &'a SocketHealth,
    pub(crate) role: &'a SharedRole,
    /// None for an agent or a probe that writes no events.
    pub(crate) events: Option<&'a EventQueue>,
}

/// Serves until SIGTERM or SIGINT, and leaves the node as it is then.
///
/// # Errors
/// When a socket cannot be created, or waiting fails.
pub fn serve(agent: Agent<'_>) -> Result<(), NodeError> {
    // Blocked before the first thread is created, so that every thread inherits it (signal(7)).
    let stop = stop_signal().map_err(|source| NodeError::Wait { what: "signals", source })?;
    let (health, role, log) = (SocketHealth::default(), SharedRole::default(), Log::default());
    let (pods, calls, events) = (CountedPods::new(agent.pods), PluginCalls::default(), EventQueue::default());
    let context = SocketContext { log: &log, health: &health, role: &role, events: Some(&events) };
    let served = match agent.reconcile {
        Some(config) => {
            let (pods, calls, facts, home) = (&pods, &calls, agent.facts, agent.home);
            NodeAgent { pods, calls, context, home, facts, stop: &stop }.run(config)
        }
        None => {
            role.set(Role::leads());
            let status = || health::status_without_node(pods.state(), health.problems(), calls.refused());
            Sockets::open(agent.facts, &log)?.serve(&pods, &calls, &status, stop.as_fd(), context)
        }
    };
    log.info("gybe node: stopped", json!({}));
    served
}

struct Sockets {
    facts: FactsSocket,
    log: LogSocket,
}

impl Sockets {
    fn open(facts: &Path, to: &Log) -> Result<Self, NodeError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| NodeError::Serve { path, source }
        };
        let log = facts.with_file_name(LOG_SOCKET);
        let sockets = Self {
            facts: FactsSocket::open(facts).map_err(failed(facts))?,
            log: LogSocket::open(&log).map_err(failed(&log))?,
        };
        to.info("gybe node: serving", json!({ "socket": facts.display().to_string() }));
        Ok(sockets)
    }

    /// Serves until `stop` is readable and every query that has arrived has its response, within its deadline. Then
    /// removes the sockets before anything else ends, so that no plugin connects to an agent that will not respond.
    fn serve(
        mut self,
        pods: &dyn PodLookup,
        calls: &PluginCalls,
        status: &(dyn Fn() -> AgentStatus + Sync),
        stop: BorrowedFd<'_>,
        context: SocketContext<'_>,
    ) -> Result<(), NodeError> {
        let wait = |what| move |source| NodeError::Wait { what, source };
        let (ended, running) = std::io::pipe().map_err(|why| wait("the end of the agent")(errno(&why)))?;
        thread::scope(|scope| {
            let logging = scope.spawn(|| self.log.serve(ended.as_fd(), calls, context));
            let served = self.facts.serve(stop, pods, status, context).map_err(wait("queries"));
            // Wakes the thread that polls the other end.
            drop(running);
            let logged = logging.join().unwrap_or(Err(Errno::EIO)).map_err(wait("log lines"));
            logged.and(served)
        })
    }
}
