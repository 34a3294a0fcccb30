//! Uninstall by `mode: leave` in the ConfigMap, in an order that fails no pod.

use crate::node::{Node, PRIMARY};
use gybe_test_support::wait_until;

const FILE: &str = "10-calico.conflist";

#[test]
fn f29_mode_leave_uninstalls_and_reports_when_it_is_done() {
    let node = Node::new("uninstall");
    node.set_configmap(&[("also_as", "istio-iptables")]);
    node.put_conf(FILE, PRIMARY);
    node.add_sandbox("one", &["calico", "gybe-cni"]);
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready() && node.program_path("istio-iptables").exists());
    let before = node.conf_text(FILE);
    let refused = node.gybe("uninstall").arg("--run-dir").arg(node.root.join("run")).output().unwrap();
    assert_eq!((refused.status.code(), node.conf_text(FILE)), (Some(2), before), "{refused:?}");
    assert_eq!(agent.get("/left"), (503, "no uninstall requested\n".to_owned()));
    assert_eq!(agent.metric("gybe_left"), 0.0);
    node.set_configmap(&[("mode", "leave"), ("also_as", "istio-iptables")]);
    wait_until("the end of the uninstall", || agent.get("/left").0 == 200);
    assert_eq!(node.conf_text(FILE), PRIMARY, "byte for byte");
    assert_eq!(node.installed_build("gybe-cni"), "gybe-cni 1", "a sandbox exists, and more may be starting");
    assert!(node.program_path("gybe").exists(), "gybe uninstall may still be needed");
    assert!(!node.program_path("istio-iptables").exists());
    assert!(agent.get("/left").1.contains("gybe-cni stays"));
    // After its uninstall the agent restores nothing, so `gybe uninstall` is allowed.
    let run = node.root.join("run");
    let out = node.gybe("uninstall").arg("--run-dir").arg(&run).output().unwrap();
    assert_eq!((out.status.code(), String::from_utf8(out.stderr).unwrap()), (Some(0), String::new()));
    let (status, text) = agent.get("/readyz");
    assert!(status == 503 && text.contains("uninstalled"), "{status} {text}");
    assert_eq!(agent.metric("gybe_left"), 1.0);
    agent.wait_for_message("the plugin stays for existing sandboxes");
    // Pods that were starting still query their facts.
    assert!(node.root.join("run/facts.sock").exists());
    // An entry that another program restores is removed again.
    let entry =
        PRIMARY.replace("calico\"\n    }", "calico\"\n    },\n    {\n      \"type\": \"gybe-cni\"\n    }");
    node.put_conf(FILE, &entry);
    wait_until("its removal", || node.conf_text(FILE) == PRIMARY);
    // `mode: install` installs again.
    node.set_configmap(&[("mode", "install")]);
    wait_until("readiness", || agent.is_ready());
    assert!(node.entry(FILE).is_some() && node.program_path("gybe").exists());
}

#[test]
fn uninstall_without_an_install_changes_nothing() {
    let node = Node::new("leaves-nothing");
    node.set_configmap(&[("mode", "leave")]);
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("the end of the uninstall", || agent.get("/left").0 == 200);
    assert_eq!(agent.get("/left").1, "uninstalled; no program stays\n");
    assert_eq!(node.conf_text(FILE), PRIMARY);
}
