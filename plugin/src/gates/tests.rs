//! Pods and the gate that stops each, as tables of one change to a pod that passes them all.

use super::*;
use crate::pod::Life;
use serde_json::json;

fn meshed() -> PodFacts {
    let container = |name: &str| Container { name: name.to_owned(), ..Container::default() };
    let mut proxy = container("istio-proxy");
    proxy.args = ["proxy", "sidecar", "--domain"].map(str::to_owned).into();
    PodFacts {
        namespace: "shop".to_owned(),
        name: "cart-0".to_owned(),
        annotations: [("sidecar.istio.io/status".to_owned(), "{}".to_owned())].into(),
        containers: vec![container("app"), proxy],
        ..PodFacts::default()
    }
}

fn conf() -> PluginConf {
    PluginConf {
        pod_namespace: "gybe-system".to_owned(),
        exclude_namespaces: ["kube-system".to_owned()].into(),
        ..PluginConf::default()
    }
}

fn strict() -> PluginConf {
    PluginConf { gates: Gates::Strict, ..conf() }
}

fn annotate(pod: &mut PodFacts, key: &str, value: &str) {
    pod.annotations.insert(key.to_owned(), value.to_owned());
}

fn label(pod: &mut PodFacts, value: &str) {
    pod.labels.insert("sidecar.istio.io/inject".to_owned(), value.to_owned());
}

type Change = fn(&mut PodFacts);

fn set_env(pod: &mut PodFacts, value: &str) {
    pod.containers[1].env.insert("DISABLE_ENVOY".to_owned(), value.to_owned());
}

#[test]
fn each_gate_stops_what_it_is_for() {
    let table: [(Change, Reason); 14] = [
        (|p| p.namespace = "kube-system".into(), Reason::ExcludedNamespace),
        (
            |p| p.init_containers.push(Container { name: "istio-init".into(), ..Container::default() }),
            Reason::IstioInit,
        ),
        (
            |p| p.containers.push(Container { name: "istio-init".into(), ..Container::default() }),
            Reason::IstioInit,
        ),
        (|p| set_env(p, "true"), Reason::EnvoyDisabled),
        (|p| set_env(p, "1"), Reason::EnvoyDisabled),
        (|p| p.containers[1].name = "envoy".into(), Reason::NoProxy),
        (|p| p.containers[1].args[1] = "router".into(), Reason::NotASidecar("router".into())),
        (|p| p.containers[1].args[1] = "waypoint".into(), Reason::NotASidecar("waypoint".into())),
        (|p| annotate(p, "sidecar.istio.io/inject", "false"), Reason::InjectionRefused),
        (|p| annotate(p, "sidecar.istio.io/inject", "F"), Reason::InjectionRefused),
        (
            |p| {
                annotate(p, "sidecar.istio.io/inject", "true");
                label(p, "0");
            },
            Reason::InjectionRefused,
        ),
        (|p| p.annotations.clear(), Reason::NotInjected),
        (|p| annotate(p, "sidecar.istio.io/interceptionMode", "NONE"), Reason::ModeNone),
        (
            |p| {
                p.annotations.clear();
                label(p, "false");
            },
            Reason::InjectionRefused,
        ),
    ];
    for (i, (change, want)) in table.into_iter().enumerate() {
        let mut pod = meshed();
        change(&mut pod);
        assert_eq!(closed(&conf(), &pod, InitContainer::Counts), Ok(Some(want)), "case {i}");
    }
}

#[test]
fn what_only_looks_like_a_reason_is_none() {
    let table: [Change; 14] = [
        |_| {},
        |p| set_env(p, "yes"),
        |p| set_env(p, "false"),
        |p| p.containers[1].args.clear(),
        |p| p.containers[1].args = vec!["proxy".into()],
        |p| p.containers[1].args = vec!["proxy".into(), String::new()],
        |p| p.containers[1].args = vec!["run".into(), "router".into()],
        |p| annotate(p, "sidecar.istio.io/inject", "no"),
        |p| annotate(p, "sidecar.istio.io/inject", ""),
        |p| {
            annotate(p, "sidecar.istio.io/inject", "false");
            label(p, "true");
        },
        |p| {
            annotate(p, "sidecar.istio.io/inject", "false");
            label(p, "perhaps");
        },
        |p| annotate(p, "sidecar.istio.io/status", ""),
        |p| {
            let proxy = p.containers.remove(1);
            p.init_containers.push(proxy);
        },
        |p| {
            p.containers.remove(0);
        },
    ];
    for (i, change) in table.into_iter().enumerate() {
        let mut pod = meshed();
        change(&mut pod);
        assert_eq!(closed(&conf(), &pod, InitContainer::Counts), Ok(None), "case {i}");
    }
}

