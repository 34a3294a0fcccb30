//! Pods that run are enrolled into ambient mode and taken out, with the stand-in for ztunnel, while clients connect all
//! the time.

use crate::cluster::Cluster;
use crate::connections::{BACKENDS, Linked};
use crate::node::Pod;
use gybe_api_server::Verb;
use gybe_demo::testnet::namespace::Namespace;
use gybe_installer::sandboxes::probe_exemption::ExemptedPods;
use gybe_integration::namespace::with_own_mounts;
use gybe_integration::programs::ours;
use gybe_integration::ztunnel::{Fault, Mesh, Observed, Ztunnel};
use gybe_test_support::{Agent, PATIENCE, wait_for, wait_for_at_most, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

pub(crate) const MODE: &str = "istio.io/dataplane-mode";
const PORT: u16 = 8080;
/// The addresses of `Linked`.
pub(crate) const POD: &str = "10.244.0.3";
pub(crate) const PEER: &str = "10.244.0.77";

/// A part of the ids of the rules that lead to ztunnel.
pub(crate) const CAPTURES: &str = "bound-to-ztunnel";

/// A settled sandbox is judged again within a minute.
pub(crate) const A_MINUTE: Duration = Duration::from_secs(80);

/// A node with ambient mode, its agent, its container `repair` and a ztunnel.
pub(crate) struct AmbientNode {
    // Dropped before the directories in which they write.
    ztunnel: Option<Ztunnel>,
    agent: Option<Agent>,
    repair: Agent,
    pub(crate) cluster: Cluster,
}

impl AmbientNode {
    fn start(test: &str, repair: &str) -> Self {
        Self::with_backend(test, repair, "nft")
    }

    pub(crate) fn with_backend(test: &str, repair: &str, backend: &str) -> Self {
        let mut cluster = Cluster::new(&format!("ambient-{test}"));
        cluster.server.permit(Verb::Watch, "namespaces");
        let socket = cluster.node.root.join("ztunnel/ztunnel.sock");
        cluster.environment = vec![
            ("AMBIENT_ENABLED", "true".to_owned()),
            ("ZTUNNEL_UDS_ADDRESS", socket.display().to_string()),
        ];
        cluster.set(&[("repair", repair), ("backend", backend), ("exclude_namespaces", "kube-system")]);
        put_namespace(&cluster, "plain", &json!({}));
        put_namespace(&cluster, "shop", &json!({ MODE: "ambient" }));
        let ztunnel = Some(start_ztunnel(&socket));
        // Not ready as an unprivileged user with an iptables backend: a sidecar's rules match owners, which is refused there.
        let (agent, repair) = (cluster.start_agent(), cluster.start_repair());
        Self { ztunnel, agent: Some(agent), repair, cluster }
    }

    pub(crate) fn ztunnel(&self) -> &Ztunnel {
        self.ztunnel.as_ref().unwrap()
    }

    pub(crate) fn observe(&self, what: &str, holds: impl Fn(&Observed) -> bool) -> Observed {
        wait_for(what, || Some(self.ztunnel().observed()).filter(|observed| holds(observed)))
    }

    pub(crate) fn restart_agent(&mut self) {
        drop(self.agent.take());
        self.agent = Some(self.cluster.start_agent());
    }

    fn restart_ztunnel(&mut self) {
        drop(self.ztunnel.take());
        self.ztunnel = Some(start_ztunnel(&self.cluster.node.root.join("ztunnel/ztunnel.sock")));
    }

    /// Puts the pod into the API with these labels.
    pub(crate) fn label(&self, namespace: &str, pod: &Pod, labels: &Value) {
        self.cluster.put(namespace, pod, |manifest| make_plain(manifest, labels));
    }

    /// A pod without a sidecar that runs, and that no plugin of Gybe has seen.
    pub(crate) fn run(&self, namespace: &str, pod: &Pod) {
        self.label(namespace, pod, &json!({}));
        self.cluster.cached(namespace, pod, &pod.name(), |manifest| make_plain(manifest, &json!({})));
        self.cluster.node.start(pod);
    }

    fn wait_until_enrolled(&self, pod: &Pod) {
        self.observe("ztunnel serves the pod", |observed| observed.proxies.contains(&pod.uid()));
        wait_until("the pod's rules", || inspect(pod).contains(CAPTURES));
    }

    /// The uids whose probes are exempt.
    fn exempted(&self) -> Vec<String> {
        self.kept_pods().pods.into_keys().collect()
    }

    /// The uids of the pods that are due.
    fn due(&self) -> Vec<String> {
        self.kept_pods().due.into_iter().collect()
    }

    fn kept_pods(&self) -> ExemptedPods {
        ExemptedPods::kept_in(&self.cluster.node.root.join("run/gybe")).unwrap().unwrap()
    }
}

pub(crate) fn inspect(pod: &Pod) -> String {
    let path = pod.netns.path().display().to_string();
    ours("gybe", &["inspect", "--netns", &path], "").unwrap().out
}

fn has_no_rules(pod: &Pod) -> bool {
    inspect(pod).starts_with("no rules of Gybe")
}

fn start_ztunnel(socket: &Path) -> Ztunnel {
    Ztunnel::start(socket, Fault::default(), Mesh::default()).unwrap()
}

pub(crate) fn put_namespace(cluster: &Cluster, name: &str, labels: &Value) {
    let metadata = json!({ "name": name, "labels": labels });
    cluster.server.put(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata })).unwrap();
}

