//! The agent's part of the exemption of the kubelet's probes: keeps the addresses of the node's ambient pods in a file
//! for the container `repair`, which has the rights to write the rules (`sandboxes::probe_exemption`), and reports when
//! these do not stand.

use super::ztunnel::AmbientPods;
use crate::log::Log;
use crate::sandboxes::probe_exemption::{ExemptedPods, ExemptionReport};
use gybe_netfilter::model::policy::ambient::ProbeAddresses;
use gybe_plugin::facts::ambient::PodUid;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the probes of a new pod may be without their exemption before the agent is not ready: a container that is
/// replaced with its agent takes some seconds.
const MAX_LACKING: Duration = Duration::from_secs(15);

/// After how long a file that could not be written is written again.
const RETRY: Duration = Duration::from_secs(1);

/// The files that the agent shares with the container `repair`.
#[derive(Debug)]
pub(super) struct ExemptionFiles {
    directory: PathBuf,
    source: ProbeAddresses,
    /// Since when the report lacks a pod, or has a fault.
    lacking: Mutex<Option<Instant>>,
}

impl ExemptionFiles {
    pub(super) fn new(directory: PathBuf, source: ProbeAddresses) -> Self {
        Self { directory, source, lacking: Mutex::default() }
    }

    /// Returns the addresses that an earlier agent has kept, by the uid of the pod.
    pub(super) fn kept(&self) -> BTreeMap<String, BTreeSet<IpAddr>> {
        ExemptedPods::kept_in(&self.directory).ok().flatten().unwrap_or_default().pods
    }

    /// Keeps the file as the pods are, until `end` is readable. `changed` is readable when they have changed.
    pub(super) fn keep(&self, pods: &AmbientPods, changed: &EventFd, end: BorrowedFd<'_>, log: &Log) {
        let mut kept = None;
        let mut is_known = true;
        loop {
            let wanted = self.wanted(pods.addresses());
            if kept.as_ref() != Some(&wanted) {
                match ExemptedPods::keep_in(Some(&wanted), &self.directory) {
                    Ok(()) => (kept, is_known) = (Some(wanted), true),
                    Err(why) if is_known => {
                        let fields = json!({ "why": why.to_string() });
                        log.error(
                            "gybe node: the addresses of ambient pods cannot be kept for repair",
                            fields,
                        );
                        is_known = false;
                    }
                    Err(_) => {}
                }
            }
            let timeout = if is_known { PollTimeout::NONE } else { timeout(RETRY) };
            let mut fds =
                [PollFd::new(end, PollFlags::POLLIN), PollFd::new(changed.as_fd(), PollFlags::POLLIN)];
            // An interrupted wait is a turn that finds nothing new.
            let _ = poll(&mut fds, timeout);
            if fds[0].any() != Some(false) {
                return;
            }
            // A counter that is zero already was read before.
            let _ = changed.read();
        }
    }

    fn wanted(&self, pods: BTreeMap<PodUid, BTreeSet<IpAddr>>) -> ExemptedPods {
        let pods = pods.into_iter().map(|(uid, addresses)| (uid.as_str().to_owned(), addresses)).collect();
        ExemptedPods { pods, v4: Some(self.source.v4()), v6: Some(self.source.v6()) }
    }

    /// Returns why the probes of some pods are not exempt, once that lasts for longer than a start of `repair`.
    pub(super) fn not_ready(&self, pods: &AmbientPods) -> Option<String> {
        let addresses: BTreeSet<IpAddr> = pods.addresses().into_values().flatten().collect();
        let why = if addresses.is_empty() { None } else { self.lack_of(&addresses) };
        let mut lacking = self.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(why) = why else {
            *lacking = None;
            return None;
        };
        let since = *lacking.get_or_insert_with(Instant::now);
        let text = || format!("the kubelet's probes of ambient pods are not exempt: {why}");
        (since.elapsed() > MAX_LACKING).then(text)
    }

