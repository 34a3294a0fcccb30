//! Writes a pod's rules into its running namespace. Everything that can change between decision and write is checked
//! again here, with the namespace open.

use crate::error::chain;
use crate::pod::own_namespace;
use crate::sandboxes::verdict::judge;
use crate::sandboxes::{Sandbox, addresses_in, is_process_of};
use gybe_netfilter::apply::backend::BackendError;
use gybe_netfilter::apply::presence::{OtherMesh, Presence};
use gybe_netfilter::apply::redirection::RedirectionError;
use gybe_netfilter::inspect::verdict::{Desired, RedirectionState};
use gybe_netfilter::kernel::netns::{Identity, Netns, NetnsError};
use gybe_netfilter::kernel::open_connections::{KeepError, keep};
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::policy::{Dns, InvalidPackets, RedirectPolicy};
use gybe_plugin::backend::{SelectError, Selection};
use gybe_plugin::conf::PluginConf;
use gybe_plugin::facts::AgentError;
use gybe_plugin::probe_cache::MaxAge;
use std::borrow::Cow;
use std::io;
use std::path::Path;

/// A repaired pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// The backend that wrote the rules.
    pub backend: &'static str,
    /// The number of TCP connections with other hosts that were open. They keep their path, past the proxy.
    pub open_connections: usize,
    /// Whether DNS queries go to the proxy now.
    pub captures_dns: bool,
    /// Whether packets that conntrack classifies as invalid are dropped now.
    pub drops_invalid: bool,
}

