//! Lists the sandboxes of a node from the runtime's result cache, `/run/netns` and `/proc`. Only reads.

use super::processes;
use super::result_cache;
use super::{Network, PodProcess, Sandbox};
use crate::error::chain;
use crate::pod::cgroups::Cgroups;
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
    let Listing { by_namespace, others, cgroups, unreadable, .. } = listing;
    let with_cgroups = |(identity, sandbox): (Identity, Sandbox)| Sandbox {
        cgroups: cgroups.get(&identity).cloned().unwrap_or_default(),
        ..sandbox
    };
    let mut sandboxes: Vec<Sandbox> = by_namespace.into_iter().map(with_cgroups).chain(others).collect();
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
    others: Vec<Sandbox>,
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
            let identity = Identity::at(&path);
            sandbox.network = Network::Own(path);
            match identity {
                // The sandbox was removed, and its file was left.
                Err(NetnsError::Missing { .. }) => self.gone += 1,
                Err(_) => self.others.push(sandbox),
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
        let of_node = Identity::at(&proc.join("1/ns/net")).ok();
        // A namespace with a name may be the node's own.
        if let Some(identity) = of_node {
            self.by_namespace.remove(&identity);
        }
        let found = processes::read(proc);
        if let Some(why) = found.refused {
            self.unreadable.push(format!("some processes of pods cannot be inspected: {}", chain(&why)));
        }
        for process in found.all {
            self.cgroups.entry(process.identity).or_default().add_process(&process.cgroup);
            let Some(uid) = process.pod else { continue };
            let of_pod = PodProcess { directory: process.directory, uid: uid.clone() };
            if Some(process.identity) == of_node {
                let is_it = |other: &&mut Sandbox| other.uid.as_ref() == Some(&uid);
                if let Some(sandbox) = self.others.iter_mut().find(is_it) {
                    sandbox.processes.push(of_pod);
                } else {
                    let sandbox = Sandbox::in_namespace(PathBuf::new());
                    let (network, processes) = (Network::OfNode, vec![of_pod]);
                    self.others.push(Sandbox { uid: Some(uid), network, processes, ..sandbox });
                }
            } else if let Some(sandbox) = self.by_namespace.get_mut(&process.identity) {
                sandbox.uid.get_or_insert(uid);
                sandbox.processes.push(of_pod);
            } else if !self.is_cached(&uid) {
                let sandbox = Sandbox::in_namespace(process.netns);
                let sandbox = Sandbox { uid: Some(uid), processes: vec![of_pod], ..sandbox };
                self.by_namespace.insert(process.identity, sandbox);
            }
        }
    }

    /// Reports whether this pod's sandbox is known. If it is, another namespace of its processes is one that the pod
    /// itself made, and not a sandbox.
    fn is_cached(&self, uid: &str) -> bool {
        let is_it = |pod: &PodRef| pod.uid.as_deref() == Some(uid);
        self.by_namespace.values().any(|sandbox| sandbox.pod.as_ref().is_some_and(is_it))
    }
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
