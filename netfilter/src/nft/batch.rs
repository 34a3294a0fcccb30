//! Encodes a ruleset as one nftables transaction: its bytes, and the object of each message. Pure; `socket` sends it.

use super::chain::{Base, TABLE};
use super::{exemption, expr, set};
use crate::kernel::netlink::attr::{Attributes, HEADER as ATTRIBUTE_HEADER, Writer};
use crate::kernel::netlink::message::{
    ACK, APPEND, CREATE, EXCLUSIVE, HEADER, Header, Message, Messages, REQUEST,
};
use crate::kernel::uapi::*;
use crate::model::ruleset::{Chain, ChainName, NamedList, RuleId, Ruleset};
use std::fmt;

/// `struct nfgenmsg`, between the netlink header and the attributes.
pub(super) const GENERIC: usize = 4;

/// The messages of one transaction: the kernel commits all of them or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    bytes: Vec<u8>,
    objects: Vec<BatchObject>,
}

/// The object that a message of a batch creates or deletes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchObject {
    /// The transaction itself.
    Transaction,
    /// Gybe's table.
    Table,
    /// A chain.
    Chain(ChainName),
    /// A set.
    Set(String),
    /// Elements of a set.
    Elements(String),
    /// A rule and its chain.
    Rule(RuleId, ChainName),
    /// The table of the exemption of probes, or an object of it.
    Exemption(ExemptionObject),
}

/// The table of the exemption of probes, or an object of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExemptionObject {
    /// The table.
    Table,
    /// A chain.
    Chain(&'static str),
    /// A set, or elements of it.
    Set(&'static str),
    /// A rule.
    Rule(&'static str),
}

impl fmt::Display for BatchObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transaction => write!(f, "the transaction"),
            Self::Table => write!(f, "table inet {TABLE}"),
            Self::Chain(name) => write!(f, "chain {name}"),
            Self::Set(name) => write!(f, "set {name}"),
            Self::Elements(set) => write!(f, "elements of set {set}"),
            Self::Rule(id, chain) => write!(f, "rule \"{id}\" in chain {chain}"),
            Self::Exemption(object) => write!(f, "{object}"),
        }
    }
}

impl fmt::Display for ExemptionObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table => {}
            Self::Chain(name) => write!(f, "chain {name} of ")?,
            Self::Set(name) => write!(f, "set {name} of ")?,
            Self::Rule(id) => write!(f, "rule \"{id}\" of ")?,
        }
        write!(f, "table inet {}", exemption::TABLE)
    }
}

/// An attribute exceeds 65,535 bytes, the limit of `nla_len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a name in the rule set is too long for nftables")]
pub struct TooLong;

/// The state that a batch starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// No table: the batch fails when there is one. It has no delete, because a delete makes the closing of the
    /// socket wait 7-15 ms (docs/RULES.md, section 5.2).
    Fresh,
    /// Any state: the same transaction removes the table that is there.
    Replace,
}

impl Batch {
    /// The batch that makes `rules` the content of Gybe's table.
    ///
    /// # Errors
    /// When an attribute exceeds 65,535 bytes. The kernel, not this function, refuses a rule id longer than a comment.
    pub fn apply(rules: &Ruleset, start: Start) -> Result<Self, TooLong> {
        BatchBuilder::of(rules, start).close(true)
    }

    /// [`Batch::apply`] without `NFNL_MSG_BATCH_END`: the kernel checks every message and commits none.
    ///
    /// # Errors
    /// As [`Batch::apply`].
    pub fn dry_run(rules: &Ruleset, start: Start) -> Result<Self, TooLong> {
        BatchBuilder::of(rules, start).close(false)
    }

    /// The batch that makes `rules` the content of Gybe's table, and deletes the tables of istio-cni for ambient pods.
    ///
    /// # Errors
    /// As [`Batch::apply`].
    pub(crate) fn take_over(rules: &Ruleset) -> Result<Self, TooLong> {
        let mut builder = BatchBuilder::of(rules, Start::Replace);
        builder.without_istio_ambient();
        builder.close(true)
    }

