//! What the longest lists that annotations can hold cost a node: the memory of an ADD, and what
//! it says when they are too long.
//!
//! `cargo test -p gybe-integration --test hostile_annotations -- --nocapture` prints the table of
//! docs/BENCHMARKS.md.

#![allow(clippy::indexing_slicing, reason = "a test that cannot be set up must stop")]

use gybe_installer::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::peak_memory::{PeakMemory, peak_memory};
use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_integration::programs::run;
use serde_json::Value;
use std::fs;
use std::time::Instant;

const INCLUDED: &str = "traffic.sidecar.istio.io/includeOutboundIPRanges";
const EXCLUDED: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";
const INBOUND: &str = "traffic.sidecar.istio.io/excludeInboundPorts";
const OUTBOUND: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
const OUTBOUND_TOO: &str = "traffic.sidecar.istio.io/includeOutboundPorts";
const INTERFACES: &str = "traffic.sidecar.istio.io/excludeInterfaces";
const MACHINES: &str = "istio.io/reroute-virtual-interfaces";
const MODE: &str = "sidecar.istio.io/interceptionMode";

/// In KiB, for each program of an ADD.
const MOST: u64 = 16 * 1024;
/// What the released `gybe-cni` needs for a pod without annotations ("most memory in use" in
/// docs/BENCHMARKS.md). The one under test has another 4 MB of code.
const RELEASED: u64 = 1400;

/// No two of them merge.
fn networks(count: u32) -> String {
    let nets = (0..count).map(|n| format!("{}/32", std::net::Ipv4Addr::from(0x0a00_0000 | n << 1)));
    nets.collect::<Vec<_>>().join(",")
}

fn networks_of_both(count: u32) -> String {
    let v6 = (0..count / 2).map(|n| format!("fd00:{n:x}::1/128"));
    format!("{},{}", networks(count / 2), v6.collect::<Vec<_>>().join(","))
}

fn ports(count: u32) -> String {
    (0..count).map(|n| (2 * n + 1).to_string()).collect::<Vec<_>>().join(",")
}

fn interfaces(prefix: &str, count: u32) -> String {
    (0..count).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>().join(",")
}

type Annotations = Vec<(&'static str, String)>;

/// A pod, and whether an iptables backend refuses it; nftables refuses none but the last.
struct Case {
    name: &'static str,
    annotations: Annotations,
    is_refused: bool,
}

fn every_list() -> Annotations {
    vec![
        (INCLUDED, networks_of_both(4096)),
        (EXCLUDED, networks_of_both(4096)),
        (INBOUND, ports(4000)),
        (OUTBOUND, ports(4000)),
        (OUTBOUND_TOO, ports(4000)),
        (INTERFACES, interfaces("e", 4096)),
        (MACHINES, interfaces("v", 4096)),
    ]
}

const UNREAD: &str = "26,000 networks, more than are read";

fn cases() -> Vec<Case> {
    let product = |count| vec![(INCLUDED, networks(count)), (MACHINES, interfaces("v", 500))];
    let tproxy = [every_list(), vec![(MODE, "TPROXY".to_owned())]].concat();
    let case = |name, annotations, is_refused| Case { name, annotations, is_refused };
    vec![
        case("none", Vec::new(), false),
        case("17 KB: 1,000 networks x 500 interfaces", product(1000), false),
        case("2,000 networks x 500 interfaces", product(2000), false),
        case("4,096 networks", vec![(INCLUDED, networks(4096))], false),
        case("4,096 interfaces excluded", vec![(INTERFACES, interfaces("e", 4096))], true),
        case("every list at its longest", every_list(), true),
        case("every list at its longest, TPROXY", tproxy, true),
        case(UNREAD, vec![(INCLUDED, networks(26_000))], true),
    ]
}

/// The call for a pod with these annotations, which the runtime hands over in part.
fn annotated(
    place: &PluginDir,
    pod: &Namespace,
    annotations: &[(&'static str, String)],
) -> Result<PluginCall, Failure> {
    let mut manifest: Value = serde_json::from_str(&fs::read_to_string(place.manifest())?)?;
    let mut call = PluginCall::add(pod, place)?;
    let handed = call.stdin.pointer_mut("/runtimeConfig/io.kubernetes.cri.pod-annotations");
    for (name, value) in annotations {
        manifest["metadata"]["annotations"][*name] = value.clone().into();
    }
    if let (Some(handed), Some((name, mode))) = (handed, annotations.iter().find(|(name, _)| *name == MODE)) {
        handed[*name] = mode.clone().into();
    }
    fs::write(place.manifest(), manifest.to_string())?;
    Ok(call)
}

/// The largest of the programs that the plugin ran.
fn programs(needed: &PeakMemory) -> u64 {
    let is_one = |name: &str| name.starts_with("iptables-") || name.starts_with("ip6tables-");
    let marks = needed.programs.iter().filter(|(name, _)| is_one(name)).map(|(_, most)| *most);
    marks.max().unwrap_or_default()
}

fn assert_cause(needed: &PeakMemory) -> Result<(), Failure> {
    let said: Value = serde_json::from_str(&needed.out)?;
    let said = format!("{} {}", said["msg"], said["details"]);
    let causes =
        ["where at most 4096 are allowed", "shorten the pod's lists of networks, ports and interfaces"];
    assert!(causes.iter().any(|cause| said.contains(cause)), "{said}");
    Ok(())
}

#[test]
fn whatever_annotations_ask_an_add_needs_no_more_than_16_mb() -> Result<(), Failure> {
    for backend in ["nft", "iptables-nft", "iptables-legacy"] {
        let mut unannotated = None;
        for Case { name, annotations, is_refused } in cases() {
            let is_refused = is_refused && (backend != "nft" || name == UNREAD);
            let (place, pod) = (PluginDir::new("hostile"), pod()?);
            let call = annotated(&place, &pod, &annotations)?.with_backend(backend);
            for turn in ["ADD", "ADD again"] {
                let begun = Instant::now();
                let needed = peak_memory(&call, &place)?;
                let took = begun.elapsed().as_millis();
                let own = needed.programs["gybe-cni"];
                let own = RELEASED + own.saturating_sub(*unannotated.get_or_insert(own));
                let program = programs(&needed);
                let how = if is_refused { "refused" } else { "redirected" };
                println!("| {backend} | {name} | {turn} | {how} | {own} | {program} | {took} |");
                assert_eq!(needed.code, Some(i32::from(is_refused)), "{backend}, {name}: {needed:?}");
                assert!(own <= MOST && program <= MOST, "{backend}, {name}: {needed:?}");
                if is_refused {
                    assert_cause(&needed)?;
                }
            }
            let listed = pod.run(|| run("nft", &["list", "ruleset"], ""))??.out;
            assert!(backend == "iptables-legacy" || listed.is_empty() == is_refused, "{backend}, {name}");
        }
    }
    Ok(())
}
