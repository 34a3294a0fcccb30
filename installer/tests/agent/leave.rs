//! `gybe leave` with an API server, and with agents on a node.

use crate::api_requests::used_rights;
use crate::node::{FILE, PRIMARY};
use crate::with_api_server::Cluster;
use gybe_api_server::Verb;
use gybe_test_support::{Agent, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

const CONFIG_MAP: &str = "gybe-config";
const REPORT: &str = "uninstalled; no program stays";
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

/// Puts a DaemonSet that should run on so many nodes, with its ConfigMap.
fn put_daemonset(cluster: &Cluster, name: &str, nodes: usize) {
    put_config_map(cluster, &config_map_of(name));
    put_daemonset_alone(cluster, name, nodes);
}

fn config_map_of(daemonset: &str) -> String {
    daemonset.replace("gybe-node", CONFIG_MAP)
}

fn put_daemonset_alone(cluster: &Cluster, name: &str, nodes: usize) {
    let labels = json!({ "app.kubernetes.io/name": "gybe-node" });
    let metadata = json!({ "namespace": "gybe-system", "name": name, "labels": labels });
    let volumes = json!([
        { "name": "run", "hostPath": { "path": "/run/gybe" } },
        { "name": "config", "configMap": { "name": config_map_of(name) } },
    ]);
    let spec = json!({ "template": { "spec": { "volumes": volumes } } });
    let status = json!({ "desiredNumberScheduled": nodes });
    let daemonset = json!({ "kind": "DaemonSet", "metadata": metadata, "spec": spec, "status": status });
    cluster.server.put(daemonset).unwrap();
}

/// Puts the pod of an agent whose page is at this port.
fn put_agent(cluster: &Cluster, name: &str, node: Option<&str>, address: Option<&str>, port: &str) {
    let labels = json!({ "app.kubernetes.io/name": "gybe-node" });
    let metadata = json!({ "namespace": "gybe-system", "name": name, "uid": name, "labels": labels });
    let container = json!({ "name": "install", "env": [{ "name": "HEALTH_PORT", "value": port }] });
    let mut pod = json!({ "kind": "Pod", "metadata": metadata, "spec": { "containers": [container] } });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    if let Some(address) = address {
        pod["status"] = json!({ "hostIP": address });
    }
    cluster.server.put_pod(pod);
}

fn start(cluster: &Cluster, arguments: &[&str]) -> Child {
    start_with(cluster, arguments, &[])
}

fn start_with(cluster: &Cluster, arguments: &[&str], variables: &[(&str, &str)]) -> Child {
    let agent = cluster.node.command();
    let environment = agent.get_envs().filter_map(|(name, value)| Some((name, value?)));
    #[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
    let mut gybe = Command::new(agent.get_program());
    gybe.arg("leave")
        .args(arguments)
        .env_clear()
        .envs(environment)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
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

#[test]
fn the_command_sets_the_mode_and_waits_until_the_agent_has_removed_the_entry() {
    let cluster = cluster("leave");
    put_daemonset(&cluster, "gybe-node", 1);
    let agent = cluster.start_ready_agent();
    put_agent(&cluster, "gybe-node-x7k2p", Some("node-1"), Some("127.0.0.1"), &port_of(&agent));
    assert!(cluster.node.entry(FILE).is_some());
    let leave = start(&cluster, &["--timeout", "60"]);
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
    put_daemonset(&cluster, "gybe-node", 3);
    put_daemonset(&cluster, "gybe-node-canary", 2);
    let agent = cluster.start_ready_agent();
    let port = port_of(&agent);
    put_agent(&cluster, "gybe-node-a", Some("node-a"), Some("127.0.0.1"), &port);
    put_agent(&cluster, "gybe-node-b", Some("node-b"), Some("127.0.0.2"), &port);
    put_agent(&cluster, "gybe-node-c", None, None, &port);
    put_agent(&cluster, "gybe-node-canary-d", Some("node-d"), None, &port);
    put_agent(&cluster, "gybe-node-canary-e", Some("node-e"), Some("127.0.0.1"), "0");
    let (code, text) = ended(start(&cluster, &["--timeout", "5"]));
    assert_eq!(code, 1, "{text}");
    for line in [
        "- node-a: no uninstall requested\n",
        "- node-b: 127.0.0.2:",
        "- the pod gybe-node-c has no node yet\n",
        "- node-d: the pod gybe-node-canary-d does not run yet\n",
        "- node-e: the agent of the pod gybe-node-canary-e serves no page (HEALTH_PORT)\n",
        "- 4 of 5 nodes have an agent\n",
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
fn without_an_agent_nothing_is_left_and_a_cluster_that_refuses_is_named() {
    let cluster = cluster("leave-none");
    for nodes in [None, Some(0)] {
        if let Some(nodes) = nodes {
            put_daemonset(&cluster, "gybe-node", nodes);
        }
        let (code, text) = ended(start(&cluster, &["--timeout", "60"]));
        assert_eq!(code, 1, "{text}");
        assert!(text.starts_with("no agent runs in the namespace gybe-system"), "{text}");
    }
    cluster.server.forbid(Verb::List, "pods");
    let (code, text) = ended(start(&cluster, &["--timeout", "5"]));
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("403"), "{text}");
}

#[test]
fn the_mode_is_set_again_until_it_is_set() {
    let cluster = cluster("leave-retry");
    put_daemonset_alone(&cluster, "gybe-node", 0);
    let (code, text) = ended(start(&cluster, &["--timeout", "5"]));
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("cannot set mode: leave in the ConfigMap gybe-config") && text.contains("404"),
        "{text}"
    );
    let leave = start(&cluster, &["--timeout", "60"]);
    let patches = || cluster.server.requests().iter().filter(|request| request.method == "PATCH").count();
    wait_until("a second attempt", || patches() >= 3);
    put_config_map(&cluster, CONFIG_MAP);
    wait_until("the ConfigMap", || data(&cluster, CONFIG_MAP)["mode"] == "leave");
    assert_eq!(ended(leave).0, 1, "no agent runs");
}

#[test]
fn a_mode_that_was_changed_back_while_the_command_waited_is_set_again() {
    let cluster = cluster("leave-reverted");
    cluster.server.permit(Verb::Get, "pods/proxy");
    put_daemonset(&cluster, "gybe-node", 2);
    put_agent(&cluster, "gybe-node-a", Some("node-a"), Some("192.0.2.1"), "8001");
    put_agent(&cluster, "gybe-node-b", Some("node-b"), Some("192.0.2.2"), "8001");
    cluster.server.set_page("gybe-node-a", 8001, REPORT);
    let kubeconfig = cluster.server.kubeconfig(&cluster.node.root).unwrap();
    let leave = start(&cluster, &["--kubeconfig", kubeconfig.to_str().unwrap(), "--timeout", "60"]);
    let queries = |pod: &str| cluster.server.requests().iter().filter(|it| it.path.contains(pod)).count();
    // node-a has left by then.
    wait_until("a second round of queries", || {
        ["gybe-node-a:8001", "gybe-node-b:8001"].iter().all(|page| queries(page) >= 2)
    });
    let before = queries("gybe-node-a:8001");
    put_config_map(&cluster, CONFIG_MAP);
    wait_until("mode: leave is set again", || data(&cluster, CONFIG_MAP)["mode"] == "leave");
    cluster.server.set_page("gybe-node-b", 8001, REPORT);
    let (code, text) = ended(leave);
    assert_eq!(code, 0, "{text}");
    assert!(queries("gybe-node-a:8001") > before);
}

#[test]
fn a_kubeconfig_that_cannot_be_read_ends_the_command_also_in_a_pod() {
    let cluster = cluster("leave-unreadable");
    put_daemonset(&cluster, "gybe-node", 1);
    let missing = cluster.node.root.join("kubeconfig-that-is-not-there");
    let missing = missing.to_str().unwrap();
    let by_argument = start(&cluster, &["--kubeconfig", missing]);
    let by_variable = start_with(&cluster, &[], &[("KUBECONFIG", missing)]);
    for leave in [by_argument, by_variable] {
        let (code, text) = ended(leave);
        assert!(code == 2 && text.contains(missing), "{code}: {text}");
    }
    assert_eq!(data(&cluster, CONFIG_MAP)["mode"], "install");
}

#[test]
fn the_page_of_another_program_is_no_answer() {
    let cluster = cluster("leave-other");
    put_daemonset(&cluster, "gybe-node", 1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    put_agent(&cluster, "gybe-node-a", Some("node-a"), Some("127.0.0.1"), &port);
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let read = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n").unwrap();
        read
    });
    let (code, text) = ended(start(&cluster, &["--timeout", "5"]));
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("responded 200, not as an agent: ok"), "{text}");
    assert!(server.join().unwrap() > 0);
}

