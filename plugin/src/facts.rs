//! The facts of a pod, from the first source of an ordered list that knows the pod.
//!
//! Each source is a file under `facts/`; the facts are defined in `pod`. The runtime's annotations are not a
//! source: `gates` decides by them whether a source is queried.

mod agent;
pub mod ambient;
mod directory;
mod kubeconfig;
mod socket_watch;
pub mod wire;

pub use agent::{AgentError, AgentFault, exchange, hand_over, leave};
pub use directory::DirectoryError;
pub use kubeconfig::{KubeconfigError, KubeconfigFault};

use agent::{AgentQuery, SentRequest};
use ambient::AmbientPod;

use crate::args::PodRef;
use crate::conf::FactsConf;
use crate::gates::LeaveAloneReason;
use crate::pod::{Ambient, PodFacts};
use gybe_netfilter::model::Hint;
use std::borrow::Cow;
use std::path::Path;
use std::time::Instant;

/// A source of facts that is queried when the node agent does not know the pod.
#[derive(Debug, Clone, Copy)]
enum FactsSource<'a> {
    /// The API server, by a kubeconfig.
    Kubeconfig(&'a Path),
    /// Manifests in files.
    Directory(&'a Path),
}

/// Why the facts of a pod are unknown.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// The configuration has no source.
    #[error("the configuration names no source of facts about pods")]
    NoSource,
    /// The sources do not know the pod, yet.
    #[error("the pod is unknown: {0}")]
    Unknown(String),
    /// The facts are about an earlier or later pod of the same name.
    #[error("the facts are about another pod: they have {what} {found:?}, the runtime {expected:?}")]
    OtherPod {
        /// `namespace`, `name` or `uid`.
        what: &'static str,
        /// The value in the facts, truncated.
        found: String,
        /// The value in `CNI_ARGS`, truncated.
        expected: String,
    },
    /// The facts would leave the pod alone, the runtime's annotations show that it is injected, and no uid
    /// shows whether both are about the same pod.
    #[error(
        "the facts cannot be about this pod: {reason}, but the runtime's annotations show that it is injected; {missing}"
    )]
    Contradicted {
        /// Why the pod would be left alone.
        reason: LeaveAloneReason,
        /// The side without a uid.
        missing: &'static str,
    },
    /// In ambient mode the facts would decide, and no uid shows whether they are about this pod.
    #[error("the facts may be about an earlier pod of this name, and ambient mode decides by them: {0}")]
    WithoutUid(&'static str),
    /// The node agent failed.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The query of the API server failed.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// The manifest in the directory cannot be used.
    #[error("the pod's manifest cannot be used")]
    Directory(#[from] DirectoryError),
    /// The source of the facts does not say whether the pod is ambient.
    #[error("whether the pod is ambient is unknown: only the node agent with ambient mode knows it")]
    Ambient,
    /// The pod cannot be named to ztunnel.
    #[error("the facts of the ambient pod cannot be used")]
    AmbientPod(#[from] ambient::InvalidPod),
    /// Several sources failed.
    #[error("{first}; {rest}")]
    Several {
        /// The first error, which determines the error code.
        first: Box<FactsError>,
        /// The other errors.
        rest: String,
    },
}

impl FactsError {
    /// The facts give `reason` to leave the pod alone, and the runtime's annotations contradict it.
    pub(crate) fn contradicted(reason: LeaveAloneReason, facts: &PodFacts) -> Self {
        Self::Contradicted { reason, missing: missing_uid(facts) }
    }

    /// In ambient mode the facts would decide, and one side has no uid.
    pub(crate) fn without_uid(facts: &PodFacts) -> Self {
        Self::WithoutUid(missing_uid(facts))
    }

    /// Appends another source's error.
    fn and(self, other: &Self) -> Self {
        let source = std::error::Error::source(other).map(|why| format!(": {why}")).unwrap_or_default();
        let other = format!("{other}{source}");
        match self {
            Self::Several { first, rest } => Self::Several { first, rest: format!("{rest}; {other}") },
            first => Self::Several { first: Box::new(first), rest: other },
        }
    }
}

/// Names the side without a uid: two that differ are [`FactsError::OtherPod`].
fn missing_uid(facts: &PodFacts) -> &'static str {
    if facts.uid.is_empty() { "the facts have no uid" } else { "CNI_ARGS has no K8S_POD_UID" }
}

impl Hint for FactsError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::NoSource => {
                Some("set facts.socket, facts.kubeconfig or facts.directory in the plugin's configuration".into())
            }
            Self::Unknown(_) | Self::OtherPod { .. } | Self::Contradicted { .. } | Self::AmbientPod(_) => Some(
                "the kubelet retries; if it persists, look at the agent's log, or at the writer of facts.directory".into(),
            ),
            Self::WithoutUid(_) => {
                Some("ambient mode needs a runtime that passes K8S_POD_UID, as containerd and CRI-O do".into())
            }
            Self::Agent(AgentError { fault: AgentFault::Manifest(_), .. }) => {
                Some("correct that file of the agent's --pods-from; the kubelet retries".into())
            }
            Self::Agent(_) => Some(
                "check that the node agent (gybe node, DaemonSet gybe-node) runs on this node; the kubelet retries".into(),
            ),
            Self::Ambient => Some(
                "the plugin's entry has the key ambient: check that the node agent runs, with AMBIENT_ENABLED=true; the kubelet \
                 retries"
                    .into(),
            ),
            Self::Kubeconfig(error) => error.hint(),
            // A hint would displace the later errors.
            Self::Directory(_) | Self::Several { .. } => None,
        }
    }
}

