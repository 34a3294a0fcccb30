//! The agent's status: the report of each turn of the reconcile loop, counters over all turns, and the snapshot that
//! `/readyz`, `/metrics` and the facts socket report.

use super::ambient::{AmbientNode, AmbientStatus};
use super::deletion_budget::BrokenPodCounts;
use super::events::EventQueue;
use super::istio::IstioAgent;
use super::plugin_calls::{CallCounts, PluginCalls};
use crate::agent::pods::{CountedPods, PodLookup, PodsState};
use crate::agent_status::{RefusedPod, TakenPort};
use crate::host::conflict::RewriteCounts;
use crate::host::desired::Confirmed;
use crate::host::observe::{Directory, PerDirectory};
use crate::host::settings::{NodeTaint, RepairOptions};
use crate::host::uninstall::KeptReason;
use crate::lead::process::{self, Role, Shared};
use crate::lead::socket::SocketHealth;
use crate::probe::node_backend::{BackendVerdict, NodeBackend};
use crate::sandboxes::repair::PodRepairs;
use gybe_plugin::conf::PluginConf;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// A rewrite that is repaired within this time does not make the agent unready. A slow disk may take longer.
const MOMENT: Duration = Duration::from_secs(1);
const REWRITER: &str = "another program has undone the entry again within ten seconds of its repair; pods that start \
                        before the next repair are not redirected; ready again ten seconds after the last repair";
/// A turn takes milliseconds. It may wait for a disk, and for a program that is tried: 10 s each.
const HUNG_AFTER: Duration = Duration::from_secs(120);

/// The report of one turn of the reconcile loop.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TurnReport {
    pub(crate) phase: Phase,
    /// What differs from the desired state, in sentences.
    pub(crate) missing: Vec<String>,
    /// Whether a pod started now is redirected, and the entry that the runtime runs decides by the settings of this
    /// report, as the last pass judged it; none without a pass, and in mode leave.
    pub(crate) is_redirected: Option<bool>,
    /// Notes for operators; they do not prevent a pod's redirection.
    pub(crate) notes: Vec<String>,
    /// Where `shape: auto` puts the entry, and why, in a sentence; none with another shape.
    pub(crate) shape: Option<String>,
    /// A directory that is mounted in this container and was deleted on the host, in a sentence.
    pub(crate) deleted_directory: Option<String>,
    /// Whether another foreign rewrite of the conf has to be expected; true until a pass finds otherwise, however long
    /// that takes.
    pub(crate) is_rewrite_expected: bool,
    /// The conflict over each directory, in sentences.
    pub(crate) conflicts: PerDirectory<Option<String>>,
    /// Whether the kernel reports changes (inotify); if not, the loop polls.
    pub(crate) is_notified: bool,
    /// When the token in the kubeconfig expires.
    pub(crate) token_expires: Option<SystemTime>,
    pub(crate) istio: Option<IstioAgent>,
    pub(crate) backend: Option<NodeBackend>,
    /// None when the turn made no pass.
    pub(crate) pass: Option<PassReport>,
    pub(crate) kubeconfig_failed: bool,
}

/// The settings of the last turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct FollowedSettings {
    /// Why the ConfigMap is invalid, while the previous settings stay in use.
    pub(crate) error: Option<String>,
    /// The setting `node_taints`; empty while the ConfigMap cannot be followed.
    pub(crate) taints: Vec<NodeTaint>,
    /// The setting `node_condition`; off while the ConfigMap cannot be followed.
    pub(crate) has_condition: bool,
    /// The setting `repair` and its kin; the defaults while the ConfigMap cannot be followed.
    pub(crate) repair: RepairOptions,
    /// The plugin's configuration by the settings, once it is the one in the entry on the node.
    pub(crate) in_force: Option<PluginConf>,
    pub(crate) plugin_dir: Confirmed,
}

/// What a pass did.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PassReport {
    /// Whether nothing is left to do.
    pub(crate) is_done: bool,
    pub(crate) has_changed: bool,
    /// Whether the system refused to place a program.
    pub(crate) programs_failed: bool,
    /// Whether the system refused to write the conf.
    pub(crate) conf_failed: bool,
    pub(crate) rewrites: PerDirectory<RewriteCounts>,
    /// How long the repaired rewrites had lasted.
    pub(crate) repaired_in: PerDirectory<Option<Duration>>,
}

