//! The cgroups (v2) of the processes in a network namespace, and the eBPF programs that run for their sockets.
//!
//! A pod's cgroups are those of its processes: `/proc/PID/cgroup`.

use crate::mounts::{self, Mount};
use gybe_netfilter::inspect::ebpf::{self, Programs};
use gybe_netfilter::kernel::netns::{Identity, Netns};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

const PROC: &str = "/proc";

/// Longer than the cgroup file of any process.
const LONGEST: u64 = 1 << 16;

/// The cgroups of the processes in a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cgroups {
    /// Paths as `/proc/PID/cgroup` has them.
    paths: BTreeSet<String>,
    has_process: bool,
}

impl Cgroups {
    /// Adds the cgroup that the text of a process's `/proc/PID/cgroup` names. The line of cgroup v2 begins with
    /// `0::`; without that line cgroup v2 was never mounted, and no program is attached to it.
    pub fn add_process(&mut self, cgroup: &str) {
        self.has_process = true;
        self.paths.extend(unified(cgroup).map(str::to_owned));
    }

    /// Returns the cgroups of the processes in the calling thread's network namespace, except this process.
    #[must_use]
    pub fn of_this_namespace() -> Self {
        let mut cgroups = Self::default();
        let Ok(netns) = Netns::of_this_thread() else { return cgroups };
        let own = std::process::id().to_string();
        for process in processes(Path::new(PROC)).filter(|process| !process.ends_with(&own)) {
            if Identity::at(&process.join("ns/net")).is_ok_and(|identity| identity == netns.identity())
                && let Some(text) = cgroup_file(&process)
            {
                cgroups.add_process(&text);
            }
        }
        cgroups
    }

    /// Reads the eBPF programs that run for sockets of these cgroups.
    #[must_use]
    pub fn programs(&self) -> Programs {
        let not_read = |sentence: String| Programs { not_read: vec![sentence], ..Programs::default() };
        if !self.has_process {
            let why = "no process was found in this network namespace";
            return not_read(format!("eBPF programs of the pod's cgroups were not looked for: {why}"));
        }
        let mounts = mounts::of_this_thread();
        let mut all = Programs::default();
        for path in &self.paths {
            match directory(path, &mounts).map(File::open) {
                Some(Ok(cgroup)) => all.add(ebpf::of_cgroup(cgroup.as_fd())),
                // Its last process ended, and the runtime removed it.
                Some(Err(error)) if error.kind() == ErrorKind::NotFound => {}
                Some(Err(error)) => {
                    all.add(not_read(format!("eBPF programs of cgroup {path} could not be read: {error}")));
                }
                None => {
                    let why = "its directory is not mounted here";
                    all.add(not_read(format!("eBPF programs of cgroup {path} could not be read: {why}")));
                }
            }
        }
        all
    }
}

/// Returns the directories of the processes in `proc`.
pub fn processes(proc: &Path) -> impl Iterator<Item = PathBuf> {
    let is_number = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    entries.filter(move |entry| is_number(&entry.file_name())).map(|entry| entry.path())
}

/// Returns the text of a process's `cgroup` file; `None` when the process has ended.
pub fn cgroup_file(process: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(process.join("cgroup")).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the path of the cgroup of v2 in the text of a process's `cgroup` file.
pub(crate) fn unified(cgroup: &str) -> Option<&str> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"));
    // The cgroup of a process that ends may be gone before it.
    path.filter(|path| !path.ends_with(" (deleted)"))
}

/// Returns the directory of the cgroup `path` under the first mount of cgroup v2 that contains it. `path` and the root
/// of a mount are relative to the root of this process's cgroup namespace; a path with `..` is outside it.
pub(crate) fn directory(path: &str, mounts: &[Mount]) -> Option<PathBuf> {
    let mut directories = mounts
        .iter()
        .filter(|mount| mount.kind == "cgroup2")
        .filter_map(|mount| Some(mount.point.join(Path::new(path).strip_prefix(&mount.root).ok()?)));
    directories.next().filter(|_| !path.split('/').any(|part| part == ".."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::TestDir;

    #[test]
    fn a_cgroup_is_found_under_a_mount_that_shows_it() {
        let root = TestDir::new("cgroups").with_subdirectories(&["pod1/app"]);
        let mounts = format!(
            "26 25 0:24 / / rw - cgroup cgroup rw,pids\n27 25 0:25 /kubepods {} rw - cgroup2 cgroup2 rw\n",
            root.display()
        );
        let mounts = mounts::parse(mounts.as_bytes());
        assert_eq!(directory("/kubepods/pod1/app", &mounts), Some(root.join("pod1/app")));
        assert!(directory("/system.slice", &mounts).is_none(), "not under the root of the mount");
        assert!(directory("/../kubepods/pod1/app", &mounts).is_none(), "outside the cgroup namespace");
    }

    #[test]
    fn a_namespace_without_processes_is_reported_as_not_looked_at() {
        let [sentence] = &Cgroups::default().programs().not_read[..] else { panic!() };
        assert!(sentence.ends_with("no process was found in this network namespace"), "{sentence}");
    }

    #[test]
    fn the_path_of_cgroup_v2_is_taken_and_a_removed_cgroup_left_out() {
        let mut cgroups = Cgroups::default();
        cgroups.add_process("12:pids:/a\n0::/kubepods/pod1/app\n");
        cgroups.add_process("0::/kubepods/pod1/app\n");
        cgroups.add_process("0::/kubepods/pod1/init (deleted)\n");
        cgroups.add_process("12:pids:/only/v1\n");
        assert_eq!(cgroups.paths, BTreeSet::from(["/kubepods/pod1/app".to_owned()]));
    }
}
