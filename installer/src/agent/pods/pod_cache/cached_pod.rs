//! One pod in the cache. Of a pod larger than `MAX_SIZE` the cache has only the identity, so that no pod's owner can
//! fill the agent's memory; for each query about it the agent requests the pod from the API server.

use gybe_plugin::pod::{Container, ISTIO_COMPONENTS, PodFacts};
use std::mem::size_of;

/// Enough for 3,000 ports or 800 networks in annotations. An ordinary injected pod has less than 2 KiB.
const MAX_SIZE: usize = 16 << 10;

#[derive(Debug)]
pub(in crate::agent::pods) struct CachedPod {
    facts: PodFacts,
    is_whole: bool,
}

impl CachedPod {
    pub(in crate::agent::pods) fn new(mut facts: PodFacts) -> Self {
        if size(&facts) > MAX_SIZE {
            let PodFacts { namespace, name, uid, mut labels, .. } = facts;
            labels.retain(|key, value| ISTIO_COMPONENTS.contains(&(key, value)));
            let facts = PodFacts { namespace, name, uid, labels, ..PodFacts::default() };
            return Self { facts, is_whole: false };
        }
        facts.containers.shrink_to_fit();
        facts.init_containers.shrink_to_fit();
        Self { facts, is_whole: true }
    }

    /// Returns namespace, name, uid and the labels of Istio's components, which every cached pod has.
    pub(super) fn identity(&self) -> &PodFacts {
        &self.facts
    }

    /// Returns the pod, if it is cached whole.
    pub(super) fn whole(&self) -> Option<&PodFacts> {
        Some(&self.facts).filter(|_| self.is_whole)
    }
}

/// Returns the size in bytes, without the allocator's overhead.
fn size(facts: &PodFacts) -> usize {
    let texts = facts.annotations.iter().chain(&facts.labels);
    let texts: usize = texts.map(|(key, value)| key.len() + value.len() + 2 * size_of::<String>()).sum();
    let containers = facts.containers.iter().chain(&facts.init_containers);
    texts + containers.map(container_size).sum::<usize>()
}

fn container_size(container: &Container) -> usize {
    let env: usize = container.env.iter().map(|(key, value)| key.len() + value.len()).sum();
    let args: usize = container.args.iter().map(String::len).sum();
    size_of::<Container>() + container.name.len() + 2 * container.tcp_ports.len() + env + args
}
