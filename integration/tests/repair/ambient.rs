//! Pods that run are enrolled into ambient mode and taken out, with the stand-in for ztunnel, while clients connect all
//! the time.

use crate::ambient_node::{
    AmbientNode, CAPTURES, MODE, REDIRECTION, has_no_rules, inspect, make_plain, put_namespace, socket,
    wait_for_rules,
};
use crate::clients::{Clients, EndOnDrop, PEER, POD, PORT, connect, echoes, with_address_seen};
use crate::connections::{BACKENDS, Linked};
use crate::node::Pod;
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::namespace::with_own_mounts;
use gybe_integration::ztunnel::{Fault, HBONE, Mesh, Observed, Ztunnel};
use gybe_test_support::{PATIENCE, TestDir, wait_for, wait_for_at_most, wait_until};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// Whether conntrack takes up connections that it does not know.
const LOOSE: &str = "cat /proc/sys/net/netfilter/nf_conntrack_tcp_loose";

/// A settled sandbox is judged again within a minute.
pub(crate) const A_MINUTE: Duration = Duration::from_secs(80);

impl AmbientNode<Ztunnel> {
    fn start(test: &str, repair: &str) -> Self {
        Self::with_backend(test, repair, "nft")
    }

    pub(crate) fn with_backend(test: &str, repair: &str, backend: &str) -> Self {
        Self::with_ztunnel(test, repair, backend, start_ztunnel)
    }

    pub(crate) fn observe(&self, what: &str, holds: impl Fn(&Observed) -> bool) -> Observed {
        wait_for(what, || Some(self.ztunnel().observed()).filter(|observed| holds(observed)))
    }

    /// The requests that ztunnel has got.
    fn requests(&self) -> Vec<String> {
        self.ztunnel().observed().requests
    }

    fn restart_ztunnel(&mut self) {
        drop(self.ztunnel.take());
        self.ztunnel = Some(start_ztunnel(&self.cluster.node.root));
    }

    fn wait_until_enrolled(&self, pod: &Pod) {
        self.observe("ztunnel serves the pod", |observed| observed.proxies.contains(&pod.uid()));
        wait_for_rules(pod);
    }
}

fn start_ztunnel(root: &TestDir) -> Ztunnel {
    Ztunnel::start(&socket(root), Fault::default(), Mesh::default()).unwrap()
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
        clients.connect_both_ways(scope, &pod.netns, peer);
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
        assert_eq!(pod.sh(LOOSE), "0\n");
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
        // The agent removes the routing and the setting after the rules, one after the other.
        let routing = "for family in -4 -6; do ip $family rule show; ip $family route show table all; done";
        wait_until("neither rule nor route of table 100", || {
            let routing = pod.sh(routing);
            !routing.contains("lookup 100") && !routing.contains("table 100")
        });
        wait_until("the setting of a new namespace", || pod.sh(LOOSE) == "1\n");
        wait_until("no exempt probes", || node.exempted().is_empty());
        assert!(echoes(&before) && direct.iter().all(|(stream, _)| echoes(stream)));
        drop(ends);
    });
    assert_eq!(clients.into_failures().1, Vec::<String>::new(), "{backend}");
}

/// After how long the slower one of two clients learns that the pod has lost its annotation.
const LATE: Duration = Duration::from_secs(13);

#[test]
fn a_pod_that_requires_mutual_tls_leaves_without_a_refused_connection_in_either_form() {
    with_own_mounts(|| {
        let strict = Mesh { is_strict: true, ..Mesh::default() };
        let start = |root: &TestDir| Ztunnel::start(&socket(root), Fault::default(), strict).unwrap();
        let node = AmbientNode::with_ztunnel("strict", "repair", "nft", start);
        let (linked, clients, removed) = (Linked::without_connections(), Clients::new(), OnceLock::new());
        let (pod, peer) = (&linked.pod, &linked.peer);
        node.run("shop", pod);
        let is_annotated = || node.annotation(pod).is_some();
        wait_until("the annotation", is_annotated);
        // As a proxy that learns of the annotation after this time.
        let connect_after = |time| match is_annotated() || removed.get_or_init(Instant::now).elapsed() < time
        {
            true => connect_by_hbone(peer),
            false => connect(peer, POD),
        };
        thread::scope(|scope| {
            let ends = EndOnDrop(&clients);
            clients.serve(scope, &pod.netns);
            assert!(connect(peer, POD).is_err(), "plain text is refused");
            for time in [Duration::ZERO, LATE] {
                clients.repeat(scope, PEER, move || connect_after(time));
            }
            clients.wait_for_more(100);
            node.label("shop", pod, &json!({ MODE: "none" }));
            wait_until("no annotation", || !is_annotated());
            assert!(!inspect(pod).contains(CAPTURES), "{}", inspect(pod));
            node.observe("ztunnel has forgotten the pod", |observed| observed.proxies.is_empty());
            wait_until("no rules", || has_no_rules(pod));
            clients.wait_for_more(100);
            drop(ends);
        });
        assert_eq!(clients.into_failures().1, Vec::<String>::new());
    });
}