fn make_plain(manifest: &mut Value, labels: &Value) {
    manifest["metadata"]["labels"] = labels.clone();
    manifest["metadata"]["annotations"] = json!({ "example.org/note": "none" });
    manifest["spec"] = json!({
        "nodeName": "node-1", "serviceAccountName": "default", "containers": [{ "name": "app" }],
    });
}

/// Sends each client its own address, and then what the client sends. Ends after the clients that connect all the time.
pub(crate) fn serve<'scope>(
    scope: &'scope Scope<'scope, '_>,
    at: &'scope Namespace,
    clients: &'scope Clients,
) {
    let listener = at.run(|| TcpListener::bind(("0.0.0.0", PORT)).unwrap()).unwrap();
    listener.set_nonblocking(true).unwrap();
    scope.spawn(move || {
        while !clients.end.load(Ordering::Acquire) || clients.running.load(Ordering::Acquire) > 0 {
            let Ok((mut client, from)) = listener.accept() else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            client.set_nonblocking(false).unwrap();
            scope.spawn(move || {
                let _closed = client.write_all(format!("{}\n", from.ip()).as_bytes());
                let _closed = std::io::copy(&mut client.try_clone().unwrap(), &mut client);
            });
        }
    });
}

/// Connects from a namespace; returns the connection and the address that the server sees.
pub(crate) fn connect(from: &Namespace, to: &str) -> std::io::Result<(TcpStream, String)> {
    let to = SocketAddr::new(to.parse().unwrap(), PORT);
    let mut stream = from.run(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut line, mut byte) = (Vec::new(), [0]);
    while byte != *b"\n" {
        stream.read_exact(&mut byte)?;
        line.extend(byte);
    }
    Ok((stream, String::from_utf8(line).unwrap().trim().to_owned()))
}

pub(crate) fn echoes(mut stream: &TcpStream) -> bool {
    let mut byte = [0];
    stream.write_all(b"x").and_then(|()| stream.read_exact(&mut byte)).is_ok_and(|()| byte == *b"x")
}

/// Clients that connect all the time, to the pod and from it.
pub(crate) struct Clients {
    end: AtomicBool,
    running: AtomicUsize,
    /// The connections that were answered as they should be.
    pub(crate) answered: AtomicUsize,
    pub(crate) failures: Mutex<Vec<String>>,
}

impl Clients {
    pub(crate) fn new() -> Self {
        Self {
            end: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
            failures: Mutex::default(),
        }
    }

    pub(crate) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, linked: &'scope Linked) {
        let pod = &linked.pod.netns;
        serve(scope, pod, self);
        serve(scope, &linked.peer, self);
        for (from, to, source) in [(&linked.peer, POD, PEER), (pod, PEER, POD)] {
            self.running.fetch_add(1, Ordering::AcqRel);
            scope.spawn(move || {
                while !self.end.load(Ordering::Acquire) {
                    match connect(from, to) {
                        Ok((_, seen)) if seen == source => {
                            self.answered.fetch_add(1, Ordering::AcqRel);
                        }
                        other => self.failures.lock().unwrap().push(format!("to {to}: {other:?}")),
                    }
                    thread::sleep(Duration::from_millis(2));
                }
                self.running.fetch_sub(1, Ordering::AcqRel);
            });
        }
    }
}

/// Ends the clients also when a test fails: otherwise its scope waits for them.
pub(crate) struct EndOnDrop<'a>(pub(crate) &'a Clients);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end.store(true, Ordering::Release);
    }
}

#[test]
fn a_pod_that_gets_the_label_is_enrolled_and_one_that_loses_it_is_taken_out_without_a_refused_connection() {
    for backend in BACKENDS {
        with_own_mounts(|| change_the_label(backend));
    }
}

