//! All rules at netfilter's hooks of a network namespace, of every owner.
//!
//! One model for both engines: expressions of nf_tables and matches and targets of iptables are statements of a rule.
//! `read` reads nf_tables, `legacy` iptables-legacy, `ours` marks our rules, `expr` decodes expressions, `field` names
//! the content of registers, `state` knows what packets change, `text` prints a rule. `crate::inspect::walk` evaluates the model.

#[cfg(test)]
pub(crate) mod constructed;
pub(crate) mod expr;
mod field;
mod legacy;
mod ours;
mod read;
mod state;
mod text;

pub(crate) use field::{Component, Field, LoadedFields};
pub(crate) use read::{of_ruleset, read, read_by};

use crate::inspect::ebpf::Programs;
use crate::kernel::routes::Routing;
use crate::model::policy::ambient::ORIGINAL_SOURCE_MARK;
use crate::model::policy::istio::PASSTHROUGH_V6;
use crate::model::ruleset::{Engine, Family, Hook, TableFamily};
use crate::xt::legacy::HeaderTest;
use crate::xt::{XtMatch, XtTarget};
use expr::Expr;
use ipnet::IpNet;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;

/// The rules at the hooks of a namespace, all of them: a namespace of which only some could be read has no such value.
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
    /// `None` where the addresses decide alone what is local.
    pub(crate) routing: Option<Routing>,
    /// The places of the chains, made at the first lookup: the list does not change afterwards.
    pub(crate) chain_places: OnceLock<Places>,
    /// The same of the sets.
    pub(crate) set_places: OnceLock<Places>,
}

/// Places in a list of chains or sets, by table and name.
pub(crate) type Places = HashMap<TableName, HashMap<String, usize>>;

fn places<'n>(named: impl Iterator<Item = (&'n TableName, &'n String)>) -> Places {
    let mut places = Places::new();
    for (index, (table, name)) in named.enumerate() {
        places.entry(table.clone()).or_default().insert(name.clone(), index);
    }
    places
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

/// The name of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    pub(crate) hook: Hook,
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
    Header(HeaderTest),
    /// A match of iptables.
    Match(XtMatch),
    /// A target of iptables.
    Target(XtTarget),
}

impl Statement {
    /// The text of the match `comment`.
    fn comment(&self) -> Option<&str> {
        match self {
            Self::Expr(Expr::Match(XtMatch::Comment(text))) | Self::Match(XtMatch::Comment(text)) => {
                Some(text)
            }
            _ => None,
        }
    }

