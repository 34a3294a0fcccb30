//! The chains' names, and where along a packet's path each is asked.

use std::fmt;

/// The chains we ever write. Where each hangs is a property of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainName {
    /// Before conntrack, packets that arrive.
    RawPrerouting,
    /// Before conntrack, packets the pod sends.
    RawOutput,
    /// After conntrack, before NAT, packets that arrive.
    ManglePrerouting,
    /// After conntrack, before NAT, packets the pod sends; a changed mark routes them again.
    MangleOutput,
    /// First packet of each connection that arrives.
    NatPrerouting,
    /// First packet of each connection the pod makes.
    NatOutput,
    /// Continues [`ChainName::NatOutput`] for connections that stay inside the pod.
    NatLoopback,
    /// Continues it for connections that no exemption took out.
    NatCapture,
}

/// When, along a packet's path, a chain is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Before connection tracking.
    Raw,
    /// After connection tracking, before address translation.
    Mangle,
    /// Address translation.
    Nat,
}

/// The netfilter hook a base chain hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Packets that arrive, before routing.
    Prerouting,
    /// Packets a local socket sends.
    Output,
}

impl ChainName {
    /// Which stage its rules belong to.
    pub fn stage(self) -> Stage {
        match self {
            Self::RawPrerouting | Self::RawOutput => Stage::Raw,
            Self::ManglePrerouting | Self::MangleOutput => Stage::Mangle,
            Self::NatPrerouting | Self::NatOutput | Self::NatLoopback | Self::NatCapture => Stage::Nat,
        }
    }

    /// The hook it hangs on; `None` for chains that are only continued into.
    pub fn hook(self) -> Option<Hook> {
        match self {
            Self::RawPrerouting | Self::ManglePrerouting | Self::NatPrerouting => Some(Hook::Prerouting),
            Self::RawOutput | Self::MangleOutput | Self::NatOutput => Some(Hook::Output),
            Self::NatLoopback | Self::NatCapture => None,
        }
    }

    /// Its name in logs, traces and nftables.
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
