//! The cluster, as the agent sees it: this node's pods by list and watch, and a few single questions.
//!
//! ```text
//! cluster ─► line (token, deadlines, refusals) ─► kube's client ─┬─ watch ─► known ─► WatchedPods ─► facts socket
//!                                                                ├─ errands: the own node, the own DaemonSet
//!                                                                └─ pod_facts: one GET for the plugin
//! ```
//!
//! Only reads, and never more than this node's pods. Everything runs on the thread that is given to it,
//! with a runtime of its own; who asks are plain threads.

mod access;
mod asks;
mod errands;
mod error;
mod items;
mod known;
mod line;
mod lines;
mod pod_facts;
mod pods;
mod token;
mod watch;
mod watched;

pub use access::{Cluster, ClusterError, SERVICE_ACCOUNT, ServiceAccount};
pub use errands::{ErrandError, Fate, daemonset_fate, node_labels};
pub use error::ApiError;
pub use known::{Trouble, WatchState};
pub use pod_facts::pod_facts;
pub use watched::WatchedPods;
