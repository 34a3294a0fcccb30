//! What each agent does when an ambient pod loses its rules, and when an ADD meets an API server that fails or an agent
//! that is killed. Prints a line for each; what is expected of Gybe is asserted.

use crate::clients::{Clients, EndOnDrop, POD, connect, linked};
use crate::node::Pod;
use crate::side::{MODE, Node, SIDES, Side, alone, make};
use gybe_api_server::{Fault, FaultKind, Network, Verb};
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::programs::Run;
use gybe_integration::ztunnel;
use gybe_test_support::{PATIENCE, wait_for_at_most, wait_until};
use serde_json::json;
use std::thread;
use std::time::{Duration, Instant};

/// Gybe judges a settled pod again within a minute.
const A_MINUTE: Duration = Duration::from_secs(80);

/// Reports whether ztunnel forwards a connection of the peer to the pod.
fn captures(node: &Node, peer: &Namespace) -> bool {
    let before = node.forwarded();
    connect(peer, POD).unwrap();
    node.forwarded() > before
}

#[test]
fn rules_that_an_ambient_pod_has_lost() {
    for side in SIDES {
        let [mended, by_new_agent] = alone(|| flush(side));
        println!("| {side:?} | rules flushed | mended: {mended:?}, by a new agent: {by_new_agent:?} |");
        assert!(side != Side::Gybe || mended.is_some());
    }
}

/// Returns when the pod's connections are captured again, if they are; by the same agent, and then by a new one.
fn flush(side: Side) -> [Option<Duration>; 2] {
    let mut node = Node::start(side, &[]);
    let ((pod, peer), clients) = (linked(), Clients::new());
    node.run("plain", &pod);
    node.label("plain", &pod, &json!({ MODE: "ambient" }));
    wait_until("the pod is annotated", || node.is_annotated(&pod));
    thread::scope(|scope| {
        let ends = EndOnDrop(&clients);
        clients.serve(scope, &pod.netns);
        assert!(captures(&node, &peer));
        let left = pod.sh(
            "ip rule delete lookup 100; for i in iptables-legacy ip6tables-legacy; do $i -t nat -F; $i -t nat -S; done
             nft flush ruleset; nft list ruleset",
        );
        assert!(!left.contains("15006"), "{left}");
        let start = Instant::now();
        let is_mended = |node: &Node| captures(node, &peer).then(|| start.elapsed());
        let first = wait_for_at_most(A_MINUTE, || is_mended(&node));
        node.kill_agents();
        node.start_agents();
        let second = wait_for_at_most(PATIENCE, || is_mended(&node));
        drop(ends);
        [first, second]
    })
}

/// An ADD that a fault met, and whether its pod is in the mesh afterwards.
struct Met {
    ran: Run,
    took: Duration,
    is_captured: bool,
}

impl Met {
    fn print(&self, side: Side, fault: &str) {
        let Self { ran, took, is_captured } = self;
        let seconds = took.as_secs_f64();
        println!(
            "| {side:?} | {fault} | code {:?} after {seconds:.1} s, captured: {is_captured} |",
            ran.code
        );
        ran.out.lines().filter(|line| line.contains("msg")).for_each(|line| println!("{line}"));
    }
}

/// Makes an ADD while the network of the API server is in this state, lets `meet` happen meanwhile, and looks whether
/// the pod is captured.
fn add(node: &mut Node, network: Network, meet: impl FnOnce(&mut Node, &Pod)) -> Met {
    let ((pod, peer), clients) = (linked(), Clients::new());
    node.put("shop", &pod, &json!({}), &json!({}));
    node.name(&pod);
    if node.side == Side::Gybe {
        wait_until("the agent knows the pod", || node.agent().metric("gybe_pods") > 0.0);
    }
    let call = node.call(&pod, &json!({}));
    node.cluster.server.set_network(network).unwrap();
    thread::scope(|scope| {
        let ends = EndOnDrop(&clients);
        clients.serve(scope, &pod.netns);
        let timed = || {
            let start = Instant::now();
            (make(&call), start.elapsed())
        };
        let adding = scope.spawn(timed);
        meet(node, &pod);
        let (ran, took) = adding.join().unwrap();
        // Without ztunnel's listeners a captured connection is refused.
        let before = node.forwarded();
        let is_captured = connect(&peer, POD).is_err() || node.forwarded() > before;
        drop(ends);
        Met { ran, took, is_captured }
    })
}

#[test]
fn an_add_that_meets_an_api_server_that_is_away_or_fails() {
    for side in SIDES {
        let away = alone(|| {
            let mut node = Node::start(side, &[]);
            add(&mut node, Network::Refusing, |_, _| ())
        });
        away.print(side, "API server away");
        let failing = alone(|| {
            let mut node = Node::start(side, &[]);
            // istio-cni tries twice, a second apart, to get the pod and its namespace.
            let fault = Fault::always(FaultKind::Fails(500)).at(Verb::Get).times(4);
            node.cluster.server.add_fault(fault);
            add(&mut node, Network::Open, |_, _| ())
        });
        failing.print(side, "API server fails for a second");
        for met in [away, failing] {
            assert!(side != Side::Gybe || (met.ran.code == Some(0) && met.is_captured), "{:?}", met.ran);
        }
    }
}

#[test]
fn an_add_whose_agent_is_killed() {
    for side in SIDES {
        let met = alone(|| {
            let mut node = Node::start(side, &[]);
            node.ztunnel.set_fault(ztunnel::Fault { hung: true, ..ztunnel::Fault::default() });
            add(&mut node, Network::Open, |node, pod| {
                let added = format!("add {}", pod.uid());
                wait_until("ztunnel has the pod", || node.ztunnel.observed().requests.contains(&added));
                node.kill_agents();
                node.ztunnel.set_fault(ztunnel::Fault::default());
                node.start_agents();
            })
        });
        met.print(side, "agent killed");
        assert!(side != Side::Gybe || (met.ran.code == Some(0) && met.is_captured), "{:?}", met.ran);
    }
}
