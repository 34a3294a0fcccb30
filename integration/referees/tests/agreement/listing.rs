//! The kernel's listing of a namespace's tables in bytes, the differences of two listings, and nft's listing.
//!
//! Handles are left out, because they number objects in the order of creation. Counters are compared: they are zero.

use gybe_referees::expressions::TABLE;
use gybe_referees::libnftnl;
use mnl::{Bus, Socket};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Attributes that number objects: `NFTA_TABLE_HANDLE`, `NFTA_CHAIN_HANDLE` and so on
/// (include/uapi/linux/netfilter/nf_tables.h). A rule's position is the handle of the rule before it.
const TABLE_HANDLE: u16 = 4;
const CHAIN_HANDLE: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_POSITION: u16 = 6;
const SET_HANDLE: u16 = 16;
/// The number of elements of a set (`NFTA_SET_COUNT`, Linux 6.16), which older kernels do not send.
const SET_COUNT: u16 = 20;
/// `NFTA_SET_ELEM_LIST_ELEMENTS`.
const ELEMENTS: u16 = 3;

/// All objects by name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listing(BTreeMap<String, Object>);

/// A table, chain, set or rule.
#[derive(Debug, PartialEq, Eq)]
struct Object {
    /// Number and content of each attribute, in the kernel's order.
    attributes: Vec<(u16, Vec<u8>)>,
    /// libnftnl's text of a rule or set; empty for other objects.
    text: String,
}

impl Listing {
    /// Lists the namespace of this thread.
    pub(crate) fn observe() -> Self {
        let mut objects = BTreeMap::new();
        for message in dump(DumpRequest::Tables) {
            let object = Object { attributes: message.without(&[TABLE_HANDLE]), text: String::new() };
            objects.insert(format!("table {}", message.text(1)), object);
        }
        for message in dump(DumpRequest::Chains) {
            let object = Object { attributes: message.without(&[CHAIN_HANDLE]), text: String::new() };
            objects.insert(format!("chain {}", message.text(3)), object);
        }
        let mut positions = BTreeMap::new();
        for message in dump(DumpRequest::Rules) {
            let chain = message.text(2);
            let position: &mut u32 = positions.entry(chain.clone()).or_default();
            *position += 1;
            let attributes = message.without(&[RULE_HANDLE, RULE_POSITION]);
            let object = Object { attributes, text: libnftnl::rule_text(&message.bytes) };
            objects.insert(format!("rule {position} of {chain}"), object);
        }
        for message in dump(DumpRequest::Sets) {
            let name = message.text(2);
            let attributes = message.without(&[SET_HANDLE, SET_COUNT]);
            let object = Object { attributes, text: libnftnl::set_text(&message.bytes, &[]) };
            objects.insert(format!("set {name}"), object);
            objects.insert(elements_of(&name), elements(&message, &name));
        }
        Self(objects)
    }

    /// Returns the objects that differ in `other`, by name.
    pub(crate) fn differences(&self, other: &Self) -> BTreeMap<String, String> {
        let names: BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        let pairs = names.into_iter().map(|name| (name, self.0.get(name), other.0.get(name)));
        let different = pairs.filter(|(_, left, right)| left != right);
        different.map(|(name, left, right)| (name.clone(), format!("{left:#?}\nand\n{right:#?}"))).collect()
    }

    /// Returns libnftnl's texts of all rules and sets, by name.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let with_text = self.0.iter().filter(|(_, object)| !object.text.is_empty());
        with_text.map(|(name, object)| (name.as_str(), object.text.as_str()))
    }
}

/// The name of a set's elements in a listing.
pub(crate) fn elements_of(set: &str) -> String {
    format!("elements of set {set}")
}

/// Returns a set's elements, sorted, because a hash set has no order.
fn elements(set: &Message, name: &str) -> Object {
    let parts = dump(DumpRequest::ElementsOf(name));
    let lists = parts.iter().flat_map(Message::attributes).filter(|(kind, _)| *kind == ELEMENTS);
    let mut attributes: Vec<_> = lists.flat_map(|(_, list)| Message::parse_attributes(&list)).collect();
    attributes.sort();
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.bytes.as_slice()).collect();
    let text = libnftnl::set_text(&set.bytes, &parts);
    let mut text: Vec<_> = text.split('\t').collect();
    text.sort_unstable();
    Object { attributes, text: text.join("\t") }
}

