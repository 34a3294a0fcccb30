//! The agent's part of the exemption of the kubelet's probes: keeps the addresses of the node's ambient pods in a file
//! for the container `repair`, which has the rights to write the rules (`sandboxes::probe_exemption`), and reports when
//! these do not stand. The same file has the pods that this container has to enrol or to take out.

use super::ztunnel::AmbientPods;
use crate::error::chain;
use crate::lead::socket::CHECK_INTERVAL;
use crate::log::Log;
use crate::sandboxes::probe_exemption::{ExemptedPods, ExemptionReport};
use gybe_netfilter::model::policy::ambient::ProbeAddresses;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the probes of a new pod may be without their exemption before the agent is not ready: a container that is
/// replaced with its agent takes some seconds.
const MAX_LACKING: Duration = Duration::from_secs(15);

/// The files that the agent shares with the container `repair`.
#[derive(Debug)]
pub(super) struct ExemptionFiles {
    directory: PathBuf,
    source: ProbeAddresses,
    lacking: Mutex<Lacking>,
}

/// Since when probes are not exempt.
#[derive(Debug, Default)]
struct Lacking {
    /// By the address that the report lacks.
    addresses: BTreeMap<IpAddr, Instant>,
    /// There is no report, or it has a fault.
    report: Option<Instant>,
}

impl ExemptionFiles {
    pub(super) fn new(directory: PathBuf, source: ProbeAddresses) -> Self {
        Self { directory, source, lacking: Mutex::default() }
    }

    /// Returns the addresses that an earlier agent has kept, by the uid of the pod.
    pub(super) fn kept(&self, log: &Log) -> BTreeMap<String, BTreeSet<IpAddr>> {
        let kept = ExemptedPods::kept_in(&self.directory).unwrap_or_else(|why| {
            let fields =
                json!({ "why": chain(&why), "hint": "restart the ambient pods that fail their probes" });
            log.error("gybe node: the addresses of earlier ambient pods are lost", fields);
            None
        });
        kept.unwrap_or_default().pods
    }

    /// Keeps the file as the pods are, until `end` is readable. Another program may remove it: it is read again and
    /// again, and whenever the pods may have changed.
    pub(super) fn keep(
        &self,
        pods: &AmbientPods,
        due: &dyn Fn() -> BTreeSet<String>,
        end: BorrowedFd<'_>,
        log: &Log,
    ) {
        let changed = pods.subscribe();
        let mut fault = None;
        loop {
            let failed = self.store(pods, due()).err();
            if let Some(why) = failed.as_ref().filter(|why| Some(why.to_string()) != fault) {
                let fields = json!({ "why": why.to_string() });
                log.error("gybe node: the addresses of ambient pods cannot be kept for repair", fields);
            }
            fault = failed.map(|why| why.to_string());
            if changed.wait(end, CHECK_INTERVAL) {
                return;
            }
        }
    }

    /// Writes the file if it is not as the pods are.
    pub(super) fn store(&self, pods: &AmbientPods, due: BTreeSet<String>) -> io::Result<()> {
        let pods = pods.addresses().into_iter();
        let pods = pods.map(|(uid, addresses)| (uid.as_str().to_owned(), addresses)).collect();
        let desired = ExemptedPods { pods, due, v4: Some(self.source.v4()), v6: Some(self.source.v6()) };
        match ExemptedPods::kept_in(&self.directory) {
            Ok(Some(kept)) if kept == desired => Ok(()),
            _ => ExemptedPods::keep_in(Some(&desired), &self.directory),
        }
    }

