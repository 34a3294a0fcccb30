//! Reads the rules of the calling thread's namespace: nf_tables over netlink, all lists of one generation, then the
//! tables of iptables-legacy. All of them, or none: a namespace with more than the limits of `crate::nft::lists` is an
//! error, because the rest of its rules would decide connections too.

mod sets;

use super::expr::{self, Code, Data, Expr};
use super::{
    Age, BaseChain, ChainKind, Interface, LiveChain, LiveRule, NamespaceRules, Statement, TableName, ours,
    state, text,
};
use crate::apply::backend::BackendError;
use crate::apply::redirection::RedirectionError;
use crate::inspect::ebpf;
use crate::inspect::live::NAMED;
use crate::iptables::IptablesError;
use crate::kernel::netlink::attr::{Attribute, Attributes};
use crate::kernel::netlink::list::Listed;
use crate::kernel::routes::{Link, RoutesError, Rtnetlink};
use crate::kernel::uapi::*;
use crate::model::ruleset::{Engine, Hook, Ruleset, TableFamily};
use crate::nft::lists::{self, ListEntry, ListStop, Lister, Lists};
use crate::nft::{Batch, NftError, Start, TABLE, dump, socket::NftSocket};
use nix::errno::Errno;
use std::collections::HashMap;

/// Reads all rules; what is not evaluated is named in `opaque`.
pub(crate) fn read() -> Result<NamespaceRules, RedirectionError> {
    let mut found = nf_tables().map_err(BackendError::from)?;
    super::legacy::add(&mut found).map_err(|error| BackendError::from(IptablesError::from(error)))?;
    found.mark();
    let mut routing = Rtnetlink::open()?;
    found.interfaces = interfaces(&mut routing)?;
    found.add_programs(ebpf::of_this_namespace(&mut routing));
    Ok(found)
}

/// The rules that would be read after the nft backend has written this ruleset.
pub(crate) fn of_ruleset(rules: &Ruleset) -> Result<NamespaceRules, NftError> {
    let batch = Batch::apply(rules, Start::Fresh)?;
    let mut found = read_by(&mut |request, _, _| Ok(Listed::Whole(batch.list(request))))?;
    found.mark();
    Ok(found)
}

impl NamespaceRules {
    /// Marks our own rules and what packets change, when all rules are there.
    pub(crate) fn mark(&mut self) {
        ours::mark(self);
        state::mark(self);
    }
}

fn interfaces(routing: &mut Rtnetlink) -> Result<Vec<Interface>, RoutesError> {
    let (links, addresses) = (routing.links()?, routing.addresses()?);
    let with_addresses = |Link { index, name, is_raised, .. }: Link| {
        let own = addresses.iter().filter(|address| address.index == index);
        Interface { index, name, is_raised, addresses: own.map(|address| address.ip).collect() }
    };
    Ok(links.into_iter().map(with_addresses).collect())
}

fn nf_tables() -> Result<NamespaceRules, NftError> {
    let mut connection = match NftSocket::open() {
        Ok(connection) => connection,
        Err(error) if error.is_without_nftables() => return Ok(NamespaceRules::default()),
        Err(error) => return Err(error),
    };
    read_by(&mut |request, sequence, limit| connection.0.list_of_any_size(request, sequence, limit))
}

/// Reads the rules from a lister: the kernel, or a recording of its replies.
pub(crate) fn read_by(lister: &mut Lister<'_>) -> Result<NamespaceRules, NftError> {
    match lists::of_one_generation(lister, NFPROTO_UNSPEC, attempt) {
        // No such subsystem (`nfnetlink_rcv_msg`).
        Err(NftError::List { source: Errno::EINVAL | Errno::EOPNOTSUPP, what })
            if what == lists::TABLES.what =>
        {
            Ok(NamespaceRules::default())
        }
        outcome => outcome,
    }
}

