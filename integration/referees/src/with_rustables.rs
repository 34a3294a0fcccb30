//! Second reference encoder: rustables, written in Rust without a C library.
//!
//! rustables 0.9 has fewer expressions than the kernel. It allows any name with the attributes of another expression,
//! so a missing one is written with the attributes of an existing one that has the same numbers and sizes. A rule for
//! which none has them is [`Inexpressible`].

use crate::expressions::{self, Comparison, Decision, Field, Kind, NfExpression, SetContent, ValueOrder};
use crate::transport::Batch;
use gybe_netfilter::model::ruleset::{ChainName, Family, Hook, Is, Rule, Ruleset};
use gybe_netfilter::nft::{BatchObject, Start};
use rustables::data_type::DataType;
use rustables::expr::{
    Bitwise, Cmp, CmpOp, Conntrack, ConntrackKey, Counter, ExpressionVariant, Immediate, Lookup, Meta,
    MetaType, Payload, RawExpression, Register, VerdictKind,
};
use rustables::set::{SetBuilder, SetElementList};
use rustables::{Chain, ChainPolicy, ChainType, HookClass, MsgType, ProtocolFamily, Set, Table, sys};

/// What rustables 0.9 cannot express.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Inexpressible {
    /// It has no range expression, and none with the same attributes.
    #[error("rustables cannot express anything but a range of ports")]
    OutsideOfRange,
    /// An element of a set has a key and no flags: it can be the start of a range, not the end.
    #[error("rustables cannot express the ends of ranges in a set")]
    EndsOfRanges,
}

/// A batch, and what it lacks.
#[derive(Debug)]
pub struct Written {
    /// All rules, and all sets.
    pub batch: Batch,
    /// The sets of ranges, which have no elements.
    pub sets_left_empty: Vec<String>,
}

/// Returns the transaction that makes `rules` the content of the table.
///
/// # Errors
/// When rustables lacks something for that.
pub fn complete(rules: &Ruleset, start: Start) -> Result<Batch, Inexpressible> {
    let written = batch(rules, start)?;
    if written.sets_left_empty.is_empty() { Ok(written.batch) } else { Err(Inexpressible::EndsOfRanges) }
}

/// As [`complete`], but the sets of ranges stay empty.
///
/// # Errors
/// When rustables lacks an expression.
pub fn batch(rules: &Ruleset, start: Start) -> Result<Written, Inexpressible> {
    let (table, mut batch, mut objects) = (table(), rustables::Batch::new(), Vec::new());
    add_table(&mut batch, &mut objects, &table, start);
    let chains: Vec<_> = rules.chains.iter().map(|one| (chain(&table, one.name), one)).collect();
    for (chain, of) in &chains {
        batch.add(chain, MsgType::Add);
        objects.push(BatchObject::Chain(of.name));
    }
    let sets = expressions::sets(rules);
    for one in &sets {
        let (set, elements) = set(&table, one);
        batch.add(&set, MsgType::Add);
        objects.push(BatchObject::Set(one.name.clone()));
        if one.holds == SetContent::Values {
            batch.add(&elements, MsgType::Add);
            objects.push(BatchObject::Elements(one.name.clone()));
        }
    }
    for (chain, of) in &chains {
        for one in &of.rules {
            batch.add(&rule(chain, one, &sets)?, MsgType::Add);
            objects.push(BatchObject::Rule(one.id, of.name));
        }
    }
    let empty = sets.into_iter().filter(|set| set.holds == SetContent::Ranges).map(|set| set.name);
    let batch = Batch::new(batch.finalize(), objects, start);
    Ok(Written { batch, sets_left_empty: empty.collect() })
}

/// Returns the transaction that deletes the table; the kernel refuses it when there is none.
pub fn removal() -> Batch {
    let mut batch = rustables::Batch::new();
    batch.add(&table(), MsgType::Del);
    Batch::new(batch.finalize(), vec![BatchObject::Table], Start::Replace)
}

fn table() -> Table {
    Table::new(ProtocolFamily::Inet).with_name(expressions::TABLE).with_flags(0_u32)
}

