//! Snapshots, additions and ends, with one ztunnel and several, and over restarts of either side.

use crate::fixture::{Server, faulty, listening, namespaces, observe, open, pod, ready, ztunnel};
use gybe_demo::testnet::namespace::{LinkEnd, Namespace, join};
use gybe_installer::agent::ztunnel::{AddError, AmbientPods};
use gybe_integration::namespace::allow_many_sockets;
use gybe_integration::ztunnel::Fault;
use gybe_netfilter::kernel::routes::Rtnetlink;
use gybe_netfilter::model::policy::InterfaceName;
use gybe_test_support::{PATIENCE, TestDir, wait_until};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const LISTENERS: [u16; 4] = [15001, 15006, 15008, 15053];

#[test]
fn a_ztunnel_receives_a_snapshot_and_then_what_changes() {
    let directory = TestDir::new("zds-snapshot");
    let (server, [a, b, d]) = (Server::start(&directory), namespaces());
    server.pods.adopt(pod("a"), Some(open(&a)));
    server.pods.adopt(pod("b"), Some(open(&b)));
    server.pods.adopt(pod("c"), None);
    assert_eq!((server.pods.status().connected, server.pods.status().pending), (0, 3));
    let ztunnel = ztunnel(&directory);
    assert_eq!(ready(&ztunnel).requests, ["add a", "add b", "keep c", "snapshot-sent"]);
    wait_until("the snapshot is acknowledged", || server.pods.status().is_snapshot_acknowledged);
    let status = server.pods.status();
    assert_eq!((status.connected, status.pods, status.without_netns, status.pending), (1, 3, 1, 0));
    assert_eq!((status.counts.acknowledged.count, status.counts.refused), (4, 0));
    assert_eq!(status.longest_pending, None);
    assert_eq!(
        [listening(&a), listening(&b), listening(&d)],
        [LISTENERS.to_vec(), LISTENERS.to_vec(), vec![]]
    );

    server.add("d", &d).unwrap();
    assert_eq!(listening(&d), LISTENERS);
    assert!(server.remove("a") && !server.remove("a"));
    let observed = observe(&ztunnel, "a is ended", |observed| !observed.proxies.contains("a"));
    assert_eq!(observed.requests[4..], ["add d", "del a"]);
    assert_eq!([listening(&a), listening(&b)], [vec![], LISTENERS.to_vec()]);
}

#[test]
fn the_same_namespace_is_not_sent_again_and_another_one_is() {
    let directory = TestDir::new("zds-namespace");
    let (server, [first, second]) = (Server::start(&directory), namespaces());
    let ztunnel = ztunnel(&directory);
    ready(&ztunnel);
    for namespace in [&first, &first, &second] {
        server.add("a", namespace).unwrap();
    }
    let requests = ztunnel.observed().requests;
    assert_eq!(requests, ["snapshot-sent", "add a", "add a"]);
    assert_eq!([listening(&first), listening(&second)], [vec![], LISTENERS.to_vec()]);
}

#[test]
fn an_addition_waits_for_a_ztunnel_and_leaves_nothing_without_one() {
    let directory = TestDir::new("zds-absent");
    let (server, [a]) = (Server::start(&directory), namespaces());
    let refused = server.add_within("a", &a, Duration::from_millis(100)).unwrap_err();
    assert!(matches!(refused, AddError::NotConnected), "{refused}");
    assert_eq!(server.pods.status().pods, 0);
    std::thread::scope(|scope| {
        let added = scope.spawn(|| server.add("a", &a));
        wait_until("the pod is pending", || server.pods.status().pending == 1);
        let ztunnel = ztunnel(&directory);
        added.join().unwrap().unwrap();
        assert_eq!(ready(&ztunnel).requests, ["add a", "snapshot-sent"]);
    });
}