fn change_the_label(backend: &str) {
    let node = AmbientNode::with_backend(&format!("label-{backend}"), "repair", backend);
    let (linked, clients) = (Linked::without_connections(), Clients::new());
    let (pod, peer) = (&linked.pod, &linked.peer);
    node.run("plain", pod);
    thread::scope(|scope| {
        let ends = EndOnDrop(&clients);
        clients.start(scope, &linked);
        let before = connect(peer, POD).unwrap().0;
        assert!(pod.rules().is_empty());
        node.label("plain", pod, &json!({ MODE: "ambient" }));
        node.wait_until_enrolled(pod);
        let forwarded = node.ztunnel().observed().forwarded.len();
        let inward = connect(peer, POD).unwrap().0;
        let outward = connect(&pod.netns, PEER).unwrap().0;
        let lines = node.ztunnel().observed().forwarded.split_off(forwarded).join("\n");
        for line in [format!("15006 {PEER} > {POD}:{PORT}"), format!("15001 {POD} > {PEER}:{PORT}")] {
            assert!(lines.contains(&line), "{line}: {lines}");
        }
        assert!([&before, &inward, &outward].into_iter().all(echoes));
        wait_until("the probes are exempt", || node.exempted() == [pod.uid()]);

        node.label("plain", pod, &json!({}));
        wait_until("new connections are not captured", || !inspect(pod).contains(CAPTURES));
        let forwarded = node.ztunnel().observed().forwarded.len();
        let direct = [connect(peer, POD).unwrap(), connect(&pod.netns, PEER).unwrap()];
        assert_eq!(direct.each_ref().map(|it| it.1.as_str()), [PEER, POD]);
        // The clients' last captured connections may be logged now.
        let late = node.ztunnel().observed().forwarded.len() - forwarded;
        assert!(late <= 2, "{late} connections were captured");
        assert!([&before, &inward, &outward].into_iter().all(echoes), "open connections go on");
        assert!(node.ztunnel().observed().proxies.contains(&pod.uid()));
        drop((inward, outward));
        node.observe("ztunnel has forgotten the pod", |observed| observed.proxies.is_empty());
        wait_until("no rules", || has_no_rules(pod));
        assert_eq!(pod.sh("ip rule show; ip route show table all").matches("lookup 100").count(), 0);
        wait_until("no exempt probes", || node.exempted().is_empty());
        assert!(echoes(&before) && direct.iter().all(|(stream, _)| echoes(stream)));
        drop(ends);
    });
    assert_eq!(clients.failures.into_inner().unwrap(), Vec::<String>::new(), "{backend}");
}

#[test]
fn open_connections_of_a_pod_that_leaves_last_for_half_a_minute_and_lost_rules_are_written_again() {
    with_own_mounts(|| {
        let node = AmbientNode::start("bound", "repair");
        let (linked, clients) = (Linked::without_connections(), Clients::new());
        let (pod, damaged) = (&linked.pod, Pod::new(2));
        node.run("shop", pod);
        node.run("shop", &damaged);
        node.wait_until_enrolled(pod);
        node.wait_until_enrolled(&damaged);
        let flushed = damaged.rules();
        damaged.sh("nft flush ruleset; ip rule delete lookup 100");
        thread::scope(|scope| {
            let ends = EndOnDrop(&clients);
            serve(scope, &pod.netns, &clients);
            let captured = connect(&linked.peer, POD).unwrap().0;
            node.label("shop", pod, &json!({ MODE: "none" }));
            wait_until("new connections are not captured", || !inspect(pod).contains(CAPTURES));
            assert!(echoes(&captured));
            let left = wait_for_at_most(A_MINUTE, || has_no_rules(pod).then_some(()));
            assert!(left.is_some() && !echoes(&captured), "{}", pod.rules());
            drop(ends);
        });
        let repaired = || damaged.rules() == flushed && damaged.sh("ip rule show").contains("lookup 100");
        assert!(wait_for_at_most(A_MINUTE, || repaired().then_some(())).is_some(), "{}", damaged.rules());
    });
}

#[test]
fn a_label_of_the_namespace_enrols_its_pods_and_touches_no_sidecar() {
    with_own_mounts(|| {
        let node = AmbientNode::start("namespace", "repair");
        let pods: Vec<Pod> = (1..=3).map(Pod::new).collect();
        pods.iter().for_each(|pod| node.run("plain", pod));
        let (sidecar, opted_out) = (node.cluster.broken("plain", 4), Pod::new(5));
        node.run("plain", &opted_out);
        node.label("plain", &opted_out, &json!({ MODE: "none" }));
        wait_until("the sidecar's rules", || !sidecar.rules().is_empty());
        let before = sidecar.rules();
        put_namespace(&node.cluster, "plain", &json!({ MODE: "ambient" }));
        pods.iter().for_each(|pod| node.wait_until_enrolled(pod));
        put_namespace(&node.cluster, "plain", &json!({}));
        wait_until("no rules", || pods.iter().all(|pod| pod.rules().is_empty()));
        assert_eq!((sidecar.rules(), opted_out.rules()), (before, String::new()));
        let observed = node.observe("no pods", |observed| observed.proxies.is_empty());
        assert!(!observed.requests.iter().any(|it| it.contains(&sidecar.uid())), "{observed:?}");
    });
}

