//! The errors of the nftables backend, with the refused object and the missing part of the kernel, and their hints.

use super::batch::{BatchObject, ExemptionObject as E, TooLong};
use super::exemption::POSTROUTING;
use crate::kernel::netlink::list::Limit;
use crate::kernel::netlink::reply::Unknown;
use crate::kernel::netlink::socket::SocketError;
use crate::model::Hint;
use crate::model::ruleset::Stage;
use nix::errno::Errno;
use std::borrow::Cow;

/// The error of the nftables backend.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The netfilter socket failed.
    #[error("cannot exchange messages with nftables")]
    Socket(#[from] SocketError),
    /// nftables refused the transaction and changed nothing.
    #[error("nftables refused {object}{}", in_parentheses(.kernel_message.as_deref()))]
    Refused {
        /// The first refused object.
        object: BatchObject,
        /// The kernel's message (extended acknowledgement), if any.
        kernel_message: Option<String>,
        /// The part of the kernel that is probably missing.
        lacking: Option<KernelPart>,
        /// The number of other refused objects.
        others: usize,
        /// The cause.
        source: Errno,
    },
    /// The transaction was sent, and its outcome is unknown.
    #[error("the outcome of the nftables transaction is unknown")]
    OutcomeUnknown(#[source] Unknown),
    /// nftables refused a list.
    #[error("nftables does not list the {what}")]
    List {
        /// The name of the list.
        what: &'static str,
        /// The cause.
        source: Errno,
    },
    /// The namespace has more than is read. How much is for any process to choose that may write rules.
    #[error(
        "the namespace has more than {most} {what}, or more than {} MiB of rules and sets, which is more than Gybe reads",
        Limit::BYTES >> 20
    )]
    TooLarge {
        /// The list that was received last.
        what: &'static str,
        /// How many of them are read.
        most: usize,
    },
    /// A list of rules ends before a rule that is too long for a datagram of the kernel.
    #[error("nftables does not list all rules of chain {chain}, or not all that lead to it")]
    Incomplete {
        /// The chain, with its table.
        chain: String,
    },
    /// The rules changed during every attempt to read them.
    #[error("the rules changed {attempts} times while they were read")]
    KeptChanging {
        /// The number of attempts.
        attempts: u32,
    },
    /// A list of nftables cannot be parsed.
    #[error("cannot parse a list of nftables")]
    Listing(#[source] Unknown),
    /// The ruleset cannot be encoded.
    #[error("cannot encode the rules for nftables")]
    Write(#[from] TooLong),
}

/// A part of the kernel that can be left out or be a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelPart {
    /// The module.
    pub module: &'static str,
    /// Its configuration option.
    pub config: &'static str,
}

impl KernelPart {
    pub(crate) const NF_TABLES: Self = Self { module: "nf_tables", config: "CONFIG_NF_TABLES_INET" };
    const NAT: Self = Self { module: "nft_chain_nat", config: "CONFIG_NFT_NAT" };
    const SNAT: Self = Self { module: "nft_nat", config: "CONFIG_NFT_NAT" };
    const REDIR: Self = Self { module: "nft_redir", config: "CONFIG_NFT_REDIR" };
    const TPROXY: Self = Self { module: "nft_tproxy", config: "CONFIG_NFT_TPROXY" };
    const CT: Self = Self { module: "nft_ct", config: "CONFIG_NFT_CT" };
    /// Part of nf_tables from Linux 5.18 on.
    const COUNTER: Self = Self { module: "nft_counter", config: "CONFIG_NFT_COUNTER" };

    /// The part of the kernel whose absence explains this refusal of `object`; `expressions` are the refused rule's.
    /// Observed on booted kernels 5.10 to 7.3: a missing module is `ENOENT` for the chain or the rule; without
    /// nf_tables the kernel refuses the transaction.
    pub(super) fn lacking(object: &BatchObject, errno: Errno, expressions: &[&[u8]]) -> Option<Self> {
        match (object, errno) {
            (BatchObject::Chain(chain), Errno::ENOENT | Errno::EOPNOTSUPP) if chain.stage() == Stage::Nat => {
                Some(Self::NAT)
            }
            (BatchObject::Exemption(E::Chain(POSTROUTING)), Errno::ENOENT | Errno::EOPNOTSUPP) => {
                Some(Self::NAT)
            }
            (BatchObject::Transaction, Errno::EINVAL | Errno::EOPNOTSUPP)
            | (
                BatchObject::Table | BatchObject::Exemption(E::Table),
                Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT,
            )
            | (
                BatchObject::Chain(_) | BatchObject::Exemption(E::Chain(_)),
                Errno::ENOENT | Errno::EOPNOTSUPP,
            ) => Some(Self::NF_TABLES),
            // Every rule has a counter, so it explains a refusal only where the kernel names it.
            (BatchObject::Rule(..) | BatchObject::Exemption(E::Rule(_)), Errno::ENOENT)
                if *expressions == [b"counter".as_slice()] =>
            {
                Some(Self::COUNTER)
            }
            (
                BatchObject::Rule(..) | BatchObject::Exemption(E::Rule(_)),
                Errno::ENOENT | Errno::EOPNOTSUPP,
            ) => expressions.iter().rev().find_map(|name| match *name {
                b"redir" => Some(Self::REDIR),
                b"tproxy" => Some(Self::TPROXY),
                b"nat" => Some(Self::SNAT),
                b"ct" => Some(Self::CT),
                _ => None,
            }),
            _ => None,
        }
    }
}

