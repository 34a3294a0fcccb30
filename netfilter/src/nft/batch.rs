//! A rule set as one transaction: a plain value, bytes and the name of what each message makes.
//!
//! Pure. Sending it is `socket`'s affair; nothing here opens, reads or decides anything.

use super::chain::Base;
use super::uapi::*;
use super::{TABLE, expr, set};
use crate::netlink::attr::{Attributes, Writer};
use crate::netlink::message::{ACK, APPEND, CREATE, EXCLUSIVE, HEADER, Header, Messages, REQUEST};
use crate::ruleset::{Chain, ChainName, NamedList, Rule, RuleId, Ruleset};
use std::fmt;

/// `NFTNL_UDATA_RULE_COMMENT`: the comment that `nft list` shows.
const COMMENT: u8 = 0;

/// `struct nfgenmsg`, between the netlink header and the attributes.
pub(super) const GENERIC: usize = 4;

/// Room for one rule's message: the longest default rule takes about 700 bytes.
const RULE: usize = 768;

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
        draft.add(NFT_MSG_DELTABLE, 0, Object::Table, |w| w.text(NFTA_TABLE_NAME, TABLE));
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
        list.filter(|e| offset.is_none_or(|at| (place(e.value)..=place(e.value) + e.value.len()).contains(&at)))
            .filter_map(|e| Some(Attributes::of(e.value).get(NFTA_EXPR_NAME)?.text()))
            .collect()
    }

    /// The sequence number of the last message that makes something: the one that is acknowledged.
    pub(super) fn last(&self) -> u32 {
        u32::try_from(self.objects.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }
}

/// A batch being written: the sequence number of a message is the index of its object.
struct Draft {
    out: Writer,
    objects: Vec<Object>,
    /// Where the last message begins.
    last: usize,
}

impl Draft {
    fn of(rules: &Ruleset) -> Self {
        let elements: usize = rules.lists().iter().map(|list| set::size(&list.elements)).sum();
        Self::with_capacity(2048 + elements + rules.rules().count() * RULE)
    }

    fn with_capacity(capacity: usize) -> Self {
        let mut out = Writer::with_capacity(capacity);
        frame(&mut out, NFNL_MSG_BATCH_BEGIN, 0);
        Self { out, objects: vec![Object::Transaction], last: 0 }
    }

    fn add(&mut self, kind: u16, flags: u16, object: Object, body: impl FnOnce(&mut Writer)) {
        self.last = self.out.len();
        let sequence = u32::try_from(self.objects.len()).unwrap_or(u32::MAX);
        let header = Header { kind: NFNL_SUBSYS_NFTABLES << 8 | kind, flags: REQUEST | flags, sequence };
        self.out.message(header, &[NFPROTO_INET, 0, 0, 0], body);
        self.objects.push(object);
    }

    fn table(&mut self, start: Start) {
        let name = |w: &mut Writer| w.text(NFTA_TABLE_NAME, TABLE);
        match start {
            Start::Fresh => self.add(NFT_MSG_NEWTABLE, CREATE | EXCLUSIVE, Object::Table, name),
            Start::Replace => {
                // Made first, so that taking it away cannot fail for want of it.
                self.add(NFT_MSG_NEWTABLE, CREATE, Object::Table, name);
                self.add(NFT_MSG_DELTABLE, 0, Object::Table, name);
                self.add(NFT_MSG_NEWTABLE, CREATE | EXCLUSIVE, Object::Table, name);
            }
        }
    }

    /// Chains before sets before rules: a rule may name any of them.
    fn content(&mut self, rules: &Ruleset) {
        for chain in &rules.chains {
            self.chain(chain.name);
        }
        for (list, id) in rules.lists().iter().zip(1..) {
            self.set(list, id);
        }
        for chain in &rules.chains {
            self.rules(chain);
        }
    }

    fn chain(&mut self, name: ChainName) {
        self.add(NFT_MSG_NEWCHAIN, CREATE, Object::Chain(name), |w| {
            w.text(NFTA_CHAIN_TABLE, TABLE);
            w.text(NFTA_CHAIN_NAME, name.as_str());
            if let Some(base) = Base::of(name) {
                base.write(w);
            }
        });
    }

    fn set(&mut self, list: &NamedList<'_>, id: u32) {
        let name = || list.name.clone().into_owned();
        self.add(NFT_MSG_NEWSET, CREATE, Object::Set(name()), |w| set::describe(w, list, id));
        for portion in set::portions(list) {
            self.add(NFT_MSG_NEWSETELEM, CREATE, Object::Elements(name()), |w| portion.write(w, &list.name));
        }
    }

    fn rules(&mut self, chain: &Chain) {
        for rule in &chain.rules {
            self.add(NFT_MSG_NEWRULE, CREATE | APPEND, Object::Rule(rule.id, chain.name), |w| {
                w.text(NFTA_RULE_TABLE, TABLE);
                w.text(NFTA_RULE_CHAIN, chain.name.as_str());
                w.nested(NFTA_RULE_EXPRESSIONS, |w| expr::write(w, rule));
                comment(w, rule);
            });
        }
    }

    fn close(mut self, commit: bool) -> Result<Batch, TooLong> {
        if commit {
            frame(&mut self.out, NFNL_MSG_BATCH_END, u32::try_from(self.objects.len()).unwrap_or(u32::MAX));
        }
        let mut bytes = self.out.finish().ok_or(TooLong)?;
        // One acknowledgement for all: the kernel answers every message it refuses anyway.
        let flags = bytes.get_mut(self.last..).and_then(|last| last.get_mut(6..)?.first_chunk_mut::<2>());
        if let Some(flags) = flags {
            *flags = (u16::from_ne_bytes(*flags) | ACK).to_ne_bytes();
        }
        Ok(Batch { bytes, objects: self.objects })
    }
}

/// The message a transaction begins or ends with: `nfgenmsg` names the subsystem, in network order.
fn frame(w: &mut Writer, kind: u16, sequence: u32) {
    let [high, low] = NFNL_SUBSYS_NFTABLES.to_be_bytes();
    w.message(Header { kind, flags: REQUEST, sequence }, &[NFPROTO_UNSPEC, 0, high, low], |_| ());
}

/// The rule's id as its comment, with the final NUL that `nft` expects of it.
fn comment(w: &mut Writer, rule: &Rule) {
    let id = rule.id.0.as_bytes();
    // A comment's length has one byte; of a longer one the kernel says that it is too long.
    let length = u8::try_from(id.len() + 1).unwrap_or(u8::MAX);
    w.attr(NFTA_RULE_USERDATA, &[&[COMMENT, length], id, &[0]].concat());
}
