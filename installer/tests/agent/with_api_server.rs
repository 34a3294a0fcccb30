//! The whole agent with an API server: the watch for its pods, its node's label, its DaemonSet.

use crate::node::{FILE, Node, PRIMARY};
use gybe_api_server::{ApiServer, ServiceAccount, Validity, Verb};
use gybe_test_support::{Agent, PATIENCE, cluster_environment, wait_for_at_most, wait_until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::os::unix::net::UnixListener;

pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    account: ServiceAccount,
    pub(crate) node: Node,
}

impl Cluster {
    pub(crate) fn new(test: &str) -> Self {
        let mut node = Node::new(test);
        let server = ApiServer::start().unwrap();
        let account = server.service_account(&node.root.join("account")).unwrap();
        for (name, value) in cluster_environment(server.address()) {
            node.set_env(name, &value);
        }
        let cluster = Self { server, account, node };
        cluster.set_labels(&json!({}));
        cluster.node.put_conf(FILE, PRIMARY);
        cluster.write_runtime_report();
        cluster
    }

    /// Writes a probe report without a runtime.
    fn write_runtime_report(&self) {
        self.node.root.replace("probe/runtime.json", r#"{"runtimes":[]}"#);
    }

    fn set_labels(&self, labels: &Value) {
        let node =
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-1", "labels": labels } });
        self.server.put(node).unwrap();
    }

    fn put_istio_cni_pod(&self, name: &str) {
        let labels = json!({ "k8s-app": "istio-cni-node" });
        let metadata = json!({ "namespace": "istio-system", "name": name, "uid": name, "labels": labels });
        self.server.put_pod(json!({ "kind": "Pod", "metadata": metadata, "spec": { "nodeName": "node-1", "containers": [] } }));
    }

    fn put_pods(&self, pods: impl Iterator<Item = Value>) {
        pods.for_each(|pod| {
            self.server.put_pod(pod);
        });
    }

    /// Creates or deletes the DaemonSet.
    pub(crate) fn set_daemonset(&self, is_there: bool) {
        match is_there {
            true => drop(self.server.put(daemonset()).unwrap()),
            false => drop(self.server.delete(&daemonset())),
        }
    }

    /// Returns the number of answered requests for the DaemonSet.
    fn queries(&self) -> usize {
        let is_query = |path: &str| path.ends_with("/daemonsets/gybe-node");
        self.server.requests().iter().filter(|it| is_query(&it.path) && it.code.is_some()).count()
    }

    pub(crate) fn start_ready_agent(&self) -> Agent {
        let agent = self.node.start_agent();
        wait_until("readiness", || agent.is_ready());
        agent
    }

    fn entry_backend(&self) -> Value {
        self.node.entry(FILE).map_or(Value::Null, |entry| entry["backend"].clone())
    }
}

fn daemonset() -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "namespace": "gybe-system", "name": "gybe-node" } })
}

#[test]
fn f02_the_agent_is_ready_once_pods_are_listed_and_stays_ready_while_tokens_change() {
    let cluster = Cluster::new("cluster-ready");
    cluster.put_istio_cni_pod("istio-cni-node-0");
    let agent = cluster.start_ready_agent();
    assert_eq!((agent.metric("gybe_pods"), agent.metric("gybe_pods_known")), (1.0, 1.0));
    for _ in 0..10 {
        let old = cluster.server.tokens().issue(Validity::Valid);
        cluster.account.write(&old).unwrap();
        cluster.server.tokens().accept_only(&[&old]);
        cluster.server.cut_watches();
        assert!(agent.is_ready(), "{:?}", agent.get("/readyz"));
    }
    assert!(agent.metric("gybe_watch_age_seconds") < 60.0);
    // Only ambient mode needs them, and their right.
    assert!(cluster.server.requests().iter().all(|request| request.path != "/api/v1/namespaces"));
    assert!(!agent.get("/metrics").1.contains("ztunnel"));
    // The API server rejects the next agent's token: the agent maintains the node, and reports the reason.
    drop(agent);
    cluster.server.tokens().revoke_all();
    cluster.node.put_conf(FILE, PRIMARY);
    let agent = cluster.node.start_agent();
    wait_until("an entry", || cluster.node.entry(FILE).is_some());
    wait_until("a reason", || {
        agent.get("/readyz").1.contains("this node's pods are not known yet: the API server responded 401")
    });
    assert_eq!(agent.get("/healthz").0, 200);
    cluster.server.tokens().restore_all();
    wait_until("readiness", || agent.is_ready());
}

