//! Facts from the API server, for the operator who names a kubeconfig: the plugin holds no client
//! for it, and would run `gybe pod-facts`. No `gybe` has that command yet, so this source refuses.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Why the API server is not asked.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The file cannot be read.
    #[error("kubeconfig {} cannot be read", .path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Nobody could read it for us.
    #[error("kubeconfig {} is set, but this release has no gybe pod-facts to ask the API server with", .0.display())]
    NoProgram(PathBuf),
}

/// Looks at the file, and refuses.
pub(super) fn ask(path: &Path) -> KubeconfigError {
    // Without O_NONBLOCK the open of a FIFO waits for a writer.
    let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(_) => KubeconfigError::NoProgram(path.to_owned()),
        Err(source) => KubeconfigError::Read { path: path.to_owned(), source },
    }
}