    /// The batch that deletes Gybe's table and those of istio-cni for ambient pods, where they are.
    ///
    /// # Errors
    /// Never in practice: all its lengths are constant.
    pub(crate) fn remove_with_istio_ambient() -> Result<Self, TooLong> {
        let mut builder = BatchBuilder::with_capacity(512);
        builder.without_table(TABLE);
        builder.without_istio_ambient();
        builder.close(true)
    }

    /// The batch that deletes Gybe's table; the kernel refuses it when there is none.
    ///
    /// # Errors
    /// Never in practice: all its lengths are constant.
    pub fn remove() -> Result<Self, TooLong> {
        let mut builder = BatchBuilder::with_capacity(256);
        builder.add(NFT_MSG_DELTABLE, 0, BatchObject::Table, |w| w.text(NFTA_TABLE_NAME, TABLE));
        builder.close(true)
    }

    /// The messages, for one `sendmsg`.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Answers a request for a list of objects, or for the elements of a set, as the kernel does once the batch is
    /// committed. A message that creates an object has the form of the message that lists it, without handles and use
    /// counts.
    pub(crate) fn list(&self, request: &[u8]) -> Vec<Vec<u8>> {
        let Some(request) = Messages(request).flatten().next() else { return Vec::new() };
        let set_name = |message: &Message<'_>| {
            let attributes = Attributes::of(message.body.get(GENERIC..).unwrap_or_default());
            attributes.get(NFTA_SET_ELEM_LIST_SET).map(|name| name.text().to_vec())
        };
        let is_of_elements = request.header.kind == NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETSETELEM;
        Messages(&self.bytes)
            .flatten()
            // `NFT_MSG_GET*` is the number after `NFT_MSG_NEW*` (include/uapi/linux/netfilter/nf_tables.h, v6.18).
            .filter(|message| message.header.kind + 1 == request.header.kind)
            .filter(|message| !is_of_elements || set_name(message) == set_name(&request))
            .map(|message| message.body.to_vec())
            .collect()
    }

    /// The object of the message with this sequence number; the transaction for a number that no message has.
    pub fn object(&self, sequence: u32) -> &BatchObject {
        let index = usize::try_from(sequence).ok();
        index.and_then(|index| self.objects.get(index)).unwrap_or(&BatchObject::Transaction)
    }

    /// The names of the expressions of the rule in this message: of the one at byte `offset` of the message, or of all
    /// without an offset. The kernel reports the offset of the header of the refused attribute
    /// (`NL_SET_BAD_ATTR`, include/linux/netlink.h, v6.18).
    pub(super) fn expression_names(&self, sequence: u32, offset: Option<usize>) -> Vec<&[u8]> {
        let mut messages = Messages(&self.bytes).flatten();
        let Some(message) = messages.find(|message| message.header.sequence == sequence) else {
            return Vec::new();
        };
        let offset_of =
            |value: &[u8]| value.as_ptr().addr() - message.body.as_ptr().addr() + HEADER - ATTRIBUTE_HEADER;
        let rule = Attributes::of(message.body.get(GENERIC..).unwrap_or_default());
        let expressions = rule.nested(NFTA_RULE_EXPRESSIONS);
        expressions
            .filter(|e| {
                let begin = offset_of(e.value);
                offset.is_none_or(|at| (begin..begin + ATTRIBUTE_HEADER + e.value.len()).contains(&at))
            })
            .filter_map(|e| Some(Attributes::of(e.value).get(NFTA_EXPR_NAME)?.text()))
            .collect()
    }

    /// The sequence number of the last message before the end: the message that is acknowledged.
    pub(crate) fn last(&self) -> u32 {
        u32::try_from(self.objects.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }
}

/// The tables of istio-cni's nftables backend for ambient pods, in family `inet`.
pub(crate) const ISTIO_AMBIENT_TABLES: [&str; 3] =
    ["istio-ambient-nat", "istio-ambient-mangle", "istio-ambient-raw"];

