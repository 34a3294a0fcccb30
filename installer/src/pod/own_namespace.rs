//! The network namespace a program was started in: its addresses, and whether it is a node's.
//!
//! In a pod it is the pod's, and writing into it is the errand. On a node it is the node's: then the
//! same rules send every connection of the node to a port where nobody listens.

use gybe_netfilter::compile::PASSTHROUGH_V6;
use gybe_netfilter::routes::{self, RoutesError};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::Path;

/// A switch that the kernel shows in its first network namespace alone, because it is about all of
/// them: `net_core_table` of net/core/sysctl_net_core.c is registered for `init_net` only. And
/// `/proc/sys/net` is that of the thread that looks; `unshare -n ls /proc/sys/net/core` shows it.
/// The inode number of `/proc/self/ns/net` is no such sign: older kernels take any that is free.
const SEEN_IN_THE_FIRST_ONLY: &str = "sys/net/core/netdev_max_backlog";

/// What the kubelet writes above `/etc/hosts` of a pod that shares its node's network
/// (`managedHostsHeaderWithHostNetwork` in its source).
const HOST_NETWORK: &str = "# Kubernetes-managed hosts file (host network).";

/// Why a namespace counts as a node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodesOwn {
    /// It is the one the kernel booted with.
    First,
    /// The kubelet says that this pod shares its node's.
    HostNetwork,
}

impl fmt::Display for NodesOwn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "it is the one this kernel booted with",
            Self::HostNetwork => "/etc/hosts says that this pod uses its node's network",
        })
    }
}

/// What shows that the calling thread's network namespace is a node's; nothing, in a pod.
///
/// A node can be a container itself (kind), and look like a pod in all but the kubelet's word.
pub fn nodes_own(proc: &Path, hosts: &Path) -> Option<NodesOwn> {
    if is_the_first(proc) {
        return Some(NodesOwn::First);
    }
    (first_line(hosts).trim_end() == HOST_NETWORK).then_some(NodesOwn::HostNetwork)
}

/// Is the calling thread's network namespace the one the kernel booted with?
pub fn is_the_first(proc: &Path) -> bool {
    proc.join(SEEN_IN_THE_FIRST_ONLY).exists()
}

/// No file, no line.
fn first_line(path: &Path) -> String {
    let mut line = Vec::new();
    if let Ok(file) = File::open(path) {
        // What was read before an error is what there is to judge by.
        let _ = BufReader::new(file.take(256)).read_until(b'\n', &mut line);
    }
    String::from_utf8_lossy(&line).into_owned()
}

/// The addresses of the calling thread's namespace, in the kernel's order, but for the one we give
/// to `lo`: that one says nothing about the pod.
///
/// # Errors
/// When the kernel does not list them.
pub fn addresses() -> Result<Vec<IpAddr>, RoutesError> {
    let found = routes::addresses()?.into_iter().map(|address| address.ip);
    Ok(found.filter(|ip| *ip != PASSTHROUGH_V6).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_node_is_known_by_the_kernels_sign_or_the_kubelets_word() {
        let place = std::env::temp_dir().join(format!("gybe-own-namespace-{}", std::process::id()));
        let (proc, hosts) = (place.join("proc"), place.join("hosts"));
        fs::create_dir_all(proc.join("sys/net/core")).unwrap();
        assert_eq!(nodes_own(&proc, &hosts), None, "no evidence at all");
        fs::write(&hosts, "# Kubernetes-managed hosts file.\n127.0.0.1 localhost\n").unwrap();
        assert_eq!(nodes_own(&proc, &hosts), None, "a pod with a network of its own");
        fs::write(&hosts, "# Kubernetes-managed hosts file (host network).\n127.0.0.1 x\n").unwrap();
        assert_eq!(nodes_own(&proc, &hosts), Some(NodesOwn::HostNetwork));
        fs::write(proc.join(SEEN_IN_THE_FIRST_ONLY), "1000\n").unwrap();
        assert_eq!(nodes_own(&proc, &hosts), Some(NodesOwn::First));
        fs::remove_dir_all(place).unwrap();
    }
}
