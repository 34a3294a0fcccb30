//! A rule set in the kernel's own words: what is loaded, compared and done, and which sets there are.
//!
//! The referees' one reading of the neutral rules, made without our encoder; how a word becomes
//! bytes is each library's affair. The words are nf_tables expressions as `nft --debug=netlink`
//! shows them, in the order nft itself writes them: load into register 1, then compare it.

mod matches;
mod sets;

pub(crate) use sets::{Bound, Element, Holds, Printed, Set, sets};

use gybe_netfilter::ruleset::{ChainName, Family, Hook, Is, Rule, Stage, Verdict};

/// The table all of it stands in.
pub(crate) const TABLE: &str = "gybe";

/// One nf_tables expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// Register 1 becomes a property of the packet.
    Load(Field),
    /// Register 1 keeps only these bits.
    Mask(Vec<u8>),
    /// The rule goes on only if register 1 compares so.
    Compare(Comparison, Vec<u8>),
    /// The rule goes on only if register 1 is outside of these bounds.
    Outside(Vec<u8>, Vec<u8>),
    /// The rule goes on only if register 1 is in the named set, or is not.
    Lookup(Is, String),
    /// Register 1 becomes this value.
    Value(Vec<u8>),
    /// Register 1 becomes the packet's mark.
    SetMark,
    /// Register 1 becomes the connection's mark.
    SetConnectionMark,
    /// Register 1 becomes the connection's zone.
    SetZone,
    /// The destination becomes the port in register 1 of the host itself.
    Redirect,
    /// The packet goes to the transparent socket on the port in register 1.
    Tproxy(Family),
    /// Packets and bytes are counted.
    Count,
    /// The walk ends here, or goes on elsewhere.
    Decide(Decision),
}

/// A property of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    /// `NFPROTO_*`, one byte.
    NetworkProtocol,
    /// `IPPROTO_*`, one byte.
    TransportProtocol,
    /// Sixteen bytes, padded with NUL.
    InInterface,
    /// Likewise.
    OutInterface,
    /// In the machine's byte order, as all numbers that are not on the wire.
    OwnerUid,
    /// Likewise.
    OwnerGid,
    /// Likewise.
    Mark,
    /// Likewise.
    ConnectionMark,
    /// Bits, likewise.
    ConnectionState,
    /// Bytes of the network header.
    Network {
        /// From here.
        offset: u32,
        /// So many.
        length: u32,
    },
    /// Bytes of the transport header.
    Transport {
        /// From here.
        offset: u32,
        /// So many.
        length: u32,
    },
}

/// How register 1 has to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// It is the value.
    Equal,
    /// It is not.
    Different,
    /// It is the value or above.
    AtLeast,
    /// It is the value or below.
    AtMost,
}

/// What ends a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The stage is over for the packet.
    Accept,
    /// The chain is over for the packet.
    Return,
    /// The packet is gone.
    Drop,
    /// That chain decides.
    Goto(ChainName),
}

/// Where a base chain hangs, in the kernel's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Base {
    /// `filter`, `route` or `nat`.
    pub kind: Kind,
    /// Which hook.
    pub hook: Hook,
    /// Its place among the chains of that hook.
    pub priority: i32,
}

/// The type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Looks, and decides.
    Filter,
    /// Routes the packet again when its mark changed.
    Route,
    /// Sees the first packet of a connection.
    Nat,
}

/// How a chain is registered; `None` for chains that are only continued into.
pub(crate) fn base(chain: ChainName) -> Option<Base> {
    let hook = chain.hook()?;
    let (kind, priority) = match (chain.stage(), hook) {
        (Stage::Raw, _) => (Kind::Filter, -300),
        (Stage::Mangle, Hook::Prerouting) => (Kind::Filter, -150),
        (Stage::Mangle, Hook::Output) => (Kind::Route, -150),
        (Stage::Nat, _) => (Kind::Nat, -100),
    };
    Some(Base { kind, hook, priority })
}

/// All words of a rule, in order.
pub(crate) fn words(rule: &Rule) -> Vec<Word> {
    let mut words = matches::words(rule);
    words.push(Word::Count);
    words.extend(verdict(rule));
    words
}

fn verdict(rule: &Rule) -> Vec<Word> {
    let number = |value: u32| Word::Value(value.to_ne_bytes().to_vec());
    match rule.verdict {
        Verdict::Return => vec![Word::Decide(Decision::Return)],
        Verdict::Drop => vec![Word::Decide(Decision::Drop)],
        Verdict::Goto(chain) => vec![Word::Decide(Decision::Goto(chain))],
        Verdict::Redirect(port) => vec![Word::Value(port.get().to_be_bytes().to_vec()), Word::Redirect],
        Verdict::Tproxy { port, mark } => vec![
            Word::Value(port.get().to_be_bytes().to_vec()),
            Word::Tproxy(rule.family().unwrap_or(Family::V4)),
            number(mark),
            Word::SetMark,
            Word::Decide(Decision::Accept),
        ],
        Verdict::Divert(mark) => vec![number(mark), Word::SetMark, Word::Decide(Decision::Accept)],
        Verdict::SetMark(mark) => vec![number(mark), Word::SetMark],
        Verdict::SaveMark => vec![Word::Load(Field::Mark), Word::SetConnectionMark],
        Verdict::RestoreMark => vec![Word::Load(Field::ConnectionMark), Word::SetMark],
        Verdict::Zone(zone) => vec![Word::Value(zone.to_ne_bytes().to_vec()), Word::SetZone],
    }
}