fn add_table(batch: &mut rustables::Batch, objects: &mut Vec<BatchObject>, table: &Table, start: Start) {
    // Created first, so that the deletion cannot fail where there is no table.
    let messages = match start {
        Start::Fresh => vec![MsgType::Add],
        Start::Replace => vec![MsgType::Add, MsgType::Del, MsgType::Add],
    };
    for message in messages {
        batch.add(table, message);
        objects.push(BatchObject::Table);
    }
}

fn chain(table: &Table, name: ChainName) -> Chain {
    let chain = Chain::new(table).with_name(name.as_str());
    let Some(base) = expressions::base(name) else { return chain };
    let hook = match base.hook {
        Hook::Prerouting => HookClass::PreRouting,
        Hook::Input => HookClass::In,
        Hook::Forward => HookClass::Forward,
        Hook::Output => HookClass::Out,
        Hook::Postrouting => HookClass::PostRouting,
    };
    let kind = match base.kind {
        Kind::Filter => ChainType::Filter,
        Kind::Route => ChainType::Route,
        Kind::Nat => ChainType::Nat,
    };
    chain
        .with_hook(rustables::Hook::new(hook, base.priority))
        .with_type(kind)
        .with_policy(ChainPolicy::Accept)
}

/// The key of a set whose type is known only at run time; `set` sets the type.
struct AnyKey<'k>(&'k [u8]);

impl DataType for AnyKey<'_> {
    const TYPE: u32 = 0;
    const LEN: u32 = 0;

    fn data(&self) -> Vec<u8> {
        self.0.to_vec()
    }
}

fn set(table: &Table, of: &expressions::Set) -> (Set, SetElementList) {
    let mut builder = SetBuilder::new(of.name.as_str(), table).unwrap();
    for element in &of.elements {
        builder.add(&AnyKey(&element.key));
    }
    let (mut set, elements) = builder.finish();
    set.family = ProtocolFamily::Inet;
    set.set_key_type(of.key_type);
    set.set_key_len(of.key_length);
    set.set_id(of.id);
    if of.holds == SetContent::Ranges {
        set.set_flags(sys::NFT_SET_INTERVAL);
    }
    if of.printed == ValueOrder::HostOrder {
        // One entry of nft's user data: kind 0 (KEYBYTEORDER), four bytes, BYTEORDER_HOST_ENDIAN.
        set.set_userdata([[0, 4].as_slice(), &1_u32.to_ne_bytes()].concat());
    }
    (set, elements)
}

fn rule(chain: &Chain, of: &Rule, sets: &[expressions::Set]) -> Result<rustables::Rule, Inexpressible> {
    // nft's user data: kind 0 (COMMENT), its length, a C string.
    let text = [of.id.0.as_bytes(), &[0]].concat();
    let length = u8::try_from(text.len()).unwrap();
    let comment = [[0, length].as_slice(), &text].concat();
    let mut rule = rustables::Rule::new(chain).unwrap().with_userdata(comment);
    for nf_expression in expressions::expressions(of) {
        rule.add_expr(expression(&nf_expression, sets)?);
    }
    Ok(rule)
}

fn expression(expression: &NfExpression, sets: &[expressions::Set]) -> Result<RawExpression, Inexpressible> {
    Ok(match expression {
        NfExpression::Load(field) => load(*field),
        NfExpression::Mask(mask) => Bitwise::new(mask.as_slice(), vec![0; mask.len()]).unwrap().into(),
        NfExpression::Replace(kept, flipped) => {
            Bitwise::new(kept.as_slice(), flipped.as_slice()).unwrap().into()
        }
        NfExpression::Compare(comparison, value) => Cmp::new(operator(*comparison), value.as_slice()).into(),
        NfExpression::Outside(..) => return Err(Inexpressible::OutsideOfRange),
        NfExpression::Lookup(is, name) => lookup(*is, sets.iter().find(|set| set.name == *name).unwrap()),
        NfExpression::Value(value) => Immediate::new_data(value.clone(), Register::Reg1).into(),
        NfExpression::SetMark => Meta::default().with_key(MetaType::Mark).with_sreg(Register::Reg1).into(),
        NfExpression::SetConnectionMark => {
            Conntrack::default().with_key(ConntrackKey::Mark).with_sreg(Register::Reg1).into()
        }
        // Attribute 2 is the key, 4 the source register: Payload has numbers there, ct's own type no zone.
        NfExpression::SetZone => {
            with_attributes_of("ct", Payload::default().with_base(sys::NFT_CT_ZONE).with_len(sys::NFT_REG_1))
        }
        // Attribute 1 is the register of the lowest port.
        NfExpression::Redirect => with_attributes_of("redir", Payload::default().with_dreg(Register::Reg1)),
        NfExpression::Tproxy(family) => tproxy(*family),
        NfExpression::Count => Counter::default().into(),
        NfExpression::Decide(decision) => Immediate::new_verdict(verdict(*decision)).into(),
    })
}

