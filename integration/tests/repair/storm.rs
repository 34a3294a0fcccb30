//! `repair: delete` and `label` while the ConfigMap, the disk, the API server and both processes fail at random: no
//! healthy pod is deleted or labelled, and broken ones are, at most ten deletions a minute.

use crate::cluster::{Cluster, redirect};
use crate::node::{Node, Pod, WITHOUT_GYBE};
use crate::race::{Random, number};
use gybe_api_server::{Fault, FaultKind, Network, Request, Verb};
use gybe_integration::namespace::with_own_mounts;
use gybe_test_support::{Agent, wait_for_at_most, wait_until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

const INJECT: &str = "sidecar.istio.io/inject";
const MODE: &str = "sidecar.istio.io/interceptionMode";
const STATUS: &str = "sidecar.istio.io/status";
/// Excluded while pods are deleted or labelled.
const EXCLUDED: &str = "kept";
/// A pod may still be changed so long after it was redirected: its judgement may be two seconds old, and a request may
/// wait at the API server.
const IN_FLIGHT: Duration = Duration::from_secs(5);
/// Deletions that are requested within this time count together.
const MINUTE: Duration = Duration::from_secs(60);

/// How many pods a storm has.
struct Size {
    broken: usize,
    /// Of each kind, with namespaces of their own.
    healthy: usize,
    /// In the API and in libcni's cache alone.
    others: usize,
}

/// Why a pod is healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Health {
    Redirected,
    ExcludedNamespace,
    /// It had no annotation of the injector when its sandbox was made.
    NotInjected,
    /// Its mode was NONE when its sandbox was made.
    OptedOut,
    /// Its label forbids injection.
    Labelled,
    /// It has two sandboxes, and the second one is redirected.
    SecondSandbox,
}

const HEALTHY: [Health; 6] = [
    Health::Redirected,
    Health::ExcludedNamespace,
    Health::NotInjected,
    Health::OptedOut,
    Health::Labelled,
    Health::SecondSandbox,
];

struct Storm<'a> {
    cluster: &'a Cluster,
    random: Random,
    agent: Option<Agent>,
    repair: Option<Agent>,
    /// Why a pod that was broken is healthy, and since when.
    mended: Vec<(Pod, Instant)>,
    /// By name: the number of the first request that must not be about it.
    healthy: BTreeMap<String, usize>,
    kinds: Vec<(Health, Pod, Vec<Pod>)>,
    broken: Vec<Pod>,
    next: u32,
    /// The names of the pods that were deleted, and when the last request for that came.
    deleted: BTreeMap<String, Instant>,
    labelled: BTreeSet<String>,
    /// The number of requests that were looked at.
    checked: usize,
    actions: BTreeMap<&'static str, usize>,
}

/// The name of the pod that a request deletes or labels.
fn changed(request: &Request) -> Option<&str> {
    let (_, rest) = request.path.split_once("/pods/")?;
    match request.method.as_str() {
        "DELETE" => Some(rest),
        "PATCH" => rest.strip_suffix("/status"),
        _ => None,
    }
}

fn annotate(pod: &mut Value, key: &str, value: Option<&str>) {
    let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
    match value {
        Some(value) => drop(annotations.insert(key.to_owned(), json!(value))),
        None => drop(annotations.remove(key)),
    }
}

