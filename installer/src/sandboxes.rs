//! The pod sandboxes of this node and the verdict on each, which `gybe verify --all` prints and `gybe doctor` counts.
//!
//! `find` lists the sandboxes, `desired` decides the desired state of each, `verdict` judges the observed state.

mod desired;
mod find;
mod hand_back;
pub mod probe_exemption;
pub mod repair;
mod result_cache;
pub mod verdict;

pub use desired::{PodPolicy, PolicySources};
pub(crate) use find::is_process_of;
pub use find::{HostPaths, SandboxList, find};
pub use hand_back::{HandBack, hand_back};
pub use result_cache::ContainerId;

use crate::pod::cgroups::{Cgroups, cgroup_file};
use crate::pod::own_namespace;
use crate::pod::proxy::{ProxyFault, faults_of_istio_ambient, proxy_faults, ztunnel_faults};
use crate::sandboxes::probe_exemption::node_netns;
use crate::sandboxes::verdict::verdict_of;
pub(crate) use desired::DesiredRules;
use desired::{BY_ISTIO_INIT, adapt_verdict};
use gybe_netfilter::inspect::verdict::{NamespaceVerdict, RedirectionState};
use gybe_netfilter::kernel::netns::{Netns, NetnsError};
use gybe_plugin::args::PodRef;
use gybe_plugin::conf::PluginConf;
use gybe_plugin::gates::LeaveAloneReason;
use serde_json::{Map, Value};
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

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
    /// Its processes that belong to a pod.
    pub processes: Vec<PodProcess>,
    /// The ADD of its network, if libcni has cached the result. It does so after the last plugin of the chain.
    pub ended_add: Option<EndedAdd>,
}

/// A process in a sandbox's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodProcess {
    /// Its directory in `/proc`.
    pub directory: PathBuf,
    /// The uid of its pod.
    pub uid: String,
}

/// What libcni cached of an ADD. An ADD for the interface `lo` does not count: the runtime makes it first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndedAdd {
    /// The addresses that the plugins assigned.
    pub addresses: Vec<IpAddr>,
    /// The plugin's configuration in the conflist of each network.
    pub confs: Vec<ConfOfAdd>,
    /// When libcni cached it.
    pub at: Option<SystemTime>,
}

/// The plugin's configuration in an ADD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfOfAdd {
    Entry(Box<PluginConf>),
    /// The conflist has no entry of the plugin: the ADD was made before Gybe was installed, or the entry is a drop-in.
    NoEntry,
    /// The conflist or the entry cannot be parsed.
    NotKnown,
}

/// The network of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// A network namespace of its own, at this path as `gybe` sees it.
    Own(PathBuf),
    /// The node's (`hostNetwork: true`).
    OfNode,
}

/// A sandbox with its open namespace, its desired state and the verdict on it.
#[derive(Debug)]
pub(crate) struct JudgedSandbox {
    pub(crate) report: SandboxVerdict,
    /// Open since before the verdict: its path may lead to another namespace by now.
    pub(crate) netns: Option<Netns>,
    /// None with the node's network.
    pub(crate) desired: Option<DesiredRules>,
    /// How long the namespace was read.
    pub(crate) took: Duration,
}

/// A sandbox and the verdict on it.
#[derive(Debug, Clone)]
pub struct SandboxVerdict {
    pub sandbox: Sandbox,
    pub verdict: NamespaceVerdict,
    /// Why the desired state is unknown; none if it is known.
    pub unknown_because: Option<String>,
    /// Why redirected connections fail at the proxy, of a pod of the mesh whose containers run.
    pub proxy_faults: Vec<ProxyFault>,
}

impl Sandbox {
    pub(crate) fn in_namespace(path: PathBuf) -> Self {
        Self {
            pod: None,
            uid: None,
            container: None,
            network: Network::Own(path),
            annotations: None,
            cgroups: Cgroups::default(),
            processes: Vec::new(),
            ended_add: None,
        }
    }

    /// Reports whether it belongs to a pod of this namespace and name.
    #[must_use]
    pub fn is_of(&self, pod: &PodRef) -> bool {
        self.pod.as_ref().is_some_and(|own| own.namespace == pod.namespace && own.name == pod.name)
    }

