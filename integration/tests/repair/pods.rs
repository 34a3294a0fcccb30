//! Which pods are repaired, and which are left alone.

use crate::node::{Node, Pod, REDIRECTED, open_files};
use gybe_installer::sandboxes::PolicySources;
use gybe_installer::sandboxes::repair::{RepairNode, RepairPass};
use gybe_test_support::wait_until;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::time::Instant;

/// As istio-cni writes them with iptables, in short.
const ISTIO_CHAINS: &str = "iptables-nft -t nat -N ISTIO_OUTPUT; iptables-nft -t nat -A OUTPUT -p tcp -j ISTIO_OUTPUT; \
    iptables-nft -t nat -A ISTIO_OUTPUT -d 192.0.2.1 -j RETURN";
const ISTIO_TABLE: &str =
    "nft 'table inet istio-proxy-nat { chain output { type nat hook output priority -100; }; }'";

fn by_name<'a>(sandboxes: &'a [Value], pod: &Pod) -> &'a Value {
    let found = sandboxes.iter().find(|one| one["name"] == json!(pod.name()));
    found.unwrap_or_else(|| panic!("{}: {sandboxes:?}", pod.name()))
}

#[test]
fn pods_that_started_without_gybe_are_redirected_and_no_other_pod_is_touched() {
    let node = Node::new("all", "auto");
    let unredirected: Vec<Pod> = (0..30).map(|number| node.unredirected(number)).collect();
    let mut untouched: Vec<(Pod, &str)> = Vec::new();
    let mut numbers = 100..;
    let mut leave = |why, namespace: &str, prepare: &dyn Fn(&Node, &Pod), change: &dyn Fn(&mut Value)| {
        let pod = Pod::new(numbers.next().unwrap());
        node.manifest(namespace, &pod, change);
        node.cached(namespace, &pod, "eth0");
        node.start(&pod);
        prepare(&node, &pod);
        untouched.push((pod, why));
    };
    let nothing: &dyn Fn(&Node, &Pod) = &|_, _| ();
    let same: &dyn Fn(&mut Value) = &|_| ();
    let results = |pod: &Pod| format!("var/lib/cni/results/pods-{}-eth0", pod.name());
    leave("should not be redirected", "kube-system", nothing, same);
    leave("should not be redirected", "shop", nothing, &|pod| {
        pod["metadata"]["annotations"]["sidecar.istio.io/status"].take();
        drop(pod["metadata"]["annotations"].as_object_mut().unwrap().remove("sidecar.istio.io/status"));
    });
    leave("by istio-cni", "shop", &|_, pod| drop(pod.sh(ISTIO_CHAINS)), same);
    leave("by istio-cni", "shop", &|_, pod| drop(pod.sh(ISTIO_TABLE)), same);
    leave("its policy is not known", "shop", nothing, &|pod| {
        pod["metadata"]["uid"] = json!("00000000-70b7-4d3c-9a51-2b8f0a6f3c11");
    });
    leave("have no uid", "shop", nothing, &|pod| {
        drop(pod["metadata"].as_object_mut().unwrap().remove("uid"));
    });
    leave(
        "its ADD may be running",
        "shop",
        &|node, pod| fs::remove_file(node.root.join(results(pod))).unwrap(),
        same,
    );
    let loopback_only = |node: &Node, pod: &Pod| {
        fs::remove_file(node.root.join(results(pod))).unwrap();
        node.cached("shop", pod, "lo");
    };
    leave("its ADD may be running", "shop", &loopback_only, same);
    leave(
        "a process of the pod with uid",
        "shop",
        &|node, pod| {
            node.process(5000, "0::/kubepods/pod00000000-4b68-4efa-917f-4b560e3e86aa/x", &pod.netns);
        },
        same,
    );
    leave(
        "no process of a pod runs in it",
        "shop",
        &|node, pod| {
            fs::remove_dir_all(node.root.join(format!("proc/{}", 1000 + pod.number))).unwrap();
        },
        same,
    );
    leave(
        "none of the addresses",
        "shop",
        &|_, pod| {
            drop(pod.sh("ip address flush dev eth0; ip address add 10.250.0.9/32 dev eth0"));
        },
        same,
    );
    leave(
        "has rules of Gybe, and is not redirected",
        "shop",
        &|_, pod| {
            let path = pod.netns.path().display().to_string();
            let policy = r#"{"outbound_cidrs_include":[]}"#;
            let ran = gybe_integration::programs::ours(
                "gybe",
                &["apply", "--netns", &path, "--policy", "-"],
                policy,
            );
            assert_eq!(ran.as_ref().unwrap().code, Some(0), "{ran:?}");
        },
        same,
    );
    let before: Vec<String> = untouched.iter().map(|(pod, _)| pod.rules()).collect();
    assert!(unredirected.iter().all(|pod| pod.rules().is_empty()) && !unredirected[0].is_redirected());

    let planned = node.gybe(&["repair", "--dry-run"]);
    assert!(planned.code == Some(1) && planned.out.contains("30 would be repaired"), "{planned:?}");
    assert!(unredirected.iter().all(|pod| pod.rules().is_empty()), "a dry run writes nothing");

    let started = Instant::now();
    let sandboxes = node.repair();
    println!("{} sandboxes: {:?}", sandboxes.len(), started.elapsed());
    for pod in &unredirected {
        let found = by_name(&sandboxes, pod);
        assert_eq!((&found["repaired"], &found["open_connections"]), (&json!(true), &json!(0)), "{found}");
        assert!(pod.is_redirected(), "{found}");
    }
    for ((pod, why), before) in untouched.iter().zip(before) {
        let by_name = sandboxes.iter().find(|one| {
            one["name"] == json!(pod.name())
                || one["uid"] == json!(pod.uid())
                || one["netns"].as_str().is_some_and(|path| path.ends_with(&pod.name()))
        });
        let found = by_name.unwrap_or_else(|| panic!("{why}: {sandboxes:?}"));
        assert!(
            found["repaired"] == json!(false) && found["reason"].as_str().unwrap().contains(why),
            "{why}: {found}"
        );
        assert_eq!(pod.rules(), before, "{why}");
        assert!(!pod.is_redirected(), "{why}");
    }
    let again = node.repair();
    assert!(again.iter().all(|one| one["repaired"] == json!(false)), "a second pass repairs nothing");
    assert_eq!(by_name(&again, &unredirected[0])["verdict"], json!("redirected"));
}

