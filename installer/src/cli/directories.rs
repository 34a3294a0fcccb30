//! The flags that name the node's directories, and their defaults.

use super::output::CommandError;
use crate::error::RUN_AS_ROOT;
use crate::host::observe::NodeDirectories;
use crate::host::platform::Platform;
use crate::sandboxes::{HostPaths, SandboxList, find};
use clap::Args;
use nix::unistd::geteuid;
use std::path::{Path, PathBuf};

/// The directories of the node. Defaults depend on the kind of node (`platform`).
#[derive(Debug, Clone, Args)]
pub(super) struct DirectoriesArg {
    /// The runtime's directory of network configurations [default: this kind of node's, usually /etc/cni/net.d]
    #[arg(long, value_name = "DIR")]
    conf_dir: Option<PathBuf>,
    /// The runtime's directory of plugins [default: this kind of node's, usually /opt/cni/bin]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// The directory in which libcni caches the results of running sandboxes [default: /var/lib/cni/results]
    #[arg(long, value_name = "DIR")]
    results_dir: Option<PathBuf>,
    /// The host's root directory as mounted in this container
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

impl DirectoriesArg {
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Lists the sandboxes of this node.
    ///
    /// # Errors
    /// As [`complete`].
    pub(super) fn sandboxes(&self) -> Result<SandboxList, CommandError> {
        complete(find(&HostPaths { results: self.node_directories().results, root: self.root.clone() }))
    }

    pub(super) fn node_directories(&self) -> NodeDirectories {
        let defaults = Platform::of_host(&self.root).node_directories(&self.root);
        NodeDirectories {
            conf: self.conf_dir.clone().unwrap_or(defaults.conf),
            programs: self.bin_dir.clone().unwrap_or(defaults.programs),
            results: self.results_dir.clone().unwrap_or(defaults.results),
        }
    }
}

/// The directory of the running program, which also contains gybe-cni.
pub(super) fn of_this_program() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.to_owned())
}

/// Returns the list of sandboxes if it is complete, or as complete as root can read it.
///
/// # Errors
/// When a part cannot be read and this process does not run as root.
pub(super) fn complete(list: SandboxList) -> Result<SandboxList, CommandError> {
    if list.unreadable.is_empty() || geteuid().is_root() {
        return Ok(list);
    }
    let what = format!("cannot list the sandboxes of this node: {}", list.unreadable.join("; "));
    Err(CommandError::new(what).with_hint(RUN_AS_ROOT))
}
