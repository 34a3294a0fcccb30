//! ADDs with the runtime's annotations, the rules that they lead to, and what the log and `gybe explain` say about
//! them.

use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::plugin_call::{PeakMemory, PluginCall, PluginDir, peak_memory, pod};
use gybe_integration::programs::{ours, path_of_ours, run};
use serde_json::{Value, json};
use std::fs;
use std::time::Instant;

const INCLUDED: &str = "traffic.sidecar.istio.io/includeOutboundIPRanges";
const EXCLUDED: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";
const INBOUND: &str = "traffic.sidecar.istio.io/excludeInboundPorts";
const OUTBOUND: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
const INCLUDED_PORTS: &str = "traffic.sidecar.istio.io/includeOutboundPorts";
const INTERFACES: &str = "traffic.sidecar.istio.io/excludeInterfaces";
const VIRTUAL_INTERFACES: &str = "istio.io/reroute-virtual-interfaces";
const MODE: &str = "sidecar.istio.io/interceptionMode";

/// The limit in KiB for the plugin and its largest child together: it runs one at a time, and waits for it.
const LIMIT: u64 = 16 * 1024;
/// KiB that the released `gybe-cni` needs for a pod without annotations (section 1 of docs/BENCHMARKS.md, rounded up).
/// The program under test is not optimized, and has 4 MB more of code: its growth over a pod without annotations is
/// added to this.
const RELEASED: u64 = 1400;

/// Networks of which no two are adjacent.
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

/// A pod's annotations, and whether an iptables backend refuses them; nftables refuses only [`TOO_LONG`].
struct HostilePod {
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
        (INCLUDED_PORTS, ports(4000)),
        (INTERFACES, interfaces("e", 4096)),
        (VIRTUAL_INTERFACES, interfaces("v", 4096)),
    ]
}

const TOO_LONG: &str = "26,000 networks, more than allowed";

fn cases() -> Vec<HostilePod> {
    let networks_times_interfaces =
        |count| vec![(INCLUDED, networks(count)), (VIRTUAL_INTERFACES, interfaces("v", 500))];
    let tproxy = [every_list(), vec![(MODE, "TPROXY".to_owned())]].concat();
    let case = |name, annotations, is_refused| HostilePod { name, annotations, is_refused };
    vec![
        case("none", Vec::new(), false),
        case("17 KB: 1,000 networks x 500 interfaces", networks_times_interfaces(1000), false),
        case("2,000 networks x 500 interfaces", networks_times_interfaces(2000), false),
        case("4,096 networks", vec![(INCLUDED, networks(4096))], false),
        case("4,096 interfaces excluded", vec![(INTERFACES, interfaces("e", 4096))], true),
        case("every list at its longest", every_list(), true),
        case("every list at its longest, TPROXY", tproxy, true),
        case(TOO_LONG, vec![(INCLUDED, networks(26_000))], true),
    ]
}

