//! The agent's view of the cluster: this node's pods by list and watch, and a few single queries.
//!
//! ```text
//! access ─► client (token, deadlines, refusals) ─► kube's client ─┬─ watch ─► pod_cache ─► WatchedPods ─► facts socket
//!                                                                 ├─ lookup: one pod that the watch has not delivered
//!                                                                 └─ queries: our node, our DaemonSet, a pod for the plugin; events, taints, broken pods
//! ```
//!
//! Every request but those that write events, and taints and pods where that is configured, is a GET, and lists contain only
//! this node's pods. The watch and the lookups run on one thread, which has a tokio runtime; the callers are threads
//! without one.

mod access;
mod client;
mod error;
mod line_splitter;
mod list_parser;
mod lookup;
mod pod_cache;
mod pod_requests;
mod queries;
mod token_file;
mod watch;
mod watched_pods;

pub use access::{Cluster, ClusterError, ServiceAccount};
pub use error::ApiError;
pub use pod_cache::{WatchProblem, WatchState};
pub use queries::{
    BrokenPod, DaemonSetState, PodChange, QueryError, TaintState, broken_pod, change_pod, create_event,
    daemonset_state, node_labels, patch_event, pod_facts, set_taints,
};
pub use watched_pods::WatchedPods;
