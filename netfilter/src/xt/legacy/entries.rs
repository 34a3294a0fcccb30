//! Decodes the bytes of a table into chains and rules. Pure; stays within the bytes.
//!
//! A table is a sequence of entries. iptables writes the built-in chains first, each from its hook's first entry to its
//! policy, an unconditional ACCEPT or DROP at the hook's underflow. A user chain follows an unconditional entry with the
//! target ERROR, which has its name, and ends with an unconditional RETURN; the table ends with a last ERROR. The kernel
//! accepts more with `IPT_SO_SET_REPLACE`: a chain that runs on into the next, jumps to any entry, two chains of one
//! name, a policy elsewhere (`mark_source_chains` and `translate_table`, net/ipv4/netfilter/ip_tables.c, v6.18). Chains
//! cannot express that, so such a table is malformed as a whole: none of its rules may be lost.

use super::sockopt::Info;
use super::{AddressTest, BuiltIn, Counters, HeaderTest, InterfaceTest, LegacyChain, LegacyRule};
use crate::model::ruleset::{Family, Hook, Is};
use crate::xt::fields::{Fields, is, word};
use crate::xt::targets::verdict;
use crate::xt::{XtMatch, XtTarget, decode_match, decode_target};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The offsets of the fields of `struct ipt_entry` and `struct ip6t_entry`.
struct EntryLayout {
    /// Source, destination and their masks come first, each this long.
    address: usize,
    /// The length of the tests of the packet's header; all of them zero are passed by every packet.
    header: usize,
    protocol: usize,
    flags: usize,
    inverted: usize,
    target_offset: usize,
    counters: usize,
    size: usize,
    goto: u32,
}

const V4: EntryLayout = EntryLayout {
    address: 4,
    header: 84,
    protocol: 80,
    flags: 82,
    inverted: 83,
    target_offset: 88,
    counters: 96,
    size: 112,
    goto: 2,
};
const V6: EntryLayout = EntryLayout {
    address: 16,
    header: 136,
    protocol: 128,
    flags: 131,
    inverted: 132,
    target_offset: 140,
    counters: 152,
    size: 168,
    goto: 4,
};

/// `IFNAMSIZ`.
const INTERFACE: usize = 16;
/// `struct xt_entry_match` and `struct xt_entry_target` before their data: size, name, revision.
const EXTENSION: usize = 32;
const EXTENSION_NAME: usize = 29;

/// An entry and its offset.
#[derive(Clone, Copy)]
struct TableEntry<'a> {
    at: usize,
    fields: Fields<'a>,
}

/// A chain's name, hook and entries.
struct Draft<'a> {
    name: String,
    hook: Option<Hook>,
    entries: Vec<TableEntry<'a>>,
}

/// The chains of a table; `None` when its bytes are not what iptables writes.
pub(super) fn chains(family: Family, info: &Info, bytes: &[u8]) -> Option<Vec<LegacyChain>> {
    let layout = match family {
        Family::V4 => &V4,
        Family::V6 => &V6,
    };
    let drafts = drafts(layout, info, bytes)?;
    let names: BTreeSet<&str> = drafts.iter().map(|draft| draft.name.as_str()).collect();
    let built_in = drafts.iter().filter(|draft| draft.hook.is_some()).count();
    if names.len() != drafts.len() || u32::try_from(built_in) != Ok((info.hooks & VALID_HOOKS).count_ones()) {
        return None;
    }
    let first = |draft: &Draft<'_>| Some((draft.entries.first()?.at, draft.name.clone()));
    let user_chains = drafts.iter().filter(|draft| draft.hook.is_none());
    let reader = TableReader { family, layout, info, names: user_chains.filter_map(first).collect() };
    drafts.into_iter().map(|draft| reader.chain(draft)).collect()
}

/// The bits of [`Info::hooks`].
const VALID_HOOKS: u32 = (1 << Hook::ALL.len()) - 1;

fn drafts<'a>(layout: &EntryLayout, info: &Info, bytes: &'a [u8]) -> Option<Vec<Draft<'a>>> {
    let (mut drafts, mut at) = (Vec::<Draft<'_>>::new(), 0);
    while at < bytes.len() {
        let fields = Fields(bytes.get(at..)?);
        let length = usize::from(fields.u16(layout.target_offset + 2)?);
        if length < layout.size + EXTENSION {
            return None;
        }
        let entry = TableEntry { at, fields: Fields(fields.bytes(0, length)?) };
        at += length;
        let (hook, target) = (info.hook_at(entry.at), entry.target(layout)?);
        let is_head = target.text(2, EXTENSION_NAME)? == "ERROR";
        match hook {
            // ERROR drops a packet that passes the tests of its entry: it is a rule unless no packet reaches it.
            _ if is_head && !(hook.is_none() && entry.is_unconditional(layout)?) => return None,
            None if is_head && at == bytes.len() => return Some(drafts),
            None if is_head => {
                let name = word(target.bytes(EXTENSION, EXTENSION_NAME + 1)?);
                drafts.push(Draft { name, hook, entries: Vec::new() });
            }
            Some(built_in) => {
                drafts.push(Draft { name: built_in.chain().to_owned(), hook, entries: vec![entry] });
            }
            None => drafts.last_mut()?.entries.push(entry),
        }
    }
    None
}

