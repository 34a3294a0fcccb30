//! Where the runtime looks for plugins is not guessed: nothing is chained before it is known.

use crate::agent::eventually;
use crate::node::{Node, PRIMARIES, PRIMARY};
use nix::sys::stat::stat;
use std::fs;

const FILE: &str = "10-calico.conflist";
const NOWHERE: &str = "of the plugins of 10-calico.conflist (calico) none is in the program directory";

/// Its directory of plugins is not the one that the primary's are in.
fn node(test: &str) -> Node {
    let node = Node::new(test);
    for plugin in PRIMARIES {
        fs::remove_file(node.program(plugin)).unwrap();
    }
    node.puts(FILE, PRIMARY);
    node
}

#[test]
fn f37_nothing_is_chained_until_a_plugin_of_the_primarys_appears() {
    let node = node("appears");
    let mut agent = node.agent();
    agent.tells(NOWHERE);
    assert!(!agent.is_ready() && agent.get("/readyz").1.contains(NOWHERE));
    assert_eq!(agent.number("istio_cni_install_ready"), 0.0);
    assert_eq!(node.text(FILE), PRIMARY);
    fs::write(node.program("calico"), "").unwrap();
    eventually("an entry", || node.entry(FILE).is_some() && agent.is_ready());
}

#[test]
fn f37_an_operator_or_the_runtimes_configuration_confirms_the_directory() {
    let mut node = node("confirmed");
    let mut agent = node.agent();
    agent.tells(NOWHERE);
    node.configures(&[("plugin_dir", "confirmed")]);
    eventually("an entry", || node.entry(FILE).is_some() && agent.is_ready());
    drop(agent);
    node.configures(&[]);
    node.puts(FILE, PRIMARY);
    // As the probe keeps what it read in containerd's configuration.
    let there = stat(&node.root.join("bin")).unwrap();
    let report = |directory: &str, inode: u64| {
        let identity = [there.st_dev, inode];
        let directories = serde_json::json!([{ "path": directory, "identity": identity }]);
        let runtime =
            serde_json::json!({ "name": "containerd", "reads_drop_ins": true, "plugin_dirs": directories });
        let text = serde_json::json!({ "runtimes": [runtime] }).to_string();
        fs::write(node.root.join("probe/runtime.json"), text).unwrap();
    };
    report("/opt/cni/bin", there.st_ino);
    let agent = node.agent();
    eventually("an entry", || node.entry(FILE).is_some() && agent.is_ready());
    drop(agent);
    fs::write(node.program("calico"), "").unwrap();
    node.puts(FILE, PRIMARY);
    report("/usr/lib/cni", 1);
    let mut agent = node.agent();
    agent.tells("the runtime looks for plugins in /usr/lib/cni");
    assert!(!agent.is_ready());
    assert_eq!(node.text(FILE), PRIMARY);
}
