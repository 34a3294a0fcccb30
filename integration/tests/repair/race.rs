//! Pods that are created, become ready, fail, are replaced and deleted at random while `gybe repair --watch` runs.

use crate::node::{Node, Pod, REDIRECTED};
use gybe_integration::random_policy::source;
use gybe_test_support::wait_until;
use proptest::prelude::RngExt;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::os::unix::fs::symlink;
use std::{env, fs};

/// The pods that are on the node at the same time.
const AT_ONCE: usize = 40;
/// A namespace is kept for the lives of so many further pods: a repair of it could still be running.
const KEPT: usize = 40;
/// What the process's memory may grow by, in KiB.
const GROWTH: u64 = 1024;
/// A pass holds the namespaces of the sandboxes open that it judges: one for each of its threads.
const OPEN_IN_A_PASS: usize = 8;

/// What happens to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The API server has the pod.
    Published,
    /// The API server has another pod of that name.
    PublishedWithAnotherUid,
    NamespaceNamed,
    LoopbackAdded,
    AddEnded,
    Started,
    /// A process of another pod runs in the namespace.
    ForeignProcess,
    /// Its processes end.
    Failed,
    /// The runtime gives the name of the namespace to the next sandbox, and leaves the cached result.
    Replaced,
    /// Everything of it is removed, in any order.
    Deleted,
}

/// A pod of the race.
struct Racer {
    pod: Pod,
    /// What will happen, the next one last.
    events: Vec<Event>,
    published: Option<Event>,
    has_ended_add: bool,
    has_process: bool,
    has_foreign_process: bool,
    /// Whether the conditions of a repair have held at any time.
    was_repairable: bool,
    /// The namespace that has taken the place of the pod's.
    successor: Option<Pod>,
    /// Whether it is still there at the end.
    stays: bool,
}

pub(crate) struct Random(TestRunner);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(source(seed))
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0.rng().random_range(0..limit)
    }

    pub(crate) fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }
}

impl Racer {
    fn new(number: u32, random: &mut Random) -> Self {
        let mut events = Vec::new();
        let published = [Event::Published, Event::PublishedWithAnotherUid][usize::from(random.percent(15))];
        // The watch of the agent may be late.
        let is_late = random.percent(30);
        events.extend((!is_late).then_some(published));
        events.push(Event::NamespaceNamed);
        events.extend(random.percent(30).then_some(Event::LoopbackAdded));
        events.extend(random.percent(10).then_some(Event::ForeignProcess));
        let mut last = vec![Event::AddEnded, Event::Started];
        if random.percent(20) {
            last.swap(0, 1);
        }
        last.truncate(if random.percent(15) { 1 } else { 2 });
        events.extend(last);
        events.extend(is_late.then_some(published));
        events.extend(random.percent(15).then_some(Event::PublishedWithAnotherUid));
        events.extend(random.percent(20).then_some(Event::Failed));
        let end = [Some(Event::Replaced), Some(Event::Deleted), None]
            [[0, 0, 1, 1, 1, 1, 1, 1, 2, 2][random.below(10)]];
        events.extend(end);
        events.reverse();
        Self {
            pod: Pod::new(number),
            events,
            published: None,
            has_ended_add: false,
            has_process: false,
            has_foreign_process: false,
            was_repairable: false,
            successor: None,
            stays: end.is_none(),
        }
    }

    fn is_repairable(&self) -> bool {
        let is_published = self.published == Some(Event::Published);
        is_published && self.has_ended_add && self.has_process && !self.has_foreign_process
    }

    fn happen(&mut self, event: Event, node: &Node, random: &mut Random) {
        let pod = &self.pod;
        // Before: the repair may be faster than this function.
        match event {
            Event::Published | Event::PublishedWithAnotherUid => self.published = Some(event),
            Event::AddEnded => self.has_ended_add = true,
            Event::Started => self.has_process = true,
            Event::ForeignProcess => self.has_foreign_process = true,
            _ => {}
        }
        self.was_repairable |= self.is_repairable();
        match event {
            Event::Published => node.manifest("shop", pod, |_| ()),
            Event::PublishedWithAnotherUid => {
                let uid = format!("00000000-70b7-4d3c-9a51-{:012x}", pod.number);
                node.manifest("shop", pod, |manifest| manifest["metadata"]["uid"] = json!(uid));
            }
            Event::NamespaceNamed => symlink(pod.netns.path(), node.netns_name(pod)).unwrap(),
            Event::LoopbackAdded => node.cached("shop", pod, "lo"),
            Event::AddEnded => node.cached("shop", pod, "eth0"),
            Event::Started => node.process(1000 + pod.number, &pod.cgroup(), &pod.netns),
            Event::ForeignProcess => node.process(
                500_000 + pod.number,
                "0::/kubepods/pod99999999-0000-4000-8000-000000000001/x",
                &pod.netns,
            ),
            Event::Failed => {
                node.end_process(1000 + pod.number);
                self.has_process = false;
            }
            Event::Replaced => {
                let successor = Pod::new(200_000 + pod.number);
                let name = node.netns_name(pod);
                symlink(successor.netns.path(), name.with_extension("new")).unwrap();
                fs::rename(name.with_extension("new"), name).unwrap();
                node.process(200_000 + pod.number, &successor.cgroup(), &successor.netns);
                node.end_process(1000 + pod.number);
                self.successor = Some(successor);
            }
            Event::Deleted => {
                let mut removals: Vec<fn(&Node, &Pod)> = vec![
                    |node, pod| node.end_process(1000 + pod.number),
                    |node, pod| drop(fs::remove_file(node.netns_name(pod))),
                    |node, pod| drop(fs::remove_file(node.result(pod, "eth0"))),
                    |node, pod| {
                        drop(fs::remove_file(node.root.join(format!("pods/shop/{}.json", pod.name()))));
                    },
                ];
                while !removals.is_empty() {
                    removals.swap_remove(random.below(removals.len()))(node, pod);
                }
            }
        }
    }