#[test]
fn with_a_kubeconfig_the_agents_are_queried_through_the_api_server() {
    let cluster = cluster("leave-kubeconfig");
    cluster.server.permit(Verb::Get, "pods/proxy");
    put_daemonset(&cluster, "gybe-node", 2);
    put_agent(&cluster, "gybe-node-a", Some("node-a"), Some("192.0.2.1"), "8001");
    put_agent(&cluster, "gybe-node-b", Some("node-b"), Some("192.0.2.2"), "8001");
    let kubeconfig = cluster.server.kubeconfig(&cluster.node.root).unwrap();
    let run = |timeout| {
        ended(start(&cluster, &["--kubeconfig", kubeconfig.to_str().unwrap(), "--timeout", timeout]))
    };
    cluster.server.set_page("gybe-node-a", 8001, REPORT);
    let (code, text) = run("5");
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with(&format!("node-a: {REPORT}\nGybe is not removed")), "{text}");
    assert!(text.contains("- node-b: error trying to reach service"), "{text}");
    cluster.server.set_page("gybe-node-b", 8001, "ok");
    assert!(run("5").1.contains("- node-b: 192.0.2.2:8001 responded 200, not as an agent: ok"));
    cluster.server.set_page("gybe-node-b", 8001, REPORT);
    let (code, text) = run("60");
    assert_eq!(code, 0, "{text}");
    let server = cluster.server.url();
    let named = format!(
        "no conf file names gybe-cni on any node that has an agent\n\
         context gybe, {server}\nthe namespace gybe-system has agents for 2 nodes\n"
    );
    assert!(text.ends_with(&named), "{text}");
    assert_eq!(data(&cluster, CONFIG_MAP)["mode"], "leave");
}

