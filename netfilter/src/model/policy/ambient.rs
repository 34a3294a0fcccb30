//! The policy of an ambient pod, whose traffic the node's ztunnel takes through sockets inside the pod's namespace.
//!
//! Ports and marks are constants: a policy with other values than ztunnel's would lead traffic to no listener. The
//! listeners have the ports of a sidecar's ([`super::istio`]).

use super::{Families, InterfaceName, MaskedMark};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The mark of the packets of ztunnel's own sockets.
pub const ZTUNNEL_MARK: MaskedMark = MaskedMark::new(0x539, 0xfff);

/// The mark of connections that ztunnel makes with the client's address, and of the application's packets in them.
pub const ORIGINAL_SOURCE_MARK: MaskedMark = MaskedMark::new(0x111, 0xfff);

/// The routing table that delivers packets with [`ORIGINAL_SOURCE_MARK`] locally.
pub const ORIGINAL_SOURCE_TABLE: u32 = 100;

/// The conntrack zone of ztunnel's own DNS queries.
pub const UPSTREAM_ZONE: u16 = 1;

/// The inbound connections that go to ztunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AmbientInbound {
    /// All TCP connections, except those to ztunnel's own port for HBONE and the kubelet's probes.
    Captured,
    /// None: the pod is an ingress gateway (annotation `ambient.istio.io/bypass-inbound-capture`).
    Bypassed,
}

/// The source addresses of the kubelet's probes, as the node translates them. Connections from and to these addresses
/// are not captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeAddresses {
    v4: Ipv4Addr,
    v6: Ipv6Addr,
}

/// The error of an address that cannot be that of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a probe's address must be that of one host: neither 0.0.0.0 or ::, nor a loopback or multicast address"
)]
pub struct ProbeAddressError;

impl ProbeAddresses {
    /// The same with this IPv4 address.
    ///
    /// # Errors
    /// When it cannot be the source of a packet from the node.
    pub fn with_v4(self, v4: Ipv4Addr) -> Result<Self, ProbeAddressError> {
        let is_bad = v4.is_unspecified() || v4.is_loopback() || v4.is_multicast() || v4.is_broadcast();
        if is_bad { Err(ProbeAddressError) } else { Ok(Self { v4, ..self }) }
    }

    /// The same with this IPv6 address.
    ///
    /// # Errors
    /// As [`ProbeAddresses::with_v4`].
    pub fn with_v6(self, v6: Ipv6Addr) -> Result<Self, ProbeAddressError> {
        let is_bad = v6.is_unspecified() || v6.is_loopback() || v6.is_multicast();
        if is_bad { Err(ProbeAddressError) } else { Ok(Self { v6, ..self }) }
    }

    /// The IPv4 address.
    pub fn v4(self) -> Ipv4Addr {
        self.v4
    }

    /// The IPv6 address.
    pub fn v6(self) -> Ipv6Addr {
        self.v6
    }
}

/// istio-cni's defaults.
impl Default for ProbeAddresses {
    fn default() -> Self {
        Self {
            v4: Ipv4Addr::new(169, 254, 7, 127),
            v6: Ipv6Addr::new(0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff),
        }
    }
}

/// Whether DNS queries go to ztunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AmbientDns {
    /// None is captured.
    Off,
    /// All queries that leave the pod, and those over TCP to the pod's own addresses.
    Captured,
}

/// The complete policy of an ambient pod's network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AmbientPolicy {
    /// The captured inbound connections.
    pub inbound: AmbientInbound,
    /// The captured DNS queries.
    pub dns: AmbientDns,
    /// Interfaces of virtual machines: TCP connections that enter there go to ztunnel as outbound ones.
    pub virtual_interfaces: BTreeSet<InterfaceName>,
    /// The source addresses of probes.
    pub probes: ProbeAddresses,
    /// The redirected families.
    pub families: Families,
}

/// istio-cni's policy of a pod without annotations.
impl Default for AmbientPolicy {
    fn default() -> Self {
        Self {
            inbound: AmbientInbound::Captured,
            dns: AmbientDns::Captured,
            virtual_interfaces: BTreeSet::new(),
            probes: ProbeAddresses::default(),
            families: Families::V4AndV6,
        }
    }
}
