//! Tables of changes to a pod that passes all gates, and the gate that each change closes.

use super::*;
use crate::conf::AmbientConf;
use crate::pod::Lifetime;
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
fn each_gate_leaves_its_pods_alone() {
    let table: [(Change, LeaveAloneReason); 14] = [
        (|p| p.namespace = "kube-system".into(), LeaveAloneReason::ExcludedNamespace),
        (
            |p| p.init_containers.push(Container { name: "istio-init".into(), ..Container::default() }),
            LeaveAloneReason::IstioInit,
        ),
        (
            |p| p.containers.push(Container { name: "istio-init".into(), ..Container::default() }),
            LeaveAloneReason::IstioInit,
        ),
        (|p| set_env(p, "true"), LeaveAloneReason::EnvoyDisabled),
        (|p| set_env(p, "1"), LeaveAloneReason::EnvoyDisabled),
        (|p| p.containers[1].name = "envoy".into(), LeaveAloneReason::NoProxy),
        (|p| p.containers[1].args[1] = "router".into(), LeaveAloneReason::NotASidecar("router".into())),
        (|p| p.containers[1].args[1] = "waypoint".into(), LeaveAloneReason::NotASidecar("waypoint".into())),
        (|p| annotate(p, "sidecar.istio.io/inject", "false"), LeaveAloneReason::InjectionRefused),
        (|p| annotate(p, "sidecar.istio.io/inject", "F"), LeaveAloneReason::InjectionRefused),
        (
            |p| {
                annotate(p, "sidecar.istio.io/inject", "true");
                label(p, "0");
            },
            LeaveAloneReason::InjectionRefused,
        ),
        (|p| p.annotations.clear(), LeaveAloneReason::NotInjected),
        (|p| annotate(p, "sidecar.istio.io/interceptionMode", "NONE"), LeaveAloneReason::ModeNone),
        (
            |p| {
                p.annotations.clear();
                label(p, "false");
            },
            LeaveAloneReason::InjectionRefused,
        ),
    ];
    for (i, (change, expected)) in table.into_iter().enumerate() {
        let mut pod = meshed();
        change(&mut pod);
        assert_eq!(check(&conf(), &pod, InitContainer::Counts), Ok(Some(expected)), "case {i}");
    }
}

#[test]
fn a_pod_that_merely_resembles_an_exempt_one_is_redirected() {
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
        assert_eq!(check(&conf(), &pod, InitContainer::Counts), Ok(None), "case {i}");
    }
}

#[test]
fn strict_gates_require_two_containers_and_an_inject_value_that_is_true() {
    let table: [(Change, Option<LeaveAloneReason>); 8] = [
        (|_| {}, None),
        (|p| label(p, "true"), None),
        (|p| label(p, "no"), Some(LeaveAloneReason::InjectionUnclear)),
        (|p| label(p, ""), Some(LeaveAloneReason::InjectionUnclear)),
        (|p| annotate(p, "sidecar.istio.io/inject", "yes"), Some(LeaveAloneReason::InjectionUnclear)),
        (
            |p| {
                p.containers.remove(0);
            },
            Some(LeaveAloneReason::ProxyAlone),
        ),
        (
            |p| {
                let proxy = p.containers.remove(1);
                p.init_containers.push(proxy);
            },
            Some(LeaveAloneReason::ProxyAlone),
        ),
        (
            |p| {
                let mut proxy = p.containers.remove(1);
                proxy.lifetime = Lifetime::Pod;
                p.init_containers.push(proxy);
            },
            None,
        ),
    ];
    for (i, (change, expected)) in table.into_iter().enumerate() {
        let mut pod = meshed();
        change(&mut pod);
        assert_eq!(check(&strict(), &pod, InitContainer::Counts), Ok(expected), "case {i}");
    }
}

#[test]
fn a06_an_agents_name_exempts_no_pod_of_another_namespace() {
    for (home, namespace, name) in [
        ("gybe-system", "shop", "gybe-node-x"),
        ("gybe-system", "gybe-system", "my-gybe-node-x"),
        ("gybe-system", "gybe-system", "gybe-nod"),
        ("", "", "gybe-node-x"),
    ] {
        let conf = PluginConf { pod_namespace: home.to_owned(), ..PluginConf::default() };
        assert_eq!(
            check_without_facts(&conf, namespace, name, RuntimeAnnotations::NotProvided),
            None,
            "{home:?} {namespace}/{name}"
        );
    }
}

