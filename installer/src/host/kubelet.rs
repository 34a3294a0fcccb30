//! The kubelet's process, and the cgroup (v2) by which the kernel recognises its sockets.

use super::runtimes::processes::is_of_host;
use crate::mounts;
use crate::pod::cgroups::{cgroup_file, directory, processes, unified};
use gybe_netfilter::model::exemption::KubeletCgroup;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The names of processes that contain a kubelet: MicroK8s has it in `kubelite`, k3s in the others.
const NAMES: [&str; 5] = ["kubelet", "kubelite", "k3s", "k3s-server", "k3s-agent"];

/// Finds the cgroup of the kubelet in `/proc` below `root`, and its directory. None if there is no kubelet, its cgroup is
/// the root of all, or that cannot be seen from the calling thread's mounts and cgroup namespace.
pub(crate) fn cgroup(root: &Path) -> Option<(KubeletCgroup, PathBuf)> {
    let name = |process: &Path| fs::read_to_string(process.join("comm")).unwrap_or_default();
    let is_kubelet =
        |process: &PathBuf| NAMES.contains(&name(process).trim_end()) && is_of_host(root, process);
    let process = processes(&root.join("proc")).find(is_kubelet)?;
    let text = cgroup_file(&process)?;
    let path = unified(&text)?;
    let level = path.split('/').filter(|name| !name.is_empty()).count();
    let level = u32::try_from(level).ok().filter(|level| *level > 0)?;
    let directory = directory(path, &mounts::of_this_thread())?;
    let id = fs::metadata(&directory).ok()?.ino();
    Some((KubeletCgroup { level, id }, directory))
}