impl Info {
    fn hook_at(&self, at: usize) -> Option<Hook> {
        let at = u32::try_from(at).ok()?;
        let hooks = Hook::ALL.into_iter().zip(self.begins).enumerate();
        let mut valid = hooks.filter(|(number, _)| self.hooks & (1 << number) != 0);
        valid.find(|(_, (_, begins))| *begins == at).map(|(_, (hook, _))| hook)
    }

    /// The offset of a built-in chain's policy.
    fn policy_of(&self, hook: Hook) -> Option<usize> {
        let (_, underflow) = Hook::ALL.into_iter().zip(self.underflows).find(|(other, _)| *other == hook)?;
        usize::try_from(underflow).ok()
    }
}

impl<'a> TableEntry<'a> {
    fn target(self, layout: &EntryLayout) -> Option<Fields<'a>> {
        let offset = usize::from(self.fields.u16(layout.target_offset)?);
        self.fields.0.get(offset..).filter(|target| target.len() >= EXTENSION).map(Fields)
    }

    /// Reports whether every packet passes the entry's tests (`unconditional`).
    fn is_unconditional(self, layout: &EntryLayout) -> Option<bool> {
        let has_matches = usize::from(self.fields.u16(layout.target_offset)?) != layout.size;
        Some(!has_matches && self.fields.bytes(0, layout.header)?.iter().all(|byte| *byte == 0))
    }

    /// The verdict of an entry that every packet passes; `None` for another entry.
    fn unconditional_verdict(self, layout: &EntryLayout) -> Option<XtTarget> {
        let target = self.target(layout).filter(|_| self.is_unconditional(layout) == Some(true))?;
        let is_standard = target.text(2, EXTENSION_NAME)?.is_empty();
        target.array(EXTENSION).filter(|_| is_standard).map(i32::from_ne_bytes).and_then(verdict)
    }

    fn counted(self, layout: &EntryLayout) -> Option<Counters> {
        let number = |at| self.fields.array(at).map(u64::from_ne_bytes);
        Some(Counters { packets: number(layout.counters)?, bytes: number(layout.counters + 8)? })
    }
}

struct TableReader<'l> {
    family: Family,
    layout: &'l EntryLayout,
    info: &'l Info,
    /// The user chains by the offset of their first entry.
    names: BTreeMap<usize, String>,
}

