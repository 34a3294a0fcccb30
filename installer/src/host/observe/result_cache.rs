//! The plugins that libcni's cache of existing sandboxes still names: the DEL of those sandboxes runs them.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use base64::prelude::{BASE64_STANDARD, Engine as _};

use crate::host::json::{self, JsonValue};

/// The maximum number of files, more than any node has sandboxes. With more files the result is `Unknown`.
const MAX_FILES: usize = 16_384;
/// The largest cache file that is read, in bytes: a network's configuration, a result and the pod's
/// annotations.
const MAX_SIZE: u64 = 4 << 20;

/// The plugins that the cache names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CachedPlugins {
    Named(BTreeSet<String>),
    /// The cache cannot be read, so it may name any plugin.
    Unknown,
}

impl CachedPlugins {
    /// Reports whether an existing sandbox may still need this plugin for its DEL.
    #[must_use]
    pub fn may_name(&self, plugin: &str) -> bool {
        match self {
            Self::Named(plugins) => plugins.contains(plugin),
            Self::Unknown => true,
        }
    }
}

/// Reads libcni's cache and that of Multus, which runs its delegates with a cache of its own next to it
/// (`cniDir` of its configuration, `/var/lib/cni/multus`): with `shape: standalone` only Multus' cache names our
/// plugin.
pub(crate) fn cached_plugins(results: &Path) -> CachedPlugins {
    let mut named = BTreeSet::new();
    // A missing directory counts as unknown: the node never ran a sandbox, or the directory is not mounted here. An
    // unneeded program does less harm than a pod that cannot be deleted.
    let mut gather = |bytes: &[u8]| named.extend(plugins(bytes));
    let usual = each_result(results, &mut gather);
    let of_multus = each_result(&results.with_file_name("multus").join("results"), &mut gather);
    match (usual, of_multus) {
        (ResultCache::Whole, ResultCache::Whole | ResultCache::Absent) => CachedPlugins::Named(named),
        _ => CachedPlugins::Unknown,
    }
}

/// How much of a cache directory was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultCache {
    Whole,
    Absent,
    InPart,
}

/// Calls `each` with the content of every file of the directory.
pub(crate) fn each_result(results: &Path, each: &mut dyn FnMut(&[u8])) -> ResultCache {
    let entries = match fs::read_dir(results) {
        Ok(entries) => entries,
        Err(why) if why.kind() == ErrorKind::NotFound => return ResultCache::Absent,
        Err(_) => return ResultCache::InPart,
    };
    let mut read = ResultCache::Whole;
    for (n, entry) in entries.enumerate() {
        if n == MAX_FILES {
            return ResultCache::InPart;
        }
        match entry.and_then(|entry| content(&entry)) {
            // A file that a crash truncated (F31) names no plugin: libcni cannot read it either.
            Ok(Some(bytes)) => each(&bytes),
            Ok(None) => {}
            // It belongs to a sandbox that was removed.
            Err(why) if why.kind() == ErrorKind::NotFound => {}
            Err(_) => read = ResultCache::InPart,
        }
    }
    read
}

/// Reads a result; none if this is not a file.
fn content(entry: &DirEntry) -> io::Result<Option<Vec<u8>>> {
    let meta = entry.metadata()?;
    if !meta.is_file() {
        return Ok(None);
    }
    if meta.len() > MAX_SIZE {
        return Err(ErrorKind::FileTooLarge.into());
    }
    let mut bytes = Vec::new();
    File::open(entry.path())?.take(MAX_SIZE).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// The plugins of a cached result, which holds, in `config`, the conf file it was made with, in base64.
#[must_use]
pub fn plugins(result: &[u8]) -> Vec<String> {
    let config = json::parse(result)
        .ok()
        .and_then(|tree| BASE64_STANDARD.decode(tree.member("config")?.as_text()?).ok());
    let Some(tree) = config.and_then(|config| json::parse(&config).ok()) else { return Vec::new() };
    let entries = tree.member("plugins").and_then(JsonValue::as_array).unwrap_or(std::slice::from_ref(&tree));
    entries.iter().filter_map(|entry| entry.field("type")?.as_text().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::TestDir;

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
    fn a_file_that_exists_and_cannot_be_read_may_name_any_plugin() {
        // /proc/self/mem: EIO at the address 0, for every user (linux/fs/proc/base.c, mem_rw).
        assert_eq!(each_result(Path::new("/proc/self"), &mut |_| {}), ResultCache::InPart);
        assert_eq!(cached_plugins(Path::new("/proc/self")), CachedPlugins::Unknown);
    }

    #[test]
    fn a_file_that_is_too_large_hides_no_other_file() {
        let root = TestDir::new("result-cache-large");
        File::create(root.join("b")).unwrap().set_len(MAX_SIZE + 1).unwrap();
        for name in ["a", "c"] {
            fs::write(root.join(name), name).unwrap();
        }
        let mut found = BTreeSet::new();
        let read = each_result(root.path(), &mut |bytes| found.extend(bytes.first().copied()));
        assert_eq!((read, found), (ResultCache::InPart, BTreeSet::from(*b"ac")));
    }

    #[test]
    fn the_cache_of_multus_is_read_too() {
        let root = TestDir::new("result-cache");
        let (usual, multus) = (root.join("results"), root.join("multus/results"));
        assert_eq!(cached_plugins(&usual), CachedPlugins::Unknown);
        fs::create_dir(&usual).unwrap();
        assert_eq!(cached_plugins(&usual), CachedPlugins::Named(BTreeSet::new()), "a node without Multus");
        fs::create_dir_all(&multus).unwrap();
        // {"name":"n","plugins":[{"type":"a"},{"type":"gybe-cni"}]}
        let config = "eyJuYW1lIjoibiIsInBsdWdpbnMiOlt7InR5cGUiOiJhIn0seyJ0eXBlIjoiZ3liZS1jbmkifV19";
        fs::write(multus.join("gybe-1-net1"), format!("{{\"config\":\"{config}\"}}")).unwrap();
        let named = cached_plugins(&usual);
        assert_ne!(named, CachedPlugins::Unknown);
        assert!(named.may_name("gybe-cni"));
        fs::remove_dir_all(&multus).unwrap();
        fs::write(&multus, "").unwrap();
        assert_eq!(cached_plugins(&usual), CachedPlugins::Unknown, "Multus' cache exists and cannot be read");
    }
}