/// Bytes reserved for a rule's message; the longest one is shorter.
const RULE_SIZE: usize = 1024;
/// Bytes reserved for a chain's message.
const CHAIN_SIZE: usize = 128;
/// Bytes reserved for a set's message and the header of its elements' message.
const SET_SIZE: usize = 512;
/// Bytes reserved for the messages of the table and of the transaction's begin and end.
const FRAME_SIZE: usize = 256;

/// `NFTNL_UDATA_RULE_COMMENT`: the comment that `nft list` shows.
const COMMENT: u8 = 0;

/// Builds a batch. The sequence number of a message is the index of its object.
pub(super) struct BatchBuilder {
    out: Writer,
    objects: Vec<BatchObject>,
    /// The byte offset of the last message.
    last_offset: usize,
    /// The number of sets so far, which is the last set's id in the batch.
    sets: u32,
}

impl BatchBuilder {
    fn of(rules: &Ruleset, start: Start) -> Self {
        let mut builder = Self::with_capacity(Self::max_size(rules));
        builder.table(start);
        builder.content(rules);
        builder
    }

    /// An upper bound of the batch's length in bytes, so that its buffer is allocated once.
    fn max_size(rules: &Ruleset) -> usize {
        let size = |list: &NamedList<'_>| SET_SIZE + set::size(&list.elements);
        let sets: usize = rules.lists().iter().map(size).sum();
        FRAME_SIZE + rules.chains.len() * CHAIN_SIZE + sets + rules.rules().count() * RULE_SIZE
    }

    pub(super) fn with_capacity(capacity: usize) -> Self {
        let mut out = Writer::with_capacity(capacity);
        frame(&mut out, NFNL_MSG_BATCH_BEGIN, 0);
        Self { out, objects: vec![BatchObject::Transaction], last_offset: 0, sets: 0 }
    }

    pub(super) fn add(&mut self, kind: u16, flags: u16, object: BatchObject, body: impl FnOnce(&mut Writer)) {
        self.last_offset = self.out.len();
        let sequence = u32::try_from(self.objects.len()).unwrap_or(u32::MAX);
        let header = Header { kind: NFNL_SUBSYS_NFTABLES << 8 | kind, flags: REQUEST | flags, sequence };
        self.out.message(header, &[NFPROTO_INET, 0, 0, 0], body);
        self.objects.push(object);
    }

    fn without_istio_ambient(&mut self) {
        ISTIO_AMBIENT_TABLES.into_iter().for_each(|table| self.without_table(table));
    }

    /// Created first, so that the deletion cannot fail where there is no such table.
    fn without_table(&mut self, table: &str) {
        for (kind, flags) in [(NFT_MSG_NEWTABLE, CREATE), (NFT_MSG_DELTABLE, 0)] {
            self.add(kind, flags, BatchObject::Transaction, |w| w.text(NFTA_TABLE_NAME, table));
        }
    }

    fn table(&mut self, start: Start) {
        let name = |w: &mut Writer| w.text(NFTA_TABLE_NAME, TABLE);
        match start {
            Start::Fresh => self.add(NFT_MSG_NEWTABLE, CREATE | EXCLUSIVE, BatchObject::Table, name),
            Start::Replace => {
                // Created first, so that the deletion cannot fail where there is no table.
                self.add(NFT_MSG_NEWTABLE, CREATE, BatchObject::Table, name);
                self.add(NFT_MSG_DELTABLE, 0, BatchObject::Table, name);
                self.add(NFT_MSG_NEWTABLE, CREATE | EXCLUSIVE, BatchObject::Table, name);
            }
        }
    }

    /// Chains, then sets, then rules, because a rule may refer to both.
    fn content(&mut self, rules: &Ruleset) {
        for chain in &rules.chains {
            self.chain(chain.name);
        }
        for list in &rules.lists() {
            self.set(list);
        }
        for chain in &rules.chains {
            self.rules(chain);
        }
    }

