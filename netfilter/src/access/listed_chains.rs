//! All nftables chains of a namespace, of every owner: they show other owners' rules and the tables of iptables-nft.

use crate::kernel::uapi::*;
use crate::nft::chain::Base;
use crate::nft::error::NftError;
use crate::nft::lists::{self, Entry, Lister};
use crate::nft::socket::Connection;
use nix::errno::Errno;

/// One chain of the kernel's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedChain {
    /// `NFPROTO_*`.
    pub(crate) family: u8,
    pub(crate) table: String,
    pub(crate) name: String,
    /// The priority of a base chain that translates destinations.
    pub(crate) translates_at: Option<i32>,
    /// The number of rules in it and of rules that lead to it.
    pub(crate) uses: u32,
}

/// Lists all chains; `None` where the kernel has no nftables.
pub(crate) fn list(connection: &mut Connection) -> Result<Option<Vec<ListedChain>>, NftError> {
    let lister: &mut Lister<'_> = &mut |request, sequence, limit| connection.0.list(request, sequence, limit);
    let chains = lists::of_one_generation(lister, NFPROTO_UNSPEC, |lists| lists.all(lists::CHAINS, |_| ()));
    match chains {
        Ok(entries) => Ok(Some(parse(&entries))),
        // No such subsystem (`nfnetlink_rcv_msg`).
        Err(NftError::List { source: Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOENT, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses the entries of a list; entries without table or name are skipped.
pub(crate) fn parse(entries: &[Entry]) -> Vec<ListedChain> {
    entries.iter().filter_map(chain).collect()
}

fn chain(entry: &Entry) -> Option<ListedChain> {
    let attributes = entry.attributes();
    let text = |kind| attributes.get(kind).map(|name| name.name());
    let uses = attributes.get(NFTA_CHAIN_USE).and_then(|uses| uses.be32()).unwrap_or_default();
    let translates_at = Base::read(&attributes).and_then(|base| base.translates_at());
    let (table, name) = (text(NFTA_CHAIN_TABLE)?, text(NFTA_CHAIN_NAME)?);
    Some(ListedChain { family: entry.family(), table, name, translates_at, uses })
}
