//! The agent's client against a real cluster, which it only reads. `KUBECONFIG` names the cluster and
//! `GYBE_NODE` the node, by default any. `make -C integration existing` runs them.
#![cfg(test)]

use gybe_installer::agent::pods::PodLookup;
use gybe_installer::agent::pods::WatchedPods;
use gybe_installer::cluster::{Cluster, DaemonSetState, daemonset_state, pod_facts};
use gybe_plugin::facts::wire::{self, FactsResponse};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

fn kubeconfig() -> PathBuf {
    std::env::var_os("KUBECONFIG").map(PathBuf::from).unwrap_or_else(|| {
        panic!(
            "these tests need a cluster to read: KUBECONFIG=$HOME/.kube/config make -C integration existing"
        )
    })
}

fn cluster() -> Cluster {
    Cluster::Kubeconfig { path: kubeconfig(), context: None }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// Returns what another client reads at this path.
fn read(path: &str) -> Value {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    runtime.block_on(async {
        let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig()).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        let client = kube::Client::try_from(config).unwrap();
        client.request(hyper::Request::get(path).body(Vec::new()).unwrap()).await.unwrap()
    })
}

fn node() -> String {
    let any = || {
        let pods = read("/api/v1/pods?limit=100");
        let node = pods["items"].as_array().unwrap().iter().find_map(|pod| pod["spec"]["nodeName"].as_str());
        node.expect("some pod of the cluster runs on a node").to_owned()
    };
    std::env::var("GYBE_NODE").unwrap_or_else(|_| any())
}

fn query(pod: &Value) -> String {
    let metadata = &pod["metadata"];
    let [namespace, name, uid] = ["namespace", "name", "uid"].map(|key| metadata[key].clone());
    json!({ "version": 1, "namespace": namespace, "name": name, "uid": uid }).to_string()
}

#[test]
fn every_pod_of_a_node_is_returned_as_the_api_server_has_it() {
    let node = node();
    let watched = WatchedPods::start(&cluster(), &node, None).unwrap();
    let until = soon();
    while !watched.state().synced {
        assert!(Instant::now() < until, "{:?}", watched.state());
        thread::sleep(Duration::from_millis(10));
    }
    let pods = read(&format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}"));
    let pods = pods["items"].as_array().unwrap();
    assert!(!pods.is_empty(), "node {node} has no pod");
    for pod in pods {
        let reference = wire::decode_request(query(pod).as_bytes()).unwrap().pod;
        let before = Instant::now();
        let answer = watched.wait_for(&reference, soon());
        assert!(before.elapsed() < Duration::from_millis(250), "{reference}: {:?}", before.elapsed());
        let alone = pod_facts(&cluster(), query(pod).as_bytes(), soon()).unwrap();
        assert_eq!(answer, wire::decode_response(alone.as_bytes()).unwrap(), "{reference}");
        assert!(
            matches!(answer, FactsResponse::Pod(facts) if pod["metadata"]["uid"] == facts.uid),
            "{reference}"
        );
    }
}

#[test]
fn missing_objects_are_not_returned() {
    let watched = WatchedPods::start(&cluster(), &node(), None).unwrap();
    let absent = json!({ "metadata": { "namespace": "default", "name": "gybe-test-absent", "uid": "u" } });
    let reference = wire::decode_request(query(&absent).as_bytes()).unwrap().pod;
    assert_eq!(watched.wait_for(&reference, soon()), FactsResponse::Unknown);
    assert_eq!(daemonset_state(&cluster(), "default", "gybe-test-absent", soon()), DaemonSetState::Absent);
}
