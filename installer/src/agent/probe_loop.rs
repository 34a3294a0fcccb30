//! The loop of `gybe probe --watch`, which keeps the probe's report up to date: it probes at the start, and again when the report
//! was removed, has findings that do not work, or is another kernel's. The plugin removes the report on the first "not
//! supported"; this loop notices that at once, so that the next ADD finds a new one.

mod schedule;

use crate::host::platform::Platform;
use crate::host::runtimes::processes::{DropInCheck, RuntimeProcess, running};
use crate::host::runtimes::report::RuntimeReport;
use crate::host::watch::{DirectoryWatch, WakeReason};
use crate::log::Log;
use gybe_netfilter::backend::BackendKind;
use gybe_netfilter::choose::{BackendSetting, choose};
use gybe_netfilter::hint::Hint;
use gybe_netfilter::probe::Capabilities;
use gybe_plugin::probe_cache::{DIRECTORY, MaxAge, ProbeCache, ProbeCacheError, ProbeReport};
use nix::sys::signalfd::SignalFd;
use schedule::{ReportState, Schedule, is_flawless};
use serde_json::json;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often the loop checks what causes no event: which runtimes run, and their configuration.
const POLL_INTERVAL: Duration = Duration::from_secs(60);

/// Returns a backend that has not been probed.
#[must_use]
pub(crate) fn untried(known: &Capabilities) -> Option<BackendKind> {
    BackendKind::ALL.into_iter().find(|kind| !known.backends.contains(*kind))
}

/// Probes all backends, whatever is known, and stores the report.
///
/// # Errors
/// When this process cannot probe.
pub(crate) fn probe_all() -> Result<ProbeReport, ProbeCacheError> {
    ProbeCache::default().get_or_probe(MaxAge::Fresh, untried)
}

/// Keeps the report up to date until `stop` is readable. `report` is the first one.
pub(crate) fn watch(report: &ProbeReport, stop: &SignalFd, log: &Log) {
    let mut watch = DirectoryWatch::new([DIRECTORY.into()]);
    let mut schedule = Schedule::new(&report.capabilities, Instant::now());
    log_result(log, report);
    let mut runtimes = Vec::new();
    loop {
        report_runtimes(&mut runtimes, log);
        // After the watch was set up: a change from here on wakes the wait below.
        let now = Instant::now();
        let wait = match schedule.due(report_state(&ProbeCache::default())) {
            None => POLL_INTERVAL,
            Some(due) if due > now => due - now,
            Some(_) => {
                schedule.probed(probe_again(log).as_ref(), now);
                continue;
            }
        };
        if watch.wait(wait, Some(stop.as_fd())) == WakeReason::Readable {
            return;
        }
    }
}

/// Stores the node's runtimes for the agent. Called in the host's mount namespace. A runtime's program is read once: it has some
/// 50 MB.
fn report_runtimes(known: &mut Vec<RuntimeProcess>, log: &Log) {
    let root = Path::new("/");
    let conf = Platform::of_host(root).node_directories(root).conf;
    let mut now_running = running(root, &conf, DropInCheck::Skip);
    let same =
        |one: &RuntimeProcess, other: &RuntimeProcess| (&one.name, one.pid) == (&other.name, other.pid);
    if now_running.iter().any(|one| !known.iter().any(|other| same(one, other))) {
        now_running = running(root, &conf, DropInCheck::Read);
    } else {
        for one in &mut now_running {
            one.drop_ins = known.iter().find(|other| same(one, other)).and_then(|other| other.drop_ins);
        }
    }
    known.clone_from(&now_running);
    if let Err(why) = RuntimeReport::of(root, &now_running).keep_in(Path::new(DIRECTORY)) {
        let fields = json!({ "why": why.to_string() });
        log.warn("gybe probe: the report about the runtimes cannot be stored in /run/gybe", fields);
    }
}

/// Returns the state of the stored report, as the plugin reads it.
fn report_state(cache: &ProbeCache) -> ReportState {
    match cache.load() {
        Some(known) if untried(&known).is_none() && is_flawless(&known) => ReportState::Complete,
        Some(_) => ReportState::Doubtful,
        None if cache.exists() => ReportState::Doubtful,
        None => ReportState::Missing,
    }
}

fn probe_again(log: &Log) -> Option<Capabilities> {
    match ProbeCache::default().get_or_probe(MaxAge::Recent, untried) {
        Ok(report) => {
            log_result(log, &report);
            Some(report.capabilities)
        }
        Err(why) => {
            let hint = why.hint();
            log.error("gybe probe: cannot probe again", json!({ "why": why.to_string(), "hint": hint }));
            None
        }
    }
}

fn log_result(log: &Log, report: &ProbeReport) {
    match choose(&report.capabilities, BackendSetting::Auto) {
        Ok(choice) => {
            let fields =
                json!({ "backend": choice.backend.name(), "why": choice.why, "kernel": report.node.kernel });
            log.info("gybe probe: probed the node", fields);
        }
        Err(none) => {
            let fields =
                json!({ "why": none.to_string(), "hint": none.hint(), "kernel": report.node.kernel });
            log.error("gybe probe: no backend works", fields);
        }
    }
    if let Some(why) = &report.store_error {
        log.warn("gybe probe: the report cannot be stored in /run/gybe", json!({ "why": why.to_string() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_netfilter::probe::{Finding, Profile, Refusal};
    use gybe_plugin::probe_cache::findings;
    use gybe_plugin::probe_cache::this_node;
    use std::fs;

    /// A finding that the plugin uses until the next boot is probed again here, and nowhere on the path of a pod.
    #[test]
    fn a_backend_that_does_not_work_is_probed_again_although_another_works() {
        let directory = std::env::temp_dir().join(format!("gybe-node-probe-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let cache = ProbeCache::at(&directory);
        assert_eq!(report_state(&cache), ReportState::Missing);
        for (of_legacy, state) in [
            (Some(Finding::Works), ReportState::Complete),
            (Some(Finding::Refused(Refusal::default())), ReportState::Doubtful),
            (None, ReportState::Doubtful),
        ] {
            let all = |finding: Finding| {
                Profile::ALL.map(|profile| (profile, finding.clone())).into_iter().collect()
            };
            let findings = [Some(Finding::Works), Some(Finding::Works), of_legacy];
            let backends = BackendKind::ALL.into_iter().zip(findings);
            let backends = backends.filter_map(|(kind, finding)| Some((kind, all(finding?)))).collect();
            let capabilities = Capabilities { backends, ..Capabilities::default() };
            let json = findings::to_json(&this_node().unwrap(), &capabilities);
            fs::write(directory.join("probe.json"), json.to_string()).unwrap();
            assert_eq!(report_state(&cache), state);
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
