//! The errors of addresses, routing rules and routes, and their hints.

use super::entry::RoutingEntry;
use crate::kernel::netlink::reply::Unknown;
use crate::kernel::netlink::socket::SocketError;
use crate::model::Hint;
use crate::model::policy::ambient::ORIGINAL_SOURCE_TABLE;
use nix::errno::Errno;
use std::borrow::Cow;
use std::io;

/// The error of reading or changing addresses, routing rules and routes.
#[derive(Debug, thiserror::Error)]
pub enum RoutesError {
    /// The routing socket failed.
    #[error("cannot exchange messages with the kernel over rtnetlink")]
    Socket(#[from] SocketError),
    /// The kernel refused an entry.
    #[error("cannot add {entry}")]
    Add {
        /// The entry.
        entry: RoutingEntry,
        /// The kernel's error.
        source: Errno,
    },
    /// The entry needs IPv6, which is disabled.
    #[error("cannot add {entry}: IPv6 is disabled in this network namespace")]
    Ipv6Off {
        /// The entry.
        entry: RoutingEntry,
        /// The sysctl that disables it; `None` when the kernel has no IPv6.
        switch: Option<&'static str>,
        /// The kernel's error.
        source: Errno,
    },
    /// Whether IPv6 is disabled on `lo` cannot be read.
    #[error("cannot read {DISABLED_ON_LOOPBACK}")]
    Sysctl {
        /// The error of reading.
        source: io::Error,
    },
    /// Another entry with the same key exists.
    #[error("cannot add {entry}: another one with the same key exists")]
    Occupied {
        /// The entry.
        entry: RoutingEntry,
    },
    /// A rule with priority 0 precedes every other rule.
    #[error("cannot add {entry} before all other rules: one of them has priority 0")]
    NoPriority {
        /// The entry.
        entry: RoutingEntry,
    },
    /// The kernel refused a change in a namespace that Gybe created.
    #[error("the kernel refused the request")]
    Refused(#[source] Errno),
    /// An entry of Gybe could not be removed.
    #[error("cannot remove Gybe's {what}")]
    Remove {
        /// The kind of entry.
        what: &'static str,
        /// The kernel's error.
        source: Errno,
    },
    /// The kernel refused a list.
    #[error("the kernel does not list {what}")]
    List {
        /// The name of the list.
        what: &'static str,
        /// The kernel's error.
        source: Errno,
    },
    /// A list is longer than is read.
    #[error("the namespace has more than {most} {what}, which is more than Gybe reads")]
    TooLarge {
        /// The name of the list.
        what: &'static str,
        /// How many of its entries are read.
        most: usize,
    },
    /// A list changed at every attempt to read it.
    #[error("the {what} changed {attempts} times while they were read")]
    KeptChanging {
        /// The name of the list.
        what: &'static str,
        /// The number of attempts.
        attempts: u32,
    },
    /// The outcome of a request is unknown.
    #[error("the outcome of a request over rtnetlink is unknown")]
    OutcomeUnknown(#[source] Unknown),
}

impl RoutesError {
    /// The error for a refusal of `entry` in the calling thread's namespace.
    pub(super) fn refused(entry: RoutingEntry, source: Errno) -> Self {
        match source {
            // `EACCES` with disable_ipv6=1 (`ipv6_add_addr`), the others without the module.
            Errno::EACCES | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT if entry.is_ipv6() => {
                Self::Ipv6Off { entry, switch: switched_off(), source }
            }
            _ => Self::Add { entry, source },
        }
    }

    /// The kernel's errno, if there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Add { source, .. }
            | Self::Ipv6Off { source, .. }
            | Self::Refused(source)
            | Self::Remove { source, .. }
            | Self::List { source, .. } => Some(*source),
            _ => None,
        }
    }
}

impl Hint for RoutesError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Ipv6Off { switch, .. } => Some(match switch {
                Some(switch) => format!("{switch} is 1 in the pod: set it to 0, or set ipv6 to leave").into(),
                None => "the kernel has no IPv6: load the module ipv6, or set ipv6 to leave".into(),
            }),
            Self::Add { source: Errno::EPERM, .. } | Self::Remove { source: Errno::EPERM, .. } => {
                Some("it takes CAP_NET_ADMIN in the user namespace that owns this network namespace".into())
            }
            Self::Add { source: Errno::ENETDOWN, .. } => Some("the interface lo is down: bring it up first".into()),
            Self::Occupied {
                entry:
                    RoutingEntry::LocalRoute { table: ORIGINAL_SOURCE_TABLE, .. }
                    | RoutingEntry::MarkRule { table: ORIGINAL_SOURCE_TABLE, .. },
            } => Some(
                "remove what `ip route show table 100` or `ip -6 route show table 100` lists: the table of an ambient \
                 pod is always 100; a sidecar's policy can choose another"
                    .into(),
            ),
            Self::Occupied { .. } => Some("choose another route table".into()),
            Self::NoPriority { .. } => Some(
                "give the rule that `ip rule` shows at 0 and that leads to another table than local a higher priority"
                    .into(),
            ),
            _ => None,
        }
    }
}

const DISABLED_ON_LOOPBACK: &str = "/proc/sys/net/ipv6/conf/lo/disable_ipv6";

/// Reports whether IPv6 is enabled on `lo` in the calling thread's namespace.
pub(crate) fn has_ipv6_on_loopback() -> Result<bool, RoutesError> {
    is_enabled(std::fs::read_to_string(DISABLED_ON_LOOPBACK))
}

/// A kernel without IPv6 has no such sysctl.
pub(super) fn is_enabled(disable_ipv6: io::Result<String>) -> Result<bool, RoutesError> {
    match disable_ipv6 {
        Ok(value) => Ok(value.trim() == "0"),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(RoutesError::Sysctl { source }),
    }
}

/// The sysctl that disables IPv6 on `lo`: the one for all interfaces where it is set, because it sets each of them.
fn switched_off() -> Option<&'static str> {
    const SWITCHES: [(&str, &str); 2] = [
        ("net.ipv6.conf.all.disable_ipv6", "/proc/sys/net/ipv6/conf/all/disable_ipv6"),
        ("net.ipv6.conf.lo.disable_ipv6", DISABLED_ON_LOOPBACK),
    ];
    let is_set = |path: &str| std::fs::read_to_string(path).is_ok_and(|value| value.trim() != "0");
    SWITCHES.iter().find(|(_, path)| is_set(path)).map(|(name, _)| *name)
}
