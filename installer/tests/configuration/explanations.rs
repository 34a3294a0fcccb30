//! The explanation of a pod: the named source of each value is the input that changes it, the printed policy is the one
//! that the plugin decides, and a pod without a sidecar is explained by the factor that kept it out.

use gybe_installer::diagnosis::explanation::{Explanation, PodAddresses, Subject};
use gybe_installer::pod::manifest::{PodTemplate, pods};
use gybe_installer::pod::policy_file::PolicyFile;
use gybe_netfilter::model::policy::RedirectPolicy;
use gybe_plugin::conf::PluginConf;
use gybe_plugin::decide::Decision;
use gybe_plugin::gates::InitContainer;
use gybe_plugin::pod::PodFacts;
use serde_json::{Map, Value, json};
use std::net::IpAddr;

fn explained(pod: &PodTemplate, conf: &Value) -> Explanation {
    let facts = PodFacts::from_manifest(&pod.pod).unwrap();
    let addresses: Vec<IpAddr> = vec!["10.244.0.10".parse().unwrap(), "fd00::10".parse().unwrap()];
    let subject = Subject {
        origin: &pod.origin,
        facts: &facts,
        manifest: Some(&pod.pod),
        namespace_labels: pod.namespace_labels.as_ref(),
        addresses: &addresses,
        addresses_are: PodAddresses::Read,
        families: None,
    };
    let conf = PluginConf::read(conf.as_object().unwrap()).unwrap();
    Explanation::of(&subject, &conf, InitContainer::Counts)
}

fn one(manifest: &Value) -> PodTemplate {
    pods(&manifest.to_string()).unwrap().remove(0)
}

/// A pod that is redirected by default, with these annotations, variables and fields of its proxy.
fn sidecar(annotations: &Value, variables: &Value, security_context: &Value) -> PodTemplate {
    let mut all = json!({ "sidecar.istio.io/status": "{}" });
    all.as_object_mut().unwrap().extend(annotations.as_object().unwrap().clone());
    let variables = variables.as_object().unwrap().iter();
    let variables: Vec<Value> =
        variables.map(|(name, value)| json!({ "name": name, "value": value })).collect();
    one(&json!({
        "kind": "Pod", "metadata": { "name": "a", "namespace": "shop", "annotations": all },
        "spec": { "containers": [
            { "name": "app", "ports": [{ "containerPort": 8080 }] },
            { "name": "istio-proxy", "args": ["proxy", "sidecar"], "env": variables, "securityContext": security_context },
        ] },
    }))
}

fn policy(explanation: &Explanation) -> RedirectPolicy {
    match explanation.decision() {
        Decision::Redirect(policy) => policy.clone(),
        other => panic!("{other:?}"),
    }
}

/// The printed policy, parsed again.
fn printed(explanation: &Explanation) -> RedirectPolicy {
    let json = explanation.json();
    PolicyFile::from_entries(json["policy"].as_object().unwrap()).unwrap().policy(&[]).unwrap()
}

/// An input: annotations, variables, fields of the security context, keys of the configuration; and the values that it
/// changes, with their kind of source.
type Case = (Value, Value, Value, Value, &'static [&'static str], &'static str);

