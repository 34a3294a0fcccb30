//! Settings of a running agent: a changed ConfigMap reaches the node's conf file and the process that repairs pods
//! without a restart, and the kubeconfig on the host is written only if configured and updated with the token.

use crate::node::{FILE, Node, PRIMARY};
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use gybe_test_support::{Agent, wait_until, write_volume};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
    wait_until("readiness with a note", || {
        let (status, text) = agent.get("/readyz");
        status == 200 && text.contains("note: the ConfigMap is not followed")
    });
    let times = agent.log().iter().filter(|logged| logged["why"] == line["why"]).count();
    assert_eq!(times, 1);
    node.set_configmap(&[("log_level", "warn")]);
    wait_until("the valid settings", || node.entry(FILE).is_some_and(|entry| entry["log_level"] == "warn"));
    wait_until("its count", || agent.metric("gybe_settings_followed") == 1.0);
    let changed = agent.wait_for_message("the settings changed");
    assert_eq!(changed["keys"], json!(["log_level"]), "compared with those in use, which have no mode");
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
    fs::write(node.root.join("config/mode"), [0xff]).unwrap();
    let agent = node.start_agent();
    agent.wait_for_message("cannot be followed");
    assert_eq!(node.conf_text(FILE), PRIMARY);
    fs::remove_file(node.root.join("config/mode")).unwrap();
    node.set_configmap(&[]);
    wait_until("readiness", || agent.is_ready());
}

#[test]
fn an_invalid_environment_is_reported_at_once_with_the_configmap_and_changes_nothing() {
    let mut node = Node::new("refused");
    node.put_conf(FILE, PRIMARY);
    node.set_env("AMBIENT_ENABLED", "perhaps");
    node.set_env("AMBIENT_DISABLE_SAFE_UPGRADE", "true");
    node.set_configmap(&[("ipv6", "perhaps")]);
    let output = node.command().output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    for part in ["AMBIENT_ENABLED", "every upgrade is safe", "ipv6 is \"perhaps\""] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(node.conf_text(FILE), PRIMARY);
}

#[test]
fn ambient_mode_with_pods_from_manifests_is_refused_at_the_start() {
    let mut node = Node::new("ambient-manifests");
    node.put_conf(FILE, PRIMARY);
    node.set_env("AMBIENT_ENABLED", "true");
    let output = node.command().output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("AMBIENT_ENABLED") && error.contains("--pods-from"), "{error}");
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
    fs::remove_file(node.root.join("probe/probe.json")).unwrap();
    node.put_conf(FILE, PRIMARY);
    wait_until("a repair", || probed(&node) == Some(json!("nft")));
    wait_until("readiness", || agent.is_ready());
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

