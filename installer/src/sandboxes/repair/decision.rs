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
    /// Whether the namespace has rules of Gybe.
    pub has_our_rules: bool,
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
    /// No source knows the pod.
    NotKnown,
}

/// What happens to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing, and nothing is wrong.
    None,
    /// Its rules are written.
    Repair,
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
    match candidate.state {
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
        return decision(Action::None, "its ADD may be running: libcni has cached no result");
    }
    if !candidate.has_process {
        return decision(Action::None, "no process of a pod runs in it yet, or the last one has ended");
    }
    match candidate.policy {
        KnownPolicy::Redirect => {}
        KnownPolicy::Ambient => {
            return decision(
                Action::Report,
                "it should be ambient, and a running pod is not enrolled: restart it",
            );
        }
        KnownPolicy::LeaveAlone | KnownPolicy::NotKnown => {
            return decision(Action::Report, "it is not redirected, and Gybe has no policy for it");
        }
    }
    if let Some(doubt) = &candidate.doubt {
        return RepairDecision {
            action: Action::Report,
            reason: format!("it is not certain that the namespace is this pod's: {doubt}"),
        };
    }
    if candidate.has_our_rules {
        // A pod's rules are those of its ADD. Facts that changed since then change no running pod.
        return decision(
            Action::Report,
            "it has rules of Gybe, and is not redirected as its policy requests",
        );
    }
    decision(Action::Repair, "it should be redirected, and its namespace has no rules of Gybe")
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNREDIRECTED: RepairCandidate = RepairCandidate {
        state: RedirectionState::NotRedirected,
        policy: KnownPolicy::Redirect,
        has_ended_add: true,
        has_process: true,
        has_our_rules: false,
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
            (RepairCandidate { policy: KnownPolicy::Ambient, ..UNREDIRECTED }, Action::Report),
            (RepairCandidate { policy: KnownPolicy::LeaveAlone, ..UNREDIRECTED }, Action::Report),
            (RepairCandidate { policy: KnownPolicy::NotKnown, ..UNREDIRECTED }, Action::Report),
            (RepairCandidate { has_our_rules: true, ..UNREDIRECTED }, Action::Report),
            (RepairCandidate { doubt: doubt(), ..UNREDIRECTED }, Action::Report),
            (RepairCandidate { state: RedirectionState::Unknown, ..UNREDIRECTED }, Action::Report),
            (RepairCandidate { state: RedirectionState::Redirected, ..UNREDIRECTED }, Action::None),
            (RepairCandidate { state: RedirectionState::NotMeshed, ..UNREDIRECTED }, Action::None),
            (RepairCandidate { state: RedirectionState::ByOthers, ..UNREDIRECTED }, Action::None),
        ] {
            assert_eq!(decide(&candidate).action, action, "{candidate:?}");
        }
        let ambient = decide(&RepairCandidate { policy: KnownPolicy::Ambient, ..UNREDIRECTED });
        assert!(ambient.reason.contains("restart it"), "{ambient:?}");
    }
}
