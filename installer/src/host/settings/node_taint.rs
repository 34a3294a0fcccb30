//! The taints that keep pods off a node whose agent is not ready. The effect is always `NoSchedule`: `NoExecute` would
//! evict running pods, whose rules stay while the agent is not ready.

use super::reader::{SettingsReader, list};
use std::collections::BTreeSet;
use std::fmt;

const EFFECT: &str = "NoSchedule";
/// The limits of a label's key, which a taint's key shares (Kubernetes' `IsQualifiedName`).
const MAX_NAME: usize = 63;
const MAX_PREFIX: usize = 253;

/// The key of a taint with the effect `NoSchedule`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeTaint {
    key: String,
}

impl NodeTaint {
    pub const EFFECT: &str = EFFECT;

    /// Parses `KEY` or `KEY:NoSchedule`; none if it is neither.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let key = match text.split_once(':') {
            Some((key, EFFECT)) => key,
            Some(_) => return None,
            None => text,
        };
        is_qualified_name(key).then(|| Self { key: key.to_owned() })
    }

    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl fmt::Display for NodeTaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{EFFECT}", self.key)
    }
}

/// Reports whether a text is the key of a label or taint: a name, after a DNS prefix and a slash or alone.
pub(super) fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_prefix = prefix.is_none_or(|prefix| prefix.len() <= MAX_PREFIX && prefix.split('.').all(is_label));
    is_prefix && is_name(name)
}

/// Reports whether a text is the name in such a key, or the value of a label.
pub(super) fn is_name(name: &str) -> bool {
    let is_end = |end: Option<char>| end.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.len() <= MAX_NAME
        && is_end(name.chars().next())
        && is_end(name.chars().last())
        && name.chars().all(is_inner)
}

fn is_label(label: &str) -> bool {
    is_name(label) && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

pub(super) fn read(reader: &mut SettingsReader<'_>) -> Vec<NodeTaint> {
    let Some(setting) = reader.key("node_taints") else { return Vec::new() };
    let taints: Option<BTreeSet<_>> = list(setting.text).map(NodeTaint::parse).collect();
    if taints.is_none() {
        reader
            .refuse(setting, "must be a comma-separated list of taint keys, each alone or with :NoSchedule");
    }
    taints.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taint_is_a_key_with_the_effect_no_schedule_or_without_one() {
        for (text, key) in [
            ("cni.istio.io/not-ready", Some("cni.istio.io/not-ready")),
            ("NodeReadiness:NoSchedule", Some("NodeReadiness")),
            ("cni.istio.io/not-ready:NoExecute", None),
            ("a=b:NoSchedule", None),
            ("", None),
            ("/x", None),
            ("Not.A.Domain/x", None),
            ("-x", None),
            ("a/b/c", None),
        ] {
            assert_eq!(NodeTaint::parse(text).as_ref().map(NodeTaint::key), key, "{text}");
        }
    }
}
