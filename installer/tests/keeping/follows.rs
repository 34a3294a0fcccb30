//! A changed ConfigMap reaches the node's conf file without a restart of the agent.

use crate::node::{Node, PRIMARY};
use gybe_test_support::wait_until;
use serde_json::{Value, json};

const FILE: &str = "10-calico.conflist";

#[test]
fn a_changed_configmap_is_followed_in_one_write() {
    let mut node = Node::new("follows");
    node.configures(&[("log_level", "info")]);
    node.puts(FILE, PRIMARY);
    let agent = node.agent();
    wait_until("an entry", || node.entry(FILE).is_some_and(|entry| entry["log_level"] == "info"));
    let before = agent.metric("istio_cni_installs_total{result=\"SUCCESS\"}");
    let files = [
        ("log_level", "debug"),
        ("exclude_namespaces", "kube-system,istio-system,extra"),
        ("backend", "iptables-legacy"),
        ("ipv6", "reject"),
    ];
    node.configures(&files);
    wait_until("the other entry", || node.entry(FILE).is_some_and(|entry| entry["log_level"] == "debug"));
    let entry = node.entry(FILE).unwrap();
    assert_eq!(entry["exclude_namespaces"], json!(["extra", "istio-system", "kube-system"]));
    assert_eq!((&entry["backend"], &entry["ipv6"]), (&json!("iptables-legacy"), &json!("reject")));
    let writes = "istio_cni_installs_total{result=\"SUCCESS\"}";
    wait_until("a count", || agent.metric(writes) > before);
    assert_eq!(agent.metric(writes), before + 1.0);
    assert_eq!(
        agent.metric("gybe_undone_total{what=\"conf\"}"),
        0.0,
        "a change by the operator is not a conflict"
    );
    // Another shape: the entry moves to its own file, and the primary's file has its original content again.
    node.configures(&[("shape", "standalone")]);
    wait_until("its own file", || node.conf("YYY-gybe-cni.conf").exists() && node.text(FILE) == PRIMARY);
    node.configures(&[]);
    wait_until("the chain again", || node.entry(FILE).is_some() && !node.conf("YYY-gybe-cni.conf").exists());
}

#[test]
fn an_invalid_configmap_is_logged_once_and_the_settings_before_it_hold() {
    let mut node = Node::new("senseless");
    node.configures(&[("log_level", "debug")]);
    node.puts(FILE, PRIMARY);
    let agent = node.agent();
    wait_until("an entry", || node.entry(FILE).is_some());
    node.configures(&[("log_level", "loud"), ("mode", "leave")]);
    let told = agent.wait_for_message("cannot be followed");
    assert!(told["why"].as_str().unwrap().contains("log_level is \"loud\""), "{told}");
    node.puts(FILE, PRIMARY);
    wait_until("a repair", || node.entry(FILE).is_some_and(|entry| entry["log_level"] == "debug"));
    wait_until("its count", || agent.metric("gybe_settings_followed") == 0.0);
    let (status, text) = agent.get("/readyz");
    assert!(status == 200 && text.contains("note: the ConfigMap is not followed"), "{status} {text}");
    let times = agent.log().iter().filter(|line| line["why"] == told["why"]).count();
    assert_eq!(times, 1);
    node.configures(&[("log_level", "warn")]);
    wait_until("the valid settings", || node.entry(FILE).is_some_and(|entry| entry["log_level"] == "warn"));
    wait_until("its count", || agent.metric("gybe_settings_followed") == 1.0);
}

/// "As it is": as the previous agent left it, or as the primary has rewritten it since.
#[test]
fn with_an_invalid_configmap_at_the_start_queries_are_answered_and_the_node_stays_as_it_is() {
    let mut node = Node::new("nonsense");
    node.configures(&[("log_level", "debug")]);
    node.puts(FILE, PRIMARY);
    let agent = node.agent();
    wait_until("an entry", || node.entry(FILE).is_some() && agent.is_ready());
    drop(agent);
    let before = node.text(FILE);
    for senseless in [("log_level", "nonsense"), ("mode", "leaf")] {
        node.configures(&[senseless, ("exclude_namespaces", "extra")]);
        let agent = node.agent();
        let told = agent.wait_for_message("cannot be followed");
        let why = format!("{} is \"{}\"", senseless.0, senseless.1);
        assert!(told["why"].as_str().unwrap().contains(&why), "{told}");
        let (status, text) = agent.get("/readyz");
        let stays = "- the node stays as it is until the ConfigMap can be followed\n";
        assert!(status == 503 && text.contains(stays) && text.contains(&why), "{status} {text}");
        assert_eq!(text.lines().count(), 3, "{text}");
        assert_eq!(agent.get("/healthz"), (200, "ok\n".to_owned()));
        assert_eq!(
            (agent.metric("istio_cni_install_ready"), agent.metric("gybe_settings_followed")),
            (0.0, 0.0)
        );
        assert_eq!(node.asks("shop", "cart-0", "u"), json!({ "version": 1 }));
        assert_eq!(node.text(FILE), before);
    }
    let agent = node.agent();
    node.configures(&[("log_level", "warn")]);
    wait_until("the other entry", || node.entry(FILE).is_some_and(|entry| entry["log_level"] == "warn"));
    wait_until("readiness", || agent.get("/readyz") == (200, "ready\n".to_owned()));
}

