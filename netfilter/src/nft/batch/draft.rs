//! A batch being written: which messages, in which order, with which content.

use super::{Batch, Object, Start, TooLong};
use crate::netlink::attr::Writer;
use crate::netlink::message::{ACK, APPEND, CREATE, EXCLUSIVE, Header, REQUEST};
use crate::nft::chain::Base;
use crate::nft::set;
use crate::nft::uapi::*;
use crate::nft::{TABLE, expr};
use crate::ruleset::{Chain, ChainName, NamedList, Rule, Ruleset};

/// Room for one rule's message: more than the longest that is compiled today takes.
const RULE: usize = 1024;
/// Room for a chain's message.
const CHAIN: usize = 128;
/// Room for a set's message and the frame of its elements' message.
const SET: usize = 512;
/// Room for the begin, the end and the table.
const FRAME: usize = 256;

/// `NFTNL_UDATA_RULE_COMMENT`: the comment that `nft list` shows.
const COMMENT: u8 = 0;

/// A batch being written: the sequence number of a message is the index of its object.
pub(super) struct Draft {
    out: Writer,
    objects: Vec<Object>,
    /// Where the last message begins.
    last: usize,
    /// Sets so far: each has a number of its own in the batch.
    sets: u32,
}

impl Draft {
    pub(super) fn of(rules: &Ruleset) -> Self {
        Self::with_capacity(Self::room(rules))
    }

    /// How many bytes the batch will have, at most, so that its buffer is made once.
    pub(super) fn room(rules: &Ruleset) -> usize {
        let set = |list: &NamedList<'_>| SET + set::size(&list.elements);
        let sets: usize = rules.lists().iter().map(set).sum();
        FRAME + rules.chains.len() * CHAIN + sets + rules.rules().count() * RULE
    }

    pub(super) fn with_capacity(capacity: usize) -> Self {
        let mut out = Writer::with_capacity(capacity);
        frame(&mut out, NFNL_MSG_BATCH_BEGIN, 0);
        Self { out, objects: vec![Object::Transaction], last: 0, sets: 0 }
    }

    pub(super) fn add(&mut self, (kind, flags): (u16, u16), object: Object, body: impl FnOnce(&mut Writer)) {
        self.last = self.out.len();
        let sequence = u32::try_from(self.objects.len()).unwrap_or(u32::MAX);
        let header = Header { kind: NFNL_SUBSYS_NFTABLES << 8 | kind, flags: REQUEST | flags, sequence };
        self.out.message(header, &[NFPROTO_INET, 0, 0, 0], body);
        self.objects.push(object);
    }

    pub(super) fn table(&mut self, start: Start) {
        let name = |w: &mut Writer| w.text(NFTA_TABLE_NAME, TABLE);
        match start {
            Start::Fresh => self.add((NFT_MSG_NEWTABLE, CREATE | EXCLUSIVE), Object::Table, name),
            Start::Replace => {
                // Made first, so that taking it away cannot fail for want of it.
                self.add((NFT_MSG_NEWTABLE, CREATE), Object::Table, name);
                self.add((NFT_MSG_DELTABLE, 0), Object::Table, name);
                self.add((NFT_MSG_NEWTABLE, CREATE | EXCLUSIVE), Object::Table, name);
            }
        }
    }

    /// Chains before sets before rules: a rule may name any of them.
    pub(super) fn content(&mut self, rules: &Ruleset) {
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
        self.add((NFT_MSG_NEWCHAIN, CREATE), Object::Chain(name), |w| {
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
        self.add((NFT_MSG_NEWSET, CREATE), Object::Set(name()), |w| set::describe(w, list, id));
        for portion in set::portions(list) {
            self.add((NFT_MSG_NEWSETELEM, CREATE), Object::Elements(name()), |w| {
                portion.write(w, &list.name);
            });
        }
    }

    fn rules(&mut self, chain: &Chain) {
        for rule in &chain.rules {
            self.add((NFT_MSG_NEWRULE, CREATE | APPEND), Object::Rule(rule.id, chain.name), |w| {
                w.text(NFTA_RULE_TABLE, TABLE);
                w.text(NFTA_RULE_CHAIN, chain.name.as_str());
                w.nested(NFTA_RULE_EXPRESSIONS, |w| expr::write(w, rule));
                comment(w, rule);
            });
        }
    }

    fn new_set(&mut self) -> u32 {
        self.sets += 1;
        self.sets
    }

    pub(super) fn close(mut self, commit: bool) -> Result<Batch, TooLong> {
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
