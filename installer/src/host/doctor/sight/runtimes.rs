//! The container runtimes that run here: whether they still watch the conf directory (a watch is on an
//! inode, and a directory made anew has another, F13), and whether they read a network's own directory.

use crate::host::install::loads::DropIns;
use crate::host::runtime_config::{Configured, configured};
use crate::pod::inside::holds;
use nix::sys::stat::stat;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

/// More than any node has.
const MOST_PROCESSES: usize = 65_536;
/// More runtimes than any node has.
const MOST_RUNTIMES: usize = 8;
/// A runtime's program is never larger, in bytes: they have some 50 MB.
const LARGEST_PROGRAM: u64 = 256 << 20;

/// A key of conf files, which libcni has known for as long as it has read drop-ins: since 1.3. Its
/// name is in the program, whatever distribution built it and whatever version it calls itself; in
/// Debian's containerd 1.6 and 1.7 it is not, in 2.1 it is.
const KEY: &[u8] = b"loadOnlyInlinedPlugins";

/// A runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSeen {
    /// `containerd` or `crio`.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// What it watches.
    pub watches: Watches,
    /// What becomes of a network's drop-ins; none where its program cannot be read, or nobody asked.
    pub drop_ins: Option<DropIns>,
    /// The directories of the host that its configuration names.
    pub configured: Configured,
}

/// Whether somebody wants to know what becomes of drop-ins: programs of 50 MB are read for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Ours is one.
    DropIns,
    /// There is none of ours.
    Nothing,
}

/// What a runtime watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watches {
    /// The conf directory that is there now.
    ConfDirectory,
    /// Other directories, and not this one.
    Others,
    /// It cannot be told.
    Unknown,
}

/// The host's runtimes that `/proc` below `root` shows: in a container without the host's processes, none.
pub(crate) fn running(root: &Path, conf: &Path, ask: Ask) -> Vec<RuntimeSeen> {
    let Ok(processes) = fs::read_dir(root.join("proc")) else { return Vec::new() };
    let pids = processes.flatten().take(MOST_PROCESSES);
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| runtime(root, (pid, conf), ask)).take(MOST_RUNTIMES).collect()
}

fn runtime(root: &Path, (pid, conf): (u32, &Path), ask: Ask) -> Option<RuntimeSeen> {
    let process = root.join("proc").join(pid.to_string());
    let name = fs::read_to_string(process.join("comm")).ok()?.trim().to_owned();
    if !matches!(name.as_str(), "containerd" | "crio") || !is_of_host(root, &process) {
        return None;
    }
    let watches = match (inodes(&process), stat(conf)) {
        (Some(inodes), Ok(stat)) if inodes.contains(&stat.st_ino) => Watches::ConfDirectory,
        (Some(_), Ok(_)) => Watches::Others,
        _ => Watches::Unknown,
    };
    let drop_ins = if ask == Ask::DropIns { drop_ins(&process.join("exe")) } else { None };
    let configured = configured(root, &name, &arguments(&process));
    Some(RuntimeSeen { name, pid, watches, drop_ins, configured })
}

/// Whether root of the host runs it, and no container: a process chooses its name itself (prctl(2), `PR_SET_NAME`),
/// and a pod may run a containerd of its own.
fn is_of_host(root: &Path, process: &Path) -> bool {
    let namespace = |process: &Path, kind: &str| fs::read_link(process.join("ns").join(kind)).ok();
    let is_of_init = |kind: &str| namespace(process, kind) == namespace(&root.join("proc/1"), kind);
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let is_roots = status.lines().any(|line| line.starts_with("Uid:\t0\t0\t"));
    // A kernel without user namespaces has no link for them.
    is_roots && namespace(process, "pid").is_some() && is_of_init("pid") && is_of_init("user")
}

