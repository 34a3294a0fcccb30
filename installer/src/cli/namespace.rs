//! The network namespace that an operator names: opens it, refuses a node's, reads its addresses.

use super::output::CommandError;
use crate::pod::own_namespace;
use clap::{Args, ValueEnum};
use gybe_netfilter::netns::{Netns, NetnsError};
use gybe_netfilter::policy::Families;
use std::net::IpAddr;
use std::path::{Display, Path, PathBuf};

/// The flag that names the namespace to read or to change.
#[derive(Debug, Args)]
pub(super) struct NetnsArg {
    /// The network namespace: a file like /run/netns/NAME or /proc/PID/ns/net
    #[arg(long, value_name = "PATH")]
    netns: PathBuf,
}

impl NetnsArg {
    /// Opens it for reading.
    pub(super) fn open(&self) -> Result<OpenNamespace<'_>, CommandError> {
        OpenNamespace::at(&self.netns)
    }

    /// Opens it for changing. Refuses the caller's own namespace and a node's.
    ///
    /// With a mistyped path every connection of a node would go to a port without a listener. The caller's own
    /// namespace is not always the node's (a pod with `hostPID`), so the node's is also recognised as the kernel's
    /// first namespace, and, if nodes are containers, as that of process 1.
    pub(super) fn open_to_change(&self) -> Result<OpenNamespace<'_>, CommandError> {
        let namespace = self.open()?;
        let here = Netns::of_this_thread().map_err(cannot_use)?;
        let refuse = |whose: &str| {
            let what = format!("{} is {whose}", self.netns.display());
            let hint = "name the pod's namespace, like /run/netns/NAME or /proc/PID/ns/net";
            Err(CommandError::new(what).with_hint(hint))
        };
        if namespace.netns.is_same_as(&here) {
            return refuse("the network namespace gybe itself runs in");
        }
        // If it is not readable, process 1 belongs to another user, and this user cannot enter its namespace either.
        if Netns::open(Path::new(OF_PROCESS_1)).is_ok_and(|first| namespace.netns.is_same_as(&first)) {
            return refuse("the network namespace of process 1, which is the node's");
        }
        if namespace.inside(|| own_namespace::is_the_first(Path::new(PROC)))? {
            return refuse("the network namespace this kernel booted with, which is the node's");
        }
        Ok(namespace)
    }
}

const PROC: &str = "/proc";
const OF_PROCESS_1: &str = "/proc/1/ns/net";

/// The flags of a command that works with and without a namespace.
#[derive(Debug, Args)]
pub(super) struct OptionalNetnsArgs {
    /// Trace through the rules of this network namespace; --policy and --pod then use its addresses and
    /// families
    #[arg(long, value_name = "PATH", conflicts_with = "families")]
    netns: Option<PathBuf>,
    #[command(flatten)]
    families: FamiliesArg,
}

impl OptionalNetnsArgs {
    /// Opens the namespace, if one is named.
    pub(super) fn open(&self) -> Result<Option<OpenNamespace<'_>>, CommandError> {
        self.netns.as_ref().map(|path| OpenNamespace::at(path)).transpose()
    }

    pub(super) fn families(&self) -> Option<Families> {
        self.families.families()
    }
}

/// The flag that chooses the families without a namespace.
#[derive(Debug, Args)]
pub(super) struct FamiliesArg {
    /// The families to redirect: v4 or dual [default: those of the policy, else v4]
    #[arg(long, value_name = "v4|dual", hide_possible_values = true)]
    families: Option<FamiliesValue>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FamiliesValue {
    V4,
    Dual,
}

impl FamiliesArg {
    pub(super) fn families(&self) -> Option<Families> {
        self.families.map(|families| match families {
            FamiliesValue::V4 => Families::V4Only,
            FamiliesValue::Dual => Families::V4AndV6,
        })
    }
}

/// An open namespace, and its path for messages.
#[derive(Debug)]
pub(super) struct OpenNamespace<'a> {
    netns: Netns,
    path: &'a Path,
}

impl<'a> OpenNamespace<'a> {
    pub(super) fn at(path: &'a Path) -> Result<Self, CommandError> {
        Ok(Self { netns: Netns::open(path).map_err(cannot_use)?, path })
    }

    pub(super) fn path(&self) -> Display<'_> {
        self.path.display()
    }

    /// Runs `work` inside the namespace.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, CommandError> {
        self.netns.run(work).map_err(cannot_use)
    }

    /// Returns its addresses, in the kernel's order.
    pub(super) fn addresses(&self) -> Result<Vec<IpAddr>, CommandError> {
        let cannot = |why| CommandError::hinted(format!("cannot read the addresses in {}", self.path()), why);
        self.inside(own_namespace::addresses)?.map_err(cannot)
    }
}

fn cannot_use(why: NetnsError) -> CommandError {
    CommandError::hinted("cannot use --netns", why)
}
