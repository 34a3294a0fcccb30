//! The arguments of Kubernetes' programs and etcd.

use std::{fmt, fs};

use gybe_containerd_tests::SimulatedHost;
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use crate::credentials::{DIRECTORY, file, kubeconfig};
use crate::network::{DNS_ADDRESS, NODE_ADDRESS, NodeNumber, SERVICE_RANGES};

/// etcd's address for clients.
const ETCD: &str = "http://127.0.0.1:2379";

/// The API server's log of requests, on the node, and its policy.
pub(crate) const AUDIT_LOG: &str = "/run/gybe/kubernetes/audit.log";
const AUDIT_POLICY: &str = "audit-policy.json";

/// etcd with its data in memory.
pub(crate) fn etcd() -> Vec<String> {
    strings(&[
        "--data-dir=/var/lib/etcd",
        "--unsafe-no-fsync",
        &format!("--listen-client-urls={ETCD}"),
        &format!("--advertise-client-urls={ETCD}"),
        "--listen-peer-urls=http://127.0.0.1:2380",
    ])
}

/// The API server, at the port of the service `kubernetes`.
pub(crate) fn apiserver() -> Vec<String> {
    strings(&[
        &format!("--etcd-servers={ETCD}"),
        &format!("--advertise-address={NODE_ADDRESS}"),
        "--secure-port=443",
        &format!("--service-cluster-ip-range={SERVICE_RANGES}"),
        &format!("--tls-cert-file={}", file("apiserver.crt")),
        &format!("--tls-private-key-file={}", file("apiserver.key")),
        &format!("--cert-dir={DIRECTORY}"),
        &format!("--token-auth-file={}", file("tokens.csv")),
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        &format!("--service-account-key-file={}", file("service-accounts.pub")),
        &format!("--service-account-signing-key-file={}", file("service-accounts.key")),
        "--api-audiences=https://kubernetes.default.svc,istio-ca",
        &format!("--audit-policy-file={}", file(AUDIT_POLICY)),
        &format!("--audit-log-path={AUDIT_LOG}"),
        "--profiling=false",
    ])
}

/// Writes the API server's policy: the log has the requests of Gybe's agents alone.
pub(crate) fn write_audit_policy(host: &SimulatedHost) -> Result<(), Failure> {
    let agents = "system:serviceaccount:gybe-system:gybe-node";
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{ "level": "Metadata", "users": [agents] }, { "level": "None" }],
    });
    Ok(fs::write(host.path(file(AUDIT_POLICY)), policy.to_string())?)
}

pub(crate) fn controller_manager() -> Vec<String> {
    let config = kubeconfig("controller-manager");
    strings(&[
        &format!("--kubeconfig={config}"),
        &format!("--authentication-kubeconfig={config}"),
        &format!("--authorization-kubeconfig={config}"),
        &format!("--cert-dir={DIRECTORY}"),
        &format!("--root-ca-file={}", file("ca.crt")),
        &format!("--service-account-private-key-file={}", file("service-accounts.key")),
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--profiling=false",
    ])
}

pub(crate) fn scheduler() -> Vec<String> {
    let config = kubeconfig("scheduler");
    strings(&[
        &format!("--kubeconfig={config}"),
        &format!("--authentication-kubeconfig={config}"),
        &format!("--authorization-kubeconfig={config}"),
        &format!("--cert-dir={DIRECTORY}"),
        "--leader-elect=false",
        "--profiling=false",
    ])
}

pub(crate) fn kubelet(node: NodeNumber) -> Vec<String> {
    strings(&[
        &format!("--config={}", file("kubelet.json")),
        &format!("--kubeconfig={}", kubeconfig(&node.to_string())),
        &format!("--hostname-override={node}"),
        &format!("--node-ip={},{}", node.address(), node.address_6()),
        &format!("--cert-dir={DIRECTORY}"),
        "--root-dir=/var/lib/kubelet",
    ])
}

/// How kube-proxy writes its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ProxyMode {
    Nftables,
    Iptables,
}

impl fmt::Display for ProxyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProxyMode::Nftables => "nftables",
            ProxyMode::Iptables => "iptables",
        })
    }
}

/// The proxy of services. The kernel's limits of connections are the whole machine's.
pub(crate) fn proxy(mode: ProxyMode, node: NodeNumber) -> Vec<String> {
    strings(&[
        &format!("--kubeconfig={}", kubeconfig("proxy")),
        &format!("--hostname-override={node}"),
        &format!("--proxy-mode={mode}"),
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    ])
}

/// CoreDNS with this file of its configuration.
pub(crate) fn dns(corefile: &str) -> Vec<String> {
    strings(&["-conf", corefile])
}

/// The names of the cluster's services, from the API server.
pub(crate) fn corefile(node: NodeNumber) -> String {
    format!(
        "cluster.local:53 {{\n    bind {DNS_ADDRESS} {}\n    errors\n    kubernetes {{\n        kubeconfig {}\n    }}\n}}\n",
        node.address_6(),
        kubeconfig("admin")
    )
}

/// The kubelet's configuration. All cgroups are below `cgroup`, which ends with the node. The node registers with `taint`. The oom score and
/// memory limits stay as they are: the machine may forbid to change them.
pub(crate) fn kubelet_configuration(cgroup: &str, runtime: &str, taint: Option<&str>) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        "containerRuntimeEndpoint": format!("unix://{runtime}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": false,
        "localStorageCapacityIsolation": false,
        "evictionHard": { "memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%" },
        "imageGCHighThresholdPercent": 100,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "maxPods": 250,
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        // Many pods at a time: the default of 50 requests a second is for clusters of many nodes.
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "registerWithTaints": taint.map(|key| json!({ "key": key, "effect": "NoSchedule" })).as_slice(),
    })
}

/// Kernel settings that the kubelet would write if they had other values (`setupKernelTunables`,
/// pkg/kubelet/cm/container_manager_linux.go, v1.36). The node shows it these values instead, because they are
/// the whole machine's.
pub(crate) const KERNEL_SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

fn strings(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}
