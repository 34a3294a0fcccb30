//! This node's pods as the agent knows them, by list and watch (`WatchedPods`): queries are answered from the cache, and
//! otherwise from the watch or a lookup, whichever is first.
//!
//! ```text
//! cluster::watch ─► pod_watch ─► pod_cache ─► WatchedPods ─► facts socket
//!                                    └─ lookups: one pod that the watch has not delivered
//! ```
//!
//! The watch of pods and the lookups run on one thread, which has a tokio runtime. `CountedPods` counts the responses
//! to the plugin's queries.

mod list_parser;
mod pod_cache;
mod pod_watch;

pub use pod_cache::{WatchProblem, WatchState};

use crate::agent::histogram::Histogram;
use crate::agent::pods::pod_cache::{PodCache, WaitLimits};
use crate::agent::pods::pod_watch::{AwaitedPod, NodePods, serve_lookups};
use crate::agent::ztunnel::AmbientPods;
use crate::cluster::watch::{STALE, Watch};
use crate::cluster::{Cluster, ClusterError};
use crate::log::Log;
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::wire::FactsResponse;
use gybe_plugin::pod::PodFacts;
use nix::sys::signal::{SigSet, SigmaskHow};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// A source of this node's pods.
pub trait PodLookup: Sync {
    /// Returns what is known about a pod now; none when the pod may be about to appear.
    fn find(&self, pod: &PodRef) -> Option<FactsResponse>;

    /// Returns what is known about a pod; waits for an unknown pod, at most until `until`.
    fn wait_for(&self, pod: &PodRef, until: Instant) -> FactsResponse;

    fn state(&self) -> PodsState;

    /// Reports whether such a pod is on this node, a terminating one included; none while the pods are not known.
    fn has_pod(&self, is_such: &dyn Fn(&PodFacts) -> bool) -> Option<bool>;

    /// Takes the time at which the pod `NAMESPACE/NAME` was assigned to this node; the next call returns none. None also
    /// for a pod that the watch has not delivered or that has had a sandbox, and where there is no cluster.
    fn take_assigned(&self, _pod: &str) -> Option<SystemTime> {
        None
    }
}

/// The state of a [`PodLookup`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodsState {
    /// Why queries cannot be answered reliably; none when they can.
    pub missing: Option<String>,
    /// Why new pods are not known at present: the watch is not open. Short interruptions are normal.
    pub unwatched: Option<String>,
    /// The number of known pods.
    pub pods: usize,
    /// The counters of the watch; none without a cluster.
    pub watch: Option<WatchCounts>,
}

/// Counters of the watch of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchCounts {
    /// The time since the API server last sent something about pods.
    pub silent: Duration,
    pub reconnects: u64,
    /// Failed requests about pods by HTTP status; none stands for no response, or for one that cannot be read.
    pub errors: BTreeMap<Option<u16>, u64>,
    /// The time from the assignment of each new pod to this node until the watch, or a later list, delivered it.
    pub latency: Histogram,
}

/// A [`PodLookup`] that passes queries to another one and counts the responses.
pub(crate) struct CountedPods<'a> {
    pods: &'a dyn PodLookup,
    known: AtomicU64,
    unknown: AtomicU64,
    faults: AtomicU64,
}

impl<'a> CountedPods<'a> {
    pub(crate) fn new(pods: &'a dyn PodLookup) -> Self {
        Self { pods, known: AtomicU64::new(0), unknown: AtomicU64::new(0), faults: AtomicU64::new(0) }
    }

    /// Returns the number of responses of each kind, by the HTTP status with which the incumbent's agent would respond:
    /// 200 a pod, 404 unknown, 503 an error.
    pub(crate) fn counts(&self) -> [(u16, u64); 3] {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [(200, count(&self.known)), (404, count(&self.unknown)), (503, count(&self.faults))]
    }

