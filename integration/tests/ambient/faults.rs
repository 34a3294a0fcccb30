//! ADDs of ambient pods while ztunnel or the agent is away, refuses or hangs. After each refusal a second ADD of the same
//! pod in the same namespace succeeds.

use crate::fixture::{Node, Pod, is_ambient, observe};
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::namespace::allow_many_sockets;
use gybe_integration::ztunnel::{Fault, Mesh, Ztunnel};
use gybe_plugin::facts::ambient::HandOverBy;
use gybe_test_support::wait_until;
use serde_json::json;
use std::sync::Arc;
use std::{fs, thread};

#[test]
fn without_ztunnel_the_pod_is_refused_and_the_agent_is_not_ready() {
    let (node, netns) = (Node::start("ambient-absent"), Namespace::new().unwrap());
    let pod = Pod::new("shop", "cart").put(&node);
    wait_until("the reason", || node.readyz().contains("no ztunnel is connected"));
    node.refused(&pod, &netns, "034", "no ztunnel is connected");
    assert!(!node.holds(&netns));
    // One that connects while an ADD waits gets the pod.
    let ztunnel = thread::scope(|scope| {
        let adding = scope.spawn(|| node.added(&pod, &netns));
        let ztunnel = node.ztunnel(&[]);
        adding.join().unwrap();
        ztunnel
    });
    assert!(ztunnel.observed().proxies.contains("uid-cart"), "{:?}", ztunnel.observed());
    wait_until("no reason", || !node.readyz().contains("ztunnel"));
}

#[test]
fn a_pod_that_ztunnel_refuses_is_refused_with_its_text() {
    let (node, netns) = (Node::start("ambient-refused"), Namespace::new().unwrap());
    let (ztunnel, pod) = (node.ztunnel(&[]), Pod::new("shop", "cart").put(&node));
    ztunnel.set_fault(Fault { refuse: Some("no room".to_owned()), ..Fault::default() });
    node.refused(&pod, &netns, "035", "failure to start proxy : no room");
    wait_until("the namespace is closed", || !node.holds(&netns));
    ztunnel.set_fault(Fault::default());
    node.added(&pod, &netns);
    observe(&ztunnel, "ztunnel has the pod", |observed| observed.proxies.contains("uid-cart"));
}

#[test]
fn a_ztunnel_that_hangs_is_an_answer_that_does_not_come_in_time() {
    let (node, netns) = (Node::start("ambient-hung"), Namespace::new().unwrap());
    let pod = Pod::new("shop", "cart").put(&node);
    // After its connection is closed, the stand-in connects again, and hangs again.
    let hung = Fault { hung: true, ..Fault::default() };
    let ztunnel = Ztunnel::start(&node.socket(), hung, Mesh::default()).unwrap();
    wait_until("it is connected", || node.agent().metric("ztunnel_connected") > 0.0);
    node.refused(&pod, &netns, "036", "ztunnel did not answer in time");
    assert!(node.agent().metric("gybe_ztunnel_late_total") > 0.0);
    ztunnel.set_fault(Fault::default());
    node.added(&pod, &netns);
}

#[test]
fn a_ztunnel_that_takes_the_place_of_one_that_was_killed_gets_every_pod() {
    let node = Node::start("ambient-killed");
    let first = node.ztunnel(&[]);
    let pods = ["a", "b", "c"].map(|name| (Pod::new("shop", name).put(&node), Namespace::new().unwrap()));
    for (pod, netns) in &pods {
        node.added(pod, netns);
    }
    drop(first);
    wait_until("the reason", || node.readyz().contains("no ztunnel is connected"));
    let second = node.ztunnel(&[]);
    let mut requests = second.observed().requests;
    requests.sort();
    assert_eq!(requests, ["add uid-a", "add uid-b", "add uid-c", "snapshot-sent"]);
    assert_eq!(second.observed().proxies.len(), 3);
}

#[test]
fn a_new_agent_drops_no_pod_of_its_predecessor_and_an_add_waits_for_it() {
    let mut node = Node::start("ambient-agent-killed");
    let (ztunnel, before) = (node.ztunnel(&[]), Namespace::new().unwrap());
    let pod = Pod::new("shop", "before").put(&node);
    node.added(&pod, &before);
    node.server.put_pod(Pod::new("shop", "ended").object("Succeeded"));
    node.kill_agent();
    observe(&ztunnel, "ztunnel is not ready", |observed| !observed.is_ready);
    assert!(ztunnel.observed().proxies.contains("uid-before"), "ztunnel serves without an agent");
    let (during, later) = (Namespace::new().unwrap(), Pod::new("shop", "during").put(&node));
    let call = node.prepared("ADD", &later, &during);
    let directory = Arc::clone(&node.directory);
    let adding = thread::spawn(move || call.run(&directory, "").unwrap());
    node.start_agent();
    let ran = adding.join().unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let observed = observe(&ztunnel, "ztunnel is ready again", |observed| {
        observed.is_ready && observed.proxies.contains("uid-during")
    });
    assert!(observed.proxies.contains("uid-before"), "{observed:?}");
    assert!(observed.requests.iter().any(|it| it == "keep uid-before"), "{observed:?}");
    assert!(!observed.requests.iter().any(|it| it == "keep uid-ended"), "{observed:?}");
    // The new agent has no descriptor of it: that is known after the next ADD alone.
    assert!(!node.holds(&before) && node.holds(&during));
    pod.delete(&node);
    observe(&ztunnel, "the pod is gone", |observed| !observed.proxies.contains("uid-before"));
}

