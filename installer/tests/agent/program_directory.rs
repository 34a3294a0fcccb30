//! The agent adds no entry before it knows the runtime's directory of plugins.

use crate::node::{Node, PRIMARIES, PRIMARY};
use gybe_test_support::wait_until;
use nix::sys::stat::stat;
use serde_json::json;
use std::fs;

const FILE: &str = "10-calico.conflist";
const UNCONFIRMED: &str = "none of the plugins of 10-calico.conflist (calico) is in the program directory";

/// A node whose program directory does not contain the primary's plugins.
fn node(test: &str) -> Node {
    let node = Node::new(test);
    for plugin in PRIMARIES.into_iter().filter(|plugin| *plugin != "loopback") {
        fs::remove_file(node.program_path(plugin)).unwrap();
    }
    node.put_conf(FILE, PRIMARY);
    node
}

/// Writes a probe report: containerd's configuration names `directory` as its directory of plugins, which is the same
/// directory as the test's `folder`.
fn write_runtime_report(node: &Node, directory: &str, folder: &str) {
    let status = stat(&node.root.join(folder)).unwrap();
    let directories = json!([{ "path": directory, "identity": [status.st_dev, status.st_ino] }]);
    let runtime = json!({ "name": "containerd", "reads_drop_ins": true, "plugin_dirs": directories });
    fs::write(node.root.join("probe/runtime.json"), json!({ "runtimes": [runtime] }).to_string()).unwrap();
}

/// On Debian: kubernetes-cni has put bridge and portmap into /opt/cni/bin, and containerd looks in /usr/lib/cni.
#[test]
fn f37_an_entry_from_before_the_report_is_removed_when_the_runtime_looks_elsewhere() {
    let node = Node::new("report-last");
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("an entry", || node.entry(FILE).is_some() && agent.is_ready());
    write_runtime_report(&node, "/usr/lib/cni", "image");
    agent.wait_for_message("the runtime looks for plugins in /usr/lib/cni");
    wait_until("no entry", || node.conf_text(FILE) == PRIMARY);
    wait_until("the agent to be not ready", || !agent.is_ready());
    write_runtime_report(&node, "/opt/cni/bin", "bin");
    wait_until("an entry again", || node.entry(FILE).is_some() && agent.is_ready());
    assert_eq!(agent.metric("gybe_foreign_rewrites_total{what=\"conf\"}"), 0.0);
}

#[test]
fn f37_nothing_is_chained_until_a_plugin_of_the_primary_appears() {
    let node = node("appears");
    let agent = node.start_agent();
    agent.wait_for_message(UNCONFIRMED);
    assert!(!agent.is_ready() && agent.get("/readyz").1.contains(UNCONFIRMED));
    assert_eq!(agent.metric("istio_cni_install_ready"), 0.0);
    assert_eq!(node.conf_text(FILE), PRIMARY);
    node.root.write_programs("bin", ["calico"]);
    wait_until("an entry", || node.entry(FILE).is_some() && agent.is_ready());
}

#[test]
fn f37_an_operator_or_the_runtimes_configuration_confirms_the_directory() {
    let node = node("confirmed");
    let agent = node.start_agent();
    agent.wait_for_message(UNCONFIRMED);
    node.set_configmap(&[("plugin_dir", "confirmed")]);
    wait_until("an entry", || node.entry(FILE).is_some() && agent.is_ready());
    drop(agent);
    node.set_configmap(&[]);
    node.put_conf(FILE, PRIMARY);
    write_runtime_report(&node, "/opt/cni/bin", "bin");
    let agent = node.start_agent();
    wait_until("an entry", || node.entry(FILE).is_some());
    let missing = "calico, which the runtime runs for 10-calico.conflist, is in none of the directories";
    wait_until("a reason", || agent.get("/readyz").1.contains(missing));
    node.root.write_programs("bin", ["calico"]);
    wait_until("readiness", || agent.is_ready());
    drop(agent);
    node.put_conf(FILE, PRIMARY);
    write_runtime_report(&node, "/usr/lib/cni", "image");
    let agent = node.start_agent();
    agent.wait_for_message("the runtime looks for plugins in /usr/lib/cni");
    assert!(!agent.is_ready());
    assert_eq!(node.conf_text(FILE), PRIMARY);
}
