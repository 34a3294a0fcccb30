//! The rest of a large cluster: pods of other nodes, each made when somebody reads it, so that
//! 100,000 of them cost nothing to hold.

use crate::recorded::recorded;
use crate::selector::Selector;
use serde_json::{Value, json};
use std::ops::Range;

/// Where they live. No other object should.
pub(crate) const NAMESPACE: &str = "crowd";

/// So many share a node, as the kubelet's default allows.
const PER_NODE: u32 = 110;

/// How many there are; they never change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Crowd(pub(crate) u32);

impl Crowd {
    /// The places of those that a selector can mean.
    pub(crate) fn meant(self, selector: &Selector) -> Range<u32> {
        if selector.namespace.as_deref().is_some_and(|namespace| namespace != NAMESPACE) {
            return 0..0;
        }
        let Some(node) = selector.node() else { return 0..self.0 };
        let Some(node) = node.strip_prefix("crowd-").and_then(|number| number.parse::<u32>().ok()) else {
            return 0..0;
        };
        let first = node.saturating_mul(PER_NODE).min(self.0);
        first..first.saturating_add(PER_NODE).min(self.0)
    }

    pub(crate) fn name(place: u32) -> String {
        format!("pod-{place:08}")
    }

    /// The place of that name, when there is one.
    pub(crate) fn place(self, name: &str) -> Option<u32> {
        let place = name.strip_prefix("pod-")?.parse().ok()?;
        (place < self.0 && Self::name(place) == name).then_some(place)
    }

    /// The recorded pod, on another node and by another name.
    pub(crate) fn pod(place: u32) -> Value {
        let mut pod = recorded("pod-200").map(|pod| pod.body.clone()).unwrap_or_default();
        let mut set = |pointer: &str, value: Value| {
            if let Some(there) = pod.pointer_mut(pointer) {
                *there = value;
            }
        };
        set("/metadata/name", json!(Self::name(place)));
        set("/metadata/namespace", json!(NAMESPACE));
        set("/metadata/uid", json!(format!("cccccccc-0000-4000-8000-{place:012}")));
        set("/metadata/resourceVersion", json!("1"));
        set("/spec/nodeName", json!(format!("crowd-{}", place / PER_NODE)));
        pod
    }
}
