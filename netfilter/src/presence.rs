//! Who has rules in a namespace: which of our backends, which other meshes, who else translates
//! addresses. Only looks.
//!
//! nftables is asked over netlink, iptables-nft's tables among it. iptables-legacy's tables are read with
//! getsockopt, and only where the kernel says that this namespace has them.

use crate::backend::{BackendError, BackendKind, Foreign, Translator};
use crate::iptables::{LegacyFound, MARK, PREFIX, TABLES, legacy};
use crate::nft::TABLE;
use crate::nft::chains::{ChainPlace, chains};
use crate::nft::uapi::{NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6};
use crate::ruleset::Family;

/// What Istio's own nftables backend calls its tables.
const ISTIO_TABLES: &str = "istio-proxy-";

/// Who is at work in a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Presence {
    /// The backends that have rules of ours there, in the order of [`BackendKind::ALL`].
    pub ours: Vec<BackendKind>,
    /// Other meshes' redirects.
    pub foreign: Vec<Foreign>,
    /// Who else has rules that translate addresses at our hooks.
    pub beside: Vec<Translator>,
}

impl Presence {
    /// Looks around in the calling thread's namespace.
    ///
    /// # Errors
    /// When something there cannot be read.
    pub fn look() -> Result<Self, BackendError> {
        Self::among(&chains()?)
    }

    /// What these chains show, and what iptables-legacy does.
    pub(crate) fn among(chains: &[ChainPlace]) -> Result<Self, BackendError> {
        let mut presence = Self::of_chains(chains);
        for (family, found) in legacy()? {
            presence.add_legacy(family, found);
        }
        Ok(presence)
    }

    /// What nftables' chains show.
    pub(crate) fn of_chains(chains: &[ChainPlace]) -> Self {
        let mut presence = Self::default();
        for place in chains {
            match (place.family, place.table.as_str()) {
                (NFPROTO_INET, TABLE) => presence.add(BackendKind::Nft),
                (NFPROTO_INET, table) if table.starts_with(ISTIO_TABLES) => {
                    presence.foreign.push(Foreign::Table { table: table.to_owned() });
                }
                (NFPROTO_IPV4, _) => presence.add_iptables_nft(Family::V4, place, chains),
                (NFPROTO_IPV6, _) => presence.add_iptables_nft(Family::V6, place, chains),
                _ => {}
            }
            presence.beside.extend(translator(place, chains));
        }
        presence
    }

    fn add(&mut self, kind: BackendKind) {
        if !self.ours.contains(&kind) {
            let place = self.ours.iter().position(|other| *other > kind).unwrap_or(self.ours.len());
            self.ours.insert(place, kind);
        }
    }

    fn add_iptables_nft(&mut self, family: Family, place: &ChainPlace, all: &[ChainPlace]) {
        let table = TABLES.iter().map(|stage| stage.table()).find(|table| *table == place.table);
        let Some(table) = table.filter(|_| place.chain.starts_with(PREFIX) || place.chain == MARK) else {
            return;
        };
        if is_marked(place, all) {
            self.add(BackendKind::IptablesNft);
        } else {
            self.foreign.push(Foreign::Chain { family, table, chain: place.chain.clone() });
        }
    }

    /// Takes in what iptables-legacy shows.
    pub(crate) fn add_legacy(&mut self, family: Family, found: LegacyFound) {
        if found.ours {
            self.add(BackendKind::IptablesLegacy);
        }
        self.foreign.extend(found.foreign);
        if found.translates {
            let family = if family == Family::V4 { "ip" } else { "ip6" };
            self.beside.push(Translator::Legacy { family });
        }
    }

    /// The backends but `kind` that have rules of ours there, when nobody else redirects this namespace.
    ///
    /// # Errors
    /// When somebody does.
    pub(crate) fn others_than(&self, kind: BackendKind) -> Result<Vec<BackendKind>, Foreign> {
        match self.foreign.first() {
            Some(foreign) => Err(foreign.clone()),
            None => Ok(self.ours.iter().copied().filter(|other| *other != kind).collect()),
        }
    }
}