#[test]
fn the_setting_is_written_for_the_process_that_repairs_and_follows_the_configmap() {
    let node = Node::new("repair-setting");
    node.put_conf("10-calico.conflist", PRIMARY);
    let agent = node.start_agent();
    let file = node.root.join("probe/repair.json");
    let setting = || serde_json::from_slice::<Value>(&fs::read(&file).ok()?).ok();
    wait_until("the default", || setting() == Some(json!({ "repair": "repair" })));
    node.set_configmap(&[("repair", "off")]);
    wait_until("the other value", || setting() == Some(json!({ "repair": "off" })));
    // A changed mode is not in force before the entry is written: the file that has to have it is broken.
    node.set_configmap(&[("repair", "repair")]);
    wait_until("the first value again", || setting() == Some(json!({ "repair": "repair" })));
    node.put_conf("10-calico.conflist", "{");
    wait_until("the loss of the entry", || !agent.is_ready());
    assert_eq!(setting(), Some(json!({ "repair": "repair" })), "it has not changed");
    node.set_configmap(&[("repair", "delete")]);
    wait_until("no mode", || setting() == Some(json!({ "repair": "off" })));
    node.put_conf("10-calico.conflist", PRIMARY);
    wait_until("the mode", || setting() == Some(json!({ "repair": "delete" })));
    let line = |agent: &Agent, name: &str| agent.get("/metrics").1.lines().any(|line| line.starts_with(name));
    assert!(!line(&agent, "istio_cni_repair_pods_repaired_total"), "no process repairs pods here");
    let counts = json!({ "repaired": 3, "failed": 1, "not_redirected": 2 });
    node.root.write("probe/repairs.json", counts.to_string());
    for (metric, value) in [
        (r#"istio_cni_repair_pods_repaired_total{type="repair",result="success"}"#, 3.0),
        (r#"istio_cni_repair_pods_repaired_total{type="repair",result="fail"}"#, 1.0),
        ("gybe_pods_not_redirected", 2.0),
    ] {
        assert_eq!(agent.metric(metric), value, "{metric}");
    }
    assert!(!agent.get("/readyz").1.contains("whether running pods are redirected is not known"));
    let written = fs::File::open(node.root.join("probe/repairs.json")).unwrap();
    written.set_modified(SystemTime::now() - Duration::from_secs(200)).unwrap();
    let note = "note: whether running pods are redirected is not known: the container repair";
    assert!(agent.get("/readyz").1.contains(note), "its process has ended or hangs");
    assert_eq!(agent.metric("gybe_pods_not_redirected"), 2.0);
    let counts = node.root.write("probe/repairs.json", counts.to_string().replace('2', "0"));
    assert_eq!(agent.metric("gybe_pods_not_redirected"), 0.0);
    fs::File::open(counts).unwrap().set_modified(SystemTime::now() - Duration::from_secs(200)).unwrap();
    assert!(!line(&agent, "gybe_pods_not_redirected"), "an old 0");
}

/// Returns a token with this number that is valid for this many seconds.
fn token(n: u32, seconds: i64) -> String {
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap();
    let claims = format!(r#"{{"exp":{},"n":{n}}}"#, now + seconds);
    format!("eyJhbGciOiJSUzI1NiJ9.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims))
}

/// Replaces the files of the service account, as the kubelet does.
fn rotate_token(node: &Node, token: &str) {
    let files = [("token", token), ("ca.crt", "-----BEGIN CERTIFICATE-----\n")];
    write_volume(&node.root.join("account"), files).unwrap();
}

fn node(test: &str, source: &str) -> Node {
    let mut node = Node::new(test);
    node.set_env("KUBERNETES_SERVICE_HOST", "fd00::1");
    node.set_env("KUBERNETES_SERVICE_PORT", "6443");
    node.set_configmap(&[("pod_source", source)]);
    node.put_conf(FILE, PRIMARY);
    node
}

fn kubeconfig(node: &Node) -> Option<Value> {
    let text = fs::read_to_string(node.root.join("run/kubeconfig")).ok()?;
    serde_saphyr::from_str(&text).ok()
}

fn token_in_kubeconfig(node: &Node) -> Option<String> {
    Some(kubeconfig(node)?["users"][0]["user"]["token"].as_str()?.to_owned())
}

fn entry_names_kubeconfig(node: &Node) -> bool {
    let path = node.root.join("run/kubeconfig").display().to_string();
    node.entry(FILE).is_some_and(|entry| entry["facts"]["kubeconfig"] == path)
}

#[test]
fn f02_a_rotated_token_is_in_the_kubeconfig_at_once_and_the_agent_stays_ready() {
    let node = node("token", "api");
    rotate_token(&node, &token(0, 3600));
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready() && entry_names_kubeconfig(&node));
    let mode = fs::metadata(node.root.join("run/kubeconfig")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert_eq!(kubeconfig(&node).unwrap()["clusters"][0]["cluster"]["server"], "https://[fd00::1]:6443");
    let before = node.conf_text(FILE);
    for n in 1..=10 {
        let fresh = token(n, 3600);
        rotate_token(&node, &fresh);
        wait_until("the fresh token", || {
            assert!(agent.is_ready());
            token_in_kubeconfig(&node).as_ref() == Some(&fresh)
        });
    }
    assert_eq!(node.conf_text(FILE), before, "the conf file is not rewritten");
    assert!(agent.metric("gybe_kubeconfig_token_seconds") > 3000.0);
}

#[test]
fn no_token_is_on_the_host_unless_it_is_configured() {
    let node = node("no-token", "agent");
    rotate_token(&node, &token(0, 3600));
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    assert_eq!(kubeconfig(&node), None);
    node.set_configmap(&[("pod_source", "api")]);
    wait_until("a kubeconfig", || kubeconfig(&node).is_some() && entry_names_kubeconfig(&node));
    node.set_configmap(&[("pod_source", "agent")]);
    wait_until("none", || kubeconfig(&node).is_none() && !entry_names_kubeconfig(&node));
    node.set_configmap(&[("pod_source", "api")]);
    wait_until("a kubeconfig", || kubeconfig(&node).is_some());
    drop(agent);
    assert!(kubeconfig(&node).is_some(), "it stays valid while no agent runs");
    // A truncated kubeconfig is written again at the start.
    fs::write(node.root.join("run/kubeconfig"), "").unwrap();
    let _agent = node.start_agent();
    wait_until("a kubeconfig", || kubeconfig(&node).is_some());
}

#[test]
fn f02_a_token_that_expires_is_logged_beforehand_and_no_line_contains_a_token() {
    let node = node("ends-token", "api");
    rotate_token(&node, &token(0, 200));
    let mut agent = node.start_agent();
    agent.wait_for_message("expires soon");
    rotate_token(&node, &token(1, -5));
    agent.wait_for_message("has expired");
    rotate_token(&node, "");
    agent.wait_for_message("is empty");
    let prefix = token(1, 0).split('.').next().unwrap().to_owned();
    assert!(token_in_kubeconfig(&node).unwrap().starts_with(&prefix), "the last one stays");
    assert!(node.entry(FILE).is_some(), "an unusable token does not prevent the entry");
    wait_until("a reason", || agent.get("/readyz").1.contains("is empty"));
    rotate_token(&node, &token(3, 3600));
    wait_until("readiness", || agent.is_ready());
    assert!(!agent_text(&mut agent).contains("eyJ"), "no token in the log");
}

fn agent_text(agent: &mut Agent) -> String {
    agent.log().iter().map(ToString::to_string).collect()
}
