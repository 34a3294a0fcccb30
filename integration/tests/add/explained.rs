//! `gybe explain` prints the policy of a pod: the rules that an ADD writes for the same manifest are exactly its rules.

use gybe_integration::failure::Failure;
use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_integration::programs::{ours, path_of_ours, run};
use serde_json::{Value, json};
use std::fs;

/// Returns the policy file that `gybe explain` prints for the manifest of this directory.
fn explained_policy(directory: &PluginDir) -> Result<Value, Failure> {
    let manifest = directory.manifest();
    let out = ours("gybe", &["explain", "--json", "--pod", &manifest.to_string_lossy()], "")?;
    assert_eq!(out.code, Some(0), "{out:?}");
    let explained: Value = serde_json::from_str(&out.out)?;
    assert_eq!(explained[0]["decision"], "redirect", "{explained}");
    Ok(explained[0]["policy"].clone())
}

#[test]
fn the_explained_policy_is_exactly_the_one_whose_rules_an_add_writes() -> Result<(), Failure> {
    let traffic = "traffic.sidecar.istio.io";
    for (name, annotations, variables) in [
        ("example", json!({}), json!([{ "name": "ISTIO_DUAL_STACK", "value": "true" }])),
        ("ipv4", json!({}), json!([{ "name": "ISTIO_META_DNS_CAPTURE", "value": "true" }])),
        (
            "tproxy",
            json!({ "sidecar.istio.io/interceptionMode": "TPROXY", format!("{traffic}/excludeInboundPorts"): "22,80-90" }),
            json!([{ "name": "INVALID_DROP", "value": "true" }]),
        ),
        (
            "lists",
            json!({
                format!("{traffic}/includeInboundPorts"): "8080", format!("{traffic}/includeOutboundPorts"): "443",
                format!("{traffic}/includeOutboundIPRanges"): "10.0.0.0/8,127.0.0.1/24",
                format!("{traffic}/excludeOutboundIPRanges"): "10.96.0.0/12",
                format!("{traffic}/excludeInterfaces"): "net1", "istio.io/reroute-virtual-interfaces": "eth1",
            }),
            json!([]),
        ),
    ] {
        let directory = PluginDir::new(&format!("explained-{name}"));
        let mut manifest: Value = serde_json::from_str(&fs::read_to_string(directory.manifest())?)?;
        let found = manifest["metadata"]["annotations"].as_object_mut();
        found.unwrap().extend(annotations.as_object().unwrap().clone());
        manifest["spec"]["initContainers"][1]["env"] = variables;
        fs::write(directory.manifest(), manifest.to_string())?;

        let pod = pod()?;
        let added = PluginCall::add(&pod, &directory)?.with_backend("nft").run(&directory, "")?;
        assert_eq!(added.code, Some(0), "{name}: {added:?}");
        let mut policy = explained_policy(&directory)?;
        let netns = pod.path().to_string_lossy().into_owned();
        let gybe = path_of_ours("gybe")?.to_string_lossy().into_owned();
        let verify =
            |policy: &Value| run(&gybe, &["verify", "--netns", &netns, "--policy", "-"], &policy.to_string());
        let verified = verify(&policy)?;
        assert_eq!(verified.code, Some(0), "{name}: {policy} {verified:?}");

        // The control: another port is another policy.
        policy["outbound_ports_exclude"] = json!([7]);
        assert_eq!(verify(&policy)?.code, Some(1), "{name}");
    }
    Ok(())
}
