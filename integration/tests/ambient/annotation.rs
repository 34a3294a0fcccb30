//! The annotation `ambient.istio.io/redirection`: when the agent writes it, and what it does when the API server refuses.

use crate::fixture::{MODE, Node, Pod};
use gybe_api_server::{Fault, FaultKind, Verb};
use gybe_demo::testnet::namespace::Namespace;
use gybe_installer::sandboxes::probe_exemption::ExemptedPods;
use gybe_integration::ztunnel;
use gybe_plugin::facts::ambient::{HandOverBy, LeaveStep};
use gybe_test_support::wait_until;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::thread;
use std::time::Instant;

const REDIRECTION: &str = "ambient.istio.io/redirection";
/// A part of the note in `/readyz`.
const NOTE: &str = "cannot write or remove the annotation ambient.istio.io/redirection of";

/// The value that the API server has.
fn annotation(node: &Node, pod: &Pod) -> Option<Value> {
    let pods = node.server.objects("Pod");
    let (namespace, name) = pod.names();
    let found =
        pods.iter().find(|it| it["metadata"]["namespace"] == namespace && it["metadata"]["name"] == name);
    found?["metadata"]["annotations"].get(REDIRECTION).cloned()
}

fn wait_until_annotated(node: &Node, pod: &Pod) {
    wait_until("the annotation", || annotation(node, pod) == Some(json!("enabled")));
}

/// The uids of the pods that the container `repair` has to look at.
fn due(node: &Node) -> BTreeSet<String> {
    ExemptedPods::kept_in(&node.shared_directory()).unwrap().unwrap().due
}

/// The paths and bodies of the requests that change pods, in their order.
fn patches(node: &Node) -> Vec<(String, Value)> {
    let requests = node.server.requests().into_iter();
    let patches = requests.filter(|it| it.method == "PATCH" && it.path.contains("/pods/"));
    patches.map(|it| (it.path, serde_json::from_str(&it.body).unwrap())).collect()
}

#[test]
fn it_is_written_after_ztunnels_acknowledgement_and_not_before() {
    let (node, netns) = (Node::start("annotation-order"), Namespace::new().unwrap());
    let pod = Pod::new("shop", "cart").put(&node);
    let ztunnel = thread::scope(|scope| {
        let adding = scope.spawn(|| node.added(&pod, &netns));
        wait_until("the ADD waits", || node.agent().metric("gybe_ambient_pods_pending") > 0.0);
        assert_eq!(patches(&node), []);
        let ztunnel = node.ztunnel(&[]);
        adding.join().unwrap();
        ztunnel
    });
    wait_until_annotated(&node, &pod);
    let patch = json!({ "metadata": { "uid": "uid-cart", "annotations": { REDIRECTION: "enabled" } } });
    let expected = ("/api/v1/namespaces/shop/pods/cart/status".to_owned(), patch);
    assert_eq!(patches(&node), [expected]);
    // Pods that do not get into the mesh: ztunnel refuses one, the other is not ambient.
    let (refused, plain) = (Pod::new("shop", "refused").put(&node), Pod::new("plain", "plain").put(&node));
    let no_room = ztunnel::Fault { refuse: Some("no room".to_owned()), ..ztunnel::Fault::default() };
    ztunnel.set_fault(no_room);
    node.refused(&refused, &Namespace::new().unwrap(), "035", "no room");
    ztunnel.set_fault(ztunnel::Fault::default());
    node.added(&plain, &Namespace::new().unwrap());
    // One thread writes all annotations.
    let (later, of_later) = (Pod::new("shop", "later").put(&node), Namespace::new().unwrap());
    node.added(&later, &of_later);
    wait_until_annotated(&node, &later);
    assert_eq!(patches(&node).len(), 2, "{:?}", patches(&node));
}

#[test]
fn it_is_written_for_a_running_pod_only_once_its_rules_stand() {
    let (node, netns) = (Node::start("annotation-running"), [(); 2].map(|()| Namespace::new().unwrap()));
    let _ztunnel = node.ztunnel(&[]);
    let [first, second] = ["first", "second"].map(|name| Pod::new("shop", name).put(&node));
    node.hand_over(&first, &netns[0], HandOverBy::Enrolment).unwrap();
    node.hand_over(&second, &netns[1], HandOverBy::Repair).unwrap();
    // One thread writes all annotations, that of the first pod before that of the second.
    wait_until_annotated(&node, &second);
    assert_eq!(annotation(&node, &first), None);
    wait_until("the container repair writes the rules", || due(&node).iter().eq([&first.uid]));
    node.hand_over(&first, &netns[0], HandOverBy::Repair).unwrap();
    wait_until_annotated(&node, &first);
    wait_until("nothing is due", || due(&node).is_empty());
}

