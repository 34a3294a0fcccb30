//! What the runner and the program in the virtual machine share: the checks, and their results.

use gybe_netfilter::apply::backend::BackendKind;
use serde::{Deserialize, Serialize};

/// The beginning of each line on the serial console that is a [`CheckResult`] in JSON.
pub const RESULT: &str = "RESULT ";

/// The line before which a guest has printed all results.
pub const END: &str = "checks ended with 0";

/// All flows of one vector, with rules that `gybe apply` writes.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    pub vector: &'static str,
    pub backend: BackendKind,
    pub owner: PodOwner,
}

/// The user namespace that owns the pod's network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodOwner {
    /// The host's.
    Host,
    /// The pod's own (`hostUsers: false`).
    Pod,
}

pub const COLUMNS: [Column; 8] = [
    column("default, IPv4", "inject-default-v4", BackendKind::Nft),
    column("dual stack", "inject-default-dual", BackendKind::Nft),
    column("DNS", "dns-all-dual", BackendKind::Nft),
    column("TPROXY", "tproxy-default-dual", BackendKind::Nft),
    column("interval sets", "random-002", BackendKind::Nft),
    Column { owner: PodOwner::Pod, ..column("user namespace", "inject-default-dual", BackendKind::Nft) },
    column("iptables-legacy", "inject-default-dual", BackendKind::IptablesLegacy),
    column("iptables-nft", "inject-default-dual", BackendKind::IptablesNft),
];

const fn column(name: &'static str, vector: &'static str, backend: BackendKind) -> Column {
    Column { name, vector, backend, owner: PodOwner::Host }
}

/// A pod that an ADD is called for, and the vector whose policy is the pod's.
#[derive(Debug, Clone, Copy)]
pub struct Pod {
    pub name: &'static str,
    pub vector: &'static str,
    /// Whether the proxy listens on both families.
    pub dual_stack: bool,
    /// Whether the proxy's agent answers DNS queries.
    pub dns: bool,
    /// `sidecar.istio.io/interceptionMode`.
    pub mode: &'static str,
}

/// The pod with both families and no more.
pub const DUAL_STACK: &str = "dual stack";

pub const PODS: [Pod; 4] = [
    Pod { name: "IPv4", vector: "inject-default-v4", dual_stack: false, dns: false, mode: "REDIRECT" },
    Pod { name: DUAL_STACK, vector: "inject-default-dual", dual_stack: true, dns: false, mode: "REDIRECT" },
    Pod { name: "DNS", vector: "dns-all-dual", dual_stack: true, dns: true, mode: "REDIRECT" },
    Pod { name: "TPROXY", vector: "tproxy-default-dual", dual_stack: true, dns: false, mode: "TPROXY" },
];

/// The result of one check in the virtual machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum CheckResult {
    /// A [`Column`].
    Column {
        name: String,
        flows: Flows,
    },
    /// `gybe probe --json`.
    Probe {
        report: serde_json::Value,
    },
    Add(Add),
}

/// An ADD for one of [`PODS`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Add {
    /// The configured backend.
    pub setting: String,
    pub pod: String,
    /// The backends with rules in the pod's namespace afterwards.
    pub rules_by: Vec<String>,
    /// The plugin's error.
    pub refusal: Option<Refusal>,
    /// After a refusal the flows are compared with their outcomes without rules.
    pub flows: Flows,
}

/// An error of the plugin.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Refusal {
    /// `msg` of CNI.
    pub message: String,
    /// `details` of CNI.
    pub hint: String,
}

/// The connections of a check.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Flows {
    /// All were made.
    Made { number: usize, wrong: Vec<String> },
    /// Not all could be made.
    Failed(String),
}

impl Flows {
    /// Reports whether each connection had its outcome.
    #[must_use]
    pub fn are_right(&self) -> bool {
        matches!(self, Self::Made { number: 1.., wrong } if wrong.is_empty())
    }
}