#[test]
fn an_add_waits_for_the_agent_although_a_source_without_the_labels_knows_the_pod() {
    let (mut node, netns) = (Node::start("ambient-second-source"), Namespace::new().unwrap());
    let (_ztunnel, pod) = (node.ztunnel(&[]), Pod::new("shop", "cart").put(&node));
    let manifests = node.put_manifest(&pod);
    let call = |node: &Node| {
        let mut call = node.prepared("ADD", &pod, &netns);
        call.stdin["facts"]["directory"] = json!(manifests);
        call
    };
    node.kill_agent();
    let mut short = call(&node);
    short.stdin["facts"]["deadline_ms"] = json!(300);
    let refused = short.run(&node.directory, "").unwrap();
    assert!(refused.out.contains("GYBE-ADD-032") && refused.out.contains("\"code\":11"), "{refused:?}");
    assert!(refused.out.contains("whether the pod is ambient is unknown"), "{refused:?}");
    let (waiting, directory) = (call(&node), Arc::clone(&node.directory));
    let adding = thread::spawn(move || waiting.run(&directory, "").unwrap());
    node.start_agent();
    let ran = adding.join().unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(is_ambient(&netns) && node.holds(&netns));
}

#[test]
fn an_agent_that_takes_the_lead_of_another_one_drops_no_pod() {
    let mut node = Node::start("ambient-two-agents");
    let (ztunnel, [before, later]) =
        (node.ztunnel(&[]), ["before", "later"].map(|name| Pod::new("shop", name)));
    let (before, netns) = (before.put(&node), [Namespace::new().unwrap(), Namespace::new().unwrap()]);
    node.added(&before, &netns[0]);
    let former = node.agent.take().unwrap();
    node.start_agent();
    former.wait_for_message("hands over to a newer agent");
    node.added(&later.put(&node), &netns[1]);
    let observed = observe(&ztunnel, "ztunnel is ready again", |observed| {
        observed.is_ready && observed.proxies.contains("uid-later")
    });
    assert!(observed.proxies.contains("uid-before"), "{observed:?}");
    assert_eq!(observed.requests.iter().filter(|it| *it == "snapshot-sent").count(), 2, "{observed:?}");
    assert_eq!(observed.exit, None);
    // The former agent closes nothing of ztunnel's as it ends.
    drop(former);
    before.delete(&node);
    let observed = observe(&ztunnel, "the pod is gone", |observed| !observed.proxies.contains("uid-before"));
    assert!(observed.proxies.contains("uid-later"), "{observed:?}");
}

#[test]
fn an_add_that_waits_when_another_agent_takes_the_lead_succeeds_there() {
    let (mut node, netns) = (Node::start("ambient-waiting-add"), Namespace::new().unwrap());
    let pod = Pod::new("shop", "cart").put(&node);
    let mut call = node.prepared("ADD", &pod, &netns);
    // Longer than an agent lets a hand-over wait.
    call.stdin["facts"]["deadline_ms"] = json!(20_000);
    let directory = Arc::clone(&node.directory);
    let adding = thread::spawn(move || call.run(&directory, "").unwrap());
    wait_until("the hand-over waits", || node.agent().metric("gybe_ambient_pods_pending") > 0.0);
    let former = node.agent.take().unwrap();
    node.start_agent();
    former.wait_for_message("hands over to a newer agent");
    let ztunnel = node.ztunnel(&[]);
    let ran = adding.join().unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ztunnel.observed().proxies.contains("uid-cart") && node.holds(&netns));
}

#[test]
fn the_agent_opens_as_many_files_as_it_may_and_refuses_the_pods_for_which_these_are_too_few() {
    const HARD: u32 = 160;
    allow_many_sockets();
    let node = Node::with_limits("ambient-files", &[], Some([100, HARD]));
    let (_ztunnel, netns) = (node.ztunnel(&[]), Namespace::new().unwrap());
    let limits = fs::read_to_string(format!("/proc/{}/limits", node.agent().pid())).unwrap();
    let limit = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(limit.split_whitespace().skip(3).collect::<Vec<_>>(), ["160", "160", "files"]);
    // Half of a small limit is for other files.
    let pods: Vec<Pod> = (0..HARD / 2).map(|n| Pod::new("shop", &format!("p{n}")).put(&node)).collect();
    for pod in &pods {
        node.hand_over(pod, &netns, HandOverBy::Repair).unwrap();
    }
    let later = Pod::new("shop", "later").put(&node);
    node.refused(&later, &netns, "032", "limit of open files allows 80 ambient pods; raise LimitNOFILE");
    pods[0].delete(&node);
    node.wait_for_pods(79.0);
    node.added(&later, &netns);
}
