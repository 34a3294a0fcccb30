//! Random pods as the injector writes them, with annotations that `istio-cni` and `gybe-cni` both accept, and some
//! that both refuse: each by an ADD of both.

use crate::arguments::{ADDRESSES, istio};
use crate::{Compared, Written, case, compare_all, drawn, network, number};
use gybe_api_server::ApiServer;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::Rules;
use gybe_integration::plugin_call::{PluginCall, PluginDir};
use gybe_integration::programs::{Run, path_of_ours, run};
use gybe_integration::random_policy::{INTERFACES, NETWORKS};
use gybe_integration::topology::Topology;
use gybe_integration::vectors::Location;
use gybe_netfilter::model::policy::{Families, Mode, RedirectPolicy};
use gybe_plugin::conf::PluginConf;
use gybe_plugin::decide::{Decision, decide};
use gybe_plugin::gates::InitContainer;
use gybe_plugin::pod::PodFacts;
use gybe_test_support::TestDir;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::sample::select;
use proptest::strategy::BoxedStrategy;
use proptest::{option, prop_oneof};
use serde_json::{Map, Value, json};
use std::fs;
use std::net::IpAddr;
use std::path::Path;

const PORTS: [&str; 12] =
    ["80", "53", "8080", "4000", "5000", "22", "9000", "1234", "15001", "15006", "15008", "15090"];

type Annotation = BoxedStrategy<Option<(String, String)>>;

/// Returns the manifests of pods in namespace `shop`, without names.
pub(crate) fn manifests() -> impl Strategy<Value = Value> {
    let traffic = |name: &str| format!("traffic.sidecar.istio.io/{name}");
    let annotations: Vec<Annotation> = vec![
        sometimes("sidecar.istio.io/interceptionMode", one_of(&["REDIRECT", "TPROXY"])),
        sometimes(&traffic("includeInboundPorts"), star_or(list(&PORTS, 4))),
        sometimes(&traffic("excludeInboundPorts"), list(&PORTS, 3)),
        sometimes(&traffic("includeOutboundPorts"), list(&PORTS, 2)),
        sometimes(&traffic("excludeOutboundPorts"), list(&PORTS, 3)),
        sometimes(&traffic("includeOutboundIPRanges"), star_or(list(&NETWORKS, 4))),
        sometimes(&traffic("excludeOutboundIPRanges"), list(&NETWORKS, 3)),
        sometimes(&traffic("excludeInterfaces"), list(&INTERFACES, 2)),
        sometimes("istio.io/reroute-virtual-interfaces", list(&INTERFACES, 2)),
        sometimes(&traffic("kubevirtInterfaces"), list(&INTERFACES, 2)),
        rarely(&traffic("excludeInboundPorts"), one_of(&["80,", "x", "70000"])),
        rarely(&traffic("excludeOutboundIPRanges"), one_of(&["10.0.0.0", "x/8"])),
        rarely("sidecar.istio.io/inject", one_of(&["false", "true", "no"])),
    ];
    let variables: Vec<Annotation> = vec![
        sometimes("ISTIO_META_DNS_CAPTURE", one_of(&["true", "false", "", "yes", "1"])),
        sometimes("ISTIO_DUAL_STACK", one_of(&["true", "false", "", "on"])),
        sometimes("INVALID_DROP", one_of(&["true", "false", "x"])),
        rarely("DISABLE_ENVOY", one_of(&["true", "false"])),
    ];
    let ids = (select(vec![None, Some(1337), Some(0), Some(3)]), select(vec![None, Some(1337), Some(0)]));
    let proxy_type = select(vec!["sidecar", "sidecar", "sidecar", "sidecar", "sidecar", "router"]);
    let is_native = select(vec![true, false]);
    (annotations, variables, ids, proxy_type, is_native, shape()).prop_map(
        |(annotations, variables, (user, group), proxy_type, is_native, shape)| {
            let mut annotations: Map<String, Value> =
                annotations.into_iter().flatten().map(|(name, value)| (name, value.into())).collect();
            if shape != Shape::NotInjected {
                annotations.insert("sidecar.istio.io/status".into(), "{}".into());
            }
            let variables = variables.into_iter().flatten();
            let variables: Vec<Value> =
                variables.map(|(name, value)| json!({ "name": name, "value": value })).collect();
            let proxy = json!({
                "name": "istio-proxy", "image": "proxyv2", "args": ["proxy", proxy_type], "env": variables,
                "securityContext": { "runAsUser": user, "runAsGroup": group },
            });
            let app = json!({ "name": "cart", "image": "cart" });
            let init = |name: &str| json!({ "name": name, "image": "proxyv2" });
            let mut first = vec![init("istio-validation")];
            let mut containers = vec![app];
            match shape {
                Shape::WithInit => first = vec![init("istio-init")],
                Shape::WithoutProxy => {}
                _ if is_native => first.push(proxy.clone()),
                _ => containers.push(proxy.clone()),
            }
            if shape == Shape::WithInit {
                containers.push(proxy);
            }
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "namespace": "shop", "labels": { "app": "cart" }, "annotations": annotations },
                "spec": { "initContainers": first, "containers": containers },
            })
        },
    )
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Injected,
    NotInjected,
    WithInit,
    WithoutProxy,
}

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        12 => Just(Shape::Injected),
        1 => Just(Shape::NotInjected),
        1 => Just(Shape::WithInit),
        1 => Just(Shape::WithoutProxy),
    ]
}