#[test]
fn reconnects_of_the_watch_and_errors_of_the_api_server_are_counted() {
    let cluster = Cluster::new("cluster-counts");
    let agent = cluster.start_ready_agent();
    assert_eq!(agent.metric("gybe_api_errors_total{status=\"none\"}"), 0.0);
    let reconnects = agent.metric("gybe_watch_reconnects_total");
    cluster.server.cut_watches();
    wait_until("another watch", || agent.metric("gybe_watch_reconnects_total") > reconnects);
    cluster.server.tokens().revoke_all();
    cluster.server.cut_watches();
    wait_until("a refusal", || agent.get("/metrics").1.contains("gybe_api_errors_total{status=\"401\"} "));
    assert!(agent.metric("gybe_api_errors_total{status=\"401\"}") >= 1.0);
}

#[test]
fn the_backend_in_a_nodes_label_is_in_its_entry_and_stays_while_the_api_server_is_down() {
    let cluster = Cluster::new("cluster-label");
    cluster.set_labels(&json!({ "gybe.dev/backend": "iptables-legacy" }));
    drop(cluster.start_ready_agent());
    assert_eq!(cluster.entry_backend(), "iptables-legacy");
    let before = cluster.node.conf_text(FILE);
    cluster.server.tokens().revoke_all();
    let agent = cluster.node.start_agent();
    agent.wait_for_message("the agent's node is not watched");
    wait_until("a pass", || agent.metric("gybe_passes_total") >= 1.0);
    assert_eq!(cluster.node.conf_text(FILE), before, "without the label nothing is written");
    // The operator's setting takes precedence over the node's label.
    cluster.node.set_configmap(&[("backend", "nft")]);
    wait_until("the operator's backend", || cluster.entry_backend() == "nft");
    cluster.node.set_configmap(&[]);
    drop(agent);
    cluster.server.tokens().restore_all();
    cluster.set_labels(&json!({ "gybe.dev/backend": "nfq" }));
    let agent = cluster.start_ready_agent();
    agent.wait_for_message("gybe.dev/backend");
    assert_eq!(cluster.entry_backend(), "auto", "a label that names no backend is ignored");
    cluster.set_labels(&json!({ "gybe.dev/backend": "nft" }));
    cluster.node.put_conf(FILE, PRIMARY);
    wait_until("the changed label", || cluster.entry_backend() == "nft");
}

#[test]
fn the_page_status_has_what_gybe_status_prints() {
    let cluster = Cluster::new("cluster-status-page");
    cluster.put_pods((0..3).map(|n| injected_pod(&format!("cart-{n}"))));
    let agent = cluster.start_ready_agent();
    let (code, page) = agent.get("/status");
    let page: Value = serde_json::from_str(&page).unwrap();
    let expected =
        json!({ "ready": true, "standby": false, "leaves": false, "reasons": [], "conflicts": [] });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&page["agent"][key], value, "{page:#}");
    }
    assert_eq!((code, &page["pods"], &page["version"]), (200, &json!(3), &json!(env!("CARGO_PKG_VERSION"))));
    cluster.node.put_conf(FILE, "{");
    wait_until("a reason", || {
        let page: Value = serde_json::from_str(&agent.get("/status").1).unwrap();
        page["agent"]["ready"] == false && page["agent"]["reasons"][0].is_string()
    });
}

/// The agents of the largest cluster that Kubernetes supports.
const AGENTS: f64 = 5_000.0;

