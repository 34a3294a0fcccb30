//! Decodes an expression from its attributes, whose numbers are those of include/uapi/linux/netfilter/nf_tables.h
//! (v6.18).

use super::{Checksum, Code, Data, Expr, LoadSource, Nat, NatKind, REGISTERS_END, VERDICT};
use crate::kernel::netlink::attr::{Attribute, Attributes};
use crate::kernel::uapi::*;
use crate::model::ruleset::{Family, TableFamily};
use crate::xt::effect::{EXPRESSIONS, Effect, OBJECTS, effect, object_type};
use crate::xt::{decode_match, decode_target};

/// Decodes one element of a rule's list of expressions. `family` is the table's `NFPROTO_*`.
pub(crate) fn decode(element: &[u8], family: u8) -> Expr {
    let expression = Attributes::of(element);
    let Some(name) = expression.get(NFTA_EXPR_NAME) else { return Expr::Unknown("nameless".to_owned()) };
    let data = expression.nested(NFTA_EXPR_DATA);
    let name = name.name();
    let fields = ExpressionFields(data);
    let form = form(&name, &fields);
    decode_known(&form, &fields, family).unwrap_or(Expr::Unknown(form))
}

/// The name of an expression in [`EXPRESSIONS`]: of those that write, by what they write.
fn form(name: &str, f: &ExpressionFields<'_>) -> String {
    let written = |named: Option<&str>| match named {
        Some(key) => format!("{name} set {key}"),
        None => format!("{name} set"),
    };
    match name {
        "meta" if f.has(NFTA_META_SREG) => written(match f.number(NFTA_META_KEY) {
            Some(NFT_META_MARK) => Some("mark"),
            Some(NFT_META_PRIORITY) => Some("priority"),
            Some(NFT_META_NFTRACE) => Some("nftrace"),
            Some(NFT_META_PKTTYPE) => Some("pkttype"),
            _ => None,
        }),
        "ct" if f.has(NFTA_CT_SREG) => written(match f.number(NFTA_CT_KEY) {
            Some(NFT_CT_MARK) => Some("mark"),
            Some(NFT_CT_ZONE) => Some("zone"),
            Some(NFT_CT_LABELS) => Some("label"),
            Some(NFT_CT_EVENTMASK) => Some("event"),
            _ => None,
        }),
        "payload" if f.has(NFTA_PAYLOAD_SREG) => written(None),
        "exthdr" if f.has(NFTA_EXTHDR_SREG) => written(f.is_maximum_segment_size().then_some("maxseg")),
        "exthdr" if !f.has(NFTA_EXTHDR_DREG) => "exthdr reset".to_owned(),
        _ => name.to_owned(),
    }
}

/// The attributes of one expression.
struct ExpressionFields<'b>(Attributes<'b>);

impl<'b> ExpressionFields<'b> {
    fn number(&self, kind: u16) -> Option<u32> {
        self.0.be32(kind)
    }

    /// A number of bytes: the kernel has eight bits for each (include/net/netfilter/nf_tables_core.h, v6.18).
    fn size(&self, kind: u16) -> Option<usize> {
        u8::try_from(self.number(kind)?).ok().map(usize::from)
    }

