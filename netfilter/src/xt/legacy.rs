//! The tables of iptables-legacy in the calling thread's network namespace, read with getsockopt.
//!
//! A table is read only where the kernel lists it: the kernel creates a table for the first caller that requests it
//! (`xt_find_table_lock`, net/netfilter/x_tables.c, v6.18), and reading must change nothing.
//! No program is run, and no lock is taken: one call returns a whole table.

mod entries;
mod sockopt;
mod text;

use super::{XtMatch, XtTarget};
use crate::model::Hint;
use crate::model::ruleset::{Family, Hook, Is};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::{Uid, getpid, gettid, setfsuid};
use std::borrow::Cow;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A table with all its chains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegacyTable {
    /// The family it is of.
    pub family: Family,
    /// `nat`, `mangle`, `raw`, `filter` or `security`.
    pub name: String,
    /// The chains in the kernel's order: built-in chains first.
    pub chains: Vec<LegacyChain>,
}

/// A chain of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegacyChain {
    /// Its name. What is not a printable ASCII letter is escaped.
    pub name: String,
    /// Hook and policy of a built-in chain.
    pub built_in: Option<BuiltIn>,
    /// Its rules, first to last.
    pub rules: Vec<LegacyRule>,
}

/// The hook of a built-in chain, and its policy for packets that no rule decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltIn {
    /// The hook.
    pub hook: Hook,
    /// The policy.
    pub policy: XtTarget,
    /// The counters of the policy.
    pub counted: Counters,
}

/// A rule of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegacyRule {
    /// Tests of the packet's IP header and interfaces.
    pub header: HeaderTest,
    /// The other tests.
    pub matches: Vec<XtMatch>,
    /// The target for a packet that passes all tests; `None` for a rule that only counts.
    pub target: Option<XtTarget>,
    /// The counters of the rule.
    pub counted: Counters,
}

/// The counters of a rule or a policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// `struct ipt_ip`, `struct ip6t_ip6`; `None` is passed by every packet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderTest {
    /// The source address.
    pub source: Option<AddressTest>,
    /// The destination address.
    pub destination: Option<AddressTest>,
    /// The interface that the packet arrived by.
    pub in_interface: Option<InterfaceTest>,
    /// The interface that the packet leaves by.
    pub out_interface: Option<InterfaceTest>,
    /// The transport protocol's number.
    pub protocol: Option<(Is, u16)>,
    /// A fragment that is not the first.
    pub fragment: Option<Is>,
}

/// An address, masked, equals another or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressTest {
    /// Equal or not.
    pub is: Is,
    /// The other address.
    pub address: IpAddr,
    /// The bits that count.
    pub mask: IpAddr,
}

/// An interface has a name or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceTest {
    /// That name or another.
    pub is: Is,
    /// The name.
    pub name: String,
    /// Every name that begins so.
    pub is_prefix: bool,
}

/// Why a table could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LegacyError {
    /// The kernel's list of tables cannot be read.
    #[error("cannot read {}", path.display())]
    List {
        /// The list.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused the table.
    #[error("cannot read table {table} of {}tables-legacy", family.name())]
    Refused {
        /// Of which family.
        family: Family,
        /// Which table.
        table: String,
        /// Why.
        source: Errno,
    },
    /// The table, with those before it, is larger than Gybe reads.
    #[error(
        "table {table} of {}tables-legacy has {bytes} bytes of rules: of all its tables {LONGEST} are read",
        family.name()
    )]
    TooLarge {
        /// Of which family.
        family: Family,
        /// Which table.
        table: String,
        /// Its size.
        bytes: u32,
    },
    /// The table's entries make no chains.
    #[error("table {table} of {}tables-legacy has entries that iptables does not write", family.name())]
    Malformed {
        /// Of which family.
        family: Family,
        /// Which table.
        table: String,
    },
}

impl Hint for LegacyError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Refused { source: Errno::EPERM, .. } => {
                Some("it takes CAP_NET_ADMIN in the user namespace that owns the network namespace".into())
            }
            Self::Refused { source: Errno::EAGAIN, .. } => {
                Some("another program keeps changing the table: try again".into())
            }
            Self::TooLarge { .. } => Some("remove rules that nothing needs from the namespace".into()),
            Self::Malformed { .. } => Some("find the program that wrote the table, and restore it".into()),
            Self::List { .. } | Self::Refused { .. } => None,
        }
    }
}

