//! One expression of an nf_tables rule; `decode` reads it from its attributes. What an expression does with the packet
//! is in `crate::inspect::walk`.

mod decode;

pub(crate) use decode::{data, decode, use_of_object};

use crate::model::ruleset::Family;
use crate::xt::{XtMatch, XtTarget};

/// An expression.
#[derive(Debug, Clone)]
pub(crate) enum Expr {
    /// Loads a value of the packet.
    Load { source: LoadSource, to: usize },
    /// Sets the packet's mark from a register.
    SetMark { from: usize },
    /// Sets the connection's mark from a register.
    SetConnectionMark { from: usize },
    /// Sets the connection tracking zone from a register, for packets of one direction (`IP_CT_DIR_*`) or of both.
    SetZone { from: usize, direction: Option<u8> },
    /// Writes a register into the packet's headers.
    Write { from: usize, base: u32, offset: u32, length: usize, updates: Checksum },
    /// Compares a register with a value.
    Compare { op: u32, at: usize, value: Vec<u8> },
    /// Tests whether a register is inside a range, or outside.
    Range { inverted: bool, at: usize, first: Vec<u8>, last: Vec<u8> },
    /// `(register & mask) ^ xor`.
    Bitwise { from: usize, to: usize, mask: Vec<u8>, xor: Vec<u8> },
    /// Reverses the bytes of each `size`.
    ByteOrder { from: usize, to: usize, length: usize, size: usize },
    /// Looks up the value of a register in a set, or in a map whose data goes into `to`.
    Lookup { set: String, at: usize, to: Option<usize>, inverted: bool },
    /// A constant.
    Value { to: usize, value: Vec<u8> },
    /// A verdict.
    Verdict(Code),
    /// Translates addresses.
    Nat(Nat),
    /// Hands the packet to a transparent socket.
    Tproxy { is_for: Option<Family>, port: Option<usize> },
    /// Takes the packet out of connection tracking.
    Untrack,
    /// Drops the packet and sends an error.
    Reject,
    /// Changes no outcome: a counter, a log line.
    Nothing(String),
    /// A test that depends on more than the packet: a limit, a quota.
    Test(String),
    /// Adds the packet to a set, or removes it; ends the rule when the set is full.
    Update(String),
    /// Uses the object that a map has for the packet, by the map's name.
    ObjectOf(String),
    /// Decides about connections that do not reach the rule: a helper, an expectation.
    OtherConnections(String),
    /// A match of iptables-nft.
    Match(XtMatch),
    /// A target of iptables-nft.
    Target(XtTarget),
    /// Anything else, by name.
    Unknown(String),
}

/// The source of a loaded value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoadSource {
    /// `meta`, by its key.
    Meta(u32),
    /// `ct`, by its key and direction.
    Ct(u32, Option<u8>),
    /// Bytes of the packet's headers.
    Payload { base: u32, offset: u32, length: usize },
    /// Another source, by name and length.
    Other(String, usize),
}

/// The checksum that a write to the packet's headers updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checksum {
    None,
    /// That of the header of IPv4, correctly.
    Ipv4,
    /// The bytes at another offset from the base, or the checksum of the transport protocol.
    Other,
}

/// A verdict, or a constant of a map.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Data {
    None,
    Verdict(Code),
    Value(Vec<u8>),
}

/// The code of a verdict.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Code {
    Accept,
    Drop,
    Continue,
    Break,
    Return,
    Jump(String),
    Goto(String),
    /// Another: `queue`, `stolen`.
    Other(u32),
}

/// A translation, with the registers of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Nat {
    pub(crate) kind: NatKind,
    /// It has no effect on packets of the other IP version (`nft_nat_inet_eval`, net/netfilter/nft_nat.c, v6.18).
    pub(crate) is_for: Option<Family>,
    pub(crate) address: Option<usize>,
    pub(crate) last_address: Option<usize>,
    pub(crate) port: Option<usize>,
    pub(crate) last_port: Option<usize>,
}

/// The kind of a translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NatKind {
    Redirect,
    Destination,
    Source,
    Masquerade,
}

/// The size of the registers of values.
pub(crate) const REGISTERS_END: usize = 64;
/// The verdict register, behind all others.
pub(crate) const VERDICT: usize = REGISTERS_END;

#[cfg(test)]
mod tests;