#[test]
fn a_node_without_an_entry_of_gybe_is_left_alone() {
    let node = Node::new("no-entry", "auto");
    let pod = node.unredirected(1);
    fs::remove_file(node.root.join("etc/cni/net.d/10-pods.conflist")).unwrap();
    let ran = node.gybe(&["repair"]);
    assert!(ran.code == Some(2) && ran.err.contains("has no entry of gybe-cni"), "{ran:?}");
    assert_eq!(pod.rules(), "");
}

#[test]
fn no_rule_is_written_by_settings_that_changed_after_the_judgement() {
    let node = Node::new("settings", "nft");
    let pod = node.unredirected(1);
    let repaired =
        RepairNode { facts: Some(node.root.join("pods")), ..RepairNode::of_host(&node.root, None) };
    let conf = repaired.conf().unwrap();
    let run = |in_force: &(dyn Fn() -> bool + Sync)| {
        let sources = PolicySources::of(conf.clone());
        let pass = RepairPass { conf: &conf, sources: &sources, in_force: Some(in_force) };
        pass.run(repaired.sandboxes().sandboxes).remove(0).repair.unwrap()
    };
    let refused = run(&|| false).unwrap_err();
    assert!(refused.contains("the node's settings have changed"), "{refused}");
    assert_eq!(pod.rules(), "");
    run(&|| true).unwrap();
    assert!(pod.is_redirected());
}