#[test]
fn the_runtimes_annotations_decide_before_a_source_of_facts_is_queried() {
    let meshed = json!({ "sidecar.istio.io/status": "" });
    let other =
        json!({ "sidecar.istio.io/inject": "true", "traffic.sidecar.istio.io/excludeInboundPorts": "x" });
    let none = json!({ "sidecar.istio.io/status": "", "sidecar.istio.io/interceptionMode": "NONE" });
    // A label overrides the annotation, and runtimes do not hand labels over.
    let unclear = json!({ "sidecar.istio.io/status": "", "sidecar.istio.io/inject": "false" });
    let these = |json: &'static Value| RuntimeAnnotations::Present(json.as_object().unwrap());
    let leak = |json: Value| these(Box::leak(Box::new(json)));
    let (meshed, other, none, unclear) = (leak(meshed), leak(other), leak(none), leak(unclear));
    for (namespace, name, annotations, expected) in [
        ("shop", "cart-0", RuntimeAnnotations::NotProvided, None),
        ("shop", "cart-0", RuntimeAnnotations::Empty, Some(LeaveAloneReason::NotInjected)),
        ("shop", "cart-0", other, Some(LeaveAloneReason::NotInjected)),
        ("shop", "cart-0", meshed, None),
        ("shop", "cart-0", unclear, None),
        ("shop", "cart-0", none, Some(LeaveAloneReason::ModeNone)),
        ("kube-system", "cart-0", RuntimeAnnotations::NotProvided, Some(LeaveAloneReason::ExcludedNamespace)),
        ("kube-system", "cart-0", meshed, Some(LeaveAloneReason::ExcludedNamespace)),
        ("gybe-system", "gybe-node-x7k2p", RuntimeAnnotations::NotProvided, Some(LeaveAloneReason::OwnPod)),
        (
            "gybe-system",
            "istio-cni-node-x7k2p",
            RuntimeAnnotations::NotProvided,
            Some(LeaveAloneReason::OwnPod),
        ),
        ("gybe-system", "gybe-node-x7k2p", RuntimeAnnotations::Empty, Some(LeaveAloneReason::NotInjected)),
        // A06: an agent's name exempts no pod of the mesh.
        ("gybe-system", "gybe-node-x7k2p", meshed, None),
    ] {
        assert_eq!(
            check_without_facts(&conf(), namespace, name, annotations),
            expected,
            "{namespace}/{name} {annotations:?}"
        );
    }
}

#[test]
fn in_ambient_mode_annotations_decide_only_about_pods_with_a_sidecar() {
    let conf = PluginConf { ambient: Some(AmbientConf::default()), ..conf() };
    let (other, none) = (
        json!({ "app": "x" }),
        json!({ "sidecar.istio.io/status": "", "sidecar.istio.io/interceptionMode": "NONE" }),
    );
    let [other, none] = [&other, &none].map(|json| RuntimeAnnotations::Present(json.as_object().unwrap()));
    for (namespace, name, annotations, expected) in [
        ("shop", "cart-0", RuntimeAnnotations::Empty, None),
        ("shop", "cart-0", other, None),
        ("shop", "cart-0", none, Some(LeaveAloneReason::ModeNone)),
        ("kube-system", "cart-0", other, Some(LeaveAloneReason::ExcludedNamespace)),
        ("gybe-system", "istio-cni-node-x7k2p", RuntimeAnnotations::Empty, Some(LeaveAloneReason::OwnPod)),
        ("shop", "istio-cni-node-x7k2p", RuntimeAnnotations::Empty, None),
    ] {
        let decided = check_without_facts(&conf, namespace, name, annotations);
        assert_eq!(decided, expected, "{namespace}/{name} {annotations:?}");
    }
}

#[test]
fn only_an_injected_pods_annotations_contradict_facts_and_only_about_injection_and_mode() {
    let (injected, plain) = (json!({ "sidecar.istio.io/status": "" }), json!({ "app": "x" }));
    let (injected, plain) = (injected.as_object().unwrap(), plain.as_object().unwrap());
    for (reason, is) in [
        (LeaveAloneReason::NoProxy, true),
        (LeaveAloneReason::NotInjected, true),
        (LeaveAloneReason::ModeNone, true),
        (LeaveAloneReason::IstioInit, false),
        (LeaveAloneReason::ExcludedNamespace, false),
    ] {
        assert_eq!(contradicts(RuntimeAnnotations::Present(injected), &reason), is, "{reason}");
        for other in
            [RuntimeAnnotations::Present(plain), RuntimeAnnotations::Empty, RuntimeAnnotations::NotProvided]
        {
            assert!(!contradicts(other, &reason), "{reason} {other:?}");
        }
    }
}

#[test]
fn the_init_container_can_be_ignored() {
    let mut pod = meshed();
    pod.init_containers.push(Container { name: "istio-init".to_owned(), ..Container::default() });
    assert_eq!(check(&conf(), &pod, InitContainer::Ignored), Ok(None));
}

#[test]
fn an_unknown_mode_is_an_error_only_for_a_pod_that_passes_the_other_gates() {
    let mut pod = meshed();
    annotate(&mut pod, "sidecar.istio.io/interceptionMode", "SIDEWAYS");
    assert!(check(&conf(), &pod, InitContainer::Counts).is_err());
    pod.containers.remove(1);
    assert_eq!(check(&conf(), &pod, InitContainer::Counts), Ok(Some(LeaveAloneReason::NoProxy)));
}