fn cases() -> Vec<Case> {
    let none = || json!({});
    let annotation = |name: &str, value: &str, keys| -> Case {
        (json!({ name: value }), none(), none(), none(), keys, "annotation")
    };
    let variable =
        |name: &str, keys| -> Case { (none(), json!({ name: "true" }), none(), none(), keys, "variable") };
    let traffic = "traffic.sidecar.istio.io";
    vec![
        annotation("sidecar.istio.io/interceptionMode", "TPROXY", &["mode"]),
        annotation(&format!("{traffic}/includeInboundPorts"), "80", &["inbound_ports_include"]),
        annotation(&format!("{traffic}/excludeInboundPorts"), "80", &["inbound_ports_exclude"]),
        annotation(&format!("{traffic}/includeOutboundPorts"), "80", &["outbound_ports_include"]),
        annotation(&format!("{traffic}/excludeOutboundPorts"), "80", &["outbound_ports_exclude"]),
        annotation(&format!("{traffic}/includeOutboundIPRanges"), "10.0.0.0/8", &["outbound_cidrs_include"]),
        annotation(&format!("{traffic}/excludeOutboundIPRanges"), "10.0.0.0/8", &["outbound_cidrs_exclude"]),
        annotation(&format!("{traffic}/excludeInterfaces"), "net1", &["exclude_interfaces"]),
        annotation(&format!("{traffic}/kubevirtInterfaces"), "net1", &["reroute_virtual_interfaces"]),
        annotation("istio.io/reroute-virtual-interfaces", "net1", &["reroute_virtual_interfaces"]),
        variable("ISTIO_META_DNS_CAPTURE", &["redirect_dns"]),
        variable("INVALID_DROP", &["drop_invalid"]),
        variable("ISTIO_DUAL_STACK", &["enable_ipv6"]),
        (none(), none(), json!({ "runAsUser": 7 }), none(), &["proxy_uids"], "securityContext"),
        (none(), none(), json!({ "runAsGroup": 7 }), none(), &["proxy_gids"], "securityContext"),
        (
            none(),
            none(),
            none(),
            json!({ "inboundDefault": "containerPorts" }),
            &["inbound_ports_include"],
            "configuration",
        ),
        (none(), none(), none(), json!({ "ipv6": "redirect" }), &["enable_ipv6"], "configuration"),
    ]
}

fn inputs(explanation: &Explanation) -> Map<String, Value> {
    let json = explanation.json();
    let inputs = json["inputs"].as_array().unwrap().iter();
    inputs.map(|input| (input["key"].as_str().unwrap().to_owned(), input.clone())).collect()
}

#[test]
fn each_input_is_named_as_the_source_of_exactly_the_values_that_it_changes() {
    let bare = inputs(&explained(&sidecar(&json!({}), &json!({}), &json!({})), &json!({})));
    for (annotations, variables, context, conf, keys, kind) in cases() {
        let pod = sidecar(&annotations, &variables, &context);
        let explanation = explained(&pod, &conf);
        assert_eq!(printed(&explanation), policy(&explanation), "{annotations} {variables} {context} {conf}");
        for (key, input) in inputs(&explanation) {
            let is_changed = input["value"] != bare[&key]["value"];
            let is_named = keys.contains(&key.as_str());
            assert_eq!(is_changed, is_named, "{annotations} {variables} {context} {conf}: {key} {input}");
            let expected = if is_named { kind } else { bare[&key]["kind"].as_str().unwrap() };
            assert_eq!(input["kind"], expected, "{annotations} {variables} {context} {conf}: {key}");
        }
    }
}

#[test]
fn of_two_inputs_the_one_that_counts_is_named() {
    for (annotations, context, conf, key, says) in [
        (
            json!({ "traffic.sidecar.istio.io/kubevirtInterfaces": "net1", "istio.io/reroute-virtual-interfaces": "net2" }),
            json!({}),
            json!({}),
            "reroute_virtual_interfaces",
            r#"annotation istio.io/reroute-virtual-interfaces: "net2""#,
        ),
        (
            json!({ "traffic.sidecar.istio.io/includeInboundPorts": "*" }),
            json!({}),
            json!({ "inboundDefault": "containerPorts" }),
            "inbound_ports_include",
            r#"annotation traffic.sidecar.istio.io/includeInboundPorts: "*""#,
        ),
        (
            json!({}),
            json!({ "runAsUser": 0 }),
            json!({}),
            "proxy_uids",
            "default; securityContext.runAsUser of istio-proxy is 0, which counts as absent",
        ),
    ] {
        let explanation = explained(&sidecar(&annotations, &json!({}), &context), &conf);
        assert_eq!(inputs(&explanation)[key]["source"], says);
    }
}

