//! An operator's template of the entry (`cni_network_config`) combined with the other settings.

use crate::desired_state::{image, installed, json_of, node};
use crate::{Pairs, read, refused, sources};
use gybe_installer::host::image::Image;
use gybe_installer::host::settings::{NodeContext, Settings};
use gybe_installer::probe::node_backend::node_backend;
use gybe_netfilter::apply::backend::BackendKind;
use gybe_plugin::conf::{PluginConf, ProbeHint};
use serde_json::{Value, json};

/// The template of istio-cni's documentation, in its newer and its older form.
const ISTIOS: &str = r#"{"cniVersion":"0.3.1","name":"istio-cni","type":"istio-cni","plugin_log_level":"__LOG_LEVEL__",
    "cni_agent_run_dir":"/var/run/istio-cni","ambient_enabled":false,"exclude_namespaces":["a","istio-system"]}"#;
const OLDER: &str = r#"{"cniVersion":"0.3.1","name":"istio-cni","type":"istio-cni","log_level":"__LOG_LEVEL__",
    "kubernetes":{"kubeconfig":"__KUBECONFIG_FILEPATH__","cni_bin_dir":"/opt/cni/bin",
    "exclude_namespaces":["a","istio-system"]}}"#;

struct Row {
    template: &'static str,
    settings: Pairs<'static>,
    /// The entry's members that differ from those without a template and settings.
    entry: Value,
    notes: &'static [&'static str],
}

fn rows() -> Vec<Row> {
    let row = |template, settings, entry, notes| Row { template, settings, entry, notes };
    vec![
        row(ISTIOS, &[], json!({ "exclude_namespaces": ["a", "istio-system"] }), &[]),
        row(
            ISTIOS,
            &[
                ("log_level", "debug"),
                ("backend", "nft"),
                ("gates", "strict"),
                ("ipv6", "reject"),
                ("inbound_default", "containerPorts"),
                ("max_intervals", "7"),
                ("exclude_namespaces", "b,istio-system"),
            ],
            json!({
                "log_level": "debug", "backend": "nft", "gates": "strict", "ipv6": "reject",
                "inboundDefault": "containerPorts", "max_intervals": 7, "exclude_namespaces": ["b", "istio-system"],
            }),
            &[
                "cni_network_config has exclude_namespaces [\"a\",\"istio-system\"], which exclude_namespaces overrides",
            ],
        ),
        row(
            OLDER,
            &[],
            json!({ "exclude_namespaces": ["a", "istio-system"] }),
            &[
                "cni_network_config names a kubeconfig, which is ignored because pod_source is agent; set pod_source: api",
            ],
        ),
        row(
            OLDER,
            &[("pod_source", "api")],
            json!({ "exclude_namespaces": ["a", "istio-system"], "facts": { "kubeconfig": "/run/gybe/kubeconfig" } }),
            &[],
        ),
        row(
            r#"{"type":"gybe-cni","facts":{"kubeconfig":"/root/.kube/config"}}"#,
            &[("pod_source", "api")],
            json!({ "facts": { "kubeconfig": "/run/gybe/kubeconfig" } }),
            &["cni_network_config names another kubeconfig than the agent writes: the agent's is used"],
        ),
        row(
            r#"{"type":"gybe-cni","backend":"nft","ipv6":"leave","gates":"strict","log_level":"warn"}"#,
            &[("backend", "iptables"), ("log_level", "warn")],
            json!({ "backend": "iptables", "ipv6": "leave", "gates": "strict", "log_level": "warn" }),
            &["cni_network_config has backend \"nft\", which backend overrides"],
        ),
        row(r#"{"type":"gybe-cni","native_nftables":true}"#, &[], json!({ "backend": "nft" }), &[]),
        row(
            r#"{"type":"gybe-cni","native_nftables":true}"#,
            &[("backend", "iptables-legacy")],
            json!({ "backend": "iptables-legacy" }),
            &["cni_network_config has backend \"nft\", which backend overrides"],
        ),
        row(
            r#"{"type":"gybe-cni","pod_namespace":"else","probed":{"backend":"nft","kernel":"9"},
                "facts":{"socket":"/tmp/x.sock","deadline_ms":500},"capabilities":{"x":true}}"#,
            &[],
            json!({ "facts": { "deadline_ms": 500 } }),
            &[
                "cni_network_config has probed, which is ignored: the agent writes the probe report",
                "cni_network_config has another pod_namespace than the agent's: the agent's is used",
                "cni_network_config has another facts.socket than the agent's: the agent's is used",
            ],
        ),
        row(
            r#"{"type":"gybe-cni","of_a_release_to_come":[1],"facts":{"sockets":1}}"#,
            &[],
            json!({ "of_a_release_to_come": [1] }),
            &["cni_network_config: unknown keys of_a_release_to_come, facts.sockets"],
        ),
        row(
            r#"{"type":"gybe-cni","exclude_namespaces":[]}"#,
            &[],
            json!({ "exclude_namespaces": [] }),
            &[
                "cni_network_config does not contain \"istio-system\", the namespace of istiod: if istiod's own pods are in the mesh, they cannot start without istiod",
            ],
        ),
    ]
}