#[test]
fn the_newest_ztunnel_receives_additions_and_each_one_the_end_of_its_pods() {
    let directory = TestDir::new("zds-two");
    let (server, [a, b, c]) = (Server::start(&directory), namespaces());
    server.add_within("x", &a, Duration::ZERO).unwrap_err();
    server.pods.adopt(pod("a"), Some(open(&a)));
    let old = ztunnel(&directory);
    ready(&old);
    let new = ztunnel(&directory);
    ready(&new);
    server.add("b", &b).unwrap();
    server.remove("a");
    for ztunnel in [&old, &new] {
        observe(ztunnel, "a is ended", |observed| !observed.proxies.contains("a"));
    }
    assert_eq!(old.observed().requests, ["add a", "snapshot-sent", "del a"]);
    assert_eq!(new.observed().requests, ["add a", "snapshot-sent", "add b", "del a"]);
    assert_eq!(server.pods.status().connected, 2);

    // The older one takes the place of the newest.
    drop(new);
    let observed = observe(&old, "b is added", |observed| observed.proxies.contains("b"));
    assert_eq!(observed.proxies, BTreeSet::from(["b".to_owned()]));
    wait_until("b is acknowledged", || server.pods.status().pending == 0);
    server.add("c", &c).unwrap();
    assert_eq!([listening(&b), listening(&c)], [LISTENERS.to_vec(), LISTENERS.to_vec()]);
}

#[test]
fn a_new_server_keeps_proxies_whose_namespaces_it_does_not_know_yet() {
    let directory = TestDir::new("zds-keep");
    let [a, b] = namespaces();
    let server = Server::start(&directory);
    let ztunnel = ztunnel(&directory);
    server.add("a", &a).unwrap();
    server.add("b", &b).unwrap();
    drop(server);
    observe(&ztunnel, "ztunnel is not ready", |observed| !observed.is_ready);
    assert_eq!(listening(&a), LISTENERS);

    let pods = AmbientPods::default();
    pods.adopt(pod("a"), None);
    let server = Server::serving(pods, &directory, PATIENCE);
    let requests = ready(&ztunnel).requests;
    assert_eq!(requests[3..], ["keep a", "snapshot-sent"]);
    assert_eq!([listening(&a), listening(&b)], [LISTENERS.to_vec(), vec![]]);
    // A pod without a namespace is sent only in a snapshot.
    server.pods.adopt(pod("c"), None);
    server.pods.adopt(pod("a"), Some(open(&a)));
    let observed = observe(&ztunnel, "a is added", |observed| observed.requests.len() == 6);
    assert_eq!((observed.requests[5].as_str(), observed.exit), ("add a", None));
    wait_until("a has its namespace", || server.pods.status().without_netns == 1);
    wait_until("only c is pending: its namespace is not known", || server.pods.status().pending == 1);
    server.add_within("c", &b, PATIENCE).unwrap();
    assert_eq!(server.pods.status().pending, 0);
}

#[test]
fn a_hundred_pods_start_at_once() {
    allow_many_sockets();
    let directory = TestDir::new("zds-at-once");
    let server = Server::start(&directory);
    let ztunnel = ztunnel(&directory);
    let pods: [_; 100] = namespaces();
    let before = Instant::now();
    std::thread::scope(|scope| {
        for (number, namespace) in pods.iter().enumerate() {
            let server = &server;
            scope.spawn(move || server.add(&format!("u{number}"), namespace).unwrap());
        }
    });
    assert_eq!(ztunnel.observed().proxies.len(), 100);
    assert!(before.elapsed() < PATIENCE);
    for number in 0..100 {
        assert!(server.remove(&format!("u{number}")));
    }
    observe(&ztunnel, "all are ended", |observed| observed.proxies.is_empty());
}

#[test]
fn the_kernel_frees_the_namespace_of_a_pod_that_is_removed() {
    let directory = TestDir::new("zds-freed");
    let (server, [host, shop]) = (Server::start(&directory), namespaces());
    let ztunnel = ztunnel(&directory);
    let end =
        |namespace, name| LinkEnd { namespace, name: InterfaceName::parse(name).unwrap(), addresses: vec![] };
    join(&end(&host, "veth0"), &end(&shop, "eth0")).unwrap();
    let has_link =
        |host: &Namespace| host.run(|| Rtnetlink::open().unwrap().links().unwrap().len() > 1).unwrap();
    server.add("a", &shop).unwrap();
    assert_eq!(listening(&shop).len(), 4);
    ready(&ztunnel);
    drop(shop);
    assert!(has_link(&host), "ztunnel and the agent hold the namespace");
    server.remove("a");
    // The kernel deletes both ends of a link with the namespace of one.
    wait_until("the namespace is freed", || !has_link(&host));
}