/// Returns the table as the `nft` program lists it, with numbers instead of names.
#[expect(clippy::disallowed_methods, reason = "the nft program is one of the readers")]
pub(crate) fn nft_list() -> String {
    let nft = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists());
    let nft = nft.expect("no nft program: integration/setup.sh installs it");
    let output = Command::new(nft).args(["--numeric", "list", "table", "inet", "gybe"]).output().unwrap();
    assert!(output.status.success(), "nft list: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// `NFNL_SUBSYS_NFTABLES`, the high byte of a message's type.
const NFTABLES: u16 = 10 << 8;
const NFPROTO_INET: u8 = 1;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// The lengths of the netlink and nfnetlink headers.
const HEADERS: usize = 20;

/// A request for all objects of one kind.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DumpRequest<'a> {
    Tables,
    Chains,
    Rules,
    /// Sets without their elements.
    Sets,
    /// The elements of the set with that name.
    ElementsOf(&'a str),
}

impl DumpRequest<'_> {
    fn message(self) -> Vec<u8> {
        let (kind, attributes) = match self {
            Self::Tables => (1_u16, Vec::new()),
            Self::Chains => (4, Vec::new()),
            Self::Rules => (7, Vec::new()),
            Self::Sets => (10, Vec::new()),
            Self::ElementsOf(set) => (13, [string(1, TABLE), string(2, set)].concat()),
        };
        let length = u32::try_from(HEADERS + attributes.len()).unwrap();
        let mut message = length.to_ne_bytes().to_vec();
        message.extend((NFTABLES | kind).to_ne_bytes());
        message.extend(REQUEST_DUMP.to_ne_bytes());
        message.extend([0; 8]);
        message.extend([NFPROTO_INET, 0, 0, 0]);
        message.extend(attributes);
        message
    }
}

/// Encodes an attribute that is a C string.
fn string(kind: u16, value: &str) -> Vec<u8> {
    let length = u16::try_from(4 + value.len() + 1).unwrap();
    let mut attribute = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    attribute.extend(value.as_bytes());
    attribute.push(0);
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    attribute
}

/// Returns the objects in the namespace of this thread, in the kernel's order.
pub(crate) fn dump(request: DumpRequest<'_>) -> Vec<Message> {
    let kernel = Socket::new(Bus::Netfilter).unwrap();
    kernel.send(&request.message()).unwrap();
    let mut buffer = vec![0_u8; (1 << 16) + 4];
    let aligned = buffer.as_ptr().align_offset(4);
    let mut messages = Vec::new();
    loop {
        for bytes in kernel.recv(&mut buffer[aligned..]).unwrap() {
            let message = Message { bytes: bytes.unwrap().to_vec() };
            match message.kind() {
                NLMSG_DONE => return messages,
                NLMSG_ERROR => panic!("the kernel refuses {request:?}: {message:?}"),
                _ => messages.push(message),
            }
        }
    }
}

/// The message of one object.
#[derive(Debug)]
pub(crate) struct Message {
    /// The message with its headers.
    pub bytes: Vec<u8>,
}

impl Message {
    fn kind(&self) -> u16 {
        u16::from_ne_bytes([self.bytes[4], self.bytes[5]])
    }

    /// Returns number and content of each attribute.
    pub(crate) fn attributes(&self) -> Vec<(u16, Vec<u8>)> {
        Self::parse_attributes(&self.bytes[HEADERS..])
    }

    /// Parses nested attributes.
    pub(crate) fn parse_attributes(mut rest: &[u8]) -> Vec<(u16, Vec<u8>)> {
        let mut attributes = Vec::new();
        while let [a, b, c, d, ..] = *rest {
            let length = usize::from(u16::from_ne_bytes([a, b]));
            attributes.push((u16::from_ne_bytes([c, d]) & 0x3fff, rest[4..length].to_vec()));
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
        attributes
    }

    /// Returns all other attributes.
    pub(crate) fn without(&self, these: &[u16]) -> Vec<(u16, Vec<u8>)> {
        self.attributes().into_iter().filter(|(kind, _)| !these.contains(kind)).collect()
    }

    /// Returns an attribute that is a C string.
    pub(crate) fn text(&self, kind: u16) -> String {
        let (_, mut value) = self.attributes().into_iter().find(|(number, _)| *number == kind).unwrap();
        value.pop();
        String::from_utf8(value).unwrap()
    }
}
