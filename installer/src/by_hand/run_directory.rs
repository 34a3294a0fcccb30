//! What of ours is in `/run/gybe` when the node is left: a kubeconfig at once, for it holds a token; the
//! rest when nobody can need it any more. The sockets of an agent that lives are its own.

use crate::node::is_served;
use nix::sys::socket::SockType;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const KUBECONFIG: &str = "kubeconfig";
const REST: [&str; 3] = ["probe.json", ".probe.json.new", "probe.lock"];
const SOCKETS: [(&str, SockType); 2] = [("facts.sock", SockType::Stream), ("log.sock", SockType::Datagram)];

/// Removes it; what could not be removed, and why. What is not there is no failure.
#[must_use]
pub fn forget_run_directory(directory: &Path, finished: bool) -> Vec<(PathBuf, io::Error)> {
    let rest = if finished { REST.as_slice() } else { &[] };
    let sockets = if finished { SOCKETS.as_slice() } else { &[] };
    let silent = sockets.iter().filter(|(name, kind)| !is_served(&directory.join(name), *kind));
    let names = [KUBECONFIG].iter().chain(rest).chain(silent.map(|(name, _)| name));
    let removed = names.map(|name| directory.join(name)).map(|path| (fs::remove_file(&path), path));
    let failed = removed.filter_map(|(removed, path)| Some((path, removed.err()?)));
    let failed = failed.filter(|(_, why)| why.kind() != io::ErrorKind::NotFound).collect();
    if finished {
        // Somebody else's file keeps it.
        let _ = fs::remove_dir(directory);
    }
    failed
}
