//! Lists of nftables objects that show one generation of the rules: they are read again when something changed
//! meanwhile.

use super::batch::{GENERIC, TooLong};
use super::error::NftError;
use crate::kernel::netlink::attr::{Attributes, Writer};
use crate::kernel::netlink::list::{Limit, Listed};
use crate::kernel::netlink::message::{DUMP, Header, REQUEST};
use crate::kernel::netlink::socket::SocketError;
use crate::kernel::uapi::*;
use nix::errno::Errno;
use std::collections::HashSet;

/// How often lists that changed while they were read are read again.
pub(crate) const ATTEMPTS: u32 = 5;

/// Returns the list for a request with this sequence number, up to a limit: from the kernel, or from a recording.
pub(crate) type Lister<'l> = dyn FnMut(&[u8], u32, Limit) -> Result<Listed, SocketError> + 'l;

/// A kind of list: of objects of every table, or of one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListKind {
    /// Its objects, in messages.
    pub(crate) what: &'static str,
    /// `NFT_MSG_GET*`.
    message: u16,
    /// A namespace with more of them is not read.
    most: usize,
}

pub(crate) const TABLES: ListKind = ListKind { what: "tables", message: NFT_MSG_GETTABLE, most: 20_000 };
pub(crate) const CHAINS: ListKind = ListKind { what: "chains", message: NFT_MSG_GETCHAIN, most: 20_000 };
pub(crate) const RULES: ListKind = ListKind { what: "rules", message: NFT_MSG_GETRULE, most: 20_000 };
pub(crate) const SETS: ListKind = ListKind { what: "sets", message: NFT_MSG_GETSET, most: 2_000 };
pub(crate) const FLOW_TABLES: ListKind =
    ListKind { what: "flow tables", message: NFT_MSG_GETFLOWTABLE, most: 2_000 };
/// Of all sets together. An interval has an element for its start, and one for its end.
const ELEMENTS: ListKind = ListKind { what: "elements of sets", message: NFT_MSG_GETSETELEM, most: 100_000 };

/// Why an attempt to read several lists ended early.
#[derive(Debug)]
pub(crate) enum ListStop {
    /// Something changed since the first list.
    Changed,
    Failed(NftError),
}

impl<E: Into<NftError>> From<E> for ListStop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Calls `read` until its lists, of this family's tables (`NFPROTO_*`), show one generation.
pub(crate) fn of_one_generation<T>(
    lister: &mut Lister<'_>,
    family: u8,
    read: impl Fn(&mut Lists<'_, '_>) -> Result<T, ListStop>,
) -> Result<T, NftError> {
    for _ in 0..ATTEMPTS {
        let mut lists = Lists {
            lister: &mut *lister,
            generation: None,
            sequence: 0,
            family,
            bytes: Limit::BYTES,
            elements: ELEMENTS.most,
        };
        match read(&mut lists) {
            Ok(read) => return Ok(read),
            Err(ListStop::Changed) => {}
            Err(ListStop::Failed(error)) => return Err(error),
        }
    }
    Err(NftError::KeptChanging { attempts: ATTEMPTS })
}

/// Several lists of one generation.
pub(crate) struct Lists<'a, 'l> {
    lister: &'a mut Lister<'l>,
    /// The lower bits of the generation's number, which every entry has (`nfnl_msg_put`, `res_id`).
    generation: Option<[u8; 2]>,
    sequence: u32,
    family: u8,
    /// The bytes that further lists may have.
    bytes: usize,
    /// The elements that further sets may have.
    elements: usize,
}

/// One entry of a list: `struct nfgenmsg` and attributes.
pub(crate) struct ListEntry(pub(crate) Vec<u8>);

impl ListEntry {
    /// The family of its table: `NFPROTO_*`.
    pub(crate) fn family(&self) -> u8 {
        self.0.first().copied().unwrap_or_default()
    }

    pub(crate) fn attributes(&self) -> Attributes<'_> {
        attributes_of(&self.0)
    }

    /// The elements of a set in the entry.
    pub(crate) fn elements(&self) -> Attributes<'_> {
        elements_of(&self.0)
    }
}

