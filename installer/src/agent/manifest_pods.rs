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

/// The bounds of the directory: files, and subdirectories (`<directory>/<namespace>/<pod>.json`).
const MAX_FILES: usize = 10_000;
const MAX_DEPTH: usize = 1;

/// A directory of manifests, YAML or JSON, as it was last read.
#[derive(Debug)]
pub struct ManifestPods {
    directory: PathBuf,
    files: Mutex<BTreeMap<PathBuf, ManifestFile>>,
}

#[derive(Debug, Clone)]
struct ManifestFile {
    stamp: Stamp,
    pods: Result<Vec<PodFacts>, String>,
}

/// Device, inode, time of modification and size: they differ after a write or a replacement.
type Stamp = (u64, u64, i64, i64, u64);

impl ManifestPods {
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), files: Mutex::default() }
    }

    /// Lists the files, and reads those that changed.
    fn refresh(&self, known: &mut BTreeMap<PathBuf, ManifestFile>) -> io::Result<()> {
        let mut found = BTreeMap::new();
        for (path, stamp) in files(&self.directory, MAX_DEPTH)? {
            let before = known.remove(&path).filter(|before| before.stamp == stamp);
            let manifest = before.unwrap_or_else(|| ManifestFile { stamp, pods: read(&path) });
            found.insert(path, manifest);
        }
        *known = found;
        Ok(())
    }

    /// Returns the pod from the files as they are now. The directory is not listed when the file with this pod is
    /// unchanged.
    fn query(&self, pod: &PodRef) -> FactsResponse {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(facts) = unchanged(&files, pod) {
            return FactsResponse::Pod(Box::new(facts));
        }
        if let Err(why) = self.refresh(&mut files) {
            return FactsResponse::Error(format!("{}: {why}", self.directory.display()));
        }
        let named = |facts: &&PodFacts| is_named(facts, pod);
        let mut found = files.values().filter_map(|file| file.pods.as_ref().ok()).flatten().filter(named);
        let first = found.clone().next();
        if let Some(facts) = found.find(|facts| matches(facts, pod)).or(first) {
            return FactsResponse::Pod(Box::new(facts.clone()));
        }
        let broken = || files.iter().filter_map(|(path, file)| Some((path, file.pods.as_ref().err()?)));
        // A file with the pod's name is most likely this pod's.
        let is_named = |path: &Path| path.file_stem().is_some_and(|stem| stem == pod.name.as_str());
        let own = broken().find(|(path, _)| is_named(path)).or_else(|| broken().next());
        own.map_or(FactsResponse::Unknown, |(path, why)| {
            let path = path.strip_prefix(&self.directory).unwrap_or(path);
            FactsResponse::BrokenManifest(format!("{}: {why}", path.display()))
        })
    }
}

/// Returns the pod if an earlier read found it and its file is unchanged.
fn unchanged(files: &BTreeMap<PathBuf, ManifestFile>, pod: &PodRef) -> Option<PodFacts> {
    let find = |file: &ManifestFile| {
        let mut pods = file.pods.iter().flatten();
        pods.find(|facts| is_named(facts, pod) && matches(facts, pod)).cloned()
    };
    let (path, file, facts) = files.iter().find_map(|(path, file)| Some((path, file, find(file)?)))?;
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
        let mut known = files.values().filter_map(|file| file.pods.as_ref().ok()).flatten();
        Some(known.any(is_such))
    }
}

fn files(directory: &Path, deeper: usize) -> io::Result<Vec<(PathBuf, Stamp)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        // A file or directory may have been removed since the call before.
        let Ok(metadata) = fs::metadata(&path) else { continue };
        if metadata.is_dir() && deeper > 0 {
            match files(&path, deeper - 1) {
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                below => found.extend(below?),
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
        .and_then(|ending| ending.to_str())
        .is_some_and(|ending| ["json", "yaml", "yml"].contains(&ending))
}

fn stamp(file: &Metadata) -> Stamp {
    (file.dev(), file.ino(), file.mtime(), file.mtime_nsec(), file.size())
}

/// Reads only manifests of kind Pod: a workload's template does not contain the names of its pods.
fn read(path: &Path) -> Result<Vec<PodFacts>, String> {
    let mut text = String::new();
    let most = u64::try_from(manifest::LONGEST).unwrap_or(u64::MAX).saturating_add(1);
    let read = bounded_read::open_file(path).and_then(|(file, _)| file.take(most).read_to_string(&mut text));
    read.map_err(|why| why.to_string())?;
    let pods = match manifest::pods(&text) {
        Ok(pods) => pods,
        Err(manifest::ManifestFileError::NoPod { .. }) => return Ok(Vec::new()),
        Err(why) => return Err(why.to_string()),
    };
    let pods = pods.iter().filter(|pod| pod.origin.starts_with("Pod/"));
    pods.map(|pod| facts(path, &pod.pod)).collect()
}

/// A manifest without a namespace is in `default`.
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
