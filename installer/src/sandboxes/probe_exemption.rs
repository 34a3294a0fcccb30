//! Keeps the exemption of the kubelet's probes in the node's network namespace. The agent writes the addresses of the
//! ambient pods into a file in `/run/gybe`; the process that repairs pods keeps the exemption for them, and writes a
//! report into another file. So the agent needs no right in the node's namespace, and this process no list of pods.
//!
//! On a node without the agent's file a table that is left is removed at the start, and nothing else is done.

mod keeper;

pub(crate) use keeper::watch;

use crate::host::kubelet::{self, Kubelet};
use crate::log::Log;
use gybe_netfilter::kernel::netns::{Netns, NetnsError};
use gybe_netfilter::kernel::routes::{RoutesError, Rtnetlink, addresses};
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::exemption::ProbeExemption;
use gybe_netfilter::model::policy::ambient::{ProbeAddressError, ProbeAddresses};
use gybe_netfilter::nft::NftError;
use gybe_netfilter::nft::exemption::{TABLE, is_there, remove};
use gybe_plugin::probe_cache::{EXEMPTED_PODS, MAX_BYTES, PROBE_EXEMPTION, read_own_file, replace_file};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::stat;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::path::Path;

/// The agent's file: the ambient pods whose probes are exempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExemptedPods {
    /// The addresses of each pod, by its uid.
    pub pods: BTreeMap<String, BTreeSet<IpAddr>>,
    /// The uids of pods that run and are to be enrolled or taken out; some of them if there are many.
    pub due: BTreeSet<String>,
    /// The source addresses of probes; the defaults where they are missing.
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
}

/// The file of the process that keeps the exemption.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExemptionReport {
    /// The addresses that are exempt.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether the exempt connections are the kubelet's alone, by its cgroup. Otherwise root's are.
    pub matches_cgroup: bool,
    /// The last error; the table may differ from the agent's file.
    pub fault: Option<String>,
}

/// Why an exemption cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum ExemptionError {
    #[error("/run/gybe/{EXEMPTED_PODS} cannot be read, or another user has written it")]
    NotOwn,
    #[error("/run/gybe/{EXEMPTED_PODS} is longer than 64 KiB")]
    TooLong,
    #[error("/run/gybe/{EXEMPTED_PODS} is not valid")]
    Json(#[from] serde_json::Error),
    #[error("/run/gybe/{EXEMPTED_PODS} has addresses that no pod can have: {0:?}; they are not exempt")]
    Addresses(BTreeSet<IpAddr>),
    #[error("the addresses of the node's interfaces")]
    Interfaces(#[from] RoutesError),
    #[error("/run/gybe/{EXEMPTED_PODS} has no valid source address of probes")]
    Source(#[from] ProbeAddressError),
    #[error("the node's network namespace")]
    Netns(#[from] NetnsError),
    #[error("table inet {TABLE} in the node's network namespace")]
    Rules(#[from] NftError),
}

impl Hint for ExemptionError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Rules(why) => why.hint(),
            _ => None,
        }
    }
}

impl ExemptedPods {
    /// Reads what the agent wrote; none if there is no file.
    ///
    /// # Errors
    /// When the file is of another user, too long (64 KiB, some 600 pods with two addresses), or not valid.
    pub fn kept_in(directory: &Path) -> Result<Option<Self>, ExemptionError> {
        let path = directory.join(EXEMPTED_PODS);
        match (read_own_file(&path), path.symlink_metadata()) {
            (Some((text, _)), _) => Ok(Some(serde_json::from_slice(&text)?)),
            (None, Err(why)) if why.kind() == ErrorKind::NotFound => Ok(None),
            (None, Ok(found)) if found.len() > MAX_BYTES => Err(ExemptionError::TooLong),
            (None, _) => Err(ExemptionError::NotOwn),
        }
    }

    /// Writes the pods, or removes the file on a node that has no ambient mode any more.
    ///
    /// # Errors
    /// If the file cannot be written or removed.
    pub fn keep_in(pods: Option<&Self>, directory: &Path) -> io::Result<()> {
        keep(pods, directory, EXEMPTED_PODS)
    }

    /// Returns the exemption in the calling thread's namespace, and the addresses that are left out, because they are the
    /// node's own or no pod can have them.
    fn exemption(&self, kubelet: &Kubelet) -> Result<(ProbeExemption, BTreeSet<IpAddr>), ExemptionError> {
        let mut source = ProbeAddresses::default();
        source = self.v4.map_or(Ok(source), |v4| source.with_v4(v4))?;
        source = self.v6.map_or(Ok(source), |v6| source.with_v6(v6))?;
        let cgroup = match kubelet {
            Kubelet::In { cgroup, .. } => Some(*cgroup),
            Kubelet::Absent | Kubelet::WithoutCgroup => None,
        };
        let of_node: BTreeSet<IpAddr> = addresses()?.into_iter().map(|address| address.ip).collect();
        let all = self.pods.values().flatten().copied();
        let (pods, refused) = all.partition(|pod| is_pods(*pod) && !of_node.contains(pod));
        Ok((ProbeExemption { cgroup, source, pods }, refused))
    }
}

/// Reports whether a pod may have the address.
fn is_pods(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(is_link_local || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

impl ExemptionReport {
    /// Reads what stands; none if no process keeps an exemption.
    #[must_use]
    pub fn kept_in(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&read_own_file(&directory.join(PROBE_EXEMPTION))?.0).ok()
    }
}

fn keep<T: Serialize>(content: Option<&T>, directory: &Path, name: &str) -> io::Result<()> {
    match content {
        Some(content) => replace_file(directory, name, &serde_json::to_string(content)?),
        None => {
            // Processes that watch the directory are woken by a rename only.
            let aside = directory.join(format!(".{name}.new"));
            match fs::rename(directory.join(name), &aside).and_then(|()| fs::remove_file(&aside)) {
                Err(why) if why.kind() != ErrorKind::NotFound => Err(why),
                _ => Ok(()),
            }
        }
    }
}

/// What the exemption of a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObservedExemption {
    OfPods(PodsExemption),
    /// The table is there, and no agent requests it.
    LeftBehind,
}

/// What the exemption of a node with ambient pods is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodsExemption {
    pub pods: usize,
    /// How the rules differ from what the agent's file requests.
    pub differences: Vec<String>,
    /// Whether the exempt connections are the kubelet's alone. Otherwise root's are.
    pub matches_cgroup: bool,
    /// Whether pods may be behind branch interfaces (aws-vpc-cni, security groups for pods in strict mode).
    pub has_branch_interfaces: bool,
}

