//! The network namespace that an operator names: opens it, refuses a node's, reads its addresses.

use super::input::DirectoriesArg;
use super::output::CommandError;
use super::pods;
use crate::pod::own_namespace;
use crate::sandboxes::{ContainerId, Sandbox};
use clap::{Args, ValueEnum};
use gybe_netfilter::kernel::netns::{Netns, NetnsError};
use gybe_netfilter::model::policy::Families;
use gybe_plugin::args::PodRef;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::{Display, Path, PathBuf};

/// The flags that name a network namespace.
#[derive(Debug, Args)]
#[group(id = NAMESPACE, multiple = false)]
pub(super) struct NamespaceArgs {
    /// The network namespace: a file like /run/netns/NAME or /proc/PID/ns/net
    #[arg(long, value_name = "PATH")]
    netns: Option<PathBuf>,
    /// The network namespace of this process
    #[arg(long, value_name = "PID")]
    pid: Option<NonZeroU32>,
    /// The network namespace of this sandbox or container: its id, or as much of it as crictl prints
    #[arg(long, value_name = "ID")]
    container_id: Option<ContainerId>,
}

/// The group of these flags.
pub(super) const NAMESPACE: &str = "namespace";

impl NamespaceArgs {
    pub(super) fn is_given(&self) -> bool {
        self.netns.is_some() || self.pid.is_some() || self.container_id.is_some()
    }

    /// Opens the namespace for reading.
    pub(super) fn open(&self, directories: &DirectoriesArg) -> Result<OpenNamespace, CommandError> {
        let path = match (&self.netns, self.pid, &self.container_id) {
            (Some(path), ..) => path.clone(),
            (None, Some(pid), _) => directories.root().join(format!("proc/{pid}/ns/net")),
            (None, None, Some(id)) => {
                let is_meant = |sandbox: &Sandbox| sandbox.has_container(id);
                pods::network_namespace(directories, &format!("container {id}"), is_meant)?
            }
            (None, None, None) => return Err(CommandError::new("no network namespace is named")),
        };
        OpenNamespace::at(path)
    }
}

/// The flags that name a network namespace or the pod that it belongs to.
#[derive(Debug, Args)]
#[command(mut_group(NAMESPACE, |group| group.required(true)))]
pub(super) struct PodNamespaceArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// The network namespace of this pod
    #[arg(long, value_name = "NS/NAME", group = NAMESPACE, value_parser = pods::parse_pod)]
    pod: Option<PodRef>,
    #[command(flatten)]
    directories: DirectoriesArg,
}

impl PodNamespaceArgs {
    pub(super) fn directories(&self) -> &DirectoriesArg {
        &self.directories
    }

    /// Opens the namespace for reading.
    pub(super) fn open(&self) -> Result<OpenNamespace, CommandError> {
        let Some(pod) = &self.pod else { return self.namespace.open(&self.directories) };
        let is_meant = |sandbox: &Sandbox| sandbox.is_of(pod);
        OpenNamespace::at(pods::network_namespace(&self.directories, &format!("pod {pod}"), is_meant)?)
    }
}

const PROC: &str = "/proc";
const OF_PROCESS_1: &str = "/proc/1/ns/net";

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
pub(super) struct OpenNamespace {
    netns: Netns,
    path: PathBuf,
}

impl OpenNamespace {
    pub(super) fn at(path: PathBuf) -> Result<Self, CommandError> {
        Ok(Self { netns: Netns::open(&path).map_err(cannot_use)?, path })
    }

    pub(super) fn path(&self) -> Display<'_> {
        self.path.display()
    }

    /// Refuses the caller's own namespace and a node's, for a command that changes the namespace.
    ///
    /// With a mistyped path every connection of a node would go to a port without a listener. The caller's own
    /// namespace is not always the node's (a pod with `hostPID`), so the node's is also recognised as the kernel's
    /// first namespace, and, if nodes are containers, as that of process 1.
    pub(super) fn not_a_nodes(self) -> Result<Self, CommandError> {
        let here = Netns::of_this_thread().map_err(cannot_use)?;
        let refuse = |whose: &str| {
            let what = format!("{} is {whose}", self.path());
            let hint = "name the pod's namespace, like /run/netns/NAME or /proc/PID/ns/net";
            Err(CommandError::new(what).with_hint(hint))
        };
        if self.netns.is_same_as(&here) {
            return refuse("the network namespace gybe itself runs in");
        }
        // If it is not readable, process 1 belongs to another user, and this user cannot enter its namespace either.
        if Netns::open(Path::new(OF_PROCESS_1)).is_ok_and(|first| self.netns.is_same_as(&first)) {
            return refuse("the network namespace of process 1, which is the node's");
        }
        if self.inside(|| own_namespace::is_the_first(Path::new(PROC)))? {
            return refuse("the network namespace this kernel booted with, which is the node's");
        }
        Ok(self)
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
    CommandError::hinted("cannot use the network namespace", why)
}
