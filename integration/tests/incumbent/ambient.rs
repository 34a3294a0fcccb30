//! The same ambient pods by Gybe's agent and plugin, and by those of istio-cni.

use crate::clients::{Clients, EndOnDrop, PEER, POD, connect, echoes, linked};
use crate::node::Pod;
use crate::side::{MODE, Node, SIDES, Side, alone, make};
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::flow_check::{Rules, Until, differences};
use gybe_integration::namespace::{allow_many_sockets, in_parallel};
use gybe_integration::programs::ours;
use gybe_integration::topology::Topology;
use gybe_integration::vectors::Location;
use gybe_integration::vectors::ambient::{AmbientVector, recorded};
use gybe_netfilter::model::policy::ambient::{AmbientDns, AmbientInbound, AmbientPolicy};
use gybe_netfilter::model::policy::{Families, InterfaceName};
use gybe_test_support::{wait_for_at_most, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// The number of networks that exist at the same time.
const TOPOLOGIES: usize = 16;

/// The settings that both agents have for the node, by their names.
fn variables(policy: &AmbientPolicy) -> Vec<(&'static str, String)> {
    vec![
        ("AMBIENT_IPV6", (policy.families == Families::V4AndV6).to_string()),
        ("HOST_PROBE_SNAT_IP", policy.probes.v4().to_string()),
        ("HOST_PROBE_SNAT_IPV6", policy.probes.v6().to_string()),
    ]
}

/// The annotations of a pod with this policy.
fn annotations(policy: &AmbientPolicy) -> Value {
    let interfaces: Vec<&str> = policy.virtual_interfaces.iter().map(InterfaceName::as_str).collect();
    json!({
        "ambient.istio.io/bypass-inbound-capture": (policy.inbound == AmbientInbound::Bypassed).to_string(),
        "ambient.istio.io/dns-capture": (policy.dns == AmbientDns::Captured).to_string(),
        "istio.io/reroute-virtual-interfaces": interfaces.join(","),
    })
}

#[test]
fn after_the_add_of_each_program_every_connection_of_an_ambient_pod_has_its_recorded_outcome() {
    let mut wrong: Vec<String> = Vec::new();
    let mut rest = recorded().unwrap();
    while let Some(first) = rest.first() {
        let of_node = variables(&first.policy);
        let (vectors, others): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|it| variables(&it.policy) == of_node);
        for side in SIDES {
            wrong.extend(alone(|| compare(side, &vectors)));
        }
        rest = others;
    }
    assert!(wrong.is_empty(), "{} connections: {wrong:#?}", wrong.len());
}

/// Returns the connections with another outcome; prints the number of those that DIFFERENCES.md explains.
fn compare(side: Side, vectors: &[AmbientVector]) -> Vec<String> {
    let node = Node::start(side, &variables(&vectors[0].policy));
    let (mut made, mut explained, mut wrong) = (0, 0, Vec::new());
    let mut number = 0;
    for some in vectors.chunks(TOPOLOGIES) {
        let mut topologies = Vec::new();
        for vector in some {
            let topology = Topology::before_ztunnel(&vector.flows).unwrap();
            let netns = Namespace::open(&topology.at(Location::Pod).path()).unwrap();
            number += 1;
            let pod = Pod { number, netns };
            let ran = node.add(&pod, &annotations(&vector.policy));
            assert_eq!(ran.code, Some(0), "{side:?} {}: {ran:?}", vector.name);
            assert!(node.cluster.server.delete_pod("shop", &pod.name()));
            topologies.push(topology);
        }
        // The listeners of the recorded network take the ports.
        wait_until("ztunnel serves no pod", || node.ztunnel.observed().proxies.is_empty());
        topologies.iter_mut().for_each(|topology| topology.start_ztunnel().unwrap());
        let found = in_parallel(some.iter().zip(&topologies).collect(), |(vector, topology)| {
            differences(topology, &vector.flows, Rules::Present, Until::End).unwrap()
        });
        for (vector, found) in some.iter().zip(found) {
            made += vector.flows.len();
            for difference in found {
                // Its rules without an address capture IPv6 that is off.
                let is_explained = side == Side::IstioNft
                    && vector.policy.families == Families::V4Only
                    && difference.id.starts_with("v6.");
                match is_explained {
                    true => explained += 1,
                    false => wrong.push(format!("{side:?} {}: {difference}", vector.name)),
                }
            }
        }
    }
    let (policies, wrong_now) = (vectors.len(), wrong.len());
    println!(
        "{side:?}: {policies} policies, {made} connections, {wrong_now} other outcomes, {explained} explained"
    );
    wrong
}

