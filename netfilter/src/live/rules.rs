//! All rules at netfilter's hooks of a network namespace, of every owner.
//!
//! One model for both engines: expressions of nf_tables and matches and targets of iptables are statements of a rule.
//! `read` reads nf_tables, `legacy` iptables-legacy, `ours` marks our rules, `expr` decodes expressions, `field` names
//! the content of registers, `text` prints a rule, `ruleset`
//! reads Gybe's own rules back. `crate::walk` evaluates the model.

pub(crate) mod expr;
mod field;
mod legacy;
mod ours;
mod read;
pub(crate) mod ruleset;
mod text;

pub(crate) use field::{Component, Field, LoadedFields};
pub(crate) use read::read;

use crate::ebpf::Programs;
use crate::xt::legacy::{Header, InetHook};
use crate::xt::{XtMatch, XtTarget};
use expr::Expr;
use std::fmt;
use std::net::IpAddr;

/// The rules at the hooks of a namespace.
#[derive(Debug, Clone, Default)]
pub(crate) struct NamespaceRules {
    /// The chains of the families ip, ip6 and inet, and of the tables of iptables-legacy.
    pub(crate) chains: Vec<LiveChain>,
    /// Named and anonymous sets and maps of nf_tables.
    pub(crate) sets: Vec<Set>,
    /// What is not evaluated and may change the outcome of a connection, one sentence each.
    pub(crate) opaque: Vec<String>,
    /// eBPF programs that can only pass or drop, and what could not be read, one sentence each.
    pub(crate) notes: Vec<String>,
    /// The interfaces and their addresses.
    pub(crate) interfaces: Vec<Interface>,
}

/// An interface of the namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Whether it was brought up.
    pub(crate) is_raised: bool,
    /// In the kernel's order: a redirect at prerouting goes to the first of its family.
    pub(crate) addresses: Vec<IpAddr>,
}

/// The family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableFamily {
    Ip,
    Ip6,
    Inet,
}

impl TableFamily {
    /// Reports whether packets of this IP version pass tables of the family.
    pub(crate) fn applies_to(self, is_v6: bool) -> bool {
        match self {
            Self::Ip => !is_v6,
            Self::Ip6 => is_v6,
            Self::Inet => true,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
        }
    }
}

/// The part of the kernel that runs a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// nf_tables; iptables-nft writes its rules there too.
    NfTables,
    /// iptables-legacy.
    Legacy,
}

/// The name of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableName {
    pub(crate) engine: Engine,
    pub(crate) family: TableFamily,
    pub(crate) name: String,
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.engine {
            Engine::NfTables => write!(f, "{} {}", self.family.name(), self.name),
            Engine::Legacy => write!(f, "{}tables-legacy {}", self.family.name(), self.name),
        }
    }
}

/// A chain with its rules in order.
#[derive(Debug, Clone)]
pub(crate) struct LiveChain {
    pub(crate) table: TableName,
    pub(crate) name: String,
    pub(crate) base: Option<BaseChain>,
    pub(crate) rules: Vec<LiveRule>,
    /// When it was registered; `None` where the kernel does not report it.
    pub(crate) age: Option<Age>,
}

/// The order of registration, by handles: a newer table of a namespace, and a newer chain of a table, has a greater
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Age {
    pub(crate) table: u64,
    pub(crate) chain: u64,
    /// The table was created in one transaction with its chains.
    pub(crate) is_of_one_transaction: bool,
}

/// The hook, priority and policy of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BaseChain {
    pub(crate) kind: ChainKind,
    pub(crate) hook: InetHook,
    pub(crate) priority: i32,
    /// Its policy is drop.
    pub(crate) drops: bool,
}

/// The type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainKind {
    Filter,
    Nat,
    /// The kernel routes a packet again when the chain has changed it.
    Route,
}

/// A rule: its statements run one after the other.
#[derive(Debug, Clone)]
pub(crate) struct LiveRule {
    /// As `nft` or `iptables-save` would print it, on one line.
    pub(crate) text: String,
    /// Its comment; in our own rules their id.
    pub(crate) comment: Option<String>,
    pub(crate) is_ours: bool,
    pub(crate) statements: Vec<Statement>,
}

