//! Reads the rules of the calling thread's namespace: nf_tables over netlink, all lists of one generation, then the
//! tables of iptables-legacy.

use super::expr::{self, Data};
use super::ours;
use super::{
    Age, BaseChain, ChainKind, Element, Engine, Interface, LiveChain, LiveRule, NamespaceRules, Set,
    Statement, TableFamily, TableName, text,
};
use crate::ebpf;
use crate::netlink::attr::Attributes;
use crate::nft::dump;
use crate::nft::lists::{self, Entry, Lister, Lists};
use crate::nft::uapi::*;
use crate::nft::{NftError, TABLE, socket::Connection};
use crate::redirection::RedirectionError;
use crate::routes::{Link, Rtnetlink};
use crate::xt::legacy::InetHook;
use nix::errno::Errno;

/// A namespace with more tables, chains or rules is not evaluated.
const MAX_OBJECTS: usize = 20_000;

/// A namespace with more sets is not evaluated.
const MAX_SETS: usize = 2_000;

/// A namespace whose sets have more elements together is not evaluated.
const MAX_ELEMENTS: usize = 100_000;

/// Reads all rules; what is not evaluated is named in `opaque`.
pub(crate) fn read() -> Result<NamespaceRules, RedirectionError> {
    let mut found = nf_tables().map_err(crate::backend::BackendError::from)?;
    super::legacy::add(&mut found);
    ours::mark(&mut found);
    let mut routing = Rtnetlink::open()?;
    found.interfaces = interfaces(&mut routing)?;
    found.add_programs(ebpf::of_this_namespace(&mut routing));
    Ok(found)
}

fn interfaces(routing: &mut Rtnetlink) -> Result<Vec<Interface>, RedirectionError> {
    let (links, addresses) = (routing.links()?, routing.addresses()?);
    let with_addresses = |Link { index, name, is_raised, .. }: Link| {
        let own = addresses.iter().filter(|address| address.index == index);
        Interface { index, name, is_raised, addresses: own.map(|address| address.ip).collect() }
    };
    Ok(links.into_iter().map(with_addresses).collect())
}

fn nf_tables() -> Result<NamespaceRules, NftError> {
    let mut connection = match Connection::open() {
        Ok(connection) => connection,
        Err(error) if error.is_without_nftables() => return Ok(NamespaceRules::default()),
        Err(error) => return Err(error),
    };
    read_by(&mut |request, sequence| connection.0.list(request, sequence))
}

/// Reads the rules from a lister: the kernel, or a recording of its replies.
pub(super) fn read_by(lister: &mut Lister<'_>) -> Result<NamespaceRules, NftError> {
    match lists::of_one_generation(lister, NFPROTO_UNSPEC, attempt) {
        // No such subsystem (`nfnetlink_rcv_msg`).
        Err(NftError::List { source: Errno::EINVAL | Errno::EOPNOTSUPP, what: TABLES }) => {
            Ok(NamespaceRules::default())
        }
        outcome => outcome,
    }
}

const TABLES: &str = "the tables";

/// One attempt; `None` when something changed meanwhile.
fn attempt(lists: &mut Lists<'_, '_>) -> Result<Option<NamespaceRules>, NftError> {
    macro_rules! listed {
        ($list:expr) => {
            match $list? {
                Some(entries) => entries,
                None => return Ok(None),
            }
        };
    }
    let tables = listed!(lists.all(TABLES, NFT_MSG_GETTABLE, |_| ()));
    let chains = listed!(lists.all("the chains", NFT_MSG_GETCHAIN, |_| ()));
    let rules = listed!(lists.all("the rules", NFT_MSG_GETRULE, |_| ()));
    let sets = listed!(lists.all("the sets", NFT_MSG_GETSET, |_| ()));
    let flow_tables = match lists.all("the flow tables", NFT_MSG_GETFLOWTABLE, |_| ()) {
        Err(NftError::List { source: Errno::EINVAL | Errno::EOPNOTSUPP, .. }) => Vec::new(),
        outcome => listed!(outcome),
    };
    let mut found = NamespaceRules::default();
    for (what, entries) in [("tables", &tables), ("chains", &chains), ("rules", &rules), ("sets", &sets)] {
        let most = if what == "sets" { MAX_SETS } else { MAX_OBJECTS };
        if entries.len() > most {
            found.opaque.push(format!("{} {what}, more than the {most} that are evaluated", entries.len()));
            return Ok(Some(found));
        }
    }
    let tables: Vec<Table> = tables.iter().filter_map(table).collect();
    let mut elements = 0_usize;
    for entry in &sets {
        let Some(mut set) = set(entry) else { continue };
        let raw = entry.attributes();
        let text = |kind| raw.get(kind).map(|name| name.text().to_vec()).unwrap_or_default();
        let (table, name) = (text(NFTA_SET_TABLE), text(NFTA_SET_NAME));
        add_elements(&mut set, &listed!(lists.elements(entry.family(), &table, &name)));
        elements = elements.saturating_add(set.elements.len());
        if elements > MAX_ELEMENTS {
            let all = format!("the sets have more than the {MAX_ELEMENTS} elements that are evaluated");
            return Ok(Some(NamespaceRules { opaque: vec![all], ..NamespaceRules::default() }));
        }
        found.sets.push(set);
    }
    add_chains(&mut found, &tables, &chains, &rules);
    found.opaque.extend(flow_tables.iter().map(|entry| {
        let flow_table = entry.attributes();
        let name = |kind| flow_table.get(kind).map(|name| name.name()).unwrap_or_default();
        format!("flow table {} {}: packets of known connections pass no hook", name(1), name(2))
    }));
    Ok(Some(found))
}

