//! What of ours is in `/run/gybe` when the node is left: a kubeconfig at once, for it holds a token; the
//! rest when nobody can need it any more.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const KUBECONFIG: &str = "kubeconfig";
const REST: [&str; 5] = ["probe.json", ".probe.json.new", "probe.lock", "facts.sock", "log.sock"];

/// Removes it; what could not be removed, and why. What is not there is no failure.
#[must_use]
pub fn forget_run_directory(directory: &Path, finished: bool) -> Vec<(PathBuf, io::Error)> {
    let rest = if finished { REST.as_slice() } else { &[] };
    let names = [KUBECONFIG].iter().chain(rest);
    let removed = names.map(|name| directory.join(name)).map(|path| (fs::remove_file(&path), path));
    let failed = removed.filter_map(|(removed, path)| Some((path, removed.err()?)));
    let failed = failed.filter(|(_, why)| why.kind() != io::ErrorKind::NotFound).collect();
    if finished {
        // Somebody else's file keeps it.
        let _ = fs::remove_dir(directory);
    }
    failed
}
