//! What the kernel lists of a namespace's tables, byte for byte, and how two such listings differ.
//!
//! Only what cannot be the same is taken out: handles, which number everything in the order it was
//! made. Counters stay: no packet ever came by.

use crate::dump::{Ask, Message, dump};
use crate::libnftnl;
use std::collections::{BTreeMap, BTreeSet};

/// Attributes that number things: `NFTA_TABLE_HANDLE`, `NFTA_CHAIN_HANDLE` and so on
/// (include/uapi/linux/netfilter/nf_tables.h). A rule's position is its neighbour's handle.
const TABLE_HANDLE: u16 = 4;
const CHAIN_HANDLE: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_POSITION: u16 = 6;
const SET_HANDLE: u16 = 16;
/// How many elements a set has (`NFTA_SET_COUNT`, Linux 6.16): the elements say it themselves.
const SET_COUNT: u16 = 20;
/// `NFTA_SET_ELEM_LIST_ELEMENTS`.
const ELEMENTS: u16 = 3;

/// All there is: name of the object → its attributes, and its text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listing(BTreeMap<String, Object>);

/// A table, chain, set or rule.
#[derive(Debug, PartialEq, Eq)]
struct Object {
    /// Number and content of each attribute, in the kernel's order.
    attributes: Vec<(u16, Vec<u8>)>,
    /// In libnftnl's words, where it is a rule or a set.
    text: String,
}

impl Listing {
    /// Of the namespace of this thread.
    pub(crate) fn here() -> Self {
        let mut objects = BTreeMap::new();
        for message in dump(Ask::Tables) {
            let object = Object { attributes: message.without(&[TABLE_HANDLE]), text: String::new() };
            objects.insert(format!("table {}", message.text(1)), object);
        }
        for message in dump(Ask::Chains) {
            let object = Object { attributes: message.without(&[CHAIN_HANDLE]), text: String::new() };
            objects.insert(format!("chain {}", message.text(3)), object);
        }
        let mut place = BTreeMap::new();
        for message in dump(Ask::Rules) {
            let chain = message.text(2);
            let at: &mut u32 = place.entry(chain.clone()).or_default();
            *at += 1;
            let attributes = message.without(&[RULE_HANDLE, RULE_POSITION]);
            let object = Object { attributes, text: libnftnl::rule_text(&message.bytes) };
            objects.insert(format!("rule {at} of {chain}"), object);
        }
        for message in dump(Ask::Sets) {
            let name = message.text(2);
            let attributes = message.without(&[SET_HANDLE, SET_COUNT]);
            let object = Object { attributes, text: libnftnl::set_text(&message.bytes, &[]) };
            objects.insert(format!("set {name}"), object);
            objects.insert(elements_of(&name), elements(&message, &name));
        }
        Self(objects)
    }

    /// What is not the same in `other`, by name.
    pub(crate) fn differences(&self, other: &Self) -> BTreeMap<String, String> {
        let names: BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        let pairs = names.into_iter().map(|name| (name, self.0.get(name), other.0.get(name)));
        let different = pairs.filter(|(_, left, right)| left != right);
        different.map(|(name, left, right)| (name.clone(), format!("{left:#?}\nand\n{right:#?}"))).collect()
    }

    /// libnftnl's words for all rules and sets, by name.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let told = self.0.iter().filter(|(_, object)| !object.text.is_empty());
        told.map(|(name, object)| (name.as_str(), object.text.as_str()))
    }
}

/// How the elements of a set are called in a listing.
pub(crate) fn elements_of(set: &str) -> String {
    format!("elements of set {set}")
}

/// A set's elements, sorted: a hash has no order.
fn elements(of: &Message, name: &str) -> Object {
    let parts = dump(Ask::ElementsOf(name));
    let lists = parts.iter().flat_map(Message::attributes).filter(|(kind, _)| *kind == ELEMENTS);
    let mut attributes: Vec<_> = lists.flat_map(|(_, list)| Message::walk(&list)).collect();
    attributes.sort();
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.bytes.as_slice()).collect();
    let text = libnftnl::set_text(&of.bytes, &parts);
    let mut text: Vec<_> = text.split('\t').collect();
    text.sort_unstable();
    Object { attributes, text: text.join("\t") }
}
