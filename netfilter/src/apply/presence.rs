//! Whose rules a namespace has: the backends of Gybe, other meshes, and other owners that translate addresses. Only
//! reads.
//!
//! The nftables chains, iptables-nft's among them, come over netlink. The tables of iptables-legacy are read with
//! getsockopt, and only where the kernel lists such tables for the namespace.

use crate::access::{ListedChain, NamespaceAccess};
use crate::apply::backend::{BackendError, BackendKind};
use crate::iptables::{MARK, PREFIX, SavedRules, TABLES, legacy_rules};
use crate::model::Hint;
use crate::model::ruleset::{Family, TableFamily};
use crate::nft::TABLE;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

/// The prefixes of the tables of Istio's nftables backend: for sidecars and for ambient pods.
const ISTIO_TABLES: [&str; 2] = ["istio-proxy-", "istio-ambient-"];

/// The owners of a namespace's rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Presence {
    /// The backends with rules of Gybe, in the order of [`BackendKind::ALL`].
    pub ours: Vec<BackendKind>,
    /// Redirections by other meshes.
    pub other_meshes: Vec<OtherMesh>,
    /// Other owners' rules that translate addresses at the hooks that Gybe uses.
    pub other_nat: Vec<OtherNat>,
}

/// Rules of another mesh, which Gybe neither changes nor adds to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OtherMesh {
    /// Chains with the names of a sidecar's redirection and without Gybe's mark.
    #[error("chain {chain} in table {table} ({family}) was not written by gybe")]
    Chain {
        /// The family of the table.
        family: Family,
        /// The table.
        table: &'static str,
        /// The first such chain.
        chain: String,
    },
    /// A table of Istio's nftables backend.
    #[error("nftables table inet {table} belongs to istio-cni")]
    Table {
        /// The first such table.
        table: String,
    },
}

impl Hint for OtherMesh {
    fn hint(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            Self::Chain { table, .. } => format!(
                "istio-cni or istio-init has redirected this pod (its table {table} has no empty chain GYBE); \
                 exclude the pod from istio-cni and istio-init, or from Gybe"
            )
            .into(),
            Self::Table { .. } => "exclude the pod from istio-cni, or from Gybe".into(),
        })
    }
}

/// Other owners' rules that translate addresses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum OtherNat {
    /// A chain of nftables, possibly written by iptables-nft.
    NftChain {
        /// The family of its table.
        family: TableFamily,
        /// Its table.
        table: String,
        /// Its name.
        chain: String,
        /// Its priority; Gybe's is -100.
        priority: i32,
    },
    /// Table `nat` of iptables-legacy.
    LegacyTable {
        /// Its family.
        family: Family,
    },
}

impl fmt::Display for OtherNat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NftChain { family, table, chain, priority } => {
                write!(f, "nftables chain {} {table} {chain} (priority {priority})", family.name())
            }
            Self::LegacyTable { family } => write!(f, "table nat of {}tables-legacy", family.name()),
        }
    }
}

impl Presence {
    /// Reads the network namespace of the calling thread.
    ///
    /// # Errors
    /// When its chains or tables cannot be read.
    pub fn look() -> Result<Self, BackendError> {
        Self::read(&mut NamespaceAccess::default())
    }

    pub(crate) fn read(access: &mut NamespaceAccess) -> Result<Self, BackendError> {
        let mut presence = Self::of_chains(&access.chains()?.unwrap_or_default());
        for (family, saved) in legacy_rules(access)? {
            presence.add_legacy(family, saved);
        }
        Ok(presence)
    }

    /// The owners that the nftables chains show.
    pub(crate) fn of_chains(chains: &[ListedChain]) -> Self {
        let mut presence = Self::default();
        let marked: MarkedTables<'_> =
            chains.iter().filter(|chain| chain.name == MARK).map(table_of).collect();
        for chain in chains {
            match (chain.family.only(), chain.table.as_str()) {
                (Some(family), _) => presence.add_iptables_nft(family, chain, &marked),
                (None, TABLE) => presence.add(BackendKind::Nft),
                (None, table) if ISTIO_TABLES.iter().any(|prefix| table.starts_with(prefix)) => {
                    presence.other_meshes.push(OtherMesh::Table { table: table.to_owned() });
                }
                (None, _) => {}
            }
            presence.other_nat.extend(other_nat(chain, &marked));
        }
        presence
    }

    fn add(&mut self, kind: BackendKind) {
        if !self.ours.contains(&kind) {
            let position = self.ours.iter().position(|other| *other > kind).unwrap_or(self.ours.len());
            self.ours.insert(position, kind);
        }
    }

    fn add_iptables_nft(&mut self, family: Family, chain: &ListedChain, marked: &MarkedTables<'_>) {
        let table = TABLES.iter().map(|stage| stage.table()).find(|table| *table == chain.table);
        let Some(table) = table.filter(|_| chain.name.starts_with(PREFIX) || chain.name == MARK) else {
            return;
        };
        if is_marked(chain, marked) {
            self.add(BackendKind::IptablesNft);
        } else {
            self.other_meshes.push(OtherMesh::Chain { family, table, chain: chain.name.clone() });
        }
    }

