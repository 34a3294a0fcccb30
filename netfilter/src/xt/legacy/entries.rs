//! Decodes the bytes of a table into chains and rules. Pure; stays within the bytes.
//!
//! A table is a sequence of entries. A built-in chain begins at the offset of the table's hook, a user chain after an
//! entry with the target ERROR, which has its name. Each chain ends with its policy or an unconditional RETURN, and the
//! table with a last ERROR (`translate_table`, net/ipv4/netfilter/ip_tables.c, v6.18).

use super::sockopt::Info;
use super::{AddressTest, BuiltIn, Counters, Header, InetHook, InterfaceTest, LegacyChain, LegacyRule};
use crate::ruleset::{Family, Is};
use crate::xt::fields::{Fields, is, word};
use crate::xt::targets::verdict;
use crate::xt::{XtMatch, XtTarget, decode_match, decode_target};
use std::collections::BTreeMap;

const HOOKS: [InetHook; 5] =
    [InetHook::Prerouting, InetHook::Input, InetHook::Forward, InetHook::Output, InetHook::Postrouting];

/// The offsets of the fields of `struct ipt_entry` and `struct ip6t_entry`.
struct Layout {
    /// Source, destination and their masks come first, each this long.
    address: usize,
    protocol: usize,
    flags: usize,
    inverted: usize,
    target_offset: usize,
    counters: usize,
    size: usize,
    goto: u32,
}

const V4: Layout = Layout {
    address: 4,
    protocol: 80,
    flags: 82,
    inverted: 83,
    target_offset: 88,
    counters: 96,
    size: 112,
    goto: 2,
};
const V6: Layout = Layout {
    address: 16,
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
struct Entry<'a> {
    at: usize,
    fields: Fields<'a>,
}

/// A chain's name, hook and entries.
struct Draft<'a> {
    name: String,
    hook: Option<InetHook>,
    entries: Vec<Entry<'a>>,
}

/// The chains of a table; `None` when its bytes contradict each other.
pub(super) fn chains(family: Family, info: &Info, bytes: &[u8]) -> Option<Vec<LegacyChain>> {
    let layout = match family {
        Family::V4 => &V4,
        Family::V6 => &V6,
    };
    let drafts = drafts(layout, info, bytes)?;
    let first = |draft: &Draft<'_>| Some((draft.entries.first()?.at, draft.name.clone()));
    let reader = Reader { family, layout, names: drafts.iter().filter_map(first).collect() };
    drafts.into_iter().map(|draft| reader.chain(draft)).collect()
}

fn drafts<'a>(layout: &Layout, info: &Info, bytes: &'a [u8]) -> Option<Vec<Draft<'a>>> {
    let (mut drafts, mut at) = (Vec::<Draft<'_>>::new(), 0);
    while at < bytes.len() {
        let fields = Fields(bytes.get(at..)?);
        let length = usize::from(fields.u16(layout.target_offset + 2)?);
        if length < layout.size + EXTENSION {
            return None;
        }
        let entry = Entry { at, fields: Fields(fields.bytes(0, length)?) };
        at += length;
        let target = entry.target(layout)?;
        if target.text(2, EXTENSION_NAME)? == "ERROR" {
            if at < bytes.len() {
                let name = word(target.bytes(EXTENSION, EXTENSION_NAME + 1)?);
                drafts.push(Draft { name, hook: None, entries: Vec::new() });
            }
            continue;
        }
        if let Some(hook) = info.hook_at(entry.at) {
            drafts.push(Draft { name: hook.chain().to_owned(), hook: Some(hook), entries: Vec::new() });
        }
        drafts.last_mut()?.entries.push(entry);
    }
    Some(drafts)
}

impl Info {
    fn hook_at(&self, at: usize) -> Option<InetHook> {
        let at = u32::try_from(at).ok()?;
        let hooks = HOOKS.into_iter().zip(self.begins).enumerate();
        let mut valid = hooks.filter(|(number, _)| self.hooks & (1 << number) != 0);
        valid.find(|(_, (_, begins))| *begins == at).map(|(_, (hook, _))| hook)
    }
}

