//! Which plugins libcni's cache of living sandboxes still names: their DEL will ask for those programs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::install::json::{self, Node};

/// More than any node has sandboxes; beyond, the answer is "unknown".
const MOST: usize = 16_384;
/// The configuration of a network, a result and the pod's annotations.
const LARGEST: u64 = 4 << 20;

/// Plugins the cache names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cached {
    /// All of them.
    Named(BTreeSet<String>),
    /// The cache cannot be read here, so any plugin may be named.
    Unknown,
}

impl Cached {
    /// Whether a sandbox may still ask for this plugin.
    #[must_use]
    pub fn may_name(&self, plugin: &str) -> bool {
        match self {
            Self::Named(plugins) => plugins.contains(plugin),
            Self::Unknown => true,
        }
    }
}

pub(super) fn look(results: &Path) -> Cached {
    let mut named = BTreeSet::new();
    // A node that never ran a sandbox has no directory; one we cannot see looks the same. Better a
    // program too many than a pod that cannot be deleted.
    let Ok(entries) = fs::read_dir(results) else { return Cached::Unknown };
    for (n, entry) in entries.enumerate() {
        let Ok(entry) = entry else { return Cached::Unknown };
        match entry.metadata() {
            _ if n == MOST => return Cached::Unknown,
            Ok(meta) if meta.is_file() && meta.len() <= LARGEST => {}
            Ok(meta) if meta.is_file() => return Cached::Unknown,
            _ => continue,
        }
        // Deleted meanwhile is deleted. Cut off by a crash (F31) names nobody: libcni cannot read it either.
        if let Ok(bytes) = fs::read(entry.path()) {
            named.extend(plugins(&bytes));
        }
    }
    Cached::Named(named)
}

/// A result names its plugins in `config`: the conf file it was made with, in base64.
fn plugins(result: &[u8]) -> Vec<String> {
    let config = json::parse(result).ok().and_then(|tree| base64(tree.member("config")?.as_text()?));
    let Some(tree) = config.and_then(|config| json::parse(&config).ok()) else { return Vec::new() };
    let entries = tree.member("plugins").and_then(Node::as_array).unwrap_or(std::slice::from_ref(&tree));
    entries.iter().filter_map(|entry| entry.field("type")?.as_text().map(str::to_owned)).collect()
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0_u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(six);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held).to_le_bytes()[0]);
            bits &= (1 << held) - 1;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugins_of_a_cached_result_are_found() {
        // {"name":"n","plugins":[{"type":"a"},{"type":"gybe-cni"}]}
        let config = "eyJuYW1lIjoibiIsInBsdWdpbnMiOlt7InR5cGUiOiJhIn0seyJ0eXBlIjoiZ3liZS1jbmkifV19";
        let result = format!("{{\"kind\":\"cniCacheV1\",\"config\":\"{config}\",\"result\":{{}}}}");
        assert_eq!(plugins(result.as_bytes()), ["a", "gybe-cni"]);
        assert!(plugins(b"").is_empty());
        assert!(plugins(br#"{"cniVersion":"0.3.1","ips":[]}"#).is_empty());
        assert!(plugins(br#"{"config":"?"}"#).is_empty());
    }

    #[test]
    fn base64_of_every_length_is_read() {
        for (text, want) in [("", ""), ("YQ==", "a"), ("YWI=", "ab"), ("YWJj", "abc"), ("YWJjZA==", "abcd")] {
            assert_eq!(base64(text).as_deref(), Some(want.as_bytes()));
        }
    }
}