/// What a lookup does about a node agent that is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AbsentAgent {
    /// It is an error at once.
    Fails,
    /// The lookup waits for it within the deadline: the agent restarts, or its pod is replaced.
    IsAwaited,
}

/// Queries the sources in order, all of them within one deadline. `knows_ambient`: the caller evaluates whether the pod
/// is ambient.
///
/// # Errors
/// If no source knows the pod: the errors of all sources in their order.
pub fn look_up(conf: &FactsConf, pod: &PodRef, knows_ambient: bool) -> Result<PodFacts, FactsError> {
    FactsLookup::start(conf, pod, knows_ambient).finish(AbsentAgent::Fails, |_| false)
}

/// A lookup in progress: the request to the agent, where there is one, has been sent.
pub(crate) struct FactsLookup<'a> {
    pod: &'a PodRef,
    /// For all sources together.
    deadline: Instant,
    agent: Option<(AgentQuery<'a>, Result<SentRequest, AgentError>)>,
    others: Vec<FactsSource<'a>>,
}

impl<'a> FactsLookup<'a> {
    /// Sends the request to the agent, and waits for nothing. `knows_ambient`: the caller evaluates whether the pod is
    /// ambient.
    pub(crate) fn start(conf: &'a FactsConf, pod: &'a PodRef, knows_ambient: bool) -> Self {
        let deadline = Instant::now() + conf.deadline;
        let others = other_sources(conf);
        let agent = conf.socket.as_deref().map(|socket| {
            let query = AgentQuery { socket, pod, deadline: share(deadline, others.len()), knows_ambient };
            (query, query.send())
        });
        Self { pod, deadline, agent, others }
    }

    /// For the lookup, and for what follows from it at the agent.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the facts of the first source that knows the pod. `is_open`: the facts do not decide about the pod. Such
    /// facts of another source than the agent do not count, because the agent that is awaited may have facts that decide.
    ///
    /// # Errors
    /// If no source knows the pod: the errors of all sources in their order.
    pub(crate) fn finish(
        self,
        absent: AbsentAgent,
        is_open: impl Fn(&PodFacts) -> bool,
    ) -> Result<PodFacts, FactsError> {
        let (pod, mut misses) = (self.pod, Vec::new());
        let (agent, sent) = self.agent.unzip();
        if let (Some(agent), Some(sent)) = (agent, sent) {
            match agent.facts(sent.and_then(|sent| agent.receive(sent))) {
                Ok(facts) => return Ok(facts),
                Err(miss) => misses.push(miss),
            }
        }
        for (source, remaining) in self.others.iter().zip((0..self.others.len()).rev()) {
            match source.query(pod, share(self.deadline, remaining)) {
                Ok(facts) if is_open(&facts) => misses.push(FactsError::Ambient),
                Ok(facts) => return Ok(facts),
                Err(miss) => misses.push(miss),
            }
        }
        // Last, because another source may know the pod at once.
        if let (AbsentAgent::IsAwaited, Some(agent), Some(miss)) = (absent, agent, misses.first_mut())
            && matches!(miss, FactsError::Agent(error) if error.is_away())
        {
            let agent = AgentQuery { deadline: self.deadline, ..agent };
            match agent.facts(agent.await_agent()) {
                Ok(facts) => return Ok(facts),
                Err(later) => *miss = later,
            }
        }
        Err(joined(misses))
    }
}

impl AgentQuery<'_> {
    /// Returns the facts that the agent responded with.
    fn facts(self, found: Result<Option<PodFacts>, AgentError>) -> Result<PodFacts, FactsError> {
        let unknown = || format!("the node agent at {} does not know {}", self.socket.display(), self.pod);
        same_pod(found?.ok_or_else(|| FactsError::Unknown(unknown()))?, self.pod)
    }
}

