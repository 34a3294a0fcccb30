//! Istio's fixed values, and the policy they come to when nobody asks for anything else. Who may ask
//! for what is known to the readers of pods and policy files.

use super::{
    CidrSet, Destinations, Dns, Families, Groups, Inbound, InvalidPackets, LoopbackCidr, Mark, Mode,
    Outbound, Owners, Port, PortSet, RedirectPolicy,
};
use std::collections::BTreeSet;

/// The user and the group the proxy runs as.
pub const PROXY_ID: u32 = 1337;

/// Where the proxy listens for outbound connections.
pub const OUTBOUND_PORT: Port = Port::new(15001).unwrap();

/// Where it listens for inbound ones.
pub const INBOUND_PORT: Port = Port::new(15006).unwrap();

/// Its own tunnel port.
pub const TUNNEL_PORT: Port = Port::new(15008).unwrap();

/// Merged telemetry; other pods' is left alone on the way out too.
pub const TELEMETRY_PORT: u16 = 15020;

/// The ports on which the proxy itself is asked: telemetry, readiness, Envoy's statistics. They are
/// left alone, or the kubelet could not ask the proxy how it is.
pub const PROXY_PORTS: [u16; 3] = [TELEMETRY_PORT, 15021, 15090];

/// Mark of packets that belong to the proxy's transparent sockets.
pub const TPROXY_MARK: Mark = 1337;

/// The table that delivers them.
pub const TPROXY_TABLE: u32 = 133;

/// Mark of the proxy's calls to its own pod under TPROXY; nobody can choose another.
pub const OWN_POD_MARK: Mark = 1338;

impl RedirectPolicy {
    /// What the injector asks for of itself.
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
