//! Running pods that should be redirected and are not, as the process that repairs pods reports them: events about its
//! repairs, and in the modes `delete` and `label` the requests to the API server.
//!
//! The agent does not act on the finding itself: it may be old, and made by other settings. The agent first does what may
//! take long, and requests a new judgement last; only by that judgement it deletes or labels the pod.

use super::deletion_budget;
use super::events::{PodEvent, Reason};
use super::repair_socket::{RepairConnection, RepairSocket};
use super::status::{FollowedSettings, StatusSources};
use crate::cluster::{BrokenPod, ClusterNode, PodChange, QueryError, change_pod};
use crate::error::chain;
use crate::host::settings::{RepairMode, RepairOptions};
use crate::lead::process::Role;
use crate::lead::socket::SocketContext;
use crate::retry::since_boot;
use crate::sandboxes::repair::{
    FindingKind, PodJudgement, PodVerdict, REPAIR_SOCKET, RepairFinding, RepairedPod,
};
use gybe_plugin::args::PodRef;
use gybe_plugin::conf::PluginConf;
use gybe_plugin::gates::{self, InitContainer};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use serde_json::json;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// The deadline of the requests about a pod before its judgement. The judgement, and the change of the pod, take a few
/// seconds more.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long after its judgement a pod may be changed.
const MAX_AGE: Duration = Duration::from_secs(2);
/// How long until a socket that could not be opened is opened again, in milliseconds.
const REOPEN: u16 = 5_000;
/// The most pods of which it is remembered what was logged: more than a node has.
const MAX_LOGGED: usize = 1024;

/// Acts on findings.
pub(super) struct BrokenPods<'a> {
    /// None without a cluster: then there are neither events nor requests.
    pub(super) home: Option<&'a ClusterNode>,
    pub(super) sources: &'a StatusSources<'a>,
    pub(super) context: SocketContext<'a>,
}

/// What was last logged about a pod, by its uid.
#[derive(Debug, Default)]
struct Memory(BTreeMap<String, String>);

/// The settings by which a pod is changed: those that the node's entry is written from.
#[derive(Debug, PartialEq)]
struct SettingsInForce {
    options: RepairOptions,
    conf: PluginConf,
}

