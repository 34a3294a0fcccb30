//! The container runtimes of the node: whether they still watch the conf directory (a watch belongs to an
//! inode, and a directory that was created again has another one, F13), and whether they read drop-ins.

use crate::host::image::has_text;
use crate::host::observe::runtimes::DropIns;
use crate::host::runtimes::config::{RuntimeConfig, configured};
use nix::sys::stat::stat;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// More than any node has.
const MAX_PROCESSES: usize = 65_536;
/// More than any node has.
const MAX_RUNTIMES: usize = 8;
/// The largest program that is searched, in bytes: runtimes have some 50 MB.
const MAX_PROGRAM_SIZE: u64 = 256 << 20;

/// A conf file key of libcni since 1.3, the first version that reads drop-ins. Its name is in the program, which
/// is more reliable than a distribution's version string: Debian's containerd 1.6 and 1.7 do not have it, 2.1
/// does.
const KEY: &[u8] = b"loadOnlyInlinedPlugins";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeProcess {
    /// `containerd`, `crio` or `cri-dockerd`.
    pub name: String,
    pub pid: u32,
    pub watches: RuntimeWatch,
    /// Whether it reads drop-ins; none if its program cannot be read, or this was not requested.
    pub drop_ins: Option<DropIns>,
    /// The host's directories that its configuration names.
    pub configured: RuntimeConfig,
}

/// Whether to check that runtimes read drop-ins, which takes reading programs of 50 MB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropInCheck {
    /// There are drop-ins.
    Read,
    /// There are none.
    Skip,
}

/// What a runtime watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeWatch {
    /// The current conf directory.
    ConfDirectory,
    /// Other directories only.
    Others,
    /// Its watches cannot be read.
    Unknown,
}

/// The host's runtimes in `/proc` below `root`: none in a container that does not see the host's processes.
pub(crate) fn running(root: &Path, conf: &Path, check: DropInCheck) -> Vec<RuntimeProcess> {
    let Ok(processes) = fs::read_dir(root.join("proc")) else { return Vec::new() };
    let pids = processes.flatten().take(MAX_PROCESSES);
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| runtime(root, pid, conf, check)).take(MAX_RUNTIMES).collect()
}

fn runtime(root: &Path, pid: u32, conf: &Path, check: DropInCheck) -> Option<RuntimeProcess> {
    let process = root.join("proc").join(pid.to_string());
    let name = fs::read_to_string(process.join("comm")).ok()?.trim().to_owned();
    if !matches!(name.as_str(), "containerd" | "crio" | "cri-dockerd") || !is_of_host(root, &process) {
        return None;
    }
    let watches = match (inodes(&process), stat(conf)) {
        (Some(inodes), Ok(stat)) if inodes.contains(&stat.st_ino) => RuntimeWatch::ConfDirectory,
        (Some(_), Ok(_)) => RuntimeWatch::Others,
        _ => RuntimeWatch::Unknown,
    };
    let drop_ins = if check == DropInCheck::Read { drop_ins(&process.join("exe")) } else { None };
    let configured = configured(root, &name, &arguments(&process));
    Some(RuntimeProcess { name, pid, watches, drop_ins, configured })
}

/// Reports whether the process runs as the host's root, in the namespaces of init: a process can set its own name
/// (prctl(2), `PR_SET_NAME`), and a pod may run its own containerd.
pub(crate) fn is_of_host(root: &Path, process: &Path) -> bool {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let is_roots = status.lines().any(|line| line.starts_with("Uid:\t0\t0\t"));
    // A kernel without user namespaces has no link for them.
    let is_of_init = |kind| namespace(process, kind) == namespace(&root.join("proc/1"), kind);
    is_roots && namespace(process, "pid").is_some() && ["pid", "user"].into_iter().all(is_of_init)
}

/// Reports whether the process is in init's network namespace.
pub(crate) fn has_network_of_init(root: &Path, process: &Path) -> bool {
    let of_init = namespace(&root.join("proc/1"), "net");
    of_init.is_some() && namespace(process, "net") == of_init
}