impl TableReader<'_> {
    fn chain(&self, mut draft: Draft<'_>) -> Option<LegacyChain> {
        let end = draft.entries.pop()?;
        let built_in = match (draft.hook, end.unconditional_verdict(self.layout)?) {
            (None, XtTarget::Return) => None,
            (Some(hook), policy @ (XtTarget::Accept | XtTarget::Drop))
                if self.info.policy_of(hook) == Some(end.at) =>
            {
                Some(BuiltIn { hook, policy, counted: end.counted(self.layout)? })
            }
            _ => return None,
        };
        let rules = draft.entries.into_iter().map(|entry| self.rule(entry)).collect::<Option<_>>()?;
        Some(LegacyChain { name: draft.name, built_in, rules })
    }

    fn rule(&self, entry: TableEntry<'_>) -> Option<LegacyRule> {
        let mut matches = Vec::new();
        let header = self.header(entry.fields, &mut matches)?;
        let (mut at, end) = (self.layout.size, usize::from(entry.fields.u16(self.layout.target_offset)?));
        while at < end {
            let length = usize::from(entry.fields.u16(at)?);
            if length < EXTENSION || at + length > end {
                return None;
            }
            let extension = Fields(entry.fields.bytes(at, length)?);
            let (name, data) = (extension.text(2, EXTENSION_NAME)?, extension.0.get(EXTENSION..)?);
            matches.push(decode_match(self.family, &name, extension.u8(EXTENSION - 1)?, data));
            at += length;
        }
        let target = self.target(entry)?;
        Some(LegacyRule { header, matches, target, counted: entry.counted(self.layout)? })
    }

    /// The outer `None` is a contradiction, the inner one a rule without a target.
    fn target(&self, entry: TableEntry<'_>) -> Option<Option<XtTarget>> {
        let target = entry.target(self.layout)?;
        let name = target.text(2, EXTENSION_NAME)?;
        let data = target.0.get(EXTENSION..)?;
        let decoded = decode_target(self.family, &name, target.u8(EXTENSION - 1)?, data);
        if !name.is_empty() {
            return Some(Some(decoded));
        }
        // Not negative: the offset of the entry where the evaluation continues.
        let Ok(next) = usize::try_from(target.array(EXTENSION).map(i32::from_ne_bytes)?) else {
            return Some(Some(decoded));
        };
        if next == entry.at + entry.fields.0.len() {
            return Some(None);
        }
        let chain = self.names.get(&next)?.clone();
        let is_goto = u32::from(entry.fields.u8(self.layout.flags)?) & self.layout.goto != 0;
        Some(Some(if is_goto { XtTarget::Goto(chain) } else { XtTarget::Jump(chain) }))
    }

    /// Reads the header test of an entry. Tests that [`HeaderTest`] cannot express are added to `others`.
    fn header(&self, fields: Fields<'_>, others: &mut Vec<XtMatch>) -> Option<HeaderTest> {
        let layout = self.layout;
        let (flags, inverted) = (u32::from(fields.u8(layout.flags)?), u32::from(fields.u8(layout.inverted)?));
        let mut interface = |at: usize, bit: u32| -> Option<Option<InterfaceTest>> {
            let (name, mask) = (fields.array(at)?, fields.array(at + 2 * INTERFACE)?);
            let read = interface(name, mask, is(inverted, bit));
            if read.is_none() {
                others.push(XtMatch::Test("interface-mask".to_owned()));
            }
            Some(read.flatten())
        };
        let (in_interface, out_interface) =
            (interface(4 * layout.address, 1)?, interface(4 * layout.address + INTERFACE, 2)?);
        let number = fields.u16(layout.protocol)?;
        // `IP6T_F_PROTO`; without it, and with protocol 0, the kernel makes no test (`ip6_packet_match`).
        let has_protocol = number != 0 && (self.family == Family::V4 || flags & 1 != 0);
        let has_fragment = self.family == Family::V4 && flags & 1 != 0;
        for (is_odd, name) in [
            (self.family == Family::V4 && inverted & 0x20 != 0 && !has_fragment, "fragment"),
            (self.family == Family::V6 && number != 0 && !has_protocol, "protocol"),
            (self.family == Family::V6 && flags & 2 != 0, "tos"),
        ] {
            others.extend(is_odd.then(|| XtMatch::Test(name.to_owned())));
        }
        let mut address = |which: usize, bit: u32| -> Option<Option<AddressTest>> {
            let test = self.address(fields, which, is(inverted, bit))?;
            if test.is_some_and(AddressTest::has_more_than_mask) {
                others.push(XtMatch::Test("address-mask".to_owned()));
                return Some(None);
            }
            Some(test)
        };
        let (source, destination) = (address(0, 0x08)?, address(1, 0x10)?);
        Some(HeaderTest {
            source,
            destination,
            in_interface,
            out_interface,
            protocol: has_protocol.then(|| (is(inverted, 0x40), number)),
            fragment: has_fragment.then(|| is(inverted, 0x20)),
        })
    }

    /// The source (0) or the destination (1).
    fn address(&self, fields: Fields<'_>, which: usize, is: Is) -> Option<Option<AddressTest>> {
        let address = fields.address(which * self.layout.address, self.family)?;
        let mask = fields.address((which + 2) * self.layout.address, self.family)?;
        let is_asked = is == Is::NotIn || !mask.is_unspecified() || !address.is_unspecified();
        Some(is_asked.then_some(AddressTest { is, address, mask }))
    }
}

impl AddressTest {
    /// Reports whether the kernel compares bits of the address that the mask clears: only in IPv4, where no packet then
    /// has the address (`ip_packet_match`). iptables clears these bits.
    fn has_more_than_mask(self) -> bool {
        match (self.address, self.mask) {
            (IpAddr::V4(address), IpAddr::V4(mask)) => address.to_bits() & !mask.to_bits() != 0,
            _ => false,
        }
    }
}

/// The test of an interface's name, the inner `None` for no test; the outer `None` when its mask is not
/// a prefix of whole bytes, or the name goes on after its end.
fn interface(name: [u8; INTERFACE], mask: [u8; INTERFACE], is: Is) -> Option<Option<InterfaceTest>> {
    let length = mask.iter().take_while(|byte| **byte == u8::MAX).count();
    if mask.iter().skip(length).any(|byte| *byte != 0) {
        return None;
    }
    let masked = name.get(..length)?;
    if masked.iter().skip_while(|byte| **byte != 0).any(|byte| *byte != 0) {
        return None;
    }
    let is_prefix = !masked.contains(&0) && length < INTERFACE;
    let is_asked = length > 0 || is == Is::NotIn;
    Some(is_asked.then(|| InterfaceTest { is, name: word(masked), is_prefix }))
}

#[cfg(test)]
mod tests;
