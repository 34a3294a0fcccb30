//! Who else redirects this namespace: in nftables tables of their own, or by the other variant of
//! iptables. The kernel would carry out both sets of rules, and the last to translate would win.

use super::error::IptablesError;
use super::layout::{MARK, PREFIX, TABLES};
use super::programs::Variant;
use super::save::Saved;
use crate::nft::TABLE;
use crate::nft::chains::ChainPlace;
use crate::nft::uapi::{NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6};
use crate::ruleset::Family;

/// What Istio's own nftables backend calls its tables.
const ISTIO_TABLES: &str = "istio-proxy-";

/// Refuses when an nftables chain shows somebody else, or another backend of ours.
pub(super) fn judge_nftables(variant: Variant, chains: &[ChainPlace]) -> Result<(), IptablesError> {
    for place in chains {
        match (place.family, place.table.as_str()) {
            (NFPROTO_INET, TABLE) => return Err(IptablesError::OtherBackend { name: "nft" }),
            (NFPROTO_INET, table) if table.starts_with(ISTIO_TABLES) => {
                return Err(IptablesError::ForeignTable { table: table.to_owned() });
            }
            (NFPROTO_IPV4, _) if variant == Variant::Legacy => of_the_other(Family::V4, place, chains)?,
            (NFPROTO_IPV6, _) if variant == Variant::Legacy => of_the_other(Family::V6, place, chains)?,
            _ => {}
        }
    }
    Ok(())
}

/// The tables of iptables-nft, seen from iptables-legacy.
fn of_the_other(family: Family, place: &ChainPlace, all: &[ChainPlace]) -> Result<(), IptablesError> {
    let table = TABLES.iter().map(|stage| stage.table()).find(|table| *table == place.table);
    let Some(table) = table.filter(|_| place.chain.starts_with(PREFIX)) else { return Ok(()) };
    let marked = |other: &ChainPlace| {
        (other.family, &other.table) == (place.family, &place.table) && other.chain == MARK
    };
    if all.iter().any(marked) {
        return Err(IptablesError::OtherBackend { name: Variant::Nft.name() });
    }
    Err(IptablesError::Foreign { family, table, chain: place.chain.clone() })
}

/// Has iptables-nft tables of `family` to show, so that it is worth asking?
pub(super) fn has_tables(family: Family, chains: &[ChainPlace]) -> bool {
    let number = match family {
        Family::V4 => NFPROTO_IPV4,
        Family::V6 => NFPROTO_IPV6,
    };
    let is_one = |table: &str| TABLES.iter().any(|stage| stage.table() == table);
    chains.iter().any(|place| place.family == number && is_one(&place.table))
}

/// Refuses when the tables of iptables-legacy, seen from iptables-nft, show the same.
pub(super) fn judge_legacy(family: Family, saved: Saved) -> Result<(), IptablesError> {
    if !saved.ours.is_empty() {
        return Err(IptablesError::OtherBackend { name: Variant::Legacy.name() });
    }
    match saved.foreign.into_iter().next() {
        None => Ok(()),
        Some((stage, chain)) => Err(IptablesError::Foreign { family, table: stage.table(), chain }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(family: u8, table: &str, chain: &str) -> ChainPlace {
        ChainPlace { family, table: table.to_owned(), chain: chain.to_owned() }
    }

    #[test]
    fn every_neighbour_is_named_and_everybody_else_is_none() {
        let nat = |chain| place(NFPROTO_IPV4, "nat", chain);
        for (variant, chains, said) in [
            (
                Variant::Nft,
                vec![nat("OUTPUT"), nat("DOCKER"), place(NFPROTO_INET, "firewalld", "ISTIO_X")],
                None,
            ),
            // Its own tables an iptables-nft backend reads by iptables-nft-save.
            (Variant::Nft, vec![nat("ISTIO_OUTPUT")], None),
            (Variant::Nft, vec![place(NFPROTO_INET, "gybe", "nat-output")], Some("the backend nft")),
            (Variant::Nft, vec![place(NFPROTO_INET, "istio-proxy-nat", "output")], Some("istio-proxy-nat")),
            (Variant::Legacy, vec![nat("ISTIO_OUTPUT")], Some("ISTIO_OUTPUT in table nat")),
            (Variant::Legacy, vec![nat("ISTIO_OUTPUT"), nat("GYBE")], Some("the backend iptables-nft")),
            (
                Variant::Legacy,
                vec![nat("ISTIO_OUTPUT"), place(NFPROTO_IPV6, "nat", "GYBE")],
                Some("ISTIO_OUTPUT"),
            ),
            (Variant::Legacy, vec![place(NFPROTO_IPV4, "other", "ISTIO_X")], None),
        ] {
            let judged = judge_nftables(variant, &chains).err().map(|error| error.to_string());
            match said {
                None => assert_eq!(judged, None, "{chains:?}"),
                Some(said) => {
                    assert!(judged.as_ref().is_some_and(|j| j.contains(said)), "{judged:?} {chains:?}");
                }
            }
        }
    }
}
