//! The hooks of netfilter at the IP layer.

/// A hook of the IP layer, in the order of `enum nf_inet_hooks` (include/uapi/linux/netfilter.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InetHook {
    /// Every packet that arrives.
    Prerouting,
    /// Packets to this host.
    Input,
    /// Packets that are passed on.
    Forward,
    /// Packets that this host sends.
    Output,
    /// Every packet that leaves.
    Postrouting,
}

impl InetHook {
    /// All, in the kernel's order.
    pub const ALL: [Self; 5] =
        [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting];

    pub(crate) fn numbered(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
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

    /// The built-in chain's name.
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