    /// Returns why the probes of some pods are not exempt, once that lasts for longer than a start of `repair`.
    pub(super) fn not_ready(&self, pods: &AmbientPods) -> Option<String> {
        let addresses: BTreeSet<IpAddr> = pods.addresses().into_values().flatten().collect();
        let report = ExemptionReport::kept_in(&self.directory);
        let exempt = report.as_ref().map(|report| &report.addresses);
        let now = Instant::now();
        let mut lacking = self.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        let lacks = |address: &IpAddr| exempt.is_some_and(|exempt| !exempt.contains(address));
        lacking.addresses.retain(|address, _| addresses.contains(address) && lacks(address));
        for address in addresses.iter().filter(|address| lacks(address)) {
            lacking.addresses.entry(*address).or_insert(now);
        }
        let fault = match report {
            _ if addresses.is_empty() => None,
            None => Some("the container repair has not reported; check it in the agent's pod".to_owned()),
            Some(report) => report.fault,
        };
        lacking.report = fault.as_ref().map(|_| lacking.report.unwrap_or(now));
        let is_late = |since: &Instant| now.saturating_duration_since(*since) > MAX_LACKING;
        let late = lacking.addresses.values().filter(|since| is_late(since)).count();
        let why = fault.filter(|_| lacking.report.as_ref().is_some_and(is_late)).or_else(|| {
            (late > 0).then(|| format!("{late} addresses are not in the container repair's report"))
        })?;
        Some(format!("the kubelet's probes of ambient pods are not exempt: {why}"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_plugin::facts::ambient::{AmbientPod, PodUid};
    use gybe_plugin::probe_cache::{EXEMPTED_PODS, PROBE_EXEMPTION, replace_file};
    use gybe_test_support::{TestDir, wait_until};
    use std::os::fd::AsFd;
    use std::{fs, thread};

    fn files(directory: &TestDir) -> ExemptionFiles {
        ExemptionFiles::new(directory.to_path_buf(), ProbeAddresses::default())
    }

    fn pod(uid: &str, address: &str) -> AmbientPod {
        let pod = AmbientPod::parse(uid, "shop", uid, "default").unwrap();
        pod.with_addresses([address.parse().unwrap()])
    }

    fn wait_for(files: &ExemptionFiles, uids: &[&str]) {
        wait_until("the file", || {
            files.kept(&Log::default()).keys().map(String::as_str).eq(uids.iter().copied())
        });
    }

    #[test]
    fn the_file_has_the_addresses_of_the_pods_that_are_there() {
        let (directory, pods) = (TestDir::new("exempted-pods"), AmbientPods::default());
        let files = files(&directory);
        let (end, ending) = nix::unistd::pipe().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| files.keep(&pods, &BTreeSet::new, end.as_fd(), &Log::default()));
            wait_for(&files, &[]);
            pods.adopt(pod("u-1", "10.0.0.1"), None);
            pods.adopt(pod("u-2", "10.0.0.2"), None);
            pods.adopt(AmbientPod::parse("u-3", "shop", "unknown", "default").unwrap(), None);
            wait_for(&files, &["u-1", "u-2"]);
            pods.remove(&PodUid::parse("u-1").unwrap());
            wait_for(&files, &["u-2"]);
            // A clean-up of the directory.
            fs::remove_file(directory.join(EXEMPTED_PODS)).unwrap();
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
        let is_late = || {
            let mut lacking = files.lacking.lock().unwrap();
            let Lacking { addresses, report } = &mut *lacking;
            let times = addresses.values_mut().chain(report);
            times.for_each(|since| *since -= MAX_LACKING + Duration::from_secs(1));
            drop(lacking);
            files.not_ready(&pods)
        };
        assert!(is_late().unwrap().contains("has not reported"));
        let report = |json: &str| replace_file(&directory, PROBE_EXEMPTION, json).unwrap();
        report(r#"{"addresses": ["10.0.0.2"], "matches_cgroup": true, "fault": null}"#);
        assert_eq!(files.not_ready(&pods), None, "the report is new, and repair may be slow");
        assert!(is_late().unwrap().contains("1 addresses are not"));
        // Another pod is no reason while the first one waits for less than that time.
        pods.remove(&PodUid::parse("u-1").unwrap());
        pods.adopt(pod("u-4", "10.0.0.4"), None);
        assert_eq!(files.not_ready(&pods), None, "a pod has started at each look");
        pods.adopt(pod("u-1", "10.0.0.1"), None);
        pods.remove(&PodUid::parse("u-4").unwrap());
        report(r#"{"addresses": ["10.0.0.1"], "matches_cgroup": true, "fault": "no nf_tables"}"#);
        assert_eq!(files.not_ready(&pods), None, "the fault is new");
        assert!(is_late().unwrap().contains("no nf_tables"));
        report(r#"{"addresses": ["10.0.0.1"], "matches_cgroup": true, "fault": null}"#);
        assert_eq!(is_late(), None);
        assert_eq!(files.not_ready(&pods), None);
    }
}
