//! What of ours is in `/run/gybe` when the node is left: a kubeconfig at once, for it holds a token; the
//! rest when nobody can need it any more.

use crate::node::KUBECONFIG_NEW;
use crate::settings::{FACTS_SOCKET, KUBECONFIG};
use gybe_plugin::conf::LOG_SOCKET;
use gybe_plugin::probe_cache::FILES;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const TOKENS: [&str; 2] = [KUBECONFIG, KUBECONFIG_NEW];
const SOCKETS: [&str; 2] = [FACTS_SOCKET, LOG_SOCKET];

/// Removes it; what could not be removed, and why. What is not there is no failure.
#[must_use]
pub fn forget_run_directory(directory: &Path, finished: bool) -> Vec<(PathBuf, io::Error)> {
    let rest = SOCKETS.iter().chain(&FILES).filter(|_| finished);
    let names = TOKENS.iter().chain(rest);
    let removed = names.map(|name| directory.join(name)).map(|path| (fs::remove_file(&path), path));
    let failed = removed.filter_map(|(removed, path)| Some((path, removed.err()?)));
    let failed = failed.filter(|(_, why)| why.kind() != io::ErrorKind::NotFound).collect();
    if finished {
        // Somebody else's file keeps it.
        let _ = fs::remove_dir(directory);
    }
    failed
}
