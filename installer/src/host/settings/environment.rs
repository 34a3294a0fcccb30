//! Paths and identities: settings from the environment alone, so fixed for the life of the process.

use super::reader::{RawSetting, SettingsReader};
use super::sources::config_directory;
use crate::host::observe::NodeDirectories;
use gybe_netfilter::model::policy::ambient::ProbeAddresses;
use gybe_netfilter::model::policy::{decimal, port};
use gybe_plugin::probe_cache::DIRECTORY;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    pub config: PathBuf,
    /// The node's directories, as mounted in this container.
    pub directories: NodeDirectories,
    /// The image's programs.
    pub image: PathBuf,
    /// The directory of the sockets and the kubeconfig: the same path in this container and on the host.
    pub run: PathBuf,
    /// The directory of the probe report.
    pub probe: PathBuf,
    /// The directory of istio-cni's agent's sockets, as mounted in this container.
    pub istio_run: PathBuf,
    /// This node's name; empty if not set.
    pub node: String,
    /// The agent's namespace; empty if not set.
    pub namespace: String,
    /// The agent's pod; empty if not set.
    pub pod: String,
    /// The DaemonSet of that pod.
    pub daemonset: String,
    /// The namespace of istiod.
    pub control_plane: String,
    /// A directory of the agent's pod alone, with its status socket; none outside of a pod.
    pub pod_directory: Option<PathBuf>,
    /// None where ambient mode is off.
    pub ambient: Option<AmbientEnvironment>,
    /// The address of `/healthz`, `/readyz` and `/left`.
    pub health: Option<Listen>,
    /// The address of `/metrics`.
    pub metrics: Option<Listen>,
    /// The API server, for a kubeconfig.
    pub api: ApiServer,
    /// Permission bits of files in the conf directory that belong to Gybe alone.
    pub conf_mode: u32,
    /// Permission bits of the kubeconfig.
    pub kubeconfig_mode: u32,
}

/// Ambient mode, which needs a mount and a right: so a DaemonSet switches it on, and no ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AmbientEnvironment {
    /// The socket at which ztunnel connects.
    pub socket: PathBuf,
    /// The source addresses of probes.
    pub probes: ProbeAddresses,
    /// The namespace of Istio's components, ztunnel among them.
    pub system_namespace: String,
}

/// The API server, as the plugin reaches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiServer {
    /// A name or an address; empty if not set.
    pub host: String,
    /// Empty if not set.
    pub port: String,
    /// How its certificate is verified.
    pub trust: ServerTrust,
    /// The directory with the token and the CA of the agent's service account.
    pub service_account: PathBuf,
}

/// How the API server's certificate is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerTrust {
    /// By the CA in this file.
    Ca(PathBuf),
    Any,
}

/// The variable with the directory of the agent's pod alone.
pub const POD_DIRECTORY: &str = "GYBE_POD_DIR";
/// The socket in that directory at which an agent reports its own status, also while another one leads.
pub const STATUS_SOCKET: &str = "status.sock";

/// The names of a leader's lock file and socket (`lead::leader`).
#[derive(Debug, Clone, Copy)]
pub struct LeaderFiles {
    pub lock: &'static str,
    pub socket: &'static str,
}

/// Those of the node's leading agent, in the run directory.
pub const AGENT_LEADER: LeaderFiles = LeaderFiles { lock: "leader.lock", socket: "leader.sock" };
/// Those of the leading probe.
pub const PROBE_LEADER: LeaderFiles = LeaderFiles { lock: "probe-leader.lock", socket: "probe-leader.sock" };
/// The path at which ztunnel's chart expects the agent.
pub const ZTUNNEL_SOCKET: &str = "/var/run/ztunnel/ztunnel.sock";
/// The facts socket's name in the run directory.
pub const FACTS_SOCKET: &str = "facts.sock";
/// The kubeconfig's name in the run directory.
pub const KUBECONFIG: &str = "kubeconfig";
/// The kubeconfig's name until it is complete. A write that was interrupted leaves the file, with a token in it.
pub const KUBECONFIG_TEMPORARY: &str = ".kubeconfig.gybe.tmp";
/// The directory into which the kubelet puts a service account's files.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