/// One attempt.
fn attempt(lists: &mut Lists<'_, '_>) -> Result<NamespaceRules, ListStop> {
    let tables = lists.all(lists::TABLES, |_| ())?;
    let chains = lists.all(lists::CHAINS, |_| ())?;
    let rules = lists.all(lists::RULES, |_| ())?;
    let sets = lists.all(lists::SETS, |_| ())?;
    let flow_tables = match lists.all(lists::FLOW_TABLES, |_| ()) {
        Err(ListStop::Failed(NftError::List { source: Errno::EINVAL | Errno::EOPNOTSUPP, .. })) => Vec::new(),
        outcome => outcome?,
    };
    let mut found = NamespaceRules::default();
    for entry in &sets {
        let Some(mut set) = sets::set(entry) else { continue };
        let raw = entry.attributes();
        let text = |kind| raw.get(kind).map(|name| name.text().to_vec()).unwrap_or_default();
        let (table, name) = (text(NFTA_SET_TABLE), text(NFTA_SET_NAME));
        let elements = lists.elements(entry.family(), &table, &name)?;
        if lists::has_duplicates(&elements) {
            return Err(ListStop::Changed);
        }
        sets::add_elements(&mut set, &elements);
        found.sets.push(set);
    }
    add_chains(&mut found, &tables, &chains, rules)?;
    found.opaque.extend(flow_tables.iter().take(NAMED).map(|entry| {
        let flow_table = entry.attributes();
        let name = |kind| flow_table.name(kind).unwrap_or_default();
        format!("flow table {} {}: packets of known connections pass no hook", name(1), name(2))
    }));
    Ok(found)
}

/// The age and state of a table.
struct TableState {
    handle: u64,
    is_dormant: bool,
}

/// A table by its family (`NFPROTO_*`) and name.
type TableKey = (u8, String);

fn table(entry: &ListEntry) -> Option<(TableKey, TableState)> {
    let table = entry.attributes();
    let flags = table.be32(NFTA_TABLE_FLAGS).unwrap_or_default();
    let handle = table.be64(NFTA_TABLE_HANDLE).unwrap_or_default();
    let key = (entry.family(), table.name(NFTA_TABLE_NAME)?);
    Some((key, TableState { handle, is_dormant: flags & 1 != 0 }))
}

fn table_name(number: u8, name: String) -> Option<TableName> {
    Some(TableName { engine: Engine::NfTables, family: TableFamily::numbered(number)?, name })
}

/// The name of a family other than ip, ip6 and inet.
fn other_family(number: u8) -> &'static str {
    match number {
        3 => "arp",
        5 => "netdev",
        7 => "bridge",
        _ => "unknown",
    }
}

/// The rules of a chain and the verdicts that lead to it, as the kernel counts them (`NFTA_CHAIN_USE`) and as it has
/// listed them. The numbers differ when a list ended early ([`NftError::Incomplete`]).
#[derive(Default)]
struct Uses {
    counted: u32,
    listed: u32,
}

/// The chains of the families that are evaluated, by family, table and name.
#[derive(Default)]
struct Chains {
    /// The place in [`NamespaceRules::chains`]; none of a chain of a dormant table, or at a hook that is not evaluated.
    indices: HashMap<ChainKey, usize>,
    uses: HashMap<ChainKey, Uses>,
}

type ChainKey = (TableName, String);

impl Chains {
    fn add_verdict(&mut self, table: &TableName, code: &Code) {
        if let Code::Jump(to) | Code::Goto(to) = code {
            self.add_use(&(table.clone(), to.clone()));
        }
    }

    fn add_use(&mut self, chain: &ChainKey) {
        if let Some(uses) = self.uses.get_mut(chain) {
            uses.listed += 1;
        }
    }

    fn check(&self) -> Result<(), NftError> {
        match self.uses.iter().find(|(_, uses)| uses.counted != uses.listed) {
            Some(((table, chain), _)) => Err(NftError::Incomplete { chain: format!("{table} {chain}") }),
            None => Ok(()),
        }
    }
}

/// Adds the chains and their rules. The sets are there already.
fn add_chains(
    found: &mut NamespaceRules,
    tables: &[ListEntry],
    entries: &[ListEntry],
    rules: Vec<ListEntry>,
) -> Result<(), NftError> {
    let tables: HashMap<TableKey, TableState> = tables.iter().filter_map(table).collect();
    let mut chains = Chains::default();
    for entry in entries {
        add_chain(found, &tables, &mut chains, entry);
    }
    for set in &found.sets {
        for data in set.elements.iter().map(|element| &element.data).chain(&set.catch_all) {
            if let Data::Verdict(code) = data {
                chains.add_verdict(&set.table, code);
            }
        }
    }
    // Each entry is dropped when it is decoded.
    for entry in rules {
        add_rule(found, &mut chains, &entry);
    }
    chains.check()
}

