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
    /// closing of the socket wait 7-15 ms (docs/RULES.md, section 5.2).
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
    pub(crate) fn last(&self) -> u32 {
        u32::try_from(self.objects.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::uapi::{NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END};
    use crate::policy::Families;
    use crate::ruleset::{Chain, Is, Match, Protocol, Rule, Verdict};

    fn rules(ports: usize) -> Ruleset {
        let ports = (0..=u16::MAX).step_by(2).take(ports).collect();
        let matches = vec![Match::Protocol(Protocol::Tcp), Match::DestinationPort(Is::In, ports)];
        let rule = Rule { id: RuleId("excluded"), matches, verdict: Verdict::Return };
        let chain = Chain { name: ChainName::NatOutput, rules: vec![rule] };
        Ruleset { families: Families::V4Only, chains: vec![chain] }
    }

    /// The kinds of the messages, and what each is about.
    fn read(batch: &Batch) -> Vec<(u16, String)> {
        let messages = Messages(batch.bytes()).map(|message| message.unwrap().header);
        messages.map(|header| (header.kind & 0xff, batch.object(header.sequence).to_string())).collect()
    }

    #[test]
    fn every_message_is_known_by_its_number() {
        let batch = Batch::apply(&rules(2), Start::Fresh).unwrap();
        let rule = "rule \"excluded\" in chain nat-output";
        let wanted = [
            (NFNL_MSG_BATCH_BEGIN, "the transaction"),
            (0, "table inet gybe"),
            (3, "chain nat-output"),
            (9, "set excluded"),
            (12, "elements of set excluded"),
            (6, rule),
            (NFNL_MSG_BATCH_END, "the transaction"),
        ];
        assert_eq!(read(&batch), wanted.map(|(kind, object)| (kind, object.to_owned())));
        assert_eq!(batch.object(batch.last()).to_string(), rule);
    }

    #[test]
    fn a_fresh_start_deletes_nothing_and_refuses_a_table_that_is_there() {
        let batch = Batch::apply(&rules(2), Start::Fresh).unwrap();
        assert!(read(&batch).iter().all(|(kind, _)| *kind != NFT_MSG_DELTABLE));
        let table = Messages(batch.bytes()).flatten().nth(1).unwrap();
        assert_eq!(table.header.flags, 0x1 | 0x200 | 0x400);
        let replace = Batch::apply(&rules(2), Start::Replace).unwrap();
        assert_eq!(read(&replace)[1..4].iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [0, 2, 0]);
    }

    #[test]
    fn only_the_last_message_asks_for_an_acknowledgement() {
        let batch = Batch::apply(&rules(2), Start::Replace).unwrap();
        let asking = Messages(batch.bytes()).flatten().filter(|message| message.header.flags & 0x4 != 0);
        assert_eq!(asking.map(|message| message.header.sequence).collect::<Vec<_>>(), [batch.last()]);
    }

    #[test]
    fn a_dry_run_is_the_same_without_its_end() {
        let (real, dry) = (
            Batch::apply(&rules(2), Start::Fresh).unwrap(),
            Batch::dry_run(&rules(2), Start::Fresh).unwrap(),
        );
        assert_eq!(real.bytes()[..real.bytes().len() - 20], *dry.bytes());
    }

    #[test]
    fn long_lists_are_cut_into_messages_whose_lengths_fit_their_fields() {
        let batch = Batch::apply(&rules(20_000), Start::Fresh).unwrap();
        let sizes: Vec<usize> = Messages(batch.bytes()).map(|message| message.unwrap().body.len()).collect();
        assert!(sizes.len() > 15, "{}", sizes.len());
        assert!(sizes.iter().all(|size| *size < 64 * 1024), "{sizes:?}");
    }

    #[test]
    fn the_room_is_measured_before_anything_is_written() {
        for count in [0, 1, 2, 1000, 20_000] {
            let rules = rules(count);
            let batch = Batch::apply(&rules, Start::Replace).unwrap();
            assert!(batch.bytes().len() <= Draft::room(&rules), "{count} ports");
        }
    }

    #[test]
    fn the_expression_at_an_offset_is_found() {
        let batch = Batch::apply(&rules(2), Start::Fresh).unwrap();
        let all = batch.expressions(batch.last(), None);
        let wanted: [&[u8]; 6] = [b"meta", b"cmp", b"payload", b"lookup", b"counter", b"immediate"];
        assert_eq!(all, wanted);
        let message = Messages(batch.bytes()).flatten().find(|m| m.header.sequence == batch.last()).unwrap();
        let at = message.body.windows(9).position(|bytes| bytes == b"immediate").unwrap() + HEADER;
        assert_eq!(batch.expressions(batch.last(), Some(at)), [b"immediate"]);
    }
}