impl<'a> Storm<'a> {
    fn new(cluster: &'a Cluster, seed: u64, size: &Size) -> Self {
        let (agent, repair) = cluster.start();
        let mut storm = Self {
            cluster,
            random: Random::new(seed),
            agent: Some(agent),
            repair: Some(repair),
            mended: Vec::new(),
            healthy: BTreeMap::new(),
            kinds: Vec::new(),
            broken: Vec::new(),
            next: 1,
            deleted: BTreeMap::new(),
            labelled: BTreeSet::new(),
            checked: 0,
            actions: BTreeMap::new(),
        };
        for number in 0..size.others {
            storm.add_other(number);
        }
        for health in HEALTHY {
            (0..size.healthy).for_each(|_| storm.add_healthy(health));
        }
        (0..size.broken).for_each(|_| storm.add_broken());
        storm
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// A pod whose namespace does not exist any more, or not yet.
    fn add_other(&mut self, number: usize) {
        let name = format!("other-{number}");
        let pod = json!({
            "kind": "Pod",
            "metadata": { "namespace": "shop", "name": name, "uid": format!("other-uid-{number}"),
                "annotations": { STATUS: "{}" } },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "app" }, { "name": "istio-proxy" }] },
        });
        self.cluster.server.put_pod(pod);
        let arguments = [
            ["K8S_POD_NAMESPACE", "shop"],
            ["K8S_POD_NAME", &name],
            ["K8S_POD_UID", &format!("other-uid-{number}")],
        ];
        let info = json!({
            "kind": "cniCacheV1", "containerId": format!("container-{name}"), "ifName": "eth0",
            "netns": format!("/var/run/netns/{name}"), "cniArgs": arguments,
            "capabilityArgs": { "io.kubernetes.cri.pod-annotations": { STATUS: "{}" } },
            "result": { "ips": [{ "address": "10.245.0.9/24" }] },
            "config": WITHOUT_GYBE,
        });
        self.cluster.node.root.write(format!("var/lib/cni/results/pods-{name}-eth0"), info.to_string());
        self.healthy.insert(name, 0);
    }

    fn add_healthy(&mut self, health: Health) {
        let pod = Pod::new(self.number());
        self.healthy.insert(pod.name(), 0);
        let namespace = if health == Health::ExcludedNamespace { EXCLUDED } else { "shop" };
        let made = |pod: &mut Value| match health {
            Health::NotInjected => annotate(pod, STATUS, None),
            Health::OptedOut => annotate(pod, MODE, Some("NONE")),
            _ => {}
        };
        if health == Health::Redirected {
            redirect(&pod);
        }
        self.cluster.put(namespace, &pod, |pod| {
            made(pod);
            if health == Health::Labelled {
                pod["metadata"]["labels"][INJECT] = json!("false");
            }
        });
        let mut more = Vec::new();
        if health == Health::SecondSandbox {
            more.push(self.add_sandbox(&pod));
        }
        self.cluster.cached(namespace, &pod, &pod.name(), made);
        self.cluster.node.start(&pod);
        self.kinds.push((health, pod, more));
    }

    /// A second sandbox of the pod, with rules.
    fn add_sandbox(&mut self, pod: &Pod) -> Pod {
        let second = Pod::new(pod.number);
        redirect(&second);
        let id = format!("{}-again", pod.name());
        self.cluster.cached("shop", &second, &id, |_| ());
        symlink(second.netns.path(), self.cluster.node.root.join("run/netns").join(&id)).unwrap();
        self.cluster.node.process(500_000 + pod.number, &second.cgroup(), &second.netns);
        second
    }

    fn add_broken(&mut self) {
        let number = self.number();
        self.broken.push(self.cluster.broken("shop", number));
    }

    fn settings(&mut self) {
        let exclude = if self.random.percent(50) { "kube-system,kept" } else { "kube-system,kept,other" };
        match self.random.below(4) {
            0 => self.cluster.set(&[("repair", "off"), ("exclude_namespaces", "kube-system")]),
            1 => self.cluster.set(&[("repair", "label"), ("exclude_namespaces", exclude)]),
            2 => self.cluster.set(&[
                ("repair", "delete"),
                ("exclude_namespaces", exclude),
                ("log_level", "debug"),
            ]),
            _ => self.cluster.set(&[("repair", "delete"), ("exclude_namespaces", exclude)]),
        }
    }

    fn api_fault(&mut self) {
        let slow = Duration::from_millis(200 + 100 * self.random.below(30) as u64);
        let kind = [
            FaultKind::Slow(slow),
            FaultKind::Slow(slow),
            FaultKind::Silent,
            FaultKind::TooManyRequests(1),
            FaultKind::Fails(500),
            FaultKind::Fails(503),
            FaultKind::Disconnects,
        ][self.random.below(7)];
        let fault = Fault::always(kind);
        let fault = match self.random.below(5) {
            0 => fault.at(Verb::Delete),
            1 => fault.at(Verb::Patch),
            2 | 3 => fault.at(Verb::List),
            _ => fault,
        };
        self.cluster.server.add_fault(fault);
    }

    fn restart(&mut self, is_agent: bool) {
        let process = if is_agent { &mut self.agent } else { &mut self.repair };
        let mut process = process.take().unwrap();
        if self.random.percent(50) {
            process.stop(Signal::SIGKILL);
        } else {
            // SIGTERM waits for what runs.
            process.signal(Signal::SIGTERM);
            if wait_for_at_most(Duration::from_secs(20), || process.try_wait()).is_none() {
                panic!("it has not ended: {:?}", process.log().last());
            }
        }
        drop(process);
        match is_agent {
            true => self.agent = Some(self.cluster.start_agent()),
            false => self.repair = Some(self.cluster.start_repair()),
        }
    }

    fn pause(&mut self) {
        let process = if self.random.percent(50) { &self.agent } else { &self.repair };
        let process = process.as_ref().unwrap();
        process.signal(Signal::SIGSTOP);
        let time = Duration::from_millis(500 + 100 * self.random.below(30) as u64);
        let end = Instant::now() + time;
        wait_for_at_most(time, || (Instant::now() >= end).then_some(()));
        process.signal(Signal::SIGCONT);
    }

    /// Changes what the API has of a pod, after its sandbox was made.
    fn change_facts(&mut self) {
        let index = self.random.below(self.kinds.len());
        let (with, label) = (self.random.percent(50), self.random.percent(50));
        let (health, pod, _) = &self.kinds[index];
        let namespace = if *health == Health::ExcludedNamespace { EXCLUDED } else { "shop" };
        self.cluster.put(namespace, pod, |pod| match health {
            Health::Redirected | Health::SecondSandbox | Health::ExcludedNamespace => {
                annotate(pod, MODE, Some(if with { "NONE" } else { "TPROXY" }));
            }
            Health::NotInjected => annotate(pod, STATUS, with.then_some("{}")),
            Health::OptedOut => annotate(pod, MODE, Some(if with { "REDIRECT" } else { "NONE" })),
            Health::Labelled => {
                pod["metadata"]["labels"][INJECT] = json!(if label { "true" } else { "false" });
                if label {
                    pod["metadata"]["managedFields"] = json!([{
                        "manager": "kubectl-label", "operation": "Update", "time": "2026-01-02T03:14:05Z",
                        "fieldsV1": { "f:metadata": { "f:labels": { format!("f:{INJECT}"): {} } } },
                    }]);
                }
            }
        });
    }

    /// Redirects a broken pod, or gives it another sandbox that is redirected.
    fn mend(&mut self) {
        if self.broken.is_empty() {
            return;
        }
        let index = self.random.below(self.broken.len());
        let pod = self.broken.swap_remove(index);
        self.add_broken();
        if self.random.percent(50) {
            redirect(&pod);
            self.mended.push((pod, Instant::now()));
        } else {
            let second = self.add_sandbox(&pod);
            self.mended.push((pod, Instant::now()));
            self.mended.push((second, Instant::now()));
        }
    }

    fn act(&mut self) {
        let name = match self.random.below(20) {
            0..=4 => {
                self.settings();
                "settings"
            }
            5 => {
                self.cluster.fill_disk();
                "full disk"
            }
            6 | 7 => {
                self.cluster.free_disk();
                "free disk"
            }
            8 | 9 => {
                self.api_fault();
                "fault of the API"
            }
            10 | 11 => {
                self.cluster.server.clear_faults();
                self.cluster.server.set_network(Network::Open).unwrap();
                "no fault of the API"
            }
            12 => {
                let network =
                    [Network::Refusing, Network::Silent, Network::Unreachable][self.random.below(3)];
                self.cluster.server.set_network(network).unwrap();
                "fault of the network"
            }
            13 => {
                self.restart(true);
                "restart of the agent"
            }
            14 => {
                self.restart(false);
                "restart of the repair"
            }
            15 => {
                self.pause();
                "stopped process"
            }
            16 | 17 => {
                self.change_facts();
                "changed labels and annotations"
            }
            _ => {
                self.mend();
                "mended pod"
            }
        };
        *self.actions.entry(name).or_default() += 1;
    }

    /// Looks at the requests since the last time: which pods were deleted and labelled.
    fn check(&mut self) {
        let now = Instant::now();
        let from = self.checked;
        let received = Cell::new(from);
        let (changes, deleted) = (RefCell::new(Vec::new()), RefCell::new(BTreeMap::new()));
        self.cluster.server.wait_for_requests(Duration::ZERO, |requests| {
            for (index, request) in requests.iter().enumerate() {
                let Some(name) = changed(request) else { continue };
                if index >= from {
                    changes.borrow_mut().push((index, request.method.clone(), name.to_owned()));
                }
                // The server may refuse a deletion, also one of an earlier look, and the agent may request it again.
                let is_refused = request.code.is_some_and(|code| (400..500).contains(&code));
                if request.method == "DELETE" && !is_refused {
                    deleted.borrow_mut().insert(name.to_owned(), request.received);
                }
            }
            received.set(requests.len());
            true
        });
        self.checked = received.get();
        self.deleted = deleted.into_inner();
        let is_healthy = |(index, _, name): &&(usize, String, String)| {
            self.healthy.get(name).is_some_and(|from| index >= from)
        };
        let changes = changes.into_inner();
        let violations: Vec<_> = changes.iter().filter(is_healthy).collect();
        let log = || self.agent.as_ref().map(Agent::log);
        assert!(violations.is_empty(), "healthy pods: {violations:#?}\n{:#?}", log());
        let labels = changes.into_iter().filter(|(_, method, _)| method != "DELETE");
        self.labelled.extend(labels.map(|(_, _, name)| name));
        let deleted = &self.deleted;
        let recent = deleted.values().filter(|at| now.duration_since(**at) < MINUTE - Duration::from_secs(5));
        let recent = recent.count();
        assert!(recent <= 10, "{recent} deletions in less than a minute: {deleted:?}");
        // A pod that was mended long enough ago is healthy from now on.
        for (pod, _) in self.mended.iter().filter(|(_, at)| now.duration_since(*at) >= IN_FLIGHT) {
            self.healthy.entry(pod.name()).or_insert(self.checked);
        }
        self.replace_deleted();
    }

    /// Does what the kubelet does for pods that are deleted, and adds others.
    fn replace_deleted(&mut self) {
        let names: BTreeSet<String> = self.cluster.names().into_iter().collect();
        let (left, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.broken).into_iter().partition(|pod| names.contains(&pod.name()));
        self.broken = left;
        for pod in gone {
            clear(&self.cluster.node, &pod);
            self.add_broken();
        }
    }

    /// The counts of the storm, which began with so many healthy pods.
    fn report(&self, healthy: usize) -> String {
        let mended = self.healthy.len() - healthy;
        let (deleted, labelled) = (self.deleted.len(), self.labelled.len());
        format!(
            "of {healthy} healthy pods and {mended} that were mended, 0 were deleted or labelled; of the broken ones, \
             deletions of {deleted} were requested, and labels of {labelled}; {:?}",
            self.actions
        )
    }

    /// Waits until a broken pod is deleted.
    fn wait_for_deletion(&mut self) {
        self.cluster.set(&[("repair", "delete"), ("exclude_namespaces", "kube-system,kept")]);
        let deleted = wait_for_at_most(MINUTE * 2, || (self.cluster.deletions() > 0).then_some(()));
        assert!(deleted.is_some(), "no broken pod is deleted");
        self.check();
    }

    /// Ends all faults, and waits until every broken pod is labelled.
    fn calm(&mut self) {
        (self.agent, self.repair) = (None, None);
        self.cluster.server.clear_faults();
        self.cluster.server.set_network(Network::Open).unwrap();
        self.cluster.free_disk();
        self.cluster.set(&[("repair", "label"), ("exclude_namespaces", "kube-system,kept")]);
        let agent = self.cluster.start_agent();
        wait_until("readiness", || agent.is_ready());
        let deletions = self.cluster.deletions();
        (self.agent, self.repair) = (Some(agent), Some(self.cluster.start_repair()));
        // A pod of `self.broken` that was deleted since the last check is no longer in the API, and gets no label.
        let broken: BTreeSet<_> = self.broken.iter().map(Pod::name).collect();
        let is_unlabelled = |pod: &&Value| {
            let metadata = &pod["metadata"];
            metadata["labels"]["cni.istio.io/uninitialized"].is_null()
                && broken.contains(metadata["name"].as_str().unwrap())
        };
        let unlabelled = || self.cluster.server.objects("Pod").iter().filter(is_unlabelled).count();
        let all = wait_for_at_most(MINUTE * 4, || (unlabelled() == 0).then_some(()));
        assert!(all.is_some(), "{} are not labelled", unlabelled());
        assert_eq!(self.cluster.deletions(), deletions, "repair: label deletes no pod");
        self.check();
    }
}

