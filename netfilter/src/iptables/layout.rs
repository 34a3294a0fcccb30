//! The layout of Gybe's rules in iptables (tables, chains, the mark of ownership), and the limits of the backend.

use crate::model::ruleset::{ChainName, Stage};
use std::time::Duration;

/// The empty chain that marks the `ISTIO_*` chains of its table as written by Gybe.
pub(crate) const MARK: &str = "GYBE";

/// The prefix of the chains of every sidecar redirection, Gybe's and other meshes'.
pub(crate) const PREFIX: &str = "ISTIO_";

/// The tables that Gybe writes, in the order of their commits: zones and marks are in force before the address
/// translation that needs them.
pub(crate) const TABLES: [Stage; 3] = [Stage::Raw, Stage::Mangle, Stage::Nat];

/// The most iptables rules that a policy may have in one namespace, both families together: the memory of the programs
/// stays below 16 MB (docs/BENCHMARKS.md). The nft backend has no such limit, because there a list is one rule.
pub(super) const MAX_RULES: usize = 6000;

/// The time for one write, removal or read. A write takes some 10 ms; this is for an overloaded node.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);

/// Where distributions install the programs; NixOS last.
pub(super) const DIRECTORIES: [&str; 7] = [
    "/usr/sbin",
    "/sbin",
    "/usr/bin",
    "/bin",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/run/current-system/sw/bin",
];

impl Stage {
    /// The iptables table of this stage.
    pub(crate) fn table(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Mangle => "mangle",
            Self::Nat => "nat",
        }
    }
}

impl ChainName {
    /// The chain's name in its table. People and scripts look for `ISTIO_*`, so a chain that Istio has too has
    /// Istio's name.
    ///
    /// | Gybe | table | iptables | Istio |
    /// |---|---|---|---|
    /// | raw-prerouting | raw | `ISTIO_INBOUND` | the same |
    /// | raw-output | raw | `ISTIO_OUTPUT_DNS` | the same |
    /// | mangle-prerouting | mangle | `ISTIO_INBOUND` | the same |
    /// | mangle-output | mangle | `ISTIO_OUTPUT` | rules in `OUTPUT` itself |
    /// | nat-prerouting | nat | `ISTIO_INBOUND` | the same |
    /// | nat-output | nat | `ISTIO_OUTPUT` | the same |
    /// | nat-loopback | nat | `ISTIO_LOOPBACK` | rules in `ISTIO_OUTPUT` |
    /// | nat-capture | nat | `ISTIO_REDIRECT` | the same |
    /// | (a divert verdict) | mangle | `ISTIO_DIVERT` | the same |
    pub(super) fn iptables(self) -> &'static str {
        match self {
            Self::RawPrerouting | Self::ManglePrerouting | Self::NatPrerouting => "ISTIO_INBOUND",
            Self::RawOutput => "ISTIO_OUTPUT_DNS",
            Self::MangleOutput | Self::NatOutput => "ISTIO_OUTPUT",
            Self::NatLoopback => "ISTIO_LOOPBACK",
            Self::NatCapture => "ISTIO_REDIRECT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_chains_share_a_name_in_a_table() {
        let chains = ChainName::ALL;
        let places: BTreeSet<_> = chains.iter().map(|c| (c.stage().table(), c.iptables())).collect();
        assert_eq!(places.len(), chains.len());
        // XT_EXTENSION_MAXNAMELEN less the NUL: a longer name is refused by the program.
        assert!(places.iter().all(|(_, name)| name.starts_with(PREFIX) && name.len() <= 28));
    }
}