pub(super) fn read(reader: &mut SettingsReader<'_>) -> Environment {
    let cache = reader.path("MOUNTED_CNI_CACHE_DIR", "/host/var/lib/cni");
    let directories = NodeDirectories {
        conf: reader.path("MOUNTED_CNI_NET_DIR", "/host/etc/cni/net.d"),
        programs: reader.path("MOUNTED_CNI_BIN_DIR", "/host/opt/cni/bin"),
        results: cache.join("results"),
    };
    let node = reader.variable("KUBERNETES_NODE_NAME").or_else(|| reader.variable("NODE_NAME"));
    let node = node.or_else(|| reader.variable("REPAIR_NODE_NAME"));
    let control_plane = reader.variable("SYSTEM_NAMESPACE").map_or("istio-system", |setting| setting.text);
    Environment {
        config: config_directory(&reader.sources.environment),
        directories,
        image: reader.path("GYBE_PROGRAMS_DIR", "/opt/gybe/bin"),
        run: reader.path("CNI_AGENT_RUN_DIR", "/run/gybe"),
        probe: reader.path("GYBE_PROBE_DIR", DIRECTORY),
        istio_run: reader.path("GYBE_ISTIO_RUN_DIR", "/var/run/istio-cni"),
        node: node.map_or(String::new(), |setting| setting.text.to_owned()),
        namespace: reader.text("POD_NAMESPACE"),
        pod: reader.text("POD_NAME"),
        daemonset: reader.variable("GYBE_DAEMONSET").map_or("gybe-node", |setting| setting.text).to_owned(),
        pod_directory: reader.variable(POD_DIRECTORY).map(|setting| setting.text.into()),
        control_plane: control_plane.to_owned(),
        ambient: ambient(reader, control_plane),
        health: listen(reader, "HEALTH_ADDRESS", "HEALTH_PORT", 8000),
        metrics: listen(reader, "MONITORING_ADDRESS", "MONITORING_PORT", 15014),
        api: api_server(reader),
        conf_mode: conf_mode(reader),
        kubeconfig_mode: kubeconfig_mode(reader),
    }
}

fn ambient(reader: &mut SettingsReader<'_>, system_namespace: &str) -> Option<AmbientEnvironment> {
    if !reader.yes(reader.variable("AMBIENT_ENABLED")) {
        return None;
    }
    let socket = reader.path("ZTUNNEL_UDS_ADDRESS", ZTUNNEL_SOCKET);
    let probes = ProbeAddresses::default();
    let probes = probe_address(reader, "HOST_PROBE_SNAT_IP", probes, |v4| probes.with_v4(v4).ok());
    let probes = probe_address(reader, "HOST_PROBE_SNAT_IPV6", probes, |v6| probes.with_v6(v6).ok());
    Some(AmbientEnvironment { socket, probes, system_namespace: system_namespace.to_owned() })
}

fn probe_address<A: FromStr>(
    reader: &mut SettingsReader<'_>,
    name: &'static str,
    probes: ProbeAddresses,
    with: impl FnOnce(A) -> Option<ProbeAddresses>,
) -> ProbeAddresses {
    let Some(setting) = reader.variable(name) else { return probes };
    let changed = setting.text.parse().ok().and_then(with);
    if changed.is_none() {
        reader.refuse(setting, "must be the address of one host, and no loopback or multicast address");
    }
    changed.unwrap_or(probes)
}

fn api_server(reader: &mut SettingsReader<'_>) -> ApiServer {
    let service_account = reader.path("GYBE_SERVICE_ACCOUNT_DIR", SERVICE_ACCOUNT);
    let ca = service_account.join("ca.crt");
    let trust = match reader.yes(reader.variable("SKIP_TLS_VERIFY")) {
        true => ServerTrust::Any,
        false => ServerTrust::Ca(reader.path("KUBE_CA_FILE", &ca.to_string_lossy())),
    };
    ApiServer {
        host: reader.text("KUBERNETES_SERVICE_HOST"),
        port: reader.text("KUBERNETES_SERVICE_PORT"),
        trust,
        service_account,
    }
}

