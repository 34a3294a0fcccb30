//! The parsers of the kernel's netlink replies, without a socket: for recorded or generated datagrams. Pure.

use crate::inventory::Inventory;
use crate::netlink::list::{List, Listed};
use crate::netlink::reply::{Received, Replies};
use crate::nft::batch::Batch;
use crate::nft::listed_chains::parse;
use crate::nft::lists::Entry;
use crate::nft::socket::to_result;
use crate::nft::{NftError, dump};
use crate::presence::Presence;
use crate::routes::{Address, parse_addresses};

/// The sequence number of the request whose reply [`presence`] and [`addresses`] parse.
pub const SEQUENCE: u32 = 1;

/// Returns the outcome of a batch; `Ok` only when the kernel acknowledged it and refused nothing.
///
/// # Errors
/// The refusal, or that the replies are not conclusive.
pub fn batch(batch: &Batch, datagrams: &[&[u8]]) -> Result<(), NftError> {
    let mut replies = Replies::of(batch.last());
    for datagram in datagrams {
        if replies.is_complete() {
            break;
        }
        replies.add(Received::Datagram(datagram));
    }
    to_result(batch, replies.outcome())
}

/// Parses Gybe's nftables rules from the lists of sets, chains, rules, tables and each set's elements, in the order
/// of the requests, which are numbered from 1.
///
/// # Errors
/// When a list is not whole, or the lists are not of one generation.
pub fn inventory(mut lists: impl FnMut(u32) -> Vec<Vec<u8>>) -> Result<Inventory, NftError> {
    dump::inventory_by(&mut |_, sequence| Ok(listed(&lists(sequence), sequence)))
}

/// Parses the owners of a namespace's rules from its list of all chains; `None` when the list is not whole.
pub fn presence(datagrams: &[Vec<u8>]) -> Option<Presence> {
    let entries = whole(datagrams)?.into_iter().map(Entry);
    Some(Presence::of_chains(&parse(&entries.collect::<Vec<_>>())))
}

/// Parses a namespace's addresses from their list; `None` when the list is not whole.
pub fn addresses(datagrams: &[Vec<u8>]) -> Option<Vec<Address>> {
    whole(datagrams).map(|entries| parse_addresses(&entries))
}

fn whole(datagrams: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    match listed(datagrams, SEQUENCE) {
        Listed::Whole(entries) => Some(entries),
        Listed::Changed | Listed::Refused(_) | Listed::Unknown(_) => None,
    }
}

fn listed(datagrams: &[Vec<u8>], sequence: u32) -> Listed {
    let mut list = List::of(sequence);
    for datagram in datagrams {
        if list.is_complete() {
            break;
        }
        list.add(Received::Datagram(datagram));
    }
    list.outcome()
}
