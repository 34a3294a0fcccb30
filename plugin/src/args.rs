//! `CNI_ARGS`: which pod the runtime means. Names become types here, fit to be parts of a path.

use std::fmt;

/// Which pod a call is about, as far as the runtime said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Kubernetes, with a pod.
    Kubernetes(PodRef),
    /// Somebody who names no pod: podman, nerdctl, a test of the network.
    SomebodyElse,
}

/// One pod, and the life of it that is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name.
    pub name: PodName,
    /// Its uid, when the runtime told: a pod of the same name may have lived before.
    pub uid: Option<String>,
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A namespace's name: an RFC 1123 label, so never `..` and never with a `/`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Namespace(String);

/// A pod's name: an RFC 1123 subdomain, so never `..` and never with a `/`.
///
/// Its parts are as long as they like, unlike DNS's labels: Kubernetes bounds the whole alone
/// (`dns1123SubdomainFmt`, `DNS1123SubdomainMaxLength`, k8s.io/apimachinery/pkg/util/validation).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName(String);

impl Namespace {
    /// Parses an RFC 1123 label.
    ///
    /// # Errors
    /// When Kubernetes would not take it for a namespace.
    pub fn parse(text: &str) -> Result<Self, ArgsError> {
        let fits = text.len() <= 63 && is_part(text);
        if fits { Ok(Self(text.to_owned())) } else { Err(bad_name("K8S_POD_NAMESPACE", text)) }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PodName {
    /// Parses an RFC 1123 subdomain.
    ///
    /// # Errors
    /// When Kubernetes would not take it for a pod.
    pub fn parse(text: &str) -> Result<Self, ArgsError> {
        let fits = text.len() <= 253 && text.split('.').all(is_part);
        if fits { Ok(Self(text.to_owned())) } else { Err(bad_name("K8S_POD_NAME", text)) }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why `CNI_ARGS` cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgsError {
    /// Not `KEY=VALUE`.
    #[error("CNI_ARGS holds {0:?}, which is not KEY=VALUE")]
    NotAPair(String),
    /// Keys nobody told us about, and nobody told us to overlook.
    #[error("CNI_ARGS holds unknown keys {0:?} without IgnoreUnknown=1")]
    Unknown(Vec<String>),
    /// `IgnoreUnknown` with a value that is neither yes nor no.
    #[error("CNI_ARGS says IgnoreUnknown={0:?}, which must be 1, true, 0 or false")]
    IgnoreUnknown(String),
    /// No name Kubernetes would give.
    #[error("{key} {value:?} is not a Kubernetes name")]
    Name {
        /// Which key.
        key: &'static str,
        /// Its value.
        value: String,
    },
}

impl Caller {
    /// Reads `KEY=VALUE;KEY=VALUE`; keys come in any order, and a later one wins.
    ///
    /// # Errors
    /// When an item is no pair, a key is unknown without `IgnoreUnknown=1`, or a name is none.
    pub fn parse(args: &str) -> Result<Self, ArgsError> {
        let said = Said::parse(args)?;
        // Without both names it is not Kubernetes that calls (docs/ISTIO.md, section 3).
        if said.namespace.is_empty() || said.name.is_empty() {
            return Ok(Self::SomebodyElse);
        }
        Ok(Self::Kubernetes(PodRef {
            namespace: Namespace::parse(said.namespace)?,
            name: PodName::parse(said.name)?,
            uid: (!said.uid.is_empty()).then(|| said.uid.to_owned()),
        }))
    }
}

/// The keys we know, as written.
#[derive(Default)]
struct Said<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
}

impl<'a> Said<'a> {
    fn parse(args: &'a str) -> Result<Self, ArgsError> {
        let (mut said, mut overlook, mut unknown) = (Self::default(), false, Vec::new());
        for item in args.split(';').filter(|_| !args.is_empty()) {
            let pair = item.split_once('=').filter(|(_, value)| !value.contains('='));
            let (key, value) = pair.ok_or_else(|| ArgsError::NotAPair(short(item)))?;
            match key {
                "IgnoreUnknown" => overlook = yes_or_no(value)?,
                "K8S_POD_NAMESPACE" => said.namespace = value,
                "K8S_POD_NAME" => said.name = value,
                "K8S_POD_UID" => said.uid = value,
                "K8S_POD_INFRA_CONTAINER_ID" => {}
                _ => unknown.push(short(key)),
            }
        }
        if unknown.is_empty() || overlook { Ok(said) } else { Err(ArgsError::Unknown(unknown)) }
    }
}

fn yes_or_no(word: &str) -> Result<bool, ArgsError> {
    match word.to_ascii_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(ArgsError::IgnoreUnknown(short(word))),
    }
}

/// What stands between two dots: never empty, and a dash only between others (`dns1123LabelFmt`).
fn is_part(text: &str) -> bool {
    let outer = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    !text.is_empty()
        && text.bytes().all(|b| outer(b) || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn bad_name(key: &'static str, value: &str) -> ArgsError {
    ArgsError::Name { key, value: short(value) }
}

fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(args: &str) -> PodRef {
        match Caller::parse(args).unwrap() {
            Caller::Kubernetes(pod) => pod,
            Caller::SomebodyElse => panic!("no pod in {args}"),
        }
    }

    #[test]
    fn keys_come_in_any_order() {
        for args in [
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=u;X=y",
            "X=y;K8S_POD_UID=u;K8S_POD_NAME=cart-0;IgnoreUnknown=true;K8S_POD_NAMESPACE=shop",
            "IgnoreUnknown=1;IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=u",
        ] {
            let pod = pod(args);
            assert_eq!((pod.to_string().as_str(), pod.uid.as_deref()), ("shop/cart-0", Some("u")), "{args}");
        }
    }

    #[test]
    fn who_names_no_pod_is_not_kubernetes() {
        for args in ["", "IgnoreUnknown=1", "K8S_POD_NAME=p", "K8S_POD_NAMESPACE=n;K8S_POD_NAME="] {
            assert_eq!(Caller::parse(args), Ok(Caller::SomebodyElse), "{args:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for (args, why) in [
            ("K8S_POD_NAME", "not KEY=VALUE"),
            ("IgnoreUnknown=1;K8S_POD_NAME=a=b", "not KEY=VALUE"),
            ("IgnoreUnknown=1;", "not KEY=VALUE"),
            ("FOO=1;K8S_POD_NAME=p", "unknown keys"),
            ("FOO=1;IgnoreUnknown=0", "unknown keys"),
            ("IgnoreUnknown=2", "IgnoreUnknown"),
        ] {
            let fault = Caller::parse(args).unwrap_err().to_string();
            assert!(fault.contains(why), "{args}: {fault}");
        }
    }

    #[test]
    fn a07_a_name_is_fit_to_be_part_of_a_path() {
        for name in ["..", ".", "a/b", "/etc", "a..b", "A", "a b", "a\n", "-a", "a-", "é", "a_b"] {
            for args in [
                format!("K8S_POD_NAMESPACE=n;K8S_POD_NAME={name}"),
                format!("K8S_POD_NAMESPACE={name};K8S_POD_NAME=p"),
            ] {
                assert!(Caller::parse(&args).is_err(), "{args:?}");
            }
        }
        assert!(Namespace::parse("a.b").is_err() && PodName::parse("a.b").is_ok());
    }

    #[test]
    fn a_name_is_as_long_as_kubernetes_lets_it_be() {
        let (long, dotted) = ("a".repeat(64), format!("{}.b", "a".repeat(251)));
        for (name, namespace, pod) in [
            (&*"a".repeat(63), true, true),
            (&*long, false, true),
            (&*"a".repeat(253), false, true),
            (&*dotted, false, true),
            (&*"a".repeat(254), false, false),
            ("", false, false),
        ] {
            let parsed = (Namespace::parse(name).is_ok(), PodName::parse(name).is_ok());
            assert_eq!(parsed, (namespace, pod), "{} characters: {name:?}", name.len());
        }
    }
}
