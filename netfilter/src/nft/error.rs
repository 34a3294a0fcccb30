//! Why nftables did not do as asked, which object it was about, and what would help.

use super::batch::{Object, TooLong};
use crate::hint::Hint;
use crate::netlink::reply::Unknown;
use crate::netlink::socket::Failure;
use crate::ruleset::Stage;
use nix::errno::Errno;
use std::borrow::Cow;

/// A failure of the nftables backend.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// Nothing went out, or nothing came back.
    #[error("cannot talk to nftables")]
    Talk {
        /// Why.
        #[from]
        source: Failure,
    },
    /// nftables refused something, and so changed nothing.
    #[error("nftables refused {object}{}", spoken(.said.as_deref()))]
    Refused {
        /// What it refused first.
        object: Object,
        /// The kernel's own words, where it has any.
        said: Option<String>,
        /// The kernel part that seems to be missing.
        lacking: Option<KernelPart>,
        /// How many other objects it refused.
        others: usize,
        /// Why.
        source: Errno,
    },
    /// The transaction was sent, and it is not known whether it was carried out.
    #[error("cannot tell whether nftables took the rules")]
    Unsettled {
        /// Why not.
        source: Unknown,
    },
    /// nftables would not say what is there.
    #[error("nftables does not list {what}")]
    List {
        /// What was asked for.
        what: &'static str,
        /// Why.
        source: Errno,
    },
    /// Every attempt to read the rules was overtaken by a change of them.
    #[error("the rules changed {attempts} times while they were read")]
    Restless {
        /// How often it was tried.
        attempts: u32,
    },
    /// What nftables lists cannot be read.
    #[error("cannot understand what nftables lists")]
    Listing {
        /// Why not.
        source: Unknown,
    },
    /// The rule set cannot be written down.
    #[error("cannot write the rules for nftables")]
    Write {
        /// Why not.
        #[from]
        source: TooLong,
    },
}

/// A part of the kernel that can be left out or be a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelPart {
    /// The module.
    pub module: &'static str,
    /// The option it is built by.
    pub config: &'static str,
}

impl KernelPart {
    const NF_TABLES: Self = Self { module: "nf_tables", config: "CONFIG_NF_TABLES_INET" };
    const NAT: Self = Self { module: "nft_chain_nat", config: "CONFIG_NFT_NAT" };
    const REDIR: Self = Self { module: "nft_redir", config: "CONFIG_NFT_REDIR" };
    const TPROXY: Self = Self { module: "nft_tproxy", config: "CONFIG_NFT_TPROXY" };
    const CT: Self = Self { module: "nft_ct", config: "CONFIG_NFT_CT" };

    /// The part without which nftables refuses `object` like this; `expressions` are those of the
    /// rule that it may have meant. Seen on booted kernels 5.10 to 7.3: a missing module is
    /// `ENOENT`, at the chain or at the rule; without nf_tables itself the transaction is refused.
    pub(super) fn lacking(object: &Object, errno: Errno, expressions: &[&[u8]]) -> Option<Self> {
        match (object, errno) {
            (Object::Chain(chain), Errno::ENOENT | Errno::EOPNOTSUPP) if chain.stage() == Stage::Nat => {
                Some(Self::NAT)
            }
            (Object::Transaction, Errno::EINVAL | Errno::EOPNOTSUPP)
            | (Object::Table, Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT)
            | (Object::Chain(_), Errno::ENOENT | Errno::EOPNOTSUPP) => Some(Self::NF_TABLES),
            (Object::Rule(..), Errno::ENOENT | Errno::EOPNOTSUPP) => {
                expressions.iter().rev().find_map(|name| match *name {
                    b"redir" => Some(Self::REDIR),
                    b"tproxy" => Some(Self::TPROXY),
                    b"ct" => Some(Self::CT),
                    _ => None,
                })
            }
            _ => None,
        }
    }
}

impl NftError {
    /// Has this kernel no netfilter to talk to? Then nobody has registered the socket's protocol
    /// (`netlink_create`, net/netlink/af_netlink.c, v6.18).
    pub(crate) fn is_kernel_without(&self) -> bool {
        matches!(self, Self::Talk { source: Failure::Open { source: Errno::EPROTONOSUPPORT } })
    }

    /// Was it refused because there is a table of ours already?
    pub(super) fn is_table_there(&self) -> bool {
        matches!(self, Self::Refused { object: Object::Table, source: Errno::EEXIST, .. })
    }

    /// Was the transaction sent, and its outcome not heard?
    pub(super) fn leaves_it_open(&self) -> bool {
        matches!(self, Self::Unsettled { .. } | Self::Talk { source: Failure::Receive { .. } })
    }

    /// Was it refused because there is no table of ours?
    pub(super) fn is_table_absent(&self) -> bool {
        matches!(self, Self::Refused { object: Object::Table, source: Errno::ENOENT, .. })
    }
}

impl Hint for NftError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Refused { lacking: Some(part), .. } => Some(part.hint().into()),
            _ if self.is_kernel_without() => Some(KernelPart::NF_TABLES.hint().into()),
            Self::Refused { source: Errno::EPERM, .. } | Self::List { source: Errno::EPERM, .. } => {
                Some("it takes CAP_NET_ADMIN in the user namespace that owns this network namespace".into())
            }
            Self::Refused { object: Object::Table, source: Errno::EEXIST, .. } => {
                Some("a table inet gybe is there already".into())
            }
            Self::Talk { source: Failure::Send { source: Errno::EMSGSIZE, .. } } => {
                Some("raise the sysctl net.core.wmem_max, or run with CAP_NET_ADMIN on the host".into())
            }
            Self::Unsettled { .. } => Some("applying again is safe".into()),
            _ => None,
        }
    }
}

impl KernelPart {
    fn hint(self) -> String {
        let Self { module, config } = self;
        format!("this kernel lacks {module} ({config}): load the module, or choose an iptables backend")
    }
}

fn spoken(said: Option<&str>) -> String {
    said.map(|words| format!(" ({words})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruleset::{ChainName, RuleId};

    #[test]
    fn f23_a_missing_module_is_told_by_what_was_refused() {
        let rule = Object::Rule(RuleId("a"), ChainName::NatOutput);
        let nat = Object::Chain(ChainName::NatOutput);
        let mangle = Object::Chain(ChainName::MangleOutput);
        let redirect: &[&[u8]] = &[b"meta", b"cmp", b"counter", b"immediate", b"redir"];
        for (object, errno, expressions, module) in [
            (&Object::Transaction, Errno::EOPNOTSUPP, &[][..], Some("nf_tables")),
            (&Object::Transaction, Errno::EPERM, &[], None),
            (&Object::Table, Errno::EEXIST, &[], None),
            (&nat, Errno::ENOENT, &[], Some("nft_chain_nat")),
            (&mangle, Errno::ENOENT, &[], Some("nf_tables")),
            (&rule, Errno::ENOENT, redirect, Some("nft_redir")),
            (&rule, Errno::EINVAL, redirect, None),
            (&rule, Errno::ENOENT, &[b"tproxy"], Some("nft_tproxy")),
            (&rule, Errno::ENOENT, &[b"ct"], Some("nft_ct")),
            (&rule, Errno::ENOENT, &[b"immediate"], None),
        ] {
            let lacking = KernelPart::lacking(object, errno, expressions);
            assert_eq!(lacking.map(|part| part.module), module, "{object} {errno} {expressions:?}");
        }
    }
}
