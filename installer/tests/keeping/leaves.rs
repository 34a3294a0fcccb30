//! Uninstall by `mode: leave` in the ConfigMap, in an order that fails no pod.

use crate::node::{Node, PRIMARY};
use gybe_test_support::wait_until;

const FILE: &str = "10-calico.conflist";

#[test]
fn f29_mode_leave_uninstalls_and_reports_when_it_is_done() {
    let mut node = Node::new("leaves");
    node.configures(&[("also_as", "istio-iptables")]);
    node.puts(FILE, PRIMARY);
    node.sandbox("one", &["calico", "gybe-cni"]);
    let agent = node.agent();
    wait_until("readiness", || agent.is_ready() && node.program("istio-iptables").exists());
    let in_force = node.text(FILE);
    let refused = node.tool("uninstall").arg("--run-dir").arg(node.root.join("run")).output().unwrap();
    assert_eq!((refused.status.code(), node.text(FILE)), (Some(2), in_force), "{refused:?}");
    assert_eq!(agent.get("/left"), (503, "no uninstall requested\n".to_owned()));
    assert_eq!(agent.metric("gybe_left"), 0.0);
    node.configures(&[("mode", "leave"), ("also_as", "istio-iptables")]);
    wait_until("the end", || agent.get("/left").0 == 200);
    assert_eq!(node.text(FILE), PRIMARY, "byte for byte");
    assert_eq!(node.build("gybe-cni"), "gybe-cni 1", "a sandbox lives, and more may be on their way");
    assert!(node.program("gybe").exists(), "gybe uninstall can finish it");
    assert!(!node.program("istio-iptables").exists());
    assert!(agent.get("/left").1.contains("gybe-cni stays"));
    // After its uninstall the agent restores nothing, so `gybe uninstall` is allowed.
    let run = node.root.join("run");
    let out = node.tool("uninstall").arg("--run-dir").arg(&run).output().unwrap();
    assert_eq!((out.status.code(), String::from_utf8(out.stderr).unwrap()), (Some(0), String::new()));
    let (status, text) = agent.get("/readyz");
    assert!(status == 503 && text.contains("uninstalled"), "{status} {text}");
    assert_eq!(agent.metric("gybe_left"), 1.0);
    agent.wait_for_message("the plugin stays for existing sandboxes");
    // The plugin is asked by pods that were on their way, and answered about them.
    assert!(node.root.join("run/facts.sock").exists());
    // An entry that another program restores is removed again.
    let entry =
        PRIMARY.replace("calico\"\n    }", "calico\"\n    },\n    {\n      \"type\": \"gybe-cni\"\n    }");
    node.puts(FILE, &entry);
    wait_until("its end", || node.text(FILE) == PRIMARY);
    // `mode: install` installs again.
    node.configures(&[("mode", "install")]);
    wait_until("readiness", || agent.is_ready());
    assert!(node.entry(FILE).is_some() && node.program("gybe").exists());
}

#[test]
fn a_converted_conf_and_a_file_of_our_own_come_back_to_what_was() {
    let mut node = Node::new("leaves-conf");
    let single = r#"{"cniVersion":"0.4.0","name":"n","type":"bridge"}"#;
    node.puts("10-net.conf", single);
    let agent = node.agent();
    wait_until("a list", || node.entry("10-net.conflist").is_some());
    node.configures(&[("mode", "leave")]);
    wait_until("the end", || agent.get("/left").0 == 200);
    assert_eq!(node.text("10-net.conf"), single);
    let names: Vec<_> =
        std::fs::read_dir(node.root.join("net.d")).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(names, ["10-net.conf"]);
}

#[test]
fn nothing_ours_was_there_and_that_is_left_too() {
    let mut node = Node::new("leaves-nothing");
    node.configures(&[("mode", "leave")]);
    node.puts(FILE, PRIMARY);
    let agent = node.agent();
    wait_until("the end", || agent.get("/left").0 == 200);
    assert_eq!(agent.get("/left").1, "uninstalled; no program stays\n");
    assert_eq!(node.text(FILE), PRIMARY);
}