fn add_chain(
    found: &mut NamespaceRules,
    tables: &HashMap<TableKey, TableState>,
    chains: &mut Chains,
    entry: &ListEntry,
) {
    let chain = entry.attributes();
    let text = |kind| chain.name(kind);
    let (Some(table), Some(name)) = (text(NFTA_CHAIN_TABLE), text(NFTA_CHAIN_NAME)) else { return };
    let uses = chain.be32(NFTA_CHAIN_USE);
    let own_table = tables.get(&(entry.family(), table.clone()));
    let evaluated = table_name(entry.family(), table.clone());
    // The kernel counts them; a message that creates the chain does not.
    if let (Some(table), Some(counted)) = (&evaluated, uses) {
        let uses = Uses { counted, listed: 0 };
        chains.uses.insert((table.clone(), name.clone()), uses);
    }
    if own_table.is_some_and(|table| table.is_dormant) {
        return;
    }
    let handle = chain.be64(NFTA_CHAIN_HANDLE);
    let is_of_one_transaction = entry.family() == NFPROTO_INET && table == TABLE;
    let age = own_table.zip(handle).map(|(own_table, chain)| Age {
        table: own_table.handle,
        chain,
        is_of_one_transaction,
    });
    match (evaluated, base(&chain)) {
        (Some(table), ChainHook::Evaluated(base)) => {
            chains.indices.insert((table.clone(), name.clone()), found.chains.len());
            found.chains.push(LiveChain { table, name, base, rules: Vec::new(), age });
        }
        (None, ChainHook::Evaluated(None)) => {}
        (_, ChainHook::Evaluated(Some(_)) | ChainHook::NotEvaluated) => {
            let drops = chain.be32(NFTA_CHAIN_POLICY) == Some(NF_DROP);
            if (uses.is_none_or(|uses| uses > 0) || drops) && found.opaque.len() < NAMED {
                let family = TableFamily::numbered(entry.family())
                    .map_or(other_family(entry.family()), TableFamily::name);
                found.opaque.push(format!("chain {family} {table} {name} is not evaluated"));
            }
        }
    }
}

/// Whether the hook of a chain is evaluated.
enum ChainHook {
    /// A hook of the IP layer, or none.
    Evaluated(Option<BaseChain>),
    /// Another hook.
    NotEvaluated,
}

fn base(chain: &Attributes<'_>) -> ChainHook {
    let Some(hook) = chain.get(NFTA_CHAIN_HOOK) else { return ChainHook::Evaluated(None) };
    let hook = Attributes::of(hook.value);
    let number = |kind| hook.be32(kind);
    let kind = match chain.get(NFTA_CHAIN_TYPE).map(|kind| kind.text().to_vec()).as_deref() {
        Some(b"filter") => ChainKind::Filter,
        Some(b"nat") => ChainKind::Nat,
        Some(b"route") => ChainKind::Route,
        _ => return ChainHook::NotEvaluated,
    };
    let drops = chain.be32(NFTA_CHAIN_POLICY) == Some(NF_DROP);
    match (number(NFTA_HOOK_HOOKNUM).and_then(Hook::numbered), number(NFTA_HOOK_PRIORITY)) {
        (Some(hook), Some(priority)) => {
            ChainHook::Evaluated(Some(BaseChain { kind, hook, priority: priority.cast_signed(), drops }))
        }
        _ => ChainHook::NotEvaluated,
    }
}

fn add_rule(found: &mut NamespaceRules, chains: &mut Chains, entry: &ListEntry) {
    let rule = entry.attributes();
    let name = |kind| rule.name(kind).unwrap_or_default();
    let Some(table) = table_name(entry.family(), name(NFTA_RULE_TABLE)) else { return };
    let list = rule.nested(NFTA_RULE_EXPRESSIONS);
    let decode = |element: Attribute<'_>| Statement::Expr(expr::decode(element.value, entry.family()));
    let statements: Vec<Statement> = list.map(decode).collect();
    for statement in &statements {
        if let Statement::Expr(Expr::Verdict(code)) = statement {
            chains.add_verdict(&table, code);
        }
    }
    let chain = (table, name(NFTA_RULE_CHAIN));
    chains.add_use(&chain);
    let text = text::rule(&statements, |name| found.set(&chain.0, name));
    // iptables-nft writes a comment as a match.
    let in_match = || statements.iter().find_map(Statement::comment).map(ToOwned::to_owned);
    let comment = dump::comment(&rule).or_else(in_match);
    let index = chains.indices.get(&chain);
    if let Some(chain) = index.and_then(|index| found.chains.get_mut(*index)) {
        chain.rules.push(LiveRule { text, comment, is_ours: false, statements });
    }
}

#[cfg(test)]
mod tests;