    /// The offset of a register (`nft_parse_register`): four of 16 bytes, and the same as sixteen of 4.
    fn register(&self, kind: u16) -> Option<usize> {
        let at = match self.number(kind)? {
            number @ NFT_REG_1..=NFT_REG_4 => (number - NFT_REG_1) * 16,
            number @ NFT_REG32_00..=NFT_REG32_15 => (number - NFT_REG32_00) * 4,
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
        self.0.name(kind)
    }

    fn has(&self, kind: u16) -> bool {
        self.0.get(kind).is_some()
    }

    /// Reports whether it writes the value of TCP's option 2 (`TCPOPT_MSS`), two bytes at offset 2: the kernel only lowers it (`nft_exthdr_tcp_set_eval`).
    fn is_maximum_segment_size(&self) -> bool {
        let option = self.0.get(NFTA_EXTHDR_TYPE).map(|kind| kind.value);
        (option, self.number(NFTA_EXTHDR_OFFSET), self.number(NFTA_EXTHDR_LEN))
            == (Some(&[2][..]), Some(2), Some(2))
    }
}

/// `NFTA_DATA_*`.
pub(crate) fn data(attribute: Attribute<'_>) -> Data {
    let content = Attributes::of(attribute.value);
    if let Some(value) = content.get(NFTA_DATA_VALUE) {
        return Data::Value(value.value.to_vec());
    }
    content.get(NFTA_DATA_VERDICT).map_or(Data::None, |verdict| Data::Verdict(code(verdict)))
}

fn code(attribute: Attribute<'_>) -> Code {
    let verdict = Attributes::of(attribute.value);
    let chain = || verdict.name(NFTA_VERDICT_CHAIN).unwrap_or_default();
    let Some(number) = verdict.be32(NFTA_VERDICT_CODE) else {
        return Code::Other(u32::MAX);
    };
    match number {
        NF_DROP => Code::Drop,
        NF_ACCEPT => Code::Accept,
        NFT_CONTINUE => Code::Continue,
        NFT_BREAK => Code::Break,
        NFT_JUMP => Code::Jump(chain()),
        NFT_GOTO => Code::Goto(chain()),
        NFT_RETURN => Code::Return,
        _ => Code::Other(number),
    }
}

fn decode_known(form: &str, f: &ExpressionFields<'_>, family: u8) -> Option<Expr> {
    let name = form.to_owned();
    match effect(EXPRESSIONS, form, 0) {
        Effect::Evaluated => evaluated(form, f, family),
        Effect::Test if form == "dynset" => Some(Expr::Update(f.text(NFTA_DYNSET_SET_NAME)?)),
        Effect::Test => Some(loaded(form, f).unwrap_or(Expr::Test(name))),
        Effect::Nothing => Some(Expr::Nothing(name)),
        Effect::OtherConnections => Some(Expr::OtherConnections(name)),
        Effect::Unknown => None,
    }
}

fn evaluated(form: &str, f: &ExpressionFields<'_>, family: u8) -> Option<Expr> {
    let direction = || f.0.get(NFTA_CT_DIRECTION).and_then(|direction| direction.value.first().copied());
    Some(match form {
        "meta" => {
            Expr::Load { source: LoadSource::Meta(f.number(NFTA_META_KEY)?), to: f.register(NFTA_META_DREG)? }
        }
        "meta set mark" => Expr::SetMark { from: f.register(NFTA_META_SREG)? },
        "ct" => {
            let source = LoadSource::Ct(f.number(NFTA_CT_KEY)?, direction());
            Expr::Load { source, to: f.register(NFTA_CT_DREG)? }
        }
        "ct set mark" => Expr::SetConnectionMark { from: f.register(NFTA_CT_SREG)? },
        "ct set zone" => Expr::SetZone { from: f.register(NFTA_CT_SREG)?, direction: direction() },
        "payload" | "payload set" => {
            let (base, offset) = (f.number(NFTA_PAYLOAD_BASE)?, f.number(NFTA_PAYLOAD_OFFSET)?);
            // `struct nft_payload` has 16 bits for it at most.
            let offset = u16::try_from(offset).ok()?.into();
            let length = f.size(NFTA_PAYLOAD_LEN)?;
            match f.register(NFTA_PAYLOAD_SREG) {
                Some(from) => Expr::Write { from, base, offset, length, updates: checksum(f, base, offset) },
                None => Expr::Load {
                    source: LoadSource::Payload { base, offset, length },
                    to: f.register(NFTA_PAYLOAD_DREG)?,
                },
            }
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
            let (from, to) = (f.register(NFTA_BYTEORDER_SREG)?, f.register(NFTA_BYTEORDER_DREG)?);
            Expr::ByteOrder {
                from,
                to,
                length: f.size(NFTA_BYTEORDER_LEN)?,
                size: f.size(NFTA_BYTEORDER_SIZE)?,
            }
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
        "masq" => Expr::Nat(to_ports(NatKind::Masquerade, f, NFTA_MASQ_REG_PROTO_MIN)),
        "tproxy" => tproxy(f)?,
        "notrack" => Expr::Untrack,
        "reject" => Expr::Reject,
        "objref" => object(f)?,
        "match" | "target" => xt(form, f, family)?,
        _ => return None,
    })
}

/// Register 0 is the verdict: a verdict map.
fn lookup_target(f: &ExpressionFields<'_>) -> Option<usize> {
    f.has(NFTA_LOOKUP_DREG).then(|| f.register(NFTA_LOOKUP_DREG).unwrap_or(VERDICT))
}

fn bitwise(f: &ExpressionFields<'_>) -> Option<Expr> {
    let (from, to) = (f.register(NFTA_BITWISE_SREG)?, f.register(NFTA_BITWISE_DREG)?);
    // Shifts, and operations on two registers.
    if f.number(NFTA_BITWISE_OP).unwrap_or_default() != NFT_BITWISE_MASK_XOR {
        let length = f.size(NFTA_BITWISE_LEN)?;
        return Some(Expr::Load { source: LoadSource::Other("bitwise".to_owned(), length), to });
    }
    Some(Expr::Bitwise { from, to, mask: f.value(NFTA_BITWISE_MASK)?, xor: f.value(NFTA_BITWISE_XOR)? })
}

/// The kernel adds the difference at any offset from the base (`nft_payload_set_eval`, net/netfilter/nft_payload.c,
/// v6.18). It sums words of two bytes, so a write at an odd offset makes the sum wrong.
fn checksum(f: &ExpressionFields<'_>, base: u32, offset: u32) -> Checksum {
    /// The offset of `check` in `struct iphdr` (include/uapi/linux/ip.h, v6.18).
    const IPV4_CHECKSUM_OFFSET: u32 = 10;
    let [kind, at, flags] = [NFTA_PAYLOAD_CSUM_TYPE, NFTA_PAYLOAD_CSUM_OFFSET, NFTA_PAYLOAD_CSUM_FLAGS]
        .map(|kind| f.number(kind).unwrap_or_default());
    match (kind, at, flags) {
        (NFT_PAYLOAD_CSUM_NONE, _, 0) => Checksum::None,
        (NFT_PAYLOAD_CSUM_INET, IPV4_CHECKSUM_OFFSET, 0)
            if base == NFT_PAYLOAD_NETWORK_HEADER && offset.is_multiple_of(2) =>
        {
            Checksum::Ipv4
        }
        _ => Checksum::Other,
    }
}

fn nat(f: &ExpressionFields<'_>) -> Option<Expr> {
    let kind = match f.number(NFTA_NAT_TYPE)? {
        NFT_NAT_SNAT => NatKind::Source,
        NFT_NAT_DNAT => NatKind::Destination,
        _ => return None,
    };
    if f.number(NFTA_NAT_FLAGS).unwrap_or_default() & NF_NAT_RANGE_NETMAP != 0 {
        return None;
    }
    let is_for = TableFamily::numbered(u8::try_from(f.number(NFTA_NAT_FAMILY)?).ok()?)?.only();
    Some(Expr::Nat(Nat {
        kind,
        is_for,
        address: f.register(NFTA_NAT_REG_ADDR_MIN),
        last_address: f.register(NFTA_NAT_REG_ADDR_MAX),
        port: f.register(NFTA_NAT_REG_PROTO_MIN),
        last_port: f.register(NFTA_NAT_REG_PROTO_MAX),
    }))
}

fn to_ports(kind: NatKind, f: &ExpressionFields<'_>, first: u16) -> Nat {
    let (port, last_port) = (f.register(first), f.register(first + 1));
    Nat { kind, is_for: None, address: None, last_address: None, port, last_port }
}

fn tproxy(f: &ExpressionFields<'_>) -> Option<Expr> {
    // A TPROXY to another address than the packet's is not evaluated.
    if f.has(NFTA_TPROXY_REG_ADDR) {
        return None;
    }
    let family = f.number(NFTA_TPROXY_FAMILY).and_then(|family| u8::try_from(family).ok());
    let is_for = family.and_then(Family::numbered);
    Some(Expr::Tproxy { is_for, port: f.register(NFTA_TPROXY_REG_PORT) })
}

/// Decodes a reference to an object, by its type or by the map that has it.
fn object(f: &ExpressionFields<'_>) -> Option<Expr> {
    match f.text(NFTA_OBJREF_SET_NAME) {
        Some(map) => Some(Expr::ObjectOf(map)),
        None => Some(use_of_object(f.number(NFTA_OBJREF_IMM_TYPE)?, &f.text(NFTA_OBJREF_IMM_NAME)?)),
    }
}

/// What the use of an object of that type (`NFT_OBJECT_*`) does.
pub(crate) fn use_of_object(kind: u32, name: &str) -> Expr {
    let kind = object_type(kind).unwrap_or("object");
    let text = format!("{kind} {name}");
    match effect(OBJECTS, kind, 0) {
        Effect::Nothing => Expr::Nothing(text),
        Effect::Test => Expr::Test(text),
        Effect::OtherConnections => Expr::OtherConnections(text),
        Effect::Evaluated | Effect::Unknown => Expr::Unknown(text),
    }
}

/// The load of a value that the packet does not decide; `None` for an expression that loads none.
fn loaded(name: &str, f: &ExpressionFields<'_>) -> Option<Expr> {
    // The attribute `NFTA_*_DREG` of each.
    let to = f.register(match name {
        "hash" | "socket" | "tunnel" => 2,
        "exthdr" | "fib" | "numgen" | "osf" | "rt" | "xfrm" => 1,
        _ => return None,
    })?;
    // Keys and attributes decide how many registers the kernel writes: all that follow may be written.
    Some(Expr::Load { source: LoadSource::Other(name.to_owned(), REGISTERS_END - to), to })
}

fn xt(name: &str, f: &ExpressionFields<'_>, family: u8) -> Option<Expr> {
    let family = Family::numbered(family)?;
    let (extension, revision) = (f.text(NFTA_XT_NAME)?, u8::try_from(f.number(NFTA_XT_REV)?).ok()?);
    let data = f.0.get(NFTA_XT_INFO)?.value;
    Some(match name {
        "match" => Expr::Match(decode_match(family, &extension, revision, data)),
        _ => Expr::Target(decode_target(family, &extension, revision, data)),
    })
}
