//! Decodes the bytes of a table into chains and rules. Pure.
//!
//! A table is a sequence of entries. iptables writes the built-in chains first, each from its hook's first entry to its
//! policy, an unconditional ACCEPT or DROP at the hook's underflow. A user chain begins after an unconditional ERROR
//! entry, which has the chain's name, and ends with an unconditional RETURN. A last ERROR ends the table.
//!
//! With `IPT_SO_SET_REPLACE` the kernel accepts more: a chain that runs on into the next, jumps to any entry, two
//! chains of one name, a policy elsewhere (`mark_source_chains` and `translate_table`,
//! net/ipv4/netfilter/ip_tables.c, v6.18). [`LegacyChain`] cannot express these: the whole table is then malformed,
//! because no rule may be lost.

use super::sockopt::Info;
use super::{AddressTest, BuiltIn, Counters, HeaderTest, InterfaceTest, LegacyChain, LegacyRule};
use crate::model::ruleset::{Family, Hook, Is};
use crate::xt::fields::{Fields, is, word};
use crate::xt::targets::verdict;
use crate::xt::{XtMatch, XtTarget, decode_match, decode_target};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The offsets of the fields of `struct ipt_entry` and `struct ip6t_entry`.
struct TableEntryLayout {
    /// Source, destination and their masks come first, each this long.
    address: usize,
    /// The length of the header test (`struct ipt_ip`), which every packet passes if all its bytes are zero.
    header: usize,
    protocol: usize,
    flags: usize,
    invflags: usize,
    target_offset: usize,
    next_offset: usize,
    counters: usize,
    size: usize,
    /// `IPT_F_GOTO`, `IP6T_F_GOTO`.
    goto_flag: u32,
}

const V4: TableEntryLayout = TableEntryLayout {
    address: 4,
    header: 84,
    protocol: 80,
    flags: 82,
    invflags: 83,
    target_offset: 88,
    next_offset: 90,
    counters: 96,
    size: 112,
    goto_flag: 2,
};
const V6: TableEntryLayout = TableEntryLayout {
    address: 16,
    header: 136,
    protocol: 128,
    flags: 131,
    invflags: 132,
    target_offset: 140,
    next_offset: 142,
    counters: 152,
    size: 168,
    goto_flag: 4,
};

// Bits of `flags` and `invflags`; those of `invflags` are the same in IPv6.
const IPT_F_FRAG: u32 = 0x01;
const IP6T_F_PROTO: u32 = 0x01;
const IP6T_F_TOS: u32 = 0x02;
const IPT_INV_VIA_IN: u32 = 0x01;
const IPT_INV_VIA_OUT: u32 = 0x02;
const IPT_INV_SRCIP: u32 = 0x08;
const IPT_INV_DSTIP: u32 = 0x10;
const IPT_INV_FRAG: u32 = 0x20;
const XT_INV_PROTO: u32 = 0x40;

const IFNAMSIZ: usize = 16;
/// `struct xt_entry_match` and `struct xt_entry_target` before their data: size (2 bytes), name, revision (1 byte).
const EXTENSION: usize = 32;
const XT_EXTENSION_MAXNAMELEN: usize = 29;
/// The length of `errorname` in `struct xt_error_target`.
const XT_FUNCTION_MAXNAMELEN: usize = 30;

/// An entry and its offset.
#[derive(Clone, Copy)]
struct TableEntry<'a> {
    at: usize,
    fields: Fields<'a>,
}

/// A chain whose entries are not decoded yet.
struct RawChain<'a> {
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
    let raw_chains = split(layout, info, bytes)?;
    let names: BTreeSet<&str> = raw_chains.iter().map(|raw| raw.name.as_str()).collect();
    let built_in = raw_chains.iter().filter(|raw| raw.hook.is_some()).count();
    if names.len() != raw_chains.len()
        || u32::try_from(built_in) != Ok((info.hooks & VALID_HOOKS).count_ones())
    {
        return None;
    }
    let first_entry = |raw: &RawChain<'_>| Some((raw.entries.first()?.at, raw.name.clone()));
    let user_chains = raw_chains.iter().filter(|raw| raw.hook.is_none());
    let reader =
        TableReader { family, layout, info, user_chains: user_chains.filter_map(first_entry).collect() };
    raw_chains.into_iter().map(|raw| reader.chain(raw)).collect()
}

/// The bits of [`Info::hooks`] that stand for a hook.
const VALID_HOOKS: u32 = (1 << Hook::ALL.len()) - 1;