const POD: Pairs<'_> = &[
    ("POD_NAMESPACE", "gybe-system"),
    ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
    ("KUBERNETES_SERVICE_PORT", "443"),
];

fn entry(settings: &Settings, image: &Image) -> Value {
    json_of(&installed(settings, &node(image)).entry)
}

#[test]
fn settings_and_the_agents_own_values_override_a_template() {
    let (plain, image) = (read(POD, &[]), image("template-base"));
    for Row { template, settings, entry: more, notes } in rows() {
        let files: Vec<_> = settings.iter().copied().chain([("cni_network_config", template)]).collect();
        let with = read(POD, &files);
        let mut expected = entry(&plain, &image);
        for (key, value) in more.as_object().unwrap() {
            match (expected.get_mut(key).and_then(Value::as_object_mut), value.as_object()) {
                (Some(inner), Some(value)) => inner.extend(value.clone()),
                _ => expected[key] = value.clone(),
            }
        }
        let written = entry(&with, &image);
        assert_eq!(written, expected, "{template} {settings:?}");
        assert_eq!(with.notes, notes, "{template} {settings:?}");
        let read_back = PluginConf::read(written.as_object().unwrap()).unwrap();
        assert_eq!(read_back, with.options.conf, "{template} {settings:?}");
    }
}

#[test]
fn the_probe_report_is_written_into_an_entry_with_a_template_too() {
    let settings = read(POD, &[("cni_network_config", ISTIOS)]);
    let probed = ProbeHint { backend: Some(BackendKind::Nft), kernel: "6.1".to_owned() };
    let image = image("template-probed");
    let backend = node_backend(settings.options.conf.backend, None, None);
    let node = NodeContext { backend: Some(&backend), probed: Some(&probed), ..node(&image) };
    assert_eq!(json_of(&installed(&settings, &node).entry)["probed"]["kernel"], "6.1");
}

#[test]
fn the_configmaps_template_takes_precedence_over_the_variables_and_that_over_the_files() {
    let (key, variable) = (r#"{"type":"gybe-cni","ipv6":"leave"}"#, r#"{"type":"gybe-cni","ipv6":"reject"}"#);
    let image = image("template-first");
    let ipv6 = |settings: &Settings| entry(settings, &image)["ipv6"].clone();
    let both = read(&[("CNI_NETWORK_CONFIG", variable)], &[("cni_network_config", key)]);
    assert_eq!(ipv6(&both), "leave");
    let mut of_file = sources(&[], &[]);
    of_file.network_config = Some(key.to_owned());
    assert_eq!(ipv6(&Settings::read(&of_file).unwrap()), "leave");
    of_file.environment.insert("CNI_NETWORK_CONFIG".to_owned(), variable.to_owned());
    assert_eq!(ipv6(&Settings::read(&of_file).unwrap()), "reject");
}

#[test]
fn an_invalid_template_is_refused_with_the_cause() {
    for (template, cause) in [
        (r#"{"type":"gybe-cni","a":"__ETCD__"}"#, "unknown placeholders: __ETCD__"),
        (r#"{"type":"istio-cni","ambient_enabled":true}"#, "no ambient mode"),
        (r#"{"type":"gybe-cni","backend":"nftt"}"#, "must be one of auto"),
        (r#"{"type":"calico"}"#, "for the plugin \"calico\""),
        ("{", "cannot be parsed"),
    ] {
        let why = refused(&[("CNI_NETWORK_CONFIG", template)], &[]);
        assert!(why.contains(cause), "{why}");
    }
}
