//! Where the facts of a pod come from: an ordered list of sources, the first that knows it wins.
//!
//! A source is a file of its own under `facts/`; what facts are is in `pod`. What the runtime hands
//! over is no source: it decides in `gates` whether anybody is asked at all.

mod agent;
mod directory;
pub mod file;
mod kubeconfig;
pub mod wire;

pub use agent::{AgentError, AgentFault, exchange};
pub use directory::DirectoryError;
pub use kubeconfig::{KubeconfigError, KubeconfigFault};

use crate::args::PodRef;
use crate::conf::FactsConf;
use crate::gates::Reason;
use crate::pod::PodFacts;
use gybe_netfilter::hint::Hint;
use std::borrow::Cow;
use std::path::Path;
use std::time::Instant;

/// Somebody who may know the pod.
#[derive(Debug, Clone, Copy)]
enum Source<'a> {
    /// The node agent, at its socket.
    Agent(&'a Path),
    /// The API server, by a kubeconfig.
    Kubeconfig(&'a Path),
    /// Manifests in files.
    Directory(&'a Path),
}

/// Why nothing is known of a pod.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// The configuration names nobody to ask.
    #[error("nobody to ask about the pod: the configuration names no source of facts")]
    NobodyToAsk,
    /// Nobody knows it, yet.
    #[error("nothing is known of the pod: {0}")]
    Unknown(String),
    /// What is known is about another life of that name.
    #[error("what is known is about another pod: it has {what} {known:?}, the runtime means {meant:?}")]
    Another {
        /// `namespace`, `name` or `uid`.
        what: &'static str,
        /// Of the facts.
        known: String,
        /// Of the call.
        meant: String,
    },
    /// They have no uid to tell whose they are, and the runtime's annotations say otherwise.
    #[error(
        "what is known has no uid and cannot be about this pod: {known}, and the runtime says that the injector was there"
    )]
    Contradicted {
        /// Why the pod would be left alone.
        known: Reason,
    },
    /// The node agent told nothing.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The API server told nothing.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// The directory's manifest cannot be used.
    #[error("the pod's manifest cannot be used")]
    Directory(#[from] DirectoryError),
    /// More than one source failed; what counts is the first.
    #[error("{first}; {rest}")]
    Several {
        /// The first that failed.
        first: Box<FactsError>,
        /// What the others had to say.
        rest: String,
    },
}

impl Hint for FactsError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::NobodyToAsk => {
                Some("set facts.socket, facts.kubeconfig or facts.directory in the plugin's configuration".into())
            }
            Self::Unknown(_) | Self::Another { .. } | Self::Contradicted { .. } => Some(
                "the kubelet tries again; if it stays so, look at the agent's log, or at who writes facts.directory".into(),
            ),
            Self::Agent(_) => Some(
                "see that the node agent (gybe node, DaemonSet gybe-node) runs on this node; the kubelet tries again".into(),
            ),
            Self::Kubeconfig(fault) => fault.hint(),
            // Of several there has to be room for what each had to say: advice about the first would cut
            // off the second.
            Self::Directory(_) | Self::Several { .. } => None,
        }
    }
}

/// Asks the sources in order, all of them within one deadline.
///
/// # Errors
/// When none knows the pod: what each said, the first in front.
pub fn ask(conf: &FactsConf, pod: &PodRef) -> Result<PodFacts, FactsError> {
    let until = Instant::now() + conf.deadline;
    let (mut faults, mut unknown) = (Vec::new(), Vec::new());
    let sources = sources(conf);
    for (source, after) in sources.iter().zip((0..sources.len()).rev()) {
        match source
            .ask(pod, share(until, after))
            .and_then(|facts| facts.map(|f| same_pod(f, pod)).transpose())
        {
            Ok(Some(facts)) => return Ok(facts),
            Ok(None) => unknown.push(source.ignorance(pod)),
            Err(fault) => faults.push(fault),
        }
    }
    if !unknown.is_empty() {
        faults.push(FactsError::Unknown(unknown.join(", ")));
    }
    Err(faults.into_iter().reduce(|told, fault| told.and(&fault)).unwrap_or(FactsError::NobodyToAsk))
}