/// Why a pod could not be repaired.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// Between decision and write the sandbox or the settings changed. Nothing was written.
    #[error("something has changed since the decision: {0}")]
    Changed(String),
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error("cannot choose a backend")]
    Backend(#[from] Box<SelectError>),
    #[error("cannot determine which programs have rules in the namespace")]
    Presence(#[source] BackendError),
    #[error(transparent)]
    OtherMesh(#[from] OtherMesh),
    #[error("its open connections would be reset, so no rule was written")]
    Connections(#[from] KeepError),
    #[error("its rules were written, and connections that opened meanwhile may hang")]
    LaterConnections(#[source] KeepError),
    #[error("cannot write its rules")]
    Rules(#[from] RedirectionError),
    #[error("its rules were written, and it is not redirected: {0}")]
    NotRedirected(String),
    /// ztunnel does not serve an ambient pod, or the agent does not respond.
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("the node's entry names no socket of the agent, which serves ztunnel")]
    NoAgent,
    #[error("cannot set net.netfilter.nf_conntrack_tcp_loose to 1 again")]
    Loose(#[source] io::Error),
    #[error("ztunnel has acknowledged the pod, and does not listen in it; restart ztunnel")]
    NotServed,
    /// Of a pod that ztunnel serves, and whose rules are complete or cannot be read.
    #[error("ztunnel serves the pod, and it is not certainly redirected: {0}")]
    NotEnrolled(String),
}

impl Hint for RepairError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Changed(_)
            | Self::NotRedirected(_)
            | Self::Agent(_)
            | Self::NoAgent
            | Self::Loose(_)
            | Self::NotServed
            | Self::NotEnrolled(_) => None,
            Self::Netns(error) => error.hint(),
            Self::Backend(error) => error.hint(),
            Self::Presence(error) => error.hint(),
            Self::OtherMesh(error) => error.hint(),
            Self::Connections(error) | Self::LaterConnections(error) => error.hint(),
            Self::Rules(error) => error.hint(),
        }
    }
}

/// Returns why it is not certain that `netns` is the namespace of this sandbox's pod; none if it is certain: the uid of
/// the cached ADD is the one in the cgroup of a process in the namespace, and the namespace has an address that the ADD
/// assigned.
#[must_use]
pub(super) fn doubt(sandbox: &Sandbox, netns: &Netns) -> Option<String> {
    let identity = netns.identity();
    for (path, whose) in
        [("/proc/1/ns/net", "process 1"), ("/proc/thread-self/ns/net", "the process that repairs")]
    {
        if Identity::at(Path::new(path)).is_ok_and(|other| other == identity) {
            return Some(format!("it is the network namespace of {whose}"));
        }
    }
    let Some(uid) = sandbox.pod.as_ref().and_then(|pod| pod.uid.as_deref()) else {
        return Some("the runtime passed no K8S_POD_UID to the plugins".to_owned());
    };
    if let Some(other) = sandbox.processes.iter().find(|process| process.uid != uid) {
        return Some(format!("it has a process of the pod with uid {}", other.uid));
    }
    if !sandbox.processes.iter().any(|process| is_process_of(&process.directory, uid, identity)) {
        return Some(format!("it has no process of the pod with uid {uid}"));
    }
    let assigned = sandbox.ended_add.as_ref().map(|ended| ended.addresses.as_slice()).unwrap_or_default();
    match addresses_in(netns) {
        Ok(addresses) if assigned.iter().any(|address| addresses.contains(address)) => None,
        Ok(_) => Some("it has none of the addresses that the plugins assigned to the pod".to_owned()),
        Err(why) => Some(format!("its addresses cannot be read: {why}")),
    }
}

/// Writes the rules of `policy` with the backend that an ADD would choose, if the settings by which the pod was judged
/// are still `in_force`. The TCP connections that are open keep their path.
///
/// # Errors
/// When the pod is not redirected afterwards, or connections may hang. No rule of Gybe is in the namespace then, except
/// after [`RepairError::NotRedirected`] and [`RepairError::LaterConnections`].
pub(super) fn repair(
    sandbox: &Sandbox,
    netns: &Netns,
    policy: &RedirectPolicy,
    conf: &PluginConf,
    in_force: &(dyn Fn() -> bool + Sync),
) -> Result<Repaired, RepairError> {
    // First, because it may have to probe the node.
    let selection = Selection { setting: conf.backend, probed: &conf.probed, age: MaxAge::Any };
    let selected = selection.to_write().map_err(Box::new)?;
    let (redirection, _) = selected.redirection(policy).map_err(Box::new)?;
    if let Some(why) = doubt(sandbox, netns) {
        return Err(RepairError::Changed(why));
    }
    let backend = &*selected.backend;
    netns.run(|| {
        if own_namespace::is_the_first(Path::new("/proc")) {
            return Err(RepairError::Changed(
                "it is the network namespace this kernel booted with".to_owned(),
            ));
        }
        let presence = Presence::look().map_err(RepairError::Presence)?;
        if let Some(mesh) = presence.other_meshes.into_iter().next() {
            return Err(mesh.into());
        }
        if !presence.ours.is_empty() {
            return Err(RepairError::Changed("it has rules of Gybe now".to_owned()));
        }
        if !in_force() {
            return Err(RepairError::Changed("the node's settings have changed".to_owned()));
        }
        let kept = keep(policy)?;
        if let Err(error) = redirection.apply(backend) {
            // Without our rules the sysctl has no purpose. The error is about the rules.
            let _ = kept.undo();
            return Err(error.into());
        }
        let open_connections = kept.open;
        kept.enter_later_ones().map_err(RepairError::LaterConnections)?;
        let verdict = judge(Desired::Policy(policy), None, &sandbox.cgroups).map_err(RepairError::Rules)?;
        match verdict.state {
            RedirectionState::Redirected => Ok(Repaired {
                backend: backend.name(),
                open_connections,
                captures_dns: policy.dns != Dns::Off,
                drops_invalid: policy.invalid == InvalidPackets::Drop,
            }),
            _ => Err(RepairError::NotRedirected(verdict.reasons.join("; "))),
        }
    })?
}

/// The error in one line.
#[must_use]
pub(super) fn line(error: &RepairError) -> String {
    let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
    chain(error) + &hint
}
