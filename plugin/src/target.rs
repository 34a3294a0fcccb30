//! The pod that an ADD or CHECK is about: from the request to its facts, its open network namespace and its
//! policy. Reads only; ADD and CHECK write and compare.

use crate::args::PodRef;
use crate::backend::{SelectedBackend, Selection};
use crate::conf::PluginConf;
use crate::decide::{self, PodRefusal, PolicyDraft, PreliminaryDecision};
use crate::error::PluginError;
use crate::facts::ambient::AmbientPod;
use crate::facts::{self, AbsentAgent, FactsError, FactsLookup};
use crate::families;
use crate::gates::{self, InitContainer, LeaveAloneReason};
use crate::log::micros;
use crate::pod::PodFacts;
use crate::request::{OwnNamespace, Request, Verb};
use gybe_netfilter::apply::backend::{Backend, BackendKind};
use gybe_netfilter::apply::redirection::{Redirection, RedirectionError, RuleVariant};
use gybe_netfilter::kernel::netns::{Identity, Netns};
use gybe_netfilter::kernel::routes::{Address, Rtnetlink};
use gybe_netfilter::model::policy::{AmbientPolicy, Families};
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

/// What a call has to do.
pub(crate) enum CallTarget {
    /// Nothing: the pod, if the runtime names one, is left alone.
    LeaveAlone {
        reason: LeaveAloneReason,
        /// `namespace/name`, or empty.
        pod: String,
    },
    /// The pod has a policy.
    Redirect(Box<TargetPod>),
}

/// A pod of the mesh: its namespace is open, its policy complete but for the address families.
pub(crate) struct TargetPod {
    pub(crate) pod: PodRef,
    pub(crate) facts: PodFacts,
    /// How long the sources of facts took.
    pub(crate) facts_us: u64,
    /// Selected before the namespace is entered; CHECK selects by the rules in the namespace.
    backend: Option<SelectedBackend>,
    policy: TargetPolicy,
    netns: Netns,
    /// For all that the agent has to do.
    pub(crate) deadline: Instant,
}

/// The policy of a pod of the mesh.
enum TargetPolicy {
    Sidecar(PolicyDraft),
    Ambient(AmbientPolicy, AmbientPod),
}

/// The routing socket and the addresses of the pod's namespace.
pub(crate) struct PodNetwork<'a> {
    pub(crate) rtnetlink: &'a mut Rtnetlink,
    /// As listed when the namespace was entered.
    pub(crate) addresses: &'a [Address],
}

/// What was found and done in the pod's namespace.
pub(crate) struct NamespaceReport<T> {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) families: Families,
    pub(crate) backend: BackendKind,
    pub(crate) variant: RuleVariant,
    /// None for a pod with a sidecar.
    pub(crate) ambient: Option<AmbientTarget>,
    pub(crate) outcome: T,
}

/// An ambient pod, for ztunnel.
pub(crate) struct AmbientTarget {
    pub(crate) pod: AmbientPod,
    pub(crate) netns: Netns,
}

/// Finds the target of an ADD or CHECK.
pub(crate) fn find(request: &Request, conf: &PluginConf) -> Result<CallTarget, PluginError> {
    let named = PodRef::from_args(&request.args)?;
    let path = NetnsPath::of(request)?;
    // For every pod, as the reference plugin does, but before any work.
    path.refuse_own(Identity::at(path.path).ok())?;
    let Some(pod) = named else {
        return Ok(CallTarget::LeaveAlone { reason: LeaveAloneReason::NotKubernetes, pod: String::new() });
    };
    let annotations = request.network.pod_annotations();
    let reason = gates::check_without_facts(conf, pod.namespace.as_str(), pod.name.as_str(), annotations);
    if let Some(reason) = reason {
        return Ok(CallTarget::LeaveAlone { reason, pod: pod.to_string() });
    }
    let started = Instant::now();
    let lookup = FactsLookup::start(&conf.facts, &pod, conf.ambient.is_some());
    let deadline = lookup.deadline();
    // Opened before any wait for facts: afterwards the path may lead to another pod's namespace.
    let netns = path.open();
    // A CHECK that fails stops no pod from starting; the runtime repeats it.
    let absent = if request.verb == Verb::Add { AbsentAgent::IsAwaited } else { AbsentAgent::Fails };
    let facts = lookup.finish(absent, |facts| decide::is_ambient_undecided(conf, facts))?;
    let facts_us = micros(started);
    // Nothing but the facts shows whether the pod is ambient.
    if gates::may_be_ambient(conf, annotations) && !facts::same_uid(&facts, &pod) {
        return Err(FactsError::without_uid(&facts).into());
    }
    // The runtime's annotations are this pod's; facts that contradict them may be those of another pod of that name.
    let require_uncontradicted = |reason: LeaveAloneReason| {
        let is_contradicted = gates::contradicts(annotations, &reason) && !facts::same_uid(&facts, &pod);
        if is_contradicted { Err(FactsError::contradicted(reason, &facts)) } else { Ok(reason) }
    };
    let policy = match decide::decide_without_addresses(conf, &facts, InitContainer::Counts) {
        PreliminaryDecision::Redirect(policy) => TargetPolicy::Sidecar(policy),
        PreliminaryDecision::Ambient(policy) => {
            require_uncontradicted(LeaveAloneReason::NotInjected)?;
            TargetPolicy::Ambient(policy, facts::ambient_pod(&facts)?)
        }
        PreliminaryDecision::Refuse(refusal) => return Err(refusal.into()),
        PreliminaryDecision::LeaveAlone(reason) => {
            let reason = require_uncontradicted(reason)?;
            if decide::is_ambient_undecided(conf, &facts) {
                return Err(FactsError::Ambient.into());
            }
            return Ok(CallTarget::LeaveAlone { reason, pod: pod.to_string() });
        }
    };
    let netns = netns?;
    // Last, because it takes a probe when no findings are kept.
    let backend = (request.verb == Verb::Add).then(|| Selection::of(conf).to_write()).transpose()?;
    Ok(CallTarget::Redirect(Box::new(TargetPod { pod, facts, facts_us, backend, policy, netns, deadline })))
}

