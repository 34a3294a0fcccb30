//! Pods from a directory of manifests: no cluster at all. Files are read again when they change.

use super::{Part, Pods, PodsState};
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

/// So many files, and as deep as `<directory>/<namespace>/<pod>.json`.
const MOST_FILES: usize = 10_000;
const DEPTH: usize = 1;

/// A directory of manifests, YAML or JSON, as it was when last looked at.
#[derive(Debug)]
pub struct PodsFrom {
    directory: PathBuf,
    files: Mutex<BTreeMap<PathBuf, Manifest>>,
}

/// One file: how it was, and what it says.
#[derive(Debug, Clone)]
struct Manifest {
    stamp: Stamp,
    pods: Result<Vec<PodFacts>, String>,
}

/// What differs when a file was written to or replaced.
type Stamp = (u64, u64, i64, i64, u64);

impl PodsFrom {
    /// Pods of this directory.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), files: Mutex::default() }
    }

    /// Looks which files are there, and reads those that are not as they were.
    fn look(&self, known: &mut BTreeMap<PathBuf, Manifest>) -> io::Result<()> {
        let mut there = BTreeMap::new();
        for (path, stamp) in files(&self.directory, DEPTH)? {
            let before = known.remove(&path).filter(|before| before.stamp == stamp);
            let manifest = before.unwrap_or_else(|| Manifest { stamp, pods: read(&path) });
            there.insert(path, manifest);
        }
        *known = there;
        Ok(())
    }

    /// What the files say now. To look at each of them costs a walk, so it is spared where the one that
    /// tells of the pod that is meant is as it was.
    fn find(&self, pod: &PodRef) -> FactsResponse {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(facts) = still_told(&files, pod) {
            return FactsResponse::Pod(Box::new(facts));
        }
        if let Err(why) = self.look(&mut files) {
            return FactsResponse::Error(format!("{}: {why}", self.directory.display()));
        }
        let named = |facts: &&PodFacts| is_named(facts, pod);
        let mut found = files.values().filter_map(|file| file.pods.as_ref().ok()).flatten().filter(named);
        let first = found.clone().next();
        if let Some(facts) = found.find(|facts| matches(facts, pod)).or(first) {
            return FactsResponse::Pod(Box::new(facts.clone()));
        }
        // It may be the one that cannot be read.
        let own =
            files.iter().find(|(path, _)| path.file_stem().is_some_and(|stem| stem == pod.name.as_str()));
        match own {
            Some((path, Manifest { pods: Err(why), .. })) => {
                FactsResponse::Error(format!("{}: {why}", path.display()))
            }
            _ => FactsResponse::Unknown,
        }
    }
}

/// The pod that is meant, where it is known and its file is as it was when it was read.
fn still_told(files: &BTreeMap<PathBuf, Manifest>, pod: &PodRef) -> Option<PodFacts> {
    let told = |file: &Manifest| {
        let mut pods = file.pods.iter().flatten();
        pods.find(|facts| is_named(facts, pod) && matches(facts, pod)).cloned()
    };
    let (path, file, facts) = files.iter().find_map(|(path, file)| Some((path, file, told(file)?)))?;
    let there = fs::metadata(path).ok()?;
    (there.is_file() && stamp(&there) == file.stamp).then_some(facts)
}

fn is_named(facts: &PodFacts, pod: &PodRef) -> bool {
    facts.namespace == pod.namespace.as_str() && facts.name == pod.name.as_str()
}

impl Pods for PodsFrom {
    /// A file is there or not: there is nobody to wait for.
    fn at_once(&self, pod: &PodRef) -> Option<FactsResponse> {
        Some(self.find(pod))
    }

    fn answer(&self, pod: &PodRef, _: Instant) -> FactsResponse {
        self.find(pod)
    }

    fn state(&self) -> PodsState {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let looked = self.look(&mut files);
        let missing = looked.err().map(|why| format!("{}: {why}", self.directory.display()));
        let pods = files.values().filter_map(|file| file.pods.as_ref().ok()).map(Vec::len).sum();
        PodsState { missing, pods, watch: None }
    }

    fn has_pod_of(&self, part: &Part) -> Option<bool> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        self.look(&mut files).ok()?;
        let mut known = files.values().filter_map(|file| file.pods.as_ref().ok()).flatten();
        Some(known.any(|facts| part.contains(facts)))
    }
}

fn files(directory: &Path, deeper: usize) -> io::Result<Vec<(PathBuf, Stamp)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        // One that went away between the two calls is not there.
        let Ok(there) = fs::metadata(&path) else { continue };
        if there.is_dir() && deeper > 0 {
            found.extend(files(&path, deeper - 1)?);
        } else if there.is_file() && is_manifest(&path) {
            found.push((path, stamp(&there)));
        }
        if found.len() > MOST_FILES {
            return Err(io::Error::other(format!("more than {MOST_FILES} files")));
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

/// Only pods: a template's pods have names that it does not know.
fn read(path: &Path) -> Result<Vec<PodFacts>, String> {
    let mut text = String::new();
    let most = u64::try_from(manifest::LONGEST).unwrap_or(u64::MAX).saturating_add(1);
    let read = bounded_read::open_file(path).and_then(|(file, _)| file.take(most).read_to_string(&mut text));
    read.map_err(|why| why.to_string())?;
    let pods = match manifest::pods(&text) {
        Ok(pods) => pods,
        Err(manifest::ManifestError::NoPod { .. }) => return Ok(Vec::new()),
        Err(why) => return Err(why.to_string()),
    };
    let pods = pods.iter().filter(|pod| pod.origin.starts_with("Pod/"));
    pods.map(|pod| facts(path, &pod.pod)).collect()
}

/// A manifest without a namespace means that of its directory, or `default`.
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
