//! The node's directories as an operator names them, or as this kind of node has them.

use crate::host::install::seen::Places;
use crate::host::platform::Platform;
use clap::Args;
use std::path::{Path, PathBuf};

/// The directories of the node.
#[derive(Debug, Args)]
pub(super) struct DirectoriesArg {
    /// Where the runtime looks for networks [default: this kind of node's, mostly /etc/cni/net.d]
    #[arg(long, value_name = "DIR")]
    conf_dir: Option<PathBuf>,
    /// Where the runtime looks for plugins [default: this kind of node's, mostly /opt/cni/bin]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Where libcni keeps what it knows of living sandboxes [default: /var/lib/cni/results]
    #[arg(long, value_name = "DIR")]
    results_dir: Option<PathBuf>,
    /// Where the host's root directory is seen, in a container
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

impl DirectoriesArg {
    /// The host's root.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// All three.
    pub(super) fn places(&self) -> Places {
        let usual = Platform::of_host(&self.root).places(&self.root);
        Places {
            conf: self.conf_dir.clone().unwrap_or(usual.conf),
            programs: self.bin_dir.clone().unwrap_or(usual.programs),
            results: self.results_dir.clone().unwrap_or(usual.results),
        }
    }
}

/// The directory this very program is in, where its companion stands too.
pub(super) fn of_this_program() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.to_owned())
}
