//! What stands beside ours: in iptables-legacy, for whoever asks before writing, and which tables
//! of iptables-nft there are to be read at all. The kernel is asked both, no program: it is quicker, and
//! a node that lacks the programs has the rules all the same.

use super::error::IptablesError;
use super::layout::{FAMILIES, TABLES};
use super::save::{self, Saved};
use super::{DEADLINE, alone};
use crate::backend::Foreign;
use crate::nft::chains::ChainPlace;
use crate::nft::uapi::{NFPROTO_IPV4, NFPROTO_IPV6};
use crate::ruleset::Family;
use crate::xt::legacy;

/// What one family's tables show to somebody who wants to write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Have they rules of ours?
    pub(crate) ours: bool,
    /// Other meshes' redirects.
    pub(crate) foreign: Vec<Foreign>,
    /// Does somebody else translate destinations there?
    pub(crate) translates: bool,
}

/// What iptables-legacy has in this namespace. One without such tables costs two looks into `/proc`.
pub(crate) fn legacy() -> Result<Vec<(Family, Found)>, IptablesError> {
    let mut names = FAMILIES.into_iter().map(legacy::table_names);
    if names.all(|names| names.is_ok_and(|names| names.is_empty())) {
        return Ok(Vec::new());
    }
    // A backend of ours writes several tables one after the other: nothing in between is judged.
    let _alone = alone(DEADLINE)?;
    FAMILIES.into_iter().map(|family| Ok((family, read_legacy(family)?.found(family)))).collect()
}

/// What iptables-legacy's tables hold of ours, and of others in its place.
pub(super) fn read_legacy(family: Family) -> Result<Saved, IptablesError> {
    let names = legacy::table_names(family)?;
    let written = TABLES.into_iter().filter(|stage| names.iter().any(|name| stage.table() == name));
    let tables = written.map(|stage| Ok((stage, legacy::table(family, stage.table())?)));
    Ok(save::of_legacy(&tables.collect::<Result<_, IptablesError>>()?))
}

/// Has iptables-nft tables of `family` to show, so that it is worth asking?
pub(super) fn has_nft_tables(family: Family, chains: &[ChainPlace]) -> bool {
    let number = match family {
        Family::V4 => NFPROTO_IPV4,
        Family::V6 => NFPROTO_IPV6,
    };
    let is_one = |table: &str| TABLES.iter().any(|stage| stage.table() == table);
    chains.iter().any(|place| place.family == number && is_one(&place.table))
}