/// The progress of the installation or the uninstall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Phase {
    /// The first pass has not ended.
    #[default]
    Starting,
    /// The settings request an installation; `missing` names what is not installed yet.
    Installed,
    Uninstalling,
    /// Our entry is removed; the programs that stay are for existing sandboxes.
    Uninstalled {
        /// Why the plugin's program stays; none when it is removed.
        kept: Option<KeptReason>,
    },
}

/// Why an agent is not ready: except `NotLeading` the values of the label `reason` of `gybe_unready`, and the reasons of
/// the node's condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnreadyReason {
    /// Another agent of the node leads.
    NotLeading,
    /// The reconcile loop ends no turn.
    LoopHung,
    /// The first pass has not ended.
    Starting,
    Uninstalling,
    Uninstalled,
    /// Another program rewrites the conf file again and again.
    RewriteExpected,
    /// The conf file, a program or the settings are not as desired: a pod started now is not redirected, or is refused.
    NotInstalled,
    NoBackend,
    PodsUnknown,
    /// A socket of the agent is not served.
    NoSocket,
    /// Ambient pods cannot get into the mesh.
    AmbientNotReady,
}

impl UnreadyReason {
    /// Those of an agent that leads, and serves the metrics.
    pub(crate) const OF_LEADER: [Self; 10] = [
        Self::LoopHung,
        Self::Starting,
        Self::Uninstalling,
        Self::Uninstalled,
        Self::RewriteExpected,
        Self::NotInstalled,
        Self::NoBackend,
        Self::PodsUnknown,
        Self::NoSocket,
        Self::AmbientNotReady,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NotLeading => "NotLeading",
            Self::LoopHung => "LoopHung",
            Self::Starting => "Starting",
            Self::Uninstalling => "Uninstalling",
            Self::Uninstalled => "Uninstalled",
            Self::RewriteExpected => "RewriteExpected",
            Self::NotInstalled => "NotInstalled",
            Self::NoBackend => "NoBackend",
            Self::PodsUnknown => "PodsUnknown",
            Self::NoSocket => "NoSocket",
            Self::AmbientNotReady => "AmbientNotReady",
        }
    }
}

/// The last report, with the reasons that a turn found before its writes, and the counters over all turns.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Status {
    pub(crate) report: TurnReport,
    /// When the last turn ended.
    pub(crate) turned: Option<Instant>,
    /// Since when something is missing; none until the node has once been in its desired state.
    missing_since: Option<Instant>,
    was_complete: bool,
    /// Since when a pod started now would not be redirected.
    unredirected_since: Option<Instant>,
    pub(crate) counts: Counts,
}

/// Counters since the start of the process.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) turns: u64,
    /// Passes that brought the node to its desired state, or found it there at the start.
    pub(crate) successes: u64,
    pub(crate) program_failures: u64,
    pub(crate) kubeconfig_failures: u64,
    pub(crate) conf_failures: u64,
    pub(crate) repairs: PerDirectory<RepairCounts>,
}

/// Foreign rewrites of one directory, and their repairs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RepairCounts {
    pub(crate) rewrites: RewriteCounts,
    /// The sum of all repairs' times, each from the wake-up to the repair.
    pub(crate) time: Duration,
    pub(crate) longest: Duration,
    pub(crate) conflicts: u64,
}

impl Status {
    /// Records the report of a turn that ended at `now`.
    pub(crate) fn update(&mut self, report: TurnReport, now: Instant) {
        self.count(&report);
        self.was_complete |= report.missing.is_empty();
        self.missing_since = match self.missing_since {
            _ if report.missing.is_empty() || !self.was_complete => None,
            Some(since) => Some(since),
            None => Some(now),
        };
        self.unredirected_since = match (report.phase, report.is_redirected) {
            // An agent that uninstalls lets pods start without redirection.
            (Phase::Uninstalling | Phase::Uninstalled { .. }, _) | (_, Some(true)) => None,
            (_, Some(false)) => self.unredirected_since.or(Some(now)),
            (_, None) => self.unredirected_since,
        };
        self.turned = Some(now);
        self.report = report;
    }