impl BrokenPods<'_> {
    /// Acts on the findings that arrive at the socket in `directory`, until `end` is readable.
    pub(super) fn serve(&self, directory: &Path, end: BorrowedFd<'_>) {
        let path = directory.join(REPAIR_SOCKET);
        let (mut memory, mut logged) = (Memory::default(), None);
        loop {
            let served = RepairSocket::open(&path).map_err(|why| chain(&why)).and_then(|mut socket| {
                logged = None;
                let served = socket.serve(end, self.context, |finding, connection| {
                    self.act(finding, directory, connection, &mut memory);
                });
                served.map_err(|why| why.to_string())
            });
            let Err(why) = served else { return };
            if logged.as_ref() != Some(&why) {
                let fields = json!({ "socket": path.display().to_string(), "why": why });
                self.context.log.error("gybe node: findings about running pods cannot be received", fields);
                logged = Some(why);
            }
            if !matches!(poll(&mut [PollFd::new(end, PollFlags::POLLIN)], REOPEN), Ok(0) | Err(Errno::EINTR))
            {
                return;
            }
        }
    }

    fn act(
        &self,
        RepairFinding { pod, found }: &RepairFinding,
        directory: &Path,
        connection: &mut RepairConnection<'_>,
        memory: &mut Memory,
    ) {
        match found {
            FindingKind::Repaired(repaired) => {
                if let Some(after) = repaired.since_add {
                    self.sources.calls.record_repair(after);
                }
                self.post(pod, Reason::RedirectionRepaired, repaired_note(repaired));
            }
            FindingKind::NotRepaired { why } => {
                let note = format!("the pod is not redirected, and its repair failed: {why}");
                self.post(pod, Reason::RepairFailed, note);
            }
            FindingKind::NotRedirected { why } => self.change(pod, why, directory, connection, memory),
        }
    }

    /// Deletes or labels the pod, in the modes that do so, unless something speaks against it.
    fn change(
        &self,
        pod: &PodRef,
        why: &str,
        directory: &Path,
        connection: &mut RepairConnection<'_>,
        memory: &mut Memory,
    ) {
        let (Some(home), Some(uid)) = (self.home, pod.uid.as_deref()) else { return };
        let agent = self.sources.snapshot();
        let options = &agent.settings.repair;
        let change = match options.mode {
            RepairMode::Delete => PodChange::Delete,
            RepairMode::Label => PodChange::Label(&options.label),
            RepairMode::Repair | RepairMode::Off => return,
        };
        let is_deletion = change == PodChange::Delete;
        let budget = || if is_deletion { deletion_budget::check(directory) } else { Ok(()) };
        let settings = settings_in_force(agent.role, agent.not_ready(), &agent.settings);
        // When the deletion was counted, if it was; and whether it was requested then.
        let (mut spent, mut is_requested) = (None, false);
        let result = match settings.and_then(|settings| budget().map(|()| settings)) {
            Err(why) => Ok(Some(why)),
            Ok(settings) => {
                let selectors = [options.field_selector.as_str(), options.label_selector.as_str()];
                let until = Instant::now() + TIMEOUT;
                change_pod(home, pod, selectors, &change, until, |observed| {
                    check_pod(observed, uid, &change, &settings)?;
                    let until = check_judgement(connection.judgement(), Instant::now(), since_boot())?;
                    let agent = self.sources.snapshot();
                    if settings_in_force(agent.role, agent.not_ready(), &agent.settings)? != settings {
                        return Err("the settings have changed since the finding".to_owned());
                    }
                    if is_deletion {
                        spent = Some(deletion_budget::spend(directory)?);
                    }
                    is_requested = Instant::now() < until;
                    if is_requested { Ok(until) } else { Err(TOO_LATE.to_owned()) }
                })
            }
        };
        if let Some(at) = spent.filter(|_| !is_requested || result.as_ref().is_err_and(is_refused))
            && let Err(why) = deletion_budget::give_back(directory, at)
        {
            self.context.log.warn("gybe node: a refused deletion stays counted", json!({ "why": why }));
        }
        let counts = self.sources.broken_pods;
        match result {
            Ok(None) => {
                counts.change(|counts| counts.of(&change).success += 1);
                memory.0.remove(uid);
                let fields = json!({ "pod": pod.to_string(), "uid": uid, "why": why });
                let (message, reason, note) = match change {
                    PodChange::Delete => {
                        let note = format!("deleted the pod, because it was not redirected: {why}");
                        ("gybe node: deleted a pod that is not redirected", Reason::DeleteBrokenPod, note)
                    }
                    PodChange::Label(label) => {
                        let note = format!("labelled the pod {label}, because it is not redirected: {why}");
                        ("gybe node: labelled a pod that is not redirected", Reason::LabelBrokenPod, note)
                    }
                };
                self.context.log.info(message, fields);
                self.post(pod, reason, note);
            }
            Ok(Some(reason)) => {
                counts.change(|counts| counts.of(&change).skip += 1);
                if memory.is_new(uid, &reason) {
                    let fields = json!({ "pod": pod.to_string(), "uid": uid, "why": reason });
                    self.context.log.info("gybe node: a pod that is not redirected is left alone", fields);
                }
            }
            Err(error) => {
                counts.change(|counts| counts.of(&change).fail += 1);
                let cause = chain(&error);
                if memory.is_new(uid, &cause) {
                    let hint = match (error.status(), &change) {
                        (Some(403), PodChange::Delete) => {
                            "the component repair-delete of the manifests grants the right to delete pods"
                        }
                        (Some(403), PodChange::Label(_)) => {
                            "the component repair-label of the manifests grants the right to patch the status of pods"
                        }
                        (Some(_), _) => "look at the API server's log and at its admission webhooks",
                        (None, _) => "it is not known whether the API server has changed the pod",
                    };
                    let fields = json!({ "pod": pod.to_string(), "uid": uid, "cause": cause, "hint": hint });
                    self.context
                        .log
                        .warn("gybe node: a pod that is not redirected cannot be changed", fields);
                }
            }
        }
    }

    fn post(&self, pod: &PodRef, reason: Reason, note: String) {
        if let Some(events) = self.sources.events {
            events.post(PodEvent { pod: pod.clone(), reason, note }.into());
        }
    }
}

