//! Pods from a directory of manifests, without a cluster. Files are read again when they change.

use crate::agent::pods::{PodLookup, PodsState};
use crate::pod::manifest;
use gybe_plugin::args::PodRef;
use gybe_plugin::bounded_read;
use gybe_plugin::facts::matches;
use gybe_plugin::facts::wire::FactsResponse;
use gybe_plugin::pod::PodFacts;
use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A directory with more manifests is refused.
const MAX_FILES: usize = 10_000;
/// The levels of subdirectories (`<directory>/<namespace>/<pod>.json`).
const MAX_DEPTH: usize = 1;

/// A directory of manifests, YAML or JSON, and its files as last read.
#[derive(Debug)]
pub struct ManifestPods {
    directory: PathBuf,
    files: Mutex<BTreeMap<PathBuf, ManifestFile>>,
}

#[derive(Debug, Clone)]
struct ManifestFile {
    stamp: Stamp,
    /// The pods, or why the file cannot be used.
    pods: Result<Vec<PodFacts>, String>,
}

/// Device, inode, mtime (seconds, nanoseconds) and size: they differ after a write or a replacement.
type Stamp = (u64, u64, i64, i64, u64);

impl ManifestPods {
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), files: Mutex::default() }
    }

    /// Lists the directory, and reads the files that changed.
    fn refresh(&self, files: &mut BTreeMap<PathBuf, ManifestFile>) -> io::Result<()> {
        let mut current = BTreeMap::new();
        for (path, stamp) in list(&self.directory, MAX_DEPTH)? {
            let unchanged = files.remove(&path).filter(|file| file.stamp == stamp);
            let file = unchanged.unwrap_or_else(|| ManifestFile { stamp, pods: read(&path) });
            current.insert(path, file);
        }
        *files = current;
        Ok(())
    }

    /// Returns the pod from the files as they are now; lists the directory only if the file with this pod has changed
    /// or is not known.
    fn query(&self, pod: &PodRef) -> FactsResponse {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(facts) = find_unchanged(&files, pod) {
            return FactsResponse::Pod(Box::new(facts));
        }
        if let Err(why) = self.refresh(&mut files) {
            return FactsResponse::Error(format!("{}: {why}", self.directory.display()));
        }
        let has_name = |facts: &&PodFacts| is_named(facts, pod);
        let mut named = files.values().filter_map(|file| file.pods.as_ref().ok()).flatten().filter(has_name);
        // A pod of this name with another uid is returned, too: the plugin reports the difference.
        let first = named.clone().next();
        if let Some(facts) = named.find(|facts| matches(facts, pod)).or(first) {
            return FactsResponse::Pod(Box::new(facts.clone()));
        }
        let relative = |path: &Path| path.strip_prefix(&self.directory).unwrap_or(path).to_owned();
        let broken =
            || files.iter().filter_map(|(path, file)| Some((path, file.pods.as_ref().err()?.clone())));
        // Any broken file may contain the pod; most likely the file with its name does.
        let has_pod_name = |path: &Path| path.file_stem().is_some_and(|stem| stem == pod.name.as_str());
        let own_path = Path::new(pod.namespace.as_str()).join(pod.name.as_str());
        let at_own_path = || {
            let path = files.keys().find(|path| relative(path).with_extension("") == own_path)?;
            let why = "a Pod without metadata.namespace is in namespace default";
            Some((path, format!("no Pod in it is {pod}; {why}")))
        };
        let reported = broken().find(|(path, _)| has_pod_name(path));
        let reported = reported.or_else(at_own_path).or_else(|| broken().next());
        reported.map_or(FactsResponse::Unknown, |(path, why)| {
            FactsResponse::BrokenManifest(format!("{}: {why}", relative(path).display()))
        })
    }
}

