//! What stands beside ours: in iptables-legacy, for whoever asks before writing, and which tables
//! there are to be read at all. The kernel is asked that, not a program: it is quicker, and legacy
//! tables are made by whoever first looks at them.

use super::Iptables;
use super::error::IptablesError;
use super::layout::{FAMILIES, TABLES};
use super::programs::Variant;
use crate::backend::Foreign;
use crate::nft::chains::ChainPlace;
use crate::nft::uapi::{NFPROTO_IPV4, NFPROTO_IPV6};
use crate::ruleset::{Family, Stage};
use nix::unistd::{getpid, gettid};
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// What one family's tables show to somebody who wants to write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Have they rules of ours?
    pub(crate) ours: bool,
    /// Other meshes' redirects.
    pub(crate) foreign: Vec<Foreign>,
    /// Does somebody else translate destinations there?
    pub(crate) translates: bool,
}

/// What iptables-legacy has in this namespace. One without such tables costs two looks into `/proc`,
/// and runs no program.
pub(crate) fn legacy() -> Result<Vec<(Family, Found)>, IptablesError> {
    // A list that cannot be read: what is the matter the program shall say.
    let worth_asking = |family: &Family| legacy_tables(*family).map_or(true, |tables| !tables.is_empty());
    let families: Vec<Family> = FAMILIES.into_iter().filter(worth_asking).collect();
    if families.is_empty() {
        return Ok(Vec::new());
    }
    let Ok(iptables) = Iptables::find(Variant::Legacy) else {
        // Ours are written by programs of this node, so none of ours are there. Others' may be.
        let translates = |family| legacy_tables(family).is_ok_and(|tables| tables.contains(&Stage::Nat));
        let unread = |family| (family, Found { translates: translates(family), ..Found::default() });
        return Ok(families.into_iter().map(unread).collect());
    };
    iptables.at_work(|session| {
        families.into_iter().map(|family| Ok((family, session.read(family)?.found(family)))).collect()
    })
}

/// Has the kernel iptables-legacy's tables at hand, so that asking for one loads nothing?
pub(crate) fn legacy_is_loaded() -> bool {
    list_of(Family::V4).exists()
}

/// Where the kernel names the tables of this thread's namespace. `/proc/net` is that of the thread
/// group's leader; who is the leader looks there, because the way over `thread-self` is half as long
/// again, and a process that has one errand goes it for the first time.
fn list_of(family: Family) -> PathBuf {
    let process = if gettid() == getpid() { "self" } else { "thread-self" };
    let list = match family {
        Family::V4 => "ip_tables_names",
        Family::V6 => "ip6_tables_names",
    };
    PathBuf::from(format!("/proc/{process}/net/{list}"))
}

/// The tables of iptables-legacy that this namespace has, of those that we write.
pub(super) fn legacy_tables(family: Family) -> io::Result<Vec<Stage>> {
    match std::fs::read_to_string(list_of(family)) {
        Ok(names) => {
            Ok(TABLES.into_iter().filter(|stage| names.lines().any(|name| stage.table() == name)).collect())
        }
        // The kernel has no such tables at all.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Has iptables-nft tables of `family` to show, so that it is worth asking?
pub(super) fn has_nft_tables(family: Family, chains: &[ChainPlace]) -> bool {
    let number = match family {
        Family::V4 => NFPROTO_IPV4,
        Family::V6 => NFPROTO_IPV6,
    };
    let is_one = |table: &str| TABLES.iter().any(|stage| stage.table() == table);
    chains.iter().any(|place| place.family == number && is_one(&place.table))
}
