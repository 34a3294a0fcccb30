//! One pod in the cache: whole, or, where its owner has made it large, its names alone. The API server is
//! asked for such a pod whenever the plugin asks for it, so no pod's owner can fill the agent's memory.

use gybe_plugin::pod::{Container, ISTIO_COMPONENTS, PodFacts};
use std::mem::size_of;

/// Some 3,000 ports or 800 networks in annotations. An ordinary injected pod has less than 2 KiB.
const LARGEST: usize = 16 << 10;

/// A pod as it is held.
#[derive(Debug)]
pub(in crate::agent::cluster) struct Held {
    facts: PodFacts,
    is_whole: bool,
}

impl Held {
    pub(in crate::agent::cluster) fn of(mut facts: PodFacts) -> Self {
        if size(&facts) > LARGEST {
            let PodFacts { namespace, name, uid, mut labels, .. } = facts;
            labels.retain(|key, value| ISTIO_COMPONENTS.contains(&(key, value)));
            let facts = PodFacts { namespace, name, uid, labels, ..PodFacts::default() };
            return Self { facts, is_whole: false };
        }
        facts.containers.shrink_to_fit();
        facts.init_containers.shrink_to_fit();
        Self { facts, is_whole: true }
    }

    /// Namespace, name, uid and the labels of Istio's parts, which are always there.
    pub(super) fn names(&self) -> &PodFacts {
        &self.facts
    }

    /// The pod, where it is held whole.
    pub(super) fn whole(&self) -> Option<&PodFacts> {
        Some(&self.facts).filter(|_| self.is_whole)
    }
}

/// How many bytes it takes, without what the allocator adds.
fn size(facts: &PodFacts) -> usize {
    let texts = facts.annotations.iter().chain(&facts.labels);
    let texts: usize = texts.map(|(key, value)| key.len() + value.len() + 2 * size_of::<String>()).sum();
    let containers = facts.containers.iter().chain(&facts.init_containers);
    texts + containers.map(of_container).sum::<usize>()
}

fn of_container(container: &Container) -> usize {
    let env: usize = container.env.iter().map(|(key, value)| key.len() + value.len()).sum();
    let args: usize = container.args.iter().map(String::len).sum();
    size_of::<Container>() + container.name.len() + 2 * container.tcp_ports.len() + env + args
}
