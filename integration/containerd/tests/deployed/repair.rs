//! The container `repair` on a node whose pods started while Gybe was not in the runtime's chain.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use gybe_api_server::Verb;
use gybe_containerd_tests::sandbox::PodNetwork;
use gybe_containerd_tests::{Generation, Sandbox, manifest};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::{Cluster, NODE};
use crate::daemonset_pod::{DaemonSetPod, set_config};
use crate::pod::{APPLICATION, OUTSIDE, OutsideClient, RunningPod};

const PODS: usize = 50;

/// The message of a repair.
const REDIRECTED: &str = "gybe repair: redirected a running pod";

/// Rules under istio-cni's names, with each of its engines, that redirect outbound connections.
const CHAINS: &str = "iptables -t nat -N ISTIO_REDIRECT && \
    iptables -t nat -A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001 && \
    iptables -t nat -N ISTIO_OUTPUT && iptables -t nat -A OUTPUT -p tcp -j ISTIO_OUTPUT && \
    iptables -t nat -A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN && \
    iptables -t nat -A ISTIO_OUTPUT -p tcp -j ISTIO_REDIRECT";
const TABLE: &str = "nft 'table inet istio-proxy-nat { chain output { type nat hook output priority -100; \
    meta skuid != 1337 meta l4proto tcp redirect to :15001; }; }'";

/// What a pod that must stay as it is has, and is.
struct Untouched {
    what: &'static str,
    pod: RunningPod,
    /// The rules of every owner.
    rules: String,
    /// The listener that an outbound connection of the application reaches.
    reaches: &'static str,
}

/// Returns the rules of every owner in the network namespace of a sandbox.
fn rules(cluster: &Cluster, id: &str) -> String {
    sh(cluster, id, "nft --stateless list ruleset && iptables-legacy-save -t nat | grep ^-A; true")
}

/// Runs a shell command in the network namespace of a sandbox.
fn sh(cluster: &Cluster, id: &str, command: &str) -> String {
    let netns = cluster.node.cri.sandbox_status(id).unwrap().netns;
    // A sandbox in the node's network has none of its own.
    let netns = netns.map_or_else(|| "/proc/1/ns/net".to_owned(), |path| path.display().to_string());
    let arguments = [&format!("--net={netns}"), "sh", "-c", command];
    cluster.node.host().run(Path::new("nsenter"), &arguments).unwrap()
}

fn start(cluster: &Cluster, sandbox: &Sandbox) -> RunningPod {
    RunningPod::in_sandbox(&cluster.node, cluster.node.cri.run(sandbox).unwrap())
}

/// Starts the pods that must stay as they are.
fn start_untouched(cluster: &Cluster) -> Vec<Untouched> {
    let (excluded, foreign) =
        (Sandbox::injected("kube-system", "excluded"), |name| Sandbox::injected("shop", name));
    let unmeshed = Sandbox::new("shop", "unmeshed");
    let mut unmeshed_manifest = manifest::plain(&unmeshed);
    unmeshed_manifest["spec"]["nodeName"] = NODE.into();
    cluster.api.put_pod(unmeshed_manifest);
    for sandbox in [&excluded, &foreign("chains"), &foreign("table")] {
        cluster.schedule(sandbox);
    }
    // The API server has another pod of the same name: this one was deleted, and its sandbox is still there.
    let replaced = foreign("replaced");
    let mut successor = manifest::injected(&replaced);
    successor["spec"]["nodeName"] = NODE.into();
    successor["metadata"]["uid"] = json!("00000000-70b7-4d3c-9a51-2b8f0a6f3c11");
    cluster.api.put_pod(successor);
    [
        ("in an excluded namespace", excluded, "true", "outside"),
        ("unmeshed", unmeshed, "true", "outside"),
        ("redirected by istio-cni's chains", foreign("chains"), CHAINS, "envoy:15001"),
        ("redirected by istio-cni's table", foreign("table"), TABLE, "envoy:15001"),
        ("of another uid", replaced, "true", "outside"),
    ]
    .map(|(what, sandbox, command, reaches)| {
        let pod = start(cluster, &sandbox);
        sh(cluster, &pod.id, command);
        let rules = rules(cluster, &pod.id);
        Untouched { what, pod, rules, reaches }
    })
    .into()
}

/// Starts meshed pods.
fn start_meshed(cluster: &Cluster, count: usize) -> Vec<RunningPod> {
    let sandboxes: Vec<_> =
        (0..count).map(|number| Sandbox::injected("shop", &format!("cart-{number}"))).collect();
    sandboxes.iter().for_each(|sandbox| cluster.schedule(sandbox));
    let ids = cluster.node.cri.run_all(&sandboxes).unwrap();
    ids.into_iter().map(|id| RunningPod::in_sandbox(&cluster.node, id)).collect()
}

