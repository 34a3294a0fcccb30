//! Netlink messages for sets: the definition of a set, and its elements in portions of one message each.

use super::chain::TABLE;
use super::key::{KeyRange, KeyType, ranges};
use crate::kernel::netlink::attr::Writer;
use crate::kernel::uapi::*;
use crate::model::ruleset::{Elements, NamedList};

/// Bytes of elements in one message. One attribute holds all of them, and its length has 16 bits.
const PORTION: usize = 60 * 1024;

/// Bytes of an element on the wire without its key: list, key and value headers, and the flags.
pub(super) const ELEMENT_OVERHEAD: usize = 20;

/// `NFTNL_UDATA_SET_KEYBYTEORDER` (0), four bytes, `BYTEORDER_HOST_ENDIAN` (1). Only `nft list` reads it.
const HOST_ORDER: [u8; 6] = {
    let [a, b, c, d] = 1_u32.to_ne_bytes();
    [0, 4, a, b, c, d]
};

/// Writes the definition of the set. `id` is unique among the new sets of the batch.
pub(super) fn describe(w: &mut Writer, list: &NamedList<'_>, id: u32) {
    let key = KeyType::of(&list.elements);
    define(w, TABLE, &list.name, key, flags(key), id);
    if key.is_host_order() {
        w.attr(NFTA_SET_USERDATA, &HOST_ORDER);
    }
}

/// Writes the definition of a set of any table, without user data.
pub(super) fn define(w: &mut Writer, table: &str, name: &str, key: KeyType, flags: u32, id: u32) {
    w.text(NFTA_SET_TABLE, table);
    w.text(NFTA_SET_NAME, name);
    w.be32(NFTA_SET_FLAGS, flags);
    w.be32(NFTA_SET_KEY_TYPE, key.number());
    w.be32(NFTA_SET_KEY_LEN, u32::from(key.length()));
    w.be32(NFTA_SET_ID, id);
}

pub(super) fn flags(key: KeyType) -> u32 {
    if key.is_interval() { NFT_SET_INTERVAL } else { 0 }
}

/// Returns an upper bound of the elements' bytes on the wire.
pub(super) fn size(elements: &Elements<'_>) -> usize {
    let (count, bounds) = match elements {
        Elements::Ports(ports) => (ports.ranges().len(), 2),
        Elements::V4(nets) => (nets.len(), 2),
        Elements::V6(nets) => (nets.len(), 2),
        Elements::Uids(ids) | Elements::Gids(ids) => (ids.len(), 1),
        Elements::Interfaces(names) => (names.len(), 1),
    };
    let key = usize::from(KeyType::of(elements).length()).next_multiple_of(4);
    count * bounds * (key + ELEMENT_OVERHEAD)
}

/// Splits the elements into portions that fit into one message each.
pub(super) fn portions(list: &NamedList<'_>) -> Vec<Portion> {
    let key = KeyType::of(&list.elements);
    portions_of(TABLE, key, key.is_interval(), &ranges(&list.elements))
}

/// [`portions`] of a set of any table. Where it holds no intervals, each range is a single key.
pub(super) fn portions_of(
    table: &'static str,
    key: KeyType,
    is_interval: bool,
    ranges: &[KeyRange],
) -> Vec<Portion> {
    let bounds = if is_interval { 2 } else { 1 };
    let one = bounds * (usize::from(key.length()).next_multiple_of(4) + ELEMENT_OVERHEAD);
    let portion = |ranges: &[KeyRange]| Portion { table, key, is_interval, ranges: ranges.to_vec() };
    ranges.chunks(PORTION / one).map(portion).collect()
}

/// Elements that fit into one message.
pub(super) struct Portion {
    table: &'static str,
    key: KeyType,
    is_interval: bool,
    ranges: Vec<KeyRange>,
}

impl Portion {
    /// Writes the attributes of the message.
    pub(super) fn write(&self, w: &mut Writer, set: &str) {
        w.text(NFTA_SET_ELEM_LIST_TABLE, self.table);
        w.text(NFTA_SET_ELEM_LIST_SET, set);
        w.nested(NFTA_SET_ELEM_LIST_ELEMENTS, |w| self.elements(w));
    }

    fn elements(&self, w: &mut Writer) {
        for range in &self.ranges {
            self.element(w, range.first, 0);
            // An interval that reaches the last key has no end.
            if let Some(end) = range.end(self.key.length()).filter(|_| self.is_interval) {
                self.element(w, end, NFT_SET_ELEM_INTERVAL_END);
            }
        }
    }

    fn element(&self, w: &mut Writer, key: u128, flags: u32) {
        let bytes = key.to_be_bytes();
        let key = bytes.get(..usize::from(self.key.length())).unwrap_or_default();
        w.nested(NFTA_LIST_ELEM, |w| {
            w.nested(NFTA_SET_ELEM_KEY, |w| w.attr(NFTA_DATA_VALUE, key));
            if flags != 0 {
                w.be32(NFTA_SET_ELEM_FLAGS, flags);
            }
        });
    }
}
