//! First reference encoder: nftnl, with the bytes of libnftnl. It can express all rules and sets; [`crate::libnftnl`]
//! adds the expressions that nftnl lacks.

use crate::expressions::{self, Comparison, Decision, Field, Kind, NfExpression};
use crate::libnftnl::{Missing, NamedSet};
use crate::transport::Batch;
use gybe_netfilter::model::ruleset::{Hook, Rule, Ruleset};
use gybe_netfilter::nft::{BatchObject, Start};
use nftnl::expr::{
    Bitwise, Cmp, CmpOp, Conntrack, Counter, Expression, Immediate, Meta, NetworkHeaderField, Payload,
    Register, TransportHeaderField, Verdict,
};
use nftnl::{Chain, ChainType, MsgType, Policy, ProtoFamily, Table};
use std::ffi::CString;

/// Returns the transaction that makes `rules` the content of the table.
pub fn batch(rules: &Ruleset, start: Start) -> Batch {
    let table = Table::new(c(expressions::TABLE), ProtoFamily::Inet);
    let (mut batch, mut objects) = (nftnl::Batch::new(), Vec::new());
    add_table(&mut batch, &mut objects, &table, start);
    let chains: Vec<_> = rules.chains.iter().map(|one| (chain(&table, one.name), one)).collect();
    for (chain, of) in &chains {
        batch.add(chain, MsgType::Add);
        objects.push(BatchObject::Chain(of.name));
    }
    for of in &expressions::sets(rules) {
        let set = NamedSet::new(&table, of);
        batch.add(set.inner(), MsgType::Add);
        objects.push(BatchObject::Set(of.name.clone()));
        let elements = set.inner().elems_iter();
        batch.add_iter(
            elements.inspect(|_| objects.push(BatchObject::Elements(of.name.clone()))),
            MsgType::Add,
        );
    }
    for (chain, of) in &chains {
        for one in &of.rules {
            batch.add(&rule(chain, one), MsgType::Add);
            objects.push(BatchObject::Rule(one.id, of.name));
        }
    }
    finished(batch, objects, start)
}

/// Returns the transaction that deletes the table; the kernel refuses it when there is none.
pub fn removal() -> Batch {
    let mut batch = nftnl::Batch::new();
    batch.add(&Table::new(c(expressions::TABLE), ProtoFamily::Inet), MsgType::Del);
    finished(batch, vec![BatchObject::Table], Start::Replace)
}

fn add_table(batch: &mut nftnl::Batch, objects: &mut Vec<BatchObject>, table: &Table, start: Start) {
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

/// nftnl's batch is in pages.
fn finished(batch: nftnl::Batch, objects: Vec<BatchObject>, start: Start) -> Batch {
    Batch::new(batch.finalize().iter().flatten().copied().collect(), objects, start)
}

fn chain<'t>(table: &'t Table, name: gybe_netfilter::model::ruleset::ChainName) -> Chain<'t> {
    let mut chain = Chain::new(c(name.as_str()), table);
    if let Some(base) = expressions::base(name) {
        chain.set_hook(
            match base.hook {
                Hook::Prerouting => nftnl::Hook::PreRouting,
                Hook::Input => nftnl::Hook::In,
                Hook::Forward => nftnl::Hook::Forward,
                Hook::Output => nftnl::Hook::Out,
                Hook::Postrouting => nftnl::Hook::PostRouting,
            },
            base.priority,
        );
        chain.set_type(match base.kind {
            Kind::Filter => ChainType::Filter,
            Kind::Route => ChainType::Route,
            Kind::Nat => ChainType::Nat,
        });
        chain.set_policy(Policy::Accept);
    }
    chain
}

fn rule<'c>(chain: &'c Chain<'c>, of: &Rule) -> nftnl::Rule<'c> {
    let mut rule = nftnl::Rule::new(chain);
    rule.set_comment(c(of.id.0)).unwrap();
    for expression in expressions::expressions(of) {
        add(&mut rule, &expression);
    }
    rule
}