#[test]
fn a_pod_whose_rules_were_flushed_is_repaired() {
    let node = Node::new("flushed", "nft");
    let pod = node.unredirected(1);
    assert_eq!(node.repair()[0]["repaired"], json!(true));
    pod.sh("nft flush ruleset");
    assert!(!pod.is_redirected());
    assert_eq!(node.repair()[0]["repaired"], json!(true));
    assert!(pod.is_redirected());
}

#[test]
fn a_watch_redirects_a_pod_as_soon_as_its_add_has_ended_and_logs_it_once() {
    let node = Node::new("watch", "auto");
    let early = node.unredirected(1);
    let mut watch = node.watch();
    wait_until("the pod that was there is redirected", || !early.rules().is_empty());
    let late = Pod::new(2);
    node.manifest("shop", &late, |_| ());
    node.start(&late);
    node.cached("shop", &late, "lo");
    let third = node.unredirected(3);
    wait_until("the pod whose ADD has ended is redirected", || !third.rules().is_empty());
    assert_eq!(late.rules(), "", "the ADD of this one has not ended");
    node.cached("shop", &late, "eth0");
    wait_until("the pod is redirected", || !late.rules().is_empty());
    // The runtime starts the first process after the ADD.
    let fourth = Pod::new(4);
    node.manifest("shop", &fourth, |_| ());
    symlink(fourth.netns.path(), node.root.join("run/netns").join(fourth.name())).unwrap();
    node.cached("shop", &fourth, "eth0");
    let fifth = node.unredirected(5);
    wait_until("the other pod is redirected", || !fifth.rules().is_empty());
    assert_eq!(fourth.rules(), "", "no process runs in it yet");
    node.process(2004, &fourth.cgroup(), &fourth.netns);
    wait_until("the pod is redirected", || !fourth.rules().is_empty());
    assert!([&early, &late, &third].into_iter().all(Pod::is_redirected));
    assert!(watch.terminate().success());
    let lines = watch.whole_log();
    let repaired = lines.iter().filter(|line| line["msg"] == REDIRECTED);
    assert_eq!((repaired.count(), lines.len()), (5, 5), "{lines:?}");
}

/// The path of a sandbox's namespace leads to the next sandbox's as soon as the runtime uses the name again, and a
/// cached result may be left of a sandbox that a crash ended.
#[test]
fn no_rule_reaches_the_namespace_that_has_taken_the_place_of_a_pods() {
    let node = Node::new("replaced", "auto");
    let first = node.unredirected(1);
    let watch = node.watch();
    wait_until("the first pod is redirected", || !first.rules().is_empty());
    let before = open_files(&watch);
    let mut successors = Vec::new();
    for number in 10..40 {
        let (pod, successor) = (Pod::new(number), Pod::new(number + 100));
        node.manifest("shop", &pod, |_| ());
        // Half of the pods are seen by a pass before they end, the others may end during one.
        node.start(&pod);
        node.cached("shop", &pod, "eth0");
        if number % 2 == 0 {
            wait_until("the pod is redirected", || !pod.rules().is_empty());
        }
        let path = node.root.join("run/netns").join(pod.name());
        symlink(successor.netns.path(), path.with_extension("new")).unwrap();
        fs::rename(path.with_extension("new"), &path).unwrap();
        node.process(3000 + number, &successor.cgroup(), &successor.netns);
        fs::remove_dir_all(node.root.join(format!("proc/{}", 1000 + number))).unwrap();
        successors.push(successor);
    }
    let last = node.unredirected(2);
    wait_until("a pod that started after all of them is redirected", || !last.rules().is_empty());
    assert!(successors.iter().all(|successor| successor.rules().is_empty()));
    // A pass holds the namespaces of the sandboxes open that it judges.
    wait_until("the files of ended sandboxes are closed", || open_files(&watch) <= before + 4);
}