impl Memory {
    /// Reports whether this was not the last thing logged about the pod.
    fn is_new(&mut self, uid: &str, text: &str) -> bool {
        if self.0.len() >= MAX_LOGGED {
            self.0.clear();
        }
        self.0.insert(uid.to_owned(), text.to_owned()).as_deref() != Some(text)
    }
}

/// Returns the settings by which a pod may be changed now.
///
/// # Errors
/// Why no pod may be changed.
fn settings_in_force(
    role: Role,
    not_ready: Vec<String>,
    settings: &FollowedSettings,
) -> Result<SettingsInForce, String> {
    if !matches!(role, Role::Leads { .. }) {
        return Err("another agent leads on this node".to_owned());
    }
    if let Some(why) = not_ready.into_iter().next().filter(|_| settings.repair.mode == RepairMode::Delete) {
        return Err(format!("a replacement may not be redirected either: {why}"));
    }
    let not_in_force = "the settings are not in force: the node's entry is not the configured one";
    let conf = settings.in_force.clone().ok_or(not_in_force)?;
    Ok(SettingsInForce { options: settings.repair.clone(), conf })
}

/// Reports whether the API server has refused a request, so that it has certainly changed nothing. A request without a
/// response may still be carried out. A conflict is no error here: the API server may have answered so to a repetition of
/// a request whose response was lost.
fn is_refused(error: &QueryError) -> bool {
    error.status().is_some_and(|status| (400..500).contains(&status))
}

/// Checks the judgement of the pod's sandboxes, made at `now`, which is `booted` after the boot; returns until when the pod
/// may be changed.
///
/// # Errors
/// Why the pod must be left alone.
fn check_judgement(
    judgement: Option<PodJudgement>,
    now: Instant,
    booted: Duration,
) -> Result<Instant, String> {
    let Some(PodJudgement { at, verdict }) = judgement else {
        return Err("the container `repair` has not judged it again in time".to_owned());
    };
    match verdict {
        PodVerdict::LeftAlone { why } => Err(why),
        PodVerdict::NotRedirected => {
            let left = booted.checked_sub(at).and_then(|age| MAX_AGE.checked_sub(age));
            let left = left.filter(|left| !left.is_zero());
            left.map(|left| now + left).ok_or_else(|| TOO_LATE.to_owned())
        }
    }
}

const TOO_LATE: &str = "its judgement took too long";

/// Checks the pod in the API.
///
/// # Errors
/// Why it must not be changed.
fn check_pod(
    observed: &BrokenPod,
    uid: &str,
    change: &PodChange<'_>,
    settings: &SettingsInForce,
) -> Result<(), String> {
    let refused = |why: &str| Err(why.to_owned());
    if observed.uid != uid {
        return refused("another pod has its name now");
    }
    if observed.has_ended {
        return refused("it is being deleted, or has ended");
    }
    if let PodChange::Label(label) = change
        && observed.labels.contains(&label.key)
    {
        return refused("it has the label");
    }
    if observed.may_be_relabelled {
        return refused("its label sidecar.istio.io/inject may have been set after it was created");
    }
    match gates::check(&settings.conf, &observed.facts, InitContainer::Counts) {
        Ok(None) => {}
        Ok(Some(reason)) => return Err(format!("it should not be redirected: {reason}")),
        Err(why) => return Err(chain(&why)),
    }
    let Some(required) = &settings.options.failed_init else { return Ok(()) };
    let has_failed = observed.init_exits.iter().any(|(name, code)| {
        let is_code =
            if required.exit_code == 0 { *code != 0 } else { *code == i32::from(required.exit_code) };
        *name == required.container && is_code
    });
    if has_failed {
        Ok(())
    } else {
        refused("its init container has not ended with the configured exit code")
    }
}

