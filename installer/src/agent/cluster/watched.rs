//! This node's pods, by a watch of the cluster: what is asked about them, and where that is answered
//! from. Never from further away than need be.

use super::access::{Cluster, ClusterError};
use super::asks::{self, Errand};
use super::known::{Known, Patience, WatchState};
use super::watch::Watch;
use crate::agent::{Part, Pods, PodsState, WatchCounts};
use crate::log::Journal;
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::wire::FactsResponse;
use nix::sys::signal::{SigSet, SigmaskHow};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// How long the watch may lag behind the kubelet's own, before the API server is asked alone.
const LAG: Duration = Duration::from_millis(300);

/// A server tells something every minute. Silent for longer than a watch lives, it is not only slow, and
/// no token is only being changed.
const STALE: Duration = Duration::from_secs(300);

/// The watch, running on a thread of its own until it is dropped.
#[derive(Debug)]
pub struct WatchedPods {
    known: Arc<Known>,
    /// None while it is being dropped.
    to: Option<UnboundedSender<Errand>>,
    thread: Option<JoinHandle<()>>,
}

impl WatchedPods {
    /// Begins to watch the pods of this node. Whether the API server answers is seen in `state`.
    ///
    /// # Errors
    /// When what is needed to ask it at all is missing, or no thread can be made.
    pub fn start(cluster: &Cluster, node: &str) -> Result<Self, ClusterError> {
        let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(ClusterError::Thread)?;
        let client = runtime.block_on(cluster.client())?;
        let known = Arc::<Known>::default();
        let (to, asked) = unbounded_channel();
        let watch = Watch {
            client: client.clone(),
            node: node.to_owned(),
            known: Arc::clone(&known),
            journal: Journal::default(),
        };
        let serve = asks::serve(Arc::clone(&known), client, asked);
        let thread = without_signals(|| {
            thread::Builder::new().name("cluster".to_owned()).spawn(move || {
                let _watching = runtime.spawn(watch.run());
                runtime.block_on(serve);
                // A name that is being looked up keeps a thread; the agent's end does not wait for it.
                runtime.shutdown_background();
            })
        })?;
        Ok(Self { known, to: Some(to), thread: Some(thread) })
    }

    /// How the watch is.
    pub fn state(&self) -> WatchState {
        self.known.state()
    }
}

/// Signals end the agent in its own loop, never in a thread that happened to be there before it.
fn without_signals<T>(make: impl FnOnce() -> std::io::Result<T>) -> Result<T, ClusterError> {
    let failed = |errno: nix::errno::Errno| ClusterError::Thread(errno.into());
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).map_err(failed)?;
    let made = make();
    before.thread_set_mask().map_err(failed)?;
    made.map_err(ClusterError::Thread)
}

impl Pods for WatchedPods {
    fn at_once(&self, pod: &PodRef) -> Option<FactsResponse> {
        self.known.find(pod)
    }

    fn answer(&self, pod: &PodRef, until: Instant) -> FactsResponse {
        // The watch has its pods from where the kubelet has them, so one that is not there yet is about
        // to come.
        self.known.learn(pod, Patience { lag: LAG, until }, || {
            let errand = Errand { pod: pod.clone(), until };
            // The thread ends after the last who could ask.
            let _ = self.to.as_ref().map(|to| to.send(errand));
        })
    }

    fn state(&self) -> PodsState {
        let WatchState { synced, silent, trouble, pods, reconnects, errors } = self.known.state();
        let why = trouble.map_or(String::new(), |trouble| format!(": {}", trouble.sentence));
        let missing = match synced {
            false => Some(format!("this node's pods are not known yet{why}")),
            // What is known is answered however old it is; but new pods are not in it.
            true if silent > STALE => {
                Some(format!("the API server has told nothing of pods for {} s{why}", silent.as_secs()))
            }
            true => None,
        };
        PodsState { missing, pods, watch: Some(WatchCounts { silent, reconnects, errors }) }
    }

    fn has_pod_of(&self, part: &Part) -> Option<bool> {
        self.known.has_pod_of(part)
    }
}

impl Drop for WatchedPods {
    fn drop(&mut self) {
        // The thread serves as long as somebody could ask.
        drop(self.to.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
