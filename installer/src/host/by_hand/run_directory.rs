//! Cleans `/run/gybe` on uninstall: a kubeconfig at once, because it holds a token; the rest when no program
//! can need it any more. The sockets of a running agent stay.

use crate::host::istio_cni::is_served;
use crate::host::settings::{FACTS_SOCKET, KUBECONFIG, KUBECONFIG_TEMPORARY};
use gybe_plugin::conf::LOG_SOCKET;
use gybe_plugin::probe_cache::FILES;
use nix::sys::socket::SockType;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const TOKENS: [&str; 2] = [KUBECONFIG, KUBECONFIG_TEMPORARY];
const SOCKETS: [(&str, SockType); 2] = [(FACTS_SOCKET, SockType::Stream), (LOG_SOCKET, SockType::Datagram)];

/// Removes the files, and returns those that could not be removed. A missing file is no failure.
#[must_use]
pub fn forget_run_directory(directory: &Path, finished: bool) -> Vec<(PathBuf, io::Error)> {
    let silent = SOCKETS.iter().filter(|(name, kind)| !is_served(&directory.join(name), *kind));
    let rest = silent.map(|(name, _)| name).chain(&FILES).filter(|_| finished);
    let names = TOKENS.iter().chain(rest);
    let removed = names.map(|name| directory.join(name)).map(|path| (fs::remove_file(&path), path));
    let failed = removed.filter_map(|(removed, path)| Some((path, removed.err()?)));
    let failed = failed.filter(|(_, why)| why.kind() != io::ErrorKind::NotFound).collect();
    if finished {
        // A file of another owner keeps the directory.
        let _ = fs::remove_dir(directory);
    }
    failed
}
