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

/// A hook of the IP layer, in the order of `enum nf_inet_hooks` (include/uapi/linux/netfilter.h). Gybe's chains are at
/// [`Hook::Prerouting`] and [`Hook::Output`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Every packet that arrives, before routing.
    Prerouting,
    /// Packets to this host.
    Input,
    /// Packets that are passed on.
    Forward,
    /// Packets that a local socket sends.
    Output,
    /// Every packet that leaves.
    Postrouting,
}

impl Hook {
    /// All, in the kernel's order.
    pub const ALL: [Self; 5] =
        [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting];

    pub(crate) fn numbered(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// The kernel's number.
    pub(crate) fn number(self) -> u32 {
        self as u32
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        }
    }

    /// The name of iptables' built-in chain.
    pub fn chain(self) -> &'static str {
        match self {
            Self::Prerouting => "PREROUTING",
            Self::Input => "INPUT",
            Self::Forward => "FORWARD",
            Self::Output => "OUTPUT",
            Self::Postrouting => "POSTROUTING",
        }
    }
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
