//! The container runtimes that run here: whether they still watch the conf directory (a watch is on an
//! inode, and a directory made anew has another, F13), and whether they read a network's own directory.

use crate::inside::holds;
use crate::install::loads::DropIns;
use crate::runtime_config::plugin_dirs;
use nix::sys::stat::stat;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// More than any node has.
const MOST_PROCESSES: usize = 65_536;

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
    /// Where its configuration says that it looks for plugins, on the host.
    pub plugin_dirs: Option<Vec<PathBuf>>,
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

/// All that `/proc` below `root` shows: in a container without the host's processes, none.
pub(crate) fn running(root: &Path, conf: &Path, ask: Ask) -> Vec<RuntimeSeen> {
    let Ok(processes) = fs::read_dir(root.join("proc")) else { return Vec::new() };
    let pids = processes.flatten().take(MOST_PROCESSES);
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| runtime(root, (pid, conf), ask)).collect()
}

fn runtime(root: &Path, (pid, conf): (u32, &Path), ask: Ask) -> Option<RuntimeSeen> {
    let process = root.join("proc").join(pid.to_string());
    let name = fs::read_to_string(process.join("comm")).ok()?.trim().to_owned();
    if !matches!(name.as_str(), "containerd" | "crio") {
        return None;
    }
    let watches = match (inodes(&process), stat(conf)) {
        (Some(inodes), Ok(stat)) if inodes.contains(&stat.st_ino) => Watches::ConfDirectory,
        (Some(_), Ok(_)) => Watches::Others,
        _ => Watches::Unknown,
    };
    let drop_ins = if ask == Ask::DropIns { drop_ins(&process.join("exe")) } else { None };
    let plugin_dirs = plugin_dirs(root, &name, &arguments(&process));
    Some(RuntimeSeen { name, pid, watches, drop_ins, plugin_dirs })
}

/// Without them the runtime is taken for one that was started without any.
fn arguments(process: &Path) -> Vec<String> {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn drop_ins(program: &Path) -> Option<DropIns> {
    let knows = holds(File::open(program).ok()?, KEY).ok()?;
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
