//! Pods that start and stop under load; each is inspected: which conflist it was started with, and whether it is
//! redirected.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use gybe_containerd_tests::{Cri, Node, Sandbox, conflist, manifest};
use gybe_demo::testnet::namespace::Namespace;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::nft::Nft;
use serde_json::Value;

use crate::conflist_state::{ConflistState, Observation};

/// The number of threads that start pods.
const WORKERS: usize = 3;

/// The error id of a refusal while no agent runs.
pub(crate) const WITHOUT_AGENT: &str = "GYBE-ADD-032";

/// A pod that started.
#[derive(Debug)]
pub(crate) struct StartedPod {
    name: String,
    requested: Instant,
    /// The conflist with which containerd started it.
    pub(crate) conflist: ConflistState,
    pub(crate) is_redirected: bool,
}

/// The pods of a load.
#[derive(Debug, Default)]
pub(crate) struct LoadResult {
    pub(crate) started: Vec<StartedPod>,
    /// Names and errors of pods that did not start.
    pub(crate) refused: Vec<String>,
}

/// The progress of a load.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    completed: AtomicUsize,
    is_over: AtomicBool,
}

impl Progress {
    /// Waits until so many more pods have started or been refused.
    pub(crate) fn wait_for(&self, more: usize) {
        let target = self.completed.load(Ordering::Acquire) + more;
        crate::fixture::wait_for("starts and refusals of pods", || {
            (self.completed.load(Ordering::Acquire) >= target).then_some(())
        });
    }
}

/// Ends the load on drop, also when the work panics.
struct EndOnDrop<'a>(&'a Progress);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

/// Starts, inspects and deletes pods while `work` runs.
pub(crate) fn under_load<T>(node: &Node, work: impl FnOnce(&Progress) -> T) -> (T, LoadResult) {
    let progress = Progress::default();
    thread::scope(|scope| {
        let progress = &progress;
        let worker = |number| scope.spawn(move || run_pods(node, number, progress));
        let workers: Vec<_> = (0..WORKERS).map(worker).collect();
        let end = EndOnDrop(progress);
        let done = work(progress);
        drop(end);
        let mut all = LoadResult::default();
        for worker in workers {
            let part = worker.join().unwrap();
            all.started.extend(part.started);
            all.refused.extend(part.refused);
        }
        (done, all)
    })
}

fn run_pods(node: &Node, worker: usize, progress: &Progress) -> LoadResult {
    let cri = node.connect().unwrap();
    let mut result = LoadResult::default();
    let mut number = 0;
    while !progress.is_over.load(Ordering::Acquire) {
        number += 1;
        let sandbox = meshed_pod(node, &format!("load-{worker}-{number}"));
        let requested = Instant::now();
        match cri.run(&sandbox) {
            Ok(id) => {
                result.started.push(inspect_pod(node, &cri, &sandbox, &id, requested));
                cri.delete(&id).unwrap();
            }
            Err(error) => result.refused.push(format!("{}: {}", sandbox.name, error.message())),
        }
        progress.completed.fetch_add(1, Ordering::AcqRel);
    }
    result
}

/// Publishes the manifest of a meshed pod.
pub(crate) fn meshed_pod(node: &Node, name: &str) -> Sandbox {
    let sandbox = Sandbox::injected("shop", name);
    manifest::publish(node.host(), &sandbox, &manifest::injected(&sandbox)).unwrap();
    sandbox
}

/// Inspects a started pod. `requested`: before containerd was called.
pub(crate) fn inspect_pod(
    node: &Node,
    cri: &Cri,
    sandbox: &Sandbox,
    id: &str,
    requested: Instant,
) -> StartedPod {
    let netns = cri.sandbox_status(id).unwrap().netns.unwrap();
    let namespace = Namespace::open(&node.host().path(netns)).unwrap();
    let ours = namespace.run(|| Nft.inspect()).unwrap().unwrap();
    let is_redirected = !ours.is_empty();
    StartedPod { name: sandbox.name.clone(), requested, conflist: cached_conflist(node, id), is_redirected }
}

/// Reads the conflist of a sandbox's ADD from libcni's cached result, which libcni needs for its DEL.
fn cached_conflist(node: &Node, id: &str) -> ConflistState {
    let cached = format!("/var/lib/cni/results/{}-{id}-eth0", conflist::NETWORK);
    let cached: Value = serde_json::from_slice(&fs::read(node.host().path(cached)).unwrap()).unwrap();
    let conflist = BASE64_STANDARD.decode(cached["config"].as_str().unwrap()).unwrap();
    ConflistState::of(&serde_json::from_slice(&conflist).unwrap())
}

impl LoadResult {
    /// Returns the pods that are not redirected. Asserts that each of them was started with a conflist that the
    /// primary plugin had just written, before containerd was observed with a later one; all others are redirected.
    pub(crate) fn not_redirected(&self, observations: &[Observation]) -> Vec<&StartedPod> {
        for pod in &self.started {
            assert_eq!(pod.is_redirected, pod.conflist.has_gybe, "{pod:?}");
            let last = observations.iter().rev().find(|observation| observation.since < pod.requested);
            assert!(last.is_none_or(|last| last.state <= pod.conflist), "{pod:?} after {last:?}");
        }
        self.started.iter().filter(|pod| !pod.is_redirected).collect()
    }

    /// Asserts that pods were refused only because no agent ran.
    pub(crate) fn assert_refused_only_without_agent(&self) {
        assert!(self.refused.iter().all(|error| error.contains(WITHOUT_AGENT)), "{:?}", self.refused);
    }

    /// Prints the numbers, and the pods that are not redirected.
    pub(crate) fn print(&self, what: &str, observations: &[Observation]) {
        let not_redirected = self.not_redirected(observations);
        let (all, refused) = (self.started.len(), self.refused.len());
        let windows = not_redirected.len();
        println!("{what}: {all} pods started, {windows} of them in a window, {refused} refused");
        let list: Vec<String> =
            not_redirected.iter().map(|pod| format!("{} ({})", pod.name, pod.conflist.revision)).collect();
        if !list.is_empty() {
            println!("  in the window of the primary plugin's revision ( ): {}", list.join(", "));
        }
    }
}
