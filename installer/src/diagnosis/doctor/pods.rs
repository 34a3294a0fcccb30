//! Findings about this node's pods: whether they are redirected, and their unknown annotations.

use super::observe::{Observation, PodVerdicts};
use super::{About, DoctorFinding, Remedy, Section};
use crate::pod::proxy::ProxyFault;
use crate::sandboxes::probe_exemption::{ObservedExemption, REMOVAL};
use crate::sandboxes::{Network, Sandbox, SandboxVerdict, summary};
use gybe_netfilter::inspect::verdict::RedirectionState;
use gybe_plugin::names::{STATUS, unknown};
use std::collections::BTreeSet;

/// At most this many pods are listed.
const MOST: usize = 16;

pub(super) fn examine(observation: &Observation) -> Vec<DoctorFinding> {
    let of_pods = |pods| {
        [
            unread(observation, pods),
            of_node(pods),
            uncached(pods).into_iter().collect(),
            proxies(pods),
            doubtful(pods),
        ]
        .concat()
    };
    observation.pods.iter().flat_map(of_pods).chain(probe_exemption(observation)).collect()
}

/// Whether the kubelet's probes of ambient pods are exempt.
fn probe_exemption(observation: &Observation) -> Vec<DoctorFinding> {
    let not_exempt =
        "ztunnel takes the kubelet's probes of ambient pods, and refuses them where mutual TLS is required";
    let observed = match &observation.probe_exemption {
        None => return Vec::new(),
        Some(Ok(ObservedExemption::OfPods(observed))) => observed,
        Some(Ok(ObservedExemption::LeftBehind)) => {
            let text = "table inet gybe-probes is in the node's network namespace, and no agent requests it: connections \
                        to the addresses in it come from the probes' address";
            return vec![DoctorFinding::wrong(About::Pods, text, REMOVAL)];
        }
        Some(Err(why)) => {
            let text = format!("whether the kubelet's probes of ambient pods are exempt is not known: {why}");
            let remedy = match observation.user {
                Some(_) => Remedy::RunAsRoot,
                None => "run gybe doctor on the node, or in the container repair".into(),
            };
            return vec![DoctorFinding::wrong(About::Pods, text, remedy)];
        }
    };
    let mut found = Vec::new();
    if let Some(first) = observed.differences.first() {
        let more = observed.differences.len() - 1;
        let more = if more == 0 { String::new() } else { format!(", and {more} more differences") };
        let text = format!("table inet gybe-probes is not as it should be ({first}{more}): {not_exempt}");
        let remedy =
            "the container repair of the node's gybe-node pod writes it within a second: read its log";
        found.push(DoctorFinding::wrong(About::Pods, text, remedy));
    } else {
        let text = match observed.pods {
            1 => "the kubelet's probes of 1 ambient pod are exempt".to_owned(),
            pods => format!("the kubelet's probes of {pods} ambient pods are exempt"),
        };
        found.push(DoctorFinding::well(About::Pods, text));
    }
    if observed.differences.is_empty() && !observed.matches_cgroup {
        let text =
            "every connection of root on the node to ambient pods is exempt, not the kubelet's probes alone";
        let remedy = "the log of the container repair of the node's gybe-node pod has the cause";
        found.push(DoctorFinding::note(About::Pods, text, Some(remedy)));
    }
    if observed.has_branch_interfaces {
        let text =
            "pods may be behind branch interfaces of aws-vpc-cni: the VPC drops probes from 169.254.7.127";
        let remedy = "set POD_SECURITY_GROUP_ENFORCING_MODE=standard in the DaemonSet aws-node, or add the routing rules of \
                      docs/LIMITS.md";
        found.push(DoctorFinding::note(About::Pods, text, Some(remedy)));
    }
    found
}

/// What could not be read.
fn unread(observation: &Observation, PodVerdicts { unreadable, .. }: &PodVerdicts) -> Vec<DoctorFinding> {
    let remedy = match observation.user {
        Some(_) => Remedy::RunAsRoot,
        None => "run gybe doctor on the node; --results-dir names the directory of libcni's cache".into(),
    };
    let wrong = |what| {
        DoctorFinding::wrong(About::Pods, format!("pods may be missing in this list: {what}"), remedy.clone())
    };
    unreadable.iter().map(wrong).collect()
}