/// The time from the start of the container `repair` to each repair in its log.
fn repair_times(agent: &DaemonSetPod<'_>) -> Vec<Duration> {
    let started = Timestamp::from_nanosecond(agent.status("repair").started_at.into()).unwrap();
    let log = agent.log("repair");
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(&line[line.find('{')?..]).ok());
    let repairs = lines.filter(|line| line["msg"] == REDIRECTED);
    let time = |line: Value| line["time"].as_str().unwrap().parse::<Timestamp>().unwrap();
    repairs.map(|line| time(line).duration_since(started).unsigned_abs()).collect()
}

fn wait_for_repairs(agent: &DaemonSetPod<'_>, what: &str) {
    agent.wait_for("all repairs", || repair_times(agent).len() >= PODS);
    let mut times = repair_times(agent);
    times.sort();
    assert_eq!(times.len(), PODS, "{}", agent.logs());
    println!(
        "{what}: the first of {PODS} pods was redirected after {:?}, the last after {:?}",
        times[0],
        times[PODS - 1]
    );
}

fn assert_untouched(cluster: &Cluster, untouched: &[Untouched]) {
    let outside = OutsideClient::new(&cluster.node);
    for Untouched { what, pod, rules: before, reaches } in untouched {
        assert_eq!(&rules(cluster, &pod.id), before, "{what}");
        assert_eq!(&outside.connect(pod.addresses[0], 8080), "app", "{what}");
        assert_eq!(&pod.connect(APPLICATION, OUTSIDE[0], 80), *reaches, "{what}");
    }
}

/// Returns the names of the API server's pods, and of those that have the label of `repair: label`.
fn pods_and_labelled(cluster: &Cluster) -> [BTreeSet<String>; 2] {
    let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
    let is_labelled = |pod: &&Value| pod["metadata"]["labels"]["cni.istio.io/uninitialized"] == "true";
    let pods = cluster.api.objects("Pod");
    [pods.iter().map(name).collect(), pods.iter().filter(is_labelled).map(name).collect()]
}

#[test]
fn label_and_delete_change_the_objects_of_the_pods_that_are_not_redirected_and_no_rules() {
    let cluster = Cluster::new(Generation::V2);
    cluster.api.permit(Verb::Delete, "pods");
    cluster.api.permit(Verb::Patch, "pods/status");
    let (pods, untouched) = (start_meshed(&cluster, 5), start_untouched(&cluster));
    let broken: BTreeSet<_> = (0..pods.len()).map(|number| format!("cart-{number}")).collect();
    let [all, _] = pods_and_labelled(&cluster);
    let set = |mode: &str| set_config(&cluster.node, &[("repair", mode)]);
    let agent = DaemonSetPod::start_with(&cluster, || set("label"));
    agent.wait_for("the labels", || pods_and_labelled(&cluster)[1].len() >= broken.len());
    assert_eq!(pods_and_labelled(&cluster), [all.clone(), broken.clone()]);
    set("delete");
    agent.wait_for("the deletions", || pods_and_labelled(&cluster)[0].len() <= all.len() - broken.len());
    assert_eq!(pods_and_labelled(&cluster)[0], &all - &broken);
    let outside = OutsideClient::new(&cluster.node);
    for pod in &pods {
        assert_eq!(&outside.connect(pod.addresses[0], 8080), "app", "its rules are not written");
    }
    drop(outside);
    assert_untouched(&cluster, &untouched);
    // What a controller creates in their place.
    let replacement = Sandbox::injected("shop", "cart-new");
    cluster.schedule(&replacement);
    cluster.assert_redirected(&[start(&cluster, &replacement)]);
}

#[test]
fn fifty_pods_that_started_without_gybe_are_redirected_and_no_other_pod_is_touched() {
    let cluster = Cluster::new(Generation::V2);
    let (pods, untouched) = (start_meshed(&cluster, PODS), start_untouched(&cluster));
    let of_node = Sandbox { network: PodNetwork::Host, ..Sandbox::injected("shop", "of-node") };
    cluster.schedule(&of_node);
    let of_node = cluster.node.cri.run(&of_node).unwrap();
    let rules_of_node = rules(&cluster, &of_node);
    let outside = OutsideClient::new(&cluster.node);
    for pod in &pods {
        assert_eq!(&outside.connect(pod.addresses[0], 8080), "app", "the control: no pod is redirected");
    }
    drop(outside);

    let mut agent = DaemonSetPod::start(&cluster);
    wait_for_repairs(&agent, "a new node");
    cluster.assert_redirected(&pods);

    // The rules are lost, and the agent and the probe's report are there when the container starts.
    agent.wait_for("ready", || agent.is_ready());
    agent.stop("repair");
    for pod in &pods {
        sh(&cluster, &pod.id, "nft delete table inet gybe");
    }
    agent.start_container("repair");
    wait_for_repairs(&agent, "a node whose agent runs");
    cluster.assert_redirected(&pods);

    assert_untouched(&cluster, &untouched);
    assert_eq!(rules(&cluster, &of_node), rules_of_node, "the node's own namespace");
}