    /// Reports whether it can do more to a packet than end the rule.
    pub(crate) fn acts(&self) -> bool {
        match self {
            Self::Expr(expr) => match expr {
                Expr::Lookup { to, .. } => to.is_some(),
                Expr::Match(test) => test.acts(),
                Expr::Target(target) => target.acts(),
                Expr::Load { .. }
                | Expr::Value { .. }
                | Expr::Bitwise { .. }
                | Expr::ByteOrder { .. }
                | Expr::Compare { .. }
                | Expr::Range { .. }
                | Expr::Nothing(_)
                | Expr::Test(_)
                | Expr::Update(_) => false,
                _ => true,
            },
            Self::Target(target) => target.acts(),
            Self::Match(test) => test.acts(),
            Self::Header(_) => false,
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
    /// The type of the objects that it has for its keys (`NFT_OBJECT_*`), or 0.
    pub(crate) objects: u32,
    /// Packets or time change its elements, or which packets they match.
    pub(crate) is_dynamic: bool,
    /// Sorted by their first keys.
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
        let chains = || places(self.chains.iter().map(|chain| (&chain.table, &chain.name)));
        let index = *self.chain_places.get_or_init(chains).get(from)?.get(name)?;
        Some((index, self.chains.get(index)?))
    }

    pub(crate) fn set(&self, from: &TableName, name: &str) -> Option<&Set> {
        let sets = || places(self.sets.iter().map(|set| (&set.table, &set.name)));
        self.sets.get(*self.set_places.get_or_init(sets).get(from)?.get(name)?)
    }

    /// Reports whether a packet to this address stays in the namespace.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        match &self.routing {
            Some(routing) => routing.is_local(address),
            None => address.is_loopback() || self.has_address(address),
        }
    }

    /// Reports whether packets with this mark are delivered to the pod itself; where routes are not known, those with
    /// the mark that ambient rules set.
    pub(crate) fn delivers_to_ztunnel(&self, family: Family, mark: u32) -> bool {
        let by_default = || ORIGINAL_SOURCE_MARK.is_in(mark);
        self.routing.as_ref().map_or_else(by_default, |routing| routing.delivers_mark(family, mark))
    }

    fn has_address(&self, address: IpAddr) -> bool {
        self.interfaces.iter().any(|one| one.addresses.contains(&address))
    }

    /// The networks that are local by a route, and whose addresses no interface has.
    pub(crate) fn local_without_address(&self) -> Vec<IpNet> {
        let local = self.routing.iter().flat_map(Routing::local_networks);
        local.filter(|net| !net.addr().is_loopback() && !self.has_address(net.addr())).collect()
    }

    /// The address to which packets to `destination` that arrive by that interface are redirected: the first of the
    /// family, and of IPv6 of the same scope (`nf_nat_redirect_ipv6`, net/netfilter/nf_nat_redirect.c, v6.18).
    pub(crate) fn primary(&self, interface: &str, destination: IpAddr) -> Option<IpAddr> {
        let is_like = |own: &&IpAddr| match (own, destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => true,
            (IpAddr::V6(own), IpAddr::V6(to)) => own.is_unicast_link_local() == to.is_unicast_link_local(),
            _ => false,
        };
        self.interface(interface)?.addresses.iter().find(is_like).copied()
    }

    /// Reports whether connections of that family with other hosts arrive by the interface, as far as is known: it
    /// has an address for them, or another interface has one and a route leads out by this one.
    pub(crate) fn is_reached_by(&self, interface: &str, family: Family) -> bool {
        let found = self.routing.as_ref().zip(self.interface(interface));
        let Some((routing, Interface { index, is_raised, .. })) = found else { return true };
        let mut addresses = self.interfaces.iter().flat_map(|one| &one.addresses);
        let serves = |own: &IpAddr| match own {
            IpAddr::V4(own) => family == Family::V4 && !own.is_loopback(),
            IpAddr::V6(Ipv6Addr::LOCALHOST | PASSTHROUGH_V6) => false,
            IpAddr::V6(own) => family == Family::V6 && !own.is_unicast_link_local(),
        };
        *is_raised
            && (self.primary(interface, family.unspecified()).is_some()
                || routing.leaves_by(family, *index) && addresses.any(serves))
    }

    pub(crate) fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|one| one.name == name)
    }

    /// The same namespace with other owners' rules only.
    #[must_use]
    pub(crate) fn without_ours(&self) -> Self {
        let mut others = self.clone();
        others.chains.iter_mut().for_each(|chain| chain.rules.retain(|rule| !rule.is_ours));
        others
    }

    /// The same namespace with our own rules only.
    #[must_use]
    pub(crate) fn ours_alone(&self) -> Self {
        let only_ours = |chain: &LiveChain| {
            let rules: Vec<LiveRule> = chain.rules.iter().filter(|rule| rule.is_ours).cloned().collect();
            let drops = |base: BaseChain| base.drops && !rules.is_empty();
            let base = chain.base.map(|base| BaseChain { drops: drops(base), ..base });
            LiveChain { table: chain.table.clone(), name: chain.name.clone(), base, rules, age: chain.age }
        };
        let chains: Vec<LiveChain> = self.chains.iter().map(only_ours).collect();
        let with_rules = chains.iter().filter(|chain| !chain.rules.is_empty());
        let tables: HashSet<&TableName> = with_rules.map(|chain| &chain.table).collect();
        let sets = self.sets.iter().filter(|set| tables.contains(&set.table)).cloned().collect();
        Self {
            chains,
            sets,
            interfaces: self.interfaces.clone(),
            routing: self.routing.clone(),
            ..Self::default()
        }
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