#[test]
fn f38_an_agent_without_work_sends_no_request_but_those_of_two_watches_that_last_20_minutes() {
    let cluster = Cluster::new("cluster-requests");
    cluster.set_daemonset(true);
    let agent = cluster.start_ready_agent();
    let requests = || -> Vec<String> {
        let requests = cluster.server.requests();
        requests.iter().map(|it| format!("{} {}?{}", it.method, it.path, it.query)).collect()
    };
    wait_until("the requests of a start", || requests().len() >= 4);
    let turns = agent.metric("gybe_passes_total");
    cluster.server.send_bookmarks();
    cluster.node.put_conf(FILE, PRIMARY);
    wait_until("another turn", || agent.metric("gybe_passes_total") > turns && agent.is_ready());
    let mut sent = requests();
    sent.sort();
    assert_eq!(sent.len(), 4, "{sent:#?}");
    let seconds = |request: &String| {
        let (_, seconds) = request.split_once("&timeoutSeconds=")?;
        seconds.parse::<f64>().ok()
    };
    let watches: Vec<f64> = sent.iter().filter_map(seconds).collect();
    assert!(watches.len() == 2 && watches.iter().all(|seconds| *seconds >= 1_200.0), "{sent:#?}");
    let rate: f64 = watches.iter().map(|seconds| AGENTS / seconds).sum();
    println!("{AGENTS} such agents send {rate:.1} requests a second");
    // A watch that the server ends is opened again from where it was, without a list.
    cluster.server.end_watches();
    wait_until("both watches", || requests().len() >= 6);
    let added: Vec<String> = requests().into_iter().skip(4).collect();
    assert!(added.iter().all(|request| request.contains("watch=true")), "{added:#?}");
    assert!(added.iter().all(|request| !request.contains("resourceVersion=0&")), "{added:#?}");
}

#[test]
fn istio_cnis_agent_is_found_among_this_nodes_pods() {
    let cluster = Cluster::new("cluster-istio");
    cluster.put_istio_cni_pod("istio-cni-node-abcde");
    let entry = PRIMARY.replace("calico\"\n    }", "calico\"\n    },\n    { \"type\": \"istio-cni\" }");
    cluster.node.put_conf(FILE, &entry);
    let agent = cluster.node.start_agent();
    agent.wait_for_message("istio-cni's agent still runs");
    wait_until("its pod", || agent.metric("gybe_pods") == 1.0);
    assert_eq!(cluster.node.conf_text(FILE), entry);
    cluster.server.delete_pod("istio-system", "istio-cni-node-abcde");
    wait_until("our entry", || cluster.node.entry(FILE).is_some());
}

#[test]
fn the_agent_uninstalls_with_its_daemonset_only_when_that_is_configured_and_the_daemonset_is_gone() {
    let mut cluster = Cluster::new("cluster-gone");
    let started = |cluster: &mut Cluster, setting, before| {
        cluster.node.set_configmap(&[("leave_when_daemonset_gone", setting)]);
        cluster.set_daemonset(before);
        let queries = cluster.queries();
        let agent = cluster.start_ready_agent();
        wait_until("a query for the DaemonSet", || cluster.queries() > queries);
        agent
    };
    for (setting, before, after) in [
        ("false", true, false),
        ("true", true, true),
        // A DaemonSet that never existed may have another name or namespace.
        ("true", false, false),
    ] {
        let mut agent = started(&mut cluster, setting, before);
        cluster.set_daemonset(after);
        assert!(agent.stop(Signal::SIGTERM).success());
        assert!(cluster.node.entry(FILE).is_some(), "{setting} {before} {after}");
        if !before {
            agent.wait_for_message("the state of the DaemonSet is unknown; nothing is uninstalled");
        }
    }
    let mut agent = started(&mut cluster, "true", true);
    cluster.set_daemonset(false);
    agent.signal(Signal::SIGTERM);
    wait_until("the removal of the entry", || cluster.node.conf_text(FILE) == PRIMARY);
    wait_until("the status", || agent.get("/left").1.contains("gybe-cni stays for another"));
    // The runtime may still call the program for starting sandboxes, so the agent waits before it removes it.
    assert!(cluster.node.program_path("gybe-cni").exists() && agent.try_wait().is_none());
    // The DaemonSet is created again: its agent does not wait for the old one's end.
    cluster.set_daemonset(true);
    let new = cluster.start_ready_agent();
    assert!(agent.wait().success() && cluster.node.entry(FILE).is_some());
    assert!(cluster.node.program_path("gybe-cni").exists() && new.is_ready());
}