#[test]
fn an_excluded_port_without_effect_is_not_listed() {
    let annotations = json!({
        "traffic.sidecar.istio.io/includeInboundPorts": "80", "traffic.sidecar.istio.io/excludeInboundPorts": "81",
    });
    let explanation = explained(&sidecar(&annotations, &json!({}), &json!({})), &json!({}));
    assert!(!inputs(&explanation).contains_key("inbound_ports_exclude"));
    assert_eq!(printed(&explanation), policy(&explanation));
}

#[test]
fn the_first_closed_gate_is_the_reason_and_later_closed_gates_are_shown() {
    let mut pod =
        sidecar(&json!({ "sidecar.istio.io/inject": "false" }), &json!({ "DISABLE_ENVOY": "1" }), &json!({}));
    pod.pod["spec"]["initContainers"] = json!([{ "name": "istio-init" }]);
    let json = explained(&pod, &json!({})).json();
    assert_eq!((&json["decision"], &json["policy"]), (&json!("leave-alone"), &Value::Null));
    assert_eq!(json["reason"], "its init container istio-init redirects it");
    let closed = json["gates"].as_array().unwrap().iter().filter(|gate| gate["closed"] == true);
    let closed: Vec<&str> = closed.map(|gate| gate["gate"].as_str().unwrap()).collect();
    assert_eq!(closed, ["init container istio-init", "variable DISABLE_ENVOY", "sidecar.istio.io/inject"]);
}

#[test]
fn a_refused_pod_names_the_annotation_and_the_remedy() {
    let pod =
        sidecar(&json!({ "traffic.sidecar.istio.io/excludeOutboundPorts": "8O" }), &json!({}), &json!({}));
    let explanation = explained(&pod, &json!({}));
    assert_eq!(explanation.json()["decision"], "refuse");
    let text = explanation.text();
    let headline = text.lines().next().unwrap();
    assert!(headline.contains("excludeOutboundPorts: \"8O\" is not a port"), "{headline}");
    assert!(headline.ends_with("correct the annotation in the pod's template"), "{headline}");
}

#[test]
fn misspelt_annotations_and_a_proxy_that_cannot_serve_tproxy_are_warnings() {
    let mode = "sidecar.istio.io/interceptionMode";
    let with_net_admin = json!({ "runAsUser": 0, "capabilities": { "add": ["NET_ADMIN"] } });
    for (annotations, context, expected) in [
        (json!({ mode: "TPROXY" }), with_net_admin, &[][..]),
        (json!({ mode: "TPROXY" }), json!({ "runAsUser": 0, "privileged": true }), &[]),
        (json!({ mode: "TPROXY" }), json!({ "runAsUser": 0 }), &["has no capability NET_ADMIN"]),
        (
            json!({ mode: "TPROXY" }),
            json!({ "runAsUser": 1337 }),
            &["has no capability NET_ADMIN", "does not run as user 0"],
        ),
        (json!({ mode: "REDIRECT" }), json!({ "runAsUser": 1337 }), &[]),
        (json!({ "linkerd.io/inject": "enabled" }), json!({}), &[]),
        (
            json!({ "traffic.istio.io/excludeOutboundPorts": "80" }),
            json!({}),
            &["did you mean traffic.sidecar.istio.io/excludeOutboundPorts?"],
        ),
        (
            json!({ "sidecar.istio.io/excludeInboundPorts": "80" }),
            json!({}),
            &["did you mean traffic.sidecar.istio.io/excludeInboundPorts?"],
        ),
        (
            json!({ "proxy.istio.io/config": "proxyListenPort: 16001\nproxyInboundListenPort: 15006\n" }),
            json!({}),
            &["annotation proxy.istio.io/config sets proxyListenPort to 16001, and Gybe redirects to 15001"],
        ),
        (
            json!({ "proxy.istio.io/config": "{\"proxyInboundListenPort\": 16006}" }),
            json!({}),
            &["sets proxyInboundListenPort to 16006, and Gybe redirects to 15006"],
        ),
        (
            json!({ "traffic.sidecar.istio.io/excludeOutboundPort": "80" }),
            json!({}),
            &["did you mean traffic.sidecar.istio.io/excludeOutboundPorts?"],
        ),
        (
            json!({ "traffic.sidecar.istio.io/excludeInterfaces": "net1,eth0" }),
            json!({}),
            &["excludeInterfaces names eth0"],
        ),
    ] {
        let explanation = explained(&sidecar(&annotations, &json!({}), &context), &json!({}));
        let warnings = explanation.warnings();
        assert_eq!(warnings.len(), expected.len(), "{annotations} {context}: {warnings:?}");
        for (warning, expected) in warnings.iter().zip(expected) {
            assert!(warning.contains(expected), "{annotations} {context}: {warning}");
        }
    }
}

