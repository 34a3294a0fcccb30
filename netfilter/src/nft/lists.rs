//! Lists of nftables objects that show one generation of the rules: they are read again when something changed
//! meanwhile.

use super::batch::{GENERIC, TooLong};
use super::error::NftError;
use super::uapi::*;
use crate::netlink::attr::{Attributes, Writer};
use crate::netlink::list::Listed;
use crate::netlink::message::{DUMP, Header, REQUEST};
use crate::netlink::socket::SocketError;
use nix::errno::Errno;

/// How often lists that changed while they were read are read again.
pub(crate) const ATTEMPTS: u32 = 5;

/// Returns the list for a request with this sequence number: from the kernel, or from a recording.
pub(crate) type Lister<'l> = dyn FnMut(&[u8], u32) -> Result<Listed, SocketError> + 'l;

/// Calls `read` until its lists, of this family's tables (`NFPROTO_*`), show one generation. `read` returns `None` when
/// something changed since its first list.
pub(crate) fn of_one_generation<T>(
    lister: &mut Lister<'_>,
    family: u8,
    read: impl Fn(&mut Lists<'_, '_>) -> Result<Option<T>, NftError>,
) -> Result<T, NftError> {
    for _ in 0..ATTEMPTS {
        let mut lists = Lists { lister: &mut *lister, generation: None, sequence: 0, family };
        if let Some(read) = read(&mut lists)? {
            return Ok(read);
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
}

/// One entry of a list: `struct nfgenmsg` and attributes.
pub(crate) struct Entry(pub(crate) Vec<u8>);

impl Entry {
    /// The family of its table: `NFPROTO_*`.
    pub(crate) fn family(&self) -> u8 {
        self.0.first().copied().unwrap_or_default()
    }

    pub(crate) fn attributes(&self) -> Attributes<'_> {
        Attributes::of(self.0.get(GENERIC..).unwrap_or_default())
    }
}

impl Lists<'_, '_> {
    /// Requests a list; `None` when something changed since the lists before it.
    pub(crate) fn all(
        &mut self,
        what: &'static str,
        kind: u16,
        filter: impl FnOnce(&mut Writer),
    ) -> Result<Option<Vec<Entry>>, NftError> {
        self.all_of_family(self.family, what, kind, filter)
    }

    /// The elements of a set, by its table and name as the kernel has them.
    pub(crate) fn elements(
        &mut self,
        family: u8,
        table: &[u8],
        set: &[u8],
    ) -> Result<Option<Vec<Entry>>, NftError> {
        let elements = self.all_of_family(family, "the elements of a set", NFT_MSG_GETSETELEM, |w| {
            w.text(NFTA_SET_ELEM_LIST_TABLE, table);
            w.text(NFTA_SET_ELEM_LIST_SET, set);
        });
        match elements {
            // An earlier list contains the set.
            Err(NftError::List { source: Errno::ENOENT, .. }) => Ok(None),
            outcome => outcome,
        }
    }

    fn all_of_family(
        &mut self,
        family: u8,
        what: &'static str,
        kind: u16,
        filter: impl FnOnce(&mut Writer),
    ) -> Result<Option<Vec<Entry>>, NftError> {
        self.sequence += 1;
        let mut writer = Writer::with_capacity(256);
        let kind = NFNL_SUBSYS_NFTABLES << 8 | kind;
        let header = Header { kind, flags: REQUEST | DUMP, sequence: self.sequence };
        writer.message(header, &[family, 0, 0, 0], filter);
        let request = writer.finish().ok_or(TooLong)?;
        match (self.lister)(&request, self.sequence)? {
            Listed::Whole(entries) => Ok(self.checked(entries)),
            Listed::Changed => Ok(None),
            Listed::Refused(source) => Err(NftError::List { what, source }),
            Listed::Unknown(source) => Err(NftError::Listing { source }),
        }
    }

    /// The entries, when all are of the generation of the lists before.
    fn checked(&mut self, entries: Vec<Vec<u8>>) -> Option<Vec<Entry>> {
        for entry in &entries {
            let generation = entry.get(2..GENERIC)?.try_into().ok()?;
            if self.generation.replace(generation).is_some_and(|before| before != generation) {
                return None;
            }
        }
        Some(entries.into_iter().map(Entry).collect())
    }
}