#[test]
fn an_agent_that_has_left_removes_its_files_when_it_ends_without_its_daemonset() {
    let cluster = Cluster::new("cluster-files");
    cluster.node.set_configmap(&[("mode", "leave")]);
    cluster.set_daemonset(true);
    let files = |cluster: &Cluster| {
        let of = |directory: &str| std::fs::read_dir(cluster.node.root.join(directory)).into_iter().flatten();
        of("run").chain(of("probe")).map(|file| file.unwrap().file_name()).collect::<Vec<_>>()
    };
    for (is_present, is_probing) in [(true, false), (false, true), (false, false)] {
        let socket = cluster.node.root.join("probe/probe-leader.sock");
        let probe = is_probing.then(|| UnixListener::bind(&socket).unwrap());
        let queries = cluster.queries();
        let mut agent = cluster.node.start_agent();
        wait_until("/left", || agent.get("/left") == (200, "uninstalled; no program stays\n".to_owned()));
        wait_until("a query for the DaemonSet", || cluster.queries() > queries);
        cluster.set_daemonset(is_present);
        assert!(agent.stop(Signal::SIGTERM).success());
        let left = files(&cluster);
        // While the DaemonSet is there, the next agent needs the report of the probe; a probe that runs needs it, too.
        assert_eq!(left.iter().any(|name| name == "probe.json"), is_present || is_probing, "{left:?}");
        assert_eq!(left.is_empty(), !is_present && !is_probing, "{left:?}");
        drop(probe);
    }
}

#[test]
fn f29_when_the_api_server_refuses_to_show_the_daemonset_nothing_is_uninstalled() {
    let cluster = Cluster::new("cluster-refused");
    cluster.node.set_configmap(&[("leave_when_daemonset_gone", "true")]);
    for refuse in
        [(|server: &ApiServer| server.forbid(Verb::Get, "daemonsets")) as fn(&ApiServer), |server| {
            server.tokens().revoke_all();
        }]
    {
        let mut agent = cluster.start_ready_agent();
        refuse(&cluster.server);
        assert!(agent.stop(Signal::SIGTERM).success());
        let line =
            agent.wait_for_message("the API server refuses to show the DaemonSet; nothing is uninstalled");
        assert!(line["hint"].as_str().unwrap().contains("gybe uninstall"), "{line}");
        assert!(cluster.node.entry(FILE).is_some());
    }
}

/// Returns the agent's anonymous memory in KiB.
fn memory(agent: &Agent) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns a pod as the API server has it after injection: about 12 KiB.
fn injected_pod(name: &str) -> Value {
    let variables = (0..24).map(|n| json!({ "name": format!("ISTIO_META_{n}"), "value": "x".repeat(80) }));
    let env: Vec<_> =
        variables.chain([json!({ "name": "ISTIO_META_DNS_CAPTURE", "value": "true" })]).collect();
    let mounts: Vec<_> =
        (0..8).map(|n| json!({ "name": format!("volume-{n}"), "mountPath": "/var/run/secrets/x" })).collect();
    let container = |name: &str| {
        json!({
            "name": name, "image": "registry.example/mesh/image:1.2.3", "volumeMounts": mounts, "env": env,
            "args": ["proxy", "sidecar", "--domain", "shop.svc.cluster.local", "--log_output_level=default:info"],
            "ports": [{ "containerPort": 8080, "protocol": "TCP" }, { "containerPort": 15090, "protocol": "TCP" }],
            "securityContext": { "runAsUser": 1337, "runAsGroup": 1337 }, "resources": { "limits": { "cpu": "2" } },
        })
    };
    json!({
        "kind": "Pod",
        "metadata": {
            "namespace": "shop", "name": name, "uid": name,
            "labels": { "app": "cart", "security.istio.io/tlsMode": "istio" },
            "annotations": {
                "sidecar.istio.io/status": json!({ "initContainers": null, "volumes": vec!["x"; 20] }).to_string(),
                "kubectl.kubernetes.io/last-applied-configuration": "x".repeat(2000),
                "traffic.sidecar.istio.io/excludeOutboundPorts": "15020,9090",
            },
            "managedFields": [{ "manager": "kubelet", "fieldsV1": { "f:status": "x".repeat(1000) } }],
        },
        "spec": { "nodeName": "node-1", "containers": [container("app"), container("istio-proxy")] },
    })
}

