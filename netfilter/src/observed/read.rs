//! The rules of the calling thread's namespace, asked of the kernel: nf_tables over netlink, of one
//! generation, then iptables-legacy's tables.

use super::expr::{self, Data};
use super::{
    Age, Base, Chain, ChainKind, Element, Engine, Interface, Observed, Rule, Set, Statement, TableFamily,
    TableName, text,
};
use crate::ebpf;
use crate::iptables::{MARK, PREFIX};
use crate::netlink::attr::Attributes;
use crate::nft::dump::{Entry, Lister, Lists};
use crate::nft::uapi::*;
use crate::nft::{NftError, TABLE, socket::Connection};
use crate::redirection::RedirectionError;
use crate::routes::Rtnetlink;
use crate::xt::legacy::InetHook;
use nix::errno::Errno;

/// How often lists that changed while they were read are read again.
const ATTEMPTS: u32 = 5;

/// A namespace with more than this of one kind is not evaluated.
const MOST: usize = 20_000;

/// More sets than this are not asked for one by one.
const MOST_SETS: usize = 2_000;

/// No more elements than this are read of all sets together.
const MOST_ELEMENTS: usize = 100_000;

/// Reads all rules. What is there and cannot be evaluated is named in `opaque`.
pub(crate) fn read() -> Result<Observed, RedirectionError> {
    let mut observed = nf_tables().map_err(crate::backend::BackendError::from)?;
    super::legacy::add(&mut observed);
    mark_ours(&mut observed);
    let mut routing = Rtnetlink::open()?;
    observed.interfaces = interfaces(&mut routing)?;
    observed.add_programs(ebpf::of_this_namespace(&mut routing));
    Ok(observed)
}

fn interfaces(routing: &mut Rtnetlink) -> Result<Vec<Interface>, RedirectionError> {
    let (links, addresses) = (routing.links()?, routing.addresses()?);
    let with_addresses = |(index, name)| {
        let own = addresses.iter().filter(|address| address.index == index);
        Interface { index, name, addresses: own.map(|address| address.ip).collect() }
    };
    Ok(links.into_iter().map(with_addresses).collect())
}

fn nf_tables() -> Result<Observed, NftError> {
    let mut connection = match Connection::open() {
        Ok(connection) => connection,
        Err(error) if error.is_kernel_without() => return Ok(Observed::default()),
        Err(error) => return Err(error),
    };
    read_by(&mut |request, sequence| connection.0.list(request, sequence))
}

/// The same by a lister that answers a request of this sequence number.
pub(super) fn read_by(lister: &mut Lister<'_>) -> Result<Observed, NftError> {
    for _ in 0..ATTEMPTS {
        match attempt(&mut Lists::of_every_family(lister)) {
            Ok(Some(observed)) => return Ok(observed),
            Ok(None) => {}
            // No such subsystem (`nfnetlink_rcv_msg`).
            Err(NftError::List { source: Errno::EINVAL | Errno::EOPNOTSUPP, what: TABLES }) => {
                return Ok(Observed::default());
            }
            Err(error) => return Err(error),
        }
    }
    Err(NftError::Restless { attempts: ATTEMPTS })
}

const TABLES: &str = "the tables";

