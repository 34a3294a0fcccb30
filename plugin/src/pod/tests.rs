//! Manifests, and the facts that are kept of them.

use super::*;
use serde_json::json;

#[test]
fn a_manifest_is_trimmed_to_what_the_decision_needs() {
    let pod = PodFacts::from_manifest(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "cart-0", "namespace": "shop", "uid": "u", "managedFields": [{ "x": 1 }],
            "annotations": {
                "sidecar.istio.io/status": "{}", "istio.io/rev": "default", "kubernetes.io/config.mirror": "m",
                "notistio.io/x": "y", "kubectl.kubernetes.io/last-applied-configuration": "{...}",
            },
            "labels": { "app": "cart", "sidecar.istio.io/inject": "true" },
        },
        "spec": {
            "initContainers": [
                { "name": "istio-proxy", "restartPolicy": "Always", "args": ["proxy", "sidecar"],
                  "env": [{ "name": "DISABLE_ENVOY", "value": "1" }, { "name": "INVALID_DROP", "valueFrom": {} },
                          { "name": "DISABLE_ENVOY", "value": "2" }, { "name": "PASSWORD", "value": "hunter2" }],
                  "securityContext": { "runAsUser": 1337, "runAsGroup": 1338, "privileged": false } },
                { "name": "prepare" },
            ],
            "containers": [{
                "name": "app", "image": "x", "args": ["--password=hunter2"],
                "env": [{ "name": "PASSWORD", "value": "hunter2" }],
                "ports": [{ "containerPort": 80 }, { "containerPort": 81, "protocol": "TCP" },
                          { "containerPort": 53, "protocol": "UDP" }],
            }],
        },
    }))
    .unwrap();
    assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_str()), ("shop", "cart-0", "u"));
    let kept: Vec<_> = pod.annotations.keys().map(String::as_str).collect();
    assert_eq!(kept, ["istio.io/rev", "kubernetes.io/config.mirror", "sidecar.istio.io/status"]);
    assert_eq!(pod.labels.len(), 1);
    let app = &pod.containers[0];
    assert_eq!((app.env.len(), app.args.len(), app.tcp_ports.as_slice()), (0, 0, [80, 81].as_slice()));
    let proxy = pod.proxy().unwrap();
    let env: Vec<_> = proxy.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!((env, proxy.args.len()), (vec![("DISABLE_ENVOY", "2"), ("INVALID_DROP", "")], 2));
    assert_eq!(
        (proxy.run_as_user, proxy.run_as_group, proxy.lifetime),
        (Some(1337), Some(1338), Lifetime::Pod)
    );
    let long_lived: Vec<_> = pod.long_lived().map(|container| container.name.as_str()).collect();
    assert_eq!(long_lived, ["app", "istio-proxy"]);
}

#[test]
fn values_of_any_length_are_truncated_to_what_a_decision_reads() {
    let long = "x".repeat(1 << 20);
    let list = vec!["80"; 9000].join(",");
    let pod = PodFacts::from_manifest(&json!({
        "metadata": { "annotations": {
            "sidecar.istio.io/status": long, "traffic.sidecar.istio.io/more": long, "other.io/x": long,
            "sidecar.istio.io/interceptionMode": format!("NONE{long}"),
            "traffic.sidecar.istio.io/excludeOutboundPorts": list,
        } },
        "spec": { "containers": [{
            "name": "istio-proxy", "args": ["proxy", format!("sidecar{long}"), long, long],
            "env": [{ "name": "PASSWORD", "value": long }, { "name": "INVALID_DROP", "value": format!("true{long}") },
                    { "name": long, "value": "x" }],
        }] },
    }))
    .unwrap();
    let excluded = pod.annotation("traffic.sidecar.istio.io/excludeOutboundPorts").unwrap();
    assert_eq!(excluded, list, "a list is kept in full");
    let kept = pod.to_manifest().to_string();
    assert!(kept.len() < list.len() + 1024 && !kept.contains("PASSWORD"), "{}", kept.len());
    // A truncated value equals no known value.
    assert_eq!(pod.proxy().unwrap().bool_env("INVALID_DROP"), None);
    assert!(pod.annotation("sidecar.istio.io/interceptionMode").unwrap().starts_with("NONEx"));
    assert!(pod.proxy().unwrap().args[1].starts_with("sidecarx"));
}

#[test]
fn a_template_needs_no_name_and_null_counts_as_absent() {
    for manifest in [
        json!({ "spec": { "containers": [] } }),
        json!({ "metadata": null, "spec": { "containers": [], "initContainers": null } }),
        json!({ "metadata": { "annotations": null, "labels": null }, "spec": { "containers": [{ "name": "a", "env": null,
                "ports": null, "args": null, "securityContext": null, "restartPolicy": null }] } }),
    ] {
        assert!(PodFacts::from_manifest(&manifest).is_ok(), "{manifest}");
        assert_eq!(PodFacts::from_json(manifest.to_string().as_bytes()), PodFacts::from_manifest(&manifest));
    }
}

#[test]
fn a_document_that_is_not_a_pod_is_refused() {
    for manifest in [
        json!(null),
        json!("pod"),
        json!({}),
        json!({ "spec": {} }),
        json!({ "spec": { "template": { "spec": { "containers": [] } } } }),
        json!({ "spec": { "containers": {} } }),
        json!({ "spec": { "containers": [{ "ports": [{ "containerPort": 70000 }] }] } }),
        json!({ "spec": { "containers": [{ "securityContext": { "runAsUser": "root" } }] } }),
        json!({ "spec": { "containers": [{ "securityContext": { "runAsUser": 1e30 } }] } }),
        json!({ "metadata": { "annotations": { "a": 1 } }, "spec": { "containers": [] } }),
    ] {
        assert!(PodFacts::from_manifest(&manifest).is_err(), "{manifest}");
    }
}

#[test]
fn an_error_has_the_position_and_not_the_value() {
    let manifest = br#"{"spec":{"containers":[{"args":"--password=hunter2"}]}}"#;
    let error = PodFacts::from_json(manifest).unwrap_err().to_string();
    assert!(error.contains("line 1 column"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn booleans_are_those_of_go() {
    for text in ["1", "t", "T", "TRUE", "true", "True"] {
        assert_eq!(parse_bool(text), Some(true), "{text}");
    }
    for text in ["0", "f", "F", "FALSE", "false", "False"] {
        assert_eq!(parse_bool(text), Some(false), "{text}");
    }
    for text in ["", "yes", "no", "tRUE", " true", "2", "on"] {
        assert_eq!(parse_bool(text), None, "{text}");
    }
}
