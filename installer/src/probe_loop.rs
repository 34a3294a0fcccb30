//! The loop of `gybe probe --watch`, which keeps the probe's report up to date: it probes at the start, and again when
//! the report was removed, has findings that do not work, or is another kernel's. The plugin removes the report on the
//! first "not supported"; this loop notices that at once, so that the next ADD finds a new one. While a finding does not
//! work, the pauses grow (`ProbeSchedule`).

use crate::error::errno;
use crate::host::platform::Platform;
use crate::host::runtimes::RuntimeReport;
use crate::host::runtimes::processes::{DropInCheck, RuntimeProcess, running};
use crate::host::settings::PROBE_LEADER;
use crate::host::watch::{DirectoryWatch, WakeReason, WatchedDirectories};
use crate::lead::leader::{self, Candidate, LeadEnd};
use crate::lead::process::{Role, Shared};
use crate::lead::socket::{SocketContext, SocketFileError, SocketHealth};
use crate::log::Log;
use crate::retry::Backoff;
use crate::sandboxes::probe_exemption;
use crate::sandboxes::repair::{self, Occasion, RepairNode};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::model::Hint;
use gybe_netfilter::probe::Capabilities;
use gybe_netfilter::probe::choose::{BackendSetting, choose, flawless};
use gybe_plugin::probe_cache::{DIRECTORY, MaxAge, ProbeCache, ProbeCacheError, ProbeReport};
use nix::errno::Errno;
use nix::sys::signalfd::SignalFd;
use serde_json::json;
use std::borrow::Cow;
use std::io::{self, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Where containerd, CRI-O, and the containerd of k3s, k0s and MicroK8s have their sockets by default.
const RUNTIME_DIRECTORIES: [&str; 5] =
    ["/run/containerd", "/run/crio", "/run/k3s/containerd", "/run/k0s", "/var/snap/microk8s/common/run"];
/// How often the loop checks what causes no event: which runtimes run, and their configuration.
const POLL_INTERVAL: Duration = Duration::from_secs(60);

/// Returns a backend that has not been probed.
#[must_use]
pub(crate) fn untried(known: &Capabilities) -> Option<BackendKind> {
    BackendKind::ALL.into_iter().find(|kind| !known.backends.contains(*kind))
}

/// Whether the report has to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Required,
    IfPossible,
}

/// Why the loop cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeLoopError {
    #[error(transparent)]
    Probe(#[from] ProbeCacheError),
    #[error("the findings cannot be kept in /run/gybe")]
    Store(#[source] io::Error),
    #[error("cannot find out which probe of the node leads, in /run/gybe")]
    Lead(#[source] SocketFileError),
    #[error("cannot wait for signals")]
    Wait(#[from] Errno),
}

impl Hint for ProbeLoopError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Probe(source) => source.hint(),
            Self::Lead(source) => source.hint(),
            Self::Store(_) | Self::Wait(_) => None,
        }
    }
}

