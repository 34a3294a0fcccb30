//! `gybe leave` with an API server, and with agents on a node.

use crate::events::used_rights;
use crate::node::PRIMARY;
use crate::with_api_server::{Cluster, FILE};
use gybe_api_server::Verb;
use gybe_test_support::{Agent, wait_until};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

const CONFIG_MAP: &str = "gybe-config";
/// The rights of the chart's Job (`installer/tests/overlays/chart.rs`).
const RIGHTS: [[&str; 3]; 3] =
    [["", "configmaps", "patch"], ["", "pods", "list"], ["apps", "daemonsets", "list"]];

/// A cluster in which the service account has the rights of the agent and of the Job.
fn cluster(name: &str) -> Cluster {
    let cluster = Cluster::new(name);
    cluster.server.permit(Verb::Patch, "configmaps");
    cluster.server.permit(Verb::List, "daemonsets");
    cluster
}

fn put_config_map(cluster: &Cluster, name: &str) {
    let metadata = json!({ "namespace": "gybe-system", "name": name });
    let data = json!({ "mode": "install", "backend": "auto" });
    cluster.server.put(json!({ "kind": "ConfigMap", "metadata": metadata, "data": data })).unwrap();
}

fn data(cluster: &Cluster, name: &str) -> Value {
    let maps = cluster.server.objects("ConfigMap");
    maps.iter().find(|map| map["metadata"]["name"] == name).unwrap()["data"].clone()
}

/// Puts a DaemonSet that should run on so many nodes.
fn put_daemonset(cluster: &Cluster, name: &str, nodes: usize) {
    let labels = json!({ "app.kubernetes.io/name": "gybe-node" });
    let metadata = json!({ "namespace": "gybe-system", "name": name, "labels": labels });
    let status = json!({ "desiredNumberScheduled": nodes });
    cluster.server.put(json!({ "kind": "DaemonSet", "metadata": metadata, "status": status })).unwrap();
}

fn put_agent(cluster: &Cluster, name: &str, node: Option<&str>, address: Option<&str>) {
    let labels = json!({ "app.kubernetes.io/name": "gybe-node" });
    let metadata = json!({ "namespace": "gybe-system", "name": name, "uid": name, "labels": labels });
    let mut pod = json!({ "kind": "Pod", "metadata": metadata, "spec": { "containers": [] } });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    if let Some(address) = address {
        pod["status"] = json!({ "hostIP": address });
    }
    cluster.server.put_pod(pod);
}

fn start(cluster: &Cluster, arguments: &[&str]) -> Child {
    let agent = cluster.node.command();
    let environment = agent.get_envs().filter_map(|(name, value)| Some((name, value?)));
    #[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
    let mut gybe = Command::new(agent.get_program());
    gybe.arg("leave")
        .args(arguments)
        .env_clear()
        .envs(environment)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Returns the exit code and the output.
fn ended(child: Child) -> (i32, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    (status.code().unwrap(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

fn port_of(agent: &Agent) -> String {
    agent.address("health").rsplit_once(':').unwrap().1.to_owned()
}

/// A port at which nothing listens.
fn closed_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

#[test]
fn the_command_sets_the_mode_and_waits_until_the_agent_has_removed_the_entry() {
    let mut cluster = cluster("leave");
    put_config_map(&cluster, CONFIG_MAP);
    put_daemonset(&cluster, "gybe-node", 1);
    put_agent(&cluster, "gybe-node-x7k2p", Some("node-1"), Some("127.0.0.1"));
    let agent = cluster.start_ready_agent();
    assert!(cluster.node.entry(FILE).is_some());
    let port = port_of(&agent);
    let leave = start(&cluster, &["--port", &port, "--timeout", "60"]);
    wait_until("the ConfigMap", || data(&cluster, CONFIG_MAP)["mode"] == "leave");
    assert_eq!(data(&cluster, CONFIG_MAP)["backend"], "auto", "other keys stay");
    // As the kubelet does.
    cluster.node.set_configmap(&[("mode", "leave")]);
    let (code, text) = ended(leave);
    assert_eq!((code, cluster.node.entry(FILE)), (0, None), "{text}");
    assert!(text.contains("node-1: uninstalled") && text.contains("no conf file names gybe-cni"), "{text}");
    assert_eq!(cluster.node.conf_text(FILE), PRIMARY);
}

#[test]
fn the_command_names_every_node_that_has_not_answered() {
    let cluster = cluster("leave-late");
    put_config_map(&cluster, CONFIG_MAP);
    put_config_map(&cluster, "gybe-config-canary");
    put_daemonset(&cluster, "gybe-node", 3);
    put_daemonset(&cluster, "gybe-node-canary", 2);
    let agent = cluster.start_ready_agent();
    let port = port_of(&agent);
    put_agent(&cluster, "gybe-node-a", Some("node-a"), Some("127.0.0.1"));
    put_agent(&cluster, "gybe-node-b", Some("node-b"), Some("127.0.0.2"));
    put_agent(&cluster, "gybe-node-c", None, None);
    put_agent(&cluster, "gybe-node-canary-d", Some("node-d"), None);
    let maps = ["--config-map", CONFIG_MAP, "--config-map", "gybe-config-canary"];
    let (code, text) = ended(start(&cluster, &[&maps[..], &["--port", &port, "--timeout", "0"]].concat()));
    assert_eq!(code, 1, "{text}");
    for line in [
        "- node-a: no uninstall requested\n",
        "- node-b: 127.0.0.2:",
        "- the pod gybe-node-c has no node yet\n",
        "- node-d: the pod gybe-node-canary-d does not run yet\n",
        "- 3 of 5 nodes have an agent\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert_eq!(data(&cluster, "gybe-config-canary")["mode"], "leave");
    let used = used_rights(&cluster);
    for right in RIGHTS {
        assert!(used.contains(&right.map(str::to_owned).into()), "{right:?}");
    }
}

#[test]
fn a_cluster_without_agents_is_left_and_one_that_refuses_is_an_error() {
    let cluster = cluster("leave-none");
    let (code, text) = ended(start(&cluster, &["--timeout", "0"]));
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("the ConfigMap gybe-config") && text.contains("404"), "{text}");
    put_config_map(&cluster, CONFIG_MAP);
    let (code, text) = ended(start(&cluster, &["--port", &closed_port(), "--timeout", "0"]));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("no agent runs"), "{text}");
    cluster.server.forbid(Verb::List, "pods");
    let (code, text) = ended(start(&cluster, &["--timeout", "0"]));
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("403"), "{text}");
}
