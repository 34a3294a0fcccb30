//! The DaemonSet's container `repair` repairs pods: with its capabilities, in the host's mount namespace, with programs
//! that the image does not have.

use crate::container::{CAPABILITIES, Container, Host, limited};
use crate::node::Node;
use gybe_test_support::wait_until;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::sync::mpsc::channel;
use std::thread;

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
