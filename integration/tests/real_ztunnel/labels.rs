//! Pods that run are enrolled and taken out while clients connect all the time.

use crate::BACKENDS;
use crate::ambient_node::{CAPTURES, MODE, has_no_rules, inspect, wait_for_rules};
use crate::clients::{Clients, EndOnDrop, connect, echoes};
use crate::world::{HOST, World, addresses};
use gybe_integration::namespace::with_own_mounts;
use gybe_test_support::wait_until;
use serde_json::json;
use std::net::TcpStream;
use std::thread;

#[test]
fn a_running_pod_is_enrolled_and_taken_out_without_a_refused_connection_with_every_backend() {
    for backend in BACKENDS {
        with_own_mounts(|| change_the_label(backend));
    }
}

fn change_the_label(backend: &str) {
    let world = World::start(&format!("ztunnel-label-{backend}"), backend);
    let (node, host) = (&world.node, &world.host);
    node.ztunnel().wait_until_ready();
    let pod = world.running("plain", 4);
    let (own, clients) = (addresses(4), Clients::new());
    let rounds = 3;
    thread::scope(|scope| {
        let ends = EndOnDrop(&clients);
        clients.serve(scope, &pod.netns);
        clients.serve(scope, host);
        for (own, of_host) in own.iter().zip(HOST) {
            clients.connect(scope, host, own, of_host);
            clients.connect(scope, &pod.netns, of_host, own);
        }
        for _ in 0..rounds {
            let logged = node.ztunnel().access_log().len();
            let before = connect(host, &own[0]).unwrap().0;
            node.label("plain", &pod, &json!({ MODE: "ambient" }));
            wait_for_rules(&pod);
            let captured = [connect(host, &own[0]).unwrap().0, connect(&pod.netns, HOST[1]).unwrap().0];
            wait_until("ztunnel logs connections", || node.ztunnel().access_log().len() > logged + 100);
            let works = |streams: &[TcpStream]| streams.iter().all(echoes);
            assert!(echoes(&before) && works(&captured), "{backend}");
            node.label("plain", &pod, &json!({}));
            wait_until("new connections are not captured", || !inspect(&pod).contains(CAPTURES));
            assert!(echoes(&before) && works(&captured), "{backend}: open connections go on");
            drop(captured);
            wait_until("no rules", || has_no_rules(&pod));
            assert!(echoes(&before), "{backend}");
            let is_closed =
                |port| pod.netns.run(|| TcpStream::connect(("127.0.0.1", port)).is_err()).unwrap();
            wait_until("ztunnel has closed its listeners", || {
                [15001, 15006, 15008].into_iter().all(is_closed)
            });
        }
        drop(ends);
    });
    let (answered, failures) = clients.into_failures();
    println!("{backend}: {rounds} times in and out, {answered} connections answered");
    assert_eq!(failures, Vec::<String>::new(), "{backend}");
}