#[test]
fn a_container_with_an_id_of_the_proxy_is_a_warning() {
    let none = || json!({});
    for (proxy, pod, app, expected) in [
        (
            none(),
            none(),
            json!({ "runAsUser": 1337 }),
            &["container app runs as user 1337, the proxy's: "][..],
        ),
        (none(), none(), json!({ "runAsGroup": 1337 }), &["container app runs as group 1337, the proxy's: "]),
        (none(), json!({ "runAsUser": 1337 }), none(), &["container app runs as user 1337"]),
        (none(), json!({ "runAsUser": 1337 }), json!({ "runAsUser": 7 }), &[]),
        (json!({ "runAsUser": 7 }), none(), json!({ "runAsUser": 7 }), &["container app runs as user 7"]),
        (json!({ "runAsUser": 7 }), none(), json!({ "runAsUser": 1337 }), &[]),
    ] {
        let mut template = sidecar(&none(), &none(), &proxy);
        template.pod["spec"]["securityContext"] = pod;
        template.pod["spec"]["containers"][0]["securityContext"] = app;
        let explanation = explained(&template, &none());
        let warnings = explanation.warnings();
        assert_eq!(warnings.len(), expected.len(), "{}: {warnings:?}", template.pod);
        assert!(warnings.iter().zip(expected).all(|(it, expected)| it.starts_with(expected)), "{warnings:?}");
    }
}

#[test]
fn a_label_with_the_name_of_an_annotation_is_a_warning() {
    let name = "traffic.sidecar.istio.io/excludeOutboundPorts";
    let mut pod = sidecar(&json!({}), &json!({}), &json!({}));
    pod.pod["metadata"]["labels"] = json!({ name: "80", "sidecar.istio.io/inject": "true" });
    let expected = format!("{name} is a label; it has to be an annotation");
    assert_eq!(explained(&pod, &json!({})).warnings(), [expected]);
}

