//! The configuration of a pod's sandbox as the kubelet passes it to the runtime.

use std::collections::HashMap;

use k8s_cri::v1;
use sha2::{Digest, Sha256};

/// A pod for which a sandbox is requested.
#[derive(Debug, Clone, Default)]
pub struct Sandbox {
    /// `metadata.name`
    pub name: String,
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.annotations`
    pub annotations: HashMap<String, String>,
    /// Ports of the node that are forwarded to the pod.
    pub host_ports: Vec<HostPort>,
    /// The pod's user namespace.
    pub users: UserNamespace,
    /// The pod's network namespace.
    pub network: PodNetwork,
    /// The number of earlier attempts of the kubelet.
    pub attempt: u32,
}

/// A port of the node that is forwarded to a port of the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPort {
    /// The port of the node.
    pub host: u16,
    /// The port of the pod.
    pub container: u16,
}

/// A pod's user namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UserNamespace {
    /// The node's.
    #[default]
    Host,
    /// The pod's own (`hostUsers: false`), mapped to 65536 ids of the node from this one on.
    Own { first_id: u32 },
}

/// A pod's network namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PodNetwork {
    /// The pod's own, which CNI plugins configure.
    #[default]
    Own,
    /// The node's (`hostNetwork: true`); the runtime calls no plugin.
    Host,
}

impl PodNetwork {
    fn mode(self) -> i32 {
        match self {
            PodNetwork::Own => v1::NamespaceMode::Pod.into(),
            PodNetwork::Host => v1::NamespaceMode::Node.into(),
        }
    }
}

/// The directory of the containers' logs on the test node.
pub const LOGS: &str = "/run/gybe/logs";

impl Sandbox {
    /// A pod without annotations.
    pub fn new(namespace: &str, name: &str) -> Sandbox {
        Sandbox { name: name.into(), namespace: namespace.into(), ..Sandbox::default() }
    }

    /// A pod with the annotation of Istio's injector. The plugin also receives annotations from the runtime and
    /// leaves a pod without this one alone.
    pub fn injected(namespace: &str, name: &str) -> Sandbox {
        Sandbox::new(namespace, name).with_annotation("sidecar.istio.io/status", "{}")
    }

    /// Adds an annotation.
    pub fn with_annotation(mut self, key: &str, value: &str) -> Sandbox {
        self.annotations.insert(key.into(), value.into());
        self
    }

    /// Adds a host port.
    pub fn with_host_port(mut self, host: u16, container: u16) -> Sandbox {
        self.host_ports.push(HostPort { host, container });
        self
    }

    /// `metadata.uid`, a UUID derived from the name: two sandboxes of one name belong to one pod.
    pub fn uid(&self) -> String {
        let hash = Sha256::digest(format!("{}/{}", self.namespace, self.name));
        let group = |range| hash.get(range).into_iter().flatten().map(|byte| format!("{byte:02x}")).collect();
        let groups: [String; 5] = [0..4, 4..6, 6..8, 8..10, 10..16].map(group);
        groups.join("-")
    }

    /// The CRI's configuration of this sandbox.
    pub(crate) fn config(&self, cgroup: &str) -> v1::PodSandboxConfig {
        let labels = [
            ("io.kubernetes.pod.name", self.name.clone()),
            ("io.kubernetes.pod.namespace", self.namespace.clone()),
            ("io.kubernetes.pod.uid", self.uid()),
        ];
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: self.name.clone(),
                namespace: self.namespace.clone(),
                uid: self.uid(),
                attempt: self.attempt,
            }),
            // A pod in the node's network has the node's host name.
            hostname: match self.network {
                PodNetwork::Own => self.name.clone(),
                PodNetwork::Host => String::new(),
            },
            dns_config: Some(v1::DnsConfig {
                servers: vec!["10.96.0.10".into()],
                searches: vec![format!("{}.svc.cluster.local", self.namespace)],
                options: vec!["ndots:5".into()],
            }),
            port_mappings: self.host_ports.iter().copied().map(port_mapping).collect(),
            labels: labels.map(|(key, value)| (key.into(), value)).into(),
            annotations: self.annotations.clone(),
            log_directory: LOGS.into(),
            linux: Some(v1::LinuxPodSandboxConfig {
                // As the kubelet's driver cgroupfs names it.
                cgroup_parent: format!("{cgroup}/pod{}", self.uid()),
                security_context: Some(security_context(self.users, self.network)),
                ..v1::LinuxPodSandboxConfig::default()
            }),
            ..v1::PodSandboxConfig::default()
        }
    }
}

fn security_context(users: UserNamespace, network: PodNetwork) -> v1::LinuxSandboxSecurityContext {
    let userns_options = match users {
        UserNamespace::Host => None,
        UserNamespace::Own { first_id } => {
            let ids = vec![v1::IdMapping { host_id: first_id, container_id: 0, length: 65536 }];
            Some(v1::UserNamespace { mode: v1::NamespaceMode::Pod.into(), uids: ids.clone(), gids: ids })
        }
    };
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(v1::NamespaceOption {
            userns_options,
            network: network.mode(),
            ..v1::NamespaceOption::default()
        }),
        ..v1::LinuxSandboxSecurityContext::default()
    }
}

fn port_mapping(HostPort { host, container }: HostPort) -> v1::PortMapping {
    v1::PortMapping {
        protocol: v1::Protocol::Tcp.into(),
        container_port: container.into(),
        host_port: host.into(),
        host_ip: String::new(),
    }
}
