//! One expression of an nf_tables rule, decoded from its attributes.
//!
//! Attribute numbers are those of include/uapi/linux/netfilter/nf_tables.h (v6.18); what an expression
//! does with the packet is in `crate::walk`.

use crate::netlink::attr::{Attribute, Attributes};
use crate::nft::uapi::*;
use crate::ruleset::Family;
use crate::xt::{XtMatch, XtTarget, decode_match, decode_target};

/// An expression.
#[derive(Debug, Clone)]
pub(crate) enum Expr {
    /// Loads a value of the packet.
    Load { source: Source, to: usize },
    /// Sets the packet's mark from a register.
    SetMark { from: usize },
    /// Sets the connection's mark from a register.
    SetConnectionMark { from: usize },
    /// Sets the connection tracking zone from a register.
    SetZone { from: usize },
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
    /// A match of iptables-nft.
    Match(XtMatch),
    /// A target of iptables-nft.
    Target(XtTarget),
    /// Anything else, by name.
    Unknown(String),
}

/// The source of a loaded value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// `meta`, by its key.
    Meta(u32),
    /// `ct`, by its key and direction.
    Ct(u32, Option<u8>),
    /// Bytes of the packet's headers.
    Payload { base: u32, offset: u32, length: usize },
    /// Another source, by name and length.
    Other(String, usize),
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

/// Decodes one element of a rule's list of expressions. `family` is the table's `NFPROTO_*`.
pub(crate) fn decode(element: &[u8], family: u8) -> Expr {
    let expression = Attributes::of(element);
    let Some(name) = expression.get(NFTA_EXPR_NAME) else { return Expr::Unknown("nameless".to_owned()) };
    let data = Attributes::of(expression.get(NFTA_EXPR_DATA).map_or(&[], |data| data.value));
    let name = name.name();
    decode_known(&name, &Fields(data), family).unwrap_or(Expr::Unknown(name))
}

/// The attributes of one expression.
struct Fields<'b>(Attributes<'b>);

impl<'b> Fields<'b> {
    fn number(&self, kind: u16) -> Option<u32> {
        self.0.get(kind)?.be32()
    }

    fn size(&self, kind: u16) -> Option<usize> {
        usize::try_from(self.number(kind)?).ok()
    }

    /// The offset of a register (`nft_parse_register`): four of 16 bytes, and the same as sixteen of 4.
    fn register(&self, kind: u16) -> Option<usize> {
        let at = match self.number(kind)? {
            number @ 1..=4 => (number - 1) * 16,
            number @ 8..=23 => (number - 8) * 4,
            _ => return None,
        };
        usize::try_from(at).ok()
    }

    fn value(&self, kind: u16) -> Option<Vec<u8>> {
        match data(self.0.get(kind)?) {
            Data::Value(value) => Some(value),
            Data::None | Data::Verdict(_) => None,
        }
    }

    fn text(&self, kind: u16) -> Option<String> {
        self.0.get(kind).map(|text| text.name())
    }

    fn has(&self, kind: u16) -> bool {
        self.0.get(kind).is_some()
    }
}

/// `NFTA_DATA_*`.
pub(super) fn data(attribute: Attribute<'_>) -> Data {
    let content = Attributes::of(attribute.value);
    if let Some(value) = content.get(NFTA_DATA_VALUE) {
        return Data::Value(value.value.to_vec());
    }
    content.get(NFTA_DATA_VERDICT).map_or(Data::None, |verdict| Data::Verdict(code(verdict)))
}

fn code(attribute: Attribute<'_>) -> Code {
    let verdict = Attributes::of(attribute.value);
    let chain = || verdict.get(NFTA_VERDICT_CHAIN).map(|name| name.name()).unwrap_or_default();
    let Some(number) = verdict.get(NFTA_VERDICT_CODE).and_then(|code| code.be32()) else {
        return Code::Other(u32::MAX);
    };
    match number.cast_signed() {
        0 => Code::Drop,
        1 => Code::Accept,
        -1 => Code::Continue,
        -2 => Code::Break,
        -3 => Code::Jump(chain()),
        -4 => Code::Goto(chain()),
        -5 => Code::Return,
        _ => Code::Other(number),
    }
}

