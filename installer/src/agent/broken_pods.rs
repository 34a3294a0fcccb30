//! Running pods that should be redirected and are not, as the process that repairs pods reports them: events about its
//! repairs, and in the modes `delete` and `label` the requests to the API server.

use super::SocketContext;
use super::cluster::{BrokenPod, ClusterNode, PodChange, QueryError, broken_pod, change_pod};
use super::events::{PodEvent, Reason};
use super::repair_socket::RepairSocket;
use super::status::StatusSources;
use crate::error::chain;
use crate::host::settings::{FailedInit, RepairMode, RepairOptions};
use crate::repair::{Finding, Found, REPAIR_SOCKET, RepairedPod};
use gybe_plugin::args::PodRef;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use serde_json::json;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// The deadline of the requests about a pod; the end of the agent is delayed by no more than it.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long until a socket that could not be opened is opened again, in milliseconds.
const REOPEN: u16 = 5_000;
/// How many deletions are requested in `DELETION_INTERVAL` at most.
const MAX_DELETIONS: usize = 10;
const DELETION_INTERVAL: Duration = Duration::from_secs(60);
/// The most pods of which it is remembered what was logged: more than a node has.
const MAX_LOGGED: usize = 1024;

/// Acts on findings.
pub(super) struct BrokenPods<'a> {
    /// None without a cluster: then there are neither events nor requests.
    pub(super) home: Option<&'a ClusterNode>,
    pub(super) sources: &'a StatusSources<'a>,
    pub(super) context: SocketContext<'a>,
}

/// What is remembered between findings.
#[derive(Debug, Default)]
struct Memory {
    /// When deletions were requested, the oldest first: one that failed may have been carried out.
    deletions: VecDeque<Instant>,
    /// What was last logged about a pod, by its uid.
    logged: BTreeMap<String, String>,
}