/// A source that never answers must leave something of the time to those behind it.
fn share(until: Instant, after: usize) -> Instant {
    let left = until.saturating_duration_since(Instant::now());
    let sources = u32::try_from(after).map_or(u32::MAX, |after| after.saturating_add(1));
    Instant::now() + left / sources
}

impl FactsError {
    fn and(self, other: &Self) -> Self {
        let below = std::error::Error::source(other).map(|why| format!(": {why}")).unwrap_or_default();
        let rest = format!("{other}{below}");
        match self {
            Self::Several { first, rest: before } => {
                Self::Several { first, rest: format!("{before}; {rest}") }
            }
            first => Self::Several { first: Box::new(first), rest },
        }
    }
}

impl Source<'_> {
    fn ask(self, pod: &PodRef, until: Instant) -> Result<Option<PodFacts>, FactsError> {
        match self {
            Self::Agent(socket) => Ok(agent::ask(socket, pod, until)?),
            Self::Kubeconfig(path) => Ok(kubeconfig::ask(path, pod, until)?),
            Self::Directory(directory) => Ok(directory::read(directory, pod)?),
        }
    }

    /// How it does not know the pod.
    fn ignorance(self, pod: &PodRef) -> String {
        match self {
            Self::Agent(socket) => format!("the node agent at {} knows no {pod}", socket.display()),
            Self::Kubeconfig(path) => format!("the API server of {} has no {pod}", path.display()),
            Self::Directory(directory) => {
                format!("{} is not there", directory::path(directory, pod).display())
            }
        }
    }
}

fn sources(conf: &FactsConf) -> Vec<Source<'_>> {
    let agent = conf.socket.as_deref().map(Source::Agent);
    let kubeconfig = conf.kubeconfig.as_deref().map(Source::Kubeconfig);
    let directory = conf.directory.as_deref().map(Source::Directory);
    [agent, kubeconfig, directory].into_iter().flatten().collect()
}

/// Do these facts mean the pod that the runtime means?
pub fn means(facts: &PodFacts, pod: &PodRef) -> bool {
    other(facts, pod).is_none()
}

/// Whether both name a uid, and the same: without, the facts may be about an earlier pod of that name.
pub fn same_uid(facts: &PodFacts, pod: &PodRef) -> bool {
    let uid = pod.uid.as_deref().unwrap_or_default();
    !uid.is_empty() && (facts.uid == uid || mirrors(facts, uid))
}

fn same_pod(facts: PodFacts, pod: &PodRef) -> Result<PodFacts, FactsError> {
    other(&facts, pod).map_or(Ok(facts), Err)
}

/// A pod of the same name may have lived before. What the facts leave out is not held against them.
fn other(facts: &PodFacts, pod: &PodRef) -> Option<FactsError> {
    let uid = pod.uid.as_deref().filter(|uid| !mirrors(facts, uid)).unwrap_or(&facts.uid);
    let parts = [
        ("namespace", &facts.namespace, pod.namespace.as_str()),
        ("name", &facts.name, pod.name.as_str()),
        ("uid", &facts.uid, uid),
    ];
    let (what, known, meant) =
        parts.into_iter().find(|(_, known, meant)| !known.is_empty() && known != meant)?;
    let short = |text: &str| text.chars().take(64).collect();
    Some(FactsError::Another { what, known: short(known), meant: short(meant) })
}

/// A static pod runs under the hash of its file; the API server's mirror of it has a uid of its
/// own and tells the hash in an annotation.
fn mirrors(facts: &PodFacts, uid: &str) -> bool {
    ["kubernetes.io/config.hash", "kubernetes.io/config.mirror"]
        .into_iter()
        .any(|key| facts.annotation(key) == Some(uid))
}

#[cfg(test)]
mod tests;