#[test]
fn what_the_watch_shows_already_is_not_written_again() {
    let mut node = Node::start("annotation-restart");
    let _ztunnel = node.ztunnel(&[]);
    let netns: [Namespace; 3] = std::array::from_fn(|_| Namespace::new().unwrap());
    let annotated = Pod::new("shop", "taken-over").with_annotation(REDIRECTION, "enabled").put(&node);
    node.added(&annotated, &netns[0]);
    let first = Pod::new("shop", "first").put(&node);
    node.added(&first, &netns[1]);
    wait_until_annotated(&node, &first);
    node.kill_agent();
    // Neither its ztunnel nor the container repair has connected to the new agent yet, and the labels decide already.
    let plain = Pod::new("plain", "plain").with_annotation(REDIRECTION, "pending").put(&node);
    node.start_agent();
    // The kubelet repeats an ADD whose answer it did not get.
    node.added(&first, &netns[1]);
    let second = Pod::new("shop", "second").put(&node);
    node.added(&second, &netns[2]);
    wait_until_annotated(&node, &second);
    let paths: Vec<_> = patches(&node).into_iter().map(|(path, _)| path).collect();
    let expected = ["first", "second"].map(|name| format!("/api/v1/namespaces/shop/pods/{name}/status"));
    assert_eq!(paths, expected);
    assert_eq!(annotation(&node, &plain), Some(json!("pending")), "istio-cni's");
}

#[test]
fn it_is_removed_when_a_label_changes_and_from_a_pod_that_is_not_ambient() {
    let (node, netns) = (Node::start("annotation-label"), Namespace::new().unwrap());
    let left = |name| Pod::new("plain", name).with_annotation(REDIRECTION, "enabled").put(&node);
    let wait_until_removed = |pod: &Pod| wait_until("no annotation", || annotation(&node, pod).is_none());
    let kept = || ExemptedPods::kept_in(&node.shared_directory()).unwrap();
    // An agent that begins to lead keeps the pods that it finds.
    wait_until("the agent leads", || kept().is_some());
    wait_until_removed(&left("first"));
    let _ztunnel = node.ztunnel(&[]);
    let pod = Pod::new("shop", "cart").put(&node);
    node.added(&pod, &netns);
    wait_until_annotated(&node, &pod);
    let changed = pod.with_labels(json!({ MODE: "none" })).with_annotation(REDIRECTION, "enabled").put(&node);
    wait_until("the container repair replaces the rules", || due(&node).iter().eq([&changed.uid]));
    // One thread writes all annotations, that of the changed pod before that of the second one.
    wait_until_removed(&left("second"));
    assert_eq!(annotation(&node, &changed), Some(json!("enabled")), "rules lead plain text to ztunnel");
    node.leave(&changed, LeaveStep::Draining).unwrap();
    wait_until_removed(&changed);
    assert!(node.holds(&netns), "ztunnel serves the pod until its connections have ended");
    let ambient = Pod::new("shop", "cart").put(&node);
    node.hand_over(&ambient, &netns, HandOverBy::Repair).unwrap();
    wait_until_annotated(&node, &ambient);
    let values: Vec<_> = patches(&node).into_iter().map(|(_, body)| body).collect();
    let values: Vec<_> = values.iter().map(|body| &body["metadata"]["annotations"][REDIRECTION]).collect();
    let (removed, written) = (&json!(null), &json!("enabled"));
    assert_eq!(values, [removed, written, removed, removed, written]);
}

#[test]
fn a_new_agent_removes_it_only_when_the_container_repair_has_found_the_pod_without_rules() {
    let mut node = Node::start("annotation-new-agent");
    node.kill_agent();
    let pods = ["drained", "left"]
        .map(|name| Pod::new("plain", name).with_annotation(REDIRECTION, "enabled").put(&node));
    node.start_agent();
    let _ztunnel = node.ztunnel(&[]);
    wait_until("the container repair looks at both", || due(&node).iter().eq(pods.iter().map(|it| &it.uid)));
    assert_eq!(patches(&node), []);
    for (pod, step) in pods.iter().zip([LeaveStep::Draining, LeaveStep::Left]) {
        assert_eq!(annotation(&node, pod), Some(json!("enabled")));
        node.leave(pod, step).unwrap();
        wait_until("no annotation", || annotation(&node, pod).is_none());
    }
}