    /// Records, before the writes of a turn, why a pod started at `now` would not be redirected, if the last turn found
    /// that it would be. A turn in mode leave, or one that could not observe the node, has found no redirection to lose.
    pub(crate) fn record_lost_redirection(&mut self, reasons: Vec<String>, now: Instant) {
        if self.report.is_redirected != Some(true) {
            return;
        }
        self.report.is_redirected = Some(false);
        self.unredirected_since = Some(now);
        if self.report.missing.is_empty() {
            self.missing_since = Some(now);
        }
        self.report.missing.extend(reasons);
    }

    /// Reports whether a pod started now would not be redirected, for longer than `MOMENT`.
    pub(crate) fn is_unredirected(&self) -> bool {
        self.unredirected_for().is_some_and(|time| time >= MOMENT)
    }

    /// Returns for how long a pod started now would not have been redirected; none if it would be, or that is unknown.
    pub(crate) fn unredirected_for(&self) -> Option<Duration> {
        self.unredirected_since.map(|since| since.elapsed())
    }

    /// Forgets the last report, and keeps the counters.
    pub(crate) fn pause(&mut self) {
        *self = Self { counts: std::mem::take(&mut self.counts), ..Self::default() };
    }

    fn count(&mut self, report: &TurnReport) {
        let (is_first, counts) = (self.turned.is_none(), &mut self.counts);
        counts.turns += 1;
        counts.kubeconfig_failures += u64::from(report.kubeconfig_failed);
        let Some(pass) = &report.pass else { return };
        counts.program_failures += u64::from(pass.programs_failed);
        counts.conf_failures += u64::from(pass.conf_failed);
        counts.successes += u64::from(pass.is_done && (is_first || pass.has_changed));
        for directory in Directory::BOTH {
            let repairs = counts.repairs.of_mut(directory);
            let took = pass.repaired_in.of(directory).unwrap_or_default();
            repairs.rewrites = *pass.rewrites.of(directory);
            repairs.time += took;
            repairs.longest = repairs.longest.max(took);
            let was_conflict = self.report.conflicts.of(directory).is_some();
            repairs.conflicts += u64::from(!was_conflict && report.conflicts.of(directory).is_some());
        }
    }

    /// Returns what differs from the desired state. Omits differences shorter than `MOMENT`, except in a conflict: its
    /// differences follow each other, and pods start while they last.
    pub(crate) fn missing(&self) -> &[String] {
        let is_conflict = self.report.conflicts != PerDirectory::default();
        let is_momentary = !is_conflict && self.missing_since.is_some_and(|since| since.elapsed() < MOMENT);
        if is_momentary { &[] } else { &self.report.missing }
    }
}

/// What the reconcile loop publishes after each turn, and before the writes of a turn that finds redirection lost or
/// other settings. Readers get the status and the settings of one turn: a pod is deleted only by settings under which
/// the node was ready.
#[derive(Debug, Clone, Default)]
pub(crate) struct Published {
    pub(crate) status: Status,
    pub(crate) settings: FollowedSettings,
}

/// The sources of a snapshot.
#[derive(Clone, Copy)]
pub(crate) struct StatusSources<'a> {
    pub(crate) published: &'a Shared<Published>,
    pub(crate) pods: &'a CountedPods<'a>,
    pub(crate) calls: &'a PluginCalls,
    pub(crate) sockets: &'a SocketHealth,
    pub(crate) role: &'a Shared<Role>,
    /// The directory in which the process that repairs pods keeps its counts.
    pub(crate) probe: &'a Path,
    pub(crate) broken_pods: &'a Shared<BrokenPodCounts>,
    /// None without a cluster.
    pub(crate) events: Option<&'a EventQueue>,
    /// None where ambient mode is off.
    pub(crate) ambient: Option<&'a AmbientNode>,
}