struct Table {
    family: u8,
    name: String,
    handle: u64,
    is_dormant: bool,
}

fn table(entry: &Entry) -> Option<Table> {
    let table = entry.attributes();
    let flags = table.get(NFTA_TABLE_FLAGS).and_then(|flags| flags.be32()).unwrap_or_default();
    Some(Table {
        family: entry.family(),
        name: table.get(NFTA_TABLE_NAME)?.name(),
        handle: table.get(NFTA_TABLE_HANDLE).and_then(|handle| handle.be64()).unwrap_or_default(),
        is_dormant: flags & 1 != 0,
    })
}

fn family(number: u8) -> Option<TableFamily> {
    match number {
        NFPROTO_INET => Some(TableFamily::Inet),
        NFPROTO_IPV4 => Some(TableFamily::Ip),
        NFPROTO_IPV6 => Some(TableFamily::Ip6),
        _ => None,
    }
}

fn table_name(number: u8, name: String) -> Option<TableName> {
    Some(TableName { engine: Engine::NfTables, family: family(number)?, name })
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

fn add_chains(found: &mut NamespaceRules, tables: &[Table], chains: &[Entry], rules: &[Entry]) {
    for entry in chains {
        let chain = entry.attributes();
        let text = |kind| chain.get(kind).map(|name| name.name());
        let (Some(table), Some(name)) = (text(NFTA_CHAIN_TABLE), text(NFTA_CHAIN_NAME)) else { continue };
        let own_table = tables.iter().find(|one| one.family == entry.family() && one.name == table);
        if own_table.is_some_and(|table| table.is_dormant) {
            continue;
        }
        let handle = chain.get(NFTA_CHAIN_HANDLE).and_then(|handle| handle.be64());
        let is_of_one_transaction = entry.family() == NFPROTO_INET && table == TABLE;
        let age = own_table.zip(handle).map(|(own_table, chain)| Age {
            table: own_table.handle,
            chain,
            is_of_one_transaction,
        });
        match (table_name(entry.family(), table.clone()), base(&chain)) {
            (Some(table), ChainHook::Evaluated(base)) => {
                found.chains.push(LiveChain { table, name, base, rules: Vec::new(), age });
            }
            (None, ChainHook::Evaluated(None)) => {}
            (_, ChainHook::Evaluated(Some(_)) | ChainHook::NotEvaluated) => {
                let uses = chain.get(NFTA_CHAIN_USE).and_then(|uses| uses.be32()).unwrap_or_default();
                let drops = chain.get(NFTA_CHAIN_POLICY).and_then(|policy| policy.be32()) == Some(NF_DROP);
                if uses > 0 || drops {
                    let family =
                        family(entry.family()).map_or(other_family(entry.family()), TableFamily::name);
                    found.opaque.push(format!("chain {family} {table} {name} is not evaluated"));
                }
            }
        }
    }
    for entry in rules {
        add_rule(found, entry);
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
    let number = |kind| hook.get(kind).and_then(|value| value.be32());
    let kind = match chain.get(NFTA_CHAIN_TYPE).map(|kind| kind.text().to_vec()).as_deref() {
        Some(b"filter") => ChainKind::Filter,
        Some(b"nat") => ChainKind::Nat,
        Some(b"route") => ChainKind::Route,
        _ => return ChainHook::NotEvaluated,
    };
    let drops = chain.get(NFTA_CHAIN_POLICY).and_then(|policy| policy.be32()) == Some(NF_DROP);
    match (number(NFTA_HOOK_HOOKNUM).and_then(InetHook::numbered), number(NFTA_HOOK_PRIORITY)) {
        (Some(hook), Some(priority)) => {
            ChainHook::Evaluated(Some(BaseChain { kind, hook, priority: priority.cast_signed(), drops }))
        }
        _ => ChainHook::NotEvaluated,
    }
}

fn add_rule(found: &mut NamespaceRules, entry: &Entry) {
    let rule = entry.attributes();
    let name = |kind| rule.get(kind).map(|name| name.name()).unwrap_or_default();
    let Some(table) = table_name(entry.family(), name(NFTA_RULE_TABLE)) else { return };
    let list = Attributes::of(rule.get(NFTA_RULE_EXPRESSIONS).map_or(&[], |list| list.value));
    let decode = |element: crate::netlink::attr::Attribute<'_>| expr::decode(element.value, entry.family());
    let statements: Vec<Statement> = list.map(|element| Statement::Expr(decode(element))).collect();
    let text = text::rule(&statements, |name| found.set(&table, name));
    let comment = dump::comment(&rule);
    let chain_name = name(NFTA_RULE_CHAIN);
    let chain = found.chains.iter_mut().find(|chain| chain.table == table && chain.name == chain_name);
    if let Some(chain) = chain {
        chain.rules.push(LiveRule { text, comment, is_ours: false, statements });
    }
}

fn set(entry: &Entry) -> Option<Set> {
    let set = entry.attributes();
    let number = |kind| set.get(kind).and_then(|value| value.be32()).unwrap_or_default();
    let table = table_name(entry.family(), set.get(NFTA_SET_TABLE)?.name())?;
    let key_length = usize::try_from(number(NFTA_SET_KEY_LEN)).ok()?;
    let flags = number(NFTA_SET_FLAGS);
    let description = Attributes::of(set.get(NFTA_SET_DESC).map_or(&[], |description| description.value));
    let parts = Attributes::of(description.get(2).map_or(&[], |parts| parts.value));
    let length = |part: crate::netlink::attr::Attribute<'_>| Attributes::of(part.value).get(1)?.be32();
    let parts: Vec<usize> = parts.filter_map(length).filter_map(|length| length.try_into().ok()).collect();
    Some(Set {
        table,
        name: set.get(NFTA_SET_NAME)?.name(),
        key_length,
        is_interval: flags & NFT_SET_INTERVAL != 0,
        parts,
        is_dynamic: flags & (NFT_SET_TIMEOUT | NFT_SET_EVAL) != 0,
        elements: Vec::new(),
        catch_all: None,
    })
}

/// Reports whether an element has a statement other than a counter: a limit or a quota keeps it from matching some
/// packets (`nft_set_elem_update_expr`, include/net/netfilter/nf_tables.h, v6.18).
fn may_not_match(element: &Attributes<'_>) -> bool {
    let list = Attributes::of(element.get(NFTA_SET_ELEM_EXPRESSIONS).map_or(&[], |list| list.value));
    let mut statements = element.get(NFTA_SET_ELEM_EXPR).into_iter().chain(list);
    statements.any(|one| {
        let name = Attributes::of(one.value).get(NFTA_EXPR_NAME);
        name.is_none_or(|name| !matches!(name.text(), b"counter" | b"last"))
    })
}

/// Adds the listed elements to the set.
fn add_elements(set: &mut Set, entries: &[Entry]) {
    // The end of an interval comes before the start of the next at the same key.
    let mut bounds: Vec<(Vec<u8>, bool, Data)> = Vec::new();
    for entry in entries {
        let attributes = entry.attributes();
        let list = Attributes::of(attributes.get(NFTA_SET_ELEM_LIST_ELEMENTS).map_or(&[], |list| list.value));
        for element in list {
            let element = Attributes::of(element.value);
            let flags = element.get(NFTA_SET_ELEM_FLAGS).and_then(|flags| flags.be32()).unwrap_or_default();
            set.is_dynamic |= may_not_match(&element);
            let data = element.get(NFTA_SET_ELEM_DATA).map_or(Data::None, expr::data);
            let key = |kind| match element.get(kind).map(expr::data) {
                Some(Data::Value(key)) => Some(key),
                _ => None,
            };
            match (key(NFTA_SET_ELEM_KEY), key(NFTA_SET_ELEM_KEY_END)) {
                _ if flags & NFT_SET_ELEM_CATCHALL != 0 => set.catch_all = Some(data),
                (Some(first), Some(last)) => set.elements.push(Element { first, last, data }),
                (Some(first), None) if !set.is_interval || set.parts.len() > 1 => {
                    set.elements.push(Element { last: first.clone(), first, data });
                }
                (Some(bound), None) => bounds.push((bound, flags & NFT_SET_ELEM_INTERVAL_END != 0, data)),
                (None, _) => {}
            }
        }
    }
    bounds.sort_by(|(left, left_ends, _), (right, right_ends, _)| {
        (left, !left_ends).cmp(&(right, !right_ends))
    });
    let mut open: Option<(Vec<u8>, Data)> = None;
    for (bound, is_end, data) in bounds {
        if let Some((first, data)) = open.take() {
            set.elements.push(Element { first, last: before(&bound), data });
        }
        open = (!is_end).then_some((bound, data));
    }
    let to_the_end = |(first, data): (Vec<u8>, Data)| Element { last: vec![0xff; first.len()], first, data };
    set.elements.extend(open.map(to_the_end));
}

/// The key before this one.
fn before(key: &[u8]) -> Vec<u8> {
    let mut key = key.to_vec();
    for byte in key.iter_mut().rev() {
        let (less, borrows) = byte.overflowing_sub(1);
        *byte = less;
        if !borrows {
            break;
        }
    }
    key
}
