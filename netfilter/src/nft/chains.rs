//! All nftables chains in the namespace, whosever they are: to tell who else is at work.

use super::batch::TooLong;
use super::chain::Base;
use super::dump::Lister;
use super::error::NftError;
use super::socket::Connection;
use super::uapi::*;
use crate::netlink::attr::{Attributes, Writer};
use crate::netlink::list::Listed;
use crate::netlink::message::{DUMP, Header, REQUEST};
use nix::errno::Errno;

/// How often a list that changed while it was read is read again.
const ATTEMPTS: u32 = 5;

/// One chain's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChainPlace {
    /// `NFPROTO_*`.
    pub(crate) family: u8,
    /// Its table.
    pub(crate) table: String,
    /// Its name.
    pub(crate) chain: String,
    /// Where it hangs when it translates destinations: its priority.
    pub(crate) translates_at: Option<i32>,
    /// How many rules are in it or lead to it.
    pub(crate) uses: u32,
}

/// Lists them; none where the kernel has no nftables.
pub(crate) fn chains() -> Result<Vec<ChainPlace>, NftError> {
    match Connection::open() {
        Ok(mut connection) => chains_over(&mut connection),
        Err(error) if error.is_kernel_without() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The same over a socket that is open already.
pub(super) fn chains_over(connection: &mut Connection) -> Result<Vec<ChainPlace>, NftError> {
    listed(&mut |request, sequence| connection.0.list(request, sequence))
}

/// The same by what answers a request of this sequence number with a list.
fn listed(lister: &mut Lister<'_>) -> Result<Vec<ChainPlace>, NftError> {
    for sequence in 1..=ATTEMPTS {
        let mut writer = Writer::with_capacity(64);
        let kind = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN;
        let header = Header { kind, flags: REQUEST | DUMP, sequence };
        writer.message(header, &[NFPROTO_UNSPEC, 0, 0, 0], |_| ());
        let request = writer.finish().ok_or(TooLong)?;
        match lister(&request, sequence)? {
            Listed::Whole(entries) => return Ok(places(&entries)),
            Listed::Changed => {}
            // No such subsystem (`nfnetlink_rcv_msg`).
            Listed::Refused(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOENT) => return Ok(Vec::new()),
            Listed::Refused(source) => return Err(NftError::List { what: "the chains", source }),
            Listed::Unknown(source) => return Err(NftError::Listing { source }),
        }
    }
    Err(NftError::Restless { attempts: ATTEMPTS })
}

/// What such a list says.
pub(crate) fn places(entries: &[Vec<u8>]) -> Vec<ChainPlace> {
    entries.iter().filter_map(|entry| place(entry)).collect()
}

/// `struct nfgenmsg` begins with the family; four bytes later the attributes do.
fn place(entry: &[u8]) -> Option<ChainPlace> {
    let (header, attributes) = entry.split_first_chunk::<4>()?;
    let [family, ..] = *header;
    let attributes = Attributes::of(attributes);
    let text = |kind| attributes.get(kind).map(|name| name.name());
    let uses = attributes.get(NFTA_CHAIN_USE).and_then(|uses| uses.be32()).unwrap_or_default();
    let translates_at = Base::read(&attributes).and_then(|base| base.translates_at());
    let (table, chain) = (text(NFTA_CHAIN_TABLE)?, text(NFTA_CHAIN_NAME)?);
    Some(ChainPlace { family, table, chain, translates_at, uses })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_changes_while_it_is_read_is_read_again_and_not_without_end() {
        for (changes, is_read) in [(0, true), (1, true), (ATTEMPTS - 1, true), (ATTEMPTS, false)] {
            let mut sequences = Vec::new();
            let chains = listed(&mut |_, sequence| {
                sequences.push(sequence);
                Ok(if sequence <= changes { Listed::Changed } else { Listed::Whole(Vec::new()) })
            });
            assert_eq!(chains.is_ok(), is_read, "{changes} changes: {chains:?}");
            assert!(sequences.len() > 1 || changes == 0);
            assert!(
                sequences.is_sorted_by(|one, next| one < next),
                "an answer to an earlier request counts not"
            );
        }
    }
}