/// The state of the whole agent at one time.
#[derive(Debug)]
pub(crate) struct AgentSnapshot {
    pub(crate) status: Status,
    pub(crate) settings: FollowedSettings,
    pub(crate) pods: PodsState,
    /// The plugin's queries by the HTTP status of their response.
    pub(crate) queries: [(u16, u64); 3],
    pub(crate) calls: CallCounts,
    /// The pods that the plugin refused.
    pub(crate) refused: Vec<RefusedPod>,
    /// Why a socket of the agent is not served.
    pub(crate) socket_problems: Vec<String>,
    pub(crate) taken_ports: Vec<TakenPort>,
    /// How often each socket was removed by another program.
    pub(crate) sockets_lost: [(&'static str, u64); 2],
    /// When the process started, in seconds since 1970.
    pub(crate) start_time: Option<f64>,
    /// None where no process repairs pods.
    pub(crate) pod_repairs: Option<PodRepairs>,
    pub(crate) broken_pods: BrokenPodCounts,
    /// How many events were never written; none without a cluster.
    pub(crate) events_dropped: Option<u64>,
    /// None where ambient mode is off.
    pub(crate) ambient: Option<AmbientStatus>,
    pub(crate) role: Role,
    /// The time since the last turn ended; zero while another agent leads.
    idle: Duration,
}

impl StatusSources<'_> {
    pub(crate) fn snapshot(&self) -> AgentSnapshot {
        let (Published { status, settings }, role) = (self.published.read(), self.role.read());
        let idle = match role {
            Role::Leads { since } => status.turned.unwrap_or(since).elapsed(),
            Role::Waits | Role::HandedOver { .. } => Duration::ZERO,
        };
        AgentSnapshot {
            idle,
            role,
            status,
            settings,
            pods: self.pods.state(),
            queries: self.pods.counts(),
            calls: self.calls.read(),
            refused: self.calls.refused(),
            socket_problems: self.sockets.problems(),
            taken_ports: self.sockets.taken_ports(),
            sockets_lost: self.sockets.lost(),
            start_time: process::start_time(),
            pod_repairs: PodRepairs::kept_in(self.probe),
            broken_pods: self.broken_pods.read(),
            events_dropped: self.events.map(EventQueue::dropped),
            ambient: self.ambient.map(AmbientNode::status),
        }
    }
}

impl AgentSnapshot {
    fn hung(&self) -> Option<String> {
        (self.idle > HUNG_AFTER).then(|| format!("the loop has ended no turn for {} s", self.idle.as_secs()))
    }

    /// Returns why only a restart of the container helps: the loop hangs, or a mounted directory was deleted
    /// or renamed on the host (F13; a mount follows an inode, not a path), or neither socket can be created.
    pub(crate) fn needs_restart(&self) -> Option<String> {
        match self.role {
            Role::Leads { .. } => self
                .hung()
                .or_else(|| self.status.report.deleted_directory.clone())
                .or_else(|| self.no_socket()),
            // The leader reports what concerns the node.
            Role::Waits | Role::HandedOver { .. } => None,
        }
    }

    /// Returns why neither socket can be created: their directory no longer exists in this container. An obstacle for
    /// only one of them would remain after a restart, and the restart would interrupt the other one.
    fn no_socket(&self) -> Option<String> {
        match self.socket_problems.as_slice() {
            [why, _, ..] => Some(why.clone()),
            _ => None,
        }
    }

    /// Returns why the agent is not ready, in sentences.
    pub(crate) fn not_ready(&self) -> Vec<String> {
        self.unready().into_iter().map(|(_, sentence)| sentence).collect()
    }