/// Returns an expression with this name and the attributes of another.
fn with_attributes_of(name: &str, attributes: impl Into<ExpressionVariant>) -> RawExpression {
    RawExpression::default().with_name(name).with_data(attributes)
}

/// Attribute 1 is a family, a number of 32 bits; 3 is the register of the port. Only Lookup
/// takes any four bytes there: a string, which is written without its terminator.
fn tproxy(family: Family) -> RawExpression {
    let family = match family {
        Family::V4 => "\0\0\0\u{2}",
        Family::V6 => "\0\0\0\u{a}",
    };
    with_attributes_of("tproxy", Lookup::default().with_set(family).with_dreg(Register::Reg1))
}

/// rustables cannot invert a lookup. Payload has numbers at 2 (source register), 4 (the
/// set's id) and 5 (flags, where register 1 is the flag 1, `NFT_LOOKUP_F_INV`), and at 1, the set's
/// name, a number that is no set's name: the kernel then finds the set by its id (`nft_set_lookup_global`).
fn lookup(is: Is, set: &expressions::Set) -> RawExpression {
    match is {
        Is::In => {
            Lookup::default().with_set(set.name.as_str()).with_sreg(Register::Reg1).with_set_id(set.id).into()
        }
        Is::NotIn => with_attributes_of(
            "lookup",
            Payload::default()
                .with_dreg(Register::Reg1)
                .with_base(sys::NFT_REG_1)
                .with_len(set.id)
                .with_sreg(Register::Reg1),
        ),
    }
}

fn load(field: Field) -> RawExpression {
    let meta = |key| Meta::new(key).into();
    let payload = |base: u32, offset: u32, length: u32| {
        Payload::default()
            .with_dreg(Register::Reg1)
            .with_base(base)
            .with_offset(offset)
            .with_len(length)
            .into()
    };
    match field {
        Field::NetworkProtocol => meta(MetaType::NfProto),
        Field::TransportProtocol => meta(MetaType::L4Proto),
        Field::InInterface => meta(MetaType::IifName),
        Field::OutInterface => meta(MetaType::OifName),
        Field::OwnerUid => meta(MetaType::SkUid),
        Field::OwnerGid => meta(MetaType::SkGid),
        Field::Mark => meta(MetaType::Mark),
        Field::ConnectionMark => Conntrack::new(ConntrackKey::Mark).into(),
        Field::ConnectionState => Conntrack::new(ConntrackKey::State).into(),
        Field::Network { offset, length } => payload(sys::NFT_PAYLOAD_NETWORK_HEADER, offset, length),
        Field::Transport { offset, length } => payload(sys::NFT_PAYLOAD_TRANSPORT_HEADER, offset, length),
    }
}

fn operator(comparison: Comparison) -> CmpOp {
    match comparison {
        Comparison::Equal => CmpOp::Eq,
        Comparison::Different => CmpOp::Neq,
        Comparison::AtLeast => CmpOp::Gte,
        Comparison::AtMost => CmpOp::Lte,
    }
}

fn verdict(decision: Decision) -> VerdictKind {
    match decision {
        Decision::Accept => VerdictKind::Accept,
        Decision::Return => VerdictKind::Return,
        Decision::Drop => VerdictKind::Drop,
        Decision::Goto(chain) => VerdictKind::Goto { chain: chain.as_str().to_owned() },
    }
}