/// Connects to the pod as a ztunnel does that knows it as a part of the mesh.
fn connect_by_hbone(from: &Namespace) -> io::Result<(TcpStream, String)> {
    let to = SocketAddr::new(POD.parse().unwrap(), HBONE);
    let connect = || {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        writeln!(stream, "CONNECT {POD}:{PORT}")?;
        with_address_seen(stream)
    };
    from.run(connect).unwrap()
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
            clients.serve(scope, &pod.netns);
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
            clients.serve(scope, &pod.netns);
            assert_eq!(connect(&linked.peer, POD).unwrap().1, PEER);
            drop(ends);
        });
        assert_eq!(node.ztunnel().observed().forwarded, [format!("15006 {PEER} > {POD}:{PORT}")]);
        assert_eq!(pod.rules(), rules);
    });
}

#[test]
fn a_pod_in_which_ztunnel_does_not_listen_any_more_is_served_again_within_a_minute_and_no_other_is_touched() {
    with_own_mounts(|| {
        let mut node = AmbientNode::start("listeners", "repair");
        let (linked, clients, silent) = (Linked::without_connections(), Clients::new(), Pod::new(2));
        let pod = &linked.pod;
        for pod in [pod, &silent] {
            node.run("shop", pod);
            node.wait_until_enrolled(pod);
        }
        let listens = || silent.netns.run(|| TcpStream::connect(("127.0.0.1", 15008)).is_ok()).unwrap();
        thread::scope(|scope| {
            let ends = EndOnDrop(&clients);
            clients.serve(scope, &pod.netns);
            let captured = connect(&linked.peer, POD).unwrap().0;
            let rules = silent.rules();
            node.ztunnel().stop_listening(&silent.uid());
            wait_until("nothing listens", || !listens());
            assert!(
                wait_for_at_most(A_MINUTE, || listens().then_some(())).is_some(),
                "{:?}",
                node.requests()
            );
            assert_eq!((silent.rules(), echoes(&captured)), (rules, true));
            drop(ends);
        });
        let requests = node.requests();
        let of = |pod: &Pod| {
            requests
                .iter()
                .filter(|it| !it.starts_with("keep") && it.ends_with(&pod.uid()))
                .cloned()
                .collect::<Vec<_>>()
        };
        let (add, del) = (|pod: &Pod| format!("add {}", pod.uid()), format!("del {}", silent.uid()));
        assert_eq!((of(pod), of(&silent)), (vec![add(pod)], vec![add(&silent), del, add(&silent)]));
        let line = node.repair.wait_for_message("ztunnel did not listen in a running pod, and does so again");
        assert_eq!(line["ports"], json!([15001, 15006, 15008]), "{line}");
        let silent_ports = || {
            let verified = node.cluster.node.gybe(&["verify", "--all", "--json"]).out;
            let verified: Value = serde_json::from_str(&verified).unwrap();
            let sandboxes = verified["sandboxes"].as_array().unwrap().iter();
            sandboxes.map(|one| one["proxy_silent_on"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(silent_ports(), [json!([]), json!([])]);
        drop(node.ztunnel.take());
        // A child of another test may have copies of the listeners until its execve(2).
        wait_until("all ports are silent", || {
            silent_ports() == [json!([15001, 15006, 15008]), json!([15001, 15006, 15008])]
        });
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
fn a_pod_whose_rules_come_after_those_of_another_owner_is_reported_and_stays_served_and_due_until_they_are_removed()
 {
    with_own_mounts(|| {
        let node = AmbientNode::start("overridden", "repair");
        let pod = Pod::new(1);
        let chain = "type nat hook output priority -150; tcp dport 9 redirect to :9999;";
        pod.sh(&format!("nft 'table ip other {{ chain output {{ {chain} }}; }}'"));
        node.run("shop", &pod);
        let line = node.repair.wait_for_message("gybe repair: cannot enrol a running pod");
        assert!(line["why"].as_str().unwrap().contains("it is not redirected"), "{line}");
        assert!(inspect(&pod).contains(CAPTURES), "{}", inspect(&pod));
        node.repair.wait_for_message("ztunnel serves the pod, and it is not certainly redirected");
        assert!(node.ztunnel().observed().proxies.contains(&pod.uid()), "without it connections are refused");
        assert_eq!(node.due(), [pod.uid()]);
        pod.sh("nft delete table ip other");
        wait_until("it is enrolled", || node.due().is_empty());
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

#[test]
fn a_pod_without_label_and_rules_keeps_the_annotation_until_gybe_repair_runs_where_pods_are_not_repaired() {
    with_own_mounts(|| {
        let mut node = AmbientNode::start("by-hand", "delete");
        let pod = Pod::new(1);
        drop(node.agent.take());
        node.run("plain", &pod);
        node.cluster.put("plain", &pod, |manifest| {
            make_plain(manifest, &json!({}));
            manifest["metadata"]["annotations"][REDIRECTION] = json!("enabled");
        });
        node.restart_agent();
        node.repair.wait_for_message("a running pod is no longer ambient, and is left as it is");
        assert_eq!(node.annotation(&pod), Some(json!("enabled")));
        let ran = node.cluster.node.gybe(&["repair"]);
        assert!(ran.out.contains("left ambient mode: it is not ambient any more"), "{}", ran.out);
        wait_until("no annotation", || node.annotation(&pod).is_none());
    });
}