    fn lack_of(&self, addresses: &BTreeSet<IpAddr>) -> Option<String> {
        let Some(report) = ExemptionReport::kept_in(&self.directory) else {
            return Some("the container repair has not reported; check it in the agent's pod".to_owned());
        };
        match (report.fault, addresses.difference(&report.addresses).count()) {
            (Some(fault), _) => Some(fault),
            (None, 0) => None,
            (None, lacking) => Some(format!("{lacking} addresses are not in the container repair's report")),
        }
    }
}

/// Removes the file of an agent that had ambient mode: then `repair` removes its rules.
pub(super) fn forget_exempted_pods(directory: &Path, log: &Log) {
    if let Err(why) = ExemptedPods::keep_in(None, directory) {
        let fields = json!({ "why": why.to_string() });
        log.error(
            "gybe node: the file of ambient pods cannot be removed; repair keeps their exemption",
            fields,
        );
    }
}

fn timeout(duration: Duration) -> PollTimeout {
    PollTimeout::try_from(duration).unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_plugin::facts::ambient::AmbientPod;
    use gybe_plugin::probe_cache::{PROBE_EXEMPTION, replace_file};
    use gybe_test_support::{TestDir, wait_until};
    use std::thread;

    fn files(directory: &TestDir) -> ExemptionFiles {
        ExemptionFiles::new(directory.to_path_buf(), ProbeAddresses::default())
    }

    fn pod(uid: &str, address: &str) -> AmbientPod {
        let pod = AmbientPod::parse(uid, "shop", uid, "default").unwrap();
        pod.with_addresses([address.parse().unwrap()])
    }

    fn wait_for(files: &ExemptionFiles, uids: &[&str]) {
        wait_until("the file", || files.kept().keys().map(String::as_str).eq(uids.iter().copied()));
    }

    #[test]
    fn the_file_has_the_addresses_of_the_pods_that_are_there() {
        let (directory, pods) = (TestDir::new("exempted-pods"), AmbientPods::default());
        let files = files(&directory);
        let changed = pods.subscribe().unwrap();
        let (end, ending) = nix::unistd::pipe().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| files.keep(&pods, &changed, end.as_fd(), &Log::default()));
            wait_for(&files, &[]);
            pods.adopt(pod("u-1", "10.0.0.1"), None);
            pods.adopt(pod("u-2", "10.0.0.2"), None);
            pods.adopt(AmbientPod::parse("u-3", "shop", "unknown", "default").unwrap(), None);
            wait_for(&files, &["u-1", "u-2"]);
            pods.remove(&PodUid::parse("u-1").unwrap());
            wait_for(&files, &["u-2"]);
            drop(ending);
        });
    }

    #[test]
    fn a_report_without_a_pods_address_is_a_reason_after_some_time() {
        let (directory, pods) = (TestDir::new("exemption-report"), AmbientPods::default());
        let files = files(&directory);
        assert_eq!(files.not_ready(&pods), None, "no pod, no report");
        pods.adopt(pod("u-1", "10.0.0.1"), None);
        assert_eq!(files.not_ready(&pods), None, "repair may be starting");
        let long_ago = Instant::now().checked_sub(MAX_LACKING + Duration::from_secs(1)).unwrap();
        let is_late = || {
            *files.lacking.lock().unwrap() = Some(long_ago);
            files.not_ready(&pods)
        };
        assert!(is_late().unwrap().contains("has not reported"));
        let report = |json: &str| replace_file(&directory, PROBE_EXEMPTION, json).unwrap();
        report(r#"{"addresses": ["10.0.0.2"], "matches_cgroup": true, "fault": null}"#);
        assert!(is_late().unwrap().contains("1 addresses are not"));
        report(r#"{"addresses": ["10.0.0.1"], "matches_cgroup": true, "fault": "no nf_tables"}"#);
        assert!(is_late().unwrap().contains("no nf_tables"));
        report(r#"{"addresses": ["10.0.0.1"], "matches_cgroup": true, "fault": null}"#);
        assert_eq!(is_late(), None);
        assert_eq!(files.not_ready(&pods), None);
    }
}