    /// Reports whether it belongs to the pod with this uid, by its ADD or by a process in it.
    #[must_use]
    pub fn is_of_uid(&self, uid: &str) -> bool {
        let of_add = self.pod.as_ref().and_then(|pod| pod.uid.as_deref());
        let of_processes = self.processes.iter().map(|process| process.uid.as_str());
        of_add.into_iter().chain(self.uid.as_deref()).chain(of_processes).any(|own| own == uid)
    }

    /// Reports whether a process of a container runs in it. The first process is the sandbox's own.
    fn has_started(&self) -> bool {
        let is_own =
            |cgroup: &String| self.container.as_ref().is_some_and(|own| cgroup.contains(own.as_str()));
        self.processes.iter().any(|process| !cgroup_file(&process.directory).is_some_and(|it| is_own(&it)))
    }

    /// Reports whether the id is its own or that of a container in it.
    #[must_use]
    pub fn has_container(&self, id: &ContainerId) -> bool {
        self.container.as_ref().is_some_and(|own| id.is_id(own))
            || self
                .processes
                .iter()
                .filter_map(|process| cgroup_file(&process.directory))
                .any(|it| id.is_in(&it))
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
    /// Reports whether the sandbox is not in its desired state. A sandbox that another mesh redirects fails only if it is
    /// an ambient pod whose rules do not lead each connection to ztunnel.
    #[must_use]
    pub fn fails(&self) -> bool {
        match self.verdict.state {
            RedirectionState::ByOthers => !self.verdict.differences.is_empty(),
            _ => !self.verdict.holds(),
        }
    }

    /// The verdict in one line: its state and the headline.
    #[must_use]
    pub fn line(&self) -> String {
        let name = state_name(self.verdict.state);
        self.headline().map_or_else(|| name.to_owned(), |headline| format!("{name}: {headline}"))
    }

    /// The first of the reasons and differences.
    #[must_use]
    pub fn headline(&self) -> Option<&str> {
        self.causes().next()
    }

    /// The reasons and differences after the headline.
    pub fn details(&self) -> impl Iterator<Item = &str> {
        self.causes().skip(1)
    }

    fn causes(&self) -> impl Iterator<Item = &str> {
        self.verdict.reasons.iter().chain(&self.verdict.differences).map(String::as_str)
    }

    /// Returns the notes on a redirected pod whose policy is known: they change no verdict. Those on another one explain
    /// its verdict.
    pub(crate) fn notes(&self) -> &[String] {
        match (self.verdict.state, &self.unknown_because) {
            (RedirectionState::Redirected, None) => &self.verdict.notes,
            _ => &[],
        }
    }

    /// A note if the rules differ from what the pod requests now, and what it requested in its ADD is not known: no
    /// other program need have changed them.
    #[must_use]
    pub fn later_annotations(&self) -> Option<&'static str> {
        let Self { sandbox, verdict, unknown_because, .. } = self;
        let is_judged = !verdict.differences.is_empty() && unknown_because.is_none() && sandbox.pod.is_some();
        (is_judged && sandbox.annotations.is_none()).then_some(
            "its rules differ from what the pod requests now; the annotations of its ADD are not known here, and those \
             that changed since are in effect for a new pod only",
        )
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

/// Judges the sandboxes of the node whose root is at `root`, in their order.
#[must_use]
pub fn judge_all(sandboxes: Vec<Sandbox>, sources: &PolicySources, root: &Path) -> Vec<SandboxVerdict> {
    let node = node_netns(root).ok();
    sandboxes.into_iter().map(|sandbox| judge(sandbox, sources, node.as_ref())).collect()
}

fn judge(sandbox: Sandbox, sources: &PolicySources, node: Option<&Netns>) -> SandboxVerdict {
    let JudgedSandbox { mut report, netns, desired, .. } = judge_open(sandbox, sources);
    if let Some(netns) = netns.filter(|_| report.sandbox.has_started()) {
        let processes = report.sandbox.processes.iter().map(|process| process.directory.clone());
        report.proxy_faults = match desired {
            Some(DesiredRules::Policy(known)) => {
                proxy_faults(&netns, &known.policy, &processes.collect::<Vec<PathBuf>>())
            }
            Some(DesiredRules::Ambient(_)) if report.verdict.state == RedirectionState::Redirected => {
                ztunnel_faults(&netns)
            }
            _ if report.verdict.state == RedirectionState::ByOthers => {
                let assigned = report.sandbox.ended_add.as_ref().map(|ended| ended.addresses.as_slice());
                let faults = |node| faults_of_istio_ambient(&netns, node, assigned.unwrap_or_default());
                node.map(faults).unwrap_or_default()
            }
            _ => Vec::new(),
        };
    }
    report
}

/// Judges a sandbox and keeps its namespace open. Does not look for the proxy.
pub(crate) fn judge_open(sandbox: Sandbox, sources: &PolicySources) -> JudgedSandbox {
    let Network::Own(path) = &sandbox.network else {
        let verdict = NamespaceVerdict::because(RedirectionState::NotMeshed, "it uses the node's network");
        let report = SandboxVerdict { sandbox, verdict, unknown_because: None, proxy_faults: Vec::new() };
        return JudgedSandbox { report, netns: None, desired: None, took: Duration::ZERO };
    };
    let netns = Netns::open(path);
    let addresses = || addresses_in(netns.as_ref().map_err(ToString::to_string)?);
    let desired = sources.desired(&sandbox, addresses);
    let started = Instant::now();
    let mut verdict = match &netns {
        Ok(netns) => adapt_verdict(&desired, verdict_of(netns, desired.for_verdict(), &sandbox.cgroups)),
        Err(why) => {
            adapt_verdict(&desired, NamespaceVerdict::because(RedirectionState::Unknown, cannot_open(why)))
        }
    };
    let took = started.elapsed();
    if let DesiredRules::Policy(known) = &desired
        && !known.changed.is_empty()
    {
        let names = known.changed.join(", ");
        verdict.notes.push(format!("changed since its ADD, and in effect for a new pod only: {names}"));
    }
    if let DesiredRules::Policy(known) = &desired
        && verdict.state == RedirectionState::Redirected
    {
        let directions =
            [("inbound", known.policy.captures_inbound()), ("outbound", known.policy.captures_outbound())];
        let left = directions.into_iter().filter(|(_, is_captured)| !is_captured);
        verdict.notes.extend(left.map(|(direction, _)| {
            format!("its policy captures no {direction} connection: gybe explain names what sets that")
        }));
    }
    let unknown_because = match &desired {
        DesiredRules::NotKnown { why, .. } => Some(why.clone()),
        DesiredRules::LeftAlone { reason: LeaveAloneReason::IstioInit, .. } => {
            (verdict.state == RedirectionState::Redirected).then(|| BY_ISTIO_INIT.to_owned())
        }
        DesiredRules::Policy(_) | DesiredRules::Ambient(_) | DesiredRules::LeftAlone { .. } => None,
    };
    let report = SandboxVerdict { sandbox, verdict, unknown_because, proxy_faults: Vec::new() };
    JudgedSandbox { report, netns: netns.ok(), desired: Some(desired), took }
}

/// Returns the addresses in the namespace, without those that Gybe adds.
pub(crate) fn addresses_in(netns: &Netns) -> Result<Vec<IpAddr>, String> {
    let found = netns.run(own_namespace::addresses).map_err(|why| why.to_string())?;
    found.map_err(|why| why.to_string())
}

fn cannot_open(why: &NetnsError) -> String {
    let why = crate::error::chain(why);
    format!("its network namespace cannot be judged: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_plugin::args::{Namespace, PodName};

    #[test]
    fn a_pod_whose_rules_differ_from_those_it_should_have_fails() {
        let judged = |state, differences: &[&str]| SandboxVerdict {
            sandbox: Sandbox::in_namespace(PathBuf::new()),
            verdict: NamespaceVerdict {
                differences: differences.iter().map(|one| (*one).to_owned()).collect(),
                ..NamespaceVerdict::because(state, "as found")
            },
            unknown_because: None,
            proxy_faults: Vec::new(),
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
        let mut of_pod = judged(RedirectionState::Redirected, &["a rule is missing"]);
        assert_eq!(of_pod.later_annotations(), None, "it is not known what the pod requests");
        let names = (Namespace::parse("shop").unwrap(), PodName::parse("cart-0").unwrap());
        of_pod.sandbox.pod = Some(PodRef { namespace: names.0, name: names.1, uid: None });
        assert!(of_pod.later_annotations().is_some());
        of_pod.sandbox.annotations = Some(Map::new());
        assert_eq!(of_pod.later_annotations(), None, "it is judged by those of its ADD");
    }
}