    fn add_legacy(&mut self, family: Family, saved: SavedRules) {
        if !saved.ours.is_empty() {
            self.add(BackendKind::IptablesLegacy);
        }
        for (stage, table) in saved.others {
            let chain = |chain| OtherMesh::Chain { family, table: stage.table(), chain };
            self.other_meshes.extend(table.chains.into_keys().map(chain));
        }
        if saved.has_other_nat {
            self.other_nat.push(OtherNat::LegacyTable { family });
        }
    }
}

/// The chain, if it translates destinations and has rules of other owners.
fn other_nat(chain: &ListedChain, marked: &MarkedTables<'_>) -> Option<OtherNat> {
    let is_ours = (chain.family, chain.table.as_str()) == (TableFamily::Inet, TABLE);
    let priority = chain.translates_at.filter(|_| !is_ours)?;
    // Where iptables-nft has written Gybe's rules, one rule leads from the hook into Gybe's chain.
    let our_rules = u32::from(is_marked(chain, marked));
    let ListedChain { family, table, name, .. } = chain.clone();
    (chain.uses > our_rules).then_some(OtherNat::NftChain { family, table, chain: name, priority })
}

/// The tables with the mark of rules that Gybe wrote through an iptables backend, by family and name.
type MarkedTables<'c> = BTreeSet<(TableFamily, &'c str)>;

fn table_of(chain: &ListedChain) -> (TableFamily, &str) {
    (chain.family, &chain.table)
}

/// Reports whether Gybe wrote rules to the chain's table through iptables-nft.
fn is_marked(chain: &ListedChain, marked: &MarkedTables<'_>) -> bool {
    chain.family != TableFamily::Inet && marked.contains(&table_of(chain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(family: TableFamily, table: &str, name: &str) -> ListedChain {
        ListedChain { family, table: table.to_owned(), name: name.to_owned(), translates_at: None, uses: 0 }
    }

    fn translating(family: TableFamily, table: &str, uses: u32) -> ListedChain {
        ListedChain { translates_at: Some(-100), uses, ..chain(family, table, "OUTPUT") }
    }

    #[test]
    fn gybe_and_other_meshes_are_recognised_by_their_tables_and_chains() {
        let nat = |name| chain(TableFamily::Ip, "nat", name);
        for (chains, ours, mesh) in [
            (
                vec![nat("OUTPUT"), nat("DOCKER"), chain(TableFamily::Inet, "firewalld", "ISTIO_X")],
                &[][..],
                None,
            ),
            (vec![chain(TableFamily::Inet, "gybe", "nat-output")], &[BackendKind::Nft], None),
            (vec![chain(TableFamily::Inet, "istio-proxy-nat", "output")], &[], Some("istio-proxy-nat")),
            (vec![chain(TableFamily::Inet, "istio-ambient-nat", "output")], &[], Some("istio-ambient-nat")),
            (vec![nat("ISTIO_OUTPUT")], &[], Some("ISTIO_OUTPUT in table nat (IPv4)")),
            (vec![nat("ISTIO_PRERT")], &[], Some("ISTIO_PRERT in table nat (IPv4)")),
            (vec![nat("ISTIO_OUTPUT"), nat("GYBE")], &[BackendKind::IptablesNft], None),
            (vec![nat("GYBE")], &[BackendKind::IptablesNft], None),
            (
                vec![nat("ISTIO_OUTPUT"), chain(TableFamily::Ip6, "nat", "GYBE")],
                &[BackendKind::IptablesNft],
                Some("ISTIO_OUTPUT"),
            ),
            (vec![chain(TableFamily::Ip, "other", "ISTIO_X")], &[], None),
        ] {
            let presence = Presence::of_chains(&chains);
            assert_eq!(presence.ours, ours, "{chains:?}");
            let found = presence.other_meshes.first().map(ToString::to_string);
            assert_eq!(found.is_some(), mesh.is_some(), "{chains:?}");
            assert!(found.unwrap_or_default().contains(mesh.unwrap_or_default()), "{chains:?}");
        }
    }

    #[test]
    fn a_chain_that_translates_is_reported_when_it_has_rules_of_other_owners() {
        let mark = || chain(TableFamily::Ip, "nat", "GYBE");
        for (chains, named) in [
            (vec![translating(TableFamily::Inet, "gybe", 7)], None),
            (vec![translating(TableFamily::Ip, "nat", 0)], None),
            (
                vec![translating(TableFamily::Ip, "nat", 1)],
                Some("nftables chain ip nat OUTPUT (priority -100)"),
            ),
            (vec![translating(TableFamily::Ip, "nat", 1), mark()], None),
            (
                vec![translating(TableFamily::Ip, "nat", 2), mark()],
                Some("nftables chain ip nat OUTPUT (priority -100)"),
            ),
            (
                vec![translating(TableFamily::Inet, "portmap", 1)],
                Some("nftables chain inet portmap OUTPUT (priority -100)"),
            ),
        ] {
            let other_nat: Vec<_> =
                Presence::of_chains(&chains).other_nat.iter().map(ToString::to_string).collect();
            assert_eq!(other_nat, named.into_iter().collect::<Vec<_>>(), "{chains:?}");
        }
    }
}