/// Is it a chain with rules of somebody else's that translate destinations?
fn translator(place: &ChainPlace, all: &[ChainPlace]) -> Option<Translator> {
    let priority =
        place.translates_at.filter(|_| (place.family, place.table.as_str()) != (NFPROTO_INET, TABLE))?;
    // Where iptables-nft has written for us, one rule leads from the hook into our chain.
    let of_ours = u32::from(is_marked(place, all));
    let family = match place.family {
        NFPROTO_INET => "inet",
        NFPROTO_IPV4 => "ip",
        NFPROTO_IPV6 => "ip6",
        _ => return None,
    };
    let (table, chain) = (place.table.clone(), place.chain.clone());
    (place.uses > of_ours).then_some(Translator::Nftables { family, table, chain, priority })
}

/// Has the chain's table the mark that says that iptables-nft has written it for us?
fn is_marked(place: &ChainPlace, all: &[ChainPlace]) -> bool {
    let mark = |other: &&ChainPlace| {
        (other.family, &other.table) == (place.family, &place.table) && other.chain == MARK
    };
    matches!(place.family, NFPROTO_IPV4 | NFPROTO_IPV6) && all.iter().any(|other| mark(&other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(family: u8, table: &str, chain: &str) -> ChainPlace {
        ChainPlace { family, table: table.to_owned(), chain: chain.to_owned(), translates_at: None, uses: 0 }
    }

    fn translating(family: u8, table: &str, uses: u32) -> ChainPlace {
        ChainPlace { translates_at: Some(-100), uses, ..place(family, table, "OUTPUT") }
    }

    #[test]
    fn every_neighbour_is_named_and_everybody_else_is_none() {
        let nat = |chain| place(NFPROTO_IPV4, "nat", chain);
        for (chains, ours, foreign) in [
            (vec![nat("OUTPUT"), nat("DOCKER"), place(NFPROTO_INET, "firewalld", "ISTIO_X")], &[][..], None),
            (vec![place(NFPROTO_INET, "gybe", "nat-output")], &[BackendKind::Nft], None),
            (vec![place(NFPROTO_INET, "istio-proxy-nat", "output")], &[], Some("istio-proxy-nat")),
            (vec![nat("ISTIO_OUTPUT")], &[], Some("ISTIO_OUTPUT in table nat (IPv4)")),
            (vec![nat("ISTIO_OUTPUT"), nat("GYBE")], &[BackendKind::IptablesNft], None),
            (vec![nat("GYBE")], &[BackendKind::IptablesNft], None),
            (
                vec![nat("ISTIO_OUTPUT"), place(NFPROTO_IPV6, "nat", "GYBE")],
                &[BackendKind::IptablesNft],
                Some("ISTIO_OUTPUT"),
            ),
            (vec![place(NFPROTO_IPV4, "other", "ISTIO_X")], &[], None),
        ] {
            let presence = Presence::of_chains(&chains);
            assert_eq!(presence.ours, ours, "{chains:?}");
            let said = presence.foreign.first().map(ToString::to_string);
            assert_eq!(said.is_some(), foreign.is_some(), "{chains:?}");
            assert!(said.unwrap_or_default().contains(foreign.unwrap_or_default()), "{chains:?}");
        }
    }

    #[test]
    fn a_chain_that_translates_is_named_when_it_has_rules_of_others() {
        let mark = || place(NFPROTO_IPV4, "nat", "GYBE");
        for (chains, named) in [
            (vec![translating(NFPROTO_INET, "gybe", 7)], None),
            (vec![translating(NFPROTO_IPV4, "nat", 0)], None),
            (vec![translating(NFPROTO_IPV4, "nat", 1)], Some("nftables chain ip nat OUTPUT (priority -100)")),
            (vec![translating(NFPROTO_IPV4, "nat", 1), mark()], None),
            (
                vec![translating(NFPROTO_IPV4, "nat", 2), mark()],
                Some("nftables chain ip nat OUTPUT (priority -100)"),
            ),
            (
                vec![translating(NFPROTO_INET, "portmap", 1)],
                Some("nftables chain inet portmap OUTPUT (priority -100)"),
            ),
        ] {
            let beside: Vec<_> =
                Presence::of_chains(&chains).beside.iter().map(ToString::to_string).collect();
            assert_eq!(beside, named.into_iter().collect::<Vec<_>>(), "{chains:?}");
        }
    }
}