fn clear(node: &Node, pod: &Pod) {
    node.end_process(1000 + pod.number);
    let _ = fs::remove_file(node.result(pod, "eth0"));
    let _ = fs::remove_file(node.netns_name(pod));
}

/// `make -C integration repair-storm MINUTES=60 SEED=1` runs it for longer, with more pods.
#[test]
fn no_healthy_pod_is_deleted_or_labelled_whatever_fails() {
    let (minutes, seed) = (number("GYBE_MINUTES", 0), number("GYBE_SEED", 1));
    let (time, size) = match minutes {
        0 => (Duration::from_secs(15), Size { broken: 12, healthy: 2, others: 100 }),
        minutes => {
            (MINUTE * u32::try_from(minutes).unwrap(), Size { broken: 100, healthy: 20, others: 5_000 })
        }
    };
    with_own_mounts(|| {
        let cluster = Cluster::new("storm");
        cluster.set(&[("repair", "off")]);
        let mut storm = Storm::new(&cluster, seed as u64, &size);
        let healthy = storm.healthy.len();
        storm.wait_for_deletion();
        let start = Instant::now();
        let (mut checked, mut reported) = (start, start);
        while start.elapsed() < time {
            storm.act();
            let pause = Duration::from_millis(if minutes == 0 {
                300
            } else {
                200 + storm.random.below(3_000) as u64
            });
            let end = Instant::now() + pause;
            wait_for_at_most(pause, || (Instant::now() >= end).then_some(()));
            if checked.elapsed() >= Duration::from_secs(1) {
                storm.check();
                checked = Instant::now();
            }
            if minutes > 0 && reported.elapsed() >= MINUTE {
                println!("seed {seed}, {} s: {}", start.elapsed().as_secs(), storm.report(healthy));
                reported = Instant::now();
            }
        }
        storm.calm();
        println!("the end: {}", storm.report(healthy));
    });
}
