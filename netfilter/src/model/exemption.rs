//! The exemption of the kubelet's probes, in the node's network namespace: the kubelet's connections to ambient pods
//! come from a fixed address, which the rules of each ambient pod leave alone.

use super::policy::ambient::ProbeAddresses;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The exemption as it should be on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeExemption {
    /// The kubelet's cgroup. `None`: the connections of every process of root are exempt.
    pub cgroup: Option<KubeletCgroup>,
    /// The source address that exempt connections get.
    pub source: ProbeAddresses,
    /// The addresses of the node's ambient pods.
    pub pods: BTreeSet<IpAddr>,
}

/// The cgroup (v2) of the kubelet's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KubeletCgroup {
    /// The number of names in its path.
    pub level: u32,
    /// The inode of its directory: another one once the cgroup was created again.
    pub id: u64,
}
