//! ADDs without a fault: the pod's connections, what is left when it ends, and pods of other kinds on the same node.

use crate::fixture::{MODE, Node, Pod, inspect, is_ambient, observe};
use gybe_demo::testnet::listener::{ListenAddress, Listeners, ListeningPort, ServerName};
use gybe_demo::testnet::namespace::{LinkEnd, Namespace, join};
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_installer::sandboxes::probe_exemption::ExemptedPods;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::InterfaceName;
use gybe_netfilter::model::ruleset::Transport;
use gybe_plugin::probe_cache::EXEMPTED_PODS;
use gybe_test_support::{PATIENCE, wait_until};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;

const PORT: u16 = 8080;

/// A client and a pod, joined by a link, with an application that replies with the client's address.
struct Pair {
    client: Arc<Namespace>,
    pod: Arc<Namespace>,
    _applications: [Listeners; 2],
}

const CLIENT: [&str; 2] = ["10.7.1.1", "fd07:1::1"];
const POD: [&str; 2] = ["10.7.1.2", "fd07:1::2"];

impl Pair {
    fn new() -> Self {
        let [client, pod] = std::array::from_fn(|_| Arc::new(Namespace::new().unwrap()));
        let end = |namespace, name, [v4, v6]: [&str; 2]| LinkEnd {
            namespace,
            name: InterfaceName::parse(name).unwrap(),
            addresses: [format!("{v4}/24"), format!("{v6}/64")].map(|it| it.parse().unwrap()).to_vec(),
        };
        join(&end(&client, "pod", CLIENT), &end(&pod, "client", POD)).unwrap();
        let application = |namespace, name| {
            let ports =
                vec![ListeningPort { transport: Transport::Tcp, port: PORT, address: ListenAddress::Any }];
            Listeners::start(namespace, Owner { uid: 0, gid: 0 }, ServerName::Name(name), ports).unwrap()
        };
        let _applications = [application(&client, "client"), application(&pod, "pod")];
        Self { client, pod, _applications }
    }
}

/// Connects from a namespace; returns what the listener there replies, or the error.
fn request(from: &Namespace, to: &str) -> Result<String, ErrorKind> {
    let to = SocketAddr::new(to.parse::<IpAddr>().unwrap(), PORT);
    from.run(|| {
        let mut reply = String::new();
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE).map_err(|why| why.kind())?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_to_string(&mut reply).map_err(|why| why.kind())?;
        match reply.parse() {
            Ok(ConnectionOutcome::Replied(reply)) => Ok(format!("{} src={}", reply.by, reply.source)),
            other => panic!("{reply}: {other:?}"),
        }
    })
    .unwrap()
}

/// Makes a request, and returns its reply and the lines that ztunnel has logged for it.
fn forwarded(
    ztunnel: &gybe_integration::ztunnel::Ztunnel,
    from: &Namespace,
    to: &str,
) -> (Result<String, ErrorKind>, Vec<String>) {
    let before = ztunnel.observed().forwarded.len();
    let reply = request(from, to);
    (reply, ztunnel.observed().forwarded.split_off(before))
}

#[test]
fn an_ambient_pod_is_in_the_mesh_when_its_add_has_returned_on_every_backend() {
    for backend in ["nft", "iptables-nft", "iptables-legacy"] {
        let node = Node::with_settings(&format!("ambient-{backend}"), &[("backend", backend)]);
        let (ztunnel, pair) = (node.ztunnel(&[]), Pair::new());
        let pod = Pod::new("shop", "cart").put(&node);
        node.added(&pod, &pair.pod);
        for (from, to, reply, line) in [
            (&pair.client, POD[0], "pod src=10.7.1.1", "15006 10.7.1.1 > 10.7.1.2:8080"),
            (&pair.client, POD[1], "pod src=fd07:1::1", "15006 fd07:1::1 > [fd07:1::2]:8080"),
            (&pair.pod, CLIENT[0], "client src=10.7.1.2", "15001 10.7.1.2 > 10.7.1.1:8080"),
            (&pair.pod, CLIENT[1], "client src=fd07:1::2", "15001 fd07:1::2 > [fd07:1::1]:8080"),
        ] {
            let found = forwarded(&ztunnel, from, to);
            assert_eq!(found, (Ok(reply.to_owned()), vec![line.to_owned()]), "{backend}");
        }
        let line = node.agent().wait_for_line(|line| line["msg"] == "gybe-cni cmdAdd");
        assert_eq!((&line["decision"], &line["tool"]), (&json!("ambient"), &json!(backend)));
        let checked = node.call("CHECK", &pod, &pair.pod);
        assert_eq!(checked.code, Some(0), "{checked:?}");
        // The kubelet may repeat an ADD; ztunnel gets nothing new.
        node.added(&pod, &pair.pod);
        assert_eq!(ztunnel.observed().requests, ["snapshot-sent", "add uid-cart"], "{backend}");
        // Without ztunnel the pod is closed, and CHECK, which judges the rules, passes.
        drop(ztunnel);
        // A connection that its listener has not accepted yet is reset.
        wait_until("its listeners are closed", || {
            let why = request(&pair.client, POD[0]).unwrap_err();
            assert!(matches!(why, ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset), "{why:?}");
            why == ErrorKind::ConnectionRefused
        });
    }
}