    /// Removes what is left of it.
    fn clear(&self, node: &Node) {
        [1000, 200_000, 500_000].into_iter().for_each(|first| node.end_process(first + self.pod.number));
        for interface in ["lo", "eth0"] {
            drop(fs::remove_file(node.result(&self.pod, interface)));
        }
        drop(fs::remove_file(node.netns_name(&self.pod)));
    }

    /// Asserts that no rule is in a namespace in which none may be written.
    fn assert_untouched(&self) {
        let name = self.pod.name();
        if !self.was_repairable {
            assert_eq!(self.pod.rules(), "", "{name} was never to be repaired");
        }
        if let Some(successor) = &self.successor {
            assert_eq!(successor.rules(), "", "the successor of {name}");
        }
    }
}

/// Returns the number in a variable; an unset or empty one means `default`.
pub(crate) fn number(variable: &str, default: usize) -> usize {
    let text = env::var(variable).unwrap_or_default();
    if text.is_empty() { default } else { text.parse().unwrap() }
}

/// `make -C integration repair-race PODS=1000 SEED=1` runs it with more pods.
#[test]
fn pods_that_live_and_end_at_random_get_rules_only_in_their_own_namespace() {
    let (pods, seed) = (number("GYBE_PODS", 300), number("GYBE_SEED", 1));
    let node = Node::new("race", "nft");
    let mut random = Random::new(seed.try_into().unwrap());
    let mut watch = node.watch();
    let (mut live, mut ended, mut stay) =
        (Vec::<Racer>::new(), VecDeque::<Racer>::new(), Vec::<Racer>::new());
    let mut expected = BTreeSet::new();
    let mut started = 0;
    // After a third of the pods every buffer has its size.
    let mut early = None;
    while started < pods || !live.is_empty() {
        if started < pods && live.len() < AT_ONCE {
            started += 1;
            live.push(Racer::new(started.try_into().unwrap(), &mut random));
        }
        let index = random.below(live.len());
        let racer = &mut live[index];
        if let Some(event) = racer.events.pop() {
            racer.happen(event, &node, &mut random);
            if racer.was_repairable {
                expected.insert(racer.pod.uid());
            }
            continue;
        }
        let racer = live.swap_remove(index);
        if racer.stays && racer.is_repairable() {
            stay.push(racer);
            continue;
        }
        racer.clear(&node);
        ended.push_back(racer);
        if ended.len() > KEPT {
            ended.pop_front().unwrap().assert_untouched();
        }
        if early.is_none() && started > pods / 3 {
            early = Some((watch.memory(), watch.open_files()));
        }
    }
    for racer in &stay {
        wait_until("a pod that stays is redirected", || !racer.pod.rules().is_empty());
        assert!(racer.pod.is_redirected(), "{}", racer.pod.name());
    }
    ended.iter().for_each(Racer::assert_untouched);
    let (memory_before, files_before) = early.unwrap();
    wait_until("the files of ended sandboxes are closed", || {
        watch.open_files() <= files_before + OPEN_IN_A_PASS
    });
    let grown = watch.memory().saturating_sub(memory_before);
    assert!(watch.terminate().success());
    let log = watch.whole_log();
    let repaired: Vec<&Value> =
        log.iter().filter(|line| line["msg"] == REDIRECTED).map(|line| &line["uid"]).collect();
    println!(
        "{pods} pods, seed {seed}: {} could be repaired, {} were, {} stayed; memory grew by {grown} KiB",
        expected.len(),
        repaired.len(),
        stay.len()
    );
    let mut seen = BTreeSet::new();
    for uid in repaired {
        let uid = uid.as_str().unwrap();
        assert!(expected.contains(uid), "{uid} was never to be repaired");
        assert!(seen.insert(uid), "{uid} was repaired twice");
    }
    assert!(!stay.is_empty() && seen.len() > stay.len(), "the race repaired only pods that stay");
    assert!(grown <= GROWTH, "{grown} KiB");
}
