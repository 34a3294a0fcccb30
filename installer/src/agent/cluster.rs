//! The agent's view of the cluster: this node's pods by list and watch, this node by a watch, and a few single queries.
//!
//! ```text
//! access ─► client (token, deadlines, refusals) ─► kube's client ─┬─ pod_watch ─► pod_cache ─► WatchedPods ─► facts socket
//!                                                                 ├─ lookup: one pod that the watch has not delivered
//!                                                                 ├─ own_node: our node's labels and taints, by a watch
//!                                                                 └─ queries: our DaemonSet, a ConfigMap, a pod for the plugin; events, taints, broken pods
//! ```
//!
//! Every request but those that write events, and taints and pods where that is configured, is a GET, and lists contain
//! only this node's pods. The watch of pods and the lookups run on one thread, which has a tokio runtime; the callers
//! are threads without one. The watch of the node runs on the thread that calls it.

mod access;
mod agents;
mod broken_pod;
mod client;
mod error;
mod leave;
mod line_splitter;
mod list_parser;
mod lookup;
mod objects;
mod own_node;
mod pod_cache;
mod pod_requests;
mod pod_watch;
mod queries;
mod token_file;
mod watch;
mod watched_pods;

pub use access::{Cluster, ClusterError, ClusterNames, ServiceAccount};
pub use agents::{AGENTS, AgentSelector, ClusterAgent, StatusPage, agents};
pub use broken_pod::{BrokenPod, PodChange, change_pod};
pub use error::ApiError;
pub use leave::{
    AgentAddress, AgentDaemonSet, Left, PAGE_TIMEOUT, RunningAgent, agent_addresses, agent_daemonsets, left,
    set_mode_leave,
};
pub(crate) use own_node::OwnNode;
pub use own_node::{ClusterNode, ObservedNode};
pub use pod_cache::{WatchProblem, WatchState};
pub use pod_requests::PodSelector;
pub use queries::{
    DaemonSetState, QueryError, TaintState, changed_taints, config_map, create_event, daemonset_state,
    has_ready_pod, names, patch_event, pod_facts, set_taints,
};
pub use watched_pods::WatchedPods;
