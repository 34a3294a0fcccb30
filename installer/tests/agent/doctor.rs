//! `gybe doctor` reports the status of the running agent, as the agent publishes it.

use crate::node::{FILE, Node, PRIMARIES, PRIMARY};
use gybe_test_support::wait_until;
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;

/// Returns the doctor's findings about the agent that have this state.
fn findings_about_agent(node: &Node, state: &str) -> Vec<String> {
    findings_about(&node.doctor(), "agent", state)
}

fn findings_about(report: &Value, about: &str, state: &str) -> Vec<String> {
    let all = report["findings"].as_array().unwrap().iter();
    let these = all.filter(|it| it["about"] == about && it["state"] == state);
    these.map(|it| it["says"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_agents_readiness_and_its_reasons_are_in_the_doctors_report() {
    let mut node = Node::new("explained");
    node.set_env("CNI_CONF_NAME", FILE);
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    assert!(
        findings_about_agent(&node, "ok").contains(&"the node agent is ready".to_owned()),
        "{:#}",
        node.doctor()
    );
    node.put_conf("05-another.conflist", PRIMARY);
    wait_until("a reason", || agent.get("/readyz").0 == 503);
    let wrong = findings_about_agent(&node, "wrong");
    let reason = "the node agent is not ready: the runtime uses 05-another.conflist";
    assert!(wrong.iter().any(|says| says.starts_with(reason)), "{wrong:?}");
}

#[test]
fn while_an_agent_runs_that_would_restore_its_entry_the_doctor_advises_no_uninstall() {
    let mut node = Node::new("explained-no-uninstall");
    node.set_env("CNI_CONF_NAME", "20-later.conflist");
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("the programs", || node.program_path("gybe").exists());
    assert!(!agent.is_ready() && node.entry(FILE).is_none());
    let found = node.doctor_with("run", &[]);
    assert!(!found.to_string().contains("gybe uninstall"), "{found:#}");
    drop(agent);
    let found = node.doctor_with("run", &[]);
    assert!(found.to_string().contains("gybe uninstall"), "nothing else finishes it: {found:#}");
}

#[test]
fn a_port_that_another_process_has_is_wrong_and_the_process_is_named() {
    let mut node = Node::new("explained-port");
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap();
    node.set_env("MONITORING_ADDRESS", &address.to_string());
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    let expected = format!("the agent cannot listen at {address} (metrics): ");
    wait_until("a note", || agent.get("/readyz").1.contains(&expected));
    let wrong = findings_about_agent(&node, "wrong");
    let process = format!("; process {} (", std::process::id());
    assert!(wrong[0].starts_with(&expected) && wrong[0].contains(&process), "{wrong:?}");
    drop(holder);
    wait_until("the port", || findings_about_agent(&node, "wrong").is_empty());
}

#[test]
fn pods_that_the_plugin_refused_are_wrong_with_the_error_until_their_add_succeeds() {
    let node = Node::new("explained-refused");
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    let socket = UnixDatagram::unbound().unwrap();
    let send =
        |line: Value| socket.send_to(line.to_string().as_bytes(), node.root.join("run/log.sock")).unwrap();
    let args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0";
    let refused = || findings_about(&node.doctor_with("run", &[]), "pods", "wrong");
    for id in ["GYBE-ADD-017", "GYBE-ADD-011"] {
        let cause = "the annotation is wrong\u{1b}[2J";
        send(
            json!({ "verb": "ADD", "decision": "error", "id": id, "cause": cause, "hint": "correct it", "args": args }),
        );
    }
    wait_until("a finding", || refused().first().is_some_and(|says| says.contains("was refused 2 times")));
    let found = refused();
    assert!(
        found[0].ends_with("s ago: GYBE-ADD-011: the annotation is wrong\u{1b}[2J; correct it"),
        "{found:?}"
    );
    send(json!({ "verb": "ADD", "decision": "redirect", "pod": "shop/cart-0" }));
    wait_until("its end", || refused().is_empty());
}

#[test]
fn a_configmap_that_the_agent_rejects_is_wrong() {
    let node = Node::new("explained-settings");
    node.set_configmap(&[("log_level", "debug")]);
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    assert_eq!(findings_about_agent(&node, "wrong"), [""; 0]);
    node.set_configmap(&[("log_level", "loud")]);
    wait_until("its count", || agent.metric("gybe_settings_followed") == 0.0);
    let wrong = findings_about_agent(&node, "wrong");
    assert!(
        wrong[0].starts_with("the node agent rejects the ConfigMap and keeps the previous settings: "),
        "{wrong:?}"
    );
    assert!(wrong[0].contains("log_level is \"loud\""), "{wrong:?}");
}

#[test]
fn a_conflict_over_the_chain_is_wrong_and_the_other_writer_is_named() {
    let node = Node::new("explained-conflict");
    let cilium = PRIMARY.replace("calico", "cilium-cni");
    node.put_conf(FILE, &cilium);
    let agent = node.start_agent();
    wait_until("an entry", || node.entry(FILE).is_some());
    wait_until("a conflict", || {
        node.put_conf(FILE, &cilium);
        agent.metric("gybe_conflict{what=\"conf\"}") == 1.0
    });
    wait_until("its finding", || {
        let wrong = findings_about_agent(&node, "wrong");
        wrong.iter().any(|says| says.contains("keeps undoing") && says.contains("Cilium"))
    });
}

#[test]
fn f37_the_doctor_uses_the_agents_setting_of_plugin_dir() {
    let node = Node::new("explained-confirmed");
    for plugin in PRIMARIES {
        fs::remove_file(node.program_path(plugin)).unwrap();
    }
    node.set_configmap(&[("plugin_dir", "confirmed")]);
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    let of_directories =
        |flags: &[&str]| findings_about(&node.doctor_with("probe", flags), "directories", "wrong");
    assert_eq!(of_directories(&[]), [""; 0]);
    let wrong = of_directories(&["--plugin-dir", "check"]);
    assert!(wrong[0].contains("is in the program directory"), "the flag overrides: {wrong:?}");
}

#[test]
fn mode_leave_is_noted_and_not_wrong() {
    let node = Node::new("explained-leaving");
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    node.set_configmap(&[("mode", "leave")]);
    wait_until("the end", || agent.get("/left").0 == 200);
    assert!(node.program_path("gybe").exists(), "for five minutes");
    let found = node.doctor_with("run", &[]);
    for about in ["agent", "chain"] {
        assert_eq!(findings_about(&found, about, "wrong"), [""; 0], "{found:#}");
        let notes = findings_about(&found, about, "note");
        assert!(notes.len() == 1 && notes[0].contains("(mode: leave)"), "{about}: {found:#}");
    }
    assert_eq!(findings_about(&found, "leftovers", "note").len(), 1, "{found:#}");
    assert!(!found.to_string().contains("gybe uninstall"), "the agent does it: {found:#}");
}

#[test]
fn pods_with_istio_init_are_noted_by_the_agent_and_the_doctor_with_the_setting_of_istiod() {
    let node = Node::new("explained-istio-init");
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    let is_noted = || findings_about_agent(&node, "note").iter().any(|says| says.contains("istio-init"));
    assert!(!is_noted());
    let pod = r#"{ "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": "shop", "name": "cart-0", "uid": "u" },
        "spec": { "initContainers": [{ "name": "istio-init" }], "containers": [{ "name": "istio-proxy" }] } }"#;
    fs::write(node.root.join("pods/cart.json"), pod).unwrap();
    // Pods cause no event; another conf file does.
    node.put_conf(FILE, PRIMARY);
    wait_until("a note", is_noted);
    assert!(agent.is_ready());
    let line = agent.wait_for_message("pods of this node redirect themselves");
    let hint = line["hint"].as_str().unwrap();
    assert!(hint.contains("pilot.cni.enabled=true") && hint.contains("unvalidatedValues"), "{hint}");
}
