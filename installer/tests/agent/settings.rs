//! A changed ConfigMap reaches the node's conf file without a restart of the agent.

use crate::node::{Node, PRIMARY};
use gybe_test_support::wait_until;
use serde_json::{Value, json};

const FILE: &str = "10-calico.conflist";

#[test]
fn a_changed_configmap_is_applied_in_one_write() {
    let node = Node::new("follows");
    node.set_configmap(&[("log_level", "info")]);
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("an entry", || node.entry(FILE).is_some_and(|entry| entry["log_level"] == "info"));
    let before = agent.metric("istio_cni_installs_total{result=\"SUCCESS\"}");
    let files = [
        ("log_level", "debug"),
        ("exclude_namespaces", "kube-system,istio-system,extra"),
        ("backend", "iptables-legacy"),
        ("ipv6", "reject"),
    ];
    node.set_configmap(&files);
    wait_until("the other entry", || node.entry(FILE).is_some_and(|entry| entry["log_level"] == "debug"));
    let entry = node.entry(FILE).unwrap();
    assert_eq!(entry["exclude_namespaces"], json!(["extra", "istio-system", "kube-system"]));
    assert_eq!((&entry["backend"], &entry["ipv6"]), (&json!("iptables-legacy"), &json!("reject")));
    let writes = "istio_cni_installs_total{result=\"SUCCESS\"}";
    wait_until("a count", || agent.metric(writes) > before);
    assert_eq!(agent.metric(writes), before + 1.0);
    assert_eq!(
        agent.metric("gybe_foreign_rewrites_total{what=\"conf\"}"),
        0.0,
        "a change by the operator is not a conflict"
    );
    // Another shape: the entry moves to its own file, and the primary's file has its original content again.
    node.set_configmap(&[("shape", "standalone")]);
    wait_until("its own file", || {
        node.conf_path("YYY-gybe-cni.conf").exists() && node.conf_text(FILE) == PRIMARY
    });
    node.set_configmap(&[]);
    wait_until("the chain again", || {
        node.entry(FILE).is_some() && !node.conf_path("YYY-gybe-cni.conf").exists()
    });
}

#[test]
fn an_invalid_configmap_is_logged_once_and_the_previous_settings_apply() {
    let node = Node::new("invalid");
    node.set_configmap(&[("log_level", "debug")]);
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("an entry", || node.entry(FILE).is_some());
    node.set_configmap(&[("log_level", "loud"), ("mode", "leave")]);
    let line = agent.wait_for_message("cannot be followed");
    assert!(line["why"].as_str().unwrap().contains("log_level is \"loud\""), "{line}");
    node.put_conf(FILE, PRIMARY);
    wait_until("a repair", || node.entry(FILE).is_some_and(|entry| entry["log_level"] == "debug"));
    wait_until("its count", || agent.metric("gybe_settings_followed") == 0.0);
    let (status, text) = agent.get("/readyz");
    assert!(status == 200 && text.contains("note: the ConfigMap is not followed"), "{status} {text}");
    let times = agent.log().iter().filter(|logged| logged["why"] == line["why"]).count();
    assert_eq!(times, 1);
    node.set_configmap(&[("log_level", "warn")]);
    wait_until("the valid settings", || node.entry(FILE).is_some_and(|entry| entry["log_level"] == "warn"));
    wait_until("its count", || agent.metric("gybe_settings_followed") == 1.0);
}

/// "As it is": as the previous agent left it, or as the primary has rewritten it since.
#[test]
fn with_an_invalid_configmap_at_the_start_queries_are_answered_and_the_node_stays_as_it_is() {
    let node = Node::new("invalid-at-start");
    node.set_configmap(&[("log_level", "debug")]);
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("an entry", || node.entry(FILE).is_some() && agent.is_ready());
    drop(agent);
    let before = node.conf_text(FILE);
    for invalid in [("log_level", "nonsense"), ("mode", "leaf")] {
        node.set_configmap(&[invalid, ("exclude_namespaces", "extra")]);
        let agent = node.start_agent();
        let line = agent.wait_for_message("cannot be followed");
        let why = format!("{} is \"{}\"", invalid.0, invalid.1);
        assert!(line["why"].as_str().unwrap().contains(&why), "{line}");
        let (status, text) = agent.get("/readyz");
        let stays = "- the node stays as it is until the ConfigMap can be followed\n";
        assert!(status == 503 && text.contains(stays) && text.contains(&why), "{status} {text}");
        assert_eq!(text.lines().count(), 3, "{text}");
        assert_eq!(agent.get("/healthz"), (200, "ok\n".to_owned()));
        assert_eq!(
            (agent.metric("istio_cni_install_ready"), agent.metric("gybe_settings_followed")),
            (0.0, 0.0)
        );
        assert_eq!(node.query("shop", "cart-0", "u"), json!({ "version": 1 }));
        assert_eq!(node.conf_text(FILE), before);
    }
    let agent = node.start_agent();
    node.set_configmap(&[("log_level", "warn")]);
    wait_until("the other entry", || node.entry(FILE).is_some_and(|entry| entry["log_level"] == "warn"));
    wait_until("readiness", || agent.get("/readyz") == (200, "ready\n".to_owned()));
}

