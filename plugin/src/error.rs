//! Everything that can make a call fail, one variant per layer it comes from.
//!
//! What a runtime is told about it, and under which number, is in `reply`.

use crate::args::ArgsError;
use crate::backend::SelectError;
use crate::conf::ConfError;
use crate::decide::Cause;
use crate::facts::FactsError;
use crate::gc::AttachmentsError;
use crate::request::RequestError;
use crate::result::ResultError;
use crate::stdin::StdinError;
use crate::version::VersionError;
use gybe_netfilter::hint::Hint;
use gybe_netfilter::netns::NetnsError;
use gybe_netfilter::redirection::RedirectionError;
use gybe_netfilter::routes::RoutesError;
use std::borrow::Cow;
use std::path::PathBuf;

/// Why a call fails.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The call itself.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Its bytes.
    #[error(transparent)]
    Stdin(#[from] StdinError),
    /// Its version.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// Its prevResult.
    #[error(transparent)]
    Result(#[from] ResultError),
    /// Our keys in it.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// Which pod it is about.
    #[error(transparent)]
    Args(#[from] ArgsError),
    /// What is known of the pod.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// What the pod wants.
    #[error(transparent)]
    Refused(#[from] Cause),
    /// The backend.
    #[error(transparent)]
    Backend(#[from] SelectError),
    /// The namespace of the plugin itself: the host's.
    #[error("CNI_NETNS {} is the plugin's own namespace, which must never be redirected", .0.display())]
    OwnNamespace(PathBuf),
    /// The pod's namespace.
    #[error("CNI_NETNS cannot be used")]
    Netns(#[source] NetnsError),
    /// The pod's addresses.
    #[error("the pod's addresses cannot be read")]
    Addresses(#[source] RoutesError),
    /// The kernel and our rules.
    #[error("the pod cannot be redirected")]
    Redirection(#[from] RedirectionError),
    /// CHECK found something else than ADD left.
    #[error("the pod's redirection is not as ADD left it: {}", .0.join("; "))]
    Drifted(Vec<String>),
    /// GC's list.
    #[error(transparent)]
    Attachments(#[from] AttachmentsError),
}

impl PluginError {
    /// This layer's sentence and those of the layers below, joined once.
    pub fn chain(&self) -> String {
        let below = std::iter::successors(std::error::Error::source(self), |fault| fault.source());
        below.fold(self.to_string(), |told, fault| format!("{told}: {fault}"))
    }
}

impl Hint for PluginError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Result(fault) => fault.hint(),
            Self::Facts(fault) => fault.hint(),
            Self::Refused(cause) => cause.hint(),
            Self::Backend(fault) => fault.hint(),
            Self::Netns(fault) => fault.hint(),
            Self::Addresses(fault) => fault.hint(),
            Self::Redirection(fault) => fault.hint(),
            Self::Drifted(_) => Some("restart the pod, or run gybe apply in its namespace".into()),
            _ => None,
        }
    }
}
