//! The policies of a pod: which of its connections go through its sidecar ([`RedirectPolicy`]) or through its node's
//! ztunnel ([`AmbientPolicy`]).
//!
//! A policy names no chain, no table and no tool. Its types exclude invalid values; lists are sorted and merged on
//! construction, so that policies with the same meaning are equal.

mod addresses;
pub mod ambient;
pub mod istio;
mod ports;

pub use addresses::{CidrSet, LoopbackCidr, NetworkError, network};
pub use ambient::AmbientPolicy;
pub use ports::{PortError, PortRange, PortSet, decimal, port};

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU16;

/// A TCP or UDP port of a listener, 1..=65535.
pub type Port = NonZeroU16;

/// A packet mark (`SO_MARK`, `meta mark`), any 32-bit value.
pub type Mark = u32;

/// A mark of which only the bits of a mask count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaskedMark {
    value: Mark,
    mask: Mark,
}

impl MaskedMark {
    /// The bits of `value` that `mask` has.
    pub const fn new(value: Mark, mask: Mark) -> Self {
        Self { value: value & mask, mask }
    }

    /// The bits that are set; the mask has all of them.
    pub const fn value(self) -> Mark {
        self.value
    }

    /// The bits that count.
    pub const fn mask(self) -> Mark {
        self.mask
    }

    /// Reports whether every bit counts.
    pub const fn is_whole(self) -> bool {
        self.mask == Mark::MAX
    }

    /// Reports whether `mark` has these bits.
    pub const fn is_in(self, mark: Mark) -> bool {
        mark & self.mask == self.value
    }
}

/// All bits count.
impl From<Mark> for MaskedMark {
    fn from(mark: Mark) -> Self {
        Self::new(mark, Mark::MAX)
    }
}

/// The form of `ip rule` and iptables: the mask follows if it leaves bits out.
impl fmt::Display for MaskedMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_whole() {
            true => write!(f, "{:#x}", self.value),
            false => write!(f, "{:#x}/{:#x}", self.value, self.mask),
        }
    }
}

/// How a captured inbound connection reaches the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Destination NAT to the proxy's port; the proxy reads the original destination (`SO_ORIGINAL_DST`).
    Redirect,
    /// The kernel delivers the packet to a transparent socket, with source and destination unchanged.
    Tproxy {
        /// Mark of packets that belong to the proxy's transparent sockets.
        mark: Mark,
        /// Routing table that delivers marked packets locally.
        route_table: u32,
    },
}

/// The redirected address families; IPv4 is always redirected, as in Istio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Families {
    /// IPv4 only: no IPv6 packet matches a rule of Gybe.
    V4Only,
    /// Both families are redirected.
    V4AndV6,
}

/// The user or group ids of the proxy; never empty.
///
/// Connections of all these ids leave the pod untouched. Connections to the pod itself go through the inbound listener
/// for the first id only (Istio's quirk E1, docs/ISTIO.md, section 6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owners {
    /// The id whose connections to its own pod go through the inbound listener.
    pub first: u32,
    others: BTreeSet<u32>,
}

impl Owners {
    /// The list of `first` and `others`. Order and repetitions of `others` have no effect.
    pub fn new(first: u32, others: impl IntoIterator<Item = u32>) -> Self {
        let others = others.into_iter().filter(|id| *id != first).collect();
        Self { first, others }
    }

    /// Reports whether it has the id.
    pub fn contains(&self, id: u32) -> bool {
        id == self.first || self.others.contains(&id)
    }

    /// All ids, sorted.
    pub fn all(&self) -> BTreeSet<u32> {
        let mut all = self.others.clone();
        all.insert(self.first);
        all
    }
}

/// The captured inbound connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inbound {
    /// Only these ports; an empty set captures nothing. Exclude lists have no effect here (quirk E5).
    Only(PortSet),
    /// Every port except these.
    AllBut(PortSet),
}

/// The destinations whose outbound connections are captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destinations {
    /// All destinations.
    All,
    /// Only these networks; an empty list captures nothing by address.
    Only(CidrSet),
}

/// The sockets, by primary group, whose outbound connections are captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Groups {
    /// Every group except these.
    AllBut(BTreeSet<u32>),
    /// Only these; an empty list captures nothing.
    Only(BTreeSet<u32>),
}

/// The captured outbound connections. An exclusion takes precedence over an inclusion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbound {
    /// Destination ports (TCP and UDP) that are never captured.
    pub excluded_ports: PortSet,
    /// Destination networks that are not captured.
    pub excluded_to: CidrSet,
    /// TCP destination ports that are captured for every destination.
    pub included_ports: PortSet,
    /// Destination networks that are captured.
    pub included_to: Destinations,
    /// The groups whose connections are captured.
    pub groups: Groups,
}

