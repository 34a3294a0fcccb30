//! Where the facts of a pod come from: an ordered list of sources, the first that knows it wins.
//!
//! A source is a file of its own under `facts/`; what facts are is in `pod`.

mod directory;

pub use directory::DirectoryError;

use crate::args::PodRef;
use crate::conf::FactsConf;
use crate::pod::PodFacts;
use std::path::Path;

/// Somebody who may know the pod.
#[derive(Debug, Clone, Copy)]
enum Source<'a> {
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
    #[error("nothing is known of the pod: {0} is not there")]
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
    /// The directory's manifest cannot be used.
    #[error("the pod's manifest cannot be used")]
    Directory(#[from] DirectoryError),
}

impl FactsError {
    /// What would help.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NobodyToAsk => Some("set facts.directory in the plugin's configuration"),
            Self::Unknown(_) | Self::Another { .. } => {
                Some("the kubelet tries again; if it stays so, look at who writes facts.directory")
            }
            Self::Directory(_) => None,
        }
    }
}

/// Asks the sources in order.
///
/// # Errors
/// When none knows the pod, or the first that does cannot say it, or means another.
pub fn ask(conf: &FactsConf, pod: &PodRef) -> Result<PodFacts, FactsError> {
    let mut asked = Vec::new();
    for source in sources(conf) {
        let Source::Directory(directory) = source;
        match directory::read(directory, pod)? {
            Some(facts) => return same_pod(facts, pod),
            None => asked.push(directory::path(directory, pod).display().to_string()),
        }
    }
    if asked.is_empty() { Err(FactsError::NobodyToAsk) } else { Err(FactsError::Unknown(asked.join(", "))) }
}

fn sources(conf: &FactsConf) -> Vec<Source<'_>> {
    conf.directory.as_deref().map(Source::Directory).into_iter().collect()
}

/// A pod of the same name may have lived before. What the facts leave out is not held against them.
fn same_pod(facts: PodFacts, pod: &PodRef) -> Result<PodFacts, FactsError> {
    let differs = |known: &str, meant: &str| !known.is_empty() && known != meant;
    let another = |what, known: &str, meant: &str| {
        let short = |text: &str| text.chars().take(64).collect();
        Err(FactsError::Another { what, known: short(known), meant: short(meant) })
    };
    if differs(&facts.namespace, pod.namespace.as_str()) {
        return another("namespace", &facts.namespace, pod.namespace.as_str());
    }
    if differs(&facts.name, pod.name.as_str()) {
        return another("name", &facts.name, pod.name.as_str());
    }
    match &pod.uid {
        Some(uid) if differs(&facts.uid, uid) && !mirrors(&facts, uid) => another("uid", &facts.uid, uid),
        _ => Ok(facts),
    }
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