    fn count(&self, response: &FactsResponse) {
        let counter = match response {
            FactsResponse::Pod(_) => &self.known,
            FactsResponse::Unknown => &self.unknown,
            FactsResponse::Error(_) | FactsResponse::BrokenManifest(_) => &self.faults,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl PodLookup for CountedPods<'_> {
    fn find(&self, pod: &PodRef) -> Option<FactsResponse> {
        self.pods.find(pod).inspect(|response| self.count(response))
    }

    fn wait_for(&self, pod: &PodRef, until: Instant) -> FactsResponse {
        let response = self.pods.wait_for(pod, until);
        self.count(&response);
        response
    }

    fn state(&self) -> PodsState {
        self.pods.state()
    }

    fn has_pod(&self, is_such: &dyn Fn(&PodFacts) -> bool) -> Option<bool> {
        self.pods.has_pod(is_such)
    }

    fn take_assigned(&self, pod: &str) -> Option<SystemTime> {
        self.pods.take_assigned(pod)
    }
}

/// How long the watch may lag behind the kubelet's, before a pod is looked up at the API server.
const WATCH_LAG: Duration = Duration::from_millis(300);

/// The watch, running on a thread of its own until it is dropped.
#[derive(Debug)]
pub struct WatchedPods {
    cache: Arc<PodCache>,
    /// None while it is being dropped.
    lookups: Option<UnboundedSender<AwaitedPod>>,
    thread: Option<JoinHandle<()>>,
}

impl WatchedPods {
    /// Starts to watch the pods of this node. `state` shows whether the API server responds. In ambient mode, pods that
    /// end are removed from `ambient`.
    ///
    /// # Errors
    /// When the configuration of the cluster is incomplete, or no thread can be created.
    pub fn start(
        cluster: &Cluster,
        node: &str,
        ambient: Option<Arc<AmbientPods>>,
    ) -> Result<Self, ClusterError> {
        let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(ClusterError::Thread)?;
        let client = runtime.block_on(cluster.client())?;
        let cache = Arc::<PodCache>::default();
        let (sender, lookups) = unbounded_channel();
        let is_ambient = ambient.is_some();
        let watched = NodePods { node: node.to_owned(), cache: Arc::clone(&cache), ambient };
        let watching = client.clone();
        let watch = async move {
            let log = Log::default();
            Watch { client: watching, watched, log: &log }.run().await
        };
        let serve = serve_lookups(Arc::clone(&cache), client, lookups, is_ambient);
        let thread = without_signals(|| {
            thread::Builder::new().name("cluster".to_owned()).spawn(move || {
                let _watching = runtime.spawn(watch);
                runtime.block_on(serve);
                // Does not wait for a thread of the runtime that is still blocked in a DNS lookup.
                runtime.shutdown_background();
            })
        })?;
        Ok(Self { cache, lookups: Some(sender), thread: Some(thread) })
    }

    pub fn state(&self) -> WatchState {
        self.cache.state()
    }
}

/// Calls `make` with all signals blocked, so that the thread that it creates receives none: the agent's loop handles
/// them.
fn without_signals<T>(make: impl FnOnce() -> std::io::Result<T>) -> Result<T, ClusterError> {
    let failed = |errno: nix::errno::Errno| ClusterError::Thread(errno.into());
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).map_err(failed)?;
    let made = make();
    before.thread_set_mask().map_err(failed)?;
    made.map_err(ClusterError::Thread)
}

impl PodLookup for WatchedPods {
    fn find(&self, pod: &PodRef) -> Option<FactsResponse> {
        self.cache.find(pod)
    }

    fn wait_for(&self, pod: &PodRef, until: Instant) -> FactsResponse {
        // The watch and the kubelet's watch have the same source, so the pod most likely arrives within `WATCH_LAG`.
        self.cache.wait_for(pod, WaitLimits { watch_lag: WATCH_LAG, until }, || {
            let lookup = AwaitedPod { pod: pod.clone(), until };
            // The thread ends only after the sender is dropped.
            let _ = self.lookups.as_ref().map(|lookups| lookups.send(lookup));
        })
    }

    fn state(&self) -> PodsState {
        let WatchState { synced, silent, problem, pods, reconnects, errors, latency } = self.cache.state();
        let unwatched = problem.map(|problem| problem.sentence);
        let why = unwatched.as_ref().map_or(String::new(), |why| format!(": {why}"));
        let missing = match synced {
            false => Some(format!("this node's pods are not known yet{why}")),
            // Queries about cached pods are served however old the cache is, but new pods are not in it.
            true if silent > STALE => {
                Some(format!("the API server has sent nothing about pods for {} s{why}", silent.as_secs()))
            }
            true => None,
        };
        let watch = Some(WatchCounts { silent, reconnects, errors, latency });
        PodsState { missing, unwatched, pods, watch }
    }

    fn has_pod(&self, is_such: &dyn Fn(&PodFacts) -> bool) -> Option<bool> {
        self.cache.has_pod(is_such)
    }

    fn take_assigned(&self, pod: &str) -> Option<SystemTime> {
        self.cache.take_assigned(pod)
    }
}

impl Drop for WatchedPods {
    fn drop(&mut self) {
        // Ends the thread.
        drop(self.lookups.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
