//! Sandboxes that come and go, each looked at: which conf it was made by, and whether it is redirected.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use gybe_containerd_tests::{Cri, Node, Sandbox, chain, manifest};
use gybe_installer::testnet::namespace::Namespace;
use gybe_netfilter::backend::Backend;
use gybe_netfilter::nft::Nft;
use serde_json::Value;

use crate::state::State;
use crate::views::View;

/// How many sandboxes are on their way at any time.
const WORKERS: usize = 3;

/// What the kubelet is told while no agent can be asked.
pub(crate) const WITHOUT_AGENT: &str = "GYBE-ADD-032";

/// A sandbox that came up.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) name: String,
    begun: Instant,
    /// The conf containerd made it by.
    pub(crate) by: State,
    pub(crate) is_redirected: bool,
}

/// What came of a load.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) started: Vec<Started>,
    /// The kubelet was told why; it would try again.
    pub(crate) refused: Vec<String>,
}

/// How far a load has got, for whoever waits for it.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    answered: AtomicUsize,
    over: AtomicBool,
}

impl Progress {
    /// Returns when so many more sandboxes have come up, or been refused.
    pub(crate) fn wait_for(&self, more: usize) {
        let wanted = self.answered.load(Ordering::Acquire) + more;
        crate::ground::until("sandboxes' coming, or being refused", || {
            (self.answered.load(Ordering::Acquire) >= wanted).then_some(())
        });
    }
}

/// However the work ends, the load ends.
struct Over<'a>(&'a Progress);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
    }
}

/// Makes sandboxes, looks at them and takes them down again, while `work` goes on.
pub(crate) fn under_load<T>(node: &Node, work: impl FnOnce(&Progress) -> T) -> (T, Tally) {
    let progress = Progress::default();
    thread::scope(|scope| {
        let progress = &progress;
        let worker = |number| scope.spawn(move || come_and_go(node, number, progress));
        let workers: Vec<_> = (0..WORKERS).map(worker).collect();
        let over = Over(progress);
        let done = work(progress);
        drop(over);
        let mut tally = Tally::default();
        for worker in workers {
            let part = worker.join().unwrap();
            tally.started.extend(part.started);
            tally.refused.extend(part.refused);
        }
        (done, tally)
    })
}

fn come_and_go(node: &Node, worker: usize, progress: &Progress) -> Tally {
    let cri = node.connect().unwrap();
    let mut tally = Tally::default();
    let mut number = 0;
    while !progress.over.load(Ordering::Acquire) {
        number += 1;
        let sandbox = meshed(node, &format!("load-{worker}-{number}"));
        let begun = Instant::now();
        match cri.run(&sandbox) {
            Ok(id) => {
                tally.started.push(look(node, &cri, &sandbox, (&id, begun)));
                cri.stop(&id).unwrap();
                cri.remove(&id).unwrap();
            }
            Err(trouble) => tally.refused.push(format!("{}: {}", sandbox.name, trouble.message())),
        }
        progress.answered.fetch_add(1, Ordering::AcqRel);
    }
    tally
}

/// A pod that is to be redirected, known to whoever is asked about it.
pub(crate) fn meshed(node: &Node, name: &str) -> Sandbox {
    let sandbox = Sandbox::injected("shop", name);
    manifest::publish(node.stage(), &sandbox, &manifest::injected(&sandbox)).unwrap();
    sandbox
}

/// Looks at a sandbox that has come up.
pub(crate) fn look(node: &Node, cri: &Cri, sandbox: &Sandbox, (id, begun): (&str, Instant)) -> Started {
    let netns = cri.standing(id).unwrap().netns.unwrap();
    let namespace = Namespace::open(&node.stage().path(netns)).unwrap();
    let ours = namespace.run(|| Nft.inspect()).unwrap().unwrap();
    Started { name: sandbox.name.clone(), begun, by: conf_of(node, id), is_redirected: !ours.is_empty() }
}

/// libcni keeps the conf that a sandbox was made by, for its DEL.
fn conf_of(node: &Node, id: &str) -> State {
    let cached = format!("/var/lib/cni/results/{}-{id}-eth0", chain::NETWORK);
    let cached: Value = serde_json::from_slice(&fs::read(node.stage().path(cached)).unwrap()).unwrap();
    let conf = BASE64_STANDARD.decode(cached["config"].as_str().unwrap()).unwrap();
    State::of(&serde_json::from_slice(&conf).unwrap())
}

impl Tally {
    /// Those that are not redirected: each was made by a conf that the primary had just written, and
    /// none by it once containerd was seen to have a later one. All others are redirected.
    pub(crate) fn in_a_window(&self, views: &[View]) -> Vec<&Started> {
        for pod in &self.started {
            assert_eq!(pod.is_redirected, pod.by.gybe, "{pod:?}");
            let known = views.iter().rev().find(|view| view.since < pod.begun);
            assert!(known.is_none_or(|view| view.state <= pod.by), "{pod:?} after {known:?}");
        }
        self.started.iter().filter(|pod| !pod.is_redirected).collect()
    }

    /// Nobody was refused, but for want of an agent while there was none.
    pub(crate) fn assert_refused_only_without_agent(&self) {
        assert!(self.refused.iter().all(|why| why.contains(WITHOUT_AGENT)), "{:?}", self.refused);
    }

    /// One line about it all, and one about each that is not redirected.
    pub(crate) fn report(&self, what: &str, views: &[View]) {
        let open = self.in_a_window(views);
        let (all, refused) = (self.started.len(), self.refused.len());
        println!("{what}: {all} sandboxes started, {} of them in a window, {refused} refused", open.len());
        let named: Vec<String> = open.iter().map(|pod| format!("{} ({})", pod.name, pod.by.nth)).collect();
        if !named.is_empty() {
            println!("  in the window of the primary's writing number ( ): {}", named.join(", "));
        }
    }
}
