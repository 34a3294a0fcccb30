//! The kernel's listing of a namespace's tables in bytes, the differences of two listings, and nft's listing.
//!
//! Handles are left out, because they number objects in the order of creation. Counters are compared: they are zero.

use crate::dump::{DumpRequest, Message, dump};
use gybe_referees::libnftnl;
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
