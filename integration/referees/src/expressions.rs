//! A rule set as nf_tables expressions and named sets.
//!
//! Both reference encoders use this translation, which does not use Gybe's; each library encodes the expressions in its
//! own way. They are those of `nft --debug=netlink` in nft's order: load into register 1, then compare it.

mod matches;
mod sets;

pub use sets::{Bound, Element, Set, SetContent, ValueOrder, sets};

use gybe_netfilter::model::ruleset::{ChainName, Family, Hook, Is, Rule, Stage, Verdict};

/// The name of the table.
pub const TABLE: &str = "gybe";

/// One nf_tables expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NfExpression {
    /// Loads a property of the packet into register 1.
    Load(Field),
    /// Clears all other bits of register 1.
    Mask(Vec<u8>),
    /// Keeps the first bits of register 1 and flips the second.
    Replace(Vec<u8>, Vec<u8>),
    /// Compares register 1 with a value; the rule matches only if that holds.
    Compare(Comparison, Vec<u8>),
    /// The rule matches only if register 1 is outside of these bounds.
    Outside(Vec<u8>, Vec<u8>),
    /// The rule matches only if register 1 is in the named set, or is not.
    Lookup(Is, String),
    /// Loads a value into register 1.
    Value(Vec<u8>),
    /// Sets the packet's mark to register 1.
    SetMark,
    /// Sets the connection's mark to register 1.
    SetConnectionMark,
    /// Sets the connection's zone to register 1.
    SetZone,
    /// Redirects to the local port in register 1.
    Redirect,
    /// Passes the packet to the transparent socket on the port in register 1.
    Tproxy(Family),
    /// Counts packets and bytes.
    Count,
    /// Ends the rule with a verdict.
    Decide(Decision),
}

/// A property of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// `NFPROTO_*`, one byte.
    NetworkProtocol,
    /// `IPPROTO_*`, one byte.
    TransportProtocol,
    /// Sixteen bytes, padded with NUL.
    InInterface,
    /// Sixteen bytes, padded with NUL.
    OutInterface,
    /// In host byte order, as all numbers outside of packets.
    OwnerUid,
    /// In host byte order.
    OwnerGid,
    /// In host byte order.
    Mark,
    /// In host byte order.
    ConnectionMark,
    /// Bits, in host byte order.
    ConnectionState,
    /// Bytes of the network header.
    Network {
        /// The first byte.
        offset: u32,
        /// The number of bytes.
        length: u32,
    },
    /// Bytes of the transport header.
    Transport {
        /// The first byte.
        offset: u32,
        /// The number of bytes.
        length: u32,
    },
}

/// A comparison with register 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    Different,
    AtLeast,
    AtMost,
}

/// A verdict that ends a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Ends the table's processing of the packet at this hook.
    Accept,
    /// Ends the chain.
    Return,
    /// Drops the packet.
    Drop,
    /// Continues in that chain.
    Goto(ChainName),
}

/// The hook, type and priority of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    pub kind: Kind,
    pub hook: Hook,
    pub priority: i32,
}

/// The type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Filter,
    /// The kernel routes the packet again when its mark has changed.
    Route,
    /// Processes only the first packet of a connection.
    Nat,
}

/// Returns `None` for chains that are reached only by `goto`.
pub fn base(chain: ChainName) -> Option<Base> {
    let hook = chain.hook()?;
    let (kind, priority) = match (chain.stage(), hook) {
        (Stage::Raw, _) => (Kind::Filter, -300),
        (Stage::Mangle, Hook::Output) => (Kind::Route, -150),
        (Stage::Mangle, _) => (Kind::Filter, -150),
        (Stage::Nat, _) => (Kind::Nat, -100),
    };
    Some(Base { kind, hook, priority })
}

/// Returns the expressions of a rule in order.
pub fn expressions(rule: &Rule) -> Vec<NfExpression> {
    let mut expressions = matches::expressions(rule);
    expressions.push(NfExpression::Count);
    expressions.extend(verdict(rule));
    expressions
}

fn verdict(rule: &Rule) -> Vec<NfExpression> {
    let number = |value: u32| NfExpression::Value(value.to_ne_bytes().to_vec());
    match rule.verdict {
        Verdict::Return => vec![NfExpression::Decide(Decision::Return)],
        Verdict::Drop => vec![NfExpression::Decide(Decision::Drop)],
        Verdict::Goto(chain) => vec![NfExpression::Decide(Decision::Goto(chain))],
        Verdict::Redirect(port) => {
            vec![NfExpression::Value(port.get().to_be_bytes().to_vec()), NfExpression::Redirect]
        }
        Verdict::Tproxy { port, mark } => vec![
            NfExpression::Value(port.get().to_be_bytes().to_vec()),
            NfExpression::Tproxy(rule.family().unwrap_or(Family::V4)),
            number(mark),
            NfExpression::SetMark,
            NfExpression::Decide(Decision::Accept),
        ],
        Verdict::Divert(mark) => {
            vec![number(mark), NfExpression::SetMark, NfExpression::Decide(Decision::Accept)]
        }
        Verdict::SetMark(mark) => vec![number(mark), NfExpression::SetMark],
        Verdict::SetConnectionMark(mark) => vec![
            NfExpression::Load(Field::ConnectionMark),
            NfExpression::Replace((!mark.mask()).to_ne_bytes().to_vec(), mark.value().to_ne_bytes().to_vec()),
            NfExpression::SetConnectionMark,
        ],
        Verdict::SaveMark => vec![NfExpression::Load(Field::Mark), NfExpression::SetConnectionMark],
        Verdict::RestoreMark => vec![NfExpression::Load(Field::ConnectionMark), NfExpression::SetMark],
        Verdict::Zone(zone) => vec![NfExpression::Value(zone.to_ne_bytes().to_vec()), NfExpression::SetZone],
    }
}