#[test]
fn a_pod_without_a_sidecar_names_the_factor_that_kept_it_out() {
    let pod = |labels: Value, annotations: Value, spec: Value| {
        let mut all = json!({ "containers": [{ "name": "app" }] });
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        json!({ "kind": "Pod", "metadata": {
            "name": "a", "namespace": "shop", "labels": labels, "annotations": annotations }, "spec": all })
    };
    let inject = "sidecar.istio.io/inject";
    let none = || json!({});
    for (namespace, pod, cause) in [
        (None, pod(none(), none(), none()), "the namespace is probably without istio-injection=enabled"),
        (
            None,
            pod(json!({ inject: "false" }), none(), none()),
            "the pod's label sidecar.istio.io/inject is \"false\"",
        ),
        (
            None,
            pod(json!({ inject: "ture" }), none(), none()),
            "the pod's label sidecar.istio.io/inject is \"ture\", which is neither true nor false",
        ),
        (
            Some(json!({ "istio-injection": "enabled" })),
            pod(none(), json!({ inject: "ture" }), none()),
            "the pod's annotation sidecar.istio.io/inject is \"ture\", which is neither true nor false",
        ),
        (
            Some(json!({ "istio-injection": "enable" })),
            pod(none(), none(), none()),
            "istio-injection is \"enable\", which no label of a pod overrides; it has to be enabled",
        ),
        (Some(none()), pod(none(), none(), none()), "neither the namespace nor the pod requests injection"),
        (
            Some(none()),
            pod(none(), json!({ inject: "true" }), none()),
            "does not bring a pod to the injector",
        ),
        (Some(none()), pod(json!({ inject: "true" }), none(), none()), "the pod requests injection, so"),
        (
            Some(none()),
            pod(json!({ "istio.io/rev": "canary" }), none(), none()),
            "the pod requests injection, so",
        ),
        (
            Some(json!({ "istio-injection": "disabled" })),
            pod(json!({ inject: "true" }), none(), none()),
            "the namespace's label istio-injection is \"disabled\"",
        ),
        (
            Some(json!({ "istio-injection": "enabled" })),
            pod(none(), json!({ inject: "false" }), none()),
            "the pod's annotation sidecar.istio.io/inject is \"false\"",
        ),
        (
            Some(json!({ "istio-injection": "enabled" })),
            pod(none(), none(), json!({ "hostNetwork": true })),
            "hostNetwork is true",
        ),
        (
            Some(json!({ "istio-injection": "enabled" })),
            pod(none(), none(), none()),
            "the namespace is istio-injection=enabled, so",
        ),
        (
            Some(json!({ "istio.io/rev": "canary" })),
            pod(none(), none(), none()),
            "the namespace is istio.io/rev=canary, so",
        ),
    ] {
        let namespace = namespace
            .map(|labels| json!({ "kind": "Namespace", "metadata": { "name": "shop", "labels": labels } }));
        let list = json!({ "kind": "List", "items": namespace.iter().chain([&pod]).collect::<Vec<_>>() });
        let json = explained(&one(&list), &json!({})).json();
        let found = json["injection"]["cause"].as_str().unwrap();
        assert!(found.contains(cause), "{list}: {found}");
    }
}

#[test]
fn a_pod_with_its_nodes_network_is_left_alone() {
    let pod = one(&json!({
        "kind": "Pod",
        "metadata": { "name": "a", "namespace": "shop", "annotations": { "sidecar.istio.io/status": "{}" } },
        "spec": { "hostNetwork": true, "containers": [{ "name": "app" }, { "name": "istio-proxy" }] },
    }));
    let explained = explained(&pod, &json!({}));
    let reason = "hostNetwork is true, and the runtime calls no plugin for it";
    assert!(explained.text().lines().next().unwrap().ends_with(reason), "{}", explained.text());
    assert_eq!(explained.json()["gates"].as_array().unwrap().last().unwrap()["reason"], reason);
}

#[test]
fn a_variable_of_another_object_is_shown_as_one_and_unread_ones_are_a_warning() {
    let from = json!({ "configMapKeyRef": { "name": "mesh", "key": "dual-stack" } });
    let pod = one(&json!({
        "kind": "Pod",
        "metadata": { "name": "a", "namespace": "shop", "annotations": { "sidecar.istio.io/status": "{}" } },
        "spec": { "containers": [{ "name": "app" }, {
            "name": "istio-proxy",
            "env": [{ "name": "ISTIO_META_DNS_CAPTURE", "valueFrom": from }],
            "envFrom": [{ "configMapRef": { "name": "mesh" } }],
        }] },
    }));
    let explained = explained(&pod, &json!({}));
    let source = "variable ISTIO_META_DNS_CAPTURE of istio-proxy: valueFrom, which counts as empty";
    assert!(explained.text().contains(source), "{}", explained.text());
    assert_eq!(explained.warnings(), ["istio-proxy has envFrom: Gybe reads the variables of env alone"]);
}

#[test]
fn a_manifest_cannot_write_control_characters_to_the_terminal() {
    let annotations = json!({ "sidecar.istio.io/inject": "\u{1b}[2J", "traffic.sidecar.istio.io/excludeInterfaces": "eth0\n" });
    let pod = sidecar(&annotations, &json!({ "DISABLE_ENVOY": "\u{1b}]0;x\u{7}" }), &json!({}));
    let text = explained(&pod, &json!({})).text();
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
}
