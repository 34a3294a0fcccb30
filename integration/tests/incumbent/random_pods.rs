//! Random pods as the injector writes them, with annotations that `istio-cni` and `gybe-cni` both accept, and some that
//! both refuse.

use gybe_integration::random_policy::{INTERFACES, NETWORKS};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, Strategy};
use proptest::prop_oneof;
use proptest::sample::select;
use proptest::strategy::BoxedStrategy;
use serde_json::{Map, Value, json};

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