#[test]
fn a_check_reports_lost_rules() {
    let (node, pod_netns) = (Node::start("ambient-check"), Namespace::new().unwrap());
    let (_ztunnel, pod) = (node.ztunnel(&[]), Pod::new("shop", "cart").put(&node));
    node.added(&pod, &pod_netns);
    gybe_integration::programs::ours("gybe", &["remove", "--netns", &crate::fixture::path(&pod_netns)], "")
        .unwrap();
    let checked = node.call("CHECK", &pod, &pod_netns);
    assert!(checked.code == Some(1) && checked.out.contains("GYBE-CHECK-025"), "{checked:?}");
}

#[test]
fn when_a_pod_ends_ztunnel_forgets_it_and_its_namespace_is_closed() {
    let node = Node::start("ambient-ends");
    let ztunnel = node.ztunnel(&[]);
    let [deleted, ended] = ["deleted", "ended"].map(|name| Pod::new("shop", name).put(&node));
    let netns: [Namespace; 2] = std::array::from_fn(|_| Namespace::new().unwrap());
    for (pod, netns) in [&deleted, &ended].into_iter().zip(&netns) {
        node.added(pod, netns);
        assert!(node.holds(netns));
    }
    node.wait_for_pods(2.0);
    deleted.delete(&node);
    // A Job's pod stays in the API server.
    node.server.put_pod(ended.object("Succeeded"));
    node.wait_for_pods(0.0);
    let observed = observe(&ztunnel, "ztunnel has no pods", |observed| observed.proxies.is_empty());
    assert!(observed.requests.iter().any(|it| it == "del uid-deleted"), "{observed:?}");
    assert!(observed.requests.iter().any(|it| it == "del uid-ended"), "{observed:?}");
    wait_until("the namespaces are closed", || !netns.iter().any(|netns| node.holds(netns)));
}

#[test]
fn pods_of_other_kinds_on_the_node_are_as_without_ambient_mode() {
    let node = Node::start("ambient-others");
    let ztunnel = node.ztunnel(&[]);
    let netns = || {
        let netns = Namespace::new().unwrap();
        netns.run(|| gybe_integration::namespace::sh("ip address add 10.244.0.10/32 dev lo")).unwrap();
        netns
    };
    // A sidecar has precedence over the label.
    let sidecar =
        Pod::new("shop", "sidecar").with_labels(json!({ MODE: "ambient" })).with_sidecar().put(&node);
    let of_sidecar = netns();
    node.added(&sidecar, &of_sidecar);
    assert!(inspect(&of_sidecar).contains("outbound-to-proxy"), "{}", inspect(&of_sidecar));
    for plain in [Pod::new("plain", "a"), Pod::new("shop", "b").with_labels(json!({ MODE: "none" }))] {
        let (plain, netns) = (plain.put(&node), netns());
        node.added(&plain, &netns);
        assert!(inspect(&netns).starts_with("no rules of Gybe"), "{plain:?}: {}", inspect(&netns));
    }
    // The API server does not have it.
    node.refused(&Pod::new("shop", "unknown"), &netns(), "017", "does not know shop/unknown");
    // The plugin queries no source about an excluded namespace.
    node.added(&Pod::new("kube-system", "any"), &netns());
    assert_eq!(ztunnel.observed().requests, ["snapshot-sent"]);
    assert!(!is_ambient(&of_sidecar));
}

#[test]
fn the_addresses_of_ambient_pods_are_kept_for_the_exemption_of_probes_until_they_end() {
    let mut node = Node::start("ambient-probes");
    let (_ztunnel, pair, pod) = (node.ztunnel(&[]), Pair::new(), Pod::new("shop", "cart").put(&node));
    let kept = |node: &Node| ExemptedPods::kept_in(&node.shared_directory()).unwrap().unwrap().pods;
    node.added(&pod, &pair.pod);
    let addresses = BTreeSet::from(POD.map(|address| address.parse().unwrap()));
    let expected = BTreeMap::from([("uid-cart".to_owned(), addresses)]);
    wait_until("the pod's addresses", || kept(&node) == expected);
    node.kill_agent();
    node.start_agent();
    wait_until("the pods are known", || node.agent().metric("gybe_ambient_pods_kept") > 0.0);
    // A clean-up of the directory: the new agent, too, knows the addresses.
    fs::remove_file(node.shared_directory().join(EXEMPTED_PODS)).unwrap();
    wait_until("the file is back", || node.shared_directory().join(EXEMPTED_PODS).exists());
    assert_eq!(kept(&node), expected);
    pod.delete(&node);
    wait_until("no addresses", || kept(&node).is_empty());
}
