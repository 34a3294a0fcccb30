//! `gybe install` on a node with istio-cni: it replaces istio-cni's entry, and uninstall restores it on request.

use crate::host_root::HostRoot;
use std::fs;
use std::os::unix::net::UnixListener;

const THEIRS: &str = "{\n  \"name\": \"net\",\n  \"plugins\": [\n    {\n      \"type\": \"calico\"\n    },\n    {\n      \"type\": \"istio-cni\",\n      \"log_level\": \"info\"\n    }\n  ]\n}\n";

#[test]
fn an_istio_cni_entry_is_replaced_on_the_operators_order_and_restored_on_request() {
    let node = HostRoot::with(&[("10-calico.conflist", THEIRS)]);
    node.write_program("opt/cni/bin/istio-cni", "#!/bin/sh\necho theirs\n");
    let run = node.root.join("var/run/istio-cni");
    fs::create_dir_all(&run).unwrap();
    let agent = UnixListener::bind(run.join("log.sock")).unwrap();
    let waits = node.install("");
    assert_eq!(waits.code, 1, "{waits:?}");
    assert!(waits.out.contains("10-calico.conflist has an istio-cni entry"), "{}", waits.out);
    assert!(waits.out.contains("--take-over now"), "{}", waits.out);
    assert_eq!(node.install("--take-over now").code, 0);
    drop(agent);
    let ours = fs::read_to_string(node.conf("10-calico.conflist")).unwrap();
    assert!(ours.contains("gybe-cni") && !ours.contains("istio-cni\""), "{ours}");
    assert_eq!(node.uninstall("--put-back-istio").code, 0);
    assert_eq!(fs::read_to_string(node.conf("10-calico.conflist")).unwrap(), THEIRS);
    assert_eq!(node.conf_files().len(), 1);
    assert_eq!(node.after_grace_period().uninstall("--put-back-istio --json").json()["finished"], true);
    assert_eq!(node.programs(), ["istio-cni"]);
}

/// A killed istio-cni agent leaves its entry and a socket file without a listener.
#[test]
fn an_istio_cni_entry_whose_agent_is_gone_is_replaced() {
    let node = HostRoot::with(&[("10-calico.conflist", THEIRS)]);
    fs::create_dir_all(node.root.join("var/run/istio-cni")).unwrap();
    drop(UnixListener::bind(node.root.join("var/run/istio-cni/log.sock")).unwrap());
    assert_eq!(node.install("").code, 0);
    let ours = fs::read_to_string(node.conf("10-calico.conflist")).unwrap();
    assert!(ours.contains("gybe-cni") && !ours.contains("istio-cni\""), "{ours}");
}

/// istio-cni's agent removes its program when it ends, but sandboxes it set up still need the program for DEL.
#[test]
fn f29_a_stand_in_answers_for_istio_cni_and_is_removed_with_the_last_sandbox() {
    let node = HostRoot::with(&[("10-calico.conflist", THEIRS)]);
    node.add_sandbox("n-old-eth0", &["calico", "istio-cni"]);
    assert_eq!(node.install("--take-over now").code, 0);
    assert_eq!(node.programs(), ["gybe", "gybe-cni", "istio-cni"]);
    // An upgrade replaces the plugin and not the stand-in.
    node.write_program("image/gybe-cni", &crate::host_root::plugin_script("2"));
    assert_eq!(node.install("--take-over now").code, 0);
    let report = node.uninstall("--json").json();
    let stays: Vec<&str> =
        report["stays"].as_array().unwrap().iter().filter_map(|it| it["program"].as_str()).collect();
    assert_eq!(stays, ["gybe-cni", "istio-cni"], "{report}");
    let report = node.after_grace_period().uninstall("--json").json();
    assert_eq!(
        (&report["finished"], &report["stays"][0]["program"]),
        (&false.into(), &"istio-cni".into()),
        "{report}"
    );
    node.end_sandbox("n-old-eth0");
    assert_eq!(node.after_grace_period().uninstall("--json").json()["finished"], true);
    assert!(node.programs().is_empty());
}
