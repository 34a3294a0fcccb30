//! Health and metrics: requests by the kubelet, by Prometheus and by hostile clients.

use crate::node::{FILE, Node, PRIMARY};
use crate::with_api_server::Cluster;
use gybe_test_support::{Agent, assert_takes_less_than, http, wait_until};
use serde_json::json;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant, SystemTime};

#[test]
fn ready_means_a_node_in_its_desired_state_a_backend_that_works_and_known_pods() {
    let node = Node::new("ready");
    let agent = node.start_agent();
    let missing = |part: &str| {
        let (status, text) = agent.get("/readyz");
        status == 503 && text.starts_with("not ready\n") && text.contains(part)
    };
    wait_until("a reason", || missing("- waiting for the primary plugin's conf file\n"));
    assert_eq!(agent.get("/healthz"), (200, "ok\n".to_owned()), "waiting is healthy");
    assert_eq!(agent.metric("istio_cni_install_ready"), 0.0);
    node.put_conf(FILE, PRIMARY);
    wait_until("readiness", || agent.get("/readyz") == (200, "ready\n".to_owned()));
    assert_eq!(agent.metric("istio_cni_install_ready"), 1.0);
    std::fs::remove_dir_all(node.root.join("pods")).unwrap();
    assert!(missing("pods"), "{:?}", agent.get("/readyz"));
    assert_eq!(agent.metric("gybe_pods_known"), 0.0);
}

#[test]
fn a_pinned_file_that_the_runtime_does_not_take_is_not_ready() {
    let mut node = Node::new("preempted");
    node.set_env("CNI_CONF_NAME", FILE);
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    node.put_conf("05-another.conflist", PRIMARY);
    let reason = "- the runtime uses 05-another.conflist, not 10-calico.conflist\n";
    wait_until("a reason", || agent.get("/readyz") == (503, format!("not ready\n{reason}")));
    assert_eq!(agent.metric("istio_cni_install_ready"), 0.0);
    std::fs::remove_file(node.conf_path("05-another.conflist")).unwrap();
    wait_until("readiness", || agent.is_ready());
}

#[test]
fn a_missing_file_is_reported_with_the_setting_that_names_it() {
    let mut node = Node::new("waited");
    node.set_env("CNI_CONF_NAME", FILE);
    let agent = node.start_agent();
    let waits =
        |by: &str| agent.get("/readyz").1.contains(&format!("- waiting for {FILE}, which {by} names\n"));
    wait_until("the variable", || waits("CNI_CONF_NAME"));
    node.set_configmap(&[("conf_name", FILE)]);
    wait_until("the ConfigMap's key", || waits("conf_name"));
}

#[test]
fn f05_the_agent_stays_ready_while_an_ordinary_rewrite_is_repaired() {
    let node = Node::new("flap");
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    let rewritten = Instant::now();
    node.put_conf(FILE, PRIMARY);
    while node.entry(FILE).is_none() {
        let is_ready = agent.is_ready();
        assert!(is_ready || rewritten.elapsed() > Duration::from_secs(1), "{:?}", agent.get("/readyz"));
    }
    wait_until("its count", || agent.metric("gybe_repairs_total{what=\"conf\"}") == 1.0);
    assert!(agent.is_ready());
    node.put_conf(FILE, PRIMARY);
    let rewriter = "- another program has undone the entry again within ten seconds of its repair";
    wait_until("a rewriter", || agent.get("/readyz").1.contains(rewriter));
    assert!(node.entry(FILE).is_some(), "the entry is there, and may be undone again");
    wait_until("readiness after ten seconds", || agent.is_ready());
}