fn conf_mode(reader: &mut SettingsReader<'_>) -> u32 {
    if reader.yes(reader.variable("CNI_CONF_GROUP_READ")) { 0o640 } else { 0o600 }
}

/// Parses a number as the incumbent does: `384` is decimal, `0600` and `0o600` are octal.
fn kubeconfig_mode(reader: &mut SettingsReader<'_>) -> u32 {
    let Some(setting) = reader.variable("KUBECONFIG_MODE") else { return 0o600 };
    let octal = setting.text.strip_prefix("0o").or_else(|| setting.text.strip_prefix('0'));
    let mode = octal.map_or_else(|| setting.text.parse(), |digits| u32::from_str_radix(digits, 8));
    match mode {
        Ok(mode @ (0o400 | 0o440 | 0o600 | 0o640)) => mode,
        _ => {
            reader.refuse(setting, "must be 0600, 0640, 0400 or 0440, because the file holds a token");
            0o600
        }
    }
}

impl Environment {
    /// The path of the facts socket.
    #[must_use]
    pub fn facts_socket(&self) -> PathBuf {
        self.run.join(FACTS_SOCKET)
    }

    /// The path of the kubeconfig. It is not on a disk: no token outlives the boot in which it was made, no
    /// power failure leaves a part of one, and the agent, which needs no pod network, is up before any program
    /// could need it.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.run.join(KUBECONFIG)
    }
}

/// A listen address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// None for every address of the host.
    pub address: Option<IpAddr>,
    /// A TCP port.
    pub port: u16,
}

impl Listen {
    /// The addresses to bind, in order, until one works: `[::]` accepts IPv4 too, and a host without IPv6 does
    /// not have it.
    pub fn addresses(self) -> impl Iterator<Item = SocketAddr> {
        let every = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
        let all = self.address.map_or(every.to_vec(), |address| vec![address]);
        all.into_iter().map(move |address| SocketAddr::new(address, self.port))
    }
}

/// Returns none if the port is 0 or less, as for the incumbent.
fn listen(
    reader: &mut SettingsReader<'_>,
    address: &'static str,
    port: &'static str,
    default: u16,
) -> Option<Listen> {
    let setting = reader.variable(address);
    let (address, own_port) = setting.map_or((None, None), |setting| parse_address(reader, setting));
    let port = match reader.variable(port) {
        Some(setting) => parse_port(reader, setting),
        None => Some(default),
    };
    own_port.or(port).map(|port| Listen { address, port })
}

/// Parses `10.0.0.1`, `::1`, and with a port `10.0.0.1:8000`, `[::1]:8000`, `:8000`.
fn parse_address(reader: &mut SettingsReader<'_>, setting: RawSetting<'_>) -> (Option<IpAddr>, Option<u16>) {
    let alone =
        setting.text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(setting.text);
    if let Ok(address) = alone.parse() {
        return (Some(address), None);
    }
    if let Ok(both) = setting.text.parse::<SocketAddr>() {
        return (Some(both.ip()), Some(both.port()));
    }
    if let Some(Ok(port)) = setting.text.strip_prefix(':').map(port) {
        return (None, Some(port));
    }
    reader.refuse(setting, "must be an IP address, with or without a port");
    (None, None)
}

fn parse_port(reader: &mut SettingsReader<'_>, setting: RawSetting<'_>) -> Option<u16> {
    let is_negative = setting.text.strip_prefix('-').is_some_and(|text| decimal(text).is_some());
    match port(setting.text) {
        Ok(0) => None,
        Ok(port) => Some(port),
        Err(_) if is_negative => None,
        Err(_) => {
            reader.refuse(setting, "must be a port, or 0 for none");
            None
        }
    }
}