fn namespace(process: &Path, kind: &str) -> Option<PathBuf> {
    fs::read_link(process.join("ns").join(kind)).ok()
}

/// The command line; empty if it cannot be read.
fn arguments(process: &Path) -> Vec<String> {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn drop_ins(program: &Path) -> Option<DropIns> {
    let program = File::open(program).ok()?;
    let length = program.metadata().ok()?.len();
    let knows = has_text(Some(program).filter(|_| length <= MAX_PROGRAM_SIZE)?, KEY).ok()?;
    Some(if knows { DropIns::Loaded } else { DropIns::Ignored })
}

/// The inodes of all its inotify watches: `inotify wd:1 ino:2a sdev:800001 …` in fdinfo (proc_pid_fdinfo(5)).
/// None if it has no inotify instance, or may not be read.
fn inodes(process: &Path) -> Option<BTreeSet<u64>> {
    let descriptors = fs::read_dir(process.join("fd")).ok()?.flatten();
    let instances = descriptors
        .filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == Path::new("anon_inode:inotify")));
    // A descriptor that was closed meanwhile has no watches.
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
    use gybe_test_support::TestDir;
    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
    use std::os::unix::fs::symlink;

    /// A node whose init is in the initial namespaces, with its `/proc`.
    struct Processes(TestDir);

    impl Processes {
        fn new(test: &str) -> Self {
            let processes = Self(TestDir::new(&format!("processes-{test}")));
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
            let found = running(&self.0, &self.0.join("net.d"), DropInCheck::Read);
            let mut pids: Vec<_> = found.iter().map(|runtime| runtime.pid).collect();
            pids.sort_unstable();
            pids
        }
    }

    #[test]
    fn f37_a_pods_process_is_never_taken_for_the_nodes_runtime() {
        let node = Processes::new("pods");
        node.runs(10, ("containerd", 0), ["pid:[1]", "user:[1]"]);
        node.runs(11, ("containerd", 0), ["pid:[2]", "user:[1]"]);
        node.runs(12, ("crio", 0), ["pid:[1]", "user:[2]"]);
        node.runs(13, ("containerd", 1000), ["pid:[1]", "user:[1]"]);
        node.runs(14, ("containerd-shim", 0), ["pid:[1]", "user:[1]"]);
        node.runs(15, ("cri-dockerd", 0), ["pid:[1]", "user:[1]"]);
        assert_eq!(node.runtimes(), [10, 15]);
        fs::remove_dir_all(node.0.join("proc/1")).unwrap();
        assert!(node.runtimes().is_empty(), "without init the node's own namespaces are unknown");
    }

    #[test]
    fn f37_the_number_of_runtimes_and_the_size_of_programs_are_bounded() {
        let node = Processes::new("many");
        (10..30).for_each(|pid| node.runs(pid, ("crio", 0), ["pid:[1]", "user:[1]"]));
        assert_eq!(node.runtimes().len(), MAX_RUNTIMES);
        let program = node.0.join("program");
        File::create(&program).unwrap().set_len(MAX_PROGRAM_SIZE + 1).unwrap();
        assert_eq!(drop_ins(&program), None);
        fs::write(&program, KEY).unwrap();
        assert_eq!(drop_ins(&program), Some(DropIns::Loaded));
    }

    #[test]
    fn f13_a_watch_is_identified_by_its_inode_which_a_new_directory_does_not_have() {
        let directory = TestDir::new("watched");
        let watch = Inotify::init(InitFlags::IN_CLOEXEC).unwrap();
        watch.add_watch(directory.path(), AddWatchFlags::IN_CREATE).unwrap();
        let own = || inodes(Path::new("/proc/self")).unwrap();
        let inode = stat(directory.path()).unwrap().st_ino;
        assert!(own().contains(&inode));
        fs::remove_dir(&directory).unwrap();
        assert!(!own().contains(&inode), "the kernel drops a watch with its directory");
    }
}
