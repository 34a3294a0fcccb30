//! Take-over of a node from istio-cni; DEL of sandboxes that istio-cni set up still succeeds.

use crate::node::{FILE, Node, PRIMARY};
use gybe_test_support::wait_until;
use serde_json::Value;
use std::fs;
use std::os::unix::net::UnixListener;

const ISTIO: &str = r#"{ "type": "istio-cni", "plugin_log_level": "info", "ambient_enabled": false }"#;

fn istio(entry: &str) -> String {
    PRIMARY.replace("calico\"\n    }", &format!("calico\"\n    }},\n    {entry}"))
}

fn node(test: &str) -> Node {
    let node = Node::new(test);
    node.put_conf(FILE, &istio(ISTIO));
    fs::write(node.program_path("istio-cni"), "#!/bin/sh\n# istio-cni 1.30\n").unwrap();
    node
}

#[test]
fn the_agent_waits_while_istio_cnis_agent_has_a_pod_here_and_then_replaces_its_entry() {
    let node = node("take-wait");
    let pod = node.add_pod("istio-cni-node-x7x2p");
    let agent = node.start_agent();
    agent.wait_for_message("istio-cni's agent still runs");
    let text = agent.get("/readyz").1;
    assert!(text.contains("istio-cni's agent still runs"), "{text}");
    assert_eq!((node.conf_text(FILE), agent.metric("gybe_istio_cni_agent")), (istio(ISTIO), 1.0));
    fs::remove_file(pod).unwrap();
    node.put_conf("99-other.conf", "{}");
    wait_until("our entry", || node.entry(FILE).is_some());
    assert!(!node.conf_text(FILE).contains("\"istio-cni\""));
    assert_eq!(node.installed_build("istio-cni"), "istio-cni 1.30", "istio-cni's program stays");
}

#[test]
fn when_istio_cnis_agent_removes_its_own_entry_at_its_end_ours_is_written_while_its_pod_terminates() {
    let node = node("take-ended");
    node.add_pod("istio-cni-node-x7x2p");
    let agent = node.start_agent();
    agent.wait_for_message("istio-cni's agent still runs");
    // What istio-cni's agent does on SIGTERM.
    node.put_conf(FILE, PRIMARY);
    fs::remove_file(node.program_path("istio-cni")).unwrap();
    wait_until("our entry", || node.entry(FILE).is_some() && agent.is_ready());
}

#[test]
fn an_istio_cni_that_writes_its_entry_behind_ours_makes_the_node_not_ready_until_its_agent_has_gone() {
    let node = node("take-both");
    node.put_conf(FILE, PRIMARY);
    let pod = node.add_pod("istio-cni-node-x7x2p");
    let agent = node.start_agent();
    wait_until("our entry", || node.entry(FILE).is_some() && agent.is_ready());
    // What istio-cni's agent does when it starts again.
    let mut both: Value = serde_json::from_str(&node.conf_text(FILE)).unwrap();
    both["plugins"].as_array_mut().unwrap().push(serde_json::from_str(ISTIO).unwrap());
    node.put_conf(FILE, &both.to_string());
    wait_until("the reason", || agent.get("/readyz").1.contains("has entries of istio-cni and gybe-cni"));
    assert!(node.entry(FILE).is_some() && node.conf_text(FILE).contains("\"istio-cni\""));
    fs::remove_file(pod).unwrap();
    node.put_conf("99-other.conf", "{}");
    wait_until("the removal of its entry", || !node.conf_text(FILE).contains("\"istio-cni\""));
    wait_until("readiness", || agent.is_ready());
}

#[test]
fn a_listening_socket_of_istio_cnis_agent_delays_the_take_over_too() {
    let node = node("take-socket");
    fs::create_dir(node.root.join("istio")).unwrap();
    let socket = node.root.join("istio/log.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let agent = node.start_agent();
    agent.wait_for_message("istio-cni's agent still runs");
    // A killed istio-cni agent leaves its socket file without a listener.
    drop(listener);
    node.put_conf("99-other.conf", "{}");
    wait_until("our entry", || node.entry(FILE).is_some());
    assert!(socket.exists());
}

#[test]
fn take_over_now_does_not_wait_and_warns_about_istio_cnis_agent() {
    let node = node("take-now");
    node.add_pod("istio-cni-node-x7x2p");
    node.set_configmap(&[("take_over", "now")]);
    let agent = node.start_agent();
    wait_until("our entry", || node.entry(FILE).is_some());
    agent.wait_for_message("will write its entry again");
}

#[test]
fn f29_a_stand_in_for_istio_cnis_program_answers_del_as_long_as_its_sandboxes_exist() {
    let node = node("take-stand-in");
    node.add_sandbox("old", &["calico", "istio-cni"]);
    let agent = node.start_agent();
    wait_until("our entry", || node.entry(FILE).is_some());
    // istio-cni's agent removes its program when it ends, but DEL still needs a program of that name.
    fs::remove_file(node.program_path("istio-cni")).unwrap();
    wait_until("a stand-in", || node.installed_build("istio-cni") == "gybe-cni 1");
    drop(agent);
    // An upgrade of Gybe upgrades the stand-in.
    node.write_image("2");
    let agent = node.start_agent();
    wait_until("a newer one", || node.installed_build("istio-cni") == "gybe-cni 2");
    // istio-cni's last sandbox has ended.
    fs::remove_file(node.cached_result("old")).unwrap();
    drop(agent);
    let agent = node.start_agent();
    wait_until("its removal", || !node.program_path("istio-cni").exists());
    wait_until("readiness", || agent.is_ready());
    // istio-cni's real program is installed again: Gybe does not change it.
    fs::write(node.program_path("istio-cni"), "#!/bin/sh\n# istio-cni 1.31\n").unwrap();
    node.add_sandbox("new", &["calico", "istio-cni"]);
    drop(agent);
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    assert_eq!(node.installed_build("istio-cni"), "istio-cni 1.31");
}

#[test]
fn an_entry_of_the_ambient_mode_is_refused_with_the_reason() {
    let node = node("take-ambient");
    let ambient = istio(&ISTIO.replace("false", "true"));
    node.put_conf(FILE, &ambient);
    let agent = node.start_agent();
    let line = agent.wait_for_message("ambient mode");
    assert!(line["hint"].as_str().unwrap().contains("keep istio-cni"), "{line}");
    assert_eq!(node.conf_text(FILE), ambient);
    assert!(!agent.is_ready());
}

#[test]
fn f29_a_stand_in_of_any_version_is_recognized_and_removed_with_the_last_sandbox() {
    let node = node("take-old");
    node.add_sandbox("old", &["calico", "istio-cni"]);
    // A stand-in from two upgrades ago: neither the image's program nor the one placed last.
    fs::write(node.program_path("istio-cni"), "#!/bin/sh\n# gybe-cni 0\n").unwrap();
    let agent = node.start_agent();
    wait_until("a newer one", || node.installed_build("istio-cni") == "gybe-cni 1");
    drop(agent);
    fs::write(node.program_path("istio-cni"), "#!/bin/sh\n# gybe-cni 0\n").unwrap();
    fs::remove_file(node.cached_result("old")).unwrap();
    let _agent = node.start_agent();
    wait_until("its removal", || !node.program_path("istio-cni").exists());
}
