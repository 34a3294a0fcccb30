//! What a kernel's answers mean, without a kernel: the readers of this crate for whoever has the
//! datagrams, recorded or made up. Pure; what is asked and heard over sockets is `nft` and `routes`.

use crate::backend::Inventory;
use crate::netlink::list::{List, Listed};
use crate::netlink::reply::{Account, Received};
use crate::nft::batch::Batch;
use crate::nft::socket::verdict;
use crate::nft::{NftError, chains, dump};
use crate::presence::Presence;
use crate::routes::{Address, addresses_in};

/// The sequence number of the one request that [`presence`] and [`addresses`] hear the answer to.
pub const SEQUENCE: u32 = 1;

/// What the answers to a batch come to; `Ok` only when it was acknowledged and nothing refused.
///
/// # Errors
/// As they say, and when they do not say.
pub fn batch(batch: &Batch, datagrams: &[&[u8]]) -> Result<(), NftError> {
    let mut account = Account::of(batch.last());
    for datagram in datagrams {
        if account.is_settled() {
            break;
        }
        account.note(Received::Datagram(datagram));
    }
    verdict(batch, account.outcome())
}

/// What of ours a namespace holds, by the lists of sets, chains, rules, tables and each set's
/// elements, in the order in which they are asked for; requests are numbered from 1 on.
///
/// # Errors
/// When a list is not whole, or they do not belong together.
pub fn inventory(mut lists: impl FnMut(u32) -> Vec<Vec<u8>>) -> Result<Inventory, NftError> {
    dump::told(&mut |_, sequence| Ok(listed(&lists(sequence), sequence)))
}

/// Who else is in a namespace, by its list of all chains; `None` when that is not whole.
pub fn presence(datagrams: &[Vec<u8>]) -> Option<Presence> {
    whole(datagrams).map(|entries| Presence::of_chains(&chains::places(&entries)))
}

/// A namespace's addresses, by their list; `None` when that is not whole.
pub fn addresses(datagrams: &[Vec<u8>]) -> Option<Vec<Address>> {
    whole(datagrams).map(|entries| addresses_in(&entries))
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
        list.note(Received::Datagram(datagram));
    }
    list.outcome()
}