    fn chain(&mut self, name: ChainName) {
        self.add(NFT_MSG_NEWCHAIN, CREATE, BatchObject::Chain(name), |w| {
            w.text(NFTA_CHAIN_TABLE, TABLE);
            w.text(NFTA_CHAIN_NAME, name.as_str());
            if let Some(base) = Base::of(name) {
                base.write(w);
            }
        });
    }

    fn set(&mut self, list: &NamedList<'_>) {
        let id = self.new_set();
        let name = || list.name.clone().into_owned();
        self.add(NFT_MSG_NEWSET, CREATE, BatchObject::Set(name()), |w| set::describe(w, list, id));
        for portion in set::portions(list) {
            self.add(NFT_MSG_NEWSETELEM, CREATE, BatchObject::Elements(name()), |w| {
                portion.write(w, &list.name);
            });
        }
    }

    fn rules(&mut self, chain: &Chain) {
        for rule in &chain.rules {
            self.add(NFT_MSG_NEWRULE, CREATE | APPEND, BatchObject::Rule(rule.id, chain.name), |w| {
                w.text(NFTA_RULE_TABLE, TABLE);
                w.text(NFTA_RULE_CHAIN, chain.name.as_str());
                w.nested(NFTA_RULE_EXPRESSIONS, |w| expr::write(w, rule));
                comment(w, rule.id.0);
            });
        }
    }

    fn new_set(&mut self) -> u32 {
        self.sets += 1;
        self.sets
    }

    pub(super) fn close(mut self, commit: bool) -> Result<Batch, TooLong> {
        /// The offset of `nlmsg_flags` in `struct nlmsghdr`.
        const FLAGS: usize = 6;
        if commit {
            frame(&mut self.out, NFNL_MSG_BATCH_END, u32::try_from(self.objects.len()).unwrap_or(u32::MAX));
        }
        let mut bytes = self.out.finish().ok_or(TooLong)?;
        // One acknowledgement for the whole batch: the kernel reports each refused message in any case.
        let flags =
            bytes.get_mut(self.last_offset..).and_then(|last| last.get_mut(FLAGS..)?.first_chunk_mut::<2>());
        if let Some(flags) = flags {
            *flags = (u16::from_ne_bytes(*flags) | ACK).to_ne_bytes();
        }
        Ok(Batch { bytes, objects: self.objects })
    }
}

/// The message that begins or ends a transaction: `nfgenmsg.res_id` is the subsystem, in network byte order.
fn frame(w: &mut Writer, kind: u16, sequence: u32) {
    let [high, low] = NFNL_SUBSYS_NFTABLES.to_be_bytes();
    w.message(Header { kind, flags: REQUEST, sequence }, &[NFPROTO_UNSPEC, 0, high, low], |_| ());
}

