//! A rule set as one transaction: a plain value, bytes and the name of what each message makes.
//!
//! Pure. Sending it is `socket`'s affair; nothing here opens, reads or decides anything.

mod draft;

use super::TABLE;
use super::uapi::{NFT_MSG_DELTABLE, NFTA_EXPR_NAME, NFTA_RULE_EXPRESSIONS, NFTA_TABLE_NAME};
use crate::netlink::attr::Attributes;
use crate::netlink::message::{HEADER, Messages};
use crate::ruleset::{ChainName, RuleId, Ruleset};
use draft::Draft;
use std::fmt;

/// `struct nfgenmsg`, between the netlink header and the attributes.
pub(super) const GENERIC: usize = 4;

/// Messages that the kernel carries out together or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    bytes: Vec<u8>,
    objects: Vec<Object>,
}

/// What a message of a batch is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// The transaction itself.
    Transaction,
    /// Our table.
    Table,
    /// A chain.
    Chain(ChainName),
    /// A set.
    Set(String),
    /// Elements of a set.
    Elements(String),
    /// A rule and its chain.
    Rule(RuleId, ChainName),
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transaction => write!(f, "the transaction"),
            Self::Table => write!(f, "table inet {TABLE}"),
            Self::Chain(name) => write!(f, "chain {name}"),
            Self::Set(name) => write!(f, "set {name}"),
            Self::Elements(set) => write!(f, "elements of set {set}"),
            Self::Rule(id, chain) => write!(f, "rule \"{id}\" in chain {chain}"),
        }
    }
}

/// A length in the batch does not fit its field: a rule id or a name is too long to be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a name in the rule set is too long for nftables")]
pub struct TooLong;

/// Where a batch starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// There is no table of ours; the batch fails when there is. No delete in it: a delete makes the
    /// closing of the socket wait 7-15 ms (spec `netlink.md`).
    Fresh,
    /// Whatever is there of ours goes, in the same transaction.
    Replace,
}

impl Batch {
    /// The batch that makes the namespace hold exactly `rules`.
    ///
    /// # Errors
    /// When a rule id is longer than a comment can be.
    pub fn apply(rules: &Ruleset, start: Start) -> Result<Self, TooLong> {
        let mut draft = Draft::of(rules);
        draft.table(start);
        draft.content(rules);
        draft.close(true)
    }

    /// The same without the message that ends it: the kernel tries all of it and keeps nothing.
    ///
    /// # Errors
    /// As [`Batch::apply`].
    pub fn dry_run(rules: &Ruleset, start: Start) -> Result<Self, TooLong> {
        let mut draft = Draft::of(rules);
        draft.table(start);
        draft.content(rules);
        draft.close(false)
    }

    /// The batch that takes our table away; the kernel refuses it when there is none.
    ///
    /// # Errors
    /// Never in practice: all its lengths are constant.
    pub fn remove() -> Result<Self, TooLong> {
        let mut draft = Draft::with_capacity(256);
        draft.add((NFT_MSG_DELTABLE, 0), Object::Table, |w| w.text(NFTA_TABLE_NAME, TABLE));
        draft.close(true)
    }

    /// The messages, one after the other: what one `sendmsg` takes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the message with this sequence number is about.
    pub fn object(&self, sequence: u32) -> &Object {
        let index = usize::try_from(sequence).ok();
        index.and_then(|index| self.objects.get(index)).unwrap_or(&Object::Transaction)
    }

    /// The expressions of the rule made by this message: the one that holds the attribute at
    /// `offset` of the message, or all of them when no offset is known.
    pub(super) fn expressions(&self, sequence: u32, offset: Option<usize>) -> Vec<&[u8]> {
        let mut messages = Messages(&self.bytes).flatten();
        let Some(message) = messages.find(|message| message.header.sequence == sequence) else {
            return Vec::new();
        };
        let place = |part: &[u8]| part.as_ptr().addr() - message.body.as_ptr().addr() + HEADER;
        let rule = Attributes::of(message.body.get(GENERIC..).unwrap_or_default());
        let list = Attributes::of(rule.get(NFTA_RULE_EXPRESSIONS).map_or(&[], |list| list.value));
        list.filter(|e| {
            offset.is_none_or(|at| (place(e.value)..=place(e.value) + e.value.len()).contains(&at))
        })
        .filter_map(|e| Some(Attributes::of(e.value).get(NFTA_EXPR_NAME)?.text()))
        .collect()
    }

    /// The sequence number of the last message that makes something: the one that is acknowledged.
    pub(super) fn last(&self) -> u32 {
        u32::try_from(self.objects.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }
}
