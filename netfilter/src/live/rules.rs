//! All rules at netfilter's hooks of a network namespace, whoever owns them.
//!
//! A neutral model: nf_tables' expressions and iptables' matches and targets are statements of one kind
//! of rule. `read` asks the kernel, `expr` decodes nf_tables' expressions, `text` prints a rule;
//! `crate::walk` sends packets through it.

pub(crate) mod expr;
mod field;
mod legacy;
mod ours;
mod read;
mod text;

pub(crate) use field::{Component, Field, Symbols};
pub(crate) use read::read;

use crate::ebpf::Programs;
use crate::xt::legacy::{Header, InetHook};
use crate::xt::{XtMatch, XtTarget};
use expr::Expr;
use std::fmt;
use std::net::IpAddr;

/// What stands at the hooks of a namespace.
#[derive(Debug, Clone, Default)]
pub(crate) struct NamespaceRules {
    /// Every chain of the families ip, ip6 and inet, and of iptables-legacy's tables.
    pub(crate) chains: Vec<LiveChain>,
    /// Named and anonymous sets and maps of nf_tables.
    pub(crate) sets: Vec<Set>,
    /// What may change a packet's way and cannot be evaluated, one sentence each.
    pub(crate) opaque: Vec<String>,
    /// What changes no address and is worth knowing, one sentence each.
    pub(crate) notes: Vec<String>,
    /// The interfaces and their addresses.
    pub(crate) interfaces: Vec<Interface>,
}

/// An interface of the namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// In the kernel's order: a redirect of what arrives goes to the first of its family.
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
    /// Whether packets of this IP version pass tables of the family.
    pub(crate) fn sees(self, is_v6: bool) -> bool {
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

/// Which part of the kernel runs a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// nf_tables, also by the hand of iptables-nft.
    NfTables,
    /// iptables-legacy.
    Legacy,
}

/// A table, as far as chains and sets refer to it.
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
    /// When it was registered, as far as the kernel tells; `None` where it does not.
    pub(crate) age: Option<Age>,
}

/// Handles that grow: of tables within a namespace, of chains within a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Age {
    pub(crate) table: u64,
    pub(crate) chain: u64,
    /// The table came to be in one piece with its chains.
    pub(crate) is_of_one_piece: bool,
}

/// What makes a chain a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BaseChain {
    pub(crate) kind: ChainKind,
    pub(crate) hook: InetHook,
    pub(crate) priority: i32,
    /// What its end does.
    pub(crate) drops: bool,
}

/// The type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainKind {
    Filter,
    Nat,
    /// Routes a packet again when it has changed.
    Route,
}

/// A rule: its statements are carried out one after the other.
#[derive(Debug, Clone)]
pub(crate) struct LiveRule {
    /// As `nft` or `iptables-save` would print it, on one line.
    pub(crate) text: String,
    /// Its comment, where it has one: the id of our own rules.
    pub(crate) comment: Option<String>,
    pub(crate) is_ours: bool,
    pub(crate) statements: Vec<Statement>,
}

/// One step of a rule.
#[derive(Debug, Clone)]
pub(crate) enum Statement {
    /// An expression of nf_tables.
    Expr(Expr),
    /// What every rule of iptables-legacy tests by itself.
    Header(Header),
    /// A match of iptables.
    Match(XtMatch),
    /// A target of iptables.
    Target(XtTarget),
}

impl Statement {
    /// Whether it can do anything to a packet but let the rule go on or end.
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
    /// Lengths of the parts of a concatenated key, where the kernel tells them.
    pub(crate) parts: Vec<usize>,
    /// Packets or time change what is in it.
    pub(crate) is_dynamic: bool,
    pub(crate) elements: Vec<Element>,
    /// What is not in it is.
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

    /// Whether a packet to this address stays in the namespace.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.interfaces.iter().any(|one| one.addresses.contains(&address))
    }

    /// The address that a redirect of what arrives by that interface goes to.
    pub(crate) fn primary(&self, interface: &str, is_v6: bool) -> Option<IpAddr> {
        let interface = self.interfaces.iter().find(|one| one.name == interface)?;
        interface.addresses.iter().find(|address| address.is_ipv6() == is_v6).copied()
    }

    pub(crate) fn index(&self, interface: &str) -> Option<u32> {
        self.interfaces.iter().find(|one| one.name == interface).map(|one| one.index)
    }

    /// The same namespace with our own rules alone.
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

/// Where a rule stands, for people.
pub(crate) fn place(chain: &LiveChain) -> String {
    match chain.base {
        Some(base) => {
            format!("hook {} priority {}, {} {}", base.hook.name(), base.priority, chain.table, chain.name)
        }
        None => format!("{} {}", chain.table, chain.name),
    }
}
