//! What the kubelet says about a pod when it wants a sandbox; not the calls.

use std::collections::HashMap;

use k8s_cri::v1;

/// A pod's sandbox to be.
#[derive(Debug, Clone, Default)]
pub struct Sandbox {
    /// metadata.name
    pub name: String,
    /// metadata.namespace
    pub namespace: String,
    /// metadata.annotations
    pub annotations: HashMap<String, String>,
    /// Ports of the node that lead to ports of the pod.
    pub host_ports: Vec<(u16, u16)>,
    /// In whose user namespace it runs.
    pub users: Users,
    /// In whose network namespace.
    pub network: Network,
    /// How often the kubelet has tried before.
    pub attempt: u32,
}

/// Whose ids the pod's are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Users {
    /// The node's: the pod's root is the node's root.
    #[default]
    OfTheNode,
    /// The pod's own (`hostUsers: false`), mapped to 65536 ids of the node from this one on.
    From(u32),
}

/// Whose network the pod's is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Network {
    /// Its own, which CNI plugins make.
    #[default]
    OfThePod,
    /// The node's (`hostNetwork: true`), and no plugin is called.
    OfTheNode,
}

impl Network {
    /// The CRI's word for it.
    pub(crate) fn mode(self) -> i32 {
        match self {
            Network::OfThePod => v1::NamespaceMode::Pod.into(),
            Network::OfTheNode => v1::NamespaceMode::Node.into(),
        }
    }
}

/// Where a sandbox's containers log, inside the stage.
pub const LOGS: &str = "/run/gybe/logs";

impl Sandbox {
    /// A pod without annotations.
    pub fn named(namespace: &str, name: &str) -> Sandbox {
        Sandbox { name: name.into(), namespace: namespace.into(), ..Sandbox::default() }
    }

    /// A pod that Istio's injector has seen. Its annotations reach the plugin by the runtime too, and
    /// one without this is known to be outside the mesh.
    pub fn injected(namespace: &str, name: &str) -> Sandbox {
        Sandbox::named(namespace, name).annotated("sidecar.istio.io/status", "{}")
    }

    /// The same with one more annotation.
    pub fn annotated(mut self, key: &str, value: &str) -> Sandbox {
        self.annotations.insert(key.into(), value.into());
        self
    }

    /// The same with a port of the node that leads to one of the pod.
    pub fn published(mut self, node: u16, pod: u16) -> Sandbox {
        self.host_ports.push((node, pod));
        self
    }

    /// metadata.uid: made of the name, for two pods of one name are one pod here.
    pub fn uid(&self) -> String {
        format!("uid-of-{}-{}", self.namespace, self.name)
    }

    /// The CRI's words for it.
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
            // A pod in the node's network has the node's name.
            hostname: match self.network {
                Network::OfThePod => self.name.clone(),
                Network::OfTheNode => String::new(),
            },
            dns_config: Some(v1::DnsConfig {
                servers: vec!["10.96.0.10".into()],
                searches: vec![format!("{}.svc.cluster.local", self.namespace)],
                options: vec!["ndots:5".into()],
            }),
            port_mappings: self.host_ports.iter().copied().map(mapping).collect(),
            labels: labels.map(|(key, value)| (key.into(), value)).into(),
            annotations: self.annotations.clone(),
            log_directory: LOGS.into(),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: cgroup.into(),
                security_context: Some(security(self.users, self.network)),
                ..v1::LinuxPodSandboxConfig::default()
            }),
            ..v1::PodSandboxConfig::default()
        }
    }
}

fn security(users: Users, network: Network) -> v1::LinuxSandboxSecurityContext {
    let own = match users {
        Users::OfTheNode => None,
        Users::From(first) => {
            let ids = vec![v1::IdMapping { host_id: first, container_id: 0, length: 65536 }];
            Some(v1::UserNamespace { mode: v1::NamespaceMode::Pod.into(), uids: ids.clone(), gids: ids })
        }
    };
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(v1::NamespaceOption {
            userns_options: own,
            network: network.mode(),
            ..v1::NamespaceOption::default()
        }),
        ..v1::LinuxSandboxSecurityContext::default()
    }
}

fn mapping((node, pod): (u16, u16)) -> v1::PortMapping {
    v1::PortMapping {
        protocol: v1::Protocol::Tcp.into(),
        container_port: pod.into(),
        host_port: node.into(),
        host_ip: String::new(),
    }
}
