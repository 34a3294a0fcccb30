//! Lists the sandboxes of a node from the runtime's result cache, `/run/netns` and `/proc`: the node's processes, each with
//! its network namespace, its cgroups and its pod. The pod's uid is in the cgroup path that the kubelet gives to the pod's
//! processes. Only reads.

use crate::error::chain;
use crate::pod::cgroups::{Cgroups, cgroup_file, processes};
use crate::sandboxes::{ContainerId, Network, PodProcess, Sandbox, result_cache};
use gybe_netfilter::kernel::netns::{Identity, NetnsError};
use gybe_plugin::args::{Namespace, PodName, PodRef};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The paths of the node's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPaths {
    /// libcni's cache of results.
    pub results: PathBuf,
    /// The host's root directory as `gybe` sees it.
    pub root: PathBuf,
}

/// The sandboxes of a node.
#[derive(Debug, Default)]
pub struct SandboxList {
    /// Sandboxes, by name.
    pub sandboxes: Vec<Sandbox>,
    /// The sources that could not be read, so that sandboxes may be missing; one sentence each.
    pub unreadable: Vec<String>,
}

/// Lists the sandboxes: a namespace that several sources show is one sandbox.
#[must_use]
pub fn find(paths: &HostPaths) -> SandboxList {
    let mut listing = Listing::default();
    listing.add_cached(paths);
    listing.add_named_namespaces(&paths.root.join("run/netns"));
    listing.add_processes(&paths.root.join("proc"));
    let names = pod_names(&paths.root.join("var/log/pods"));
    let Listing { by_namespace, without_identity, cgroups, unreadable, .. } = listing;
    let with_cgroups = |(identity, sandbox): (Identity, Sandbox)| Sandbox {
        cgroups: cgroups.get(&identity).cloned().unwrap_or_default(),
        ..sandbox
    };
    let mut sandboxes: Vec<Sandbox> =
        by_namespace.into_iter().map(with_cgroups).chain(without_identity).collect();
    for sandbox in sandboxes.iter_mut().filter(|sandbox| sandbox.pod.is_none()) {
        sandbox.pod = sandbox.uid.as_ref().and_then(|uid| names.get(uid)).cloned();
    }
    sandboxes.sort_by_cached_key(|sandbox| (sandbox.pod.is_none(), sandbox.to_string()));
    SandboxList { sandboxes, unreadable }
}

#[derive(Default)]
struct Listing {
    by_namespace: BTreeMap<Identity, Sandbox>,
    /// Sandboxes in the node's network, and those whose namespace cannot be opened.
    without_identity: Vec<Sandbox>,
    /// The cgroups of the processes in each namespace.
    cgroups: BTreeMap<Identity, Cgroups>,
    unreadable: Vec<String>,
    /// The number of sandboxes in the cache whose namespace does not exist.
    gone: usize,
}

impl Listing {
    fn add_cached(&mut self, paths: &HostPaths) {
        let cached = result_cache::read(&paths.results);
        if !cached.is_whole {
            self.unreadable.push(format!("{} cannot be read completely", paths.results.display()));
        }
        for mut sandbox in cached.sandboxes {
            let Network::Own(path) = &sandbox.network else { continue };
            let path = under(&paths.root, path);
            if leads_elsewhere(&sandbox, &path, &paths.root.join("proc")) {
                self.gone += 1;
                continue;
            }
            let identity = Identity::at(&path);
            sandbox.network = Network::Own(path);
            match identity {
                // The sandbox was removed, and its file was left.
                Err(NetnsError::Missing { .. }) => self.gone += 1,
                Err(_) => self.without_identity.push(sandbox),
                Ok(identity) => match self.by_namespace.entry(identity) {
                    Entry::Vacant(free) => drop(free.insert(sandbox)),
                    Entry::Occupied(mut there) => {
                        let there = there.get_mut();
                        there.pod = there.pod.take().or(sandbox.pod);
                        there.annotations = there.annotations.take().or(sandbox.annotations);
                        if let Some(ended) = sandbox.ended_add {
                            let there = there.ended_add.get_or_insert_default();
                            there.addresses.extend(ended.addresses);
                            there.confs.extend(ended.confs);
                            there.at = there.at.max(ended.at);
                        }
                    }
                },
            }
        }
    }

