//! Gybe's entry replaces istio-cni's; uninstall restores it on request.

use std::fs;

use gybe_installer::host::conflist::ConflistError;
use gybe_installer::host::desired::{DesiredState, PutBack, Shape, TakeOver};
use gybe_installer::host::problem::Problem;

use crate::ground::Ground;
use crate::lives::LIST;
use crate::wants::{chained, install, installed, left, name, program};

const ISTIO: &str = "{\"cniVersion\":\"0.3.1\",\"name\":\"n\",\"plugins\":[{\"type\":\"calico\"},{\"type\":\"istio-cni\",\"ambient_enabled\":false}]}\n";

#[test]
fn istio_cnis_entry_is_replaced_in_one_write_and_restored_on_request() {
    for put_back in [PutBack::Istio, PutBack::Nothing] {
        let ground = Ground::with(&[("10-calico.conflist", ISTIO)]);
        fs::write(ground.root.join("bin/istio-cni"), "theirs").unwrap();
        ground.settle(&chained(&ground.root));
        assert_eq!(ground.chain().1, ["calico", "gybe-cni"]);
        ground.settle(&left(&ground.root, put_back));
        let back = put_back == PutBack::Istio;
        assert_eq!(ground.text("10-calico.conflist") == ISTIO, back);
        assert_eq!(ground.chain().1.contains(&"istio-cni".to_owned()), back);
        assert_eq!(ground.files().len(), 1);
        assert_eq!(fs::read_to_string(ground.root.join("bin/istio-cni")).unwrap(), "theirs");
    }
}

#[test]
fn istio_cnis_entry_is_restored_in_a_changed_file_too_but_not_without_its_program() {
    let ground = Ground::with(&[("10-calico.conflist", ISTIO)]);
    fs::write(ground.root.join("bin/istio-cni"), "theirs").unwrap();
    ground.settle(&chained(&ground.root));
    ground.put("10-calico.conflist", LIST);
    ground.settle(&chained(&ground.root));
    ground.settle(&left(&ground.root, PutBack::Istio));
    assert_eq!(ground.chain().1, ["calico", "portmap", "istio-cni"]);

    let ground = Ground::with(&[("10-calico.conflist", ISTIO)]);
    ground.settle(&chained(&ground.root));
    let pass = ground.pass(&left(&ground.root, PutBack::Istio));
    assert_eq!(pass.plan.problems, [Problem::IstioGone(name("10-calico.conflist"))]);
    assert_eq!(ground.chain().1, ["calico"]);
}

#[test]
fn a_running_istio_agent_delays_the_take_over_and_ambient_prevents_it() {
    let ground = Ground::with(&[("10-calico.conflist", ISTIO)]);
    let mut waiting = install(&ground.root, Shape::Chained { pinned: None }, "1");
    waiting.take_over = TakeOver::Waits;
    let pass = ground.pass(&DesiredState::Installed(waiting));
    assert_eq!(pass.left.problems, [Problem::IstioAgentRuns(name("10-calico.conflist"))]);
    let ambient = ISTIO.replace("false", "true");
    ground.put("10-calico.conflist", &ambient);
    let pass = ground.pass(&chained(&ground.root));
    let why = ConflistError::Ambient;
    assert_eq!(pass.left.problems, [Problem::Unchangeable { file: name("10-calico.conflist"), why }]);
    assert_eq!(ground.text("10-calico.conflist"), ambient);
}

#[test]
fn a_stand_in_for_istio_cni_never_replaces_the_real_one() {
    let ground = Ground::with(&[("10-calico.conflist", LIST)]);
    let mut wanted = install(&ground.root, Shape::Chained { pinned: None }, "1");
    wanted.programs.push(program(&ground.root, "istio-cni", "tombstone"));
    fs::write(ground.root.join("bin/istio-cni"), "theirs").unwrap();
    ground.settle(&DesiredState::Installed(wanted.clone()));
    assert_eq!(fs::read_to_string(ground.root.join("bin/istio-cni")).unwrap(), "theirs");
    fs::remove_file(ground.root.join("bin/istio-cni")).unwrap();
    ground.settle(&DesiredState::Installed(wanted));
    assert!(fs::read_to_string(ground.root.join("bin/istio-cni")).unwrap().contains("tombstone"));
}

const ALONE: &str =
    "{\"cniVersion\":\"0.3.1\",\"name\":\"istio-cni\",\"type\":\"istio-cni\",\"log_level\":\"info\"}\n";

#[test]
fn istio_cnis_standalone_network_is_replaced_and_restored_on_request() {
    let shape = Shape::Standalone { file: name("istio-cni.conf") };
    for put_back in [PutBack::Istio, PutBack::Nothing] {
        let ground = Ground::with(&[("istio-cni.conf", ALONE)]);
        fs::write(ground.root.join("bin/istio-cni"), "theirs").unwrap();
        ground.settle(&installed(&ground.root, shape.clone()));
        assert!(ground.text("istio-cni.conf").contains("\"type\": \"gybe-cni\""));
        ground.settle(&left(&ground.root, put_back));
        let there = ground.files().into_iter().collect::<Vec<_>>();
        match put_back {
            PutBack::Istio => assert_eq!(there, [("istio-cni.conf".to_owned(), ALONE.into())]),
            PutBack::Nothing => assert!(there.is_empty(), "{there:?}"),
        }
    }
    let ground = Ground::with(&[("istio-cni.conf", ALONE)]);
    ground.settle(&installed(&ground.root, shape));
    let pass = ground.pass(&left(&ground.root, PutBack::Istio));
    assert_eq!(pass.plan.problems, [Problem::IstioGone(name("istio-cni.conf"))]);
    assert!(ground.files().is_empty());
}
