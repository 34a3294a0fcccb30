//! The agent's setting `repair` reaches the process that repairs pods, and the counts of that process reach the
//! metrics.

use crate::node::{Node, PRIMARY};
use gybe_test_support::wait_until;
use serde_json::{Value, json};
use std::fs;

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
    let line = |agent: &gybe_test_support::Agent, name: &str| {
        agent.get("/metrics").1.lines().any(|line| line.starts_with(name))
    };
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
}