/// ADDs one after the other, and rounds of ADDs at once.
const SINGLE: u32 = 21;
const ROUNDS: u32 = 5;
const AT_ONCE: u32 = 50;

#[test]
fn the_time_of_an_add() {
    allow_many_sockets();
    for side in SIDES {
        let [single, at_once] = alone(|| {
            let node = Node::start(side, &[]);
            let single = (0..SINGLE).map(|number| time(&node, number..number + 1)).collect();
            let first = |round| SINGLE + round * AT_ONCE;
            let at_once = (0..ROUNDS).map(|round| time(&node, first(round)..first(round + 1))).collect();
            [single, at_once].map(median)
        });
        println!("| {side:?} | one ADD {single:.1} ms | {AT_ONCE} at once {at_once:.0} ms |");
    }
}

/// Makes the ADDs of these pods at once; returns the time from the first start to the last end, in milliseconds.
fn time(node: &Node, numbers: Range<u32>) -> f64 {
    let pods: Vec<Pod> = numbers.map(Pod::new).collect();
    let none = json!({});
    for pod in &pods {
        node.put("shop", pod, &none, &none);
        node.name(pod);
    }
    let start = Barrier::new(pods.len());
    let make = |pod: &Pod| {
        let call = node.call(pod, &none);
        start.wait();
        let before = Instant::now();
        let ran = make(&call);
        assert_eq!(ran.code, Some(0), "{:?}: {ran:?}", node.side);
        (before, Instant::now())
    };
    let times: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = pods.iter().map(|pod| scope.spawn(|| make(pod))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let served = node.ztunnel.observed().proxies;
    for pod in &pods {
        assert!(served.contains(&pod.uid()));
        assert!(node.cluster.server.delete_pod("shop", &pod.name()));
    }
    wait_until("ztunnel serves no pod", || node.ztunnel.observed().proxies.is_empty());
    let first = times.iter().map(|(start, _)| *start).min().unwrap();
    let last = times.iter().map(|(_, end)| *end).max().unwrap();
    (last - first).as_secs_f64() * 1e3
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// How many pods get the label and lose it.
const CHANGES: usize = 5;

/// The clients' connections before and after each change.
const CONNECTIONS: usize = 40;

/// Longer than a client waits for an answer.
const HUNG: Duration = Duration::from_secs(90);

#[test]
fn connections_while_a_running_pod_gets_the_label_and_loses_it() {
    for side in SIDES {
        let changes: Vec<Changed> = (0..CHANGES).map(|_| alone(|| change_the_label(side))).collect();
        let enrolled = median(changes.iter().map(|it| it.enrolled_after.as_secs_f64() * 1e3).collect());
        let made: usize = changes.iter().map(|it| it.made).sum();
        let mut failed: BTreeMap<&str, usize> = BTreeMap::new();
        changes.iter().flat_map(|it| &it.failed).for_each(|why| *failed.entry(why).or_default() += 1);
        println!(
            "| {side:?} | enrolled after {enrolled:.0} ms | of {made} connections failed: {failed:#?} |"
        );
        assert!(side != Side::Gybe || failed.is_empty());
    }
}

/// What the clients of a pod saw that got the label and lost it.
struct Changed {
    enrolled_after: Duration,
    made: usize,
    /// When and why connections failed.
    failed: Vec<String>,
}

fn change_the_label(side: Side) -> Changed {
    let node = Node::start(side, &[]);
    let ((pod, peer), clients) = (linked(), Clients::new());
    node.run("plain", &pod);
    let (enrolled_after, leaves) = thread::scope(|scope| {
        let ends = EndOnDrop(&clients);
        clients.connect_both_ways(scope, &pod.netns, &peer);
        clients.wait_for_more(CONNECTIONS);
        let start = Instant::now();
        node.label("plain", &pod, &json!({ MODE: "ambient" }));
        wait_until("the pod is annotated", || node.is_annotated(&pod));
        let enrolled_after = start.elapsed();
        let captured = node.forwarded() + CONNECTIONS;
        let goes_on = wait_for_at_most(HUNG, || (node.forwarded() > captured).then_some(()));
        assert!(goes_on.is_some(), "{side:?}");
        let leaves = Instant::now();
        node.label("plain", &pod, &json!({}));
        wait_until("ztunnel has forgotten it", || node.ztunnel.observed().proxies.is_empty());
        wait_until("no annotation", || !node.is_annotated(&pod));
        let captured = node.forwarded();
        let direct = (0..CONNECTIONS).filter(|_| connect(&peer, POD).is_ok()).count();
        assert_eq!(direct, CONNECTIONS, "{side:?}");
        // The clients' last captured connections may be logged now.
        assert!(node.forwarded() <= captured + 2, "{side:?}");
        drop(ends);
        (enrolled_after, leaves)
    });
    let attempts = clients.into_attempts();
    let failed = attempts.iter().filter_map(|attempt| {
        let when = if attempt.end < leaves { "with the label" } else { "after it" };
        Some(format!("{when}: {}", attempt.failure.as_ref()?))
    });
    Changed { enrolled_after, made: attempts.len(), failed: failed.collect() }
}

#[test]
fn a_running_pod_of_istio_cni_goes_over_to_gybe_and_every_connection_is_captured_and_goes_on() {
    for side in [Side::IstioNft, Side::IstioIptables] {
        alone(|| go_over(side));
    }
}

fn go_over(side: Side) {
    let mut node = Node::start(side, &[]);
    let ((pod, peer), clients) = (linked(), Clients::new());
    node.run("plain", &pod);
    node.label("plain", &pod, &json!({ MODE: "ambient" }));
    wait_until("the pod is annotated", || node.is_annotated(&pod));
    let path = pod.netns.path().display().to_string();
    let is_of_gybe = || {
        let arguments = ["verify", "--netns", &path, "--policy", "-"];
        let verified = ours("gybe", &arguments, r#"{ "kind": "ambient" }"#).unwrap();
        (verified.code == Some(0)).then_some(())
    };
    assert!(is_of_gybe().is_none());
    let ways = [(&peer, POD), (&pod.netns, PEER)];
    thread::scope(|scope| {
        let ends = EndOnDrop(&clients);
        clients.connect_both_ways(scope, &pod.netns, &peer);
        let open = || ways.map(|(from, to)| connect(from, to).unwrap().0);
        let before = open();
        node.kill_agents();
        node.side = Side::Gybe;
        node.start_agents();
        assert!(wait_for_at_most(HUNG, is_of_gybe).is_some(), "{side:?}: {}", pod.rules());
        let after = open();
        clients.wait_for_more(CONNECTIONS);
        assert!(before.iter().chain(&after).all(echoes), "{side:?}");
        drop(ends);
    });
    let (answered, failures) = clients.into_failures();
    assert_eq!(failures, Vec::<String>::new(), "{side:?}");
    wait_until("each connection was captured", || node.forwarded() == answered + 2 * ways.len());
    assert!(node.is_annotated(&pod));
}