/// Returns a pod whose owner attacks the agent's memory: a different field is large for each kind.
fn hostile_pod(n: usize) -> Value {
    let (mut pod, long) = (injected_pod(&format!("cart-{n}")), |bytes: usize| "x".repeat(bytes));
    let proxy = |pod: &mut Value, key: &str, value: Value| pod["spec"]["containers"][1][key] = value;
    match n % 5 {
        0 => proxy(&mut pod, "env", json!([{ "name": "SECRET", "value": long(1 << 20) }])),
        1 => proxy(&mut pod, "env", json!([{ "name": "DISABLE_ENVOY", "value": long(1 << 20) }])),
        2 => proxy(&mut pod, "args", json!(["proxy", long(1 << 19), long(1 << 19)])),
        3 => {
            let ports = vec!["15020"; 40_000].join(",");
            pod["metadata"]["annotations"]["traffic.sidecar.istio.io/excludeOutboundPorts"] = ports.into();
        }
        _ => {
            let many = (0..2000).map(|n| json!({ "name": format!("container-{n}"), "image": "x" }));
            pod["spec"]["initContainers"] = many.collect();
        }
    }
    pod
}

#[test]
fn f38_with_250_pods_the_agent_has_at_most_12_mib() {
    let cluster = Cluster::new("cluster-memory");
    cluster.put_pods((0..250).map(|n| injected_pod(&format!("cart-{n}"))));
    let agent = cluster.start_ready_agent();
    assert_eq!(agent.metric("gybe_pods"), 250.0);
    for _ in 0..5 {
        cluster.node.put_conf(FILE, PRIMARY);
        // The repairs are not counted here: a rewrite before the pods are known counts as a change of the desired
        // state.
        wait_until("a repair", || cluster.node.entry(FILE).is_some());
    }
    (0..100).for_each(|_| drop((agent.get("/readyz"), agent.get("/metrics"))));
    let kib = memory(&agent);
    println!("{kib} KiB of anonymous memory");
    assert!(kib <= 12 << 10, "{kib} KiB");
}

#[test]
fn f38_hostile_pods_do_not_fill_the_agents_memory() {
    let cluster = Cluster::new("cluster-hostile");
    cluster.put_pods((0..250).map(hostile_pod));
    let agent = cluster.node.start_agent();
    // The list is long, and takes its time on a busy machine.
    let is_ready = wait_for_at_most(10 * PATIENCE, || agent.is_ready().then_some(()));
    assert!(is_ready.is_some() && agent.metric("gybe_pods") == 250.0, "{:#?}", agent.log());
    let listed = memory(&agent);
    // Further hostile pods arrive by the watch.
    cluster.put_pods((250..260).map(hostile_pod));
    wait_until("the further pods", || agent.metric("gybe_pods") == 260.0);
    let watched = memory(&agent);
    println!("{listed} KiB of anonymous memory after the list, {watched} KiB after the watch");
    assert!(listed.max(watched) <= 16 << 10, "{listed} KiB, {watched} KiB");
    // A pod that is too large for the cache is still answered completely.
    let answer = cluster.node.query("shop", "cart-3", "cart-3");
    let ports =
        answer["pod"]["metadata"]["annotations"]["traffic.sidecar.istio.io/excludeOutboundPorts"].as_str();
    assert_eq!(ports.map(str::len), Some(6 * 40_000 - 1), "{answer}");
    let answer = cluster.node.query("shop", "cart-0", "cart-0");
    assert!(answer["pod"].is_object() && !answer.to_string().contains("SECRET"), "{answer}");
}

#[test]
fn f37_nothing_is_chained_before_the_probes_first_report() {
    let cluster = Cluster::new("unreported");
    std::fs::remove_file(cluster.node.root.join("probe/runtime.json")).unwrap();
    let agent = cluster.node.start_agent();
    agent.wait_for_message("waiting for the probe's report about the container runtime");
    assert!(!agent.is_ready());
    assert_eq!(cluster.node.conf_text(FILE), PRIMARY);
    cluster.write_runtime_report();
    wait_until("an entry", || cluster.node.entry(FILE).is_some() && agent.is_ready());
}
