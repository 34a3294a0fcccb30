//! All objects of the cluster, as they are and as they came to be so.

use crate::crowd::Crowd;
use crate::resource::Resource;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Namespace and name, in the order in which lists are.
pub(crate) type Key = (String, String);

/// Objects of one kind.
pub(crate) type Shelf = BTreeMap<Key, Arc<Value>>;

/// One write: how the object was before it, and after it.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) resource: Resource,
    pub(crate) before: Option<Arc<Value>>,
    pub(crate) after: Option<Arc<Value>>,
}

/// The objects; their newest version is told to all who watch.
#[derive(Debug)]
pub(crate) struct Objects {
    kept: Mutex<Kept>,
    newest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    shelves: BTreeMap<Resource, Shelf>,
    history: Vec<Change>,
    /// What was before this version is forgotten.
    compacted: u64,
    crowd: Crowd,
}

impl Objects {
    pub(crate) fn new() -> Self {
        // A young cluster has had writes too: nothing is as old as version 1.
        Self { kept: Mutex::default(), newest: watch::Sender::new(1) }
    }

    /// Writes one, new or in place of what bears its name, and gives its version. What every object
    /// has and this one lacks is added.
    pub(crate) fn put(&self, resource: Resource, object: Value) -> u64 {
        let mut kept = self.kept();
        let version = self.newest() + 1;
        let object = completed(resource, object, version);
        let (key, object) = (key(&object), Arc::new(object));
        let before = kept.shelves.entry(resource).or_default().insert(key, Arc::clone(&object));
        kept.history.push(Change { version, resource, before, after: Some(object) });
        self.newest.send_replace(version);
        version
    }

    /// Whether there was one to be taken away.
    pub(crate) fn delete(&self, resource: Resource, key: &Key) -> bool {
        let mut kept = self.kept();
        let Some(gone) = kept.shelves.entry(resource).or_default().remove(key) else { return false };
        let version = self.newest() + 1;
        kept.history.push(Change { version, resource, before: Some(gone), after: None });
        self.newest.send_replace(version);
        true
    }

    pub(crate) fn get(&self, resource: Resource, key: &Key) -> Option<Arc<Value>> {
        let kept = self.kept();
        if let Some(object) = kept.shelves.get(&resource).and_then(|shelf| shelf.get(key)) {
            return Some(Arc::clone(object));
        }
        let crowd = resource == Resource::Pods && key.0 == crate::crowd::NAMESPACE;
        let place = crowd.then(|| kept.crowd.place(&key.1)).flatten()?;
        Some(Arc::new(Crowd::pod(place)))
    }

    pub(crate) fn set_crowd(&self, pods: u32) {
        self.kept().crowd = Crowd(pods);
    }

    pub(crate) fn crowd(&self) -> Crowd {
        self.kept().crowd
    }

    /// Forgets how everything came to be: whoever asks from an older version learns that it is gone.
    /// Watches that run are not behind, and notice nothing.
    pub(crate) fn compact(&self) {
        self.kept().compacted = self.newest();
    }

    /// The oldest version that is not forgotten.
    pub(crate) fn oldest(&self) -> u64 {
        self.kept().compacted
    }

    pub(crate) fn has_forgotten(&self, version: u64) -> bool {
        version < self.oldest()
    }

    pub(crate) fn newest(&self) -> u64 {
        *self.newest.borrow()
    }

    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// All of a kind as they were at `version`.
    pub(crate) fn at(&self, resource: Resource, version: u64) -> Shelf {
        let kept = self.kept();
        let mut shelf = kept.shelves.get(&resource).cloned().unwrap_or_default();
        for change in kept.history.iter().rev().take_while(|change| change.version > version) {
            if change.resource != resource {
                continue;
            }
            match (&change.before, &change.after) {
                (Some(before), _) => drop(shelf.insert(key(before), Arc::clone(before))),
                (None, Some(after)) => drop(shelf.remove(&key(after))),
                (None, None) => {}
            }
        }
        shelf
    }

    /// Every change of a kind after `version`.
    pub(crate) fn since(&self, resource: Resource, version: u64) -> Vec<Change> {
        let kept = self.kept();
        let first = kept.history.partition_point(|change| change.version <= version);
        let later = kept.history.iter().skip(first);
        later.filter(|change| change.resource == resource).cloned().collect()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where an object stands.
pub(crate) fn key(object: &Value) -> Key {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    (text("/metadata/namespace").to_owned(), text("/metadata/name").to_owned())
}

/// The object as a server would have stored it.
fn completed(resource: Resource, mut object: Value, version: u64) -> Value {
    if let Some(members) = object.as_object_mut() {
        members.insert("kind".into(), resource.kind().into());
        members.insert("apiVersion".into(), resource.api_version().into());
        let metadata = members.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            complete(resource, metadata, version);
        }
    }
    object
}

fn complete(resource: Resource, metadata: &mut Map<String, Value>, version: u64) {
    metadata.insert("resourceVersion".into(), version.to_string().into());
    let uid = || json!(format!("00000000-0000-4000-8000-{version:012x}"));
    metadata.entry("uid").or_insert_with(uid);
    metadata.entry("creationTimestamp").or_insert_with(|| json!("2026-01-01T00:00:00Z"));
    if resource.is_namespaced() {
        metadata.entry("namespace").or_insert_with(|| json!("default"));
    }
}