/// A rule's id as its comment, with the final NUL that `nft` expects.
pub(super) fn comment(w: &mut Writer, id: &str) {
    let id = id.as_bytes();
    // The length field has one byte. An id that it cannot count exceeds `NFT_USERDATA_MAXLEN`: the kernel refuses it.
    let length = u8::try_from(id.len() + 1).unwrap_or(u8::MAX);
    w.attr(NFTA_RULE_USERDATA, &[&[COMMENT, length], id, &[0]].concat());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::policy::Families;
    use crate::model::ruleset::{Is, Match, Rule, Transport, Verdict};

    fn rules(ports: usize) -> Ruleset {
        let ports = (0..=u16::MAX).step_by(2).take(ports).collect();
        let matches = vec![Match::Protocol(Transport::Tcp), Match::DestinationPort(Is::In, ports)];
        let rule = Rule { id: RuleId("excluded"), matches, verdict: Verdict::Return };
        let chain = Chain { name: ChainName::NatOutput, rules: vec![rule] };
        Ruleset { families: Families::V4Only, chains: vec![chain] }
    }

    /// The kind and the object of each message.
    fn read(batch: &Batch) -> Vec<(u16, String)> {
        let messages = Messages(batch.bytes()).map(|message| message.unwrap().header);
        messages.map(|header| (header.kind & 0xff, batch.object(header.sequence).to_string())).collect()
    }

    #[test]
    fn the_sequence_number_of_a_message_gives_its_object() {
        let batch = Batch::apply(&rules(2), Start::Fresh).unwrap();
        let rule = "rule \"excluded\" in chain nat-output";
        let expected = [
            (NFNL_MSG_BATCH_BEGIN, "the transaction"),
            (NFT_MSG_NEWTABLE, "table inet gybe"),
            (NFT_MSG_NEWCHAIN, "chain nat-output"),
            (NFT_MSG_NEWSET, "set excluded"),
            (NFT_MSG_NEWSETELEM, "elements of set excluded"),
            (NFT_MSG_NEWRULE, rule),
            (NFNL_MSG_BATCH_END, "the transaction"),
        ];
        assert_eq!(read(&batch), expected.map(|(kind, object)| (kind, object.to_owned())));
        assert_eq!(batch.object(batch.last()).to_string(), rule);
    }

    #[test]
    fn a_fresh_start_deletes_nothing_and_refuses_a_table_that_is_there() {
        let batch = Batch::apply(&rules(2), Start::Fresh).unwrap();
        assert!(read(&batch).iter().all(|(kind, _)| *kind != NFT_MSG_DELTABLE));
        let table = Messages(batch.bytes()).flatten().nth(1).unwrap();
        assert_eq!(table.header.flags, REQUEST | CREATE | EXCLUSIVE);
        let replace = Batch::apply(&rules(2), Start::Replace).unwrap();
        assert_eq!(
            read(&replace)[1..4].iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
            [NFT_MSG_NEWTABLE, NFT_MSG_DELTABLE, NFT_MSG_NEWTABLE]
        );
    }

    #[test]
    fn only_the_last_message_requests_an_acknowledgement() {
        let batch = Batch::apply(&rules(2), Start::Replace).unwrap();
        let requesting = Messages(batch.bytes()).flatten().filter(|message| message.header.flags & ACK != 0);
        assert_eq!(requesting.map(|message| message.header.sequence).collect::<Vec<_>>(), [batch.last()]);
    }

    #[test]
    fn a_dry_run_is_the_same_without_its_end() {
        let (real, dry) = (
            Batch::apply(&rules(2), Start::Fresh).unwrap(),
            Batch::dry_run(&rules(2), Start::Fresh).unwrap(),
        );
        assert_eq!(real.bytes()[..real.bytes().len() - HEADER - GENERIC], *dry.bytes());
    }

    #[test]
    fn long_lists_are_cut_into_messages_whose_lengths_fit_their_fields() {
        let batch = Batch::apply(&rules(20_000), Start::Fresh).unwrap();
        let sizes: Vec<usize> = Messages(batch.bytes()).map(|message| message.unwrap().body.len()).collect();
        assert!(sizes.len() > 15, "{}", sizes.len());
        assert!(sizes.iter().all(|size| *size < 64 * 1024), "{sizes:?}");
    }

    #[test]
    fn the_reserved_buffer_is_large_enough() {
        for count in [0, 1, 2, 1000, 20_000] {
            let rules = rules(count);
            let batch = Batch::apply(&rules, Start::Replace).unwrap();
            assert!(batch.bytes().len() <= BatchBuilder::max_size(&rules), "{count} ports");
        }
    }

    #[test]
    fn the_expression_at_an_offset_is_found() {
        let batch = Batch::apply(&rules(2), Start::Fresh).unwrap();
        let all = batch.expression_names(batch.last(), None);
        let expected: [&[u8]; 6] = [b"meta", b"cmp", b"payload", b"lookup", b"counter", b"immediate"];
        assert_eq!(all, expected);
        let message = Messages(batch.bytes()).flatten().find(|m| m.header.sequence == batch.last()).unwrap();
        for name in expected {
            // The headers of the expression and of its name are before it.
            let named = message.body.windows(name.len()).position(|bytes| bytes == name).unwrap() + HEADER;
            for at in [named - 2 * ATTRIBUTE_HEADER, named] {
                assert_eq!(batch.expression_names(batch.last(), Some(at)), [name], "{at}");
            }
        }
    }
}