#[test]
fn the_plugins_log_lines_are_counted_in_metrics() {
    let node = Node::new("numbers");
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    let plugin = UnixDatagram::unbound().unwrap();
    let log = node.root.join("run/log.sock");
    for line in [
        json!({ "msg": "gybe-cni cmdAdd", "level": "info", "verb": "ADD", "decision": "redirect", "took_us": 7000, "facts_us": 400, "rules_us": 5000 }),
        json!({ "verb": "DEL", "decision": "nothing", "took_us": 300 }),
        json!({ "verb": "ADD\",pod=\"x", "decision": "redirect", "took_us": 1 }),
    ] {
        plugin.send_to(line.to_string().as_bytes(), &log).unwrap();
    }
    wait_until("a call", || agent.get("/metrics").1.contains("verb=\"DEL\""));
    assert_eq!(agent.metric("gybe_plugin_calls_total{verb=\"ADD\",decision=\"redirect\"}"), 1.0);
    assert_eq!(agent.metric("gybe_plugin_call_seconds_bucket{verb=\"ADD\",phase=\"all\",le=\"0.008\"}"), 1.0);
    assert_eq!(agent.metric("gybe_plugin_call_seconds_sum{verb=\"ADD\",phase=\"rules\"}"), 0.005);
    agent.wait_for_message("gybe-cni cmdAdd");
    let silent = agent.log().iter().filter(|line| line["verb"] == "DEL").count();
    assert_eq!(silent, 0, "a line without a message is counted and not logged");
}

#[test]
fn the_assignment_of_a_new_pod_begins_the_watchs_latency_and_the_time_of_its_start() {
    let cluster = Cluster::new("pod-times");
    let agent = cluster.start_ready_agent();
    let scheduled =
        json!({ "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z" });
    cluster.server.put_pod(json!({
        "kind": "Pod",
        "metadata": { "namespace": "shop", "name": "cart-0", "uid": "u0" },
        "spec": { "nodeName": "node-1", "containers": [] },
        "status": { "phase": "Pending", "conditions": [scheduled] },
    }));
    wait_until("the pod", || agent.metric("gybe_watch_latency_seconds_count") == 1.0);
    let plugin = UnixDatagram::unbound().unwrap();
    let line =
        json!({ "verb": "ADD", "decision": "redirect", "pod": "shop/cart-0", "took_us": 1 }).to_string();
    for count in [1.0, 2.0] {
        plugin.send_to(line.as_bytes(), cluster.node.root.join("run/log.sock")).unwrap();
        let calls = "gybe_plugin_calls_total{verb=\"ADD\",decision=\"redirect\"} ";
        wait_until("the call", || agent.get("/metrics").1.contains(&format!("{calls}{count}")));
        assert_eq!(agent.metric("gybe_pod_start_seconds_count"), 1.0, "only the first ADD counts");
    }
    assert!(agent.metric("gybe_pod_start_seconds_sum") > 60.0);
    assert_eq!(agent.metric("gybe_pod_start_seconds_bucket{le=\"60\"}"), 0.0);
}

/// Returns the names of metrics in a text.
fn metric_names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("gybe_") || word.starts_with("istio_cni_")).collect()
}

