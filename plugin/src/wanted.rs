//! The road ADD and CHECK share: from the call to the pod's namespace and what is wanted in it.

use crate::args::{Caller, PodRef};
use crate::backend::{SelectedBackend, Selection};
use crate::conf::PluginConf;
use crate::decide::{self, Cause, Opinion, Wish};
use crate::error::PluginError;
use crate::facts::{self, FactsError};
use crate::families;
use crate::gates::{self, InitContainer, Reason};
use crate::log::micros;
use crate::pod::PodFacts;
use crate::request::{OwnNamespace, Request, Verb};
use gybe_netfilter::backend::Backend;
use gybe_netfilter::netns::{Identity, Netns};
use gybe_netfilter::policy::Families;
use gybe_netfilter::redirection::{Redirection, RedirectionError, RuleVariant};
use gybe_netfilter::routes::{Address, Rtnetlink};
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

/// What a call comes to.
pub(crate) enum Wanted {
    /// Nothing, and for which pod.
    LeaveAlone(Reason, String),
    /// A redirected pod.
    Redirect(Box<Subject>),
}

/// A pod that is ours, its namespace open and its wish complete but for the families.
pub(crate) struct Subject {
    pub(crate) pod: PodRef,
    pub(crate) facts: PodFacts,
    /// How long it took to learn them.
    pub(crate) facts_us: u64,
    /// Known before the namespace is entered where something is to be written.
    backend: Option<SelectedBackend>,
    wish: Wish,
    netns: Netns,
}

/// What is at hand inside a namespace.
pub(crate) struct Met<'a> {
    pub(crate) routes: &'a mut Rtnetlink,
    /// As they were listed on the way in.
    pub(crate) addresses: &'a [Address],
}

/// What was met and done inside a namespace.
pub(crate) struct Done<T> {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) families: Families,
    pub(crate) backend: &'static str,
    pub(crate) variant: RuleVariant,
    pub(crate) outcome: T,
}

/// Walks the road. Nothing is changed on it.
pub(crate) fn wanted(request: &Request, conf: &PluginConf) -> Result<Wanted, PluginError> {
    let caller = Caller::parse(&request.args)?;
    let theirs = Theirs::of(request)?;
    // For every pod, ours or not, as the reference does; but the reference does it after its work.
    theirs.is_not_our_own(Identity::at(theirs.path).ok())?;
    let pod = match caller {
        Caller::SomebodyElse => return Ok(Wanted::LeaveAlone(Reason::NotKubernetes, String::new())),
        Caller::Kubernetes(pod) => pod,
    };
    let handed = request.network.pod_annotations();
    if let Some(reason) = gates::at_once(conf, pod.namespace.as_str(), pod.name.as_str(), handed) {
        return Ok(Wanted::LeaveAlone(reason, pod.to_string()));
    }
    // Before anybody is waited for: what the path leads to then may be another pod's.
    let netns = theirs.open();
    let asked = Instant::now();
    let facts = facts::ask(&conf.facts, &pod)?;
    let facts_us = micros(asked);
    let wish = match decide::opinion(conf, &facts, InitContainer::Counts) {
        Opinion::LeaveAlone(known)
            if gates::contradicts(handed, &known) && !facts::same_uid(&facts, &pod) =>
        {
            return Err(FactsError::Contradicted { known }.into());
        }
        Opinion::LeaveAlone(reason) => return Ok(Wanted::LeaveAlone(reason, pod.to_string())),
        Opinion::Refuse(cause) => return Err(cause.into()),
        Opinion::Redirect(wish) => wish,
    };
    let netns = netns?;
    // Last: where nothing is known about the node it takes a probe.
    let backend = (request.verb == Verb::Add).then(|| Selection::of(conf).to_write()).transpose()?;
    Ok(Wanted::Redirect(Box::new(Subject { pod, facts, facts_us, backend, wish, netns })))
}

/// The namespace that the runtime means, and the one that it must not be.
struct Theirs<'r> {
    path: &'r Path,
    /// The plugin's own, where that is refused: on a node, it is the host's.
    refused: Option<Identity>,
}

impl<'r> Theirs<'r> {
    fn of(request: &'r Request) -> Result<Self, PluginError> {
        let writes = request.verb == Verb::Add && request.own_namespace == OwnNamespace::Refused;
        let refused = writes.then(Identity::of_the_first_thread).transpose().map_err(PluginError::Netns)?;
        Ok(Self { path: request.netns.as_deref().unwrap_or(Path::new("")), refused })
    }

    /// A namespace that cannot be looked at is nobody's: whether it is needed shows later.
    fn is_not_our_own(&self, theirs: Option<Identity>) -> Result<(), PluginError> {
        match (theirs, self.refused) {
            (Some(theirs), Some(refused)) if theirs == refused => {
                Err(PluginError::OwnNamespace(self.path.to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Looked at once more: what is open is what is written to.
    fn open(&self) -> Result<Netns, PluginError> {
        let netns = Netns::open(self.path).map_err(PluginError::Netns)?;
        self.is_not_our_own(Some(netns.identity()))?;
        Ok(netns)
    }
}

impl Subject {
    /// Goes into the pod's namespace, completes the wish there, and does `work` with it.
    ///
    /// One routing socket serves both the look at the addresses and the work, and so does one list.
    pub(crate) fn inside<T>(
        self,
        conf: &PluginConf,
        work: impl FnOnce(&Redirection, &dyn Backend, Met<'_>) -> Result<T, RedirectionError>,
    ) -> Result<Done<T>, PluginError> {
        self.netns.enter().map_err(PluginError::Netns)?;
        let mut routes = Rtnetlink::open().map_err(PluginError::Addresses)?;
        let listed = routes.addresses().map_err(PluginError::Addresses)?;
        let addresses: Vec<_> = listed.iter().map(|address| address.ip).collect();
        let stack = families::stack(&self.facts);
        let families = families::choose(conf.ipv6, stack, &addresses).map_err(Cause::Families)?;
        let selected = self.backend.map_or_else(|| SelectedBackend::to_read(conf.backend), Ok)?;
        let (redirection, variant) = selected.redirection(&self.wish.policy(families))?;
        let met = Met { routes: &mut routes, addresses: &listed };
        let outcome = work(&redirection, selected.backend.as_ref(), met)?;
        Ok(Done { addresses, families, backend: selected.backend.name(), variant, outcome })
    }
}
