//! The plugins that libcni's cache of results names: the DEL of the cached sandboxes runs them.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::time::SystemTime;

use base64::prelude::{BASE64_STANDARD, Engine as _};

use crate::host::json::{self, JsonValue};

/// The most files of one cache that are read; no node has so many sandboxes.
/// A larger cache counts as [`CacheRead::InPart`].
const MAX_FILES: usize = 16_384;
/// The largest cache file that is read, in bytes: it has a network's configuration, a result and the pod's annotations.
const MAX_SIZE: u64 = 4 << 20;

/// The plugins that the cache names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CachedPlugins {
    Named(BTreeSet<String>),
    /// A cache is missing or cannot be read completely, so it may name any plugin.
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

/// Reads the runtime's cache and that of Multus, which caches the results of its delegates next to it (`cniDir` of its
/// configuration, `/var/lib/cni/multus`): with `shape: standalone` only Multus' cache names our plugin.
pub(crate) fn cached_plugins(results: &Path) -> CachedPlugins {
    let mut named = BTreeSet::new();
    let mut gather = |bytes: &[u8], _: Option<SystemTime>| named.extend(plugins(bytes));
    let of_runtime = each_result(results, &mut gather);
    let of_multus = each_result(&results.with_file_name("multus").join("results"), &mut gather);
    // Without the runtime's cache the plugins are unknown: either no sandbox ever ran, or the directory is not mounted
    // here. An unneeded program does less harm than a pod that cannot be deleted.
    match (of_runtime, of_multus) {
        (CacheRead::Whole, CacheRead::Whole | CacheRead::Absent) => CachedPlugins::Named(named),
        _ => CachedPlugins::Unknown,
    }
}

/// How much of a cache directory was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheRead {
    Whole,
    Absent,
    InPart,
}

/// Calls `each` with the content of every file of a cache directory, and with the time when it was written.
pub(crate) fn each_result(results: &Path, each: &mut dyn FnMut(&[u8], Option<SystemTime>)) -> CacheRead {
    let entries = match fs::read_dir(results) {
        Ok(entries) => entries,
        Err(why) if why.kind() == ErrorKind::NotFound => return CacheRead::Absent,
        Err(_) => return CacheRead::InPart,
    };
    let mut read = CacheRead::Whole;
    for (n, entry) in entries.enumerate() {
        if n == MAX_FILES {
            return CacheRead::InPart;
        }
        match entry.and_then(|entry| content(&entry)) {
            // A file that a crash truncated (F31) names no plugin: libcni cannot read it either.
            Ok(Some((bytes, written))) => each(&bytes, written),
            Ok(None) => {}
            // The file was removed with its sandbox since it was listed.
            Err(why) if why.kind() == ErrorKind::NotFound => {}
            Err(_) => read = CacheRead::InPart,
        }
    }
    read
}

/// Reads a cache file; none if the entry is not a regular file.
fn content(entry: &DirEntry) -> io::Result<Option<(Vec<u8>, Option<SystemTime>)>> {
    let meta = entry.metadata()?;
    if !meta.is_file() {
        return Ok(None);
    }
    if meta.len() > MAX_SIZE {
        return Err(ErrorKind::FileTooLarge.into());
    }
    let mut bytes = Vec::new();
    File::open(entry.path())?.take(MAX_SIZE).read_to_end(&mut bytes)?;
    Ok(Some((bytes, meta.modified().ok())))
}

/// The plugins of a cached result, whose `config` is the network's conf or conflist in base64.
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
        assert_eq!(each_result(Path::new("/proc/self"), &mut |_, _| {}), CacheRead::InPart);
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
        let read = each_result(root.path(), &mut |bytes, _| found.extend(bytes.first().copied()));
        assert_eq!((read, found), (CacheRead::InPart, BTreeSet::from(*b"ac")));
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