#[test]
fn a_kept_pod_stays_when_a_hand_over_of_its_namespace_fails() {
    let directory = TestDir::new("zds-kept");
    let (server, [a, other]) = (Server::start(&directory), namespaces());
    server.pods.adopt(pod("a"), None);
    std::thread::scope(|scope| {
        let replaced = scope.spawn(|| server.add("a", &other));
        wait_until("the pod has a namespace", || server.pods.status().without_netns == 0);
        server.add_within("a", &a, Duration::ZERO).unwrap_err();
        assert!(matches!(replaced.join().unwrap(), Err(AddError::Superseded)));
    });
    let status = server.pods.status();
    assert_eq!((status.pods, status.without_netns, status.pending), (1, 1, 1));
    let ztunnel = ztunnel(&directory);
    assert_eq!(ready(&ztunnel).requests, ["keep a", "snapshot-sent"]);
    server.add("a", &a).unwrap();
    assert_eq!(listening(&a), LISTENERS);
}

#[test]
fn a_kept_pod_does_not_wait_for_ztunnel_after_it_has_refused_or_missed_a_hand_over() {
    let (directory, pods) = (TestDir::new("zds-kept-refused"), AmbientPods::default());
    let [a] = namespaces();
    pods.adopt(pod("a"), None);
    let server = Server::serving(pods, &directory, PATIENCE);
    let ztunnel = ztunnel(&directory);
    ready(&ztunnel);
    wait_until("the keep is acknowledged", || server.pods.status().pending == 0);
    let refuse = Some("no room".to_owned());
    let late = Fault { answer_after: Duration::from_millis(300), ..Fault::default() };
    for fault in [Fault { refuse, ..Fault::default() }, late] {
        ztunnel.set_fault(fault);
        server.add_within("a", &a, Duration::from_millis(100)).unwrap_err();
        let status = server.pods.status();
        assert_eq!((status.pods, status.without_netns, status.pending), (1, 1, 0));
        // Its late answer comes before the next request.
        ztunnel.set_fault(Fault::default());
    }
    server.add("a", &a).unwrap();
    assert_eq!((listening(&a), ztunnel.observed().connections), (LISTENERS.to_vec(), 1));
    assert!(server.remove("a"));
    observe(&ztunnel, "a is ended", |observed| observed.proxies.is_empty());
}

#[test]
fn an_older_ztunnel_ends_the_proxy_of_a_namespace_that_was_replaced() {
    let directory = TestDir::new("zds-replaced");
    let (server, [first, second]) = (Server::start(&directory), namespaces());
    let old = ztunnel(&directory);
    server.add("a", &first).unwrap();
    ready(&old);
    let new = ztunnel(&directory);
    ready(&new);
    server.add("a", &second).unwrap();
    observe(&old, "the old proxy is ended", |observed| observed.proxies.is_empty());
    assert_eq!([listening(&first), listening(&second)], [vec![], LISTENERS.to_vec()]);
    drop(new);
    observe(&old, "the old ztunnel serves the new namespace", |observed| observed.proxies.contains("a"));
    assert_eq!(listening(&second), LISTENERS);
}

#[test]
fn a_caller_is_answered_when_the_ztunnel_that_has_the_pod_becomes_the_newest_again() {
    let directory = TestDir::new("zds-again");
    let (server, [a]) = (Server::start(&directory), namespaces());
    let old = ztunnel(&directory);
    ready(&old);
    server.add("a", &a).unwrap();
    let hung = faulty(&directory, Fault { hung: true, ..Fault::default() });
    wait_until("it is the newest", || server.pods.status().connected == 2);
    std::thread::scope(|scope| {
        let added = scope.spawn(|| server.add_within("a", &a, PATIENCE / 2));
        std::thread::sleep(Duration::from_millis(100));
        drop(hung);
        added.join().unwrap().unwrap();
    });
    assert_eq!(old.observed().requests, ["snapshot-sent", "add a"]);
}