/// The DNS queries that go to the proxy's resolver on port 15053.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dns {
    /// None.
    Off,
    /// All queries.
    All,
    /// Queries to these servers; never empty, because no server means [`Dns::Off`].
    Servers(CidrSet),
}

/// The handling of packets that conntrack classifies as invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidPackets {
    /// They pass, as without Gybe.
    Pass,
    /// They are dropped before the pod's kernel replies with a reset.
    Drop,
}

/// The complete redirect policy of one network namespace, free of contradictions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedirectPolicy {
    /// How inbound connections reach the proxy.
    pub mode: Mode,
    /// Where the proxy listens for outbound connections (Istio: 15001).
    pub outbound_port: Port,
    /// Where the proxy listens for inbound connections (Istio: 15006).
    pub inbound_port: Port,
    /// The proxy's own tunnel port, never captured (Istio: 15008).
    pub tunnel_port: Port,
    /// User ids of the proxy.
    pub proxy_uids: Owners,
    /// Group ids of the proxy.
    pub proxy_gids: Owners,
    /// The captured inbound connections.
    pub inbound: Inbound,
    /// The captured outbound connections.
    pub outbound: Outbound,
    /// Interfaces on which neither direction is captured.
    pub excluded_interfaces: BTreeSet<InterfaceName>,
    /// Interfaces of virtual machines: connections that enter there count as outbound.
    pub virtual_interfaces: BTreeSet<InterfaceName>,
    /// The captured DNS queries.
    pub dns: Dns,
    /// The handling of invalid packets.
    pub invalid: InvalidPackets,
    /// The part of 127.0.0.0/8 that counts as the pod's connections to itself.
    pub loopback: LoopbackCidr,
    /// The redirected families.
    pub families: Families,
}

impl RedirectPolicy {
    /// Reports whether no connection and no DNS query is captured by this policy: no inbound port, no
    /// outbound address or port. Istio's rules for the proxy's own connections exist all the same, so a
    /// validation from inside the pod passes.
    pub fn captures_nothing(&self) -> bool {
        !self.captures_inbound() && !self.captures_outbound() && self.dns == Dns::Off
    }

    /// Reports whether connections to any port of the pod are captured.
    pub fn captures_inbound(&self) -> bool {
        !matches!(&self.inbound, Inbound::Only(ports) if ports.is_empty())
    }

    /// Reports whether connections of the pod to any address or port are captured.
    pub fn captures_outbound(&self) -> bool {
        let no_address = matches!(&self.outbound.included_to, Destinations::Only(nets) if nets.is_empty());
        let no_group = matches!(&self.outbound.groups, Groups::Only(ids) if ids.is_empty());
        !no_group && (!no_address || !self.outbound.included_ports.is_empty())
    }
}

/// The policy of a pod in the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// The pod has a sidecar.
    Sidecar(Box<RedirectPolicy>),
    /// The node's ztunnel takes the pod's traffic.
    Ambient(AmbientPolicy),
}

impl Policy {
    /// The redirected families.
    pub fn families(&self) -> Families {
        match self {
            Self::Sidecar(policy) => policy.families,
            Self::Ambient(policy) => policy.families,
        }
    }
}

/// The name of a network interface, limited to names that no shell or tool misreads.
///
/// 1..=15 bytes, a letter first, then letters, digits, `_`, `-` or `.` (Istio's rule; the kernel's
/// limit is `IFNAMSIZ` = 16 with the final NUL).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceName(String);

/// The error of parsing an interface name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InterfaceNameError {
    /// It is empty.
    #[error("an interface name is missing between the commas")]
    Empty,
    /// It is longer than the kernel's limit.
    #[error("interface name {0:?} is longer than 15 bytes")]
    TooLong(String),
    /// It has a character outside the allowed set.
    #[error("interface name {0:?} must be a letter followed by letters, digits, '_', '-' or '.'")]
    BadCharacter(String),
}

impl InterfaceName {
    /// Parses one name. Surrounding white space is an error.
    ///
    /// # Errors
    /// When it is empty, longer than 15 bytes or has a character outside the set above.
    pub fn parse(text: &str) -> Result<Self, InterfaceNameError> {
        let mut bytes = text.bytes();
        let Some(head) = bytes.next() else { return Err(InterfaceNameError::Empty) };
        if text.len() > 15 {
            return Err(InterfaceNameError::TooLong(text.chars().take(32).collect()));
        }
        let tail_is_fine = bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
        if !head.is_ascii_alphabetic() || !tail_is_fine {
            return Err(InterfaceNameError::BadCharacter(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }

    /// The loopback interface, which every network namespace has.
    pub fn loopback() -> Self {
        Self("lo".to_owned())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
