//! Kernels with parts missing: what is left out, and what an ADD must do then.

use crate::machine::{KERNELS, Kernel, Machine};
use gybe_netfilter::apply::backend::BackendKind::{self, IptablesLegacy, IptablesNft, Nft};

/// A kernel without some of its parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The name of a kernel.
    pub(crate) kernel: &'static str,
    /// The modules that are left out.
    pub(crate) absent: &'static [&'static str],
    /// The modules that are loaded before the probe.
    pub(crate) load: &'static [&'static str],
    /// Parameters of the kernel and of the init.
    pub(crate) parameters: &'static str,
    /// Each refusal has one of these words, the missing part.
    pub(crate) named: &'static [&'static str],
    /// The backend with `auto` of each pod, in the order of `PODS`; `None` is a refusal.
    pub(crate) auto: [Option<BackendKind>; 4],
    pub(crate) zones: Zones,
}

/// Whether the kernel has conntrack zones. Without them `auto` captures DNS all the same, and the agent's own query
/// from the five-tuple of an application's query goes to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zones {
    Present,
    Absent,
}

const NONE: [Option<BackendKind>; 4] = [None; 4];

const fn all(kind: BackendKind) -> [Option<BackendKind>; 4] {
    [Some(kind); 4]
}

/// A case on the kernel of Debian's stable release.
const fn without(
    name: &'static str,
    absent: &'static [&'static str],
    auto: [Option<BackendKind>; 4],
) -> Case {
    Case {
        name,
        kernel: "6.12",
        absent,
        load: &[],
        parameters: "",
        named: absent,
        auto,
        zones: Zones::Present,
    }
}

/// A node whose kube-proxy or CNI plugin uses iptables-legacy.
const LEGACY_LOADED: &[&str] = &["ip_tables"];

pub(crate) const CASES: &[Case] = &[
    without("nft_chain_nat", &["nft_chain_nat"], NONE),
    Case {
        load: LEGACY_LOADED,
        ..without("nft_chain_nat, ip_tables loaded", &["nft_chain_nat"], all(IptablesLegacy))
    },
    without("nft_redir", &["nft_redir"], all(IptablesNft)),
    Case { zones: Zones::Absent, ..without("nft_ct", &["nft_ct"], [Some(Nft), Some(Nft), Some(Nft), None]) },
    without("nft_tproxy", &["nft_tproxy"], [Some(Nft), Some(Nft), Some(Nft), None]),
    without("nf_tables", &["nf_tables"], NONE),
    Case {
        load: LEGACY_LOADED,
        ..without("nf_tables, ip_tables loaded", &["nf_tables"], all(IptablesLegacy))
    },
    without("ip_tables", &["ip_tables"], all(Nft)),
    without("nft_compat", &["nft_compat"], all(Nft)),
    without("xt_owner", &["xt_owner"], all(Nft)),
    without("xt_REDIRECT", &["xt_REDIRECT"], all(Nft)),
    without("xt_TPROXY", &["xt_TPROXY"], all(Nft)),
    without("xt_CT", &["xt_CT"], all(Nft)),
    Case {
        // What needs it cannot be loaded either.
        named: &["nft_tproxy", "xt_TPROXY"],
        ..without("nf_tproxy_ipv6", &["nf_tproxy_ipv6"], [Some(Nft), Some(Nft), Some(Nft), None])
    },
    without("ip6table_nat", &["ip6table_nat"], all(Nft)),
    Case {
        load: LEGACY_LOADED,
        ..without(
            "nf_tables, ip6table_nat; ip_tables loaded",
            &["nf_tables", "ip6table_nat"],
            [Some(IptablesLegacy), None, None, None],
        )
    },
    Case {
        load: LEGACY_LOADED,
        zones: Zones::Absent,
        ..without("nf_tables, xt_CT; ip_tables loaded", &["nf_tables", "xt_CT"], all(IptablesLegacy))
    },
    without("nf_tables, ip_tables", &["nf_tables", "ip_tables"], NONE),
    without("nft_redir, xt_owner", &["nft_redir", "xt_owner"], NONE),
    Case {
        load: LEGACY_LOADED,
        ..without(
            "nft_redir, nft_compat; ip_tables loaded",
            &["nft_redir", "nft_compat"],
            all(IptablesLegacy),
        )
    },
    without("nft_tproxy, xt_TPROXY", &["nft_tproxy", "xt_TPROXY"], [Some(Nft), Some(Nft), Some(Nft), None]),
    Case {
        parameters: "gybe.changed=nft_chain_nat",
        named: &["nft_chain_nat"],
        ..without("NAT in the family inet (as before Linux 5.2)", &[], all(IptablesNft))
    },
    Case { kernel: "5.10", ..without("nft_counter", &["nft_counter"], NONE) },
    Case { parameters: "ipv6.disable=1", ..without("IPv6 (ipv6.disable=1)", &[], all(Nft)) },
    Case {
        parameters: "ipv6.disable_ipv6=1",
        ..without("IPv6 addresses (ipv6.disable_ipv6=1)", &[], all(Nft))
    },
];

impl Case {
    pub(crate) fn machine(&self) -> Option<Machine> {
        let kernel: Kernel = KERNELS.into_iter().find(|kernel| kernel.name == self.kernel)?;
        Some(Machine {
            kernel,
            name: format!("without {}", self.name),
            absent: self.absent,
            load: self.load,
            parameters: self.parameters,
            checks: "probe,auto,each",
        })
    }
}
