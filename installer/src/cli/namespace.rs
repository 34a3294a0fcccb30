//! The network namespace an operator names, and what is asked of it before any rule.

use super::answer::Failure;
use crate::pod::own_namespace;
use clap::{Args, ValueEnum};
use gybe_netfilter::netns::{Netns, NetnsError};
use gybe_netfilter::policy::Families;
use std::net::IpAddr;
use std::path::{Display, Path, PathBuf};

/// The namespace to look at or to change.
#[derive(Debug, Args)]
pub(super) struct NetnsArg {
    /// The network namespace: a file like /run/netns/NAME or /proc/PID/ns/net
    #[arg(long, value_name = "PATH")]
    netns: PathBuf,
}

impl NetnsArg {
    /// Opens it for looking.
    pub(super) fn open(&self) -> Result<Opened<'_>, Failure> {
        Opened::at(&self.netns)
    }

    /// Opens it for changing; the caller's own and a node's are refused.
    ///
    /// One slip of a path, and a node's every connection goes to a port where nobody listens. A pod
    /// that sees its node's processes (`hostPID`) has a namespace of its own, so the node's is looked
    /// for too: the kernel's first, and, where nodes are containers, that of process 1.
    pub(super) fn open_to_change(&self) -> Result<Opened<'_>, Failure> {
        let there = self.open()?;
        let here = Netns::of_this_thread().map_err(cannot_use)?;
        let refuse = |whose: &str| {
            let what = format!("{} is {whose}", self.netns.display());
            let hint = "name the pod's namespace, like /run/netns/NAME or /proc/PID/ns/net";
            Err(Failure::new(what).hinting(Some(hint.to_owned())))
        };
        if there.netns.is_same_as(&here) {
            return refuse("the network namespace gybe itself runs in");
        }
        // Not readable is another user's; then it takes more to enter it as well.
        if Netns::open(Path::new(OF_PROCESS_1)).is_ok_and(|first| there.netns.is_same_as(&first)) {
            return refuse("the network namespace of process 1, which is the node's");
        }
        if there.inside(|| own_namespace::is_the_first(Path::new(PROC)))? {
            return refuse("the network namespace this kernel booted with, which is the node's");
        }
        Ok(there)
    }
}

const PROC: &str = "/proc";
const OF_PROCESS_1: &str = "/proc/1/ns/net";

/// A namespace that need not be there, for questions that can do without.
#[derive(Debug, Args)]
pub(super) struct SomeNetns {
    /// Follow the connection through the rules of this network namespace; its addresses and families
    /// count for --policy and --pod too
    #[arg(long, value_name = "PATH", conflicts_with = "families")]
    netns: Option<PathBuf>,
    #[command(flatten)]
    families: FamiliesArg,
}

impl SomeNetns {
    /// The namespace, if one was named.
    pub(super) fn open(&self) -> Result<Option<Opened<'_>>, Failure> {
        self.netns.as_ref().map(|path| Opened::at(path)).transpose()
    }

    pub(super) fn families(&self) -> Option<Families> {
        self.families.families()
    }
}

/// Families where no namespace is at hand to decide them.
#[derive(Debug, Args)]
pub(super) struct FamiliesArg {
    /// Which families are redirected [default: what the wish says, else v4]
    #[arg(long, value_name = "v4|dual", hide_possible_values = true)]
    families: Option<FamiliesWord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FamiliesWord {
    V4,
    Dual,
}

impl FamiliesArg {
    pub(super) fn families(&self) -> Option<Families> {
        self.families.map(|word| match word {
            FamiliesWord::V4 => Families::V4Only,
            FamiliesWord::Dual => Families::V4AndV6,
        })
    }
}

/// A namespace that is open, and the path it has in messages.
#[derive(Debug)]
pub(super) struct Opened<'a> {
    netns: Netns,
    path: &'a Path,
}

impl<'a> Opened<'a> {
    pub(super) fn at(path: &'a Path) -> Result<Self, Failure> {
        Ok(Self { netns: Netns::open(path).map_err(cannot_use)?, path })
    }

    /// Its path, for messages.
    pub(super) fn path(&self) -> Display<'_> {
        self.path.display()
    }

    /// Does `work` inside it.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Failure> {
        self.netns.run(work).map_err(cannot_use)
    }

    /// Its addresses, in the kernel's order.
    pub(super) fn addresses(&self) -> Result<Vec<IpAddr>, Failure> {
        let cannot = |why| Failure::hinted(format!("cannot learn the addresses in {}", self.path()), why);
        self.inside(own_namespace::addresses)?.map_err(cannot)
    }
}

fn cannot_use(why: NetnsError) -> Failure {
    Failure::hinted("cannot use --netns", why)
}
