//! The stored objects of the cluster with the history of their changes, and the objects that a selector
//! selects at a version.

use crate::request::{Resource, Selector};
use crate::response::recorded;
use serde_json::{Map, Value, json};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::IntoIter;
use tokio::sync::watch;

/// Namespace and name; lists are in this order.
pub(crate) type Key = (String, String);

pub(crate) type ObjectMap = BTreeMap<Key, Arc<Value>>;

/// One write: the object before and after it.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) resource: Resource,
    pub(crate) before: Option<Arc<Value>>,
    pub(crate) after: Option<Arc<Value>>,
}

/// The object store; watches subscribe to its newest version.
#[derive(Debug)]
pub(crate) struct Objects {
    store: Mutex<Store>,
    newest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Store {
    objects: BTreeMap<Resource, ObjectMap>,
    history: Vec<Change>,
    /// Versions before this one cannot be read any more.
    compacted: u64,
    generated: GeneratedPods,
}

impl Objects {
    pub(crate) fn new() -> Self {
        // A new cluster has had writes, too: no object is as old as version 1.
        Self { store: Mutex::default(), newest: watch::Sender::new(1) }
    }

    /// Creates or replaces an object and returns its version. Missing metadata that every stored object has is
    /// added.
    pub(crate) fn put(&self, resource: Resource, object: Value) -> u64 {
        let mut store = self.lock();
        let version = self.newest() + 1;
        let object = completed(resource, object, version);
        let (key, object) = (key(&object), Arc::new(object));
        let before = store.objects.entry(resource).or_default().insert(key, Arc::clone(&object));
        store.history.push(Change { version, resource, before, after: Some(object) });
        self.newest.send_replace(version);
        version
    }

    /// Reports whether the object existed.
    pub(crate) fn delete(&self, resource: Resource, key: &Key) -> bool {
        let mut store = self.lock();
        let Some(before) = store.objects.entry(resource).or_default().remove(key) else { return false };
        let version = self.newest() + 1;
        store.history.push(Change { version, resource, before: Some(before), after: None });
        self.newest.send_replace(version);
        true
    }

    pub(crate) fn get(&self, resource: Resource, key: &Key) -> Option<Arc<Value>> {
        let store = self.lock();
        if let Some(object) = store.objects.get(&resource).and_then(|objects| objects.get(key)) {
            return Some(Arc::clone(object));
        }
        let generated = resource == Resource::Pods && key.0 == GENERATED_NAMESPACE;
        let index = generated.then(|| store.generated.index(&key.1)).flatten()?;
        Some(Arc::new(GeneratedPods::pod(index)))
    }

    pub(crate) fn set_generated(&self, pods: u32) {
        self.lock().generated = GeneratedPods(pods);
    }

    pub(crate) fn generated(&self) -> GeneratedPods {
        self.lock().generated
    }

    /// Discards the history: a request from an older version is refused with 410. Running watches have
    /// received every change and go on.
    pub(crate) fn compact(&self) {
        self.lock().compacted = self.newest();
    }

    /// The oldest version that can be read.
    pub(crate) fn oldest(&self) -> u64 {
        self.lock().compacted
    }

    pub(crate) fn is_compacted(&self, version: u64) -> bool {
        version < self.oldest()
    }

