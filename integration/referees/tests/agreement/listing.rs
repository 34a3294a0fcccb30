//! What the kernel lists of a namespace's tables, byte for byte, and how two such listings differ.
//!
//! Only what cannot be the same is taken out: handles, which number everything in the order it was
//! made. Counters stay: no packet ever came by.

use crate::dump::{Ask, Message, dump};
use crate::libnftnl;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Attributes that number things: `NFTA_TABLE_HANDLE`, `NFTA_CHAIN_HANDLE` and so on
/// (include/uapi/linux/netfilter/nf_tables.h). A rule's position is its neighbour's handle.
const TABLE_HANDLE: u16 = 4;
const CHAIN_HANDLE: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_POSITION: u16 = 6;
const SET_HANDLE: u16 = 16;
/// `NFTA_SET_ELEM_LIST_ELEMENTS`.
const ELEMENTS: u16 = 3;

/// All there is: name of the object → its attributes, and its text.
#[derive(Debug, PartialEq, Eq)]
pub struct Listing(BTreeMap<String, Object>);

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
    pub fn here() -> Self {
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
            objects.insert(format!("set {name}"), set(&message, &name));
        }
        Self(objects)
    }

    /// How many rules there are.
    pub fn rules(&self) -> usize {
        self.0.keys().filter(|name| name.starts_with("rule ")).count()
    }

    /// One sentence for each object that is not the same in `other`.
    pub fn differences(&self, other: &Self, names: [&str; 2]) -> String {
        let mut told = String::new();
        let [ours, theirs] = names;
        for name in self.0.keys().chain(other.0.keys().filter(|name| !self.0.contains_key(*name))) {
            match (self.0.get(name), other.0.get(name)) {
                (Some(left), Some(right)) if left == right => {}
                (left, right) => {
                    let _ = writeln!(told, "{name} is not the same:\n{ours}: {left:?}\n{theirs}: {right:?}");
                }
            }
        }
        told
    }
}

/// A set with its elements, sorted: a hash has no order.
fn set(message: &Message, name: &str) -> Object {
    let parts = dump(Ask::ElementsOf(name));
    let lists = parts.iter().flat_map(Message::attributes).filter(|(kind, _)| *kind == ELEMENTS);
    let mut elements: Vec<_> = lists.flat_map(|(_, list)| Message::walk(&list)).collect();
    elements.sort();
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.bytes.as_slice()).collect();
    let text = libnftnl::set_text(&message.bytes, &parts);
    let mut text: Vec<_> = text.split('\t').collect();
    text.sort_unstable();
    Object { attributes: [message.without(&[SET_HANDLE]), elements].concat(), text: text.join("\t") }
}
