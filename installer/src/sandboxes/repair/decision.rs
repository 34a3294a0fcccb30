//! What happens to a sandbox: decided from its verdict and from what is known of it. Pure.

use gybe_netfilter::inspect::verdict::RedirectionState;

/// What is known of a sandbox when its action is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairCandidate {
    /// The verdict on its namespace.
    pub state: RedirectionState,
    pub policy: KnownPolicy,
    /// Whether libcni has cached the result of its ADD. Before that, the ADD may be running and write.
    pub has_ended_add: bool,
    /// Whether a process of a pod runs in the namespace. The runtime starts the first one after the ADD.
    pub has_process: bool,
    /// The rules of Gybe in the namespace, or those that Gybe replaces.
    pub ours: OurRules,
    /// Whether rules or routes of Gybe differ from the desired ones.
    pub differs: bool,
    /// Whether the agent reports that it has to be enrolled or taken out, or its annotation shows the latter.
    pub is_due: bool,
    /// Whether the agent has handed it over, and ztunnel does not listen in it.
    pub is_silent: bool,
    /// Why it is not certain that the namespace is the pod's; none if it is certain.
    pub doubt: Option<String>,
}

/// What is known of a pod's policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownPolicy {
    /// It should be redirected by this policy.
    Redirect,
    /// It should be ambient. Rules alone would cut it off: ztunnel has to listen in it first.
    Ambient,
    /// It should have no rules of Gybe.
    LeaveAlone,
    /// The same, and it is certain that it is not ambient.
    NotAmbient,
    /// No source knows the pod.
    NotKnown,
}

/// The rules of Gybe in a namespace, or those of istio-cni that Gybe's replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OurRules {
    /// They cannot be read, or were not, because nothing depends on them.
    NotRead,
    None,
    /// A table or chains without a rule.
    Empty,
    Ambient,
    Sidecar,
    /// Those of istio-cni for an ambient pod, and no other mesh's.
    IstioAmbient,
}

/// What happens to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing, and nothing is wrong.
    None,
    /// Its rules are written.
    Repair,
    /// It is handed over to ztunnel, and rules that differ are written.
    Enrol,
    /// ztunnel starts its proxy of the pod again.
    Restart,
    /// Its ambient rules are removed, and ztunnel forgets it.
    Leave,
    /// Nothing, and an operator has to look at it.
    Report,
}

impl Action {
    /// Its name in JSON and in log lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Repair => "repair",
            Self::Enrol => "enrol",
            Self::Restart => "restart",
            Self::Leave => "leave",
            Self::Report => "report",
        }
    }
}

/// An action and its reason, one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairDecision {
    pub action: Action,
    pub reason: String,
}

/// Decides what happens to a sandbox. A wrong repair is worse than none: a sandbox about which anything is unclear is
/// reported and left alone.
#[must_use]
pub fn decide(candidate: &RepairCandidate) -> RepairDecision {
    let decision = |action, reason: &str| RepairDecision { action, reason: reason.to_owned() };
    let ambient = ambient_change(candidate);
    match candidate.state {
        _ if ambient.is_some() => {}
        RedirectionState::Redirected => return decision(Action::None, "it is redirected"),
        RedirectionState::NotMeshed if candidate.policy == KnownPolicy::NotKnown => {
            return decision(Action::None, "it has no rules, and its policy is not known");
        }
        RedirectionState::NotMeshed => return decision(Action::None, "it should not be redirected"),
        RedirectionState::ByOthers => {
            return decision(Action::None, "it is redirected by istio-cni or istio-init");
        }
        RedirectionState::Unknown => {
            return decision(Action::Report, "it is not known whether it is redirected");
        }
        RedirectionState::NotRedirected => {}
    }
    if !candidate.has_ended_add {
        return decision(
            Action::None,
            "its ADD may be running: libcni has cached no result; if this stays, the result was deleted: delete the pod",
        );
    }
    if !candidate.has_process {
        return decision(Action::None, "no process of a pod runs in it yet, or the last one has ended");
    }
    match candidate.policy {
        _ if ambient.is_some() => {}
        _ if candidate.ours == OurRules::NotRead => {
            return decision(Action::Report, "its rules of Gybe cannot be read");
        }
        KnownPolicy::Redirect => {}
        KnownPolicy::Ambient if candidate.ours == OurRules::Sidecar => {
            return decision(Action::Report, "it should be ambient, and has rules of Gybe for a sidecar");
        }
        KnownPolicy::Ambient => {
            return decision(Action::Report, "it is ambient, and not redirected in spite of its rules");
        }
        KnownPolicy::LeaveAlone | KnownPolicy::NotAmbient | KnownPolicy::NotKnown => {
            return decision(Action::Report, "it is not redirected, and Gybe has no policy for it");
        }
    }
    if let Some(doubt) = &candidate.doubt {
        return RepairDecision {
            action: Action::Report,
            reason: format!("it is not certain that the namespace is this pod's: {doubt}"),
        };
    }
    match ambient {
        Some(Action::Restart) => return decision(Action::Restart, "ztunnel does not listen in it any more"),
        Some(Action::Leave) => return decision(Action::Leave, "it is not ambient any more"),
        Some(action) if candidate.ours == OurRules::IstioAmbient => {
            return decision(action, "it is ambient, and istio-cni wrote its rules");
        }
        Some(action) => return decision(action, "it should be ambient, and is not enrolled completely"),
        None => {}
    }
    if candidate.ours != OurRules::None {
        // A pod's rules are those of its ADD. Facts that changed since then change no running pod.
        return decision(
            Action::Report,
            "it has rules of Gybe, and is not redirected as its policy requests",
        );
    }
    decision(Action::Repair, "it should be redirected, and its namespace has no rules of Gybe")
}

