//! All objects that a selector means, as they were at a version, one after the other in order. Those
//! of the crowd are made as they are read.

use crate::crowd::{Crowd, NAMESPACE};
use crate::objects::{Key, Objects};
use crate::resource::Resource;
use crate::selector::Selector;
use serde_json::Value;
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;
use std::vec::IntoIter;

/// What is left to be read.
#[derive(Debug)]
pub(crate) struct Contents {
    before: IntoIter<Arc<Value>>,
    crowd: Range<u32>,
    behind: IntoIter<Arc<Value>>,
    selector: Selector,
}

impl Contents {
    /// All, or those behind `after`.
    pub(crate) fn of(
        objects: &Objects,
        (resource, version): (Resource, u64),
        selector: &Selector,
        after: Option<&Key>,
    ) -> Self {
        let crowd = if resource == Resource::Pods { objects.crowd() } else { Crowd(0) };
        let crowd = behind(crowd, crowd.meant(selector), after);
        let shelf = objects.at(resource, version).into_iter();
        let meant = shelf.filter(|(_, object)| selector.matches(object));
        let left = meant.filter(|(key, _)| after.is_none_or(|after| key > after));
        let (before, behind): (Vec<_>, Vec<_>) = left.partition(|((place, _), _)| place.as_str() < NAMESPACE);
        let objects = |kept: Vec<(Key, _)>| kept.into_iter().map(|(_, object)| object).collect::<Vec<_>>();
        let (before, behind) = (objects(before).into_iter(), objects(behind).into_iter());
        Self { before, crowd, behind, selector: selector.clone() }
    }
}

impl Iterator for Contents {
    type Item = Arc<Value>;

    fn next(&mut self) -> Option<Arc<Value>> {
        let mut crowd = self.crowd.by_ref().map(|place| Arc::new(Crowd::pod(place)));
        let of_crowd = || crowd.find(|pod| self.selector.matches(pod));
        self.before.next().or_else(of_crowd).or_else(|| self.behind.next())
    }

    /// Exact where the selector means all of the crowd or none of it.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let certain = self.before.len().saturating_add(self.behind.len());
        (certain, Some(certain.saturating_add(self.crowd.len())))
    }
}

/// What of the crowd comes behind a key.
fn behind(crowd: Crowd, meant: Range<u32>, after: Option<&Key>) -> Range<u32> {
    let Some((namespace, name)) = after else { return meant };
    match namespace.as_str().cmp(NAMESPACE) {
        Ordering::Less => meant,
        Ordering::Equal => {
            let next = crowd.place(name).map_or(0, |place| place.saturating_add(1));
            meant.start.max(next)..meant.end
        }
        Ordering::Greater => 0..0,
    }
}
