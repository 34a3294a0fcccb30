//! The pod sandboxes of this node and the verdict on each, which `gybe verify --all` prints and `gybe doctor` counts.
//!
//! `find` lists the sandboxes, `desired` decides the desired state of each, `pod::verdict` judges the observed state.

mod desired;
mod find;
mod processes;
mod result_cache;

pub use desired::PolicySources;
pub use find::{HostPaths, SandboxList, find};

use crate::pod::cgroups::Cgroups;
use crate::pod::own_namespace;
use crate::pod::verdict::verdict_of;
use desired::{Desired, adapt_verdict};
use gybe_netfilter::netns::{Netns, NetnsError};
use gybe_netfilter::verdict::{RedirectionState, Verdict};
use gybe_plugin::args::PodRef;
use serde_json::{Map, Value};
use std::fmt;
use std::path::PathBuf;

/// A pod sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Sandbox {
    /// Namespace, name and, if known, uid.
    pub pod: Option<PodRef>,
    /// The uid, if the name is unknown.
    pub uid: Option<String>,
    /// The runtime's id of the sandbox.
    pub container: Option<String>,
    pub network: Network,
    /// The annotations that the runtime passed to the plugins; none if it passed none.
    pub annotations: Option<Map<String, Value>>,
    /// The cgroups of its processes.
    pub cgroups: Cgroups,
}

/// The network of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// A network namespace of its own, at this path as `gybe` sees it.
    Own(PathBuf),
    /// The node's (`hostNetwork: true`).
    OfNode,
}

/// A sandbox and the verdict on it.
#[derive(Debug, Clone)]
pub struct SandboxVerdict {
    pub sandbox: Sandbox,
    pub verdict: Verdict,
    /// Why the desired state is unknown; none if it is known.
    pub unknown_because: Option<String>,
}

impl Sandbox {
    fn in_namespace(path: PathBuf) -> Self {
        Self {
            pod: None,
            uid: None,
            container: None,
            network: Network::Own(path),
            annotations: None,
            cgroups: Cgroups::default(),
        }
    }
}

/// The name in a list: the pod's name, or its uid, or the path of the namespace.
impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { pod: Some(pod), .. } => write!(f, "{pod}"),
            Self { uid: Some(uid), .. } => write!(f, "pod uid {uid}"),
            Self { network: Network::Own(path), .. } => write!(f, "{}", path.display()),
            Self { network: Network::OfNode, .. } => f.write_str("a pod in the node's network"),
        }
    }
}

impl SandboxVerdict {
    /// Reports whether the sandbox is not in its desired state. A sandbox that another mesh redirects does not fail.
    #[must_use]
    pub fn fails(&self) -> bool {
        self.verdict.state != RedirectionState::ByOthers && !self.verdict.holds()
    }

    /// The verdict in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let name = state_name(self.verdict.state);
        match self.verdict.reasons.first().or(self.verdict.differences.first()) {
            Some(reason) => format!("{name}: {reason}"),
            None => name.to_owned(),
        }
    }
}

/// The state as text for people.
#[must_use]
pub fn state_name(state: RedirectionState) -> &'static str {
    match state {
        RedirectionState::Redirected => "redirected",
        RedirectionState::NotMeshed => "not meshed",
        RedirectionState::NotRedirected => "NOT REDIRECTED",
        RedirectionState::ByOthers => "redirected by another's rules",
        RedirectionState::Unknown => "unknown",
    }
}

/// Returns the number of sandboxes of each kind, in one line.
#[must_use]
pub fn summary(judged: &[SandboxVerdict]) -> String {
    let kinds = [
        RedirectionState::Redirected,
        RedirectionState::ByOthers,
        RedirectionState::NotMeshed,
        RedirectionState::NotRedirected,
        RedirectionState::Unknown,
    ];
    let count = |kind: RedirectionState| judged.iter().filter(|one| one.verdict.state == kind).count();
    let counted = kinds.map(|kind| (count(kind), state_name(kind)));
    let counted: Vec<String> = counted
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{count} {name}"))
        .collect();
    match judged.len() {
        0 => "no pod sandbox on this node".to_owned(),
        1 => format!("1 sandbox: {}", counted.join(", ")),
        many => format!("{many} sandboxes: {}", counted.join(", ")),
    }
}

/// Judges the sandboxes in their order.
#[must_use]
pub fn judge_all(sandboxes: Vec<Sandbox>, sources: &PolicySources) -> Vec<SandboxVerdict> {
    sandboxes.into_iter().map(|sandbox| judge(sandbox, sources)).collect()
}

fn judge(sandbox: Sandbox, sources: &PolicySources) -> SandboxVerdict {
    let Network::Own(path) = &sandbox.network else {
        let verdict = Verdict::because(RedirectionState::NotMeshed, "it uses the node's network");
        return SandboxVerdict { sandbox, verdict, unknown_because: None };
    };
    let netns = Netns::open(path);
    let addresses = || {
        let netns = netns.as_ref().map_err(ToString::to_string)?;
        let found = netns.run(own_namespace::addresses).map_err(|why| why.to_string())?;
        found.map_err(|why| why.to_string())
    };
    let desired = sources.desired(&sandbox, addresses);
    let verdict = match &netns {
        Ok(netns) => adapt_verdict(&desired, verdict_of(netns, desired.for_verdict(), &sandbox.cgroups)),
        Err(why) => adapt_verdict(&desired, Verdict::because(RedirectionState::Unknown, cannot_open(why))),
    };
    let unknown_because = match desired {
        Desired::NotKnown { why, .. } => Some(why),
        _ => None,
    };
    SandboxVerdict { sandbox, verdict, unknown_because }
}

fn cannot_open(why: &NetnsError) -> String {
    let why = crate::error::chain(why);
    format!("its network namespace cannot be judged: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_whose_rules_differ_from_those_it_should_have_fails() {
        let judged = |state, differences: &[&str]| SandboxVerdict {
            sandbox: Sandbox::in_namespace(PathBuf::new()),
            verdict: Verdict {
                differences: differences.iter().map(|one| (*one).to_owned()).collect(),
                ..Verdict::because(state, "as found")
            },
            unknown_because: None,
        };
        for (state, differences, fails) in [
            (RedirectionState::Redirected, &[][..], false),
            (RedirectionState::Redirected, &["a rule is missing"][..], true),
            (RedirectionState::NotMeshed, &[][..], false),
            (RedirectionState::NotMeshed, &["a rule too many"][..], true),
            (RedirectionState::NotRedirected, &[][..], true),
            (RedirectionState::Unknown, &[][..], true),
            (RedirectionState::ByOthers, &[][..], false),
        ] {
            assert_eq!(judged(state, differences).fails(), fails, "{state:?} {differences:?}");
        }
    }
}