impl BrokenPods<'_> {
    /// Acts on the findings that arrive at the socket in `directory`, until `end` is readable.
    pub(super) fn serve(&self, directory: &Path, end: BorrowedFd<'_>) {
        let path = directory.join(REPAIR_SOCKET);
        let (mut memory, mut logged) = (Memory::default(), None);
        loop {
            let served = RepairSocket::open(&path).map_err(|why| chain(&why)).and_then(|mut socket| {
                logged = None;
                let served = socket.serve(end, self.context, |finding| self.act(&finding, &mut memory));
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

    fn act(&self, Finding { pod, found }: &Finding, memory: &mut Memory) {
        match found {
            Found::Repaired(repaired) => self.post(pod, Reason::RedirectionRepaired, repaired_note(repaired)),
            Found::NotRepaired { why } => {
                let note = format!("the pod is not redirected, and its repair failed: {why}");
                self.post(pod, Reason::RepairFailed, note);
            }
            Found::NotRedirected { why } => {
                let agent = self.sources.snapshot();
                let options = &agent.status.report.repair;
                let change = match options.mode {
                    RepairMode::Delete => PodChange::Delete,
                    RepairMode::Label => PodChange::Label(&options.label),
                    RepairMode::Repair | RepairMode::Off => return,
                };
                let unready = agent.not_ready().into_iter().next();
                self.change(pod, &change, options, why, unready, memory);
            }
        }
    }

    /// Changes the pod unless something speaks against it.
    fn change(
        &self,
        pod: &PodRef,
        change: &PodChange<'_>,
        options: &RepairOptions,
        why: &str,
        unready: Option<String>,
        memory: &mut Memory,
    ) {
        let (Some(home), Some(uid)) = (self.home, pod.uid.as_deref()) else { return };
        let now = Instant::now();
        memory.deletions.retain(|deletion| now.duration_since(*deletion) < DELETION_INTERVAL);
        let prevented = match change {
            PodChange::Delete => prevents_deletion(unready, memory.deletions.len()),
            PodChange::Label(_) => None,
        };
        let result = match prevented {
            Some(why) => Ok(Some(why)),
            None => self.request(home, pod, uid, change, options, now + TIMEOUT, &mut memory.deletions),
        };
        let counts = self.sources.broken_pods;
        match result {
            Ok(None) => {
                counts.count(change, |counts| counts.success += 1);
                memory.logged.remove(uid);
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
                counts.count(change, |counts| counts.skip += 1);
                if memory.is_new(uid, &reason) {
                    let fields = json!({ "pod": pod.to_string(), "uid": uid, "why": reason });
                    self.context.log.info("gybe node: a pod that is not redirected is left alone", fields);
                }
            }
            Err(error) => {
                counts.count(change, |counts| counts.fail += 1);
                let cause = chain(&error);
                if memory.is_new(uid, &cause) {
                    let hint = match change {
                        PodChange::Delete => {
                            "the component repair-delete of the manifests grants the right to delete pods"
                        }
                        PodChange::Label(_) => {
                            "the component repair-label of the manifests grants the right to patch the status of pods"
                        }
                    };
                    let fields = json!({ "pod": pod.to_string(), "uid": uid, "cause": cause, "hint": hint });
                    self.context
                        .log
                        .warn("gybe node: a pod that is not redirected cannot be changed", fields);
                }
            }
        }
    }

    /// Changes the pod; returns why not, if it is left alone.
    fn request(
        &self,
        home: &ClusterNode,
        pod: &PodRef,
        uid: &str,
        change: &PodChange<'_>,
        options: &RepairOptions,
        until: Instant,
        deletions: &mut VecDeque<Instant>,
    ) -> Result<Option<String>, QueryError> {
        let selectors = [options.field_selector.as_str(), options.label_selector.as_str()];
        let observed = broken_pod(&home.cluster, &home.node, pod, selectors, until)?;
        let Some(observed) = observed else { return Ok(Some(UNKNOWN.to_owned())) };
        if let Some(why) = prevents_change(&observed, uid, change, options.failed_init.as_ref()) {
            return Ok(Some(why.to_owned()));
        }
        if *change == PodChange::Delete {
            deletions.push_back(Instant::now());
        }
        let is_changed = change_pod(&home.cluster, pod, &observed, change, until)?;
        Ok((!is_changed).then(|| CHANGED.to_owned()))
    }

    fn post(&self, pod: &PodRef, reason: Reason, note: String) {
        if let Some(events) = self.context.events {
            events.post(PodEvent { pod: pod.clone(), reason, note }.into());
        }
    }
}

impl Memory {
    /// Reports whether this was not the last thing logged about the pod.
    fn is_new(&mut self, uid: &str, text: &str) -> bool {
        if self.logged.len() >= MAX_LOGGED {
            self.logged.clear();
        }
        self.logged.insert(uid.to_owned(), text.to_owned()).as_deref() != Some(text)
    }
}

const UNKNOWN: &str = "the API server has no such pod on this node, or the selectors do not select it";
const CHANGED: &str = "it has changed, or another pod has its name by now";

/// Returns why no pod may be deleted now. `unready` is why a pod started now may not be redirected.
fn prevents_deletion(unready: Option<String>, deletions: usize) -> Option<String> {
    match unready {
        Some(why) => Some(format!("a replacement may not be redirected either: {why}")),
        None if deletions >= MAX_DELETIONS => {
            Some(format!("{MAX_DELETIONS} deletions were requested within the last minute"))
        }
        None => None,
    }
}

/// Returns why the pod must not be changed.
fn prevents_change(
    observed: &BrokenPod,
    uid: &str,
    change: &PodChange<'_>,
    failed_init: Option<&FailedInit>,
) -> Option<&'static str> {
    if observed.uid != uid {
        return Some(CHANGED);
    }
    if observed.has_ended {
        return Some("it is being deleted, or has ended");
    }
    if let PodChange::Label(label) = change
        && observed.labels.contains(&label.key)
    {
        return Some("it has the label");
    }
    let has_failed = |required: &FailedInit| {
        observed.init_exits.iter().any(|(name, code)| {
            let is_it = *name == required.container;
            let is_code =
                if required.exit_code == 0 { *code != 0 } else { *code == i32::from(required.exit_code) };
            is_it && is_code
        })
    };
    failed_init
        .is_some_and(|required| !has_failed(required))
        .then_some("its init container has not ended with the configured exit code")
}

fn repaired_note(repaired: &RepairedPod) -> String {
    let RepairedPod { backend, open_connections, captures_dns, drops_invalid } = repaired;
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
    use crate::host::settings::PodLabel;

    fn observed() -> BrokenPod {
        BrokenPod {
            uid: "u-1".to_owned(),
            version: "7".to_owned(),
            has_ended: false,
            labels: vec!["app".to_owned()],
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
            ("exit code", &delete, init("istio-validation", 126), |_| {}, true),
            ("any exit code", &delete, init("istio-validation", 0), |_| {}, true),
            ("another container", &delete, init("init", 126), |_| {}, false),
            ("another exit code", &delete, init("istio-validation", 1), |_| {}, false),
            ("success", &delete, init("x", 0), |it| it.init_exits = vec![("x".to_owned(), 0)], false),
            ("not failed yet", &label, init("istio-validation", 126), |it| it.init_exits.clear(), false),
        ] {
            let mut pod = observed();
            alter(&mut pod);
            let prevented = prevents_change(&pod, "u-1", change, init.as_ref());
            assert_eq!(prevented.is_none(), is_changed, "{what}: {prevented:?}");
        }
    }

    #[test]
    fn pods_are_deleted_only_when_their_replacement_is_redirected_and_ten_a_minute() {
        assert_eq!(prevents_deletion(None, 9), None);
        assert_eq!(
            prevents_deletion(None, 10).unwrap(),
            "10 deletions were requested within the last minute"
        );
        let unready = prevents_deletion(Some("no entry".to_owned()), 0).unwrap();
        assert!(unready.contains("a replacement may not be redirected either: no entry"), "{unready}");
    }

    #[test]
    fn the_note_names_what_happens_to_open_connections_and_to_udp() {
        let mut repaired = RepairedPod {
            backend: "nft".to_owned(),
            open_connections: 0,
            captures_dns: false,
            drops_invalid: false,
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
