//! The kubelet's process, and the cgroup (v2) by which the kernel recognises its sockets.

use super::runtimes::processes::{has_network_of_init, is_of_host};
use crate::mounts;
use crate::pod::cgroups::{cgroup_file, directory, processes, unified};
use gybe_netfilter::model::exemption::KubeletCgroup;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The names of processes that contain a kubelet: MicroK8s has it in `kubelite`, k3s in the others.
const NAMES: [&str; 5] = ["kubelet", "kubelite", "k3s", "k3s-server", "k3s-agent"];

/// What `/proc` has of the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kubelet {
    /// No process, as while it is restarted.
    Absent,
    /// Its cgroup is the root cgroup, or cannot be seen from the calling thread's mounts and cgroup namespace.
    WithoutCgroup,
    In {
        cgroup: KubeletCgroup,
        directory: PathBuf,
    },
}

/// Finds the kubelet in `/proc` below `root`. A process in the cgroup of a pod is none, whatever its name is.
pub(crate) fn find(root: &Path) -> Kubelet {
    let name = |process: &Path| fs::read_to_string(process.join("comm")).unwrap_or_default();
    let is_kubelet = |process: &PathBuf| {
        let is_named = NAMES.contains(&name(process).trim_end());
        is_named && is_of_host(root, process) && has_network_of_init(root, process)
    };
    let proc = root.join("proc");
    let cgroups = processes(&proc).filter(is_kubelet).filter_map(|it| cgroup_file(&it));
    // The cgroup of a process that ends may be gone before it.
    let mut cgroups = cgroups.filter(|text| !text.contains("kubepods") && !text.contains(" (deleted)"));
    cgroups.next().map_or(Kubelet::Absent, |text| of_cgroup(&text).unwrap_or(Kubelet::WithoutCgroup))
}

fn of_cgroup(text: &str) -> Option<Kubelet> {
    let path = unified(text)?;
    let level = path.split('/').filter(|name| !name.is_empty()).count();
    let level = u32::try_from(level).ok().filter(|level| *level > 0)?;
    let directory = directory(path, &mounts::of_this_thread())?;
    match fs::metadata(&directory) {
        Ok(found) => Some(Kubelet::In { cgroup: KubeletCgroup { level, id: found.ino() }, directory }),
        // It has ended meanwhile.
        Err(why) if why.kind() == ErrorKind::NotFound => Some(Kubelet::Absent),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::TestDir;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_pods_process_is_never_taken_for_the_kubelet() {
        let kubelet_of = |cgroup: &str, netns: &str| {
            let root = TestDir::new("kubelet").with_subdirectories(&["proc/1/ns", "proc/7/ns"]);
            for (pid, netns) in [(1, "net:[1]"), (7, netns)] {
                for namespace in ["pid:[1]", "user:[1]", netns] {
                    let kind = namespace.split(':').next().unwrap();
                    symlink(namespace, root.join(format!("proc/{pid}/ns/{kind}"))).unwrap();
                }
            }
            root.write("proc/7/comm", "k3s\n");
            root.write("proc/7/status", "Uid:\t0\t0\t0\t0\n");
            root.write("proc/7/cgroup", cgroup);
            find(root.path())
        };
        assert_eq!(kubelet_of("0::/\n", "net:[1]"), Kubelet::WithoutCgroup, "the control");
        assert_eq!(kubelet_of("0::/\n", "net:[2]"), Kubelet::Absent);
        assert_eq!(kubelet_of("0::/kubepods.slice/kubepods-pod1.slice/a\n", "net:[1]"), Kubelet::Absent);
        assert_eq!(kubelet_of("7:cpu:/kubepods/pod1/a\n0::/\n", "net:[1]"), Kubelet::Absent);
        assert_eq!(kubelet_of("0::/system.slice/kubelet.service (deleted)\n", "net:[1]"), Kubelet::Absent);
    }
}