/// Observes the exemption on the node whose root is at `root`; none if there are no ambient pods.
///
/// # Errors
/// When the agent's file, or the node's rules for ambient pods, cannot be read.
pub(crate) fn observe(root: &Path, shared: &Path) -> Result<Option<ObservedExemption>, ExemptionError> {
    let Some(pods) = ExemptedPods::kept_in(shared)? else {
        let is_left = node_netns(root).is_ok_and(|node| matches!(node.run(is_there), Ok(Ok(true))));
        return Ok(is_left.then_some(ObservedExemption::LeftBehind));
    };
    if pods.pods.is_empty() {
        return Ok(None);
    }
    let observed = node_netns(root)?.run(|| {
        enter_cgroups(root);
        let (exemption, refused) = pods.exemption(&kubelet::find(root))?;
        let of_root = ProbeExemption { cgroup: None, ..exemption.clone() };
        let matches_cgroup = !of_root.differences()?.is_empty();
        let differences = if matches_cgroup { exemption.differences()? } else { Vec::new() };
        let refused = refused.iter().map(|address| format!("{address} is no pod's address"));
        Ok::<_, ExemptionError>(PodsExemption {
            pods: pods.pods.len(),
            differences: differences.iter().map(ToString::to_string).chain(refused).collect(),
            matches_cgroup,
            has_branch_interfaces: has_branch_interfaces(),
        })
    })?;
    Ok(Some(ObservedExemption::OfPods(observed?)))
}

/// The remedy for a table that was not removed.
pub(crate) const REMOVAL: &str = "run nft delete table inet gybe-probes on the node";

/// Removes the agent's file, and then the table: a process that keeps the exemption may run no more.
///
/// # Errors
/// When the node has one of the files, and the table stays or may stay.
pub fn uninstall(root: &Path, shared: &Path) -> Result<(), ExemptionError> {
    let was_kept = [EXEMPTED_PODS, PROBE_EXEMPTION].iter().any(|name| shared.join(name).exists());
    // The caller removes all files, and reports those that stay.
    let _ = ExemptedPods::keep_in(None, shared);
    let removed = node_netns(root).and_then(|node| node.run(|| if is_there()? { remove() } else { Ok(()) }));
    // A node without the files has hardly a table, and may have no nftables.
    if was_kept { Ok(removed??) } else { Ok(()) }
}

/// aws-vpc-cni names the interfaces `vlan.eth.NUMBER`, and the kubelet reaches pods behind them only with this sysctl.
fn has_branch_interfaces() -> bool {
    // Of the calling thread's namespace.
    let early_demux = fs::read_to_string("/proc/sys/net/ipv4/tcp_early_demux").unwrap_or_default();
    let links = Rtnetlink::open().and_then(|mut rtnetlink| rtnetlink.links()).unwrap_or_default();
    early_demux.trim() == "0" && links.iter().any(|link| link.name.starts_with("vlan.eth."))
}

pub(super) fn node_netns(root: &Path) -> Result<Netns, NetnsError> {
    Netns::open(&root.join("proc/1/ns/net"))
}

/// Moves the calling thread to the node's cgroup namespace: a cgroup's path and level count from its root. Without it
/// the kubelet's cgroup stays unknown.
fn enter_cgroups(root: &Path) {
    let path = root.join("proc/1/ns/cgroup");
    let identity = |path: &Path| stat(path).map(|found| (found.st_dev, found.st_ino));
    if identity(&path) != identity(Path::new("/proc/thread-self/ns/cgroup"))
        && let Ok(namespace) = File::open(&path)
    {
        let _refused = setns(namespace, CloneFlags::CLONE_NEWCGROUP);
    }
}

/// Keeps the exemption of the node whose root is at `root` until `stop` is readable. `shared` is the directory of the
/// files. The calling thread stays in the node's namespaces.
pub fn keep_until(root: &Path, shared: &Path, stop: BorrowedFd<'_>) {
    watch(root, shared, stop, &Log::default());
}