fn attributes_of(entry: &[u8]) -> Attributes<'_> {
    Attributes::of(entry.get(GENERIC..).unwrap_or_default())
}

fn elements_of(entry: &[u8]) -> Attributes<'_> {
    let list = attributes_of(entry).get(NFTA_SET_ELEM_LIST_ELEMENTS);
    Attributes::of(list.map_or(&[], |list| list.value))
}

/// Reports whether the list of a set has an element twice. The kernel enlarges a hash table some time after elements were
/// added, in no generation of its own. When that is between two datagrams of a list, the elements come in another order
/// from there on, and for each that is missing another one is there twice (`nft_rhash_walk` in
/// net/netfilter/nft_set_hash.c and `rht_deferred_worker` in lib/rhashtable.c of Linux).
pub(crate) fn has_duplicates(entries: &[ListEntry]) -> bool {
    let mut keys = HashSet::new();
    entries.iter().flat_map(ListEntry::elements).any(|element| {
        let element = Attributes::of(element.value);
        let parts = [NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_KEY_END, NFTA_SET_ELEM_FLAGS];
        !keys.insert(parts.map(|part| element.get(part).map(|part| part.value)))
    })
}

impl Lists<'_, '_> {
    /// Requests a list.
    pub(crate) fn all(
        &mut self,
        list: ListKind,
        filter: impl FnOnce(&mut Writer),
    ) -> Result<Vec<ListEntry>, ListStop> {
        self.all_of_family(self.family, list, Limit::entries(list.most), filter)
    }

    /// The elements of a set, by its table and name as the kernel has them.
    pub(crate) fn elements(
        &mut self,
        family: u8,
        table: &[u8],
        set: &[u8],
    ) -> Result<Vec<ListEntry>, ListStop> {
        let count = |entry: &[u8]| elements_of(entry).count();
        let limit = Limit { count, ..Limit::entries(self.elements) };
        let elements = self.all_of_family(family, ELEMENTS, limit, |w| {
            w.text(NFTA_SET_ELEM_LIST_TABLE, table);
            w.text(NFTA_SET_ELEM_LIST_SET, set);
        });
        let elements = match elements {
            // An earlier list contains the set.
            Err(ListStop::Failed(NftError::List { source: Errno::ENOENT, .. })) => Err(ListStop::Changed),
            outcome => outcome,
        }?;
        let counted = elements.iter().map(|entry| count(&entry.0)).sum();
        self.elements = self.elements.saturating_sub(counted);
        Ok(elements)
    }

    fn all_of_family(
        &mut self,
        family: u8,
        list: ListKind,
        limit: Limit,
        filter: impl FnOnce(&mut Writer),
    ) -> Result<Vec<ListEntry>, ListStop> {
        self.sequence += 1;
        let mut writer = Writer::with_capacity(256);
        let kind = NFNL_SUBSYS_NFTABLES << 8 | list.message;
        let header = Header { kind, flags: REQUEST | DUMP, sequence: self.sequence };
        writer.message(header, &[family, 0, 0, 0], filter);
        let request = writer.finish().ok_or(TooLong)?;
        let ListKind { what, most, .. } = list;
        match (self.lister)(&request, self.sequence, Limit { bytes: self.bytes, ..limit })? {
            Listed::Whole(entries) => {
                let bytes = entries.iter().map(Vec::len).sum();
                self.bytes = self.bytes.saturating_sub(bytes);
                self.checked(entries).ok_or(ListStop::Changed)
            }
            Listed::Changed => Err(ListStop::Changed),
            Listed::Refused(source) => Err(NftError::List { what, source }.into()),
            Listed::TooLarge => Err(NftError::TooLarge { what, most }.into()),
            Listed::Unknown(source) => Err(NftError::Listing(source).into()),
        }
    }

    /// The entries, when all are of the generation of the lists before.
    fn checked(&mut self, entries: Vec<Vec<u8>>) -> Option<Vec<ListEntry>> {
        for entry in &entries {
            let generation = entry.get(2..GENERIC)?.try_into().ok()?;
            if self.generation.replace(generation).is_some_and(|before| before != generation) {
                return None;
            }
        }
        Some(entries.into_iter().map(ListEntry).collect())
    }
}