/// `CNI_NETNS`, and the namespace that it must not be.
struct NetnsPath<'r> {
    path: &'r Path,
    /// The plugin's own namespace, which on a node is the host's; none where it is allowed.
    own: Option<Identity>,
}

impl<'r> NetnsPath<'r> {
    fn of(request: &'r Request) -> Result<Self, PluginError> {
        let is_checked = request.verb == Verb::Add && request.own_namespace == OwnNamespace::Refused;
        let own = is_checked.then(Identity::of_the_first_thread).transpose().map_err(PluginError::Netns)?;
        Ok(Self { path: request.netns.as_deref().unwrap_or(Path::new("")), own })
    }

    /// Refuses the plugin's own namespace. An unreadable path is an error only where the namespace is needed.
    fn refuse_own(&self, identity: Option<Identity>) -> Result<(), PluginError> {
        if identity.is_some() && identity == self.own {
            return Err(PluginError::OwnNamespace(self.path.to_owned()));
        }
        Ok(())
    }

    /// Opens the namespace, and checks again: the path may lead elsewhere by now.
    fn open(&self) -> Result<Netns, PluginError> {
        let netns = Netns::open(self.path).map_err(PluginError::Netns)?;
        self.refuse_own(Some(netns.identity()))?;
        Ok(netns)
    }
}

impl TargetPod {
    /// Enters the pod's namespace, completes the policy there, and does `work` with its rules and routes.
    ///
    /// One routing socket and one list of addresses serve both the policy and the work.
    pub(crate) fn in_namespace<T>(
        self,
        conf: &PluginConf,
        work: impl FnOnce(&Redirection, &dyn Backend, PodNetwork<'_>) -> Result<T, RedirectionError>,
    ) -> Result<NamespaceReport<T>, PluginError> {
        let Self { facts, backend, policy, netns, .. } = self;
        netns.enter().map_err(PluginError::Netns)?;
        let mut rtnetlink = Rtnetlink::open().map_err(PluginError::Addresses)?;
        let listed = rtnetlink.addresses().map_err(PluginError::Addresses)?;
        let addresses: Vec<_> = listed.iter().map(|address| address.ip).collect();
        let selected = backend.map_or_else(|| SelectedBackend::to_read(conf.backend), Ok)?;
        let (families, (redirection, variant), ambient) = match policy {
            TargetPolicy::Sidecar(policy) => {
                let families = families::choose(conf.ipv6, families::stack(&facts), &addresses)
                    .map_err(PodRefusal::Families)?;
                (families, selected.redirection(&policy.complete(families))?, None)
            }
            TargetPolicy::Ambient(policy, pod) => {
                let redirection = selected.redirection_of_ambient(&policy)?;
                (policy.families, redirection, Some(AmbientTarget { pod, netns }))
            }
        };
        let network = PodNetwork { rtnetlink: &mut rtnetlink, addresses: &listed };
        let outcome = work(&redirection, selected.backend.as_ref(), network)?;
        let backend = selected.backend.kind();
        Ok(NamespaceReport { addresses, families, backend, variant, ambient, outcome })
    }
}