/// Keeps the report up to date while this process leads among the probes of the node (`leader`), until `stop` is
/// readable. The leader also repairs the pods of `repair`, when the agent's setting requests it.
///
/// # Errors
/// When this process cannot probe, or, with `Keep::Required`, cannot store its first report: what prevents that would
/// prevent every later one.
pub(crate) fn run(
    stop: &SignalFd,
    keep: Keep,
    repair: Option<&RepairNode>,
    log: &Log,
) -> Result<(), ProbeLoopError> {
    let (health, role) = (SocketHealth::default(), Shared::default());
    let context = SocketContext { log, health: &health, role: &role };
    let candidate = Candidate::new(Path::new(DIRECTORY), PROBE_LEADER, leader::pod_start(None), "");
    loop {
        let waits = || log.info("gybe probe: another probe leads on this node; waiting", json!({}));
        let mut lead = match candidate.wait(stop.as_fd(), &mut || true, waits) {
            Ok(Some(lead)) => lead,
            Ok(None) => return Ok(()),
            // Nothing can be stored there, by this probe or another one.
            Err(_) if keep == Keep::IfPossible => return probe_and_watch(stop.as_fd(), keep, log),
            Err(why) => return Err(ProbeLoopError::Lead(why)),
        };
        role.set(Role::leads());
        let (halted, probing) = pipe().map_err(|why| errno(&why))?;
        let (ended, running) = pipe().map_err(|why| errno(&why))?;
        let halted = halted.as_fd();
        let (end, watched) = thread::scope(|scope| {
            if let Some(node) = repair {
                let occasion = Occasion::AsTheAgentRequests(Path::new(DIRECTORY));
                scope.spawn(move || repair::watch(node, occasion, halted, log));
                scope.spawn(move || probe_exemption::watch(&node.root, Path::new(DIRECTORY), halted, log));
            }
            let watched = scope.spawn(move || {
                let _closed_at_the_end = running;
                probe_and_watch(halted, keep, log)
            });
            let end = lead.wait(&[stop.as_fd(), ended.as_fd()], context);
            drop(probing);
            (end, watched.join())
        });
        watched.unwrap_or(Ok(()))?;
        match end? {
            LeadEnd::Stopped => return Ok(()),
            LeadEnd::Requested(successor) => {
                role.set(Role::HandedOver { was_ready: true });
                log.info("gybe probe: hands over to a newer probe of this node", json!({}));
                lead.hand_over(successor, stop.as_fd());
            }
            LeadEnd::Lost => role.set(Role::HandedOver { was_ready: true }),
        }
    }
}

/// Probes all backends, whatever is known, and then keeps the report up to date until `stop` is readable.
fn probe_and_watch(stop: BorrowedFd<'_>, keep: Keep, log: &Log) -> Result<(), ProbeLoopError> {
    let report = probe_at_start(keep, log)?;
    let mut watch = DirectoryWatch::of(watched_directories());
    let mut schedule = ProbeSchedule::new(&report.capabilities, Instant::now());
    let mut runtimes = Vec::new();
    loop {
        watch.set_paths(watched_directories());
        keep_report(&reported_runtimes(&mut runtimes).renewed(), log);
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
        if watch.wait(wait, Some(stop)) == WakeReason::Readable {
            return Ok(());
        }
    }
}

/// The directories whose changes wake the loop: that of the report, and those in which a runtime that starts makes its
/// socket. It starts pods after that, and may be of another version.
fn watched_directories() -> WatchedDirectories {
    let of_runtimes = RUNTIME_DIRECTORIES.into_iter().map(PathBuf::from).filter(|path| path.is_dir());
    let written = [PathBuf::from(DIRECTORY)].into_iter().chain(of_runtimes).collect();
    WatchedDirectories { written, renamed: Vec::new() }
}

/// Probes all backends and stores the report and the one about the runtimes. Called in the host's mount namespace.
///
/// # Errors
/// When this process cannot probe, or cannot store the probe's report. A failure of the other one is logged.
pub(crate) fn run_once(log: &Log) -> Result<(), ProbeLoopError> {
    probe_at_start(Keep::Required, log)?;
    keep_report(&reported_runtimes(&mut Vec::new()), log);
    Ok(())
}

/// Probes all backends, whatever is known, and stores the report.
fn probe_at_start(keep: Keep, log: &Log) -> Result<ProbeReport, ProbeLoopError> {
    let mut report = ProbeCache::default().get_or_probe(MaxAge::Fresh, untried)?;
    if let Some(why) = report.store_error.take_if(|_| keep == Keep::Required) {
        return Err(ProbeLoopError::Store(why));
    }
    log_result(log, &report);
    Ok(report)
}

/// Returns the report about the node's runtimes. Called in the host's mount namespace. A runtime's program is read once:
/// it has some 50 MB.
fn reported_runtimes(known: &mut Vec<RuntimeProcess>) -> RuntimeReport {
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
    RuntimeReport::of(root, &now_running)
}