    /// Adds namespaces with a name whose sandbox has no file in the cache.
    fn add_named_namespaces(&mut self, directory: &Path) {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(why) if why.kind() == ErrorKind::NotFound => {
                // This is a container in which the cache is mounted, but not the namespaces.
                if self.gone > 0 && self.by_namespace.is_empty() {
                    let directory = directory.display();
                    let what = format!(
                        "none of {} cached results has its network namespace, and {directory} does not exist",
                        self.gone
                    );
                    self.unreadable
                        .push(format!("{what}: run it on the node, or name the host's root with --root"));
                }
                return;
            }
            Err(why) => {
                self.unreadable.push(format!("{} cannot be read: {why}", directory.display()));
                return;
            }
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            if let Ok(identity) = Identity::at(&path) {
                self.by_namespace.entry(identity).or_insert_with(|| Sandbox::in_namespace(path));
            }
        }
    }

    fn add_processes(&mut self, proc: &Path) {
        let node_identity = Identity::at(&proc.join("1/ns/net")).ok();
        // A namespace with a name may be the node's own.
        if let Some(identity) = node_identity {
            self.by_namespace.remove(&identity);
        }
        let found = read_processes(proc);
        if let Some(why) = found.refused {
            self.unreadable.push(format!("some processes of pods cannot be inspected: {}", chain(&why)));
        }
        for process in found.all {
            self.cgroups.entry(process.identity).or_default().add_process(&process.cgroup);
            let Some(uid) = process.pod_uid else { continue };
            let pod_process = PodProcess { directory: process.directory, uid: uid.clone() };
            if Some(process.identity) == node_identity {
                let is_same_pod = |other: &&mut Sandbox| other.uid.as_ref() == Some(&uid);
                if let Some(sandbox) = self.without_identity.iter_mut().find(is_same_pod) {
                    sandbox.processes.push(pod_process);
                } else {
                    let sandbox = Sandbox::in_namespace(PathBuf::new());
                    let (network, processes) = (Network::OfNode, vec![pod_process]);
                    self.without_identity.push(Sandbox { uid: Some(uid), network, processes, ..sandbox });
                }
            } else if let Some(sandbox) = self.by_namespace.get_mut(&process.identity) {
                sandbox.uid.get_or_insert(uid);
                sandbox.processes.push(pod_process);
            } else if !self.is_cached(&uid) {
                let sandbox = Sandbox::in_namespace(process.netns);
                let sandbox = Sandbox { uid: Some(uid), processes: vec![pod_process], ..sandbox };
                self.by_namespace.insert(process.identity, sandbox);
            }
        }
    }

    /// Reports whether this pod's sandbox is known. If it is, another namespace of its processes is one that the pod
    /// itself made, and not a sandbox.
    fn is_cached(&self, uid: &str) -> bool {
        let has_uid = |pod: &PodRef| pod.uid.as_deref() == Some(uid);
        let mut sandboxes = self.by_namespace.values().chain(&self.without_identity);
        sandboxes.any(|sandbox| sandbox.pod.as_ref().is_some_and(has_uid))
    }
}

/// Reports whether a path `/proc/PID/ns/net` in a cached result leads to another pod: the kernel uses the numbers of ended
/// processes again, and a file of the cache may be left over.
fn leads_elsewhere(sandbox: &Sandbox, path: &Path, proc: &Path) -> bool {
    let number = path.strip_prefix(proc).ok().and_then(|rest| rest.iter().next());
    let cgroup = number.and_then(|number| cgroup_file(&proc.join(number)));
    let container = sandbox.container.as_ref().and_then(|id| id.parse::<ContainerId>().ok());
    let is_of_sandbox = |cgroup: &String| container.as_ref().is_some_and(|id| id.is_in(cgroup));
    let Some(cgroup) = cgroup.filter(|cgroup| !is_of_sandbox(cgroup)) else { return false };
    let own = sandbox.pod.as_ref().and_then(|pod| pod.uid.as_ref());
    pod_uid(&cgroup).is_some_and(|uid| own != Some(&uid))
}

/// `/var/run` is a link to `/run`, and an absolute link leads out of `root`.
fn under(root: &Path, path: &Path) -> PathBuf {
    let relative = match path.strip_prefix("/var/run") {
        Ok(rest) => Path::new("run").join(rest),
        Err(_) => path.strip_prefix("/").unwrap_or(path).to_owned(),
    };
    root.join(relative)
}

/// Pods by uid: the kubelet names the directory of a pod's logs `<namespace>_<name>_<uid>`.
fn pod_names(logs: &Path) -> BTreeMap<String, PodRef> {
    let named = |name: &str| {
        let mut parts = name.splitn(3, '_');
        let namespace = Namespace::parse(parts.next()?).ok()?;
        let name = PodName::parse(parts.next()?).ok()?;
        let uid = parts.next()?.to_owned();
        Some((uid.clone(), PodRef { namespace, name, uid: Some(uid) }))
    };
    let entries = fs::read_dir(logs).into_iter().flatten().flatten();
    entries.filter_map(|entry| named(entry.file_name().to_str()?)).collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) directory: PathBuf,
    /// The uid of its pod; none for a process that belongs to no pod.
    pub(super) pod_uid: Option<String>,
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
pub(super) fn read_processes(proc: &Path) -> Processes {
    let mut found = Processes { all: Vec::new(), refused: None };
    let own = std::process::id().to_string();
    for process in processes(proc).filter(|process| !process.ends_with(&own)) {
        let Some(cgroup) = cgroup_file(&process) else { continue };
        let (pod_uid, netns) = (pod_uid(&cgroup), process.join("ns/net"));
        match Identity::at(&netns) {
            Ok(identity) => {
                found.all.push(Process { directory: process, pod_uid, netns, identity, cgroup });
            }
            Err(why) if pod_uid.is_some() && !matches!(why, NetnsError::Missing { .. }) => {
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
