//! Requests to the API server: lists and watches of this node's pods (`agent::pods`), watches of this node and, in ambient
//! mode, of the namespaces, and single queries.
//!
//! ```text
//! access ─► client (token, deadlines, errors) ─► kube's client ─┬─ watch: pod_requests (`agent::pods`), own_node,
//!                                                               │         namespaces
//!                                                               └─ queries: a DaemonSet, a ConfigMap, a pod;
//!                                                                  events, taints, a condition, annotations, broken pods
//! ```
//!
//! The agent's requests are GETs, except those that write events and, where configured, taints, a condition, annotations
//! and pods. Its lists contain only this node's pods. The watches of the node and of the namespaces, and each query, run
//! on the thread that calls them, which has no tokio runtime.

mod access;
mod broken_pod;
pub(crate) mod client;
pub(crate) mod error;
mod namespaces;
mod node_writer;
pub(crate) mod objects;
mod own_node;
pub(crate) mod pod_requests;
pub(crate) mod queries;
pub(crate) mod watch;
mod watch_health;

pub(crate) use access::server_url;
pub use access::{Cluster, ClusterError, ClusterNames, ServiceAccount};
pub use broken_pod::{BrokenPod, PodChange, change_pod};
pub use error::ApiError;
pub(crate) use namespaces::NamespaceLabels;
pub(crate) use node_writer::{
    RETRY, SET_AFTER, TIMEOUT, TaintOrder, TaintWriter, WRITE_INTERVAL, WriteOutcome, write_node,
};
pub(crate) use own_node::OwnNode;
pub use own_node::{ClusterNode, ConditionStatus, NodeCondition, ObservedNode};
pub use pod_requests::PodSelector;
pub use queries::{
    DaemonSetState, QueryError, TaintState, annotate_pod, changed_taints, config_map, create_event,
    daemonset_state, has_ready_pod, names, patch_event, pod_facts, set_condition, set_taints,
};