fn sometimes(name: &str, value: BoxedStrategy<String>) -> Annotation {
    named(name, 0.5, value)
}

fn rarely(name: &str, value: BoxedStrategy<String>) -> Annotation {
    named(name, 0.04, value)
}

fn named(name: &str, probability: f64, value: BoxedStrategy<String>) -> Annotation {
    let name = name.to_owned();
    option::weighted(probability, value).prop_map(move |value| Some((name.clone(), value?))).boxed()
}

fn one_of(values: &[&'static str]) -> BoxedStrategy<String> {
    select(values.to_vec()).prop_map(str::to_owned).boxed()
}

fn star_or(list: BoxedStrategy<String>) -> BoxedStrategy<String> {
    prop_oneof![Just("*".to_owned()), list].boxed()
}

fn list(values: &[&'static str], most: usize) -> BoxedStrategy<String> {
    vec(select(values.to_vec()), 0..=most).prop_map(|items| items.join(",")).boxed()
}

/// A plugin and its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plugin {
    IstioIptables,
    IstioNft,
    GybeNft,
    GybeLegacy,
}

const PLUGINS: [Plugin; 4] = [Plugin::IstioIptables, Plugin::IstioNft, Plugin::GybeNft, Plugin::GybeLegacy];

/// A cluster whose API server has the pods, and `istio-cni`'s directory with a kubeconfig for it.
struct Cluster {
    server: ApiServer,
    directory: TestDir,
}

impl Cluster {
    fn new() -> Result<Self, Failure> {
        let (server, directory) = (ApiServer::start()?, TestDir::new("istio-cni"));
        fs::rename(server.kubeconfig(&directory)?, directory.join("istio-cni-kubeconfig"))?;
        Ok(Self { server, directory })
    }
}

/// Makes the ADD of the example for this pod.
fn add(plugin: Plugin, cluster: &Cluster, pod: &Value, topology: &Topology) -> Result<Run, Failure> {
    let directory = PluginDir::new("incumbent");
    let namespace = topology.at(Location::Pod);
    let mut call = PluginCall::add(namespace, &directory)?;
    let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (name, uid) = (text("/metadata/name"), text("/metadata/uid"));
    fs::write(directory.manifest().with_file_name(format!("{name}.json")), pod.to_string())?;
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_UID={uid}");
    call.env.insert("CNI_ARGS".into(), args);
    let annotations = pod.pointer("/metadata/annotations").cloned().unwrap_or_default();
    if let Some(passed) = call.stdin.pointer_mut("/runtimeConfig/io.kubernetes.cri.pod-annotations") {
        *passed = annotations;
    }
    let native = match plugin {
        Plugin::GybeNft => return call.with_backend("nft").run(&directory, ""),
        Plugin::GybeLegacy => return call.with_backend("iptables-legacy").run(&directory, ""),
        Plugin::IstioNft => true,
        Plugin::IstioIptables => false,
    };
    let stdin = istio_stdin(&call.stdin, &cluster.directory, native);
    let variables = call.env.iter().map(|(name, value)| format!("{name}={value}"));
    let line: Vec<String> = ["-i".to_owned(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()]
        .into_iter()
        .chain(variables)
        .chain([istio("istio-cni")?.display().to_string()])
        .collect();
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    run("env", &line, &stdin.to_string())
}

/// Returns the network configuration that Istio's installer writes, with the runtime's members of this one.
fn istio_stdin(of: &Value, directory: &Path, native: bool) -> Value {
    let member = |name: &str| of.get(name).cloned().unwrap_or_default();
    json!({
        "cniVersion": member("cniVersion"), "name": member("name"), "type": "istio-cni",
        "plugin_log_level": "info", "cni_agent_run_dir": directory, "ambient_enabled": false,
        "exclude_namespaces": ["kube-system"], "pod_namespace": "istio-system", "native_nftables": native,
        "runtimeConfig": member("runtimeConfig"), "prevResult": member("prevResult"),
    })
}

fn decision(pod: &Value) -> Result<Decision, Failure> {
    let example: Value = serde_json::from_str(include_str!("../../../examples/add.json"))?;
    let stdin = example.get("stdin").and_then(Value::as_object).cloned().unwrap_or_default();
    let addresses = ADDRESSES.iter().map(|address| address.parse()).collect::<Result<Vec<IpAddr>, _>>()?;
    let facts = PodFacts::from_manifest(pod)?;
    Ok(decide(&PluginConf::read(&stdin)?, &facts, &addresses, InitContainer::Counts))
}

fn default_policy() -> Result<RedirectPolicy, Failure> {
    Ok(gybe_installer::pod::policy_file::PolicyFile::parse("{}")?.with_families(Families::V4AndV6))
}

/// Makes the ADDs of a pod, each in a network of its own.
fn add_by_each(cluster: &Cluster, number: u64) -> Result<Vec<Written>, Failure> {
    let mut pod = drawn(number, &manifests());
    pod["metadata"]["name"] = format!("cart-{number}").into();
    pod["metadata"]["uid"] = format!("uid-{number}").into();
    cluster.server.put_pod(pod.clone());
    let decision = decision(&pod)?;
    let (policy, rules) = match &decision {
        Decision::Redirect(policy) => (policy.clone(), Rules::Present),
        Decision::LeaveAlone(_) | Decision::Refuse(_) | Decision::Ambient(_) => {
            (default_policy()?, Rules::Absent)
        }
    };
    let case = case(policy, number)?;
    let written = PLUGINS.iter().map(|plugin| {
        let topology = network(&case.policy)?;
        let run = add(*plugin, cluster, &pod, &topology)?;
        let is_expected = (run.code == Some(0)) != matches!(decision, Decision::Refuse(_));
        let v4_only = *plugin == Plugin::IstioNft && case.policy.families == Families::V4Only;
        Ok(Written {
            what: format!("pod {number}, {plugin:?}: {pod}\n  {decision:?}"),
            case: case.clone(),
            topology,
            failure: (!is_expected).then(|| format!("exit code {:?}: {} {}", run.code, run.out, run.err)),
            rules,
            compared: if v4_only { Compared::V4 } else { Compared::BothFamilies },
        })
    });
    written.collect()
}

#[test]
fn random_pods_are_redirected_alike() -> Result<(), Failure> {
    assert!(path_of_ours("gybe-cni")?.exists());
    let (first, pods) = (number("GYBE_SEED", 1), number("GYBE_PODS", 30));
    println!("pods from GYBE_SEED={first}, GYBE_PODS={pods}");
    let kinds = (first..first + pods).map(|number| decision(&drawn(number, &manifests())));
    let kinds = kinds.collect::<Result<Vec<_>, _>>()?;
    let count = |of: fn(&Decision) -> bool| kinds.iter().filter(|kind| of(kind)).count();
    println!(
        "{} redirected ({} with TPROXY), {} left alone, {} refused",
        count(|kind| matches!(kind, Decision::Redirect(_))),
        count(|kind| matches!(kind, Decision::Redirect(policy) if policy.mode != Mode::Redirect)),
        count(|kind| matches!(kind, Decision::LeaveAlone(_))),
        count(|kind| matches!(kind, Decision::Refuse(_))),
    );
    let cluster = Cluster::new()?;
    compare_all("pods, each by 4 plugins", first..first + pods, |number| add_by_each(&cluster, number))
}