#[test]
fn on_a_terminal_the_command_asks_and_changes_nothing_without_a_yes() {
    let cluster = cluster("leave-asks");
    cluster.server.permit(Verb::Get, "pods/proxy");
    put_daemonset(&cluster, "gybe-node", 1);
    put_agent(&cluster, "gybe-node-a", Some("node-a"), Some("192.0.2.1"), "8001");
    cluster.server.set_page("gybe-node-a", 8001, REPORT);
    let kubeconfig = cluster.server.kubeconfig(&cluster.node.root).unwrap();
    let run = |flag: &str, answer: &str| {
        let gybe = env!("CARGO_BIN_EXE_gybe");
        let command = format!("{gybe} leave {flag} --timeout 30 --kubeconfig {}", kubeconfig.display());
        #[expect(clippy::disallowed_methods, reason = "script gives the program a terminal")]
        let mut script = Command::new("timeout");
        script.args(["90", "script", "--quiet", "--return", "--command", &command, "/dev/null"]);
        script.env("SHELL", "/bin/sh").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut script = script.spawn().unwrap();
        script.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
        ended(script)
    };
    let question = "Remove Gybe from 1 node? Pods that start afterwards are not redirected. [y/N]";
    for answer in ["n\n", "\n", "yesterday\n"] {
        let (code, text) = run("", answer);
        assert!(
            code == 2 && text.contains(question) && text.contains("nothing was changed"),
            "{code}: {text}"
        );
        assert_eq!(data(&cluster, CONFIG_MAP)["mode"], "install");
    }
    for (flag, answer, asks) in [("", "y\n", true), ("--yes", "", false)] {
        put_config_map(&cluster, CONFIG_MAP);
        let (code, text) = run(flag, answer);
        assert!(code == 0 && text.contains(question) == asks, "{code}: {text}");
        assert_eq!(data(&cluster, CONFIG_MAP)["mode"], "leave");
    }
}

#[test]
fn a_kubeconfig_without_rights_or_with_refused_credentials_ends_the_command_at_once() {
    let cluster = cluster("leave-unauthorized");
    put_daemonset(&cluster, "gybe-node", 1);
    let kubeconfig = cluster.server.kubeconfig(&cluster.node.root).unwrap();
    let run = || ended(start(&cluster, &["--kubeconfig", kubeconfig.to_str().unwrap(), "--timeout", "60"]));
    put_agent(&cluster, "gybe-node-a", Some("node-a"), Some("192.0.2.1"), "8001");
    let rights = [(Verb::Get, "pods/proxy"), (Verb::Patch, "configmaps"), (Verb::List, "daemonsets")];
    for (verb, resource) in rights {
        cluster.server.permit(Verb::Get, "pods/proxy");
        // The command waits for the agent that has not left, when the API server begins to refuse it.
        put_config_map(&cluster, CONFIG_MAP);
        let waiting = start(&cluster, &["--kubeconfig", kubeconfig.to_str().unwrap(), "--timeout", "60"]);
        wait_until("the ConfigMap", || data(&cluster, CONFIG_MAP)["mode"] == "leave");
        cluster.server.forbid(verb, resource);
        for (code, text) in [ended(waiting), run()] {
            assert!(code == 2 && text.contains("403"), "{resource}: {code}: {text}");
            assert!(text.contains("the rights that --help names"), "{resource}: {text}");
        }
        cluster.server.permit(verb, resource);
    }
    cluster.server.tokens().revoke_all();
    let (code, text) = run();
    assert!(code == 2 && text.contains("401") && text.contains("renew the credentials"), "{code}: {text}");
}