/// One attempt; `None` when something changed meanwhile.
fn attempt(lists: &mut Lists<'_, '_>) -> Result<Option<Observed>, NftError> {
    macro_rules! listed {
        ($asked:expr) => {
            match $asked? {
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
    let mut observed = Observed::default();
    for (what, entries) in [("tables", &tables), ("chains", &chains), ("rules", &rules), ("sets", &sets)] {
        let most = if what == "sets" { MOST_SETS } else { MOST };
        if entries.len() > most {
            observed
                .opaque
                .push(format!("{} {what}, more than the {most} that are evaluated", entries.len()));
            return Ok(Some(observed));
        }
    }
    let tables: Vec<Table> = tables.iter().filter_map(table).collect();
    let mut elements = 0_usize;
    for entry in &sets {
        let Some(mut set) = set(entry) else { continue };
        let raw = entry.attributes();
        let text = |kind| raw.get(kind).map(|name| name.text().to_vec()).unwrap_or_default();
        let (table, name) = (text(NFTA_SET_TABLE), text(NFTA_SET_NAME));
        fill(&mut set, &listed!(lists.elements_of(entry.family(), &table, &name)));
        elements = elements.saturating_add(set.elements.len());
        if elements > MOST_ELEMENTS {
            let all = format!("the sets have more than the {MOST_ELEMENTS} elements that are evaluated");
            return Ok(Some(Observed { opaque: vec![all], ..Observed::default() }));
        }
        observed.sets.push(set);
    }
    add_chains(&mut observed, &tables, &chains, &rules);
    observed.opaque.extend(flow_tables.iter().map(|entry| {
        let flow_table = entry.attributes();
        let name = |kind| flow_table.get(kind).map(|name| name.name()).unwrap_or_default();
        format!("flow table {} {}: packets of known connections pass no hook", name(1), name(2))
    }));
    Ok(Some(observed))
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

/// The name of a family that is not evaluated.
fn other_family(number: u8) -> &'static str {
    match number {
        3 => "arp",
        5 => "netdev",
        7 => "bridge",
        _ => "unknown",
    }
}

fn add_chains(observed: &mut Observed, tables: &[Table], chains: &[Entry], rules: &[Entry]) {
    for entry in chains {
        let chain = entry.attributes();
        let text = |kind| chain.get(kind).map(|name| name.name());
        let (Some(table), Some(name)) = (text(NFTA_CHAIN_TABLE), text(NFTA_CHAIN_NAME)) else { continue };
        let home = tables.iter().find(|one| one.family == entry.family() && one.name == table);
        if home.is_some_and(|home| home.is_dormant) {
            continue;
        }
        let handle = chain.get(NFTA_CHAIN_HANDLE).and_then(|handle| handle.be64());
        let is_of_one_piece = entry.family() == NFPROTO_INET && table == TABLE;
        let age = home.zip(handle).map(|(home, chain)| Age { table: home.handle, chain, is_of_one_piece });
        match (table_name(entry.family(), table.clone()), base(&chain)) {
            (Some(table), Placed::At(base)) => {
                observed.chains.push(Chain { table, name, base, rules: Vec::new(), age });
            }
            (None, Placed::At(None)) => {}
            (_, Placed::At(Some(_)) | Placed::Elsewhere) => {
                let uses = chain.get(NFTA_CHAIN_USE).and_then(|uses| uses.be32()).unwrap_or_default();
                let drops = chain.get(NFTA_CHAIN_POLICY).and_then(|policy| policy.be32()) == Some(NF_DROP);
                if uses > 0 || drops {
                    let family =
                        family(entry.family()).map_or(other_family(entry.family()), TableFamily::name);
                    observed.opaque.push(format!("chain {family} {table} {name} is not evaluated"));
                }
            }
        }
    }
    for entry in rules {
        add_rule(observed, entry);
    }
}

/// Where a chain hangs.
enum Placed {
    /// At a hook of the IP layer, or at none.
    At(Option<Base>),
    /// At a hook that is not evaluated.
    Elsewhere,
}

fn base(chain: &Attributes<'_>) -> Placed {
    let Some(hook) = chain.get(NFTA_CHAIN_HOOK) else { return Placed::At(None) };
    let hook = Attributes::of(hook.value);
    let number = |kind| hook.get(kind).and_then(|value| value.be32());
    let kind = match chain.get(NFTA_CHAIN_TYPE).map(|kind| kind.text().to_vec()).as_deref() {
        Some(b"filter") => ChainKind::Filter,
        Some(b"nat") => ChainKind::Nat,
        Some(b"route") => ChainKind::Route,
        _ => return Placed::Elsewhere,
    };
    let drops = chain.get(NFTA_CHAIN_POLICY).and_then(|policy| policy.be32()) == Some(NF_DROP);
    match (number(NFTA_HOOK_HOOKNUM).and_then(InetHook::numbered), number(NFTA_HOOK_PRIORITY)) {
        (Some(hook), Some(priority)) => {
            Placed::At(Some(Base { kind, hook, priority: priority.cast_signed(), drops }))
        }
        _ => Placed::Elsewhere,
    }
}

fn add_rule(observed: &mut Observed, entry: &Entry) {
    let rule = entry.attributes();
    let name = |kind| rule.get(kind).map(|name| name.name()).unwrap_or_default();
    let Some(table) = table_name(entry.family(), name(NFTA_RULE_TABLE)) else { return };
    let list = Attributes::of(rule.get(NFTA_RULE_EXPRESSIONS).map_or(&[], |list| list.value));
    let decode = |element: crate::netlink::attr::Attribute<'_>| expr::decode(element.value, entry.family());
    let statements: Vec<Statement> = list.map(|element| Statement::Expr(decode(element))).collect();
    let text = text::rule(&statements, |name| observed.set(&table, name));
    let comment = rule.get(NFTA_RULE_USERDATA).and_then(|userdata| match userdata.value {
        [0, length, text @ ..] => text.get(..usize::from(length.saturating_sub(1))),
        _ => None,
    });
    let comment = comment.map(|text| text.escape_ascii().to_string());
    let chain_name = name(NFTA_RULE_CHAIN);
    let home = observed.chains.iter_mut().find(|chain| chain.table == table && chain.name == chain_name);
    if let Some(home) = home {
        home.rules.push(Rule { text, comment, is_ours: false, statements });
    }
}

/// Which rules are ours: all of our table; in iptables' tables with our mark the chains of ours, and
/// what leads there.
fn mark_ours(observed: &mut Observed) {
    let marked = marked(observed);
    for chain in &mut observed.chains {
        let is_marked = marked.contains(&chain.table);
        let is_our_chain = chain.table.is_ours() || is_marked && chain.name.starts_with(PREFIX);
        for rule in &mut chain.rules {
            let leads_to_ours =
                || rule.statements.iter().any(|one| leads(one).is_some_and(|to| to.starts_with(PREFIX)));
            rule.is_ours = is_our_chain || is_marked && leads_to_ours();
        }
    }
}

/// The tables of iptables that have our mark.
fn marked(observed: &Observed) -> Vec<TableName> {
    observed.chains.iter().filter(|chain| chain.name == MARK).map(|chain| chain.table.clone()).collect()
}

impl TableName {
    /// Whether all of it is ours.
    pub(crate) fn is_ours(&self) -> bool {
        (self.engine, self.family, self.name.as_str()) == (Engine::NfTables, TableFamily::Inet, TABLE)
    }
}

impl Observed {
    /// What no policy makes of chains of ours, one sentence each: a chain without a rule, and one that no
    /// rule leads to.
    pub(crate) fn broken_chains(&self) -> Vec<String> {
        let marked = marked(self);
        let ours = self.chains.iter().filter(|chain| {
            chain.table.is_ours() || chain.name.starts_with(PREFIX) && marked.contains(&chain.table)
        });
        let is_reached = |chain: &Chain| {
            let mut others = self.chains.iter().filter(|other| other.table == chain.table);
            let rules = |other: &Chain| {
                let mut statements = other.rules.iter().flat_map(|rule| &rule.statements);
                statements.any(|one| leads(one) == Some(chain.name.as_str()))
            };
            chain.base.is_some() || others.any(rules)
        };
        ours.filter_map(|chain| match (chain.rules.is_empty(), is_reached(chain)) {
            (true, _) => Some(format!("chain {} of table {} has no rule", chain.name, chain.table)),
            (false, false) => Some(format!("no rule leads to chain {} of table {}", chain.name, chain.table)),
            (false, true) => None,
        })
        .collect()
    }
}

/// The chain that a statement leads to.
fn leads(statement: &Statement) -> Option<&str> {
    use crate::xt::XtTarget::{Goto, Jump};
    match statement {
        Statement::Expr(expr::Expr::Verdict(expr::Code::Jump(to) | expr::Code::Goto(to)))
        | Statement::Target(Jump(to) | Goto(to)) => Some(to),
        _ => None,
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

/// Puts the listed elements into the set.
fn fill(set: &mut Set, entries: &[Entry]) {
    // Where an interval ends and another starts, the end comes first.
    let mut bounds: Vec<(Vec<u8>, bool, Data)> = Vec::new();
    for entry in entries {
        let attributes = entry.attributes();
        let list = Attributes::of(attributes.get(NFTA_SET_ELEM_LIST_ELEMENTS).map_or(&[], |list| list.value));
        for element in list {
            let element = Attributes::of(element.value);
            let flags = element.get(NFTA_SET_ELEM_FLAGS).and_then(|flags| flags.be32()).unwrap_or_default();
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