#[test]
fn the_agent_waits_for_a_configmap_that_cannot_be_read_at_the_start() {
    let node = Node::new("unread");
    node.put_conf(FILE, PRIMARY);
    std::fs::write(node.root.join("config/mode"), [0xff]).unwrap();
    let agent = node.start_agent();
    agent.wait_for_message("cannot be followed");
    assert_eq!(node.conf_text(FILE), PRIMARY);
    std::fs::remove_file(node.root.join("config/mode")).unwrap();
    node.set_configmap(&[]);
    wait_until("readiness", || agent.is_ready());
}

#[test]
fn an_invalid_environment_is_reported_at_once_with_the_configmap_and_changes_nothing() {
    let mut node = Node::new("refused");
    node.put_conf(FILE, PRIMARY);
    node.set_env("AMBIENT_ENABLED", "true");
    node.set_env("ISTIO_OWNED_CNI_CONFIG", "true");
    node.set_configmap(&[("ipv6", "perhaps")]);
    let output = node.command().output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    for part in ["AMBIENT_ENABLED", "shape: dropin", "ipv6 is \"perhaps\""] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(node.conf_text(FILE), PRIMARY);
}

#[test]
fn the_probe_report_is_in_the_entry_and_stays_there_while_the_report_is_missing() {
    let node = Node::new("probed");
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    let probed = |node: &Node| node.entry(FILE).map(|entry| entry["probed"]["backend"].clone());
    wait_until("findings", || probed(&node) == Some(json!("nft")));
    assert_eq!(agent.metric("gybe_backend{backend=\"nft\"}"), 1.0);
    std::fs::remove_file(node.root.join("probe/probe.json")).unwrap();
    node.put_conf(FILE, PRIMARY);
    wait_until("a repair", || probed(&node) == Some(json!("nft")));
    assert!(agent.is_ready());
    // A new agent without a probe report, as after a reboot, does not rewrite the entry.
    drop(agent);
    let agent = node.start_agent();
    assert_eq!(probed(&node), Some(json!("nft")));
    let (status, text) = agent.get("/readyz");
    assert!(status == 503 && text.contains("has not been probed"), "{status} {text}");
    node.write_probe_report("a connection was late");
    node.put_conf(FILE, PRIMARY);
    wait_until("a verdict", || agent.get("/readyz").1.contains("a connection was late"));
}

#[test]
fn notes_about_the_settings_are_in_the_readiness_page() {
    let node = Node::new("noted");
    node.set_configmap(&[("quic_ports", "443")]);
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
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
    let node = Node::new("template");
    let template = r#"{"type":"istio-cni","log_level":"__LOG_LEVEL__","backend":"nft",
        "kubernetes":{"kubeconfig":"__KUBECONFIG_FILEPATH__"}}"#;
    node.set_configmap(&[
        ("cni_network_config", template),
        ("backend", "iptables-legacy"),
        ("ipv6", "reject"),
    ]);
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
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
    other.put_conf(FILE, PRIMARY);
    let mut install = other.gybe("install");
    install.arg("--config").arg(node.root.join("config")).arg("--from").arg(node.root.join("image"));
    let output = install.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("names a kubeconfig, which is ignored"), "{text}");
    let mut by_hand = other.entry(FILE).unwrap();
    assert_eq!(by_hand["facts"]["socket"], "/run/gybe/facts.sock");
    by_hand["facts"] = entry["facts"].clone();
    assert_eq!(by_hand, entry);
}
