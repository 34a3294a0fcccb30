//! Which pods are repaired, and which are left alone; the DaemonSet's container `repair` does it with its
//! capabilities, in the host's mount namespace, with programs that the image does not have.

use crate::container::{CAPABILITIES, Container, Host, limited};
use crate::node::{Node, Pod, REDIRECTED};
use gybe_installer::sandboxes::PolicySources;
use gybe_installer::sandboxes::repair::{RepairNode, RepairPass};
use gybe_test_support::wait_until;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::sync::mpsc::channel;
use std::time::Instant;
use std::{fs, thread};

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
    let before = watch.open_files();
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
    wait_until("the files of ended sandboxes are closed", || watch.open_files() <= before + 4);
}

#[test]
fn the_container_repairs_pods_when_the_agents_setting_requests_it_with_the_hosts_programs() {
    let node = Node::new("container", "iptables-legacy");
    let pod = node.unredirected(1);
    let (host, container) = (Host::without("repair", &[]), Container::new("repair"));
    let root = node.root.path().display();
    let command = container.probe(&host, &CAPABILITIES);
    let mut child = container.start(&format!("{command} --watch --keep --repair --root {root}"));
    let (sender, lines) = channel();
    let stderr = child.stderr.take().unwrap();
    thread::spawn(move || {
        BufReader::new(stderr).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    let logged = |text: &str| wait_until(text, || lines.try_recv().is_ok_and(|line| line.contains(text)));
    logged("the agent has not written the setting");
    let file = |name: &str| host.report_path().with_file_name(name);
    let counts = || serde_json::from_slice::<Value>(&fs::read(file("repairs.json")).ok()?).ok();
    fs::write(file("repair.json"), r#"{"repair":"off"}"#).unwrap();
    wait_until("no counts, because it is off", || counts().is_none());
    assert!(!pod.is_redirected());
    fs::write(file("repair.json"), r#"{"repair":"repair"}"#).unwrap();
    logged("gybe repair: redirected a running pod");
    assert!(pod.is_redirected());
    let expected = json!({ "repaired": 1, "failed": 0, "not_redirected": 0 });
    wait_until("the counts", || counts() == Some(expected.clone()));
    assert_eq!(pod.rules(), "", "written with iptables-legacy");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_operator_judges_live_pods_from_the_container_without_naming_the_host() {
    let node = Node::new("operator", "iptables-legacy");
    let (pod, other) = (node.unredirected(1), node.unredirected(2));
    let (host, container) = (Host::without("operator", &[]), Container::new("operator"));
    let root = format!("--root {}", node.root.path().display());
    // The variable of the DaemonSet's container.
    let variable = format!("env GYBE_HOST_MOUNTS={}", container.mounted(&host.namespace()));
    let gybe = |arguments: &str| {
        let command = format!("{variable} {}", limited(&CAPABILITIES, arguments));
        container.sh(&container.with_mounted_proc(&command))
    };
    let verdicts = || {
        let ran = gybe(&format!("verify --all --json {root}"));
        let out: Value = serde_json::from_str(&ran.out).unwrap_or_else(|why| panic!("{why}: {ran:?}"));
        let sandboxes = out["sandboxes"].as_array().unwrap().clone();
        sandboxes.iter().map(|one| one["verdict"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(verdicts(), ["not-redirected"; 2]);
    // With a program that only the host has.
    let repaired = gybe(&format!("repair {root}"));
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
    assert!(pod.is_redirected() && other.is_redirected());
    assert_eq!(verdicts(), ["redirected"; 2]);
    let netns = node.root.join("run/netns/cart-1").display().to_string();
    let inspected = gybe(&format!("inspect --netns {netns}"));
    assert!(
        inspected.out.starts_with("iptables-legacy: ") && inspected.out.contains("inbound-to-proxy"),
        "{inspected:?}"
    );
    let traced = gybe(&format!("trace --netns {netns} out tcp 203.0.113.9:80 --uid 1000"));
    assert!(traced.code == Some(0) && traced.out.contains("15001"), "{traced:?}");
}
