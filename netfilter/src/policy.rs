//! The wish: which of a pod's connections go through its proxy.
//!
//! Names no chain, no table and no tool. Values that would be wrong cannot be written: lists are
//! sorted and merged when they are built, so two policies are equal when they mean the same.

mod addresses;
pub mod istio;
mod ports;

pub use addresses::{CidrSet, LoopbackCidr};
pub use ports::{PortError, PortRange, PortSet};

use std::collections::BTreeSet;
use std::num::NonZeroU16;

/// A TCP or UDP port that somebody listens on, 1..=65535.
pub type Port = NonZeroU16;

/// A packet mark (`SO_MARK`, `meta mark`), any 32-bit value.
pub type Mark = u32;

/// How a captured inbound connection reaches the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Destination NAT to the proxy's port; the proxy asks for `SO_ORIGINAL_DST`.
    Redirect,
    /// The packet is handed to a transparent socket, source and destination unchanged.
    Tproxy {
        /// Mark of packets that belong to the proxy's transparent sockets.
        mark: Mark,
        /// Routing table that delivers marked packets locally.
        route_table: u32,
    },
}

/// Which address families are redirected. IPv4 always is, as in Istio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Families {
    /// IPv6 is left alone: none of its packets meets a rule of ours.
    V4Only,
    /// Both families are redirected.
    V4AndV6,
}

/// The user or group ids the proxy runs as. Never empty.
///
/// Only the first one's connections to the pod itself go through the inbound listener (Istio's
/// quirk E1, docs/ISTIO.md, section 6); all of them leave the pod untouched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owners {
    /// The identity whose calls to its own pod pass the inbound listener.
    pub first: u32,
    others: BTreeSet<u32>,
}

impl Owners {
    /// Makes the list of `first` and `others`; order and repetition of `others` do not matter.
    pub fn new(first: u32, others: impl IntoIterator<Item = u32>) -> Self {
        let others = others.into_iter().filter(|id| *id != first).collect();
        Self { first, others }
    }

    /// All ids, sorted.
    pub fn all(&self) -> BTreeSet<u32> {
        let mut all = self.others.clone();
        all.insert(self.first);
        all
    }
}

/// Which connections that arrive at the pod are captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inbound {
    /// Only these ports; empty captures nothing. An exclude list has no say here (quirk E5).
    Only(PortSet),
    /// Every port but these.
    AllBut(PortSet),
}

/// Where an outbound connection must go to be captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destinations {
    /// Anywhere.
    All,
    /// Into these networks; empty captures nothing by address.
    Only(CidrSet),
}

/// Which sockets, by their primary group, have their outbound connections captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Groups {
    /// Every group but these.
    AllBut(BTreeSet<u32>),
    /// Only these; empty captures nothing.
    Only(BTreeSet<u32>),
}

/// Which of the pod's own connections are captured. An exclusion beats an inclusion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbound {
    /// Destination ports (TCP and UDP) that are left alone whatever the rest says.
    pub excluded_ports: PortSet,
    /// Destination networks that are left alone.
    pub excluded_to: CidrSet,
    /// TCP destination ports captured wherever they go.
    pub included_ports: PortSet,
    /// Destination networks that are captured.
    pub included_to: Destinations,
    /// Whose connections are captured.
    pub groups: Groups,
}

/// Which DNS queries go to the proxy's resolver on port 15053.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dns {
    /// None.
    Off,
    /// All, whatever server they are for.
    All,
    /// Those for these servers. Not empty: no server means [`Dns::Off`].
    Servers(CidrSet),
}

/// What becomes of packets that conntrack calls invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidPackets {
    /// They pass, as without us.
    Pass,
    /// They are dropped before the application sees them and answers with a reset.
    Drop,
}

/// A wish for one network namespace, complete and free of contradiction.
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
    /// What is captured on its way in.
    pub inbound: Inbound,
    /// What is captured on its way out.
    pub outbound: Outbound,
    /// Interfaces on which neither direction is captured.
    pub excluded_interfaces: BTreeSet<InterfaceName>,
    /// Interfaces behind which virtual machines live: what enters there counts as outbound.
    pub virtual_interfaces: BTreeSet<InterfaceName>,
    /// Which DNS queries are captured.
    pub dns: Dns,
    /// What becomes of invalid packets.
    pub invalid: InvalidPackets,
    /// The part of 127.0.0.0/8 that counts as "the pod talking to itself".
    pub loopback: LoopbackCidr,
    /// Which families are redirected.
    pub families: Families,
}

impl RedirectPolicy {
    /// Reports whether no connection and no DNS query is captured by this policy: no inbound port, no
    /// outbound address or port. Istio's rules for the proxy's own connections exist all the same, so a
    /// validation from inside the pod passes.
    pub fn captures_nothing(&self) -> bool {
        let no_inbound = matches!(&self.inbound, Inbound::Only(ports) if ports.is_empty());
        let no_address = matches!(&self.outbound.included_to, Destinations::Only(nets) if nets.is_empty());
        let no_group = matches!(&self.outbound.groups, Groups::Only(ids) if ids.is_empty());
        let no_outbound = no_group || (no_address && self.outbound.included_ports.is_empty());
        no_inbound && no_outbound && self.dns == Dns::Off
    }
}

/// A name the kernel would accept for a network interface and no shell or tool would misread.
///
/// 1..=15 bytes, a letter first, then letters, digits, `_`, `-` or `.` (Istio's rule; the kernel's
/// limit is `IFNAMSIZ` = 16 with the final NUL).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceName(String);

/// Why a text is not an interface name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InterfaceNameError {
    /// Nothing there.
    #[error("an interface name is missing between the commas")]
    Empty,
    /// Longer than the kernel keeps.
    #[error("interface name {0:?} is longer than 15 bytes")]
    TooLong(String),
    /// A character that does not belong in an interface name.
    #[error("interface name {0:?} must be a letter followed by letters, digits, '_', '-' or '.'")]
    BadCharacter(String),
}

impl InterfaceName {
    /// Parses one name; surrounding white space is an error, not trimmed.
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

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