#[test]
fn every_metric_of_the_charts_alerts_and_dashboard_is_on_the_agents_page() {
    let cluster = Cluster::new("chart-metrics");
    cluster.node.root.write("probe/repairs.json", r#"{ "repaired": 1, "failed": 0, "not_redirected": 0 }"#);
    let agent = cluster.start_ready_agent();
    let add = json!({ "verb": "ADD", "decision": "error", "took_us": 1 }).to_string();
    let plugin = UnixDatagram::unbound().unwrap();
    plugin.send_to(add.as_bytes(), cluster.node.root.join("run/log.sock")).unwrap();
    wait_until("a call", || agent.get("/metrics").1.contains("verb=\"ADD\""));
    let page = agent.get("/metrics").1;
    let served = metric_names(&page);
    for file in [
        include_str!("../../../manifests/chart/files/alerts.yaml"),
        include_str!("../../../manifests/chart/files/dashboard.json"),
    ] {
        let named = metric_names(file);
        assert!(named.len() >= 7, "{named:?}");
        let missing: Vec<_> = named.difference(&served).collect();
        assert_eq!(missing, [&""; 0]);
    }
}

#[test]
fn every_line_has_a_time_and_the_metrics_have_the_version_the_start_time_and_lost_sockets() {
    let node = Node::new("times");
    node.put_conf(FILE, PRIMARY);
    let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(agent.metric(&format!("gybe_build_info{{version=\"{version}\"}}")), 1.0);
    let started = agent.metric("process_start_time_seconds");
    // /proc has process start times in hundredths of a second, and the boot time in whole seconds.
    assert!((before - 2.0..before + 60.0).contains(&started), "{before} {started}");
    let lost = |agent: &Agent, of: &str| agent.metric(&format!("gybe_sockets_lost_total{{socket=\"{of}\"}}"));
    assert_eq!((lost(&agent, "facts"), lost(&agent, "log")), (0.0, 0.0));
    std::fs::remove_file(node.root.join("run/facts.sock")).unwrap();
    wait_until("a new socket", || node.root.join("run/facts.sock").exists());
    wait_until("its count", || lost(&agent, "facts") == 1.0);
    assert_eq!(lost(&agent, "log"), 0.0);
    let plugin = UnixDatagram::unbound().unwrap();
    for line in [
        json!({ "msg": "without a time" }),
        json!({ "msg": "with a time", "time": "2026-01-02T03:04:05.000006Z" }),
    ] {
        plugin.send_to(line.to_string().as_bytes(), node.root.join("run/log.sock")).unwrap();
    }
    assert_eq!(agent.wait_for_message("with a time")["time"], "2026-01-02T03:04:05.000006Z");
    let lines = agent.log();
    assert!(lines.len() > 5, "{lines:?}");
    for line in lines {
        let time = line["time"].as_str().unwrap_or_else(|| panic!("{line}"));
        let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000000Z", "{line}");
    }
}

#[test]
fn every_metric_has_its_help_its_type_and_one_value_for_its_labels() {
    let node = Node::new("format");
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    let text = agent.get("/metrics").1;
    let (mut family, mut names) = (String::new(), BTreeSet::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            family = rest.split(' ').next().unwrap().to_owned();
            assert!(rest.len() > family.len() + 1, "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(rest.starts_with(&format!("{family} ")), "{line}");
        } else {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with(&family) && value.parse::<f64>().is_ok(), "{line}");
            assert!(names.insert(name.to_owned()), "{name} twice");
        }
    }
    for name in ["istio_cni_installs_total", "istio_cni_install_ready", "istio_cni_plugin_requests_total"] {
        assert!(names.iter().any(|known| known.starts_with(name)), "{name}");
    }
    let head = http::send(&agent.address("metrics"), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
}

#[test]
fn a10_idle_slow_or_malformed_http_connections_do_not_delay_a_probe_for_long() {
    let node = Node::new("callers");
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    let address = agent.address("health");
    for (request, status) in [
        ("POST /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "405"),
        ("GET /etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
        ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
        ("nonsense\r\n\r\n", "400"),
    ] {
        assert!(http::send(&address, request).starts_with(&format!("HTTP/1.1 {status}")), "{request}");
    }
    assert!(
        !http::send(&address, &format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20_000))).contains(" 200 ")
    );
    // More idle connections than the agent serves at once.
    let silent: Vec<_> = (0..40).map(|_| TcpStream::connect(&address).unwrap()).collect();
    assert_takes_less_than(Duration::from_secs(3), || assert_eq!(agent.get("/healthz").0, 200));
    // The agent also closes a connection that sends its request slowly.
    let mut slow = TcpStream::connect(&address).unwrap();
    slow.write_all(b"GET /healthz").unwrap();
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    drop(silent);
}

#[test]
fn a_port_in_use_is_reported_and_the_entry_is_written_nevertheless() {
    let mut node = Node::new("taken");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    node.set_env("HEALTH_ADDRESS", &taken.local_addr().unwrap().to_string());
    node.set_env("MONITORING_PORT", "0");
    node.set_env("MONITORING_ADDRESS", "");
    node.put_conf(FILE, PRIMARY);
    let agent = node.spawn_agent();
    agent.wait_for_message("cannot listen; trying again");
    wait_until("an entry", || node.entry(FILE).is_some());
    drop(taken);
    agent.wait_for_line(|line| line["msg"] == "gybe node: listens");
    wait_until("readiness", || agent.is_ready());
}
