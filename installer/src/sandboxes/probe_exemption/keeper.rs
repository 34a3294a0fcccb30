//! The loop that keeps the exemption: it compares the node's table with the agent's file when one of them, or the
//! kubelet's cgroup, may have changed, and stores what stands.

use super::{ExemptedPods, ExemptionError, ExemptionReport, enter_cgroups, keep, node_netns};
use crate::error::chain;
use crate::host::kubelet::{self, Kubelet};
use crate::host::watch::{DirectoryWatch, WakeReason, WatchedDirectories};
use crate::log::Log;
use crate::retry::{Backoff, RateLimit};
use gybe_netfilter::model::Hint as _;
use gybe_netfilter::nft::events::RuleEvents;
use gybe_netfilter::nft::exemption::{ExemptionChange, KeptExemption, TABLE, is_there, remove};
use gybe_plugin::probe_cache::PROBE_EXEMPTION;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use serde_json::json;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often the table is compared when nothing reports a change, and the longest pause after failures.
const INTERVAL: Duration = Duration::from_secs(60);
/// The shortest time between two comparisons: a reload of the node's rules is many changes.
const PAUSE: Duration = Duration::from_millis(100);
/// So many changes of the table at once, and then one each second: another program may undo each.
const BURST: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);
/// The first pause after a failure, and each while the kubelet is away.
const RETRY: Duration = Duration::from_secs(1);

/// As [`super::keep_until`], with a log.
pub(crate) fn watch(root: &Path, shared: &Path, stop: BorrowedFd<'_>, log: &Log) {
    let directories = WatchedDirectories { renamed: vec![shared.to_owned()], written: Vec::new() };
    let mut keeper = ExemptionKeeper {
        root,
        shared,
        log,
        watch: DirectoryWatch::of(directories),
        events: None,
        kubelet: Kubelet::Absent,
        is_away: false,
        is_started: false,
        exempts_root: false,
        limit: RateLimit::new(BURST, PERIOD),
        backoff: Backoff::new(RETRY),
    };
    loop {
        let wait = keeper.turn();
        let pause = keeper.limit.wait(Instant::now()).max(PAUSE);
        if is_readable(stop, pause) || keeper.wait(wait, stop) {
            return;
        }
    }
}

struct ExemptionKeeper<'a> {
    root: &'a Path,
    shared: &'a Path,
    log: &'a Log,
    /// The directory of the files, and the kubelet's cgroup, which has another inode when the kubelet was restarted.
    watch: DirectoryWatch,
    /// Open once this thread is in the node's namespaces.
    events: Option<RuleEvents>,
    /// The kubelet as it was found last.
    kubelet: Kubelet,
    /// Whether it has no process now. It is expected in the same cgroup, and the table stays as it is.
    is_away: bool,
    /// Whether a table that an earlier process has left was looked for.
    is_started: bool,
    /// Whether the warning that all connections of root are exempt was logged.
    exempts_root: bool,
    limit: RateLimit,
    backoff: Backoff,
}

