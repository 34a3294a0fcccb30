//! The network namespace that a program runs in: its addresses, and whether it is a node's.
//!
//! `gybe init` writes into the pod's namespace. In a node's namespace the same rules would send every connection
//! of the node to a port without a listener.

use gybe_netfilter::kernel::routes::{self, RoutesError};
use gybe_netfilter::model::policy::istio::PASSTHROUGH_V6;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::Path;

/// A sysctl that exists in the kernel's first network namespace only, because it applies to all of them:
/// `net_core_table` of net/core/sysctl_net_core.c is registered for `init_net` only. `/proc/sys/net` shows the
/// namespace of the thread that reads it; `unshare -n ls /proc/sys/net/core` demonstrates both. The inode number of
/// `/proc/self/ns/net` does not identify the first namespace: older kernels use any free number.
const SYSCTL_OF_THE_FIRST: &str = "sys/net/core/netdev_max_backlog";

/// The first line that the kubelet writes into `/etc/hosts` of a pod that shares its node's network
/// (`managedHostsHeaderWithHostNetwork` in its source).
const HOST_NETWORK: &str = "# Kubernetes-managed hosts file (host network).";

/// Why a namespace is taken for a node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEvidence {
    First,
    /// The pod has `hostNetwork: true`.
    HostNetwork,
}

impl fmt::Display for NodeEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "it is the one this kernel booted with",
            Self::HostNetwork => "/etc/hosts says that this pod uses its node's network",
        })
    }
}

/// Returns evidence that the calling thread's network namespace is a node's; `None` in a pod.
///
/// A node can be a container itself (kind); then only the kubelet's `/etc/hosts` distinguishes it from a pod.
pub fn node_evidence(proc: &Path, hosts: &Path) -> Option<NodeEvidence> {
    if is_the_first(proc) {
        return Some(NodeEvidence::First);
    }
    (first_line(hosts).trim_end() == HOST_NETWORK).then_some(NodeEvidence::HostNetwork)
}

/// Reports whether the calling thread's network namespace is the one that the kernel booted with.
pub fn is_the_first(proc: &Path) -> bool {
    proc.join(SYSCTL_OF_THE_FIRST).exists()
}

/// Returns the first line of a file; it is empty if there is no file.
fn first_line(path: &Path) -> String {
    let mut line = Vec::new();
    if let Ok(file) = File::open(path) {
        // After an error the bytes read before it are used.
        let _ = BufReader::new(file.take(256)).read_until(b'\n', &mut line);
    }
    String::from_utf8_lossy(&line).into_owned()
}

/// Returns the addresses of the calling thread's namespace, in the kernel's order, without `::6`, which Gybe itself
/// adds to `lo`.
pub fn addresses() -> Result<Vec<IpAddr>, RoutesError> {
    let found = routes::addresses()?.into_iter().map(|address| address.ip);
    Ok(found.filter(|ip| *ip != PASSTHROUGH_V6).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::TestDir;
    use std::fs;

    #[test]
    fn a_node_is_recognized_by_the_first_namespace_or_the_kubelets_hosts_file() {
        let directory = TestDir::new("own-namespace");
        let (proc, hosts) = (directory.join("proc"), directory.join("hosts"));
        fs::create_dir_all(proc.join("sys/net/core")).unwrap();
        assert_eq!(node_evidence(&proc, &hosts), None, "no evidence at all");
        fs::write(&hosts, "# Kubernetes-managed hosts file.\n127.0.0.1 localhost\n").unwrap();
        assert_eq!(node_evidence(&proc, &hosts), None, "a pod with a network of its own");
        fs::write(&hosts, "# Kubernetes-managed hosts file (host network).\n127.0.0.1 x\n").unwrap();
        assert_eq!(node_evidence(&proc, &hosts), Some(NodeEvidence::HostNetwork));
        fs::write(proc.join(SYSCTL_OF_THE_FIRST), "1000\n").unwrap();
        assert_eq!(node_evidence(&proc, &hosts), Some(NodeEvidence::First));
    }
}
