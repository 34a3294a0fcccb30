//! The built `gybe status` with an API server that has the pods of agents and their pages.

use crate::TestCluster;
use gybe_api_server::Verb;
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PORT: u16 = 15014;

struct Run {
    code: i32,
    out: String,
    err: String,
}

impl Run {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|why| panic!("{why}: {}{}", self.out, self.err))
    }
}

/// A cluster that grants what `gybe status` needs.
fn cluster(test: &str) -> (TestCluster, PathBuf) {
    let cluster = TestCluster::new(test);
    cluster.server.permit(Verb::Get, "pods/proxy");
    let kubeconfig = cluster.server.kubeconfig(&cluster.directory).unwrap();
    (cluster, kubeconfig)
}

#[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
fn run(program: &Path, kubeconfig: &Path, arguments: &[&str]) -> Run {
    let mut command = Command::new(program);
    command.env_clear().env("KUBECONFIG", kubeconfig).arg("status").args(arguments);
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

fn status(kubeconfig: &Path, arguments: &[&str]) -> Run {
    run(Path::new(env!("CARGO_BIN_EXE_gybe")), kubeconfig, arguments)
}

/// Adds the pod of an agent.
fn put_agent(cluster: &TestCluster, name: &str, node: &str, change: impl FnOnce(&mut Value)) {
    let metadata = json!({
        "namespace": "gybe-system", "name": name, "labels": { "app.kubernetes.io/name": "gybe-node" },
    });
    let running = json!({ "name": "install", "state": { "running": {} } });
    let mut pod = json!({
        "kind": "Pod", "metadata": metadata, "spec": { "nodeName": node, "containers": [{ "name": "install" }] },
        "status": { "phase": "Running", "containerStatuses": [running] },
    });
    change(&mut pod);
    cluster.server.put_pod(pod);
}

fn set_page(cluster: &TestCluster, name: &str, page: &Value) {
    cluster.server.set_page(name, PORT, &page.to_string());
}

fn ready(version: &str) -> Value {
    json!({ "version": version, "backend": "nft", "pods": 12, "not_redirected": 0, "agent": { "ready": true } })
}

#[test]
fn nodes_without_a_problem_are_listed_and_the_exit_code_is_0() {
    let (cluster, kubeconfig) = cluster("status-well");
    put_agent(&cluster, "gybe-node-a", "node-1", |_| {});
    put_agent(&cluster, "gybe-node-b", "node-2", |_| {});
    set_page(&cluster, "gybe-node-a", &ready("0.1.0"));
    set_page(&cluster, "gybe-node-b", &ready("0.1.1"));
    // A pod of another DaemonSet, and an agent that is being deleted.
    put_agent(&cluster, "other", "node-1", |pod| pod["metadata"]["labels"] = json!({}));
    put_agent(&cluster, "old", "node-1", |pod| {
        pod["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z".into();
    });
    let found = status(&kubeconfig, &[]);
    let expected = "\
NODE    STATE  VERSION  BACKEND  PODS  NOT REDIRECTED
node-1  ready  0.1.0    nft      12    0
node-2  ready  0.1.1    nft      12    0

2 nodes: 2 ready; versions: 1 0.1.0, 1 0.1.1
";
    assert_eq!((found.code, found.out.as_str(), found.err.as_str()), (0, expected, ""));
    let json = status(&kubeconfig, &["--json"]).json();
    assert_eq!((&json["well"], json["nodes"].as_array().unwrap().len()), (&json!(true), 2));
    // As kubectl calls it.
    let plugin = cluster.directory.join("kubectl-gybe");
    symlink(env!("CARGO_BIN_EXE_gybe"), &plugin).unwrap();
    assert_eq!(run(&plugin, &kubeconfig, &[]).out, expected);
}

#[test]
fn each_problem_is_printed_below_its_node() {
    let (cluster, kubeconfig) = cluster("status-problems");
    let page = |agent: Value| json!({ "version": "0.1.0", "backend": "nft", "pods": 3, "agent": agent });
    for (pod, node, page) in [
        ("a", "not-ready", page(json!({ "ready": false, "reasons": ["no backend works\u{1b}[2J"] }))),
        ("b", "settings", page(json!({ "ready": true, "settings": "backend: x" }))),
        ("b2", "unwatched", page(json!({ "ready": true, "unwatched": "401" }))),
        (
            "c",
            "conflict",
            page(json!({ "ready": true, "conflicts": ["cilium rewrites 05-cilium.conflist"] })),
        ),
        ("d", "pods", json!({ "version": "0.1.0", "not_redirected": 2, "agent": { "ready": true } })),
        ("e", "garbage", json!("x")),
        ("f", "leaves", page(json!({ "ready": true, "leaves": true }))),
        ("g", "upgraded", page(json!({ "ready": true }))),
        ("h", "upgraded", page(json!({ "ready": false, "standby": true, "reasons": ["waits"] }))),
    ] {
        put_agent(&cluster, pod, node, |pod| {
            pod["spec"]["containers"].as_array_mut().unwrap().push(json!({ "name": "repair" }));
        });
        set_page(&cluster, pod, &page);
    }
    put_agent(&cluster, "i", "silent", |_| {});
    put_agent(&cluster, "k", "image", |pod| {
        pod["status"] = json!({ "phase": "Pending", "containerStatuses": [
            { "name": "install", "state": { "waiting": { "reason": "ImagePullBackOff" } } }
        ] });
    });
    let port = |pod: &mut Value, port: &str| {
        pod["spec"]["containers"][0]["env"] = json!([{ "name": "MONITORING_PORT", "value": port }]);
    };
    put_agent(&cluster, "l", "no-page", |pod| port(pod, "0"));
    put_agent(&cluster, "m", "other-port", |pod| port(pod, "9999"));
    cluster.server.set_page("m", 9999, &page(json!({ "ready": true })).to_string());
    put_agent(&cluster, "n", "repair", |pod| {
        let waits = json!({ "name": "repair", "state": { "waiting": { "reason": "CrashLoopBackOff" } } });
        pod["status"]["containerStatuses"].as_array_mut().unwrap().insert(0, waits);
    });
    set_page(&cluster, "n", &page(json!({ "ready": true })));
    let found = status(&kubeconfig, &[]);
    let hint =
        |command: &str| format!("hint: gybe doctor on a node prints the remedies, on conflict: {command}\n");
    let on_host = hint("kubectl -n gybe-system exec c -c repair -- gybe doctor");
    assert_eq!((found.code, &found.err), (1, &on_host), "{}", found.out);
    let below = |node: &str| {
        let mut lines = found.out.lines().skip_while(|line| !line.starts_with(&format!("{node} ")));
        let cells: Vec<&str> = lines.next().unwrap().split("  ").filter(|cell| !cell.is_empty()).collect();
        let state = cells[1].trim().to_owned();
        let problems: Vec<&str> = lines.take_while(|line| line.starts_with("    ")).map(str::trim).collect();
        (state, problems.join("\n"))
    };
    for (node, state, problem) in [
        ("not-ready", "NOT READY", "no backend works\\u{1b}[2J"),
        ("settings", "ready", "the ConfigMap is not followed: backend: x"),
        ("unwatched", "ready", "new pods are not known: 401"),
        ("conflict", "ready", "cilium rewrites 05-cilium.conflist"),
        ("pods", "ready", "2 pods should be redirected and may not be: gybe verify --all on the node"),
        ("garbage", "NO ANSWER", "pod e: the API server's answer is not a status"),
        ("leaves", "leaves", ""),
        ("upgraded", "ready", ""),
        ("image", "NOT RUNNING", "pod k: container install waits: ImagePullBackOff"),
        (
            "no-page",
            "NOT SERVED",
            "pod l: the agent serves no status, because MONITORING_PORT (metrics.port of the chart) is 0: set a port, \
             or run gybe doctor on the node",
        ),
        ("other-port", "ready", ""),
        ("repair", "ready", "pod n: container repair waits: CrashLoopBackOff"),
    ] {
        assert_eq!(below(node), (state.to_owned(), problem.to_owned()), "{}", found.out);
    }
    assert!(below("silent").1.contains("503: error trying to reach service"), "{}", found.out);
    let json = status(&kubeconfig, &["--json"]).json();
    let nodes = json["nodes"].as_array().unwrap();
    let failing = nodes.iter().filter(|node| node["problems"] != json!([]));
    assert_eq!((nodes.len(), failing.count(), &json["well"]), (13, 10, &json!(false)), "{json:#}");
    // Without a container `repair`, and with another context.
    put_agent(&cluster, "c", "conflict", |_| {});
    let found = status(&kubeconfig, &["--context", "gybe"]);
    let in_agent = "kubectl --context=\"gybe\" -n gybe-system exec c -c install -- gybe doctor --root /host";
    assert_eq!(found.err, hint(in_agent), "{}", found.out);
}

#[test]
fn a_node_whose_kubelet_is_hung_is_not_ready_whatever_its_agent_answers() {
    let (cluster, kubeconfig) = cluster("status-hung");
    let condition = |kind: &str, status: &str, message: &str| {
        json!({ "conditions": [
            { "type": "MemoryPressure", "status": "Unknown" },
            { "type": kind, "status": status, "message": message },
        ] })
    };
    let stopped = "Kubelet stopped posting node status.";
    for (node, pod_ready, node_status) in [
        ("hung", "False", Some(condition("Ready", "Unknown", stopped))),
        ("no-runtime", "False", Some(condition("Ready", "False", "container runtime is down\u{1b}[2J"))),
        ("removed", "False", None),
        ("probe-fails", "False", Some(condition("Ready", "True", ""))),
        // The page and the pod's condition decide; the node is not requested.
        ("well", "True", Some(condition("Ready", "Unknown", stopped))),
    ] {
        put_agent(&cluster, node, node, |pod| {
            pod["status"]["conditions"] =
                json!([{ "type": "Ready", "status": pod_ready, "message": "of the pod" }]);
        });
        set_page(&cluster, node, &ready("0.1.0"));
        if let Some(status) = node_status {
            cluster
                .server
                .put(json!({ "kind": "Node", "metadata": { "name": node }, "status": status }))
                .unwrap();
        }
    }
    let state = "the node is not ready in the cluster: its running pods keep their rules, and the kubelet or the runtime \
                 may start none";
    let of_pod = |node: &str| format!("pod {node} is not ready in the cluster: of the pod");
    let by_right = [
        (
            true,
            [
                ("hung", format!("{state}: its condition Ready is Unknown: {stopped}")),
                (
                    "no-runtime",
                    format!("{state}: its condition Ready is False: container runtime is down\u{1b}[2J"),
                ),
                ("probe-fails", of_pod("probe-fails")),
                ("removed", format!("{state}: it does not exist")),
            ],
        ),
        (false, ["hung", "no-runtime", "probe-fails", "removed"].map(|node| (node, of_pod(node)))),
    ];
    for (may_get_nodes, expected) in by_right {
        if may_get_nodes {
            cluster.server.permit(Verb::Get, "nodes");
        } else {
            cluster.server.forbid(Verb::Get, "nodes");
        }
        let found = status(&kubeconfig, &["--json"]);
        let json = found.json();
        let problems: Vec<_> = json["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|node| node["problems"].as_array().unwrap().iter().map(|it| (&node["node"], it)))
            .map(|(node, problem)| (node.as_str().unwrap(), problem.as_str().unwrap().to_owned()))
            .collect();
        assert_eq!((found.code, problems.as_slice()), (1, &expected[..]), "{}", found.err);
        let not_ready = if may_get_nodes { json!(3) } else { Value::Null };
        assert_eq!(json["states"]["NODE NOT READY"], not_ready, "{json:#}");
        let hung = if may_get_nodes { "NODE NOT READY" } else { "ready" };
        assert_eq!(json["nodes"][0]["state"], hung, "{json:#}");
    }
}

#[test]
fn a_refusal_or_a_cluster_without_agents_is_an_error_with_exit_code_2() {
    let (cluster, kubeconfig) = cluster("status-refused");
    let none = status(&kubeconfig, &[]);
    assert_eq!((none.code, none.out.as_str()), (2, ""));
    assert!(none.err.contains("namespace gybe-system has no pod with the labels"), "{}", none.err);
    for number in 0..3 {
        put_agent(&cluster, &format!("gybe-node-{number}"), &format!("node-{number}"), |_| {});
        set_page(&cluster, &format!("gybe-node-{number}"), &ready("0.1.0"));
    }
    cluster.server.forbid(Verb::Get, "pods/proxy");
    let refused = status(&kubeconfig, &[]);
    assert_eq!(
        (refused.code, refused.out.as_str(), refused.err.lines().count()),
        (2, "", 2),
        "{}",
        refused.err
    );
    assert!(refused.err.contains("403") && refused.err.contains("hint: grant"), "{}", refused.err);
    cluster.server.forbid(Verb::List, "pods");
    let refused = status(&kubeconfig, &[]);
    assert!(refused.code == 2 && refused.err.contains("403"), "{}", refused.err);
    for (arguments, says) in [
        (&["--context", "prod"][..], "has no context \"prod\""),
        (&["--kubeconfig", "/nowhere/config"], "/nowhere/config cannot be read"),
        (&["--namespace", "../x"], "no name of a namespace"),
    ] {
        let wrong = status(&kubeconfig, arguments);
        assert!(wrong.code == 2 && wrong.err.contains(says), "{arguments:?}: {}", wrong.err);
        assert!(!wrong.err.contains("eyJ"), "a token is printed: {}", wrong.err);
    }
}

#[test]
fn of_5000_nodes_every_one_is_reported_within_a_minute() {
    let (cluster, kubeconfig) = cluster("status-5000");
    for number in 0..5_000 {
        let name = format!("gybe-node-{number:04}");
        // As long as a real pod in a list.
        put_agent(&cluster, &name, &format!("node-{number:04}"), |pod| {
            pod["metadata"]["managedFields"] = json!([{ "manager": "x".repeat(6 << 10) }]);
        });
        let mut page = ready("0.1.0");
        if number == 4_711 {
            page["agent"] = json!({ "ready": false, "reasons": ["the entry is missing"] });
        }
        set_page(&cluster, &name, &page);
    }
    let before = Instant::now();
    let found = status(&kubeconfig, &["--json"]);
    let took = before.elapsed();
    println!("{took:?} for 5,000 nodes");
    let json = found.json();
    assert_eq!(json["states"], json!({ "ready": 4_999, "NOT READY": 1 }), "{}", found.err);
    assert!(found.code == 1 && took < Duration::from_secs(60), "{took:?}");
}