/// The ADD for a pod with these annotations, of which the runtime hands over the mode.
fn annotated(
    directory: &PluginDir,
    pod: &Namespace,
    annotations: &[(&'static str, String)],
) -> Result<PluginCall, Failure> {
    let mut manifest: Value = serde_json::from_str(&fs::read_to_string(directory.manifest())?)?;
    let mut call = PluginCall::add(pod, directory)?;
    let runtime_annotations = call.stdin.pointer_mut("/runtimeConfig/io.kubernetes.cri.pod-annotations");
    for (name, value) in annotations {
        manifest["metadata"]["annotations"][*name] = value.clone().into();
    }
    if let (Some(runtime_annotations), Some((name, mode))) =
        (runtime_annotations, annotations.iter().find(|(name, _)| *name == MODE))
    {
        runtime_annotations[*name] = mode.clone().into();
    }
    fs::write(directory.manifest(), manifest.to_string())?;
    Ok(call)
}

/// The memory of the plugin's largest child.
fn largest_child(needed: &PeakMemory) -> u64 {
    let is_child = |name: &str| name.starts_with("iptables-") || name.starts_with("ip6tables-");
    let marks = needed.programs.iter().filter(|(name, _)| is_child(name)).map(|(_, most)| *most);
    marks.max().unwrap_or_default()
}

fn assert_cause(needed: &PeakMemory) -> Result<(), Failure> {
    let error: Value = serde_json::from_str(&needed.out)?;
    let text = format!("{} {}", error["msg"], error["details"]);
    let causes =
        ["where at most 4096 are allowed", "shorten the pod's lists of networks, ports and interfaces"];
    assert!(causes.iter().any(|cause| text.contains(cause)), "{text}");
    Ok(())
}

#[test]
fn an_add_takes_at_most_16_mib_with_any_annotations() -> Result<(), Failure> {
    for backend in ["nft", "iptables-nft", "iptables-legacy"] {
        let mut unannotated = None;
        for HostilePod { name, annotations, is_refused } in cases() {
            let is_refused = is_refused && (backend != "nft" || name == TOO_LONG);
            let (directory, pod) = (PluginDir::new("hostile"), pod()?);
            let call = annotated(&directory, &pod, &annotations)?.with_backend(backend);
            for turn in ["ADD", "ADD again"] {
                let started = Instant::now();
                let needed = peak_memory(&call, &directory)?;
                let took = started.elapsed().as_millis();
                let own = needed.programs["gybe-cni"];
                let own = RELEASED + own.saturating_sub(*unannotated.get_or_insert(own));
                let child = largest_child(&needed);
                let how = if is_refused { "refused" } else { "redirected" };
                println!("| {backend} | {name} | {turn} | {how} | {own} | {child} | {took} |");
                assert_eq!(needed.code, Some(i32::from(is_refused)), "{backend}, {name}: {needed:?}");
                assert!(own + child <= LIMIT, "{backend}, {name}: {own} + {child} KiB: {needed:?}");
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

const MISSPELT: &str = "traffic.sidecar.istio.io/excludeOutboundPort";
const SUGGESTION: &str = "did you mean traffic.sidecar.istio.io/excludeOutboundPorts?";

#[test]
fn add_verify_and_trace_succeed_and_warn_about_a_misspelt_annotation() {
    let (directory, namespace) = (PluginDir::new("misspelt"), pod().unwrap());
    let mut manifest: Value = serde_json::from_slice(&fs::read(directory.manifest()).unwrap()).unwrap();
    let correct = PluginCall::add(&namespace, &directory).unwrap().run(&directory, "").unwrap();
    assert_eq!((correct.code, correct.err.contains("is unknown")), (Some(0), false), "{correct:?}");
    manifest["metadata"]["annotations"][MISSPELT] = json!("9090");
    fs::write(directory.manifest(), manifest.to_string()).unwrap();
    let added = PluginCall::add(&namespace, &directory).unwrap().run(&directory, "").unwrap();
    assert_eq!(added.code, Some(0), "{added:?}");
    let warning = added.err.lines().find(|line| line.contains(MISSPELT)).unwrap();
    let warning: Value = serde_json::from_str(warning).unwrap();
    assert!(
        warning["level"] == "warn" && warning["doubt"].as_str().unwrap().ends_with(SUGGESTION),
        "{warning}"
    );
    let (tool, netns) = (path_of_ours("gybe").unwrap(), namespace.path().display().to_string());
    let (tool, manifest) = (tool.to_str().unwrap(), directory.manifest().display().to_string());
    for words in [
        ["verify", "--pod", &manifest, "--netns", &netns].as_slice(),
        &["trace", "--pod", &manifest, "out", "tcp", "10.1.2.3:9090", "--uid", "1000"],
    ] {
        let output = run(tool, words, "").unwrap();
        assert_eq!(output.code, Some(0), "{output:?}");
        assert!(output.err.contains("warning: ") && output.err.contains(SUGGESTION), "{output:?}");
    }
}

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