fn repaired_note(repaired: &RepairedPod) -> String {
    let RepairedPod { backend, open_connections, captures_dns, drops_invalid, .. } = repaired;
    let open = match open_connections {
        0 => "no TCP connection with another host was open".to_owned(),
        1 => "1 TCP connection with another host was open and bypasses the proxy until it ends".to_owned(),
        many => {
            format!("{many} TCP connections with other hosts were open and bypass the proxy until they end")
        }
    };
    let udp = if *captures_dns {
        "UDP: DNS queries go to the proxy from now on, also from sockets that were open"
    } else {
        "UDP keeps its path"
    };
    let invalid = if *drops_invalid {
        "; packets that conntrack classifies as invalid are dropped from now on, none of the open connections"
    } else {
        ""
    };
    format!("the pod was not redirected; {backend} wrote its rules; {open}; {udp}{invalid}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::settings::{FailedInit, PodLabel};
    use gybe_plugin::pod::PodFacts;

    fn observed() -> BrokenPod {
        let example = include_bytes!("../../../examples/pod.json");
        BrokenPod {
            uid: "u-1".to_owned(),
            version: "7".to_owned(),
            has_ended: false,
            labels: vec!["app".to_owned()],
            may_be_relabelled: false,
            facts: PodFacts::from_json(example).unwrap(),
            init_exits: vec![("istio-validation".to_owned(), 126)],
        }
    }

    #[test]
    fn only_the_same_pod_that_runs_and_meets_every_condition_is_changed() {
        let label = PodLabel::default();
        let init =
            |container: &str, exit_code| Some(FailedInit { container: container.to_owned(), exit_code });
        type Change = fn(&mut BrokenPod);
        let (delete, label) = (PodChange::Delete, PodChange::Label(&label));
        for (what, change, init, alter, is_changed) in [
            ("delete", &delete, None, (|_| {}) as Change, true),
            ("label", &label, None, |_| {}, true),
            ("another uid", &delete, None, |it| it.uid = "u-2".to_owned(), false),
            ("ended", &label, None, |it| it.has_ended = true, false),
            ("labelled", &label, None, |it| it.labels.push("cni.istio.io/uninitialized".to_owned()), false),
            (
                "labelled, and deleted",
                &delete,
                None,
                |it| it.labels.push("cni.istio.io/uninitialized".to_owned()),
                true,
            ),
            ("relabelled", &delete, None, |it| it.may_be_relabelled = true, false),
            ("excluded", &delete, None, |it| it.facts.namespace = "kept".to_owned(), false),
            (
                "opted out",
                &label,
                None,
                |it| {
                    it.facts.labels.insert(gybe_plugin::names::INJECT.to_owned(), "false".to_owned());
                },
                false,
            ),
            (
                "a mode that is none",
                &delete,
                None,
                |it| {
                    it.facts
                        .annotations
                        .insert("sidecar.istio.io/interceptionMode".to_owned(), "x".to_owned());
                },
                false,
            ),
            ("exit code", &delete, init("istio-validation", 126), |_| {}, true),
            ("any exit code", &delete, init("istio-validation", 0), |_| {}, true),
            ("another container", &delete, init("init", 126), |_| {}, false),
            ("another exit code", &delete, init("istio-validation", 1), |_| {}, false),
            ("success", &delete, init("x", 0), |it| it.init_exits = vec![("x".to_owned(), 0)], false),
            ("not failed yet", &label, init("istio-validation", 126), |it| it.init_exits.clear(), false),
        ] {
            let mut pod = observed();
            alter(&mut pod);
            let options = RepairOptions { failed_init: init, ..RepairOptions::default() };
            let exclude_namespaces = ["kept".to_owned()].into();
            let settings =
                SettingsInForce { options, conf: PluginConf { exclude_namespaces, ..PluginConf::default() } };
            let checked = check_pod(&pod, "u-1", change, &settings);
            assert_eq!(checked.is_ok(), is_changed, "{what}: {checked:?}");
        }
    }

    #[test]
    fn settings_are_in_force_for_the_agent_that_leads_and_for_deletions_if_it_is_ready() {
        let published = |mode| FollowedSettings {
            repair: RepairOptions { mode, ..RepairOptions::default() },
            in_force: Some(PluginConf::default()),
            ..FollowedSettings::default()
        };
        let handed_over = Role::HandedOver { was_ready: true };
        let withdrawn = |mode| FollowedSettings { in_force: None, ..published(mode) };
        let unready = || vec!["uninstalling".to_owned()];
        for (role, not_ready, settings, expected) in [
            (Role::leads(), Vec::new(), published(RepairMode::Delete), None),
            (Role::leads(), Vec::new(), published(RepairMode::Label), None),
            (handed_over, Vec::new(), published(RepairMode::Delete), Some("another agent leads")),
            (handed_over, Vec::new(), published(RepairMode::Label), Some("another agent leads")),
            (Role::Waits, Vec::new(), published(RepairMode::Label), Some("another agent leads")),
            (Role::leads(), unready(), published(RepairMode::Delete), Some("uninstalling")),
            (Role::leads(), unready(), published(RepairMode::Label), None),
            (Role::leads(), Vec::new(), withdrawn(RepairMode::Label), Some("not in force")),
        ] {
            let found = settings_in_force(role, not_ready, &settings).err();
            assert_eq!(found.is_some(), expected.is_some(), "{role:?}: {found:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()), "{role:?}");
        }
    }

    #[test]
    fn only_a_recent_judgement_that_finds_no_reason_to_leave_a_pod_alone_counts() {
        let (now, booted) = (Instant::now(), Duration::from_secs(100));
        let judged = |age: Duration, why: Option<&str>| {
            let left_alone = |why: &str| PodVerdict::LeftAlone { why: why.to_owned() };
            Some(PodJudgement {
                at: booted - age,
                verdict: why.map_or(PodVerdict::NotRedirected, left_alone),
            })
        };
        let moment = Duration::from_millis(10);
        for (judgement, expected) in [
            (judged(moment, None), Ok(now + MAX_AGE - moment)),
            (judged(moment, Some("it is redirected")), Err("it is redirected")),
            (judged(MAX_AGE, None), Err("its judgement took too long")),
            (
                Some(PodJudgement { at: booted + moment, verdict: PodVerdict::NotRedirected }),
                Err("its judgement took too long"),
            ),
            (None, Err("the container `repair` has not judged it again in time")),
        ] {
            let found = check_judgement(judgement.clone(), now, booted);
            assert_eq!(found, expected.map_err(str::to_owned), "{judgement:?}");
        }
    }

    #[test]
    fn the_note_names_what_happens_to_open_connections_and_to_udp() {
        let mut repaired = RepairedPod {
            backend: "nft".to_owned(),
            open_connections: 0,
            captures_dns: false,
            drops_invalid: false,
            since_add: None,
        };
        assert_eq!(
            repaired_note(&repaired),
            "the pod was not redirected; nft wrote its rules; no TCP connection with another host was open; UDP keeps its path"
        );
        (repaired.open_connections, repaired.captures_dns, repaired.drops_invalid) = (2, true, true);
        let note = repaired_note(&repaired);
        for part in [
            "2 TCP connections with other hosts were open and bypass",
            "DNS queries go to the proxy",
            "invalid are dropped",
        ] {
            assert!(note.contains(part), "{note}");
        }
    }
}
