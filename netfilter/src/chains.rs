//! All nftables chains of a namespace, of every owner: from them `presence` finds other owners' rules and the tables of iptables-nft.

use crate::netlink::attr::{Attributes, Writer};
use crate::netlink::list::Listed;
use crate::netlink::message::{DUMP, Header, REQUEST};
use crate::nft::NftError;
use crate::nft::batch::TooLong;
use crate::nft::chain::Base;
use crate::nft::dump::Lister;
use crate::nft::socket::Connection;
use crate::nft::uapi::*;
use nix::errno::Errno;

/// How often a list that changed while it was read is read again.
const ATTEMPTS: u32 = 5;

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

/// Lists all chains; none where the kernel has no nftables.
pub(crate) fn list(connection: &mut Connection) -> Result<Vec<ListedChain>, NftError> {
    list_by(&mut |request, sequence| connection.0.list(request, sequence))
}

fn list_by(lister: &mut Lister<'_>) -> Result<Vec<ListedChain>, NftError> {
    for sequence in 1..=ATTEMPTS {
        let mut writer = Writer::with_capacity(64);
        let kind = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN;
        let header = Header { kind, flags: REQUEST | DUMP, sequence };
        writer.message(header, &[NFPROTO_UNSPEC, 0, 0, 0], |_| ());
        let request = writer.finish().ok_or(TooLong)?;
        match lister(&request, sequence)? {
            Listed::Whole(entries) => return Ok(parse_list(&entries)),
            Listed::Changed => {}
            // No such subsystem (`nfnetlink_rcv_msg`).
            Listed::Refused(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOENT) => return Ok(Vec::new()),
            Listed::Refused(source) => return Err(NftError::List { what: "the chains", source }),
            Listed::Unknown(source) => return Err(NftError::Listing { source }),
        }
    }
    Err(NftError::KeptChanging { attempts: ATTEMPTS })
}

/// Parses the entries of a list; entries without table or name are skipped.
pub(crate) fn parse_list(entries: &[Vec<u8>]) -> Vec<ListedChain> {
    entries.iter().filter_map(|entry| parse(entry)).collect()
}

/// `struct nfgenmsg` begins with the family; its attributes begin four bytes later.
fn parse(entry: &[u8]) -> Option<ListedChain> {
    let (header, attributes) = entry.split_first_chunk::<4>()?;
    let [family, ..] = *header;
    let attributes = Attributes::of(attributes);
    let text = |kind| attributes.get(kind).map(|name| name.name());
    let uses = attributes.get(NFTA_CHAIN_USE).and_then(|uses| uses.be32()).unwrap_or_default();
    let translates_at = Base::read(&attributes).and_then(|base| base.translates_at());
    let (table, name) = (text(NFTA_CHAIN_TABLE)?, text(NFTA_CHAIN_NAME)?);
    Some(ListedChain { family, table, name, translates_at, uses })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_changes_while_it_is_read_is_read_again_a_bounded_number_of_times() {
        for (changes, is_read) in [(0, true), (1, true), (ATTEMPTS - 1, true), (ATTEMPTS, false)] {
            let mut sequences = Vec::new();
            let chains = list_by(&mut |_, sequence| {
                sequences.push(sequence);
                Ok(if sequence <= changes { Listed::Changed } else { Listed::Whole(Vec::new()) })
            });
            assert_eq!(chains.is_ok(), is_read, "{changes} changes: {chains:?}");
            assert!(sequences.len() > 1 || changes == 0);
            assert!(
                sequences.is_sorted_by(|one, next| one < next),
                "each attempt has a sequence number of its own"
            );
        }
    }
}