/// Returns what ambient mode requires of a pod that runs. Rules for a sidecar are never replaced, and neither are those
/// of a namespace that is not known completely, or of another mesh that treat a connection otherwise.
fn ambient_change(candidate: &RepairCandidate) -> Option<Action> {
    let RepairCandidate { state, policy, ours, differs, is_due, is_silent, .. } = *candidate;
    match (policy, ours) {
        (KnownPolicy::Ambient, OurRules::IstioAmbient) => Some(Action::Enrol),
        _ if state == RedirectionState::ByOthers => None,
        // The kernel shows it as enrolled; no rule has to be written.
        (KnownPolicy::Ambient, OurRules::Ambient) if is_due => Some(Action::Enrol),
        _ if state == RedirectionState::Unknown => None,
        (KnownPolicy::Ambient, OurRules::None | OurRules::Empty) => Some(Action::Enrol),
        (KnownPolicy::Ambient, OurRules::Ambient) if differs => Some(Action::Enrol),
        (KnownPolicy::Ambient, OurRules::Ambient) if is_silent && state == RedirectionState::Redirected => {
            Some(Action::Restart)
        }
        (KnownPolicy::NotAmbient, OurRules::Ambient) => Some(Action::Leave),
        (KnownPolicy::NotAmbient, OurRules::None | OurRules::Empty) if is_due => Some(Action::Leave),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNREDIRECTED: RepairCandidate = RepairCandidate {
        state: RedirectionState::NotRedirected,
        policy: KnownPolicy::Redirect,
        has_ended_add: true,
        has_process: true,
        ours: OurRules::None,
        differs: false,
        is_due: false,
        is_silent: false,
        doubt: None,
    };

    #[test]
    fn only_a_pod_that_is_certainly_not_redirected_is_repaired() {
        let doubt = || Some("its uid changed".to_owned());
        for (candidate, action) in [
            (UNREDIRECTED, Action::Repair),
            (RepairCandidate { has_ended_add: false, ..UNREDIRECTED }, Action::None),
            (RepairCandidate { has_process: false, ..UNREDIRECTED }, Action::None),
            (RepairCandidate { has_ended_add: false, doubt: doubt(), ..UNREDIRECTED }, Action::None),
            (RepairCandidate { policy: KnownPolicy::LeaveAlone, ..UNREDIRECTED }, Action::Report),
            (RepairCandidate { policy: KnownPolicy::NotAmbient, ..UNREDIRECTED }, Action::Report),
            (RepairCandidate { policy: KnownPolicy::NotKnown, ..UNREDIRECTED }, Action::Report),
            (RepairCandidate { ours: OurRules::Sidecar, ..UNREDIRECTED }, Action::Report),
            (RepairCandidate { ours: OurRules::Empty, ..UNREDIRECTED }, Action::Report),
            (RepairCandidate { ours: OurRules::NotRead, ..UNREDIRECTED }, Action::Report),
            (RepairCandidate { doubt: doubt(), ..UNREDIRECTED }, Action::Report),
            (RepairCandidate { is_due: true, ..UNREDIRECTED }, Action::Repair),
            (RepairCandidate { state: RedirectionState::Unknown, ..UNREDIRECTED }, Action::Report),
            (RepairCandidate { state: RedirectionState::Redirected, ..UNREDIRECTED }, Action::None),
            (RepairCandidate { state: RedirectionState::NotMeshed, ..UNREDIRECTED }, Action::None),
            (RepairCandidate { state: RedirectionState::ByOthers, ..UNREDIRECTED }, Action::None),
        ] {
            assert_eq!(decide(&candidate).action, action, "{candidate:?}");
        }
    }

    #[test]
    fn a_pod_that_runs_is_enrolled_and_taken_out_only_if_that_is_certain() {
        use RedirectionState::{ByOthers, NotMeshed, NotRedirected, Redirected, Unknown};
        let ambient = RepairCandidate { policy: KnownPolicy::Ambient, ..UNREDIRECTED };
        let enrolled = RepairCandidate { state: Redirected, ours: OurRules::Ambient, ..ambient.clone() };
        let left = RepairCandidate { policy: KnownPolicy::NotAmbient, ..enrolled.clone() };
        let by_istio = RepairCandidate { state: ByOthers, ours: OurRules::IstioAmbient, ..ambient.clone() };
        let doubt = || Some("its uid changed".to_owned());
        for (candidate, action) in [
            (ambient.clone(), Action::Enrol),
            (RepairCandidate { ours: OurRules::Empty, ..ambient.clone() }, Action::Enrol),
            (RepairCandidate { ours: OurRules::Sidecar, is_due: true, ..ambient.clone() }, Action::Report),
            (RepairCandidate { ours: OurRules::NotRead, is_due: true, ..ambient.clone() }, Action::Report),
            (RepairCandidate { state: ByOthers, is_due: true, ..ambient.clone() }, Action::None),
            (by_istio.clone(), Action::Enrol),
            (RepairCandidate { doubt: doubt(), ..by_istio.clone() }, Action::Report),
            (RepairCandidate { has_process: false, ..by_istio.clone() }, Action::None),
            (RepairCandidate { ours: OurRules::NotRead, ..by_istio.clone() }, Action::None),
            (
                RepairCandidate { policy: KnownPolicy::NotAmbient, is_due: true, ..by_istio.clone() },
                Action::None,
            ),
            (RepairCandidate { policy: KnownPolicy::Redirect, ..by_istio }, Action::None),
            (RepairCandidate { state: Unknown, is_due: true, ..ambient.clone() }, Action::Report),
            (RepairCandidate { has_ended_add: false, is_due: true, ..ambient.clone() }, Action::None),
            (RepairCandidate { has_process: false, is_due: true, ..ambient.clone() }, Action::None),
            (RepairCandidate { doubt: doubt(), ..ambient }, Action::Report),
            (enrolled.clone(), Action::None),
            (RepairCandidate { is_due: true, ..enrolled.clone() }, Action::Enrol),
            (RepairCandidate { differs: true, ..enrolled.clone() }, Action::Enrol),
            (RepairCandidate { state: NotRedirected, differs: true, ..enrolled.clone() }, Action::Enrol),
            // Another owner's rules precede ours.
            (RepairCandidate { state: NotRedirected, ..enrolled.clone() }, Action::Report),
            (RepairCandidate { state: Unknown, is_due: true, ..enrolled.clone() }, Action::Enrol),
            (RepairCandidate { is_silent: true, ..enrolled.clone() }, Action::Restart),
            (RepairCandidate { is_silent: true, differs: true, ..enrolled.clone() }, Action::Enrol),
            (RepairCandidate { is_silent: true, state: NotRedirected, ..enrolled.clone() }, Action::Report),
            (RepairCandidate { is_silent: true, state: Unknown, ..enrolled.clone() }, Action::Report),
            (RepairCandidate { is_silent: true, has_ended_add: false, ..enrolled.clone() }, Action::None),
            (RepairCandidate { is_silent: true, ours: OurRules::Sidecar, ..enrolled.clone() }, Action::None),
            (RepairCandidate { state: Unknown, differs: true, ..enrolled.clone() }, Action::Report),
            (left.clone(), Action::Leave),
            (RepairCandidate { doubt: doubt(), ..left.clone() }, Action::Report),
            (RepairCandidate { policy: KnownPolicy::LeaveAlone, ..left.clone() }, Action::None),
            (RepairCandidate { policy: KnownPolicy::NotKnown, ..left.clone() }, Action::None),
            (RepairCandidate { ours: OurRules::Sidecar, ..left.clone() }, Action::None),
            (RepairCandidate { ours: OurRules::None, state: NotMeshed, ..left.clone() }, Action::None),
            (RepairCandidate { ours: OurRules::None, state: NotMeshed, is_due: true, ..left }, Action::Leave),
        ] {
            assert_eq!(decide(&candidate).action, action, "{candidate:?}");
        }
    }
}
