//! The parsers of the kernel's netlink replies, without a socket: for recorded or generated datagrams. Pure.

use crate::access::parse_chains;
use crate::apply::presence::Presence;
use crate::inspect::ebpf;
use crate::inspect::live::rules::read_by;
use crate::inspect::live::{LISTENERS, LiveRules};
use crate::kernel::netlink::list::{Limit, List, Listed};
use crate::kernel::netlink::reply::{Received, Replies};
use crate::kernel::routes::{Address, parse_addresses};
use crate::model::inventory::Inventory;
use crate::nft::batch::Batch;
use crate::nft::lists::ListEntry;
use crate::nft::socket::to_result;
use crate::nft::{NftError, TABLE, dump};

/// The sequence number of the request whose reply [`presence`] and [`addresses`] parse.
pub const SEQUENCE: u32 = 1;
/// The most entries of a list that [`presence`] and [`addresses`] parse.
const MOST: usize = 20_000;

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
    dump::inventory_by(TABLE, &mut |_, sequence, limit| Ok(listed(&lists(sequence), sequence, limit)))
}

/// Parses all rules of a namespace from the entries of the lists of tables, chains, rules, sets, flow tables and each
/// set's elements, in the order of the requests, which are numbered from 1.
///
/// # Errors
/// When the rules are not whole.
pub fn live_rules(mut entries: impl FnMut(u32) -> Vec<Vec<u8>>) -> Result<LiveRules, NftError> {
    let mut rules = read_by(&mut |_, sequence, limit| {
        let list = entries(sequence);
        let objects: usize = list.iter().map(|entry| (limit.count)(entry)).sum();
        Ok(if objects > limit.objects { Listed::TooLarge } else { Listed::Whole(list) })
    })?;
    rules.mark();
    Ok(LiveRules::of(rules, LISTENERS))
}

/// Parses entries of the lists of functions at netfilter's hooks, of queueing disciplines and of filters: the names that
/// would be reported.
pub fn programs(entry: &[u8]) -> Vec<String> {
    ebpf::names_in(entry)
}

/// Parses the owners of a namespace's rules from its list of all chains; `None` when the list is not whole.
pub fn presence(datagrams: &[Vec<u8>]) -> Option<Presence> {
    let entries = whole(datagrams)?.into_iter().map(ListEntry);
    Some(Presence::of_chains(&parse_chains(&entries.collect::<Vec<_>>())))
}

/// Parses a namespace's addresses from their list; `None` when the list is not whole.
pub fn addresses(datagrams: &[Vec<u8>]) -> Option<Vec<Address>> {
    whole(datagrams).map(|entries| parse_addresses(&entries))
}

fn whole(datagrams: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    match listed(datagrams, SEQUENCE, Limit::entries(MOST)) {
        Listed::Whole(entries) => Some(entries),
        Listed::Changed | Listed::Refused(_) | Listed::TooLarge | Listed::Unknown(_) => None,
    }
}

fn listed(datagrams: &[Vec<u8>], sequence: u32, limit: Limit) -> Listed {
    let mut list = List::of(sequence, limit);
    for datagram in datagrams {
        if list.is_complete() {
            break;
        }
        list.add(Received::Datagram(datagram));
    }
    list.outcome()
}