impl<'a> Entry<'a> {
    fn target(self, layout: &Layout) -> Option<Fields<'a>> {
        let offset = usize::from(self.fields.u16(layout.target_offset)?);
        self.fields.0.get(offset..).filter(|target| target.len() >= EXTENSION).map(Fields)
    }

    fn counted(self, layout: &Layout) -> Option<Counters> {
        let number = |at| self.fields.array(at).map(u64::from_ne_bytes);
        Some(Counters { packets: number(layout.counters)?, bytes: number(layout.counters + 8)? })
    }
}

struct Reader<'l> {
    family: Family,
    layout: &'l Layout,
    /// The chains by the offset of their first entry.
    names: BTreeMap<usize, String>,
}

impl Reader<'_> {
    fn chain(&self, mut draft: Draft<'_>) -> Option<LegacyChain> {
        let end = draft.entries.pop()?;
        let built_in = match draft.hook {
            None => None,
            Some(hook) => {
                let number = end.target(self.layout)?.array(EXTENSION).map(i32::from_ne_bytes)?;
                Some(BuiltIn { hook, policy: verdict(number)?, counted: end.counted(self.layout)? })
            }
        };
        let rules = draft.entries.into_iter().map(|entry| self.rule(entry)).collect::<Option<_>>()?;
        Some(LegacyChain { name: draft.name, built_in, rules })
    }

    fn rule(&self, entry: Entry<'_>) -> Option<LegacyRule> {
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
    fn target(&self, entry: Entry<'_>) -> Option<Option<XtTarget>> {
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

    /// Reads the header test of an entry. Tests that [`Header`] cannot express are added to `others`.
    fn header(&self, fields: Fields<'_>, others: &mut Vec<XtMatch>) -> Option<Header> {
        let layout = self.layout;
        let (flags, inverted) = (u32::from(fields.u8(layout.flags)?), u32::from(fields.u8(layout.inverted)?));
        let mut interface = |at: usize, bit: u32| -> Option<Option<InterfaceTest>> {
            let (name, mask) = (fields.array(at)?, fields.array(at + 2 * INTERFACE)?);
            let read = interface(name, mask, is(inverted, bit));
            if read.is_none() {
                others.push(XtMatch::Unknown("interface-mask".to_owned()));
            }
            Some(read.flatten())
        };
        let (in_interface, out_interface) =
            (interface(4 * layout.address, 1)?, interface(4 * layout.address + INTERFACE, 2)?);
        let number = fields.u16(layout.protocol)?;
        let (has_protocol, has_fragment) = match self.family {
            Family::V4 => (number != 0, flags & 1 != 0),
            Family::V6 => (flags & 1 != 0, false),
        };
        if self.family == Family::V6 && flags & 2 != 0 {
            others.push(XtMatch::Unknown("tos".to_owned()));
        }
        Some(Header {
            source: self.address(fields, 0, is(inverted, 0x08))?,
            destination: self.address(fields, 1, is(inverted, 0x10))?,
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

impl InetHook {
    /// The built-in chain's name.
    pub fn chain(self) -> &'static str {
        match self {
            Self::Prerouting => "PREROUTING",
            Self::Input => "INPUT",
            Self::Forward => "FORWARD",
            Self::Output => "OUTPUT",
            Self::Postrouting => "POSTROUTING",
        }
    }
}

/// The test of an interface's name, the inner `None` for no test; the outer `None` when its mask is not
/// a prefix of whole bytes.
fn interface(name: [u8; INTERFACE], mask: [u8; INTERFACE], is: Is) -> Option<Option<InterfaceTest>> {
    let length = mask.iter().take_while(|byte| **byte == u8::MAX).count();
    if mask.iter().skip(length).any(|byte| *byte != 0) {
        return None;
    }
    let masked = name.get(..length)?;
    let is_prefix = !masked.contains(&0) && length < INTERFACE;
    let is_asked = length > 0 || is == Is::NotIn;
    Some(is_asked.then(|| InterfaceTest { is, name: word(masked), is_prefix }))
}

#[cfg(test)]
mod tests;
