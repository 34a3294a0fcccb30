//! The kubeconfig on the host: written only if configured, and updated with the token.

use crate::node::{Node, PRIMARY};
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use gybe_test_support::{Agent, wait_until, write_volume};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{SystemTime, UNIX_EPOCH};

const FILE: &str = "10-calico.conflist";

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
