//! Why a route, a routing rule or an address could not be set, and what would help.

use super::entry::Entry;
use crate::hint::Hint;
use crate::netlink::reply::Unknown;
use crate::netlink::socket::Failure;
use nix::errno::Errno;
use std::borrow::Cow;

/// A failure of routing.
#[derive(Debug, thiserror::Error)]
pub enum RoutesError {
    /// Nothing went out, or nothing came back.
    #[error("cannot talk to the kernel's routing")]
    Talk {
        /// Why.
        #[from]
        source: Failure,
    },
    /// The kernel would not add it.
    #[error("cannot add {entry}")]
    Add {
        /// What was to be added.
        entry: Entry,
        /// Why not.
        source: Errno,
    },
    /// IPv6 is asked for and switched off.
    #[error("cannot add {entry}: IPv6 is off in this network namespace")]
    Ipv6Off {
        /// What was to be added.
        entry: Entry,
        /// The sysctl that switches it off; `None` when the kernel has no IPv6.
        switch: Option<&'static str>,
        /// How the kernel said it.
        source: Errno,
    },
    /// Something else is in its place.
    #[error("cannot add {entry}: something else is in its place")]
    Occupied {
        /// What was to be added.
        entry: Entry,
    },
    /// A rule with priority 0 decides before any other.
    #[error("cannot add {entry} ahead of all other rules: one of them has priority 0")]
    NoPlace {
        /// What was to be added.
        entry: Entry,
    },
    /// The loopback interface of a namespace of our own making is not as it should be.
    #[error("cannot set up the loopback interface")]
    Loopback {
        /// Why not.
        source: Errno,
    },
    /// Something of ours could not be removed.
    #[error("cannot remove our {what}")]
    Remove {
        /// What kind of thing.
        what: &'static str,
        /// Why not.
        source: Errno,
    },
    /// The kernel would not list what is there.
    #[error("the kernel does not list {what}")]
    List {
        /// What was asked for.
        what: &'static str,
        /// Why.
        source: Errno,
    },
    /// A list changed every time it was read.
    #[error("the {what} changed {attempts} times while they were read")]
    Restless {
        /// What was asked for.
        what: &'static str,
        /// How often.
        attempts: u32,
    },
    /// It is not known what became of a request.
    #[error("cannot tell what became of a request to the kernel's routing")]
    Unsettled {
        /// Why not.
        source: Unknown,
    },
}

impl RoutesError {
    /// The kernel refused to add `entry`, in the calling thread's namespace.
    pub(super) fn refused(entry: Entry, source: Errno) -> Self {
        match source {
            // `EACCES` with disable_ipv6=1 (`ipv6_add_addr`), the others without the module.
            Errno::EACCES | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT if entry.is_ipv6() => {
                Self::Ipv6Off { entry, switch: switched_off(), source }
            }
            _ => Self::Add { entry, source },
        }
    }

    /// The kernel's number for it, where there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Add { source, .. }
            | Self::Ipv6Off { source, .. }
            | Self::Loopback { source }
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
                Some(switch) => format!("{switch} is 1 in the pod: set it to 0, or leave IPv6 alone").into(),
                None => "the kernel has no IPv6: load the module ipv6, or leave IPv6 alone".into(),
            }),
            Self::Add { source: Errno::EPERM, .. } | Self::Remove { source: Errno::EPERM, .. } => {
                Some("it takes CAP_NET_ADMIN in the user namespace that owns this network namespace".into())
            }
            Self::Add { source: Errno::ENETDOWN, .. } => Some("the interface lo is down: bring it up first".into()),
            Self::Occupied { .. } => Some("choose another route table".into()),
            Self::NoPlace { .. } => Some(
                "give the rule that `ip rule` shows at 0 and that leads to another table than local a higher priority"
                    .into(),
            ),
            _ => None,
        }
    }
}

/// The sysctl that keeps addresses from `lo`. That for all interfaces sets each of them, so it is named
/// where it is set.
fn switched_off() -> Option<&'static str> {
    const SWITCHES: [(&str, &str); 2] = [
        ("net.ipv6.conf.all.disable_ipv6", "/proc/sys/net/ipv6/conf/all/disable_ipv6"),
        ("net.ipv6.conf.lo.disable_ipv6", "/proc/sys/net/ipv6/conf/lo/disable_ipv6"),
    ];
    let is_set = |path: &str| std::fs::read_to_string(path).is_ok_and(|value| value.trim() != "0");
    SWITCHES.iter().find(|(_, path)| is_set(path)).map(|(name, _)| *name)
}
