//! Rules and namespaces for unit tests.

use super::expr::{Code, Expr, LoadSource, Nat, NatKind};
use super::{
    Age, BaseChain, ChainKind, Interface, LiveChain, LiveRule, NamespaceRules, Statement, TableName,
};
use crate::kernel::uapi::{NFT_CMP_EQ, NFT_META_L4PROTO, NFT_META_SKUID};
use crate::model::packet::Owner;
use crate::model::ruleset::{Engine, Hook, TableFamily};

pub(crate) const PROXY: Owner = Owner { uid: 1337, gid: 1337 };
pub(crate) const APP: Owner = Owner { uid: 1000, gid: 1000 };

pub(crate) fn rule(exprs: Vec<Expr>) -> LiveRule {
    let statements = exprs.into_iter().map(Statement::Expr).collect();
    LiveRule { text: String::new(), comment: None, is_ours: false, statements }
}

pub(crate) fn owned_by(uid: u32, then: Expr) -> LiveRule {
    rule(vec![
        Expr::Load { source: LoadSource::Meta(NFT_META_SKUID), to: 0 },
        Expr::Compare { op: NFT_CMP_EQ, at: 0, value: uid.to_ne_bytes().to_vec() },
        then,
    ])
}

pub(crate) fn redirect_tcp(port: u16) -> LiveRule {
    rule(vec![
        Expr::Load { source: LoadSource::Meta(NFT_META_L4PROTO), to: 0 },
        Expr::Compare { op: NFT_CMP_EQ, at: 0, value: vec![6] },
        Expr::Value { to: 0, value: port.to_be_bytes().to_vec() },
        Expr::Nat(Nat {
            kind: NatKind::Redirect,
            is_for: None,
            address: None,
            last_address: None,
            port: Some(0),
            last_port: Some(0),
        }),
    ])
}

pub(crate) fn chain(table: &str, kind: ChainKind, at: (Hook, i32), rules: Vec<LiveRule>) -> LiveChain {
    let table = TableName { engine: Engine::NfTables, family: TableFamily::Inet, name: table.to_owned() };
    let base = BaseChain { kind, hook: at.0, priority: at.1, drops: false };
    LiveChain { table, name: "base".to_owned(), base: Some(base), rules, age: None }
}

pub(crate) fn aged(mut chain: LiveChain, table: u64, is_of_one_transaction: bool) -> LiveChain {
    chain.age = Some(Age { table, chain: 1, is_of_one_transaction });
    chain
}

pub(crate) fn namespace(chains: Vec<LiveChain>) -> NamespaceRules {
    let interface = |index, name: &str, address: &str| Interface {
        index,
        name: name.to_owned(),
        is_raised: true,
        addresses: vec![address.parse().unwrap()],
    };
    let interfaces = vec![interface(1, "lo", "127.0.0.1"), interface(2, "eth0", "10.9.9.9")];
    NamespaceRules { chains, interfaces, ..NamespaceRules::default() }
}

/// Redirects every connection but the proxy's to 15001.
pub(crate) fn ours() -> LiveChain {
    let rules = vec![owned_by(1337, Expr::Verdict(Code::Return)), redirect_tcp(15001)];
    aged(chain("gybe", ChainKind::Nat, (Hook::Output, -100), rules), 5, true)
}
