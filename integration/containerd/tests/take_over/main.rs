//! Gybe replaces Istio's own istio-cni on a node full of its pods. Needs what the DaemonSet's tests need, and Istio's
//! program: make -C integration take-over
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]
#![allow(clippy::print_stdout, reason = "the tests print what they measured")]
#![allow(dead_code, reason = "the modules are shared with the tests of other targets")]

#[path = "../deployed/cluster.rs"]
mod cluster;
#[path = "../deployed/daemonset_pod.rs"]
mod daemonset_pod;
#[path = "../deployed/kubelet.rs"]
mod kubelet;
#[path = "../runtime/pod.rs"]
mod pod;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use gybe_containerd_tests::node::CONFLIST;
use gybe_containerd_tests::{Conflist, Generation, Sandbox, containerd};
use gybe_test_support::wait_until;
use serde_json::{Value, json};

use cluster::Cluster;
use daemonset_pod::DaemonSetPod;
use pod::RunningPod;

/// The pods of each of istio-cni's engines.
const PODS: usize = 25;
/// The directory of istio-cni's kubeconfig on the test node.
const ISTIO: &str = "/run/istio-cni";
/// libcni's cache of results.
const RESULTS: &str = "/var/lib/cni/results";

/// Returns the path of Istio's program. A test is in target/PROFILE/deps.
fn istio_cni() -> PathBuf {
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned();
    let program = target.join("incumbent/istio-cni");
    assert!(program.is_file(), "there is no {}; run: make -C integration take-over", program.display());
    program
}

/// Returns the conflist with istio-cni's entry, as its installer writes it.
fn with_istio_cni(is_native: bool) -> Conflist {
    Conflist::reference_plugins(Generation::V2).with_plugin(json!({
        "type": "istio-cni", "plugin_log_level": "info", "cni_agent_run_dir": ISTIO, "ambient_enabled": false,
        "exclude_namespaces": ["kube-system"], "pod_namespace": "istio-system", "native_nftables": is_native,
    }))
}

fn conflist(cluster: &Cluster) -> PathBuf {
    cluster.node.host().path(containerd::CONF_DIR).join(CONFLIST)
}

/// Replaces the conflist as its owner does, and waits until containerd has loaded it.
fn write_conflist(cluster: &Cluster, list: &Conflist) {
    let text = list.text(0);
    let (path, loaded): (_, Value) = (conflist(cluster), serde_json::from_str(&text).unwrap());
    fs::write(path.with_extension("new"), text).unwrap();
    fs::rename(path.with_extension("new"), path).unwrap();
    let is_loaded = || cluster.node.cri.loaded_network().unwrap().conflist.as_ref() == Some(&loaded);
    wait_until("containerd has loaded the conflist", is_loaded);
}

/// Starts the pods of one engine.
fn start(cluster: &Cluster, engine: &str) -> Vec<RunningPod> {
    let sandbox = |number| Sandbox::injected("shop", &format!("{engine}-{number}"));
    let sandboxes: Vec<_> = (0..PODS).map(sandbox).collect();
    sandboxes.iter().for_each(|sandbox| cluster.schedule(sandbox));
    let ids = cluster.node.cri.run_all(&sandboxes).unwrap();
    ids.into_iter().map(|id| RunningPod::in_sandbox(&cluster.node, id)).collect()
}

/// Returns the rules of every owner in a pod's network namespace.
fn rules(cluster: &Cluster, pod: &RunningPod) -> String {
    let netns = cluster.node.cri.sandbox_status(&pod.id).unwrap().netns.unwrap();
    let arguments = [&format!("--net={}", netns.display()), "nft", "--stateless", "list", "ruleset"];
    cluster.node.host().run(Path::new("nsenter"), &arguments).unwrap()
}

#[test]
fn fifty_pods_of_istio_cni_stay_redirected_once_and_are_deleted_after_gybe_has_replaced_it() {
    let cluster = Cluster::new(Generation::V2);
    let host = cluster.node.host();
    let program = host.path(containerd::BIN_DIR).join("istio-cni");
    host.install(&istio_cni(), &format!("{}/istio-cni", containerd::BIN_DIR)).unwrap();
    let directory = host.path(ISTIO);
    fs::create_dir_all(&directory).unwrap();
    fs::rename(cluster.api.kubeconfig(&directory).unwrap(), directory.join("istio-cni-kubeconfig")).unwrap();
    let mut pods = Vec::new();
    for (engine, is_native, marks) in [
        ("iptables", false, ["chain ISTIO_OUTPUT", "chain ISTIO_INBOUND"]),
        ("nft", true, ["table inet istio-proxy-nat", "istio"]),
    ] {
        write_conflist(&cluster, &with_istio_cni(is_native));
        for pod in start(&cluster, engine) {
            let rules = rules(&cluster, &pod);
            assert!(marks.iter().all(|mark| rules.contains(mark)), "{engine}: {rules}");
            pods.push((pod, rules));
        }
    }

    // istio-cni's agent ends, and takes its program away. Gybe's agent starts.
    fs::remove_file(&program).unwrap();
    let agent = DaemonSetPod::start(&cluster);
    agent.wait_for("ready", || agent.is_ready());
    let is_last = || cluster.node.cri.loaded_network().unwrap().plugins == ["bridge", "portmap", "gybe-cni"];
    agent.wait_for("containerd has loaded Gybe's entry in place of istio-cni's", is_last);
    let next = Sandbox::injected("shop", "next");
    cluster.schedule(&next);
    let next = RunningPod::in_sandbox(&cluster.node, cluster.node.cri.run(&next).unwrap());
    cluster.assert_redirected(std::slice::from_ref(&next));
    for (pod, before) in &pods {
        assert_eq!(&rules(&cluster, pod), before, "no rule of Gybe is added");
    }
    let (mut pods, _): (Vec<_>, Vec<_>) = pods.into_iter().unzip();
    cluster.assert_redirected(&pods);

    // The connections end with the pods' processes, and then the runtime deletes all at the same time.
    pods.push(next);
    let ids: Vec<_> = pods.into_iter().map(|pod| pod.id).collect();
    let started = Instant::now();
    for (id, stopped) in ids.iter().zip(cluster.node.cri.stop_concurrently(&ids)) {
        stopped.unwrap_or_else(|error| panic!("{id} is stuck: {error}"));
        cluster.node.cri.remove(id).unwrap();
    }
    println!("{} pods were deleted in {:?}", ids.len(), started.elapsed());
    assert_eq!(host.pod_links().unwrap(), [""; 0]);
    assert_eq!(fs::read_dir(host.path(RESULTS)).unwrap().count(), 0);
}
