//! Gybe's entry replaces istio-cni's, by a pass and by `gybe install`; uninstall restores it on request.

use crate::HostRoot;
use crate::chained::LIST;
use crate::test_node::{TestNode, chained, install, installed, name, program, uninstalled};
use gybe_installer::host::conflist::ConflistError;
use gybe_installer::host::desired::{DesiredState, PutBack, Shape, TakeOver};
use gybe_installer::host::problem::Problem;
use std::fs;
use std::os::unix::net::UnixListener;

const ISTIO: &str = "{\"cniVersion\":\"0.3.1\",\"name\":\"n\",\"plugins\":[{\"type\":\"calico\"},{\"type\":\"istio-cni\",\"ambient_enabled\":false}]}\n";

#[test]
fn istio_cnis_entry_is_replaced_in_one_write_and_restored_on_request() {
    for put_back in [PutBack::Istio, PutBack::Nothing] {
        let node = TestNode::with(&[("10-calico.conflist", ISTIO)]);
        fs::write(node.root.join("bin/istio-cni"), "theirs").unwrap();
        node.settle(&chained(&node.root));
        assert_eq!(node.chain().1, ["calico", "gybe-cni"]);
        node.settle(&uninstalled(&node.root, put_back));
        let back = put_back == PutBack::Istio;
        assert_eq!(node.text("10-calico.conflist") == ISTIO, back);
        assert_eq!(node.chain().1.contains(&"istio-cni".to_owned()), back);
        assert_eq!(node.files().len(), 1);
        assert_eq!(fs::read_to_string(node.root.join("bin/istio-cni")).unwrap(), "theirs");
    }
}

#[test]
fn istio_cnis_entry_is_restored_in_a_changed_file_too_but_not_without_its_program() {
    let node = TestNode::with(&[("10-calico.conflist", ISTIO)]);
    fs::write(node.root.join("bin/istio-cni"), "theirs").unwrap();
    node.settle(&chained(&node.root));
    node.put("10-calico.conflist", LIST);
    node.settle(&chained(&node.root));
    node.settle(&uninstalled(&node.root, PutBack::Istio));
    assert_eq!(node.chain().1, ["calico", "portmap", "istio-cni"]);

    let node = TestNode::with(&[("10-calico.conflist", ISTIO)]);
    node.settle(&chained(&node.root));
    let pass = node.pass(&uninstalled(&node.root, PutBack::Istio));
    assert_eq!(pass.plan.problems, [Problem::IstioGone(name("10-calico.conflist"))]);
    assert_eq!(node.chain().1, ["calico"]);
}

#[test]
fn a_running_istio_agent_delays_the_take_over_and_ambient_prevents_it() {
    let node = TestNode::with(&[("10-calico.conflist", ISTIO)]);
    node.root.write_programs("bin", ["istio-cni"]);
    let mut waiting = install(&node.root, Shape::Chained { pinned: None }, "1");
    waiting.take_over = TakeOver::Waits;
    let pass = node.pass(&DesiredState::Installed(waiting));
    assert_eq!(pass.left.problems, [Problem::IstioAgentRuns(name("10-calico.conflist"))]);
    let ambient = ISTIO.replace("false", "true");
    node.put("10-calico.conflist", &ambient);
    let pass = node.pass(&chained(&node.root));
    let why = ConflistError::Ambient;
    assert_eq!(pass.left.problems, [Problem::Unchangeable { file: name("10-calico.conflist"), why }]);
    assert_eq!(node.text("10-calico.conflist"), ambient);
}

#[test]
fn a_stand_in_for_istio_cni_never_replaces_the_real_one() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    let mut desired = install(&node.root, Shape::Chained { pinned: None }, "1");
    desired.programs.push(program(&node.root, "istio-cni", "tombstone"));
    fs::write(node.root.join("bin/istio-cni"), "theirs").unwrap();
    node.settle(&DesiredState::Installed(desired.clone()));
    assert_eq!(fs::read_to_string(node.root.join("bin/istio-cni")).unwrap(), "theirs");
    fs::remove_file(node.root.join("bin/istio-cni")).unwrap();
    node.settle(&DesiredState::Installed(desired));
    assert!(fs::read_to_string(node.root.join("bin/istio-cni")).unwrap().contains("tombstone"));
}

const ALONE: &str =
    "{\"cniVersion\":\"0.3.1\",\"name\":\"istio-cni\",\"type\":\"istio-cni\",\"log_level\":\"info\"}\n";

#[test]
fn istio_cnis_standalone_network_is_replaced_and_restored_on_request() {
    let shape = Shape::Standalone { file: name("istio-cni.conf") };
    for put_back in [PutBack::Istio, PutBack::Nothing] {
        let node = TestNode::with(&[("istio-cni.conf", ALONE)]);
        fs::write(node.root.join("bin/istio-cni"), "theirs").unwrap();
        node.settle(&installed(&node.root, shape.clone()));
        assert!(node.text("istio-cni.conf").contains("\"type\": \"gybe-cni\""));
        node.settle(&uninstalled(&node.root, put_back));
        let there = node.files().into_iter().collect::<Vec<_>>();
        match put_back {
            PutBack::Istio => assert_eq!(there, [("istio-cni.conf".to_owned(), ALONE.into())]),
            PutBack::Nothing => assert!(there.is_empty(), "{there:?}"),
        }
    }
    let node = TestNode::with(&[("istio-cni.conf", ALONE)]);
    node.settle(&installed(&node.root, shape));
    let pass = node.pass(&uninstalled(&node.root, PutBack::Istio));
    assert_eq!(pass.plan.problems, [Problem::IstioGone(name("istio-cni.conf"))]);
    assert!(node.files().is_empty());
}

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
    node.write_program("image/gybe-cni", &crate::plugin_script("2"));
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