#[test]
fn a_configmap_that_cannot_be_read_at_the_start_is_waited_for_too() {
    let mut node = Node::new("unread");
    node.puts(FILE, PRIMARY);
    std::fs::write(node.root.join("config/mode"), [0xff]).unwrap();
    let agent = node.agent();
    agent.wait_for_message("cannot be followed");
    assert_eq!(node.text(FILE), PRIMARY);
    std::fs::remove_file(node.root.join("config/mode")).unwrap();
    node.configures(&[]);
    wait_until("readiness", || agent.is_ready());
}

#[test]
fn an_invalid_environment_is_reported_at_once_with_the_configmap_and_changes_nothing() {
    let mut node = Node::new("refused");
    node.puts(FILE, PRIMARY);
    node.sets("AMBIENT_ENABLED", "true");
    node.sets("ISTIO_OWNED_CNI_CONFIG", "true");
    node.configures(&[("ipv6", "perhaps")]);
    let output = node.command().output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    for part in ["AMBIENT_ENABLED", "shape: dropin", "ipv6 is \"perhaps\""] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(node.text(FILE), PRIMARY);
}

#[test]
fn what_the_probe_finds_out_is_in_the_entry_and_stays_when_it_is_forgotten_for_a_moment() {
    let node = Node::new("probed");
    node.puts(FILE, PRIMARY);
    let agent = node.agent();
    let probed = |node: &Node| node.entry(FILE).map(|entry| entry["probed"]["backend"].clone());
    wait_until("findings", || probed(&node) == Some(json!("nft")));
    assert_eq!(agent.metric("gybe_backend{backend=\"nft\"}"), 1.0);
    std::fs::remove_file(node.root.join("probe/probe.json")).unwrap();
    node.puts(FILE, PRIMARY);
    wait_until("a repair", || probed(&node) == Some(json!("nft")));
    assert!(agent.is_ready());
    // A new agent without a probe report, as after a reboot, does not rewrite the entry.
    drop(agent);
    let agent = node.agent();
    assert_eq!(probed(&node), Some(json!("nft")));
    let (status, text) = agent.get("/readyz");
    assert!(status == 503 && text.contains("has not been probed"), "{status} {text}");
    node.found("a connection was late");
    node.puts(FILE, PRIMARY);
    wait_until("a verdict", || agent.get("/readyz").1.contains("a connection was late"));
}

#[test]
fn what_is_worth_knowing_of_the_settings_stands_below_ready() {
    let mut node = Node::new("noted");
    node.configures(&[("quic_ports", "443")]);
    node.puts(FILE, PRIMARY);
    let agent = node.agent();
    wait_until("readiness", || agent.is_ready());
    let (status, text) = agent.get("/readyz");
    assert!(
        status == 200 && text.contains("note: unknown key quic_ports in the ConfigMap: ignored"),
        "{text}"
    );
}

/// The template's values for the backend, the kubeconfig and the socket are overridden everywhere alike: in the entry,
/// the metrics and the doctor's findings.
#[test]
fn with_a_template_the_entry_the_metrics_and_the_doctor_name_one_backend_and_no_missing_kubeconfig() {
    let mut node = Node::new("template");
    let template = r#"{"type":"istio-cni","log_level":"__LOG_LEVEL__","backend":"nft",
        "kubernetes":{"kubeconfig":"__KUBECONFIG_FILEPATH__"}}"#;
    node.configures(&[("cni_network_config", template), ("backend", "iptables-legacy"), ("ipv6", "reject")]);
    node.puts(FILE, PRIMARY);
    let agent = node.agent();
    wait_until("readiness", || agent.is_ready());
    let entry = node.entry(FILE).unwrap();
    assert_eq!((&entry["backend"], &entry["ipv6"]), (&json!("iptables-legacy"), &json!("reject")));
    assert_eq!((&entry["facts"]["kubeconfig"], &entry["kubernetes"]), (&json!(""), &Value::Null));
    assert_eq!(agent.metric("gybe_backend{backend=\"iptables-legacy\"}"), 1.0);
    let (_, ready) = agent.get("/readyz");
    for note in ["has backend \"nft\", which backend overrides", "names a kubeconfig, which is ignored"] {
        assert!(ready.contains(note), "{ready}");
        agent.wait_for_line(|line| line["note"].as_str().is_some_and(|text| text.contains(note)));
    }
    let findings = node.doctor();
    let about = |name: &str| -> Vec<&Value> {
        findings["findings"].as_array().unwrap().iter().filter(|it| it["about"] == name).collect()
    };
    assert!(
        about("backend")[0]["says"].as_str().unwrap().starts_with("backend: iptables-legacy"),
        "{findings}"
    );
    assert!(about("entry").iter().all(|it| it["state"] == "ok"), "{findings}");
    // `gybe install` on another node with the same directory of settings writes the same entry.
    let other = Node::new("template-by-hand");
    other.puts(FILE, PRIMARY);
    let mut install = other.tool("install");
    install.arg("--config").arg(node.root.join("config")).arg("--from").arg(node.root.join("image"));
    let output = install.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("names a kubeconfig, which is ignored"), "{text}");
    let mut by_hand = other.entry(FILE).unwrap();
    assert_eq!(by_hand["facts"]["socket"], "/run/gybe/facts.sock");
    by_hand["facts"] = entry["facts"].clone();
    assert_eq!(by_hand, entry);
}