/// Stores it for the agent.
fn keep_report(report: &RuntimeReport, log: &Log) {
    if let Err(why) = report.keep_in(Path::new(DIRECTORY)) {
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

/// The shortest pause, however often pods fail: a probe takes some tenths of a second of a processor.
const SHORTEST_PAUSE: Duration = Duration::from_secs(5);
/// How long after a probe with a finding that does not work the loop probes again; until then the plugin relies on
/// that finding.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
/// The longest pause while a finding does not work: only a loaded kernel module changes it, and no pod waits for that.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// The state of the stored report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportState {
    /// Findings about every backend, and all of them work.
    Complete,
    /// A finding does not work, a backend is missing, or the report is another kernel's or version's.
    Doubtful,
    Missing,
}

/// The last probe, and the pause after it.
#[derive(Debug)]
pub(super) struct ProbeSchedule {
    last: Instant,
    backoff: Backoff,
    pause: Duration,
}

impl ProbeSchedule {
    pub(super) fn new(found: &Capabilities, now: Instant) -> Self {
        let backoff = Backoff::new(FIRST_PAUSE);
        let mut schedule = Self { last: now, backoff, pause: FIRST_PAUSE };
        // Counted as a failure: the next pause after a finding that does not work is twice the first one.
        schedule.backoff.failed(LONGEST_PAUSE);
        schedule.probed(Some(found), now);
        schedule
    }

    /// Returns when the next probe is due; none while the report is complete.
    pub(super) fn due(&self, state: ReportState) -> Option<Instant> {
        match state {
            ReportState::Complete => None,
            ReportState::Doubtful => Some(self.last + self.pause),
            ReportState::Missing => Some(self.last + SHORTEST_PAUSE),
        }
    }

    /// Records the findings of a probe; none if the probe could not run.
    pub(super) fn probed(&mut self, found: Option<&Capabilities>, now: Instant) {
        if found.is_some_and(is_flawless) {
            self.backoff.succeeded();
        }
        self.pause = self.backoff.failed(LONGEST_PAUSE);
        self.last = now;
    }
}

/// Reports whether all findings work.
pub(super) fn is_flawless(found: &Capabilities) -> bool {
    found.backends.values().all(flawless)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_netfilter::apply::backend::BackendKind;
    use gybe_netfilter::probe::{Finding, Profile, Refusal};
    use gybe_plugin::probe_cache::{findings, this_node};
    use gybe_test_support::TestDir;

    /// A finding that the plugin uses until the next boot is probed again here, and nowhere on the path of a pod.
    #[test]
    fn a_backend_that_does_not_work_is_probed_again_although_another_works() {
        let directory = TestDir::new("probe-loop");
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
            directory.write("probe.json", json.to_string());
            assert_eq!(report_state(&cache), state);
        }
    }

    fn found(finding: &Finding) -> Capabilities {
        let findings = [(Profile::V4, finding.clone())].into_iter().collect();
        Capabilities {
            backends: [(BackendKind::Nft, findings)].into_iter().collect(),
            ..Capabilities::default()
        }
    }

    #[test]
    fn a_removed_report_is_replaced_soon_but_not_for_every_failing_pod() {
        let now = Instant::now();
        let schedule = ProbeSchedule::new(&found(&Finding::Works), now);
        assert_eq!(schedule.due(ReportState::Complete), None);
        assert_eq!(schedule.due(ReportState::Missing), Some(now + SHORTEST_PAUSE));
    }

    #[test]
    fn pauses_grow_while_a_finding_does_not_work() {
        let now = Instant::now();
        let mut schedule = ProbeSchedule::new(&found(&Finding::Refused(Refusal::default())), now);
        let pauses = (0..6).map(|_| {
            let due = schedule.due(ReportState::Doubtful).unwrap() - schedule.last;
            schedule.probed(None, now);
            due.as_secs()
        });
        assert_eq!(pauses.collect::<Vec<_>>(), [60, 120, 240, 480, 600, 600]);
        schedule.probed(Some(&found(&Finding::Works)), now);
        assert_eq!(schedule.due(ReportState::Doubtful), Some(now + FIRST_PAUSE));
    }
}