#[test]
fn it_is_written_again_when_another_client_removes_it() {
    let (node, netns) = (Node::start("annotation-removed"), Namespace::new().unwrap());
    let _ztunnel = node.ztunnel(&[]);
    let pod = Pod::new("shop", "cart").put(&node);
    node.added(&pod, &netns);
    for removed in 0..3 {
        wait_until_annotated(&node, &pod);
        assert_eq!(patches(&node).len(), removed + 1);
        node.server.put_pod(pod.object("Running"));
    }
    wait_until_annotated(&node, &pod);
}

#[test]
fn an_api_server_that_fails_delays_it_and_no_add() {
    let (node, netns) = (Node::start("annotation-fails"), Namespace::new().unwrap());
    let _ztunnel = node.ztunnel(&[]);
    for code in [500, 409] {
        node.server.add_fault(Fault::always(FaultKind::Fails(code)).at(Verb::Patch).times(1));
    }
    let pod = Pod::new("shop", "cart").put(&node);
    node.added(&pod, &netns);
    wait_until_annotated(&node, &pod);
    assert_eq!(patches(&node).len(), 3);
    assert!((node.agent().metric("gybe_ambient_annotation_failures_total") - 2.0).abs() < f64::EPSILON);
}

#[test]
fn without_the_right_pods_start_and_a_note_in_readyz_says_why() {
    let (node, netns) = (Node::start("annotation-forbidden"), Namespace::new().unwrap());
    let _ztunnel = node.ztunnel(&[]);
    node.server.forbid(Verb::Patch, "pods/status");
    let pod = Pod::new("shop", "cart").put(&node);
    node.added(&pod, &netns);
    let line = node
        .agent()
        .wait_for_message("gybe node: cannot write the annotation ambient.istio.io/redirection of a pod");
    assert!(line["pod"] == "shop/cart" && line["hint"].as_str().unwrap().contains("ambient-annotation"));
    // A line that begins with `-` is a reason why the agent is not ready.
    wait_until("the note", || node.readyz().contains(&format!("\nnote: {NOTE}")));
    assert!(node.readyz().contains("of 1 pods: the API server responded 403"), "{}", node.readyz());
    node.server.permit(Verb::Patch, "pods/status");
    wait_until_annotated(&node, &pod);
    wait_until("no note", || !node.readyz().contains(NOTE));
}

#[test]
fn requests_that_are_all_forbidden_stay_few() {
    const PODS: usize = 12;
    let node = Node::start("annotation-all-forbidden");
    let _ztunnel = node.ztunnel(&[]);
    node.server.forbid(Verb::Patch, "pods/status");
    let start = Instant::now();
    let pods = std::array::from_fn::<_, PODS, _>(|n| Pod::new("shop", &format!("cart-{n}")).put(&node));
    let netns = std::array::from_fn::<_, PODS, _>(|_| Namespace::new().unwrap());
    pods.iter().zip(&netns).for_each(|(pod, netns)| node.added(pod, netns));
    wait_until("the note", || node.readyz().contains(&format!("{NOTE} {PODS} pods")));
    wait_until("the second attempt", || patches(&node).len() > 1);
    // The delays are at least 1, 2, 4 and 8 s.
    let (sent, seconds) = (patches(&node).len(), start.elapsed().as_secs());
    assert!(sent <= 2 + usize::try_from(seconds.ilog2()).unwrap(), "{sent} requests in {seconds} s");
    node.server.permit(Verb::Patch, "pods/status");
    pods.iter().for_each(|pod| wait_until_annotated(&node, pod));
    wait_until("no note", || !node.readyz().contains(NOTE));
}

#[test]
fn a_pod_that_is_gone_ends_the_attempts() {
    let node = Node::start("annotation-gone");
    let _ztunnel = node.ztunnel(&[]);
    node.server.forbid(Verb::Patch, "pods/status");
    let netns: [Namespace; 2] = std::array::from_fn(|_| Namespace::new().unwrap());
    let [watched, missed] = ["watched", "missed"].map(|name| Pod::new("shop", name).put(&node));
    node.added(&watched, &netns[0]);
    node.added(&missed, &netns[1]);
    wait_until("the note", || node.readyz().contains("of 2 pods"));
    watched.delete(&node);
    wait_until("the other pod", || node.readyz().contains("of 1 pods"));
    // The API server reports the next one only with the answer to the request.
    node.server.add_fault(Fault::always(FaultKind::Fails(500)).at(Verb::Watch));
    node.server.cut_watches();
    node.agent().wait_for_message("pods are not watched");
    missed.delete(&node);
    node.server.permit(Verb::Patch, "pods/status");
    wait_until("no note", || !node.readyz().contains(NOTE));
    node.wait_for_pods(1.0);
}