#[test]
fn after_restarts_of_the_agent_and_then_of_ztunnel_a_pod_is_served_again() {
    with_own_mounts(|| {
        let mut node = AmbientNode::start("restarts", "repair");
        let (linked, clients) = (Linked::without_connections(), Clients::new());
        let (pod, added) = (&linked.pod, format!("add {}", linked.pod.uid()));
        node.run("shop", pod);
        node.wait_until_enrolled(pod);
        let rules = pod.rules();
        node.restart_agent();
        wait_until("the new agent holds the namespace", || {
            node.ztunnel().observed().requests.iter().filter(|it| **it == added).count() == 2
        });
        node.restart_ztunnel();
        let observed = node.observe("ztunnel is ready", |observed| observed.is_ready);
        assert!(observed.requests.contains(&added), "{observed:?}");
        thread::scope(|scope| {
            let ends = EndOnDrop(&clients);
            serve(scope, &pod.netns, &clients);
            assert_eq!(connect(&linked.peer, POD).unwrap().1, PEER);
            drop(ends);
        });
        assert_eq!(node.ztunnel().observed().forwarded, [format!("15006 {PEER} > {POD}:{PORT}")]);
        assert_eq!(pod.rules(), rules);
    });
}

#[test]
fn a_pod_that_ztunnel_refuses_gets_no_rules_until_it_is_accepted_and_is_not_tried_all_the_time() {
    with_own_mounts(|| {
        let node = AmbientNode::start("refused", "repair");
        let (pod, excluded) = (Pod::new(1), Pod::new(2));
        // The selectors select it.
        put_namespace(&node.cluster, "kube-system", &json!({ MODE: "ambient" }));
        node.label("kube-system", &excluded, &json!({}));
        let refuse = Some("no room".to_owned());
        node.ztunnel().set_fault(Fault { refuse, ..Fault::default() });
        node.run("shop", &pod);
        let line = node.repair.wait_for_message("gybe repair: cannot enrol a running pod");
        assert!(line["why"].as_str().unwrap().contains("no room"), "{line}");
        assert_eq!(pod.rules(), "");
        let agent = node.agent.as_ref().unwrap();
        let refused = || agent.metric("gybe_ztunnel_refusals_total");
        let (before, start) = (refused(), Instant::now());
        wait_until("two more attempts", || refused() >= before + 2.0);
        // The shortest pause between the two; the one before may have been over.
        assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
        // Between two attempts.
        wait_until("the pod alone is due", || node.due() == [pod.uid()]);
        node.ztunnel().set_fault(Fault::default());
        node.wait_until_enrolled(&pod);
    });
}

#[test]
fn a_pod_whose_rules_come_after_those_of_another_owner_is_reported_and_stays_served() {
    with_own_mounts(|| {
        let node = AmbientNode::start("overridden", "repair");
        let pod = Pod::new(1);
        let chain = "type nat hook output priority -150; tcp dport 9 redirect to :9999;";
        pod.sh(&format!("nft 'table ip other {{ chain output {{ {chain} }}; }}'"));
        node.run("shop", &pod);
        let line = node.repair.wait_for_message("gybe repair: cannot enrol a running pod");
        assert!(line["why"].as_str().unwrap().contains("it is not redirected"), "{line}");
        assert!(inspect(&pod).contains(CAPTURES), "{}", inspect(&pod));
        node.repair.wait_for_message("gybe repair: a pod is not redirected");
        assert!(node.ztunnel().observed().proxies.contains(&pod.uid()), "without it connections are refused");
    });
}

#[test]
fn a_label_deletes_no_pod_and_enrols_none_where_pods_are_deleted_instead_of_repaired() {
    with_own_mounts(|| {
        let node = AmbientNode::start("delete", "delete");
        let pod = Pod::new(1);
        node.run("plain", &pod);
        node.label("plain", &pod, &json!({ MODE: "ambient" }));
        let line = node.repair.wait_for_message("a running pod is ambient and not enrolled");
        assert_eq!(line["action"], json!("enrol"), "{line}");
        assert!(node.cluster.has(&pod) && pod.rules().is_empty());
        assert_eq!(node.cluster.deletions(), 0);
    });
}
