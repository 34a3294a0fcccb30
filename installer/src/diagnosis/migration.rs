//! How the pods of a node would be treated if Gybe wrote their rules instead of the program that wrote them: what
//! `gybe migrate --dry-run` prints. Only reads.

use crate::error::chain;
use crate::sandboxes::{DesiredRules, Network, PolicySources, Sandbox, addresses_in};
use gybe_netfilter::apply::istio_ambient::IstioAmbient;
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::apply::redirection::RedirectionError;
use gybe_netfilter::inspect::verdict::{Treatment, compare_treatment, is_replaceable};
use gybe_netfilter::kernel::netns::Netns;
use gybe_netfilter::model::policy::AmbientPolicy;
use gybe_plugin::gates::LeaveAloneReason;

/// What the move to Gybe changes for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutcomeChange {
    /// Nothing; the reason in a sentence.
    None(String),
    /// Connections end otherwise; a sentence for each kind, what happens now first.
    Otherwise(Vec<String>),
    /// It is not known; the reasons.
    Unknown(Vec<String>),
}

/// A sandbox, and what changes for it.
#[derive(Debug, Clone)]
pub struct SandboxChange {
    pub sandbox: Sandbox,
    pub change: OutcomeChange,
}

/// Compares each sandbox's connections now with those under the rules that Gybe would write, in the order of the
/// sandboxes.
#[must_use]
pub fn changes(sandboxes: Vec<Sandbox>, sources: &PolicySources) -> Vec<SandboxChange> {
    let change = |sandbox| SandboxChange { change: change(&sandbox, sources), sandbox };
    sandboxes.into_iter().map(change).collect()
}

fn change(sandbox: &Sandbox, sources: &PolicySources) -> OutcomeChange {
    let Network::Own(path) = &sandbox.network else {
        return OutcomeChange::None("it uses the node's network".to_owned());
    };
    let netns = match Netns::open(path) {
        Ok(netns) => netns,
        Err(why) => return unknown(format!("its network namespace cannot be opened: {}", chain(&why))),
    };
    let desired = sources.desired(sandbox, || addresses_in(&netns));
    match &desired {
        DesiredRules::NotKnown { why, .. } => unknown(why.clone()),
        DesiredRules::LeftAlone { reason: reason @ LeaveAloneReason::IstioInit, .. } => {
            OutcomeChange::None(reason.to_string())
        }
        DesiredRules::LeftAlone { reason, .. } => {
            let same = format!("Gybe would leave it alone ({reason}), and nothing redirects it");
            compared(&netns, sandbox, &desired, same)
        }
        DesiredRules::Ambient(enrolment) => {
            let happens = take_over(&netns, &enrolment.policy);
            let same = format!("the same connections would go to ztunnel: {happens}");
            match compared(&netns, sandbox, &desired, same) {
                OutcomeChange::Otherwise(mut sentences) => {
                    sentences.push(happens);
                    OutcomeChange::Otherwise(sentences)
                }
                other => other,
            }
        }
        DesiredRules::Policy(_) => {
            let same = "Gybe would redirect the same connections".to_owned();
            compared(&netns, sandbox, &desired, same)
        }
    }
}

/// Returns what becomes of the rules of an ambient pod that runs: the decision of the container `repair`.
fn take_over(netns: &Netns, policy: &AmbientPolicy) -> String {
    let decided = netns.run(|| {
        Ok::<_, RedirectionError>(match IstioAmbient::look()? {
            Some(_) if is_replaceable(policy)? => "Gybe replaces istio-cni's rules while the pod runs",
            Some(_) => "Gybe leaves istio-cni's rules as they are: they treat connections otherwise than Gybe's would",
            None if Presence::look()?.other_meshes.is_empty() => "Gybe writes its rules while the pod runs",
            None => "Gybe leaves its rules as they are: they are not only istio-cni's for an ambient pod",
        })
    });
    let not_known = |why: String| format!("it is not known whether Gybe replaces its rules: {why}");
    match decided {
        Ok(Ok(happens)) => happens.to_owned(),
        Ok(Err(why)) => not_known(chain(&why)),
        Err(why) => not_known(chain(&why)),
    }
}

fn compared(netns: &Netns, sandbox: &Sandbox, desired: &DesiredRules, same: String) -> OutcomeChange {
    let programs = sandbox.cgroups.programs();
    match netns.run(|| compare_treatment(desired.for_verdict(), &programs)) {
        Ok(Ok(Treatment { differences, .. })) if !differences.is_empty() => {
            OutcomeChange::Otherwise(differences)
        }
        Ok(Ok(Treatment { unknown, .. })) if !unknown.is_empty() => OutcomeChange::Unknown(unknown),
        Ok(Ok(_)) => OutcomeChange::None(same),
        Ok(Err(why)) => unknown(format!("its rules cannot be read: {}", chain(&why))),
        Err(why) => unknown(format!("its network namespace cannot be entered: {}", chain(&why))),
    }
}

fn unknown(why: String) -> OutcomeChange {
    OutcomeChange::Unknown(vec![why])
}