    pub(crate) fn newest(&self) -> u64 {
        *self.newest.borrow()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Returns all objects of a resource as they were at `version`.
    pub(crate) fn at(&self, resource: Resource, version: u64) -> ObjectMap {
        let store = self.lock();
        let mut objects = store.objects.get(&resource).cloned().unwrap_or_default();
        for change in store.history.iter().rev().take_while(|change| change.version > version) {
            if change.resource != resource {
                continue;
            }
            match (&change.before, &change.after) {
                (Some(before), _) => drop(objects.insert(key(before), Arc::clone(before))),
                (None, Some(after)) => drop(objects.remove(&key(after))),
                (None, None) => {}
            }
        }
        objects
    }

    /// Returns the changes of a resource after `version`.
    pub(crate) fn since(&self, resource: Resource, version: u64) -> Vec<Change> {
        let store = self.lock();
        let first = store.history.partition_point(|change| change.version <= version);
        let later = store.history.iter().skip(first);
        later.filter(|change| change.resource == resource).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn key(object: &Value) -> Key {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    (text("/metadata/namespace").to_owned(), text("/metadata/name").to_owned())
}

/// Adds what a server adds to a stored object.
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

/// Iterates over the objects that a selector selects, as they were at a version, in order. Generated pods are
/// made when they are read.
#[derive(Debug)]
pub(crate) struct SelectedObjects {
    /// Those whose namespace is before [`GENERATED_NAMESPACE`].
    first: IntoIter<Arc<Value>>,
    generated: Range<u32>,
    last: IntoIter<Arc<Value>>,
    selector: Selector,
}

impl SelectedObjects {
    /// Begins behind `after`, where it is given.
    pub(crate) fn new(
        objects: &Objects,
        resource: Resource,
        version: u64,
        selector: &Selector,
        after: Option<&Key>,
    ) -> Self {
        let generated = if resource == Resource::Pods { objects.generated() } else { GeneratedPods(0) };
        let generated = generated.after(generated.selected(selector), after);
        let stored = objects.at(resource, version).into_iter();
        let selected = stored.filter(|(_, object)| selector.matches(object));
        let left = selected.filter(|(key, _)| after.is_none_or(|after| key > after));
        let (first, last): (Vec<_>, Vec<_>) =
            left.partition(|((namespace, _), _)| namespace.as_str() < GENERATED_NAMESPACE);
        let values = |pairs: Vec<(Key, _)>| pairs.into_iter().map(|(_, object)| object).collect::<Vec<_>>();
        let (first, last) = (values(first).into_iter(), values(last).into_iter());
        Self { first, generated, last, selector: selector.clone() }
    }
}

impl Iterator for SelectedObjects {
    type Item = Arc<Value>;

    fn next(&mut self) -> Option<Arc<Value>> {
        let mut pods = self.generated.by_ref().map(|index| Arc::new(GeneratedPods::pod(index)));
        let generated = || pods.find(|pod| self.selector.matches(pod));
        self.first.next().or_else(generated).or_else(|| self.last.next())
    }

    /// Exact where the selector selects all generated pods or none.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let stored = self.first.len().saturating_add(self.last.len());
        (stored, Some(stored.saturating_add(self.generated.len())))
    }
}

/// The namespace of the generated pods. No other object is in it.
const GENERATED_NAMESPACE: &str = "generated";

/// The kubelet's default limit of pods on a node.
const PODS_PER_NODE: u32 = 110;

/// The number of generated pods: pods of a large cluster's other nodes, which never change. Each is made when
/// it is read, so that 100,000 of them take no memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct GeneratedPods(pub(crate) u32);

impl GeneratedPods {
    /// Returns the indices of those that the selector may select.
    fn selected(self, selector: &Selector) -> Range<u32> {
        if selector.namespace.as_deref().is_some_and(|namespace| namespace != GENERATED_NAMESPACE) {
            return 0..0;
        }
        let Some(node) = selector.node() else { return 0..self.0 };
        let Some(node) = node.strip_prefix("generated-").and_then(|number| number.parse::<u32>().ok()) else {
            return 0..0;
        };
        let first = node.saturating_mul(PODS_PER_NODE).min(self.0);
        first..first.saturating_add(PODS_PER_NODE).min(self.0)
    }

    /// Returns those of `selected` that come after a key in a list.
    fn after(self, selected: Range<u32>, key: Option<&Key>) -> Range<u32> {
        let Some((namespace, name)) = key else { return selected };
        match namespace.as_str().cmp(GENERATED_NAMESPACE) {
            Ordering::Less => selected,
            Ordering::Equal => {
                let next = self.index(name).map_or(0, |index| index.saturating_add(1));
                selected.start.max(next)..selected.end
            }
            Ordering::Greater => 0..0,
        }
    }

    fn name(index: u32) -> String {
        format!("pod-{index:08}")
    }

    /// Returns the index of the pod with that name.
    fn index(self, name: &str) -> Option<u32> {
        let index = name.strip_prefix("pod-")?.parse().ok()?;
        (index < self.0 && Self::name(index) == name).then_some(index)
    }

    /// Returns the recorded pod with another name and node.
    fn pod(index: u32) -> Value {
        let mut pod = recorded("pod-200").map(|pod| pod.body.clone()).unwrap_or_default();
        let mut set = |pointer: &str, value: Value| {
            if let Some(member) = pod.pointer_mut(pointer) {
                *member = value;
            }
        };
        set("/metadata/name", json!(Self::name(index)));
        set("/metadata/namespace", json!(GENERATED_NAMESPACE));
        set("/metadata/uid", json!(format!("cccccccc-0000-4000-8000-{index:012}")));
        set("/metadata/resourceVersion", json!("1"));
        set("/spec/nodeName", json!(format!("generated-{}", index / PODS_PER_NODE)));
        pod
    }
}