    /// Returns why the agent is not ready, each reason with its sentence; the most important one first.
    pub(crate) fn unready(&self) -> Vec<(UnreadyReason, String)> {
        use UnreadyReason as Reason;
        let not_leading = match self.role {
            Role::Leads { .. } => None,
            Role::HandedOver { was_ready: true } => Some(None),
            Role::HandedOver { was_ready: false } => {
                Some(Some("it was not ready when it handed over to another agent"))
            }
            Role::Waits => Some(Some(
                "another agent leads on this node; this one waits until it is prepared and the other hands over",
            )),
        };
        let pods = self.pods.missing.clone().map(|why| (Reason::PodsUnknown, why));
        if let Some(why) = not_leading {
            return why.map(|why| (Reason::NotLeading, why.to_owned())).into_iter().chain(pods).collect();
        }
        let report = &self.status.report;
        let phase = match report.phase {
            Phase::Starting if self.status.turned.is_none() => {
                Some((Reason::Starting, "the first pass has not ended".to_owned()))
            }
            // `missing` contains the reason why there has been no pass.
            Phase::Installed | Phase::Starting => None,
            Phase::Uninstalling => Some((Reason::Uninstalling, "uninstalling".to_owned())),
            Phase::Uninstalled { .. } => {
                Some((Reason::Uninstalled, "uninstalled, as the ConfigMap's mode requests".to_owned()))
            }
        };
        let backend = match report.backend.as_ref().map(|backend| &backend.verdict) {
            // Before the first pass there is no verdict.
            Some(BackendVerdict::Works(_)) | None => None,
            Some(BackendVerdict::Fails(why)) => Some(why.to_string()),
            Some(BackendVerdict::Unknown) => {
                Some("the node has not been probed for a backend that works".to_owned())
            }
        };
        let has_rewriter = report.is_rewrite_expected && report.phase == Phase::Installed;
        let rewriter = has_rewriter.then(|| (Reason::RewriteExpected, REWRITER.to_owned()));
        let hung = self.hung().map(|why| (Reason::LoopHung, why));
        let all = hung.into_iter().chain(phase).chain(rewriter);
        let all = all.chain(self.status.missing().iter().map(|why| (Reason::NotInstalled, why.clone())));
        let all = all.chain(backend.map(|why| (Reason::NoBackend, why))).chain(pods);
        let all = all.chain(self.socket_problems.iter().map(|why| (Reason::NoSocket, why.clone())));
        let ambient = self.ambient.iter().flat_map(AmbientStatus::not_ready);
        all.chain(ambient.map(|why| (Reason::AmbientNotReady, why))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_uninstalls_has_lost_no_redirection() {
        let now = Instant::now();
        let mut status = Status::default();
        for (phase, is_redirected, expected) in [
            (Phase::Installed, Some(false), true),
            (Phase::Installed, None, true),
            (Phase::Uninstalling, None, false),
            (Phase::Installed, Some(false), true),
            (Phase::Uninstalled { kept: None }, None, false),
        ] {
            status.update(TurnReport { phase, is_redirected, ..TurnReport::default() }, now);
            assert_eq!(status.unredirected_for().is_some(), expected, "{phase:?}");
        }
    }

    #[test]
    fn redirection_that_is_lost_before_slow_writes_makes_the_agent_unready_after_a_second() {
        let kubeconfig = ["the kubeconfig cannot be written"];
        for (is_redirected, missing, waited, expected) in [
            (Some(true), &[][..], Duration::ZERO, [false, false]),
            (Some(true), &[], MOMENT, [true, true]),
            // Unready before: no second of readiness.
            (Some(true), &kubeconfig, Duration::ZERO, [true, false]),
            // In mode leave.
            (None, &[], MOMENT, [false, false]),
        ] {
            let now = Instant::now();
            let missing = missing.iter().map(|why: &&str| (*why).to_owned()).collect();
            let mut status = Status::default();
            status.update(TurnReport { is_redirected, missing, ..TurnReport::default() }, now);
            let began = now.checked_sub(waited).unwrap();
            status.record_lost_redirection(vec!["the runtime uses 05-other.conflist".to_owned()], began);
            assert_eq!(
                [!status.missing().is_empty(), status.is_unredirected()],
                expected,
                "{is_redirected:?}"
            );
            status.update(TurnReport { is_redirected: Some(true), ..TurnReport::default() }, now);
            assert_eq!((status.missing(), status.unredirected_for()), (&[][..], None));
        }
    }

    #[test]
    fn f05_in_a_conflict_there_is_no_grace_period() {
        let now = Instant::now();
        let mut status = Status::default();
        let missing = || TurnReport {
            missing: vec!["still to do: write 10.conflist".to_owned()],
            ..TurnReport::default()
        };
        status.update(TurnReport::default(), now);
        status.update(missing(), now);
        assert!(status.missing().is_empty(), "a single rewrite");
        let conflicts = PerDirectory {
            conf: Some("the entry of gybe-cni is undone again and again".to_owned()),
            programs: None,
        };
        status.update(TurnReport { conflicts: conflicts.clone(), ..missing() }, now);
        assert_eq!(status.missing(), missing().missing);
        status.update(TurnReport { conflicts, ..TurnReport::default() }, now);
        assert!(status.missing().is_empty(), "the entry is there");
    }
}
