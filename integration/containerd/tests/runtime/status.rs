//! Gybe's STATUS in containerd 2.x: the node's network condition, and the hint in its message.

use std::fs;

use gybe_containerd_tests::{Conflist, Generation, Sandbox, conflist};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::probe::{Capabilities, Finding, Findings, Profile, Refusal};
use gybe_plugin::probe_cache::findings;
use serde_json::json;

use crate::fixture::{gybe_node, node_with_agent_facts, node_with_gybe};

/// iptables-legacy; its other names are links to this file.
const LEGACY: &str = "/usr/sbin/xtables-legacy-multi";
/// The stored probe report on the node.
const PROBE_REPORT: &str = "/run/gybe/probe.json";

#[test]
fn with_gybe_in_the_conflist_the_network_is_ready() {
    let node = gybe_node(Generation::V2);
    let network = node.cri.network_condition().unwrap();
    assert!(network.holds, "{network:?}");
    assert!(node.recorded_calls().unwrap().iter().any(|call| call.command() == "STATUS"));
}

#[test]
fn the_network_is_ready_without_an_agent() {
    let node = node_with_agent_facts(Generation::V2);
    assert!(node.cri.network_condition().unwrap().holds);
    node.cri.run(&Sandbox::injected("shop", "cart")).unwrap_err();
    assert!(
        node.cri.network_condition().unwrap().holds,
        "a refused pod does not change the node's condition"
    );
    node.cri.run(&Sandbox::new("gybe-system", "gybe-node-x7x2p")).unwrap();
    assert!(node.cri.network_condition().unwrap().holds);
}

#[test]
fn f28_the_node_is_not_ready_while_the_programs_of_its_backend_are_missing() {
    let mut entry = conflist::gybe();
    entry["backend"] = json!("iptables-legacy");
    let node =
        node_with_gybe(Generation::V2, &Conflist::reference_plugins(Generation::V2).with_plugin(entry));
    assert!(node.cri.network_condition().unwrap().holds);
    node.host().hide(LEGACY).unwrap();
    let network = node.cri.network_condition().unwrap();
    assert!(!network.holds);
    for part in
        ["GYBE-STATUS-015", "iptables-legacy", "install it, or set backend to nft, which needs no program"]
    {
        assert!(network.message.contains(part), "{part} is not in {network:?}");
    }
    node.host().unhide(LEGACY).unwrap();
    assert!(node.cri.network_condition().unwrap().holds);
}

/// A probe report in which every backend is refused.
fn no_backend_works() -> Capabilities {
    let refusal = Refusal {
        why: "nftables refused chain nat-output: no such file or directory".into(),
        errno: Some(2),
        object: None,
        hint: Some("load nft_chain_nat: modprobe nft_chain_nat".into()),
    };
    let findings = |_| -> Findings {
        let refused = |profile| (profile, Finding::Refused(refusal.clone()));
        Profile::ALL.map(refused).into_iter().collect()
    };
    Capabilities {
        backends: BackendKind::ALL.map(|kind| (kind, findings(kind))).into_iter().collect(),
        untried: Vec::new(),
    }
}

#[test]
fn f28_where_no_backend_works_the_node_is_not_ready_and_the_message_has_the_hint() {
    let mut entry = conflist::gybe();
    entry["backend"] = json!("auto");
    let node =
        node_with_gybe(Generation::V2, &Conflist::reference_plugins(Generation::V2).with_plugin(entry));
    let read = |path: &str| fs::read_to_string(path).unwrap().trim().to_owned();
    let node_id = findings::NodeIdentity {
        boot: read("/proc/sys/kernel/random/boot_id"),
        kernel: read("/proc/sys/kernel/osrelease"),
    };
    let report = node.host().path(PROBE_REPORT);
    fs::write(&report, findings::to_json(&node_id, &no_backend_works()).to_string()).unwrap();
    let network = node.cri.network_condition().unwrap();
    assert!(!network.holds);
    for part in ["GYBE-STATUS-027", "no backend works on this node", "modprobe nft_chain_nat"] {
        assert!(network.message.contains(part), "{part} is not in {network:?}");
    }
    // Without a stored report, as after a boot or `gybe probe --fresh`, the plugin probes again.
    fs::remove_file(&report).unwrap();
    let network = node.cri.network_condition().unwrap();
    assert!(network.holds, "{network:?}");
    assert!(report.exists());
}
