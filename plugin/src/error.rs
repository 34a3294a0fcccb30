//! Everything that can make a call fail, one variant for each layer.
//!
//! The error numbers, and CNI's codes, are in `reply`.

use crate::args::ArgsError;
use crate::backend::SelectError;
use crate::bounded_read::StdinError;
use crate::conf::ConfError;
use crate::decide::PodRefusal;
use crate::facts::ambient::HandOverCause;
use crate::facts::{AgentError, AgentFault, FactsError};
use crate::request::RequestError;
use crate::result::ResultError;
use crate::version::VersionError;
use gybe_netfilter::apply::redirection::RedirectionError;
use gybe_netfilter::kernel::netns::NetnsError;
use gybe_netfilter::kernel::routes::RoutesError;
use gybe_netfilter::model::Hint;
use std::borrow::Cow;
use std::path::PathBuf;

/// Why a call fails.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The call is malformed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Stdin cannot be read.
    #[error(transparent)]
    Stdin(#[from] StdinError),
    /// The configuration version is unsupported.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// prevResult cannot be passed on.
    #[error(transparent)]
    Result(#[from] ResultError),
    /// A key of the plugin has a wrong value.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// `CNI_ARGS` is malformed.
    #[error(transparent)]
    Args(#[from] ArgsError),
    /// The pod's facts are unknown.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The pod is refused.
    #[error(transparent)]
    Refused(#[from] PodRefusal),
    /// No backend can be used.
    #[error(transparent)]
    Backend(Box<SelectError>),
    /// The namespace is the plugin's own, so the host's.
    #[error("CNI_NETNS {} is the plugin's own namespace, which must never be redirected", .0.display())]
    OwnNamespace(PathBuf),
    /// The namespace cannot be opened or entered.
    #[error("CNI_NETNS cannot be used")]
    Netns(#[source] NetnsError),
    /// The pod's addresses cannot be read.
    #[error("the pod's addresses cannot be read")]
    Addresses(#[source] RoutesError),
    /// The rules or routes cannot be written or read.
    #[error("the pod cannot be redirected")]
    Redirection(#[from] RedirectionError),
    /// ztunnel has not taken an ambient pod.
    #[error("ztunnel has not taken the pod")]
    HandOver(#[source] AgentError),
    /// CHECK found differences from what ADD left.
    #[error("the pod's redirection is not as ADD left it: {}", .0.join("; "))]
    Drifted(Vec<String>),
    /// GC's list of valid attachments is malformed.
    #[error("cni.dev/valid-attachments must be a list of {{\"containerID\": …, \"ifname\": …}}")]
    Attachments,
}

impl From<SelectError> for PluginError {
    fn from(error: SelectError) -> Self {
        Self::Backend(Box::new(error))
    }
}

impl PluginError {
    /// This error and its sources, joined by colons.
    pub fn chain(&self) -> String {
        let below = std::iter::successors(std::error::Error::source(self), |error| error.source());
        below.fold(self.to_string(), |text, source| format!("{text}: {source}"))
    }
}

impl Hint for PluginError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Result(error) => error.hint(),
            Self::Facts(error) => error.hint(),
            Self::Refused(refusal) => refusal.hint(),
            Self::Backend(error) => error.hint(),
            Self::Netns(error) => error.hint(),
            Self::Addresses(error) => error.hint(),
            Self::Redirection(error) => error.hint(),
            Self::HandOver(AgentError { fault: AgentFault::HandOver(fault), .. }) => match fault.cause {
                // The agent's sentence names the remedy.
                HandOverCause::NotConnected => None,
                _ => Some("look at the logs of ztunnel and of the node agent; the kubelet retries".into()),
            },
            Self::HandOver(_) => Some("look at the node agent's log; the kubelet retries".into()),
            Self::Drifted(_) => Some("restart the pod, or run gybe apply in its namespace".into()),
            _ => None,
        }
    }
}
