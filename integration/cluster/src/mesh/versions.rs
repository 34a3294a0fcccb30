//! The versions of the programs that run in the mesh, and what depends on them.

use gybe_bench::report::{Report, Table, cells};
use gybe_containerd_tests::Generation;
use gybe_integration::failure::Failure;

use super::MeshDirectories;
use crate::cluster::Cluster;
use crate::components::ProxyMode;

/// The versions on which a scenario depends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Versions {
    /// Of Kubernetes 1.
    minor: u32,
    containerd: Generation,
}

impl Versions {
    pub(super) fn of(cluster: &Cluster, containerd: Generation) -> Result<Versions, Failure> {
        let printed = cluster.run("kubelet", &["--version"])?;
        let minor = minor(&printed)
            .ok_or_else(|| Failure::new(format!("`kubelet --version` printed {printed:?}: not a version")))?;
        Ok(Versions { minor, containerd })
    }

    /// Returns how kube-proxy writes its rules by default: nftables where the feature gate NFTablesProxyMode is on by
    /// default, from 1.31.
    pub(super) fn proxy_mode(self) -> ProxyMode {
        if self.minor >= 31 { ProxyMode::Nftables } else { ProxyMode::Iptables }
    }

    /// Returns why no pod has users of its own (`hostUsers: false`), if none can.
    pub(super) fn without_user_namespaces(self) -> Option<&'static str> {
        if self.minor < 33 {
            Some("the feature gate UserNamespacesSupport is off by default before Kubernetes 1.33")
        } else if self.containerd != Generation::V2 {
            Some("the kubelet requires containerd 2.0 or later for them")
        } else {
            None
        }
    }

    /// Returns the table of what runs.
    pub(super) fn table(
        self,
        cluster: &Cluster,
        directories: &MeshDirectories,
        proxy_mode: ProxyMode,
    ) -> Result<Report, Failure> {
        let first_line = |program: &str, option: &str| {
            let output = cluster.run(program, &[option])?;
            Ok::<_, Failure>(output.trim().lines().next().unwrap_or_default().to_owned())
        };
        let containerd = self.containerd.programs()?.join("containerd");
        let rows = [
            ("Kubernetes", first_line("kubelet", "--version")?),
            ("Istio", std::fs::read_to_string(directories.istio.join("version"))?.trim().to_owned()),
            ("Envoy", first_line("envoy", "--version")?),
            ("containerd", first_line(&containerd.to_string_lossy(), "--version")?),
            ("runc", first_line("runc", "--version")?),
            ("CoreDNS", first_line("coredns", "-version")?),
            ("kube-proxy's mode", proxy_mode.to_string()),
        ];
        let table = Table {
            title: "Versions".into(),
            head: cells(["Program", "Version"]),
            rows: rows.map(|(name, version)| vec![name.to_owned(), version]).to_vec(),
        };
        Ok(Report { tables: vec![table], targets: Vec::new() })
    }
}

/// Parses what `kubelet --version` prints.
fn minor(printed: &str) -> Option<u32> {
    printed.strip_prefix("Kubernetes v1.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(kubelet: &str, containerd: Generation) -> Versions {
        Versions { minor: minor(kubelet).unwrap(), containerd }
    }

    #[test]
    fn what_a_version_lacks_is_known() {
        for (kubelet, containerd, mode, user_namespaces) in [
            ("Kubernetes v1.30.14\n", Generation::V1_7, ProxyMode::Iptables, false),
            ("Kubernetes v1.31.0\n", Generation::V2, ProxyMode::Nftables, false),
            ("Kubernetes v1.33.13\n", Generation::V1_7, ProxyMode::Nftables, false),
            ("Kubernetes v1.33.13\n", Generation::V2, ProxyMode::Nftables, true),
            ("Kubernetes v1.37.2\n", Generation::V2, ProxyMode::Nftables, true),
        ] {
            let versions = versions(kubelet, containerd);
            assert_eq!(versions.proxy_mode(), mode, "{kubelet}");
            assert_eq!(versions.without_user_namespaces().is_none(), user_namespaces, "{versions:?}");
        }
        assert_eq!(minor("Kubernetes v0.0.0-master+$Format:%H$\n"), None);
    }
}