/// Without them the runtime is taken for one that was started without any.
fn arguments(process: &Path) -> Vec<String> {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn drop_ins(program: &Path) -> Option<DropIns> {
    let program = File::open(program).ok()?;
    let length = program.metadata().ok()?.len();
    let knows = holds(Some(program).filter(|_| length <= LARGEST_PROGRAM)?, KEY).ok()?;
    Some(if knows { DropIns::Loaded } else { DropIns::Ignored })
}

/// The inodes of all its inotify watches: `inotify wd:1 ino:2a sdev:800001 …` in fdinfo
/// (proc_pid_fdinfo(5)). None when it has no inotify, or we may not look.
fn inodes(process: &Path) -> Option<BTreeSet<u64>> {
    let descriptors = fs::read_dir(process.join("fd")).ok()?.flatten();
    let instances = descriptors
        .filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == Path::new("anon_inode:inotify")));
    // Closed meanwhile is no watch.
    let texts =
        instances.filter_map(|entry| fs::read_to_string(process.join("fdinfo").join(entry.file_name())).ok());
    texts.fold(None, |found, text| {
        let mut all = found.unwrap_or_default();
        all.extend(text.lines().filter_map(inode));
        Some(all)
    })
}

fn inode(line: &str) -> Option<u64> {
    let number = line.strip_prefix("inotify ")?.split(' ').find_map(|field| field.strip_prefix("ino:"))?;
    u64::from_str_radix(number, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// A node whose init is in the first namespaces, and its directory of processes.
    struct Processes(PathBuf);

    impl Processes {
        fn new(test: &str) -> Self {
            let root = std::env::temp_dir().join(format!("gybe-processes-{test}-{}", std::process::id()));
            let processes = Self(root);
            processes.runs(1, ("systemd", 0), ["pid:[1]", "user:[1]"]);
            processes
        }

        fn runs(&self, pid: u32, (name, uid): (&str, u32), namespaces: [&str; 2]) {
            let process = self.0.join(format!("proc/{pid}"));
            fs::create_dir_all(process.join("ns")).unwrap();
            fs::write(process.join("comm"), format!("{name}\n")).unwrap();
            let status = format!("Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
            fs::write(process.join("status"), status).unwrap();
            for (kind, namespace) in ["pid", "user"].into_iter().zip(namespaces) {
                symlink(namespace, process.join("ns").join(kind)).unwrap();
            }
        }

        fn runtimes(&self) -> Vec<u32> {
            let found = running(&self.0, &self.0.join("net.d"), Ask::DropIns);
            found.iter().map(|runtime| runtime.pid).collect()
        }
    }

    impl Drop for Processes {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn f37_a_process_of_a_pod_is_not_the_nodes_runtime_whatever_its_name() {
        let node = Processes::new("pods");
        node.runs(10, ("containerd", 0), ["pid:[1]", "user:[1]"]);
        node.runs(11, ("containerd", 0), ["pid:[2]", "user:[1]"]);
        node.runs(12, ("crio", 0), ["pid:[1]", "user:[2]"]);
        node.runs(13, ("containerd", 1000), ["pid:[1]", "user:[1]"]);
        node.runs(14, ("containerd-shim", 0), ["pid:[1]", "user:[1]"]);
        assert_eq!(node.runtimes(), [10]);
        fs::remove_dir_all(node.0.join("proc/1")).unwrap();
        assert!(node.runtimes().is_empty(), "what the node's own namespace is, is unknown");
    }

    #[test]
    fn f37_only_so_many_runtimes_and_so_large_programs_are_looked_at() {
        let node = Processes::new("many");
        (10..30).for_each(|pid| node.runs(pid, ("crio", 0), ["pid:[1]", "user:[1]"]));
        assert_eq!(node.runtimes().len(), MOST_RUNTIMES);
        let program = node.0.join("program");
        File::create(&program).unwrap().set_len(LARGEST_PROGRAM + 1).unwrap();
        assert_eq!(drop_ins(&program), None);
        fs::write(&program, KEY).unwrap();
        assert_eq!(drop_ins(&program), Some(DropIns::Loaded));
    }

    #[test]
    fn f13_a_watch_is_known_by_its_inode_and_a_directory_made_anew_has_another() {
        let directory = std::env::temp_dir().join(format!("gybe-watched-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let watch = Inotify::init(InitFlags::IN_CLOEXEC).unwrap();
        watch.add_watch(&directory, AddWatchFlags::IN_CREATE).unwrap();
        let own = || inodes(Path::new("/proc/self")).unwrap();
        let inode = stat(&directory).unwrap().st_ino;
        assert!(own().contains(&inode));
        fs::remove_dir(&directory).unwrap();
        assert!(!own().contains(&inode), "the kernel drops a watch with its directory");
    }
}
