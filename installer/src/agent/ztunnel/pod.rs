//! The names of an ambient pod that ztunnel receives. Their lengths are bounded, so that every message fits a packet.

use gybe_plugin::args::{ArgsError, Namespace, PodName};
use std::fmt;

/// A pod whose traffic ztunnel takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AmbientPod {
    pub uid: PodUid,
    pub namespace: Namespace,
    pub name: PodName,
    pub service_account: ServiceAccount,
}

/// A pod's `metadata.uid`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodUid(String);

/// The name of a service account: an RFC 1123 subdomain, as a pod's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount(PodName);

/// Why a pod cannot be named to ztunnel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPod {
    #[error("the uid {0:?} is not 1 to {max} letters, digits and `-`", max = PodUid::MAX_BYTES)]
    Uid(String),
    #[error("{0:?} is not the name of a service account")]
    ServiceAccount(String),
    #[error(transparent)]
    Name(#[from] ArgsError),
}

impl AmbientPod {
    /// Parses the names.
    ///
    /// # Errors
    /// When one of them is invalid in Kubernetes.
    pub fn parse(uid: &str, namespace: &str, name: &str, service_account: &str) -> Result<Self, InvalidPod> {
        let account = PodName::parse(service_account);
        let account = account.map_err(|_| InvalidPod::ServiceAccount(truncated(service_account)))?;
        Ok(Self {
            uid: PodUid::parse(uid)?,
            namespace: Namespace::parse(namespace)?,
            name: PodName::parse(name)?,
            service_account: ServiceAccount(account),
        })
    }
}

impl fmt::Display for AmbientPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl PodUid {
    /// A uid of the API server has 36; the uid of a pod of a file has 32.
    pub const MAX_BYTES: usize = 128;

    /// Parses a uid.
    ///
    /// # Errors
    /// When it is empty, too long, or has another character than a letter, a digit or `-`.
    pub fn parse(text: &str) -> Result<Self, InvalidPod> {
        let is_valid = (1..=Self::MAX_BYTES).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if is_valid { Ok(Self(text.to_owned())) } else { Err(InvalidPod::Uid(truncated(text))) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ServiceAccount {
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

fn truncated(text: &str) -> String {
    text.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_kubernetes_does_not_have_are_refused() {
        assert!(AmbientPod::parse("u-1", "shop", "cart-0", "default").is_ok());
        for [uid, namespace, name, account] in [
            ["", "shop", "cart-0", "default"],
            ["../u", "shop", "cart-0", "default"],
            [&"u".repeat(PodUid::MAX_BYTES + 1), "shop", "cart-0", "default"],
            ["u-1", "", "cart-0", "default"],
            ["u-1", "shop", "Cart", "default"],
            ["u-1", "shop", "cart-0", ""],
        ] {
            assert!(
                AmbientPod::parse(uid, namespace, name, account).is_err(),
                "{uid} {namespace} {name} {account}"
            );
        }
    }
}