#[test]
fn strict_gates_want_two_containers_and_a_clear_yes() {
    let table: [(Change, Option<Reason>); 8] = [
        (|_| {}, None),
        (|p| label(p, "true"), None),
        (|p| label(p, "no"), Some(Reason::InjectionUnclear)),
        (|p| label(p, ""), Some(Reason::InjectionUnclear)),
        (|p| annotate(p, "sidecar.istio.io/inject", "yes"), Some(Reason::InjectionUnclear)),
        (
            |p| {
                p.containers.remove(0);
            },
            Some(Reason::ProxyAlone),
        ),
        (
            |p| {
                let proxy = p.containers.remove(1);
                p.init_containers.push(proxy);
            },
            Some(Reason::ProxyAlone),
        ),
        (
            |p| {
                let mut proxy = p.containers.remove(1);
                proxy.life = Life::Always;
                p.init_containers.push(proxy);
            },
            None,
        ),
    ];
    for (i, (change, want)) in table.into_iter().enumerate() {
        let mut pod = meshed();
        change(&mut pod);
        assert_eq!(closed(&strict(), &pod, InitContainer::Counts), Ok(want), "case {i}");
    }
}

#[test]
fn a06_an_agents_name_opens_no_door_elsewhere() {
    for (home, namespace, name) in [
        ("gybe-system", "shop", "gybe-node-x"),
        ("gybe-system", "gybe-system", "my-gybe-node-x"),
        ("gybe-system", "gybe-system", "gybe-nod"),
        ("", "", "gybe-node-x"),
    ] {
        let conf = PluginConf { pod_namespace: home.to_owned(), ..PluginConf::default() };
        assert_eq!(at_once(&conf, namespace, name, Handed::Unsaid), None, "{home:?} {namespace}/{name}");
    }
}

#[test]
fn what_the_runtime_hands_over_decides_before_anybody_is_asked() {
    let meshed = json!({ "sidecar.istio.io/status": "" });
    let other =
        json!({ "sidecar.istio.io/inject": "true", "traffic.sidecar.istio.io/excludeInboundPorts": "x" });
    let none = json!({ "sidecar.istio.io/status": "", "sidecar.istio.io/interceptionMode": "NONE" });
    // A label beats the annotation, and labels are not handed over.
    let unclear = json!({ "sidecar.istio.io/status": "", "sidecar.istio.io/inject": "false" });
    let these = |json: &'static Value| Handed::These(json.as_object().unwrap());
    let leak = |json: Value| these(Box::leak(Box::new(json)));
    let (meshed, other, none, unclear) = (leak(meshed), leak(other), leak(none), leak(unclear));
    for (namespace, name, handed, want) in [
        ("shop", "cart-0", Handed::Unsaid, None),
        ("shop", "cart-0", Handed::Nothing, Some(Reason::NotInjected)),
        ("shop", "cart-0", other, Some(Reason::NotInjected)),
        ("shop", "cart-0", meshed, None),
        ("shop", "cart-0", unclear, None),
        ("shop", "cart-0", none, Some(Reason::ModeNone)),
        ("kube-system", "cart-0", Handed::Unsaid, Some(Reason::ExcludedNamespace)),
        ("kube-system", "cart-0", meshed, Some(Reason::ExcludedNamespace)),
        ("gybe-system", "gybe-node-x7k2p", Handed::Unsaid, Some(Reason::OwnPod)),
        ("gybe-system", "istio-cni-node-x7k2p", Handed::Unsaid, Some(Reason::OwnPod)),
        ("gybe-system", "gybe-node-x7k2p", Handed::Nothing, Some(Reason::NotInjected)),
        // A06: a name is no way out of the mesh.
        ("gybe-system", "gybe-node-x7k2p", meshed, None),
    ] {
        assert_eq!(at_once(&conf(), namespace, name, handed), want, "{namespace}/{name} {handed:?}");
    }
}

#[test]
fn only_annotations_of_an_injected_pod_contradict_and_only_what_they_could_know() {
    let (injected, other) = (json!({ "sidecar.istio.io/status": "" }), json!({ "app": "x" }));
    let (injected, other) = (injected.as_object().unwrap(), other.as_object().unwrap());
    for (reason, is) in [
        (Reason::NoProxy, true),
        (Reason::NotInjected, true),
        (Reason::ModeNone, true),
        (Reason::IstioInit, false),
        (Reason::ExcludedNamespace, false),
    ] {
        assert_eq!(contradicts(Handed::These(injected), &reason), is, "{reason}");
        for silent in [Handed::These(other), Handed::Nothing, Handed::Unsaid] {
            assert!(!contradicts(silent, &reason), "{reason} {silent:?}");
        }
    }
}

#[test]
fn an_init_container_can_be_looked_past() {
    let mut pod = meshed();
    pod.init_containers.push(Container { name: "istio-init".to_owned(), ..Container::default() });
    assert_eq!(closed(&conf(), &pod, InitContainer::Ignored), Ok(None));
}

#[test]
fn a_mode_nobody_knows_is_an_error_only_for_a_pod_that_is_ours() {
    let mut pod = meshed();
    annotate(&mut pod, "sidecar.istio.io/interceptionMode", "SIDEWAYS");
    assert!(closed(&conf(), &pod, InitContainer::Counts).is_err());
    pod.containers.remove(1);
    assert_eq!(closed(&conf(), &pod, InitContainer::Counts), Ok(Some(Reason::NoProxy)));
}