fn add(rule: &mut nftnl::Rule<'_>, expression: &NfExpression) {
    match expression {
        NfExpression::Load(field) => load(rule, *field),
        NfExpression::Mask(mask) => {
            rule.add_expr(&Bitwise::new(mask.as_slice(), vec![0_u8; mask.len()].as_slice()));
        }
        NfExpression::Replace(kept, flipped) => {
            rule.add_expr(&Bitwise::new(kept.as_slice(), flipped.as_slice()));
        }
        NfExpression::Compare(comparison, value) => {
            rule.add_expr(&Cmp::new(operator(*comparison), value.as_slice()));
        }
        NfExpression::Value(value) => match value.as_slice() {
            [a, b] => rule.add_expr(&Immediate::new([*a, *b], Register::Reg1)),
            [a, b, c, d] => rule.add_expr(&Immediate::new([*a, *b, *c, *d], Register::Reg1)),
            other => panic!("no rule loads a value of {} bytes", other.len()),
        },
        NfExpression::SetMark => rule.add_expr(&Meta::Mark { set: true }),
        NfExpression::SetConnectionMark => rule.add_expr(&Conntrack::Mark { set: true }),
        NfExpression::Count => rule.add_expr(&Counter),
        NfExpression::Decide(decision) => rule.add_expr(&verdict(*decision)),
        NfExpression::Outside(low, high) => rule.add_expr(&Missing::Outside(low, high)),
        NfExpression::Lookup(is, set) => rule.add_expr(&Missing::Lookup(*is, c(set))),
        NfExpression::SetZone => rule.add_expr(&Missing::SetZone),
        NfExpression::Redirect => rule.add_expr(&Missing::Redirect),
        NfExpression::Tproxy(family) => rule.add_expr(&Missing::Tproxy(*family)),
    }
}

fn load(rule: &mut nftnl::Rule<'_>, field: Field) {
    let (offset_bits, length_bits) = match field {
        // nftnl passes these on as bytes, despite their names.
        Field::Network { offset, length } | Field::Transport { offset, length } => (offset, length),
        _ => (0, 0),
    };
    let network = NetworkHeaderField::Raw { offset_bits, length_bits };
    let transport = TransportHeaderField::Raw { offset_bits, length_bits };
    let expression: Box<dyn Expression> = match field {
        Field::NetworkProtocol => Box::new(Meta::NfProto),
        Field::TransportProtocol => Box::new(Meta::L4Proto),
        Field::InInterface => Box::new(Meta::IifName),
        Field::OutInterface => Box::new(Meta::OifName),
        Field::OwnerUid => Box::new(Meta::SkUid),
        Field::OwnerGid => Box::new(Meta::SkGid),
        Field::Mark => Box::new(Meta::Mark { set: false }),
        Field::ConnectionMark => Box::new(Conntrack::Mark { set: false }),
        Field::ConnectionState => Box::new(Conntrack::State),
        Field::Network { .. } => Box::new(Payload::Network(network)),
        Field::Transport { .. } => Box::new(Payload::Transport(transport)),
    };
    rule.add_expr(&Boxed(expression));
}

/// `add_expr` needs a sized type.
struct Boxed(Box<dyn Expression>);

impl Expression for Boxed {
    fn to_expr(&self, rule: &nftnl::Rule<'_>) -> std::ptr::NonNull<nftnl::nftnl_sys::nftnl_expr> {
        self.0.to_expr(rule)
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

fn verdict(decision: Decision) -> Verdict {
    match decision {
        Decision::Accept => Verdict::Accept,
        Decision::Return => Verdict::Return,
        Decision::Drop => Verdict::Drop,
        Decision::Goto(chain) => Verdict::Goto { chain: c(chain.as_str()) },
    }
}

/// Names come from constants of ours: none has a NUL in it.
fn c(name: &str) -> CString {
    CString::new(name).unwrap()
}