/// Returns the pod if an earlier read found it and its file is unchanged.
fn find_unchanged(files: &BTreeMap<PathBuf, ManifestFile>, pod: &PodRef) -> Option<PodFacts> {
    let find_in = |file: &ManifestFile| {
        let mut pods = file.pods.iter().flatten();
        pods.find(|facts| is_named(facts, pod) && matches(facts, pod)).cloned()
    };
    let (path, file, facts) = files.iter().find_map(|(path, file)| Some((path, file, find_in(file)?)))?;
    let metadata = fs::metadata(path).ok()?;
    (metadata.is_file() && stamp(&metadata) == file.stamp).then_some(facts)
}

fn is_named(facts: &PodFacts, pod: &PodRef) -> bool {
    facts.namespace == pod.namespace.as_str() && facts.name == pod.name.as_str()
}

impl PodLookup for ManifestPods {
    /// Does not wait: the directory shows at once whether it contains the pod.
    fn find(&self, pod: &PodRef) -> Option<FactsResponse> {
        Some(self.query(pod))
    }

    fn wait_for(&self, pod: &PodRef, _: Instant) -> FactsResponse {
        self.query(pod)
    }

    fn state(&self) -> PodsState {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let refreshed = self.refresh(&mut files);
        let missing = refreshed.err().map(|why| format!("{}: {why}", self.directory.display()));
        let pods = files.values().filter_map(|file| file.pods.as_ref().ok()).map(Vec::len).sum();
        PodsState { missing, unwatched: None, pods, watch: None }
    }

    fn has_pod(&self, is_such: &dyn Fn(&PodFacts) -> bool) -> Option<bool> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        self.refresh(&mut files).ok()?;
        let mut pods = files.values().filter_map(|file| file.pods.as_ref().ok()).flatten();
        Some(pods.any(is_such))
    }
}

/// Lists the manifests of a directory and of `depth` levels of subdirectories.
fn list(directory: &Path, depth: usize) -> io::Result<Vec<(PathBuf, Stamp)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        // A file or directory may have been removed since the call before.
        let Ok(metadata) = fs::metadata(&path) else { continue };
        if metadata.is_dir() && depth > 0 {
            match list(&path, depth - 1) {
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                Err(why) => return Err(io::Error::other(format!("{}: {why}", path.display()))),
                Ok(below) => found.extend(below),
            }
        } else if metadata.is_file() && is_manifest(&path) {
            found.push((path, stamp(&metadata)));
        }
        if found.len() > MAX_FILES {
            return Err(io::Error::other(format!("more than {MAX_FILES} files")));
        }
    }
    Ok(found)
}

fn is_manifest(path: &Path) -> bool {
    path.extension()
        .and_then(|extension| extension.to_str())
        .is_some_and(|extension| ["json", "yaml", "yml"].contains(&extension))
}

fn stamp(metadata: &Metadata) -> Stamp {
    (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.size())
}

/// Reads the manifests of kind Pod. Workloads are skipped: their templates do not contain the pods' names.
fn read(path: &Path) -> Result<Vec<PodFacts>, String> {
    let mut text = String::new();
    // One byte more than the limit, so that `manifest::pods` refuses a longer file.
    let limit = u64::try_from(manifest::LONGEST).unwrap_or(u64::MAX).saturating_add(1);
    let result =
        bounded_read::open_file(path).and_then(|(file, _)| file.take(limit).read_to_string(&mut text));
    result.map_err(|why| why.to_string())?;
    let manifests = match manifest::pods(&text) {
        Ok(manifests) => manifests,
        Err(manifest::ManifestFileError::NoPod { .. }) => return Ok(Vec::new()),
        Err(why) => return Err(why.to_string()),
    };
    let pods = manifests.iter().filter(|manifest| manifest.origin.starts_with("Pod/"));
    pods.map(|manifest| facts(path, &manifest.pod)).collect()
}

/// Returns a pod's facts: without a namespace it is in `default`, without a name it has its file's name.
fn facts(path: &Path, pod: &serde_json::Value) -> Result<PodFacts, String> {
    let mut facts = PodFacts::from_manifest(pod).map_err(|why| why.to_string())?;
    if facts.namespace.is_empty() {
        facts.namespace = "default".to_owned();
    }
    if facts.name.is_empty() {
        facts.name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
    }
    Ok(facts)
}
