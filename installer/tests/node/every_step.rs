//! Property tests: after every single change to any conf directory the runtime loads the same network as before.

use crate::test_node::TestNode;
use crate::test_node::{chained, installed, name, uninstalled};
use gybe_installer::host::apply::apply;
use gybe_installer::host::desired::{Confirmed, DesiredState, Install, PutBack, Shape};
use gybe_installer::host::libcni::choice::choose;
use gybe_installer::host::observe::ObserveScope;
use gybe_installer::host::observe::runtimes::DropIns;
use gybe_installer::host::observe::runtimes::Runtime;
use gybe_installer::host::plan::plan;
use proptest::prelude::*;

const NAMES: [&str; 10] = [
    "10-a.conf",
    "10-a.conflist",
    "10-a.json",
    "10-a.conf.conflist",
    "10-a.json.conflist",
    "05-b.conf",
    "20-c.conflist",
    ".conf",
    "10-a.conf5.conf",
    "10-a.conf-5.conf",
];

/// Returns a conf file's content. The names of its network and plugin contain `n`, so that tests can tell files apart.
fn content(kind: u8, n: usize) -> String {
    match kind {
        0 => format!("{{\n  \"name\": \"net{n}\",\n  \"type\": \"p{n}\"\n}}\n"),
        1 => format!("{{\"cniVersion\":\"1.0.0\",\"name\":\"net{n}\",\"plugins\":[{{\"type\":\"p{n}\"}}]}}"),
        2 => format!(
            "{{\n \"plugins\": [\n  {{ \"type\": \"p{n}\" }},\n  {{ \"type\": \"portmap\" }}\n ],\n \"name\": \"net{n}\" }}"
        ),
        3 => format!("{{\"type\":\"p{n}\"}}"),
        4 => format!("{{\"name\":\"net{n}\",\"plugins\":["),
        5 => "{\"name\":\"istio-cni\",\"type\":\"istio-cni\"}".to_owned(),
        _ => format!("{{\"name\":\"net{n}\",\"type\":\"p{n}\",\"plugins\":[{{\"type\":\"q{n}\"}}]}}"),
    }
}

fn network(node: &TestNode, runtime: Runtime) -> Option<(String, Vec<String>)> {
    let network =
        choose(&node.observe(&ObserveScope::default()).conf, runtime, DropIns::Loaded).ok()?.network;
    let mut plugins = network.plugins;
    plugins.retain(|plugin| plugin != "gybe-cni");
    Some((network.name, plugins))
}

/// Plans and applies until no change is left, and checks the loaded network after each single change.
fn walk(node: &TestNode, desired: &DesiredState) {
    let before = [Runtime::Containerd, Runtime::CriO].map(|runtime| network(node, runtime));
    for _ in 0..3 {
        let planned = plan(&node.observe(&desired.interest()), desired);
        for change in &planned.changes {
            let performed = apply(std::slice::from_ref(change), &node.directories());
            assert!(performed.failed.is_empty(), "{change}: {:?}", performed.failed);
            let after = [Runtime::Containerd, Runtime::CriO].map(|runtime| network(node, runtime));
            assert_eq!(
                after,
                before,
                "after: {change}, of {:#?}\n{:#?}",
                planned.changes,
                node.files().keys()
            );
        }
    }
    let last = plan(&node.observe(&desired.interest()), desired);
    assert!(last.changes.is_empty(), "{:#?}", last.changes);
}

fn desired(node: &TestNode, which: u8) -> DesiredState {
    // The plugins that these conf files name do not exist, so the directory must be confirmed by the operator.
    let confirmed = |state| match state {
        DesiredState::Installed(install) => {
            DesiredState::Installed(Install { confirmed: Confirmed::Yes, ..install })
        }
        uninstall @ DesiredState::Uninstalled(_) => uninstall,
    };
    confirmed(match which {
        0 | 1 => chained(&node.root),
        2 => installed(&node.root, Shape::DropIn),
        3 => uninstalled(&node.root, PutBack::Nothing),
        _ => installed(&node.root, Shape::Standalone { file: name("YYY-gybe-cni.conf") }),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_change_leaves_the_loaded_network_as_it_was_except_for_gybes_entry(
        files in prop::collection::btree_map(0..NAMES.len(), 0..7_u8, 1..5),
        states in prop::collection::vec(0..5_u8, 1..4),
    ) {
        let node = TestNode::new();
        for (n, kind) in &files {
            node.put(NAMES[*n], content(*kind, *n));
        }
        let before = node.files();
        // In an empty directory the standalone shape would be the loaded network, as intended, so it is not tested.
        let any = network(&node, Runtime::CriO).is_some();
        for which in states.into_iter().filter(|which| any || *which < 4) {
            walk(&node, &desired(&node, which));
        }
        walk(&node, &uninstalled(&node.root, PutBack::Nothing));
        prop_assert_eq!(node.files(), before);
    }

    #[test]
    fn f05_a_rewrite_between_any_two_changes_is_kept_and_repaired(
        n in 0..NAMES.len(), kind in 0..3_u8, stop in 0..4_usize, again in 0..3_u8,
    ) {
        let node = TestNode::new();
        node.put(NAMES[n], content(kind, n));
        if network(&node, Runtime::CriO).is_some() {
            let desired = desired(&node, 0);
            let planned = plan(&node.observe(&desired.interest()), &desired);
            let _ = apply(&planned.changes[..stop.min(planned.changes.len())], &node.directories());
            let newer = content(again, n).replace("portmap", "tuning");
            node.put(NAMES[n], &newer);
            let loads = network(&node, Runtime::CriO);
            // Planned changes that would undo the primary's later write are refused.
            let _ = apply(&planned.changes[stop.min(planned.changes.len())..], &node.directories());
            prop_assume!(loads.is_some());
            prop_assert_eq!(network(&node, Runtime::CriO), loads);
            for _ in 0..3 { node.pass(&desired); }
            for _ in 0..3 { node.pass(&uninstalled(&node.root, PutBack::Nothing)); }
            prop_assert_eq!(node.text(NAMES[n]), newer);
        }
    }
}