impl ExemptionKeeper<'_> {
    /// Returns how long to wait for the next turn when nothing changes.
    fn turn(&mut self) -> Duration {
        let stood = ExemptionReport::kept_in(self.shared);
        let kept = ExemptedPods::kept_in(self.shared).and_then(|pods| match pods {
            Some(pods) => self.keep(&pods).map(Some),
            // This process, or an earlier one, has kept an exemption.
            None if stood.is_some() || self.events.is_some() || self.is_left() => self.end().map(|()| None),
            None => Ok(None),
        });
        self.is_started = true;
        let report = match kept {
            Ok(report) => report,
            Err(why) => {
                let hint = why.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                let fault = Some(format!("{}{hint}", chain(&why)));
                Some(ExemptionReport { fault, ..stood.clone().unwrap_or_default() })
            }
        };
        let fault = report.as_ref().and_then(|report| report.fault.clone());
        let known = stood.as_ref().and_then(|report| report.fault.as_ref());
        if let Some(why) = fault.as_ref().filter(|fault| Some(*fault) != known) {
            self.log.error(
                "gybe repair: cannot keep the exemption of the kubelet's probes",
                json!({ "why": why }),
            );
        }
        // The next turn compares with the file again.
        if report != stood
            && let Err(why) = keep(report.as_ref(), self.shared, PROBE_EXEMPTION)
        {
            let fields = json!({ "why": why.to_string() });
            self.log.warn("gybe repair: the report about the kubelet's probes cannot be stored", fields);
        }
        if fault.is_some() {
            return self.backoff.failed(INTERVAL);
        }
        self.backoff.succeeded();
        if self.is_away { RETRY } else { INTERVAL }
    }

    /// Reports whether an earlier process has left a table; only before the first turn has ended.
    fn is_left(&self) -> bool {
        !self.is_started && node_netns(self.root).is_ok_and(|node| matches!(node.run(is_there), Ok(Ok(true))))
    }

    /// Compares the table with the pods, and changes it where it differs.
    fn keep(&mut self, pods: &ExemptedPods) -> Result<ExemptionReport, ExemptionError> {
        self.enter()?;
        if self.find_kubelet() {
            // It may have changed before it was watched.
            self.find_kubelet();
        }
        let (exemption, refused) = pods.exemption(&self.kubelet)?;
        let kept = exemption.keep();
        if !matches!(kept, Ok(KeptExemption { change: ExemptionChange::None, .. })) {
            self.limit.count(Instant::now());
        }
        let KeptExemption { matches_cgroup, change } = kept?;
        self.report_root(!matches_cgroup);
        let directory = self.cgroup_directory().filter(|_| matches_cgroup);
        let fields = json!({ "addresses": exemption.pods.len(), "cgroup": directory });
        match change {
            ExemptionChange::None => {}
            ExemptionChange::Addresses(changed) => {
                let fields = json!({ "addresses": exemption.pods.len(), "changed": changed });
                self.log.info("gybe repair: changed the addresses whose probes are exempt", fields);
            }
            ExemptionChange::Table => {
                self.log.info("gybe repair: wrote the exemption of the kubelet's probes", fields);
            }
        }
        let refused = Some(refused).filter(|refused| !refused.is_empty());
        let fault = refused.map(|refused| chain(&ExemptionError::Addresses(refused)));
        Ok(ExemptionReport { addresses: exemption.pods, matches_cgroup, fault })
    }

    /// Logs once that all connections of root are exempt, and why.
    fn report_root(&mut self, exempts_root: bool) {
        if exempts_root && !self.exempts_root {
            let why = match self.kubelet {
                Kubelet::Absent => "no process of the kubelet was found",
                Kubelet::WithoutCgroup => "the kubelet's cgroup (v2) is the root cgroup, or cannot be seen",
                Kubelet::In { .. } => {
                    "the kernel cannot match the kubelet's cgroup; Linux 5.13 and later can"
                }
            };
            self.log.warn(
                "gybe repair: every connection of root to ambient pods is exempt",
                json!({ "why": why }),
            );
        }
        self.exempts_root = exempts_root;
    }

    /// Removes the table.
    fn end(&mut self) -> Result<(), ExemptionError> {
        self.enter()?;
        remove()?;
        self.events = None;
        (self.kubelet, self.is_away, self.exempts_root) = (Kubelet::Absent, false, false);
        self.watch_cgroup();
        self.log.info("gybe repair: removed the exemption of the kubelet's probes", json!({}));
        Ok(())
    }

    /// Finds the kubelet and watches its cgroup; reports whether that is another one.
    fn find_kubelet(&mut self) -> bool {
        let found = kubelet::find(self.root);
        self.is_away = found == Kubelet::Absent && self.kubelet != Kubelet::Absent;
        if found != Kubelet::Absent {
            self.kubelet = found;
        }
        self.watch_cgroup()
    }

    fn cgroup_directory(&self) -> Option<&Path> {
        match &self.kubelet {
            Kubelet::In { directory, .. } => Some(directory),
            Kubelet::Absent | Kubelet::WithoutCgroup => None,
        }
    }

    fn watch_cgroup(&mut self) -> bool {
        let directory = self.cgroup_directory().map(Path::to_owned);
        let renamed = [self.shared.to_owned()].into_iter().chain(directory).collect();
        self.watch.set_paths(WatchedDirectories { renamed, written: Vec::new() })
    }

    /// Moves the calling thread to the node's namespaces, and listens to changes of rules there.
    fn enter(&mut self) -> Result<(), ExemptionError> {
        if self.events.is_none() {
            node_netns(self.root)?.enter()?;
            enter_cgroups(self.root);
            self.events = Some(RuleEvents::open()?);
        }
        Ok(())
    }

    /// Waits until something has changed, or this time is up; reports whether `stop` is readable.
    fn wait(&mut self, at_most: Duration, stop: BorrowedFd<'_>) -> bool {
        let until = Instant::now() + at_most;
        let events = self.events.as_ref().map(AsFd::as_fd);
        let either = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).and_then(|either| {
            for fd in [Some(stop), events].into_iter().flatten() {
                either.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            }
            Ok(either)
        });
        let either = either.as_ref().map_or(stop, |either| either.0.as_fd());
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.watch.wait(left, Some(either)) {
                WakeReason::Readable if is_readable(stop, Duration::ZERO) => return true,
                WakeReason::Readable => {
                    match self.events.as_mut().map(|events| events.reports_change_of(TABLE)) {
                        Some(Ok(false)) if !left.is_zero() => {}
                        Some(Err(_)) => {
                            // The next turn listens again.
                            self.events = None;
                            return false;
                        }
                        _ => return false,
                    }
                }
                WakeReason::Changed | WakeReason::TimedOut => return false,
            }
        }
    }
}

fn is_readable(descriptor: BorrowedFd<'_>, within: Duration) -> bool {
    let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
    let mut fds = [PollFd::new(descriptor, PollFlags::POLLIN)];
    matches!(poll(&mut fds, timeout), Ok(1..))
}