/// Splits a table into its chains; `None` when an entry belongs to no chain or the last ERROR is missing.
fn split<'a>(layout: &TableEntryLayout, info: &Info, bytes: &'a [u8]) -> Option<Vec<RawChain<'a>>> {
    let (mut raw_chains, mut at) = (Vec::<RawChain<'_>>::new(), 0);
    while at < bytes.len() {
        let fields = Fields(bytes.get(at..)?);
        let length = usize::from(fields.u16(layout.next_offset)?);
        if length < layout.size + EXTENSION {
            return None;
        }
        let entry = TableEntry { at, fields: Fields(fields.bytes(0, length)?) };
        at += length;
        let (hook, target) = (info.hook_at(entry.at), entry.target(layout)?);
        let is_error = target.text(2, XT_EXTENSION_MAXNAMELEN)? == "ERROR";
        match hook {
            // ERROR drops packets: with tests, or as a hook's first entry, it is a rule, which iptables does not write.
            _ if is_error && !(hook.is_none() && entry.is_unconditional(layout)?) => return None,
            None if is_error && at == bytes.len() => return Some(raw_chains),
            None if is_error => {
                let name = word(target.bytes(EXTENSION, XT_FUNCTION_MAXNAMELEN)?);
                raw_chains.push(RawChain { name, hook, entries: Vec::new() });
            }
            Some(built_in) => {
                raw_chains.push(RawChain { name: built_in.chain().to_owned(), hook, entries: vec![entry] });
            }
            None => raw_chains.last_mut()?.entries.push(entry),
        }
    }
    None
}

impl Info {
    /// The hook whose chain begins at this offset.
    fn hook_at(&self, at: usize) -> Option<Hook> {
        let at = u32::try_from(at).ok()?;
        let hooks = Hook::ALL.into_iter().zip(self.begins).enumerate();
        let mut valid = hooks.filter(|(number, _)| self.hooks & (1 << number) != 0);
        valid.find(|(_, (_, begins))| *begins == at).map(|(_, (hook, _))| hook)
    }

    /// The offset of a built-in chain's policy.
    fn policy_of(&self, hook: Hook) -> Option<usize> {
        let (_, underflow) = Hook::ALL.into_iter().zip(self.underflows).find(|(of, _)| *of == hook)?;
        usize::try_from(underflow).ok()
    }
}

impl<'a> TableEntry<'a> {
    /// The target, which begins as [`EXTENSION`] does.
    fn target(self, layout: &TableEntryLayout) -> Option<Fields<'a>> {
        let offset = usize::from(self.fields.u16(layout.target_offset)?);
        self.fields.0.get(offset..).filter(|target| target.len() >= EXTENSION).map(Fields)
    }

    /// Reports whether every packet passes the entry's tests (the kernel's `unconditional`).
    fn is_unconditional(self, layout: &TableEntryLayout) -> Option<bool> {
        let has_matches = usize::from(self.fields.u16(layout.target_offset)?) != layout.size;
        Some(!has_matches && self.fields.bytes(0, layout.header)?.iter().all(|byte| *byte == 0))
    }

    /// The verdict of an unconditional entry; `None` for an entry with tests or without a standard verdict.
    fn unconditional_verdict(self, layout: &TableEntryLayout) -> Option<XtTarget> {
        let target = self.target(layout).filter(|_| self.is_unconditional(layout) == Some(true))?;
        let is_standard = target.text(2, XT_EXTENSION_MAXNAMELEN)?.is_empty();
        target.array(EXTENSION).filter(|_| is_standard).map(i32::from_ne_bytes).and_then(verdict)
    }

    fn counters(self, layout: &TableEntryLayout) -> Option<Counters> {
        let number = |at| self.fields.array(at).map(u64::from_ne_bytes);
        Some(Counters { packets: number(layout.counters)?, bytes: number(layout.counters + 8)? })
    }
}

struct TableReader<'l> {
    family: Family,
    layout: &'l TableEntryLayout,
    info: &'l Info,
    /// The names of the user chains by the offset of their first entry.
    user_chains: BTreeMap<usize, String>,
}