/// The bytes of all tables of a family: some 40,000 rules. Gybe's own rules are 4 MB at most, and mostly a few kilobytes.
const LONGEST: u32 = 8 << 20;

/// How often a table is read again when it changed between the reading of its size and of its entries.
const ATTEMPTS: usize = 10;

/// Reports whether the kernel has loaded the legacy tables, so that reading one loads no module.
pub(crate) fn is_loaded() -> bool {
    list_of(Family::V4).exists()
}

/// The kernel's list of the tables of this thread's namespace. `/proc/net` is that of the thread group's leader; the
/// leader reads it there, because the lookup of `thread-self` takes half as long again and is not cached in a process
/// with one task.
fn list_of(family: Family) -> PathBuf {
    let process = if gettid() == getpid() { "self" } else { "thread-self" };
    PathBuf::from(format!("/proc/{process}/net/{}_tables_names", family.name()))
}

/// The names of the tables of this namespace; none where the kernel has no legacy tables at all.
///
/// # Errors
/// When the kernel's list cannot be read.
pub fn table_names(family: Family) -> Result<Vec<String>, LegacyError> {
    let path = list_of(family);
    let read = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => read_as_owner(&path),
        read => read,
    };
    match read {
        Ok(names) => Ok(names.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(LegacyError::List { path, source }),
    }
}

/// Reads a file as its owner, which takes CAP_SETUID. The list belongs to root of the user namespace that owns the
/// network namespace (`proc_net_ns_init`, fs/proc/proc_net.c, v6.18): with `hostUsers: false` to a user of the host
/// that is not root, and root needs CAP_DAC_OVERRIDE or this.
fn read_as_owner(path: &Path) -> io::Result<String> {
    let owner = Uid::from_raw(std::fs::metadata(path)?.uid());
    // Of this thread alone, and only for files.
    let before = setfsuid(owner);
    let read = std::fs::read_to_string(path);
    setfsuid(before);
    read
}

/// All tables of this namespace.
///
/// # Errors
/// When one of them cannot be read.
pub fn tables(family: Family) -> Result<Vec<LegacyTable>, LegacyError> {
    let mut left = LONGEST;
    let read = |name: &String| {
        table_up_to(left, family, name).map(|(table, bytes)| {
            left = left.saturating_sub(bytes);
            table
        })
    };
    table_names(family)?.iter().map(read).collect()
}

/// Parses the replies to `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES` (without its head): the chains, or `None` when the
/// entries are not what iptables writes. Pure.
pub fn parse(family: Family, info: &[u8], entries: &[u8]) -> Option<Vec<LegacyChain>> {
    entries::chains(family, &sockopt::Info::read(info)?, entries)
}

/// The table `name`, which must be one of [`table_names`].
pub(crate) fn table(family: Family, name: &str) -> Result<LegacyTable, LegacyError> {
    table_up_to(LONGEST, family, name).map(|(table, _)| table)
}

/// The table and its size, when it has at most so many bytes.
fn table_up_to(most: u32, family: Family, name: &str) -> Result<(LegacyTable, u32), LegacyError> {
    let refused = |source| LegacyError::Refused { family, table: name.to_owned(), source };
    let address_family = match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    let socket = socket(address_family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).map_err(refused)?;
    let mut attempts = 1..=ATTEMPTS;
    loop {
        let info = sockopt::info(socket.as_fd(), family, name).map_err(refused)?;
        if info.size > most {
            return Err(LegacyError::TooLarge { family, table: name.to_owned(), bytes: info.size });
        }
        match sockopt::entries(socket.as_fd(), family, name, info.size) {
            Ok(bytes) => {
                let chains = entries::chains(family, &info, &bytes);
                let chains = chains.ok_or_else(|| LegacyError::Malformed { family, table: name.to_owned() });
                return Ok((LegacyTable { family, name: name.to_owned(), chains: chains? }, info.size));
            }
            Err(Errno::EAGAIN) if attempts.next().is_some() => {}
            Err(source) => return Err(refused(source)),
        }
    }
}
