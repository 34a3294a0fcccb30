//! The kinds of node whose runtime has its own directories (docs/ISTIO.md, section 5), and how a node's kind is
//! recognized. Pure, except for looking at the host's files.

use crate::host::observe::NodeDirectories;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

/// A kind of node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    /// The default directories of containerd and CRI-O.
    Usual,
    /// GKE, on Container-Optimized OS, where `/opt` is read-only, and on Ubuntu.
    Gke,
    /// OpenShift: Multus is the primary, and selects networks by name.
    OpenShift,
    /// k3s has its own containerd and directories.
    K3s,
    /// k3d runs k3s in a container, whose plugins are among its programs.
    K3d,
    /// MicroK8s is a snap.
    MicroK8s,
    /// Bottlerocket always enforces SELinux.
    Bottlerocket,
    /// Talos has no shell, and no users.
    Talos,
}

const ALL: [Platform; 8] = [
    Platform::OpenShift,
    Platform::K3d,
    Platform::K3s,
    Platform::MicroK8s,
    Platform::Gke,
    Platform::Bottlerocket,
    Platform::Talos,
    Platform::Usual,
];

/// The directories of a host, as paths of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Directories {
    pub conf: &'static str,
    pub programs: &'static str,
}

const USUAL: Directories = Directories { conf: "/etc/cni/net.d", programs: "/opt/cni/bin" };

const K3S: &str = "/var/lib/rancher/k3s/agent";
const K3S_CONF: &str = "/var/lib/rancher/k3s/agent/etc/cni/net.d";

/// libcni's cache, the same on every kind.
const RESULTS: &str = "/var/lib/cni/results";

impl Platform {
    /// Recognizes the kind of the host whose root is at `root`.
    #[must_use]
    pub fn of_host(root: &Path) -> Self {
        let below = |path: &str| root.join(path.trim_start_matches('/'));
        let release = fs::read_to_string(below("/etc/os-release"))
            .or_else(|_| fs::read_to_string(below("/usr/lib/os-release")));
        Self::recognized_by(&release.unwrap_or_default(), |path| below(path).exists())
    }

    /// Recognizes the kind by os-release(5) and by existing paths.
    fn recognized_by(release: &str, is_there: impl Fn(&str) -> bool) -> Self {
        let id = release.lines().find_map(|line| line.strip_prefix("ID=")).unwrap_or_default();
        let id = id.trim().trim_matches('"');
        let of = |platform: &Self| match platform {
            // Not by Multus' own directory: any node may have it, and it is empty where Multus is not used.
            Self::OpenShift => id == "rhcos",
            // k3s looks for plugins where it finds `host-local` (k3s v1.31, pkg/agent/config/config.go).
            Self::K3d => is_there(K3S) && is_there("/bin/host-local"),
            Self::K3s => is_there(K3S),
            Self::MicroK8s => is_there("/var/snap/microk8s/current"),
            Self::Gke => is_there("/home/kubernetes/bin"),
            Self::Bottlerocket => id == "bottlerocket",
            Self::Talos => id == "talos",
            Self::Usual => true,
        };
        ALL.into_iter().find(of).unwrap_or(Self::Usual)
    }

    /// Returns the directories of every platform, below `root`, the path of the host's root in this mount namespace.
    pub fn all_node_directories(root: &Path) -> impl Iterator<Item = NodeDirectories> {
        ALL.into_iter().map(move |platform| platform.node_directories(root))
    }

    #[must_use]
    pub fn directories(self) -> Directories {
        match self {
            Self::Gke => Directories { programs: "/home/kubernetes/bin", ..USUAL },
            Self::OpenShift => Directories { conf: "/etc/cni/multus/net.d", programs: "/var/lib/cni/bin" },
            Self::K3s => Directories { conf: K3S_CONF, programs: "/var/lib/rancher/k3s/data/cni" },
            Self::K3d => Directories { conf: K3S_CONF, programs: "/bin" },
            Self::MicroK8s => Directories {
                conf: "/var/snap/microk8s/current/args/cni-network",
                programs: "/var/snap/microk8s/current/opt/cni/bin",
            },
            Self::Usual | Self::Bottlerocket | Self::Talos => USUAL,
        }
    }

    /// Returns the platform's directories below `root`, the path of the host's root in this mount namespace.
    #[must_use]
    pub fn node_directories(self, root: &Path) -> NodeDirectories {
        let below = |path: &str| -> PathBuf { root.join(path.trim_start_matches('/')) };
        let Directories { conf, programs } = self.directories();
        NodeDirectories { conf: below(conf), programs: below(programs), results: below(RESULTS) }
    }

    /// Further requirements of this kind of node.
    #[must_use]
    pub fn hint(self) -> Option<&'static str> {
        Some(match self {
            Self::OpenShift => {
                "Gybe needs shape: standalone, a NetworkAttachmentDefinition for it, and seLinuxOptions.type spc_t"
            }
            Self::Bottlerocket => "SELinux is always enforcing: the agent needs seLinuxOptions.type spc_t",
            Self::Talos => "the agent's namespace needs pod-security.kubernetes.io/enforce: privileged",
            _ => return None,
        })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Usual => "a node with the default directories",
            Self::Gke => "GKE",
            Self::OpenShift => "OpenShift",
            Self::K3s => "k3s",
            Self::K3d => "k3d",
            Self::MicroK8s => "MicroK8s",
            Self::Bottlerocket => "Bottlerocket",
            Self::Talos => "Talos",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f37_each_platform_is_recognized_and_has_its_directories() {
        let k3s = "/var/lib/rancher/k3s/agent/etc/cni/net.d";
        let (gke, microk8s) = ("/home/kubernetes/bin", "/var/snap/microk8s/current");
        let in_snap =
            ("/var/snap/microk8s/current/args/cni-network", "/var/snap/microk8s/current/opt/cni/bin");
        let usual = ("/etc/cni/net.d", "/opt/cni/bin");
        for (release, there, platform, (conf, programs)) in [
            ("ID=debian\n", [].as_slice(), Platform::Usual, usual),
            ("", &[], Platform::Usual, usual),
            ("ID=debian\n", &["/etc/cni/multus/net.d"], Platform::Usual, usual),
            ("NAME=x\nID=cos\n", &[gke], Platform::Gke, (usual.0, gke)),
            ("ID=ubuntu\n", &[gke], Platform::Gke, (usual.0, gke)),
            ("ID=\"rhcos\"\n", &[], Platform::OpenShift, ("/etc/cni/multus/net.d", "/var/lib/cni/bin")),
            ("ID=debian\n", &[K3S], Platform::K3s, (k3s, "/var/lib/rancher/k3s/data/cni")),
            ("PRETTY_NAME=K3s\n", &[K3S, "/bin/host-local"], Platform::K3d, (k3s, "/bin")),
            ("ID=ubuntu\n", &[microk8s], Platform::MicroK8s, in_snap),
            ("ID=bottlerocket\n", &[], Platform::Bottlerocket, usual),
            ("ID=talos\n", &[], Platform::Talos, usual),
        ] {
            let found = Platform::recognized_by(release, |path| there.contains(&path));
            assert_eq!(found, platform, "{release:?} {there:?}");
            let (directories, host) = (found.node_directories(Path::new("/host")), Path::new("/host"));
            assert_eq!(directories.conf, host.join(&conf[1..]), "{platform}");
            assert_eq!(directories.programs, host.join(&programs[1..]), "{platform}");
        }
    }
}
