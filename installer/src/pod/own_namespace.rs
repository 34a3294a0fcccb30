//! The network namespace that a program runs in: its addresses, whether it is a node's, and its DNS servers.
//!
//! `gybe init` writes into the pod's namespace. In a node's namespace the same rules would send every connection
//! of the node to a port without a listener.

use gybe_netfilter::kernel::routes::{self, RoutesError};
use gybe_netfilter::model::policy::istio::PASSTHROUGH_V6;
use nix::libc::O_NONBLOCK;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

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

/// In bytes; a thousand times the usual length.
const MAX_SIZE: u64 = 256 * 1024;

pub const PATH: &str = "/etc/resolv.conf";

#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", .path.display())]
pub struct ResolvConfError {
    pub path: PathBuf,
    pub source: io::Error,
}

/// Returns the servers in the order of the file at `path`.
///
/// # Errors
/// When it cannot be read, is not UTF-8 or is too long.
pub fn servers_of(path: &Path) -> Result<Vec<IpAddr>, ResolvConfError> {
    let read = || {
        // Without O_NONBLOCK, open(2) of a FIFO waits for a writer.
        let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
        let mut text = String::new();
        if file.take(MAX_SIZE + 1).read_to_string(&mut text)? as u64 > MAX_SIZE {
            return Err(io::Error::other(format!("it is longer than {MAX_SIZE} bytes")));
        }
        Ok(servers(&text))
    };
    read().map_err(|source| ResolvConfError { path: path.to_owned(), source })
}

/// Returns the servers in the text of such a file; resolv.conf(5). An invalid address is skipped, as resolvers do. An
/// indented line counts: resolvers in Go and `istio-iptables` read it, glibc does not.
fn servers(text: &str) -> Vec<IpAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        words.next().filter(|keyword| *keyword == "nameserver")?;
        address(words.next()?)
    };
    text.lines().filter_map(server).collect()
}

/// A link-local server is written with its interface, `fe80::1%eth0`, which is not part of the address in a
/// packet. A query to a mapped IPv4 address is an IPv4 packet.
fn address(word: &str) -> Option<IpAddr> {
    let address = word.split_once('%').map_or(word, |(address, _)| address);
    Some(address.parse::<IpAddr>().ok()?.to_canonical())
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

    #[test]
    fn servers_are_read_as_a_resolver_reads_them() {
        let text = "# nameserver 1.1.1.1\n; nameserver 1.1.1.2\nsearch a.svc.cluster.local\n\
                    nameserver 10.96.0.10\nnameserver\tfd00::a # not a comment to us\noptions ndots:5\n\
                    nameservers 1.1.1.3\nnameserver\nnameserver dns.example\nnameserver fe80::1%eth0\n\
                    nameserver ::ffff:10.96.0.11\r\n \tnameserver 10.96.0.12\n#nameserver 10.96.0.13";
        let found: Vec<String> = servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.96.0.10", "fd00::a", "fe80::1", "10.96.0.11", "10.96.0.12"]);
    }

    #[test]
    fn a_missing_or_endless_file_is_an_error() {
        for path in ["/nonexistent/resolv.conf", "/dev/zero", "/"] {
            let error = servers_of(Path::new(path)).unwrap_err();
            assert!(error.to_string().contains(path), "{error}");
        }
    }
}