fn decode_known(name: &str, f: &Fields<'_>, family: u8) -> Option<Expr> {
    Some(match name {
        "meta" => match (f.register(NFTA_META_SREG), f.number(NFTA_META_KEY)?) {
            (None, key) => Expr::Load { source: Source::Meta(key), to: f.register(NFTA_META_DREG)? },
            (Some(from), NFT_META_MARK) => Expr::SetMark { from },
            // Priority and trace change no outcome.
            (Some(_), NFT_META_PRIORITY | NFT_META_NFTRACE) => Expr::Nothing("meta set".to_owned()),
            (Some(_), _) => return None,
        },
        "ct" => match (f.register(NFTA_CT_SREG), f.number(NFTA_CT_KEY)?) {
            (None, key) => {
                let direction = f.0.get(NFTA_CT_DIRECTION).and_then(|d| d.value.first().copied());
                Expr::Load { source: Source::Ct(key, direction), to: f.register(NFTA_CT_DREG)? }
            }
            (Some(from), NFT_CT_MARK) => Expr::SetConnectionMark { from },
            (Some(from), NFT_CT_ZONE) if !f.has(NFTA_CT_DIRECTION) => Expr::SetZone { from },
            (Some(_), _) => return None,
        },
        "payload" => {
            // A payload statement that writes has a source register.
            let to = f.register(NFTA_PAYLOAD_DREG)?;
            let (base, offset) = (f.number(NFTA_PAYLOAD_BASE)?, f.number(NFTA_PAYLOAD_OFFSET)?);
            Expr::Load { source: Source::Payload { base, offset, length: f.size(NFTA_PAYLOAD_LEN)? }, to }
        }
        "cmp" => Expr::Compare {
            op: f.number(NFTA_CMP_OP)?,
            at: f.register(NFTA_CMP_SREG)?,
            value: f.value(NFTA_CMP_DATA)?,
        },
        "range" => Expr::Range {
            inverted: f.number(NFTA_RANGE_OP)? == NFT_RANGE_NEQ,
            at: f.register(NFTA_RANGE_SREG)?,
            first: f.value(NFTA_RANGE_FROM_DATA)?,
            last: f.value(NFTA_RANGE_TO_DATA)?,
        },
        "bitwise" => bitwise(f)?,
        "byteorder" => {
            Expr::ByteOrder { from: f.register(1)?, to: f.register(2)?, length: f.size(4)?, size: f.size(5)? }
        }
        "lookup" => Expr::Lookup {
            set: f.text(NFTA_LOOKUP_SET)?,
            at: f.register(NFTA_LOOKUP_SREG)?,
            to: lookup_target(f),
            inverted: f.number(NFTA_LOOKUP_FLAGS).unwrap_or_default() & NFT_LOOKUP_F_INV != 0,
        },
        "immediate" => match data(f.0.get(NFTA_IMMEDIATE_DATA)?) {
            Data::Verdict(code) => Expr::Verdict(code),
            Data::Value(value) => Expr::Value { to: f.register(NFTA_IMMEDIATE_DREG)?, value },
            Data::None => return None,
        },
        "nat" => nat(f)?,
        "redir" => Expr::Nat(to_ports(NatKind::Redirect, f, NFTA_REDIR_REG_PROTO_MIN)),
        "masq" => Expr::Nat(to_ports(NatKind::Masquerade, f, 2)),
        "tproxy" => tproxy(f)?,
        "notrack" => Expr::Untrack,
        "reject" => Expr::Reject,
        "counter" | "log" | "last" => Expr::Nothing(name.to_owned()),
        "limit" | "quota" | "connlimit" | "dynset" => Expr::Test(name.to_owned()),
        "objref" => object(f)?,
        "fib" | "socket" | "numgen" | "hash" | "rt" | "osf" | "exthdr" | "xfrm" | "tunnel" => {
            let (to, length) = other(name, f)?;
            Expr::Load { source: Source::Other(name.to_owned(), length), to }
        }
        "match" | "target" => xt(name, f, family)?,
        _ => return None,
    })
}