/// A statement of a rule.
#[derive(Debug, Clone)]
pub(crate) enum Statement {
    /// An expression of nf_tables.
    Expr(Expr),
    /// The header test of a rule of iptables-legacy.
    Header(Header),
    /// A match of iptables.
    Match(XtMatch),
    /// A target of iptables.
    Target(XtTarget),
}

impl Statement {
    /// Reports whether it can do more to a packet than end the rule.
    pub(crate) fn acts(&self) -> bool {
        match self {
            Self::Expr(Expr::Lookup { to, .. }) => to.is_some(),
            Self::Expr(expr) => !matches!(
                expr,
                Expr::Load { .. }
                    | Expr::Value { .. }
                    | Expr::Bitwise { .. }
                    | Expr::ByteOrder { .. }
                    | Expr::Compare { .. }
                    | Expr::Range { .. }
                    | Expr::Nothing(_)
                    | Expr::Test(_)
                    | Expr::Match(_)
            ),
            Self::Target(target) => !matches!(target, XtTarget::Log { .. } | XtTarget::NfLog { .. }),
            Self::Header(_) | Self::Match(_) => false,
        }
    }
}

/// A set or map.
#[derive(Debug, Clone)]
pub(crate) struct Set {
    pub(crate) table: TableName,
    pub(crate) name: String,
    pub(crate) key_length: usize,
    pub(crate) is_interval: bool,
    /// Lengths of the parts of a concatenated key, where the kernel reports them.
    pub(crate) parts: Vec<usize>,
    /// Packets or time change its elements, or which packets they match.
    pub(crate) is_dynamic: bool,
    pub(crate) elements: Vec<Element>,
    /// The data of every key without an element of its own.
    pub(crate) catch_all: Option<expr::Data>,
}

/// Keys from first to last, both included.
#[derive(Debug, Clone)]
pub(crate) struct Element {
    pub(crate) first: Vec<u8>,
    pub(crate) last: Vec<u8>,
    pub(crate) data: expr::Data,
}

impl NamespaceRules {
    pub(crate) fn add_programs(&mut self, programs: Programs) {
        self.opaque.extend(programs.diverting);
        self.notes.extend([programs.filtering, programs.not_read].concat());
    }

    /// The chain that a rule of `from` jumps to.
    pub(crate) fn chain(&self, from: &TableName, name: &str) -> Option<(usize, &LiveChain)> {
        self.chains.iter().enumerate().find(|(_, chain)| chain.name == name && chain.table == *from)
    }

    pub(crate) fn set(&self, from: &TableName, name: &str) -> Option<&Set> {
        self.sets.iter().find(|set| set.name == name && set.table == *from)
    }

    /// Reports whether a packet to this address stays in the namespace.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.interfaces.iter().any(|one| one.addresses.contains(&address))
    }

    /// The address to which packets that arrive by that interface are redirected.
    pub(crate) fn primary(&self, interface: &str, is_v6: bool) -> Option<IpAddr> {
        let interface = self.interfaces.iter().find(|one| one.name == interface)?;
        interface.addresses.iter().find(|address| address.is_ipv6() == is_v6).copied()
    }

    pub(crate) fn index(&self, interface: &str) -> Option<u32> {
        self.interfaces.iter().find(|one| one.name == interface).map(|one| one.index)
    }

    /// The same namespace with our own rules only.
    #[must_use]
    pub(crate) fn ours_alone(&self) -> Self {
        let mut ours = self.clone();
        for chain in &mut ours.chains {
            chain.rules.retain(|rule| rule.is_ours);
            if let (Some(base), true) = (&mut chain.base, chain.rules.is_empty()) {
                base.drops = false;
            }
        }
        ours.opaque.clear();
        ours
    }
}

/// The location of a chain, as text.
pub(crate) fn location(chain: &LiveChain) -> String {
    match chain.base {
        Some(base) => {
            format!("hook {} priority {}, {} {}", base.hook.name(), base.priority, chain.table, chain.name)
        }
        None => format!("{} {}", chain.table, chain.name),
    }
}
