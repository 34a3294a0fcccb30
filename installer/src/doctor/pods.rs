//! What this node's pods say that they most likely do not mean.

use super::sight::Sight;
use super::{About, Finding};

/// So many pods are named.
const MOST: usize = 16;

pub(super) fn examine(sight: &Sight) -> Vec<Finding> {
    let of_pod = |(pod, doubts): &(String, Vec<String>)| {
        let says = format!("pod {pod}: {}", doubts.join("; "));
        Finding::note(About::Pods, says, Some("correct the annotation in the pod's template"))
    };
    let mut found: Vec<_> = sight.doubtful_pods.iter().take(MOST).map(of_pod).collect();
    if let Some(more) = sight.doubtful_pods.len().checked_sub(MOST).filter(|more| *more > 0) {
        found.push(Finding::note(About::Pods, format!("{more} more pods with unknown annotations"), None));
    }
    found
}