/// Register 0 is the verdict: a verdict map.
fn lookup_target(f: &Fields<'_>) -> Option<usize> {
    f.has(NFTA_LOOKUP_DREG).then(|| f.register(NFTA_LOOKUP_DREG).unwrap_or(VERDICT))
}

/// The offset of the verdict register, behind all others.
pub(crate) const VERDICT: usize = 64;

fn bitwise(f: &Fields<'_>) -> Option<Expr> {
    let (from, to) = (f.register(NFTA_BITWISE_SREG)?, f.register(NFTA_BITWISE_DREG)?);
    if f.number(NFTA_BITWISE_OP).unwrap_or_default() != 0 {
        return None;
    }
    Some(Expr::Bitwise { from, to, mask: f.value(NFTA_BITWISE_MASK)?, xor: f.value(NFTA_BITWISE_XOR)? })
}

fn nat(f: &Fields<'_>) -> Option<Expr> {
    let kind = match f.number(NFTA_NAT_TYPE)? {
        0 => NatKind::Source,
        1 => NatKind::Destination,
        _ => return None,
    };
    // `NF_NAT_RANGE_NETMAP` maps a whole network onto another.
    if f.number(NFTA_NAT_FLAGS).unwrap_or_default() & 1 << 6 != 0 {
        return None;
    }
    Some(Expr::Nat(Nat {
        kind,
        address: f.register(NFTA_NAT_REG_ADDR_MIN),
        last_address: f.register(NFTA_NAT_REG_ADDR_MAX),
        port: f.register(NFTA_NAT_REG_PROTO_MIN),
        last_port: f.register(NFTA_NAT_REG_PROTO_MAX),
    }))
}

fn to_ports(kind: NatKind, f: &Fields<'_>, first: u16) -> Nat {
    let (port, last_port) = (f.register(first), f.register(first + 1));
    Nat { kind, address: None, last_address: None, port, last_port }
}

fn tproxy(f: &Fields<'_>) -> Option<Expr> {
    // A TPROXY to another address than the packet's is not evaluated.
    if f.has(NFTA_TPROXY_REG_ADDR) {
        return None;
    }
    let is_for = match f.number(NFTA_TPROXY_FAMILY).and_then(|family| u8::try_from(family).ok()) {
        Some(NFPROTO_IPV4) => Some(Family::V4),
        Some(NFPROTO_IPV6) => Some(Family::V6),
        _ => None,
    };
    Some(Expr::Tproxy { is_for, port: f.register(NFTA_TPROXY_REG_PORT) })
}

/// Decodes a reference to an object by its type (`NFT_OBJECT_*`).
fn object(f: &Fields<'_>) -> Option<Expr> {
    let (kind, name) = (f.number(1)?, f.text(2)?);
    match kind {
        // Counters, helpers, timeouts, security marks, expectations.
        1 | 3 | 7 | 8 | 9 => Some(Expr::Nothing(format!("object {name}"))),
        2 | 4 | 5 => Some(Expr::Test(format!("object {name}"))),
        _ => None,
    }
}

/// The register and length of a value that the packet does not decide.
fn other(name: &str, f: &Fields<'_>) -> Option<(usize, usize)> {
    let at = match name {
        "socket" | "hash" => 2,
        _ => 1,
    };
    let length = if matches!(name, "numgen" | "socket" | "hash") { 4 } else { 16 };
    Some((f.register(at)?, length))
}

fn xt(name: &str, f: &Fields<'_>, family: u8) -> Option<Expr> {
    let family = match family {
        NFPROTO_IPV4 => Family::V4,
        NFPROTO_IPV6 => Family::V6,
        _ => return None,
    };
    let (extension, revision) = (f.text(1)?, u8::try_from(f.number(2)?).ok()?);
    let data = f.0.get(3)?.value;
    Some(match name {
        "match" => Expr::Match(decode_match(family, &extension, revision, data)),
        _ => Expr::Target(decode_target(family, &extension, revision, data)),
    })
}