impl FactsSource<'_> {
    fn query(self, pod: &PodRef, deadline: Instant) -> Result<PodFacts, FactsError> {
        let found = match self {
            Self::Kubeconfig(path) => kubeconfig::query(path, pod, deadline)?,
            Self::Directory(directory) => directory::read(directory, pod)?,
        };
        same_pod(found.ok_or_else(|| FactsError::Unknown(self.unknown(pod)))?, pod)
    }

    /// Returns the sentence that the source does not know the pod.
    fn unknown(self, pod: &PodRef) -> String {
        match self {
            Self::Kubeconfig(path) => format!("the API server of {} has no {pod}", path.display()),
            Self::Directory(directory) => {
                format!("{} does not exist", directory::path(directory, pod).display())
            }
        }
    }
}

fn other_sources(conf: &FactsConf) -> Vec<FactsSource<'_>> {
    let kubeconfig = conf.kubeconfig.as_deref().map(FactsSource::Kubeconfig);
    let directory = conf.directory.as_deref().map(FactsSource::Directory);
    [kubeconfig, directory].into_iter().flatten().collect()
}

/// Joins the errors of the sources; those that do not know the pod come last, in one sentence.
fn joined(misses: Vec<FactsError>) -> FactsError {
    let (mut errors, mut unknown) = (Vec::new(), Vec::new());
    for miss in misses {
        match miss {
            FactsError::Unknown(source) => unknown.push(source),
            error => errors.push(error),
        }
    }
    if !unknown.is_empty() {
        errors.push(FactsError::Unknown(unknown.join(", ")));
    }
    errors.into_iter().reduce(|first, other| first.and(&other)).unwrap_or(FactsError::NoSource)
}

/// Returns the deadline of a source, which leaves the same time to each of the `remaining` ones.
fn share(deadline: Instant, remaining: usize) -> Instant {
    let now = Instant::now();
    let left = deadline.saturating_duration_since(now);
    let sources = u32::try_from(remaining).map_or(u32::MAX, |remaining| remaining.saturating_add(1));
    now + left / sources
}

/// Reports whether namespace, name and uid match the pod's. A value that is missing in the facts matches.
pub fn matches(facts: &PodFacts, pod: &PodRef) -> bool {
    difference(facts, pod).is_none()
}

/// Returns an ambient pod as ztunnel knows it.
///
/// # Errors
/// When the facts do not show that it is ambient, or a name is invalid in Kubernetes.
pub fn ambient_pod(facts: &PodFacts) -> Result<AmbientPod, FactsError> {
    let Ambient::Yes { service_account, .. } = &facts.ambient else { return Err(FactsError::Ambient) };
    Ok(AmbientPod::parse(&facts.uid, &facts.namespace, &facts.name, service_account)?)
}

/// Reports whether both have the same uid. Without a uid the facts may be about an earlier pod of that name.
pub fn same_uid(facts: &PodFacts, pod: &PodRef) -> bool {
    let uid = pod.uid.as_deref().unwrap_or_default();
    !uid.is_empty() && (facts.uid == uid || is_mirror_of(facts, uid))
}

fn same_pod(facts: PodFacts, pod: &PodRef) -> Result<PodFacts, FactsError> {
    difference(&facts, pod).map_or(Ok(facts), Err)
}

/// Returns the first of namespace, name and uid that differs. A value that is missing in the facts does not differ.
fn difference(facts: &PodFacts, pod: &PodRef) -> Option<FactsError> {
    let uid = pod.uid.as_deref().filter(|uid| !is_mirror_of(facts, uid)).unwrap_or(&facts.uid);
    let parts = [
        ("namespace", &facts.namespace, pod.namespace.as_str()),
        ("name", &facts.name, pod.name.as_str()),
        ("uid", &facts.uid, uid),
    ];
    let (what, found, expected) =
        parts.into_iter().find(|(_, found, expected)| !found.is_empty() && found != expected)?;
    let short = |text: &str| text.chars().take(64).collect();
    Some(FactsError::OtherPod { what, found: short(found), expected: short(expected) })
}

/// Reports whether the facts are the API server's mirror of a static pod. A static pod runs under the hash of its
/// file; its mirror has another uid, and the hash in an annotation.
fn is_mirror_of(facts: &PodFacts, uid: &str) -> bool {
    ["kubernetes.io/config.hash", "kubernetes.io/config.mirror"]
        .into_iter()
        .any(|key| facts.annotation(key) == Some(uid))
}

#[cfg(test)]
mod tests;
