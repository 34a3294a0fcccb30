//! What containerd 2.x makes of Gybe's STATUS: it judges the node, and says what would help.

use std::fs;

use gybe_containerd_tests::{Chain, Generation, Sandbox, chain};
use gybe_netfilter::backend::BackendKind;
use gybe_netfilter::probe::{Capabilities, Finding, Findings, Profile, Refusal};
use gybe_plugin::probe_cache::findings;
use serde_json::json;

use crate::ground::{agents_node, gybe_node, node_of};

/// All that carries iptables-legacy on this machine: its other names are links to it.
const LEGACY: &str = "/usr/sbin/xtables-legacy-multi";
/// Where findings are kept, inside a stage.
const FINDINGS: &str = "/run/gybe/probe.json";

#[test]
fn with_gybe_in_the_chain_the_network_is_ready() {
    let node = gybe_node(Generation::V2);
    let network = node.cri.network().unwrap();
    assert!(network.holds, "{network:?}");
    assert!(node.calls().unwrap().iter().any(|call| call.verb() == "STATUS"));
}

#[test]
fn the_network_is_ready_all_the_time_though_no_agent_ever_runs() {
    let node = agents_node(Generation::V2);
    assert!(node.cri.network().unwrap().holds);
    node.cri.run(&Sandbox::injected("shop", "cart")).unwrap_err();
    assert!(node.cri.network().unwrap().holds, "a pod was refused, and the node is as good as before");
    node.cri.run(&Sandbox::named("gybe-system", "gybe-node-x7x2p")).unwrap();
    assert!(node.cri.network().unwrap().holds);
}

#[test]
fn f28_without_the_programs_of_its_backend_the_node_is_not_ready_until_they_are_back() {
    let mut entry = chain::gybe();
    entry["backend"] = json!("iptables-legacy");
    let node = node_of(Generation::V2, &Chain::of_reference_plugins(Generation::V2).then(entry));
    assert!(node.cri.network().unwrap().holds);
    node.stage().hide(LEGACY).unwrap();
    let network = node.cri.network().unwrap();
    assert!(!network.holds);
    for told in
        ["GYBE-STATUS-015", "iptables-legacy", "install it, or set backend to nft, which needs no program"]
    {
        assert!(network.message.contains(told), "{told} is not in {network:?}");
    }
    node.stage().show(LEGACY).unwrap();
    assert!(node.cri.network().unwrap().holds);
}

/// Findings about this kernel, true or not, by which nothing works.
fn nothing_works() -> Capabilities {
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
fn f28_where_no_backend_works_the_node_is_not_ready_and_the_remedy_is_told() {
    let mut entry = chain::gybe();
    entry["backend"] = json!("auto");
    let node = node_of(Generation::V2, &Chain::of_reference_plugins(Generation::V2).then(entry));
    let read = |path: &str| fs::read_to_string(path).unwrap().trim().to_owned();
    let this = findings::NodeIdentity {
        boot: read("/proc/sys/kernel/random/boot_id"),
        kernel: read("/proc/sys/kernel/osrelease"),
    };
    let kept = node.stage().path(FINDINGS);
    fs::write(&kept, findings::to_json(&this, &nothing_works()).to_string()).unwrap();
    let network = node.cri.network().unwrap();
    assert!(!network.holds);
    for told in ["GYBE-STATUS-027", "no backend works on this node", "modprobe nft_chain_nat"] {
        assert!(network.message.contains(told), "{told} is not in {network:?}");
    }
    // Forgotten, as the next boot or `gybe probe --fresh` would, it is found out once more.
    fs::remove_file(&kept).unwrap();
    let network = node.cri.network().unwrap();
    assert!(network.holds, "{network:?}");
    assert!(kept.exists());
}