/// The number of pods of each kind, and each pod of the mesh that is not known to be redirected.
fn of_node(PodVerdicts { judged, .. }: &PodVerdicts) -> Vec<DoctorFinding> {
    let counted = || DoctorFinding::note(About::Pods, summary(judged), None);
    let mut found: Vec<_> = (!judged.is_empty()).then(counted).into_iter().collect();
    let failing: Vec<_> = judged.iter().filter(|one| one.fails()).collect();
    found.extend(failing.iter().take(MOST).map(|one| failed(one)));
    if let Some(more) = failing.len().checked_sub(MOST).filter(|more| *more > 0) {
        let text = format!("{more} more pods are not redirected, or not verified");
        let more = DoctorFinding::wrong(About::Pods, text, "run gybe verify --all, which lists them");
        found.push(more.in_section(Section::PodsNotRedirected));
    }
    found
}

fn failed(one: &SandboxVerdict) -> DoctorFinding {
    let text = format!("{}: {}", one.sandbox, one.line());
    let remedy = match (one.verdict.state, &one.sandbox.pod) {
        (RedirectionState::NotRedirected | RedirectionState::Redirected, Some(pod)) => {
            format!(
                "run gybe verify --pod {pod}, which has the reasons; where rules differ, delete the pod: its controller makes a \
                 new one"
            )
        }
        _ => "run gybe verify --all, which has the reasons".to_owned(),
    };
    DoctorFinding::wrong(About::Pods, text, remedy).in_section(Section::PodsNotRedirected)
}

/// Pods whose cached result was deleted, or whose ADD runs. A pod in the node's network may have made a namespace.
fn uncached(PodVerdicts { judged, unreadable }: &PodVerdicts) -> Option<DoctorFinding> {
    let of_node = judged.iter().filter(|one| one.sandbox.network == Network::OfNode);
    let of_node: BTreeSet<&String> = of_node.filter_map(|one| one.sandbox.uid.as_ref()).collect();
    let is_uncached = |sandbox: &&Sandbox| {
        let mut uids = sandbox.processes.iter().map(|process| &process.uid);
        matches!(sandbox.network, Network::Own(_))
            && sandbox.ended_add.is_none()
            && uids.any(|uid| !of_node.contains(uid))
    };
    let names = judged.iter().map(|one| &one.sandbox).filter(is_uncached).map(ToString::to_string);
    let names: Vec<String> = names.collect();
    let shown = names.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = names.len().checked_sub(MOST).filter(|more| *more > 0);
    let more = more.map_or_else(String::new, |more| format!(" and {more} more"));
    let text = format!("libcni has no cached result of the ADDs of these running pods: {shown}{more}");
    let remedy = "if this stays, files below /var/lib/cni were deleted: without them Gybe repairs no pod, and the runtime calls DEL \
                  without a result; delete these pods";
    let is_known = unreadable.is_empty() && !names.is_empty();
    is_known.then(|| DoctorFinding::note(About::Pods, text, Some(remedy)))
}

/// Notes about faults of the pods' proxies.
fn proxies(PodVerdicts { judged, .. }: &PodVerdicts) -> Vec<DoctorFinding> {
    let faults: Vec<_> =
        judged.iter().flat_map(|one| one.proxy_faults.iter().map(|fault| (&one.sandbox, fault))).collect();
    let note = |(sandbox, fault): &(&Sandbox, &ProxyFault)| {
        DoctorFinding::note(About::Pods, format!("pod {sandbox}: {fault}"), Some(fault.remedy()))
    };
    let mut found: Vec<_> = faults.iter().take(MOST).map(note).collect();
    if let Some(more) = faults.len().checked_sub(MOST).filter(|more| *more > 0) {
        let text = format!("{more} more notes about proxies: gybe verify --all prints them");
        found.push(DoctorFinding::note(About::Pods, text, None));
    }
    found
}

/// Injected pods with unknown annotations, as the runtime passed them on.
fn doubtful(PodVerdicts { judged, .. }: &PodVerdicts) -> Vec<DoctorFinding> {
    let doubts = |sandbox: &Sandbox| {
        let annotations = sandbox.annotations.as_ref().filter(|all| all.contains_key(STATUS))?;
        let doubts = unknown(annotations.keys().map(String::as_str));
        (!doubts.is_empty()).then(|| format!("pod {sandbox}: {}", doubts.join("; ")))
    };
    let all: Vec<String> = judged.iter().filter_map(|one| doubts(&one.sandbox)).collect();
    let note = |text: &String| {
        DoctorFinding::note(About::Pods, text, Some("correct the annotation in the pod's template"))
    };
    let mut found: Vec<_> = all.iter().take(MOST).map(note).collect();
    if let Some(more) = all.len().checked_sub(MOST).filter(|more| *more > 0) {
        found.push(DoctorFinding::note(
            About::Pods,
            format!("{more} more pods with unknown annotations"),
            None,
        ));
    }
    found
}
