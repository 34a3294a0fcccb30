//! The sixteen end-to-end cases of istio-cni's installer: install, repair of a removed entry, uninstall.

use crate::test_node::TestNode;
use crate::{json, shared, test_node, text, with_gybes_entry, without_names_and_versions};
use gybe_installer::host::conflist::PluginChain;
use gybe_installer::host::desired::{DesiredState, PutBack, Shape};
use gybe_installer::host::problem::Problem;
use serde_json::Value;

const CALICO: (&str, &str) = ("calico.conflist", "10-calico.conflist-istioconfig");
const MINIKUBE: (&str, &str) = ("minikube_cni.conf", "minikube_cni.conflist.expected");

struct Case {
    /// Files of the directory `pre`, numbered in this order.
    files: &'static [&'static str],
    pinned: Option<&'static str>,
    /// The name of the file that has the entry in the end.
    becomes: &'static str,
    of: (&'static str, &'static str),
}

const fn case(
    files: &'static [&'static str],
    pinned: Option<&'static str>,
    becomes: &'static str,
    of: (&'static str, &'static str),
) -> Case {
    Case { files, pinned, becomes, of }
}

const BAD: &str = "bad_minikube_cni.conf";
const NOT_JSON: &str = "non_json.conf";
const NO_NAME: &str = "noname_calico.conflist";
const NO_PLUGINS: &str = "noplugins_calico.conflist";

const CASES: [Case; 12] = [
    case(&[CALICO.0], Some("00-calico.conflist"), "00-calico.conflist", CALICO),
    case(&[MINIKUBE.0], Some("00-minikube_cni.conf"), "00-minikube_cni.conflist", MINIKUBE),
    case(&[CALICO.0, MINIKUBE.0], None, "00-calico.conflist", CALICO),
    case(&[MINIKUBE.0, CALICO.0], None, "00-minikube_cni.conflist", MINIKUBE),
    case(&[NOT_JSON, MINIKUBE.0, CALICO.0], None, "01-minikube_cni.conflist", MINIKUBE),
    case(&[NOT_JSON, CALICO.0, MINIKUBE.0], None, "01-calico.conflist", CALICO),
    case(&[BAD, MINIKUBE.0, CALICO.0], None, "01-minikube_cni.conflist", MINIKUBE),
    case(&[BAD, CALICO.0, MINIKUBE.0], None, "01-calico.conflist", CALICO),
    case(&[NO_NAME, NO_PLUGINS, MINIKUBE.0, CALICO.0], None, "02-minikube_cni.conflist", MINIKUBE),
    case(&[NO_NAME, NO_PLUGINS, CALICO.0, MINIKUBE.0], None, "02-calico.conflist", CALICO),
    case(&[CALICO.0], Some("00-calico.conf"), "00-calico.conflist", CALICO),
    case(&[MINIKUBE.0], Some("00-minikube_cni.conflist"), "00-minikube_cni.conflist", MINIKUBE),
];

fn chained(node: &TestNode, pinned: Option<&str>) -> DesiredState {
    test_node::installed(&node.root, Shape::Chained { pinned: pinned.map(test_node::name) })
}

/// Installs, repairs and uninstalls; asserts at each step that every byte outside Gybe's entry is unchanged.
fn assert_install_to_uninstall(
    node: &TestNode,
    desired: &DesiredState,
    becomes: &str,
    (pre, golden): (&str, &str),
) {
    let before = node.files();
    node.settle(desired);
    let result = node.text(becomes);
    let expected_entry = with_gybes_entry(&shared(&format!("install-e2e/expected/{golden}")));
    assert_eq!(
        without_names_and_versions(json(result.as_bytes())),
        without_names_and_versions(expected_entry),
        "{becomes}"
    );
    let original = text(&format!("install-e2e/pre/{pre}"));
    let ours = test_node::entry("info");
    assert!(
        PluginChain::read(result.as_bytes())
            .unwrap()
            .entry("gybe-cni")
            .is_some_and(|text| ours.has_same_value(text))
    );
    if pre == CALICO.0 {
        let without = PluginChain::read(result.as_bytes()).unwrap().without("gybe-cni").unwrap();
        assert_eq!(String::from_utf8(without).unwrap(), original, "no byte outside the entry changed");
    } else {
        assert!(result.contains(original.trim()), "the plugin's own text is untouched");
        let name = |bytes: &str| json(bytes.as_bytes())["name"].clone();
        assert_eq!(name(&result), name(&original), "the network keeps its name");
    }
    // Another program removes the entry, and the next pass restores it.
    node.put(becomes, PluginChain::read(result.as_bytes()).unwrap().without("gybe-cni").unwrap());
    node.settle(desired);
    assert_eq!(node.text(becomes), result);
    let DesiredState::Uninstalled(mut uninstall) = test_node::uninstalled(&node.root, PutBack::Nothing)
    else {
        unreachable!()
    };
    if let DesiredState::Installed(install) = desired
        && let Shape::Chained { pinned } = &install.shape
    {
        uninstall.pinned.clone_from(pinned);
    }
    node.settle(&DesiredState::Uninstalled(uninstall));
    assert_eq!(node.files(), before, "{becomes}");
    assert!(node.programs().is_empty());
}

#[test]
fn every_directory_ends_as_with_istio_cni_and_is_restored() {
    for case in CASES {
        let node = TestNode::new();
        for (n, file) in case.files.iter().enumerate() {
            node.put(&format!("0{n}-{file}"), shared(&format!("install-e2e/pre/{file}")));
        }
        assert_install_to_uninstall(&node, &chained(&node, case.pinned), case.becomes, case.of);
    }
}

#[test]
fn the_entry_waits_for_a_later_file() {
    for (pinned, appears, becomes) in [
        (Some("missing_initially.conf"), "missing_initially.conf", "missing_initially.conflist"),
        (None, "calico.conflist", "calico.conflist"),
    ] {
        let node = TestNode::new();
        let desired = chained(&node, pinned);
        let waiting = node.pass(&desired).left;
        assert!(!waiting.is_done() && waiting.changes.is_empty());
        let waits = |problem: &Problem| matches!(problem, Problem::Waiting | Problem::WaitingFor { .. });
        assert!(waiting.problems.iter().all(waits), "{:?}", waiting.problems);
        assert!(node.files().is_empty(), "Gybe does not write a primary's file");
        node.put(appears, shared("install-e2e/pre/calico.conflist"));
        assert_install_to_uninstall(&node, &desired, becomes, CALICO);
    }
}

#[test]
fn standalone_is_a_file_of_its_own() {
    for file in ["YYY-gybe-cni.conf", "user-defined.conf"] {
        let node = TestNode::new();
        node.settle(&test_node::installed(&node.root, Shape::Standalone { file: test_node::name(file) }));
        let ours = json(node.text(file).as_bytes());
        let theirs = json(&shared("install-e2e/expected/YYY-istio-cni.conf"));
        assert_eq!((&ours["cniVersion"], &ours["name"]), (&theirs["cniVersion"], &theirs["name"]));
        assert_eq!(ours["type"], Value::from("gybe-cni"));
        node.settle(&test_node::uninstalled(&node.root, PutBack::Nothing));
        assert!(node.files().is_empty() && node.programs().is_empty());
    }
}
