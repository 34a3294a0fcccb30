//! `CNI_ARGS`: the pod that a call is about. Its names are checked here, so that they are fit for a path.

use std::fmt;

/// The pod that a call is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name.
    pub name: PodName,
    /// Its uid, if the runtime passes one: another pod may have had the same name.
    pub uid: Option<String>,
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The name of a namespace: an RFC 1123 label, so never `..` and never with a `/`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Namespace(String);

/// The name of a pod: an RFC 1123 subdomain, so never `..` and never with a `/`.
///
/// Kubernetes bounds the whole name and not, as DNS does, each label of it
/// (`dns1123SubdomainFmt`, `DNS1123SubdomainMaxLength`, k8s.io/apimachinery/pkg/util/validation).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName(String);

impl Namespace {
    /// Parses an RFC 1123 label.
    ///
    /// # Errors
    /// When it is not a valid name of a namespace.
    pub fn parse(text: &str) -> Result<Self, ArgsError> {
        let fits = text.len() <= 63 && is_label(text);
        if fits { Ok(Self(text.to_owned())) } else { Err(bad_name("K8S_POD_NAMESPACE", text)) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PodName {
    /// Parses an RFC 1123 subdomain.
    ///
    /// # Errors
    /// When it is not a valid name of a pod.
    pub fn parse(text: &str) -> Result<Self, ArgsError> {
        let fits = text.len() <= 253 && text.split('.').all(is_label);
        if fits { Ok(Self(text.to_owned())) } else { Err(bad_name("K8S_POD_NAME", text)) }
    }

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
    /// Unknown keys without `IgnoreUnknown=1`.
    #[error("CNI_ARGS holds unknown keys {0:?} without IgnoreUnknown=1")]
    Unknown(Vec<String>),
    /// `IgnoreUnknown` with a value that is not a boolean.
    #[error("CNI_ARGS has IgnoreUnknown={0:?}, which must be 1, true, 0 or false")]
    IgnoreUnknown(String),
    /// Not a valid name of a pod or namespace.
    #[error("{key} {value:?} is not a Kubernetes name")]
    Name {
        /// The key.
        key: &'static str,
        /// Its value, truncated.
        value: String,
    },
}

impl PodRef {
    /// Parses `KEY=VALUE;KEY=VALUE`; keys come in any order, and a later one wins. Returns none when the
    /// caller is not Kubernetes, which names a pod and its namespace (docs/ISTIO.md, section 3).
    ///
    /// # Errors
    /// When an item is not a pair, a key is unknown without `IgnoreUnknown=1`, or a name is invalid.
    pub fn from_args(args: &str) -> Result<Option<Self>, ArgsError> {
        let values = PodValues::parse(args)?;
        if values.namespace.is_empty() || values.name.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            namespace: Namespace::parse(values.namespace)?,
            name: PodName::parse(values.name)?,
            uid: (!values.uid.is_empty()).then(|| values.uid.to_owned()),
        }))
    }
}

/// The values of the known keys; empty where a key is missing.
#[derive(Default)]
struct PodValues<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
}

impl<'a> PodValues<'a> {
    fn parse(args: &'a str) -> Result<Self, ArgsError> {
        let (mut values, mut ignores_unknown, mut unknown) = (Self::default(), false, Vec::new());
        for item in args.split(';').filter(|_| !args.is_empty()) {
            let pair = item.split_once('=').filter(|(_, value)| !value.contains('='));
            let (key, value) = pair.ok_or_else(|| ArgsError::NotAPair(short(item)))?;
            match key {
                "IgnoreUnknown" => ignores_unknown = parse_bool(value)?,
                "K8S_POD_NAMESPACE" => values.namespace = value,
                "K8S_POD_NAME" => values.name = value,
                "K8S_POD_UID" => values.uid = value,
                "K8S_POD_INFRA_CONTAINER_ID" => {}
                _ => unknown.push(short(key)),
            }
        }
        if unknown.is_empty() || ignores_unknown { Ok(values) } else { Err(ArgsError::Unknown(unknown)) }
    }
}

fn parse_bool(text: &str) -> Result<bool, ArgsError> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(ArgsError::IgnoreUnknown(short(text))),
    }
}

/// Reports whether a text is a label: letters, digits and inner dashes, not empty (`dns1123LabelFmt`).
fn is_label(text: &str) -> bool {
    let is_alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    !text.is_empty()
        && text.bytes().all(|b| is_alphanumeric(b) || b == b'-')
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

    #[test]
    fn keys_may_come_in_any_order() {
        for args in [
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=u;X=y",
            "X=y;K8S_POD_UID=u;K8S_POD_NAME=cart-0;IgnoreUnknown=true;K8S_POD_NAMESPACE=shop",
            "IgnoreUnknown=1;IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=u",
        ] {
            let pod = PodRef::from_args(args).unwrap().unwrap();
            assert_eq!((pod.to_string().as_str(), pod.uid.as_deref()), ("shop/cart-0", Some("u")), "{args}");
        }
    }

    #[test]
    fn a_caller_that_names_no_pod_is_not_kubernetes() {
        for args in ["", "IgnoreUnknown=1", "K8S_POD_NAME=p", "K8S_POD_NAMESPACE=n;K8S_POD_NAME="] {
            assert_eq!(PodRef::from_args(args), Ok(None), "{args:?}");
        }
    }

    #[test]
    fn malformed_arguments_are_refused() {
        for (args, why) in [
            ("K8S_POD_NAME", "not KEY=VALUE"),
            ("IgnoreUnknown=1;K8S_POD_NAME=a=b", "not KEY=VALUE"),
            ("IgnoreUnknown=1;", "not KEY=VALUE"),
            ("FOO=1;K8S_POD_NAME=p", "unknown keys"),
            ("FOO=1;IgnoreUnknown=0", "unknown keys"),
            ("IgnoreUnknown=2", "IgnoreUnknown"),
        ] {
            let error = PodRef::from_args(args).unwrap_err().to_string();
            assert!(error.contains(why), "{args}: {error}");
        }
    }

    #[test]
    fn a07_a_name_unfit_for_a_path_is_refused() {
        for name in ["..", ".", "a/b", "/etc", "a..b", "A", "a b", "a\n", "-a", "a-", "é", "a_b"] {
            for args in [
                format!("K8S_POD_NAMESPACE=n;K8S_POD_NAME={name}"),
                format!("K8S_POD_NAMESPACE={name};K8S_POD_NAME=p"),
            ] {
                assert!(PodRef::from_args(&args).is_err(), "{args:?}");
            }
        }
        assert!(Namespace::parse("a.b").is_err() && PodName::parse("a.b").is_ok());
    }

    #[test]
    fn the_longest_names_are_those_of_kubernetes() {
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
