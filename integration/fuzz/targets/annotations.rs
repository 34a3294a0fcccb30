//! A pod's manifest with any annotations, up to the rules: accepted values are bounded, and are the same after
//! they are written and read again.
#![no_main]

use gybe_netfilter::compile::compile;
use gybe_netfilter::model::policy::Families;
use gybe_netfilter::nft::{Batch, Start};
use gybe_plugin::conf::PluginConf;
use gybe_plugin::decide::{PreliminaryDecision, decide_without_addresses};
use gybe_plugin::gates::InitContainer;
use gybe_plugin::pod::PodFacts;
use libfuzzer_sys::fuzz_target;
use serde_json::json;

const KEYS: [&str; 10] = [
    "sidecar.istio.io/interceptionMode",
    "traffic.sidecar.istio.io/includeOutboundIPRanges",
    "traffic.sidecar.istio.io/excludeOutboundIPRanges",
    "traffic.sidecar.istio.io/includeInboundPorts",
    "traffic.sidecar.istio.io/excludeInboundPorts",
    "traffic.sidecar.istio.io/includeOutboundPorts",
    "traffic.sidecar.istio.io/excludeOutboundPorts",
    "traffic.sidecar.istio.io/excludeInterfaces",
    "istio.io/reroute-virtual-interfaces",
    "traffic.sidecar.istio.io/kubevirtInterfaces",
];

fuzz_target!(|input: &[u8]| {
    // Either a manifest, or lines: the values of the annotations in the order of KEYS.
    let facts = match PodFacts::from_json(input) {
        Ok(facts) => facts,
        Err(_) => annotated(&String::from_utf8_lossy(input)),
    };
    assert_eq!(PodFacts::from_manifest(&facts.to_manifest()).as_ref(), Ok(&facts));
    match decide_without_addresses(&PluginConf::default(), &facts, InitContainer::Counts) {
        PreliminaryDecision::LeaveAlone(reason) => assert!(!reason.to_string().is_empty()),
        // The message is one line of bounded length.
        PreliminaryDecision::Refuse(cause) => {
            let told = cause.to_string();
            assert!(told.chars().count() < 400 && !told.contains('\n'), "{told}");
        }
        PreliminaryDecision::Ambient(_) => panic!("facts of a manifest alone are never ambient"),
        PreliminaryDecision::Redirect(draft) => {
            for families in [Families::V4Only, Families::V4AndV6] {
                let rules = compile(&draft.clone().complete(families));
                Batch::apply(&rules, Start::Fresh).expect("every policy can be written");
            }
        }
    }
});

fn annotated(lines: &str) -> PodFacts {
    let mut pod = json!({
        "metadata": { "namespace": "n", "name": "p", "annotations": { "sidecar.istio.io/status": "{}" } },
        "spec": { "containers": [{ "name": "app" }, { "name": "istio-proxy", "args": ["proxy", "sidecar"] }] },
    });
    for (key, line) in KEYS.iter().zip(lines.lines()).filter(|(_, line)| !line.is_empty()) {
        pod["metadata"]["annotations"][*key] = line.into();
    }
    PodFacts::from_manifest(&pod).expect("a manifest")
}
