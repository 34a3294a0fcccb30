//! The node's processes, each with its network namespace, its cgroups and its pod.
//!
//! The pod's uid is in the cgroup path that the kubelet gives to the pod's processes.

use crate::pod::cgroups::{cgroup_file, processes};
use gybe_netfilter::kernel::netns::{Identity, NetnsError};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) directory: PathBuf,
    /// The uid of its pod; none for a process that belongs to no pod.
    pub(super) pod: Option<String>,
    pub(super) netns: PathBuf,
    pub(super) identity: Identity,
    /// The text of its `/proc/PID/cgroup`.
    pub(super) cgroup: String,
}

pub(super) struct Processes {
    pub(super) all: Vec<Process>,
    /// The last error on opening the namespace of a pod's process.
    pub(super) refused: Option<NetnsError>,
}

/// Reads the processes in `proc` other than this one. Omits processes that end during the read.
pub(super) fn read(proc: &Path) -> Processes {
    let mut found = Processes { all: Vec::new(), refused: None };
    let own = std::process::id().to_string();
    for process in processes(proc).filter(|process| !process.ends_with(&own)) {
        let Some(cgroup) = cgroup_file(&process) else { continue };
        let (pod, netns) = (pod_uid(&cgroup), process.join("ns/net"));
        match Identity::at(&netns) {
            Ok(identity) => {
                found.all.push(Process { directory: process, pod, netns, identity, cgroup });
            }
            Err(why) if pod.is_some() && !matches!(why, NetnsError::Missing { .. }) => {
                found.refused = Some(why);
            }
            Err(_) => {}
        }
    }
    found
}

/// Reports whether the process in this directory of `/proc` exists, belongs to the pod with this uid and is in this
/// namespace.
pub(crate) fn is_process_of(process: &Path, uid: &str, namespace: Identity) -> bool {
    let is_here = Identity::at(&process.join("ns/net")).is_ok_and(|identity| identity == namespace);
    is_here && cgroup_file(process).and_then(|cgroup| pod_uid(&cgroup)).as_deref() == Some(uid)
}

/// The lengths of the groups of a UUID, the usual form of a pod's uid.
const UUID_GROUPS: [usize; 5] = [8, 4, 4, 4, 12];
/// The length of a static pod's uid, a hash of its manifest.
const HASH: usize = 32;

/// The uid of the one pod that a `/proc/PID/cgroup` names; none where it names no pod, or several.
///
/// The kubelet's drivers write `/kubepods/burstable/pod<uid>/<container>` (cgroupfs) and
/// `/kubepods-burstable-pod<uid, dashes as underscores>.slice/…` (systemd).
fn pod_uid(cgroup: &str) -> Option<String> {
    let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mut uids: Vec<String> = paths.flat_map(|path| path.split('/')).filter_map(uid_of_segment).collect();
    uids.sort();
    uids.dedup();
    match <[String; 1]>::try_from(uids) {
        Ok([uid]) => Some(uid),
        Err(_) => None,
    }
}

fn uid_of_segment(segment: &str) -> Option<String> {
    let segment = segment.strip_suffix(".slice").unwrap_or(segment);
    let written = match segment.rsplit_once("-pod") {
        Some((_, written)) => written,
        None => segment.strip_prefix("pod")?,
    };
    let uid = written.replace('_', "-");
    is_uid(&uid).then_some(uid)
}

fn is_uid(text: &str) -> bool {
    let hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let groups: Vec<&str> = text.split('-').collect();
    let is_uuid = groups.iter().map(|group| group.len()).eq(UUID_GROUPS);
    (is_uuid || (groups.len() == 1 && text.len() == HASH)) && groups.iter().all(|group| hex(group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uid_is_read_as_both_drivers_write_it() {
        const UID: &str = "863b91d4-4b68-4efa-917f-4b560e3e86aa";
        let under = UID.replace('-', "_");
        for cgroup in [
            format!("0::/kubepods/besteffort/pod{UID}/75c7fe7ad0df"),
            format!("0::/kubepods/pod{UID}/75c7fe7ad0df"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-75c7.scope"
            ),
            format!("0::/kubepods.slice/kubepods-pod{under}.slice/crio-75c7.scope"),
            format!("12:pids:/kubepods/pod{UID}/75c7\n11:cpu,cpuacct:/kubepods/pod{UID}/75c7\n0::/x\n"),
        ] {
            assert_eq!(pod_uid(&cgroup).as_deref(), Some(UID), "{cgroup}");
        }
        let hash = "0123456789abcdef0123456789abcdef";
        assert_eq!(pod_uid(&format!("0::/kubepods/burstable/pod{hash}/75c7")).as_deref(), Some(hash));
    }

    #[test]
    fn a_cgroup_of_no_pod_or_of_two_pods_has_no_uid() {
        for cgroup in [
            "",
            "0::/",
            "0::/user.slice/session-3.scope",
            "0::/system.slice/podman-1234.scope",
            "0::/kubepods/podx/75c7",
            "0::/../crio-75c7.scope",
            "1:a:/pod863b91d4-4b68-4efa-917f-4b560e3e86aa/x\n2:b:/pod00000000-4b68-4efa-917f-4b560e3e86aa/x",
        ] {
            assert_eq!(pod_uid(cgroup), None, "{cgroup}");
        }
    }
}