impl TableReader<'_> {
    fn chain(&self, mut raw: RawChain<'_>) -> Option<LegacyChain> {
        let last = raw.entries.pop()?;
        let built_in = match (raw.hook, last.unconditional_verdict(self.layout)?) {
            (None, XtTarget::Return) => None,
            (Some(hook), policy @ (XtTarget::Accept | XtTarget::Drop))
                if self.info.policy_of(hook) == Some(last.at) =>
            {
                Some(BuiltIn { hook, policy, counted: last.counters(self.layout)? })
            }
            _ => return None,
        };
        let rules = raw.entries.into_iter().map(|entry| self.rule(entry)).collect::<Option<_>>()?;
        Some(LegacyChain { name: raw.name, built_in, rules })
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
            let (name, data) = (extension.text(2, XT_EXTENSION_MAXNAMELEN)?, extension.0.get(EXTENSION..)?);
            matches.push(decode_match(self.family, &name, extension.u8(EXTENSION - 1)?, data));
            at += length;
        }
        let target = self.rule_target(entry)?;
        Some(LegacyRule { header, matches, target, counted: entry.counters(self.layout)? })
    }

    /// The rule's target, the inner `None` for a rule that has none; the outer `None` when the table is malformed.
    fn rule_target(&self, entry: TableEntry<'_>) -> Option<Option<XtTarget>> {
        let target = entry.target(self.layout)?;
        let name = target.text(2, XT_EXTENSION_MAXNAMELEN)?;
        let data = target.0.get(EXTENSION..)?;
        let decoded = decode_target(self.family, &name, target.u8(EXTENSION - 1)?, data);
        if !name.is_empty() {
            return Some(Some(decoded));
        }
        // A standard verdict that is not negative is the offset of the next entry to evaluate.
        let Ok(next) = usize::try_from(target.array(EXTENSION).map(i32::from_ne_bytes)?) else {
            return Some(Some(decoded));
        };
        if next == entry.at + entry.fields.0.len() {
            return Some(None);
        }
        let chain = self.user_chains.get(&next)?.clone();
        let is_goto = u32::from(entry.fields.u8(self.layout.flags)?) & self.layout.goto_flag != 0;
        Some(Some(if is_goto { XtTarget::Goto(chain) } else { XtTarget::Jump(chain) }))
    }

    /// Reads the header test of an entry; adds tests that [`HeaderTest`] cannot express to `matches`.
    fn header(&self, fields: Fields<'_>, matches: &mut Vec<XtMatch>) -> Option<HeaderTest> {
        let layout = self.layout;
        let (flags, invflags) = (u32::from(fields.u8(layout.flags)?), u32::from(fields.u8(layout.invflags)?));
        let mut interface = |at: usize, bit: u32| -> Option<Option<InterfaceTest>> {
            // Both names precede both masks.
            let (name, mask) = (fields.array(at)?, fields.array(at + 2 * IFNAMSIZ)?);
            let test = interface_test(name, mask, is(invflags, bit));
            if test.is_none() {
                matches.push(XtMatch::Test("interface-mask".to_owned()));
            }
            Some(test.flatten())
        };
        let names = 4 * layout.address;
        let (in_interface, out_interface) =
            (interface(names, IPT_INV_VIA_IN)?, interface(names + IFNAMSIZ, IPT_INV_VIA_OUT)?);
        let number = fields.u16(layout.protocol)?;
        let (is_v4, is_v6) = (self.family == Family::V4, self.family == Family::V6);
        // With protocol 0, or in IPv6 without `IP6T_F_PROTO`, the kernel makes no test (`ip6_packet_match`).
        let has_protocol = number != 0 && (is_v4 || flags & IP6T_F_PROTO != 0);
        let has_fragment = is_v4 && flags & IPT_F_FRAG != 0;
        for (is_inexpressible, name) in [
            (is_v4 && invflags & IPT_INV_FRAG != 0 && !has_fragment, "fragment"),
            (is_v6 && number != 0 && !has_protocol, "protocol"),
            (is_v6 && flags & IP6T_F_TOS != 0, "tos"),
        ] {
            matches.extend(is_inexpressible.then(|| XtMatch::Test(name.to_owned())));
        }
        let mut address = |index: usize, bit: u32| -> Option<Option<AddressTest>> {
            let test = self.address_test(fields, index, is(invflags, bit))?;
            if test.is_some_and(AddressTest::has_bits_outside_mask) {
                matches.push(XtMatch::Test("address-mask".to_owned()));
                return Some(None);
            }
            Some(test)
        };
        let (source, destination) = (address(0, IPT_INV_SRCIP)?, address(1, IPT_INV_DSTIP)?);
        Some(HeaderTest {
            source,
            destination,
            in_interface,
            out_interface,
            protocol: has_protocol.then(|| (is(invflags, XT_INV_PROTO), number)),
            fragment: has_fragment.then(|| is(invflags, IPT_INV_FRAG)),
        })
    }

    /// The test of the source (0) or the destination (1), the inner `None` for no test.
    fn address_test(&self, fields: Fields<'_>, index: usize, is: Is) -> Option<Option<AddressTest>> {
        let address = fields.address(index * self.layout.address, self.family)?;
        let mask = fields.address((index + 2) * self.layout.address, self.family)?;
        let is_tested = is == Is::NotIn || !mask.is_unspecified() || !address.is_unspecified();
        Some(is_tested.then_some(AddressTest { is, address, mask }))
    }
}

impl AddressTest {
    /// Reports whether the address has bits that the mask clears: in IPv4 no packet's masked address equals it
    /// (`ip_packet_match`); in IPv6 the kernel ignores them. iptables clears these bits.
    fn has_bits_outside_mask(self) -> bool {
        match (self.address, self.mask) {
            (IpAddr::V4(address), IpAddr::V4(mask)) => address.to_bits() & !mask.to_bits() != 0,
            _ => false,
        }
    }
}

/// The test of an interface's name, the inner `None` for no test; the outer `None` when the mask is not a prefix of
/// whole bytes, or bytes follow the name's NUL.
fn interface_test(name: [u8; IFNAMSIZ], mask: [u8; IFNAMSIZ], is: Is) -> Option<Option<InterfaceTest>> {
    let length = mask.iter().take_while(|byte| **byte == u8::MAX).count();
    if mask.iter().skip(length).any(|byte| *byte != 0) {
        return None;
    }
    let masked = name.get(..length)?;
    if masked.iter().skip_while(|byte| **byte != 0).any(|byte| *byte != 0) {
        return None;
    }
    let is_prefix = !masked.contains(&0) && length < IFNAMSIZ;
    let is_tested = length > 0 || is == Is::NotIn;
    Some(is_tested.then(|| InterfaceTest { is, name: word(masked), is_prefix }))
}

#[cfg(test)]
mod tests;
