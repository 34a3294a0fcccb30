//! Istio's constants and default policy. The readers of pods and of policy files apply deviations from the default.

use super::{
    CidrSet, Destinations, Dns, Families, Groups, Inbound, InvalidPackets, LoopbackCidr, Mark, Mode,
    Outbound, Owners, Port, PortSet, RedirectPolicy,
};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The uid and gid of the proxy.
pub const PROXY_ID: u32 = 1337;

/// The proxy's listener for outbound connections.
pub const OUTBOUND_PORT: Port = Port::new(15001).unwrap();

/// The proxy's listener for inbound connections.
pub const INBOUND_PORT: Port = Port::new(15006).unwrap();

/// The proxy's tunnel port (HBONE).
pub const TUNNEL_PORT: Port = Port::new(15008).unwrap();

/// The port of the DNS resolver in Istio's agent, which is not configurable.
pub const AGENT_DNS_PORT: Port = Port::new(15053).unwrap();

/// The port of merged telemetry. By default, istio-cni does not capture outbound connections to it either.
pub const TELEMETRY_PORT: u16 = 15020;

/// Ports that the proxy itself serves: telemetry, readiness, Envoy's statistics. They are not captured, so that the
/// kubelet's probes reach the proxy.
pub const PROXY_PORTS: [u16; 3] = [TELEMETRY_PORT, 15021, 15090];

/// The default mark of packets that belong to the proxy's transparent sockets.
pub const TPROXY_MARK: Mark = 1337;

/// The default routing table, which delivers packets with that mark locally.
pub const TPROXY_TABLE: u32 = 133;

/// Mark of the proxy's connections to its own pod in TPROXY mode; not configurable.
pub const OWN_POD_MARK: Mark = 1338;

/// The source address of Istio's inbound passthrough cluster, with which the proxy connects to the application. The
/// proxy's other connections to its own pod have another source.
pub const PASSTHROUGH_V4: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
/// The same for IPv6, which has a single loopback address: `::6` must be added to `lo`.
pub const PASSTHROUGH_V6: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6);

impl RedirectPolicy {
    /// The default policy of the init container that Istio injects, for a pod without annotations. istio-cni also
    /// excludes [`TELEMETRY_PORT`] outbound.
    pub fn injected(families: Families) -> Self {
        Self {
            mode: Mode::Redirect,
            outbound_port: OUTBOUND_PORT,
            inbound_port: INBOUND_PORT,
            tunnel_port: TUNNEL_PORT,
            proxy_uids: Owners::new(PROXY_ID, []),
            proxy_gids: Owners::new(PROXY_ID, []),
            inbound: Inbound::AllBut(PROXY_PORTS.into_iter().collect()),
            outbound: Outbound {
                excluded_ports: PortSet::default(),
                excluded_to: CidrSet::default(),
                included_ports: PortSet::default(),
                included_to: Destinations::All,
                groups: Groups::AllBut(BTreeSet::new()),
            },
            excluded_interfaces: BTreeSet::new(),
            virtual_interfaces: BTreeSet::new(),
            dns: Dns::Off,
            invalid: InvalidPackets::Pass,
            loopback: LoopbackCidr::default(),
            families,
        }
    }
}