impl NftError {
    /// Reports whether the kernel has no nfnetlink: then no module has registered the socket's protocol
    /// (`netlink_create`, net/netlink/af_netlink.c, v6.18).
    pub(crate) fn is_without_nftables(&self) -> bool {
        matches!(self, Self::Socket(SocketError::Open(Errno::EPROTONOSUPPORT)))
    }

    /// Reports whether the kernel refused the transaction because the table exists.
    pub(super) fn is_table_there(&self) -> bool {
        matches!(self, Self::Refused { object: BatchObject::Table, source: Errno::EEXIST, .. })
    }

    /// Reports whether the transaction was sent and its outcome is unknown.
    pub(super) fn leaves_outcome_unknown(&self) -> bool {
        matches!(self, Self::OutcomeUnknown(_) | Self::Socket(SocketError::Receive(_)))
    }

    /// Reports whether the kernel refused the transaction because there is no table.
    pub(super) fn is_table_absent(&self) -> bool {
        matches!(self, Self::Refused { object: BatchObject::Table, source: Errno::ENOENT, .. })
    }
}

impl Hint for NftError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            // No other backend writes the exemption.
            Self::Refused { object: BatchObject::Exemption(_), lacking: Some(part), .. } => {
                Some(part.module_hint().into())
            }
            Self::Refused { lacking: Some(part), .. } => Some(part.hint().into()),
            _ if self.is_without_nftables() => Some(KernelPart::NF_TABLES.hint().into()),
            Self::Refused { source: Errno::EPERM, .. } | Self::List { source: Errno::EPERM, .. } => {
                Some("it takes CAP_NET_ADMIN in the user namespace that owns this network namespace".into())
            }
            Self::Refused { object: BatchObject::Table, source: Errno::EEXIST, .. } => {
                Some("a table inet gybe is there already".into())
            }
            Self::Socket(SocketError::Send { source: Errno::EMSGSIZE, .. }) => {
                Some("raise the sysctl net.core.wmem_max, or run with CAP_NET_ADMIN on the host".into())
            }
            Self::TooLarge { .. } | Self::Incomplete { .. } => {
                Some("remove rules that nothing needs from the namespace".into())
            }
            Self::OutcomeUnknown(_) => Some("applying again is safe".into()),
            _ => None,
        }
    }
}

impl KernelPart {
    fn hint(self) -> String {
        format!("{}, or choose another backend", self.module_hint())
    }

    fn module_hint(self) -> String {
        let Self { module, config } = self;
        format!("this kernel lacks {module} ({config}): load the module")
    }
}

fn in_parentheses(kernel_message: Option<&str>) -> String {
    kernel_message.map(|words| format!(" ({words})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ruleset::{ChainName, RuleId};

    #[test]
    fn f23_a_missing_module_is_derived_from_the_refused_object() {
        let rule = BatchObject::Rule(RuleId("a"), ChainName::NatOutput);
        let nat = BatchObject::Chain(ChainName::NatOutput);
        let mangle = BatchObject::Chain(ChainName::MangleOutput);
        let probes = BatchObject::Exemption;
        let translate = probes(E::Rule("probe-v4"));
        let labelled: &[&[u8]] = &[b"meta", b"ct", b"counter", b"immediate", b"nat"];
        let redirect: &[&[u8]] = &[b"meta", b"cmp", b"counter", b"immediate", b"redir"];
        for (object, errno, expressions, module) in [
            (&BatchObject::Transaction, Errno::EOPNOTSUPP, &[][..], Some("nf_tables")),
            (&BatchObject::Transaction, Errno::EPERM, &[], None),
            (&BatchObject::Table, Errno::EEXIST, &[], None),
            (&nat, Errno::ENOENT, &[], Some("nft_chain_nat")),
            (&mangle, Errno::ENOENT, &[], Some("nf_tables")),
            (&rule, Errno::ENOENT, redirect, Some("nft_redir")),
            (&rule, Errno::EINVAL, redirect, None),
            (&rule, Errno::ENOENT, &[b"tproxy"], Some("nft_tproxy")),
            (&rule, Errno::ENOENT, &[b"ct"], Some("nft_ct")),
            (&rule, Errno::ENOENT, &[b"immediate"], None),
            (&rule, Errno::ENOENT, &[b"counter", b"immediate"], None),
            (&rule, Errno::ENOENT, &[b"counter"], Some("nft_counter")),
            (&probes(E::Table), Errno::EOPNOTSUPP, &[], Some("nf_tables")),
            (&probes(E::Table), Errno::EPERM, &[], None),
            (&probes(E::Chain(POSTROUTING)), Errno::ENOENT, &[], Some("nft_chain_nat")),
            (&probes(E::Chain("output")), Errno::ENOENT, &[], Some("nf_tables")),
            (&probes(E::Set("pods-v4")), Errno::ENOENT, &[], None),
            (&translate, Errno::ENOENT, labelled, Some("nft_nat")),
            (&translate, Errno::EINVAL, labelled, None),
            (&translate, Errno::ENOENT, &[b"ct"], Some("nft_ct")),
            (&translate, Errno::ENOENT, &[b"counter"], Some("nft_counter")),
        ] {
            let lacking = KernelPart::lacking(object, errno, expressions);
            assert_eq!(lacking.map(|part| part.module), module, "{object} {errno} {expressions:?}");
        }
    }
}
