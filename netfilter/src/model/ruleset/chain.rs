//! The names of the chains, with the stage and hook of each.

use std::fmt;

/// Every chain that Gybe writes. The name determines stage and hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainName {
    /// Arriving packets, before conntrack.
    RawPrerouting,
    /// Packets that the pod sends, before conntrack.
    RawOutput,
    /// Arriving packets, after conntrack and before NAT.
    ManglePrerouting,
    /// Packets that the pod sends, after conntrack and before NAT; the kernel reroutes a packet whose mark changes.
    MangleOutput,
    /// The first packet of each inbound connection.
    NatPrerouting,
    /// The first packet of each connection from the pod.
    NatOutput,
    /// Continues [`ChainName::NatOutput`] for connections inside the pod.
    NatLoopback,
    /// Continues [`ChainName::NatOutput`] for connections without an exemption.
    NatCapture,
}

/// The point of a packet's path at which the kernel evaluates a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Before connection tracking.
    Raw,
    /// After connection tracking, before address translation.
    Mangle,
    /// Address translation.
    Nat,
}

/// The netfilter hook of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Arriving packets, before routing.
    Prerouting,
    /// Packets that a local socket sends.
    Output,
}

impl ChainName {
    /// All chains, in the order of a packet's path.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 8] = [
        Self::RawPrerouting,
        Self::RawOutput,
        Self::ManglePrerouting,
        Self::MangleOutput,
        Self::NatPrerouting,
        Self::NatOutput,
        Self::NatLoopback,
        Self::NatCapture,
    ];

    /// The stage of the chain's rules.
    pub fn stage(self) -> Stage {
        match self {
            Self::RawPrerouting | Self::RawOutput => Stage::Raw,
            Self::ManglePrerouting | Self::MangleOutput => Stage::Mangle,
            Self::NatPrerouting | Self::NatOutput | Self::NatLoopback | Self::NatCapture => Stage::Nat,
        }
    }

    /// The hook; `None` for chains that are reached only by [`Verdict::Goto`](super::Verdict::Goto).
    pub fn hook(self) -> Option<Hook> {
        match self {
            Self::RawPrerouting | Self::ManglePrerouting | Self::NatPrerouting => Some(Hook::Prerouting),
            Self::RawOutput | Self::MangleOutput | Self::NatOutput => Some(Hook::Output),
            Self::NatLoopback | Self::NatCapture => None,
        }
    }

    /// The name in logs, traces and nftables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RawPrerouting => "raw-prerouting",
            Self::RawOutput => "raw-output",
            Self::ManglePrerouting => "mangle-prerouting",
            Self::MangleOutput => "mangle-output",
            Self::NatPrerouting => "nat-prerouting",
            Self::NatOutput => "nat-output",
            Self::NatLoopback => "nat-loopback",
            Self::NatCapture => "nat-capture",
        }
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
